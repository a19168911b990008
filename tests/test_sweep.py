"""Sweeps: grids, cells that survive being killed, failures, Ray, the overview."""

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from mechheads.errors import MechheadsError
from mechheads.sweep import sweep
from mechheads.sweeping import cells as cells_module
from mechheads.sweeping.cells import finished, here, sweep_cells
from mechheads.sweeping.grid import Cell, from_file, from_flags

SMALL: dict[str, Any] = {"n": "4", "test": "4", "draws": "2"}


def digests(folder: Path) -> dict[str, str]:
    """Every file but the log and the timings."""
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file.name not in ("log.txt", "timings.json")
    }


def test_a_grid_has_every_combination_once():
    axes = {
        "tasks": ["ioi", "math"],
        "models": ["mini"],
        "methods": ["patch", "ig"],
        "seeds": [0, 1],
    }
    made = from_flags(["discover", "gate"], axes, {"n": "8"})
    assert len(made) == 8 + 4  # gate has no methods
    assert len({cell.name for cell in made}) == 12
    assert dict(made[0].settings) == {
        "task": "ioi",
        "model": "mini",
        "method": "patch",
        "seed": 0,
        "n": 8,
    }
    (pair,) = from_flags(["compare"], {"tasks": ["ioi", "math"], "models": ["a", "b"]}, {})
    assert dict(pair.settings) == {"standard": "a", "sparse": "b", "tasks": "ioi,math"}
    for wrong, words in (
        ((["discovr"], {}, {}), "Did you mean"),
        ((["gate"], {}, {"metrics": "x"}), "unknown flag --metrics"),
        ((["compare"], {"models": ["a"]}, {}), "two --models"),
        ((["discover"], {}, {"n": "x"}), "--n takes a whole number"),
    ):
        with pytest.raises(MechheadsError, match=words):
            from_flags(*wrong)


def test_a_grid_from_a_file(tmp_path):
    file = tmp_path / "grid.toml"
    file.write_text(
        '[[grid]]\nverb = "discover"\ntasks = ["ioi", "math"]\nseeds = [0, 1]\nn = 8\n'
        '[[grid]]\nverb = "prefix"\nmodels = ["mini"]\nlength = 5\n'
    )
    made = from_file(str(file))
    assert len(made) == 5
    assert dict(made[-1].settings) == {"models": "mini", "length": 5}
    file.write_text('[[grid]]\nverb = "gate"\nseeds = 3\n')
    assert dict(from_file(str(file))[0].settings) == {"seeds": 3}
    for text, words in (
        ("", "no \\[\\[grid\\]\\]"),
        ("[[grid]]\nverb = 'x'", "verb is one of"),
        ("[[grid]]\nverb = 'gate'\ntasks = 'ioi'", "tasks takes a list"),
        ("[[grid]]\nverb = 'gate'\nfoo = 1", "gate has no setting foo"),
        ("= =", "is no TOML"),
    ):
        file.write_text(text)
        with pytest.raises(MechheadsError, match=words):
            from_file(str(file))
    with pytest.raises(MechheadsError, match="cannot read"):
        from_file(str(tmp_path / "missing.toml"))


@pytest.fixture(scope="module")
def swept(tmp_path_factory) -> Path:
    """A finished sweep of three cells."""
    out = tmp_path_factory.mktemp("sweep")
    sweep(tasks="ioi,math,syntax", models="mini", out=str(out), quiet=True, **SMALL)
    return out


def test_an_overview_links_every_report(swept, capsys):
    page = (swept / "index.html").read_text()
    assert "3 of 3 cells are done" in page
    rows = json.loads((swept / "sweep.json").read_text())
    for row in rows:
        assert row["state"] == "done"
        assert f'href="{row["report"]}"' in page
        assert (swept / row["report"]).is_file()
    assert len((swept / "log.txt").read_text().splitlines()) == 3


def test_a_second_time_nothing_runs_again(swept):
    before = digests(swept)
    log = (swept / "log.txt").read_text()
    sweep(tasks="ioi,math,syntax", models="mini", out=str(swept), quiet=True, **SMALL)
    assert digests(swept) == before
    assert (swept / "log.txt").read_text() == log


def test_a_failing_cell_does_not_stop_the_others(tmp_path, capsys):
    given: dict[str, Any] = {"models": "mini", "out": str(tmp_path), "quiet": True, **SMALL}
    with pytest.raises(MechheadsError, match=r"1 of 2 cells failed .*nowhere.jsonl"):
        sweep(tasks="nowhere.jsonl,math", **given)
    page = (tmp_path / "index.html").read_text()
    assert "1 of 2 cells are done, 1 failed" in page
    assert "nowhere.jsonl" in page
    assert len(list((tmp_path / "failed").iterdir())) == 1
    assert "failed" in (tmp_path / "log.txt").read_text()
    # The next sweep has no such cell: its error is forgotten.
    sweep(tasks="math", **given)
    assert not list((tmp_path / "failed").iterdir())


def test_a_full_disk_fails_the_cell_and_a_second_time_it_is_done(tmp_path, monkeypatch):
    (cell,) = from_flags(["discover"], {"tasks": ["math"]}, SMALL)
    full = {"yes": True}
    from mechheads import runs

    keep = runs.keep

    def no_space(*args: Any) -> Any:
        if full["yes"]:
            raise OSError(28, "No space left on device")
        return keep(*args)

    monkeypatch.setattr(runs, "keep", no_space)
    (failed,) = sweep_cells([cell], tmp_path, here, True)
    assert "No space left" in str(failed.error)
    assert finished(tmp_path, cell) is None
    full["yes"] = False
    assert sweep_cells([cell], tmp_path, here, True) == []
    assert finished(tmp_path, cell) is not None


TOY = """
import sys, time, types
from pathlib import Path
from mechheads import runs
from mechheads.outputs import write_text
from mechheads.sweeping.cells import here, sweep_cells
from mechheads.sweeping.grid import Cell

def toy(*, seed, out, quiet):
    folder = runs.folder_for(out, ["toy"], {"seed": seed})
    record = runs.Record("toy", {"seed": seed}, {"seed": seed}, {})
    def write(place):
        for i in range(4):
            write_text(place / f"part{i}.csv", f"a,b\\n{seed},{i}\\n" * 2000)
            time.sleep(0.004)
    runs.keep(folder, record, {"seconds": time.time()}, write)

module = types.ModuleType("mechheads.toy")
module.toy = toy
sys.modules["mechheads.toy"] = module
cells = [Cell("toy", (("seed", i),)) for i in range(20)]
failed = sweep_cells(cells, Path(sys.argv[1]), here, True)
assert not failed, failed
"""


def test_killed_at_random_moments_it_loses_nothing_and_repeats_nothing(tmp_path):
    script = tmp_path / "toy.py"
    script.write_text(TOY)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    subprocess.run([sys.executable, str(script), str(whole)], check=True)
    rng, done = random.Random(0), set()
    for _ in range(20):
        process = subprocess.Popen([sys.executable, str(script), str(broken)])
        time.sleep(0.25 + rng.random() * 0.25)
        process.send_signal(signal.SIGKILL)
        process.wait()
        now = (
            {p.name for p in (broken / "cells").glob("*") if list(p.glob("[!.]*/result.json"))}
            if broken.exists()
            else set()
        )
        assert done <= now  # nothing that was finished is lost
        done = now
    subprocess.run([sys.executable, str(script), str(broken)], check=True)
    assert digests(broken) == digests(whole)
    # A cell that was logged as done is in the log once: none was run twice after it was recorded.
    lines = [line.split()[2] for line in (broken / "log.txt").read_text().splitlines()]
    assert len(lines) == len(set(lines))


def test_a_cell_keeps_its_model_for_the_next():
    loaded = []
    from mechheads import kept, models

    with kept.keeping_models():
        loaded += [models.load("mini", quiet=True), models.load("mini", quiet=True)]
        assert loaded[0] is loaded[1]
        assert models.load("mini", n_ctx=64, quiet=True) is not loaded[0]
    assert models.load("mini", quiet=True) is not loaded[0]


def test_no_cluster_there_is_one_line(tmp_path):
    with pytest.raises(MechheadsError, match="--split-layers needs --cluster"):
        sweep(tasks="math", split_layers=True, out=str(tmp_path), quiet=True)
    with pytest.raises(MechheadsError, match=r"no Ray cluster at 127.0.0.1:1 "):
        sweep(tasks="math", cluster="127.0.0.1:1", out=str(tmp_path), quiet=True)


@pytest.mark.filterwarnings("default")
def test_ray_gives_the_same_bytes_though_a_node_is_killed(swept, tmp_path):
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    os.environ["PYTHONPATH"] = str(Path(cells_module.__file__).parents[2])
    os.environ["OMP_NUM_THREADS"] = "1"
    cluster: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    node = cluster.add_node(num_cpus=1)
    try:
        cluster.wait_for_nodes()
        ray.init(address=cluster.address, log_to_driver=False)
        from mechheads.sweeping import cluster as on_ray

        made = from_flags(
            ["discover"], {"tasks": ["ioi", "math", "syntax"], "models": ["mini"]}, SMALL
        )
        killed = []

        def runner(left: list[Cell], out: Path) -> Any:
            found = on_ray.on_cluster(cluster.address, 1.0, 0.0)(left, out)
            for i, done in enumerate(found):
                if i == 0:
                    cluster.remove_node(node, allow_graceful=False)
                    killed.append(node)
                yield done

        failed = sweep_cells(made, tmp_path, runner, True)
        assert killed
        assert not failed
        # The layers of one cell shared among workers: the same again.
        shared = on_ray.on_cluster(cluster.address, 1.0, 0.0, split=True)
        assert not sweep_cells(made[:1], tmp_path / "shared", shared, True)
        (one, two) = (finished(place, made[0]) for place in (tmp_path, tmp_path / "shared"))
        assert one is not None
        assert two is not None
        for name in ("effects.csv", "curve.csv", "circuit.json"):
            assert (one / name).read_bytes() == (two / name).read_bytes()
    finally:
        ray.shutdown()
        cluster.shutdown()
    ours, theirs = (
        {name: digest for name, digest in digests(place).items() if name.startswith("cells")}
        for place in (swept, tmp_path)
    )
    assert set(ours) == set(theirs)
    names = [name for name in ours if not name.endswith("result.json")]
    assert [ours[name] for name in names] == [theirs[name] for name in names]
