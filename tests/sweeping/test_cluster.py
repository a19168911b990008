import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from process import run
from sweeps import ROOT, SMALL, digests, toy_run

from mechheads.engine.head_subsets import measure_subsets
from mechheads.errors import MechheadsError
from mechheads.models.locate import EMBEDDED
from mechheads.sweep import sweep
from mechheads.sweeping import cluster as on_ray
from mechheads.sweeping.cells import CELLS, Done, complete, look, run_cell
from mechheads.sweeping.grid import Cell, from_flags
from mechheads.sweeping.inputs import with_inputs


def test_a_cell_that_is_finished_is_not_run_again_by_a_retry(tmp_path):
    cell = Cell("gate", (("seed", 0),))
    folder = toy_run(cell, tmp_path)
    done = run_cell(cell, tmp_path)
    assert (done.error, done.run and done.run.folder) == (None, folder)

    class Lost(Exception):
        pass

    def get(ref: str) -> Any:
        raise Lost(f"{ref} is lost\nand more")

    ray = SimpleNamespace(get=get, exceptions=SimpleNamespace(RayError=Lost))
    assert on_ray._ended(ray, "it", cell, tmp_path).run == done.run
    other = on_ray._ended(ray, "it", Cell("gate", (("seed", 1),)), tmp_path)
    assert other.error == "the cluster gave up on it (it is lost)"


def test_only_patching_is_shared():
    for settings, shared in (
        ({}, False),  # auto may choose another one
        ({"method": "patch", "n": "auto"}, False),
        ({"method": "patch", "heads": "L0H0"}, True),
        ({"method": "ig"}, False),
        ({"effects": "own.csv"}, False),
    ):
        assert on_ray._can_share(Cell("discover", tuple(settings.items()))) is shared
    assert not on_ray._can_share(Cell("gate", ()))


class Here:
    """A remote function of Ray that runs here and now, and notes what it was given."""

    def __init__(self, function: Any) -> None:
        self.function, self.calls = function, []

    def remote(self, *given: Any) -> Any:
        self.calls.append(given)
        return self.function(*given)


@pytest.mark.parametrize("places", [1, 3, 100])
def test_workers_share_the_whole_first_part_of_a_curve(places, swept, tmp_path, monkeypatch):
    errors = SimpleNamespace(RayTaskError=ZeroDivisionError)
    ray = SimpleNamespace(get=lambda found: found, exceptions=errors)
    monkeypatch.setattr(on_ray, "find_ray", lambda: ray)
    measured: list[int] = []

    def spy(model, prompts, keep, *args, **options):
        measured.append(len(keep))
        return measure_subsets(model, prompts, keep, *args, **options)

    layer, curve = Here(on_ray._layer), Here(on_ray._curve)
    run = Here(lambda *given: measured.clear() or on_ray._run(*given))
    monkeypatch.setattr("mechheads.engine.subset_table.measure_subsets", spy)
    axes = {"tasks": ["math"], "models": ["mini"], "methods": ["patch"]}
    (cell,) = with_inputs(from_flags(["discover"], axes, SMALL))
    workplace = on_ray.Workplace(tmp_path, Path.cwd(), 1)
    done = on_ray._share(layer, curve, run, cell, workplace, places)
    assert done.error is None
    count = min(places, 4)  # layers
    assert [given[1] for given in curve.calls] == [(i, count) for i in range(count)]
    assert measured == []  # of 32 heads, all points are in the first part
    ours, theirs = digests(tmp_path / CELLS), digests(swept / CELLS)
    assert ours
    assert ours.items() < theirs.items()


def test_no_cluster_there_is_one_line(tmp_path):
    with pytest.raises(MechheadsError, match="--split-layers needs --cluster"):
        sweep(tasks="math", split_layers=True, out=str(tmp_path), quiet=True)
    with pytest.raises(MechheadsError, match=r"no Ray cluster at 127.0.0.1:1 "):
        sweep(tasks="math", cluster="127.0.0.1:1", out=str(tmp_path), quiet=True)


def test_a_local_cluster_is_started_whatever_the_environment_says(monkeypatch):
    seen: list[Any] = []

    def init(**given):
        seen.append((given, threading.current_thread()))

    ray = SimpleNamespace(is_initialized=lambda: False, init=init)
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    assert on_ray._connect(ray, "local")
    given, thread = seen[0]
    assert given["address"] == "local"
    assert thread is threading.current_thread()  # Ray's processes die with the thread


def test_a_worker_can_start_where_a_strangers_tasks_py_is_found_first(tmp_path):
    (tmp_path / "tasks.py").write_text("raise SystemExit('a stranger was imported')")
    (tmp_path / "worker.py").write_text(
        "from pathlib import Path\n"
        "from mechheads.sweeping import cluster\n"
        "cluster._prepare(cluster.Workplace(Path(), Path.cwd(), 1))\n"
        "from tasks import TASKS"
    )
    out = run("worker", cwd=tmp_path)
    assert (out.returncode, out.stderr) == (0, "")


def test_workers_with_gpus_keep_their_models_too():
    ray = pytest.importorskip("ray")
    made = ray.remote(**on_ray.worker_options(1.0, 1.0))(lambda: None)
    assert made._default_options["max_calls"] == 0
    assert made._default_options["num_gpus"] == 1.0


def test_more_than_any_node_has_is_refused():
    nodes = [
        {"Alive": True, "Resources": {"CPU": 8.0}},
        {"Alive": True, "Resources": {"CPU": 2.0, "GPU": 1.0}},
        {"Alive": False, "Resources": {"CPU": 64.0, "GPU": 8.0}},
    ]
    for given, room in (((8.0, 0.0), 1), ((2.0, 1.0), 1), ((0.5, 0.0), 20), ((1.0, 0.5), 2)):
        assert on_ray._check_room(nodes, *given) == room
    with pytest.raises(MechheadsError, match=r"4 CPUs and 1 GPUs, .* have 8 and 0; 2 and 1"):
        on_ray._check_room(nodes, 4.0, 1.0)


def noting(log: Path, doomed: str) -> Any:
    """What a worker does, with a line for every attempt; on the doomed node it does not end."""

    def run(cell: Cell, workplace: Any, effects: Any = None, subsets: Any = None) -> Done:
        import ray

        from mechheads.sweeping.cluster import _run  # the worker's, which nobody has changed

        node = ray.get_runtime_context().get_node_id()
        with log.open("a") as stream:
            stream.write(f"{cell.name} {node}\n")
        if node == doomed:
            time.sleep(600)
        return _run(cell, workplace, effects, subsets)

    return run


@pytest.fixture
def nodes(monkeypatch) -> Iterator[tuple[Any, Any]]:
    """A Ray cluster of two nodes with a CPU each, and the second node."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    cluster: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        node = cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
        ray.init(address=cluster.address, log_to_driver=False)
        yield cluster, node
    finally:
        ray.shutdown()
        cluster.shutdown()


@pytest.mark.filterwarnings("default")
def test_ray_gives_the_same_bytes_though_a_node_is_killed(swept, nodes, tmp_path, monkeypatch):
    cluster, node = nodes
    log, one, two = (tmp_path / name for name in ("attempts", "one", "two"))
    log.touch()
    axes = {"tasks": ["ioi", "math", "syntax"], "models": ["mini"], "methods": ["patch"]}
    made = with_inputs(from_flags(["discover"], axes, SMALL))

    def kill_when_busy() -> None:
        while node.node_id not in log.read_text():
            time.sleep(0.05)
        cluster.remove_node(node, allow_graceful=False)

    killer = threading.Thread(target=kill_when_busy, daemon=True)
    killer.start()
    with monkeypatch.context() as patched:
        patched.setattr(on_ray, "_run", noting(log, node.node_id))
        broken = look(made, one)
        complete(broken, on_ray.on_cluster(cluster.address), True)
    killer.join(60)
    assert not broken.errors
    tried: dict[str, list[str]] = {}
    for line in log.read_text().splitlines():
        tried.setdefault(line.split()[0], []).append(line.split()[1])
    (again,) = (places for places in tried.values() if node.node_id in places)
    assert again[0] == node.node_id
    assert set(again[1:]) not in (set(), {node.node_id})
    # Layers and curve of a cell shared among workers: the same. A relative path is the driver's.
    monkeypatch.chdir(tmp_path)
    Path("own").symlink_to(EMBEDDED / "mini")
    own = from_flags(["discover"], {"tasks": ["math"], "models": ["own"]}, SMALL)
    shared = look([made[0], *own], two)
    complete(shared, on_ray.on_cluster(cluster.address, split=True), True)
    assert not shared.errors
    ours, ones, twos = (digests(place / CELLS) for place in (swept, one, two))
    assert ones == ours
    same = {name: digest for name, digest in ours.items() if name.startswith(made[0].name)}
    assert same
    assert same.items() < twos.items()
    with pytest.raises(MechheadsError, match=r"needs 64 CPUs and 0 GPUs, .* have 1 and 0"):
        complete(look(made, tmp_path / "no"), on_ray.on_cluster(cluster.address, 64.0), True)
