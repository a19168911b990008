"""Several processes share a sweep: each cell runs once, and the last one writes the overview."""

import json
import random
import subprocess
import threading
import time
from collections import Counter

import pytest
from sweeps import SEEDS, SMALL, digests, toy_run

from mechheads.errors import MechheadsError
from mechheads.runs.files import alone, prepare
from mechheads.runs.locks import claimed, together
from mechheads.sweep import sweep
from mechheads.sweeping import shards
from mechheads.sweeping.grid import Cell
from mechheads.sweeping.shards import RUNNING, read_shard

CELLS = [Cell("gate", (("seed", seed),)) for seed in range(7)]


@pytest.mark.parametrize("count", [1, 2, 3, 7, 9])
def test_every_cell_is_in_one_shard_and_shards_are_of_one_size(count):
    shares = [read_shard(f"{i}/{count}").of(CELLS) for i in range(1, count + 1)]
    assert Counter(cell for share in shares for cell in share) == Counter(CELLS)
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("text", ["0/4", "5/4", "a", "", "1/0", "-1/4", "1/4/2", "1.5/2", "٣/٤"])
def test_no_such_shard_is_refused(text, tmp_path):
    with pytest.raises(MechheadsError, match=r"--shard takes I/N with I from 1 to N"):
        sweep(tasks="math", shard=text, out=str(tmp_path / "new"))
    assert not (tmp_path / "new").exists()


def test_a_shard_is_for_one_process_not_for_a_cluster(tmp_path):
    for cluster in ("local", "slurm"):
        with pytest.raises(MechheadsError, match="--shard and --cluster cannot be combined"):
            sweep(tasks="math", shard="1/2", cluster=cluster, out=str(tmp_path))


def start(toy: list[str], *words: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [*toy, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def logged(out) -> list[str]:
    return [line.split()[2] for line in (out / "log.txt").read_text().splitlines()]


def test_shards_at_once_are_one_sweep_even_if_they_overlap(toy, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    subprocess.run([*toy, str(whole)], check=True, stdout=subprocess.DEVNULL)
    # Together 1/2 and 2/2 are the grid; the others have the same cells once more.
    given = (("1/2", 40), ("2/2", 40), ("1/2", 40), ("1/3", 27))
    running = [start(toy, str(parts), "--shard", shard) for shard, _ in given]
    for process, (shard, own) in zip(running, given, strict=True):
        said, complaint = process.communicate(timeout=120)
        assert (process.returncode, complaint) == (0, "")
        assert f"{own} of {own} cells of shard {shard} done" in said
    assert digests(parts) == digests(whole)  # the overview too, which the last one has written
    assert sorted(logged(parts)) == sorted(logged(whole))  # each cell once
    assert not (parts / RUNNING).exists()


def test_killed_shards_lose_nothing_and_the_same_sweep_gathers_it(toy, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    subprocess.run([*toy, str(whole)], check=True, stdout=subprocess.DEVNULL)
    rng, done = random.Random(0), set()
    for _ in range(5):
        running = [start(toy, str(parts), "--shard", f"{i}/2") for i in (1, 2)]
        time.sleep(1 + rng.random())
        for process in running:
            process.kill()
            process.communicate()
        now = {p.parents[1].name for p in parts.glob("cells/[!.]*/[!.]*/result.json")}
        assert done <= now
        done = now
    assert done
    subprocess.run([*toy, str(parts), "--shard", "1/2"], check=True, stdout=subprocess.DEVNULL)
    rows = json.loads((parts / "sweep.json").read_text())
    assert sum(row["state"] == "done" for row in rows) >= SEEDS / 2  # the last, and only one, wrote
    subprocess.run([*toy, str(parts)], check=True, stdout=subprocess.DEVNULL)
    assert digests(parts) == digests(whole)
    names = logged(parts)
    assert len(names) == len(set(names))


def test_a_whole_sweep_and_shards_do_not_mix(tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "PATIENCE", 0.1)
    with (
        together(tmp_path, 0.0),
        together(tmp_path, 0.0),  # shards do not mind each other
        pytest.raises(MechheadsError, match="another process is writing to"),
    ):
        sweep(tasks="math", out=str(tmp_path), quiet=True)
    with alone(tmp_path), pytest.raises(MechheadsError, match="another process is writing to"):
        sweep(tasks="math", shard="1/1", out=str(tmp_path), quiet=True)


def test_a_shard_waits_for_the_one_that_writes_the_overview(tmp_path):
    entered = threading.Event()

    def enter() -> None:
        with together(tmp_path, 30.0):
            entered.set()

    with alone(tmp_path):
        thread = threading.Thread(target=enter)
        thread.start()
        assert not entered.wait(0.5)
    assert entered.wait(30)
    thread.join()


def test_what_another_process_runs_comes_last_and_what_it_has_finished_not_at_all(tmp_path):
    for part in ("cells", RUNNING):
        prepare(tmp_path / part)
    held, ended, *others = CELLS
    with claimed(tmp_path / RUNNING / f"{held.name}.lock", 0.0) as ours:
        assert ours
        turns = shards.unclaimed(CELLS, tmp_path)
        toy_run(ended, tmp_path)
        assert [next(turns) for _ in others] == others
    assert list(turns) == [held]


def test_a_failed_cell_of_a_shard_is_in_the_overview(tmp_path):
    given = {"tasks": "nowhere.jsonl,math", "models": "mini", "out": str(tmp_path), **SMALL}
    with pytest.raises(MechheadsError, match=r"1 of 1 cells failed .*nowhere.jsonl"):
        sweep(shard="1/2", quiet=True, **given)
    states = [row["state"] for row in json.loads((tmp_path / "sweep.json").read_text())]
    assert states == ["failed", "not run"]
    sweep(shard="2/2", quiet=True, **given)  # its own cells are done
    states = [row["state"] for row in json.loads((tmp_path / "sweep.json").read_text())]
    assert states == ["failed", "done"]
