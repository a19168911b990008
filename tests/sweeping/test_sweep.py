"""Sweeps: grids, cells that survive being killed, failures, Ray, the overview."""

import functools
import hashlib
import json
import random
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import mechheads.discover
from mechheads.benchmarks.scaling import Scaling
from mechheads.cli.parse import arguments
from mechheads.errors import MechheadsError
from mechheads.models import cache
from mechheads.models.devices import with_threads
from mechheads.models.load import load
from mechheads.models.locate import EMBEDDED
from mechheads.runs import folder as runs
from mechheads.runs.files import write_text
from mechheads.sweep import flags, main, sweep
from mechheads.sweeping import cluster as on_ray
from mechheads.sweeping.cells import (
    CELLS,
    INPUTS,
    Done,
    Run,
    Sweep,
    alone,
    complete,
    finished,
    look,
    run_cell,
)
from mechheads.sweeping.grid import Cell, from_file, from_flags
from mechheads.sweeping.inputs import with_inputs
from mechheads.sweeping.overview import write_overview
from mechheads.verify import verify

ROOT = Path(__file__).parents[2]
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
        ((["gate"], {"methods": ["ig"]}, {}), "unknown flag --methods: none of gate has it"),
        ((["discover"], {"tasks": ["ioi"]}, {"task": "math"}), "task is given as an axis too"),
        ((["compare"], {"models": ["a"]}, {}), "two --models"),
        ((["discover"], {}, {"n": "x"}), "--n takes a whole number"),
        ((["discover"], {}, {"seed": 2**64}), "--seed takes a whole number up to 2,147,483,647"),
        ((["discover"], {"tasks": ["ioi"]}, {"shots": "2"}), "--shots: no task or method of this"),
        ((["discover"], {"methods": ["pach"]}, {}), "Did you mean 'patch'"),
        ((["discover"], {"tasks": ["ioj"]}, {}), "Did you mean 'ioi'"),
    ):
        with pytest.raises(MechheadsError, match=words):
            from_flags(*wrong)


def test_cells_are_ordered_by_model_and_the_order_of_flags_does_not_matter():
    axes = {"tasks": ["ioi", "math"], "models": ["mini", "mini-sparse"]}
    made = from_flags(["discover"], axes, {"n": "8", "k": "2"})
    assert [dict(cell.settings)["model"] for cell in made] == ["mini"] * 2 + ["mini-sparse"] * 2
    again = from_flags(["discover"], dict(reversed(axes.items())), {"k": "2", "n": "8"})
    assert again == made
    turned = Cell("discover", tuple(reversed(made[0].settings)))
    assert turned.name[-8:] == made[0].name[-8:]


def test_switches_lambda_and_options_of_tasks_and_methods_can_be_given(monkeypatch, tmp_path):
    words = ["--signed", "--lambda", "0.2", "--no-patching", "--steps", "5", "--shots=2"]
    monkeypatch.setattr(sys, "argv", ["sweep", *words])
    monkeypatch.setattr("mechheads.sweep.run", lambda *_: sys.exit(0))
    with pytest.raises(SystemExit):
        main()
    given = arguments(sweep, sys.argv[1:], flags)
    assert given == {
        "signed": "true",
        "lambda": "0.2",
        "no_patching": "true",
        "steps": "5",
        "shots": "2",
    }
    axes = {"tasks": ["math", "ioi"], "methods": ["ig", "patch"]}
    made = [dict(cell.settings) for cell in from_flags(["discover", "gate"], axes, given)]
    assert made == [
        {"task": "math", "method": "ig", "signed": True, "shots": "2", "steps": "5"},
        {"task": "math", "method": "patch", "signed": True, "shots": "2"},
        {"task": "ioi", "method": "ig", "signed": True, "steps": "5"},
        {"task": "ioi", "method": "patch", "signed": True},
        {"task": "math", "lambda_": 0.2, "no_patching": True, "shots": "2"},
        {"task": "ioi", "lambda_": 0.2, "no_patching": True},
    ]
    two = {"lambda_": 0.2, "no_patching": True, "shots": "2"}  # syntax is gate's own task
    file = tmp_path / "grid.toml"
    file.write_text('[[grid]]\nverb = "gate"\nlambda = 0.2\nno_patching = true\nshots = 2\n')
    assert dict(from_file(str(file))[0].settings) == two


@pytest.mark.parametrize("name", ["gallery", "gallery_smollm2"])
def test_the_gallery_is_a_grid(name):
    assert from_file(str(ROOT / "notebooks" / f"{name}.toml"))


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
        ("[[grid]]\nverb = 'x'", "grid 1: verb is one of .* got 'x'"),
        ("grid = [1]", "verb is one of .* got 1"),
        ("[[grid]]\nverb = ['discover']", "verb is one of .* got \\['discover'\\]"),
        ("[[grid]]\nverb = 'gate'\nmethods = ['ig']", "gate has no methods"),
        ("[[grid]]\nverb = 'gate'\ntask = 'a'\ntasks = ['b']", "task is given as an axis too"),
        ("[[grid]]\nverb = 'gate'\ntasks = 'ioi'", "tasks takes a list"),
        ("[[grid]]\nverb = 'gate'\nfoo = 1", "gate has no setting foo"),
        ("= =", "is no TOML"),
        ("n = 4\n[[grid]]\nverb = 'gate'", "n stands in no \\[\\[grid\\]\\]"),
        ("[[grid]]\nverb = 'gate'\n[[grids]]\nverb = 'mask'", "grids stands in no"),
    ):
        file.write_text(text)
        with pytest.raises(MechheadsError, match=words):
            from_file(str(file))
    with pytest.raises(MechheadsError, match="cannot read"):
        from_file(str(tmp_path / "missing.toml"))
    with pytest.raises(MechheadsError, match="--config brings its own grid"):
        sweep(config=str(file), verbs="gate", out=str(tmp_path))


@pytest.fixture(scope="module")
def swept(tmp_path_factory) -> Path:
    """A finished sweep of three cells."""
    out = tmp_path_factory.mktemp("sweep")
    sweep(tasks="ioi,math,syntax", models="mini", cpus=1.0, out=str(out), quiet=True, **SMALL)
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
    sweep(tasks="ioi,math,syntax", models="mini", cpus=1.0, out=str(swept), quiet=True, **SMALL)
    assert digests(swept) == before
    assert (swept / "log.txt").read_text() == log


def test_a_sweep_is_verified_cell_by_cell_with_the_threads_it_had(swept, tmp_path, capsys):
    threads = []

    def discover(**settings: Any) -> None:
        threads.append(torch.get_num_threads())
        plain(**settings)

    plain = mechheads.discover.discover
    with pytest.MonkeyPatch.context() as patched, with_threads(2):
        patched.setattr("mechheads.discover.discover", functools.wraps(plain)(discover))
        verify(str(swept), quiet=True)
    assert threads == [1, 1, 1]
    lines = capsys.readouterr().out.splitlines()
    assert [line.rpartition(": ")[2] for line in lines[:3]] == ["identical"] * 3
    assert lines[3].endswith("3 of 3 cells give the same numbers")

    broken = tmp_path / "broken"
    shutil.copytree(swept, broken)
    rows = json.loads((broken / "sweep.json").read_text())
    (broken / rows[0]["report"]).unlink()
    del rows[1]["report"]
    (broken / "sweep.json").write_text(json.dumps(rows))
    with pytest.raises(MechheadsError, match=r"2 of 3 cells .* failed.*report.html is missing"):
        verify(str(broken), quiet=True)
    lines = capsys.readouterr().out.splitlines()
    assert "has no run. See why in the overview" in lines[1]
    assert lines[2].endswith("identical")
    for damaged in ("[1]", "[]", "[", '[{"verb": "discover", "cell": "x", "report": 5}]'):
        (broken / "sweep.json").write_text(damaged)
        with pytest.raises(MechheadsError, match=r"sweep.json is damaged.*Start the sweep again"):
            verify(str(broken), quiet=True)
    with pytest.raises(MechheadsError, match="--tolerance takes 0 or more, got -1"):
        verify(str(swept), tolerance=-1.0)


def test_a_bug_in_one_cell_does_not_stop_the_verification_of_others(swept, monkeypatch, capsys):
    plain = mechheads.discover.discover

    @functools.wraps(plain)
    def discover(**settings: Any) -> None:
        if settings["task"] == "ioi":
            raise RuntimeError("out of memory")
        plain(**settings)

    monkeypatch.setattr("mechheads.discover.discover", discover)
    with pytest.raises(MechheadsError, match="1 of 3 cells"):
        verify(str(swept), quiet=True)
    first, *others = capsys.readouterr().out.splitlines()
    assert "RuntimeError: out of memory (test_sweep.py:" in first
    assert [line.rpartition(": ")[2] for line in others] == ["identical"] * 2


def test_a_failing_cell_does_not_stop_the_others(tmp_path, capsys):
    given: dict[str, Any] = {"models": "mini", "out": str(tmp_path), **SMALL}
    with pytest.raises(MechheadsError, match=r"1 of 2 cells failed .*nowhere.jsonl"):
        sweep(tasks="nowhere.jsonl,math", **given)
    page = (tmp_path / "index.html").read_text()
    assert "1 of 2 cells are done, 1 failed" in page
    assert "nowhere.jsonl" in page
    assert len(list((tmp_path / "failed").iterdir())) == 1
    log = (tmp_path / "log.txt").read_text().splitlines()
    assert [("failed: " in line, line.endswith("done")) for line in log] == [
        (True, False),
        (False, True),
    ]
    told = capsys.readouterr().err.splitlines()
    assert [line.split(": ")[0] for line in told] == ["0 of 2 done", "1 of 2 done"]
    # The next sweep has no such cell: its error is forgotten, and so is half a file.
    (tmp_path / "failed" / ".note.txt.partial").touch()
    sweep(tasks="math", quiet=True, **given)
    assert capsys.readouterr().err == ""
    assert not list((tmp_path / "failed").iterdir())


def toy_run(cell: Cell, out: Path) -> Path:
    """A finished run of a cell, by hand."""
    place = out / CELLS / cell.name
    place.mkdir(parents=True)
    if cell.inputs:
        write_text(place / INPUTS, json.dumps(dict(cell.inputs)))
    record = runs.Record(cell.verb, dict(cell.settings), {"needed": 1}, {})
    return runs.keep(place / "run", record, {}, lambda folder: None)


def test_a_cell_is_run_again_when_its_task_file_or_its_weights_change(tmp_path):
    task, model = tmp_path / "own.jsonl", tmp_path / "model"
    model.mkdir()
    weights = model / "model.safetensors"
    for file in (task, weights):
        file.write_text("a")
    made = from_flags(["discover"], {"tasks": [str(task)], "models": [str(model)]}, {})
    (cell,) = with_inputs(made)
    toy_run(cell, tmp_path)
    assert finished(tmp_path, cell) is not None
    for file in (task, weights):
        file.write_text("b")
        (changed,) = with_inputs(made)
        assert changed.name == cell.name
        assert finished(tmp_path, changed) is None
        file.write_text("a")
    assert with_inputs(made) == [cell]
    assert dict(with_inputs([Cell("gate", ())])[0].inputs).keys() == {"mini"}  # the default


def test_config_and_tokenizer_of_a_model_count_too(tmp_path):
    model = tmp_path / "model"
    shutil.copytree(EMBEDDED / "mini", model)
    made = from_flags(["discover"], {"models": [str(model)]}, {})
    before = with_inputs(made)
    for name in ("config.json", "tokenizer.json"):
        file = model / name
        whole = file.read_bytes()
        file.write_bytes(whole + b" ")
        assert with_inputs(made) != before
        file.write_bytes(whole)
    assert with_inputs(made) == before


def test_a_run_stays_while_its_inputs_are_missing_and_until_another_is_whole(tmp_path, capsys):
    task = tmp_path / "own.jsonl"
    lines = [
        {"clean": f"The {a} and", "corrupt": f"The {b} and", "answer": f" {a}", "wrong": f" {b}"}
        for a, b in zip(range(10, 22), range(30, 42), strict=True)
    ]
    task.write_text("\n".join(map(json.dumps, lines)))
    given: dict[str, Any] = {"tasks": str(task), "out": str(tmp_path / "s"), "quiet": True, **SMALL}
    sweep(**given)
    before = digests(tmp_path / "s" / CELLS)
    task.rename(tmp_path / "away")
    sweep(**given)
    assert digests(tmp_path / "s" / CELLS) == before
    task.write_text("no JSON")
    with pytest.raises(MechheadsError, match=r"1 of 1 cells failed .*own\.jsonl"):
        sweep(**given)
    assert digests(tmp_path / "s" / CELLS) == before
    task.write_text("\n".join(map(json.dumps, lines[::-1])))
    sweep(**given)
    after = digests(tmp_path / "s" / CELLS)
    assert after.keys() == before.keys()
    assert after != before


def test_a_mixture_of_threads_is_told(swept, tmp_path, capsys):
    out = tmp_path / "mixed"
    shutil.copytree(swept, out)
    given: dict[str, Any] = {"models": "mini", "out": str(out), **SMALL}
    sweep(tasks="ioi,math,syntax", cpus=1.0, **given)
    assert "different" not in capsys.readouterr().err
    with with_threads(1):
        sweep(tasks="ioi,math,syntax,docstring", cpus=2.0, **given)
    assert "Cells were made with different threads (1, 2)" in capsys.readouterr().err
    page = (out / "index.html").read_text()
    assert "different threads (1, 2)" in page
    assert "--cpus 2</pre>" in page.replace(" --n 4 --test 4 --draws 2", "")


def test_a_cell_that_is_finished_is_not_run_again_by_a_retry(tmp_path):
    cell = Cell("toy", (("seed", 0),))  # there is no such verb
    folder = toy_run(cell, tmp_path)
    done = run_cell(cell, tmp_path)
    assert (done.error, done.run and done.run.folder) == (None, folder)

    class Lost(Exception):
        pass

    def get(ref: str) -> Any:
        raise Lost(f"{ref} is lost\nand more")

    ray = SimpleNamespace(get=get, exceptions=SimpleNamespace(RayError=Lost))
    assert on_ray._ended(ray, "it", cell, tmp_path).run == done.run
    other = on_ray._ended(ray, "it", Cell("toy", ()), tmp_path)
    assert other.error == "the cluster gave it up (it is lost)"


def test_two_sweeps_do_not_write_to_one_folder(tmp_path):
    with alone(tmp_path), pytest.raises(MechheadsError, match="another sweep is writing to"):
        sweep(tasks="math", out=str(tmp_path), quiet=True)
    with alone(tmp_path):
        pass


TOY = """
import signal, sys, time, types
from mechheads import runs
from mechheads.outputs import write_text
from mechheads.sweep import main
from mechheads.sweeping import grid, overview

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a background job

def toy(*, seed: int, out: str, quiet: bool):
    folder = runs.folder_for(out, ["toy"], {"seed": seed})
    record = runs.Record("toy", {"seed": seed}, {"seed": seed}, {})
    def write(place):
        for i in range(4):
            write_text(place / f"part{i}.csv", f"a,b\\n{seed},{i}\\n" * 2000)
            print("begun", file=sys.__stdout__, flush=True)
            time.sleep(0.01)
    runs.keep(folder, record, {"seconds": time.time()}, write)

module = types.ModuleType("mechheads.toy")
module.toy = toy
sys.modules["mechheads.toy"] = module
grid.AXES["toy"] = {"seed": "seed"}
overview.DRAWINGS["toy"] = overview.Drawing("no.csv", "a", ("b",), ("a", "b"), ("seed",))
main()
"""
SEEDS = 80
STOPS = (
    (signal.SIGKILL, -signal.SIGKILL, ""),
    (signal.SIGINT, 130, "mechheads.sweep: interrupted.\n"),
    (signal.SIGTERM, 143, "mechheads.sweep: terminated.\n"),
)


@pytest.fixture
def toy(tmp_path) -> list[str]:
    """The command of a sweep of cells that take no time, but for the folder."""
    script = tmp_path / "toy.py"
    script.write_text(TOY)
    seeds = ",".join(map(str, range(SEEDS)))
    return [sys.executable, str(script), "--verbs", "toy", "--seeds", seeds, "--quiet", "--out"]


def test_stopped_at_random_moments_it_loses_nothing_and_repeats_nothing(toy, tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    subprocess.run([*toy, str(whole)], check=True, stdout=subprocess.DEVNULL)
    rng, done, grown, partial = random.Random(0), set(), 0, 0
    for i in range(20):
        process = subprocess.Popen(
            [*toy, str(broken)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        time.sleep(rng.random() * 0.2)
        stop, code, word = STOPS[i % 3]
        process.send_signal(stop)
        _, said = process.communicate()
        assert process.returncode == code
        assert said == word
        now = {p.parents[1].name for p in broken.glob("cells/*/[!.]*/result.json")}
        assert done <= now  # nothing that was finished is lost
        grown += done < now
        partial += any(broken.glob("cells/.*"))
        done = now
        if word:
            rows = json.loads((broken / "sweep.json").read_text())
            counted = sum(row["state"] == "done" for row in rows)
            assert counted in (len(done), len(done) - 1)  # the last may not have been taken in
    assert 0 < len(done) < SEEDS
    assert grown > 5
    assert partial > 5
    subprocess.run([*toy, str(broken)], check=True, stdout=subprocess.DEVNULL)
    assert digests(broken) == digests(whole)
    assert {"index.html", "sweep.json"} < set(digests(whole))
    # A cell that was logged as done is in the log once: none was run twice after it was recorded.
    lines = [line.split()[2] for line in (broken / "log.txt").read_text().splitlines()]
    assert len(lines) == len(set(lines))


def test_on_a_full_disk_cells_fail_in_one_line_and_are_done_the_next_time(toy, tmp_path):
    whole, full = tmp_path / "whole", tmp_path / "full"
    subprocess.run([*toy, str(whole)], check=True, stdout=subprocess.DEVNULL)
    for most in (0, 1000):  # bytes in a file: not even a line of the log; no table, no overview
        stopped = subprocess.run(
            [*toy, str(full)],
            preexec_fn=lambda most=most: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most)),
            capture_output=True,
            text=True,
        )
        assert stopped.returncode == 2
        assert f"{SEEDS} of {SEEDS} cells failed" in stopped.stderr
        assert stopped.stderr.count("\n") == 1
    subprocess.run([*toy, str(full)], check=True, stdout=subprocess.DEVNULL)
    assert digests(full) == digests(whole)


def test_a_log_that_cannot_be_written_counts_and_loses_no_run(tmp_path):
    given: dict[str, Any] = {"tasks": "math", "out": str(tmp_path), "quiet": True, **SMALL}
    log = tmp_path / "log.txt"
    log.symlink_to("/dev/full")
    with pytest.raises(MechheadsError, match=r"1 of 1 cells failed .*No space left"):
        sweep(**given)
    log.unlink()
    sweep(**given)
    assert not log.exists()  # nothing was left to run


TABLES = {
    "discover": ("task,ioi", "curve.csv", "k,explained\n0,0\n1,0.5\n"),
    "gate": (
        "task,syntax on mini",
        "ablation.csv",
        "task,model,order,k,delta\nsyntax,mini,random,1,2\nsyntax,mini,facilitating,1,3\n",
    ),
    "mask": (
        "method,ig",
        "masking.csv",
        "function,selection,k,draw,metric,value\nMath,top,2,0,exact,0.5\nMath,top,2,0,chrf,1\n",
    ),
    "prefix": ("models,a", "accuracy.csv", "model,condition,accuracy\na,none,1\na,mless,0.5\n"),
    "compare": ("tasks,math", "comparison.csv", "task,n_standard,n_sparse\nmath,8,2\n"),
}


def test_every_verb_is_in_the_overview_with_its_numbers_and_lines(tmp_path):
    found: dict[Cell, Run] = {}
    for verb, (setting, file, text) in TABLES.items():
        for seed in (0, 1):
            name, _, value = setting.partition(",")
            cell = Cell(verb, ((name, value), ("seed", seed)))
            folder = tmp_path / cell.name
            folder.mkdir()
            (folder / file).write_text(text)
            headline: dict[str, Any] = {"needed": 3, "warning": "careful", "cmd": "0.25"}
            if verb == "compare":
                parts = {"heads": {"multiplier": 4.5}, "warnings": ["doubtful"]}
                headline = {"parts": {"math": parts, "ioi": {}}}
            found[cell] = Run(folder, runs.Record(verb, {}, headline, {}))
    lost = Cell("gate", (("task", "lost"),))
    made = Sweep(tmp_path, [*found, lost], found, {lost: "no luck"})
    page = write_overview(made, "again").read_text()
    assert "10 of 11 cells are done, 1 failed" in page
    assert "no luck" in page
    assert ">heads multiplier</th>" in page
    assert page.count(">needed</th>") == 1  # gate, mask and prefix have no such number
    assert page.count("careful") == 2 * (len(TABLES) - 1)
    assert page.count("doubtful") == 2
    for name in ("seed 1", "seed 1, mini, random", "seed 1, top", "seed 1, a", "seed 1, n_sparse"):
        assert f'"name":"{name}"' in page
    for panel in ("ioi", "syntax", "Math", "math_calculation"):
        assert f'"text":"\\u003cb\\u003e{panel}\\u003c\\u002fb\\u003e"' in page
    for i in range(len(TABLES)):
        assert f'id="figure-{i}"' in page


def test_a_cell_keeps_its_model_for_the_next():
    with cache.keeping_models():
        loaded = [load("mini", quiet=True), load("mini", quiet=True)]
        assert loaded[0] is loaded[1]
        assert load("mini", n_ctx=64, quiet=True) is not loaded[0]
    assert load("mini", quiet=True) is not loaded[0]


def test_the_model_that_was_not_used_for_longest_goes_before_another_is_loaded():
    with cache.keeping_models():
        small, large = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
        large.weight = torch.nn.Parameter(torch.empty(cache.LARGE // 4 + 1, device="meta"))
        for key in "ab":
            assert cache.kept(key) is None
            cache.put(key, small)
        assert cache.kept("a") is small
        assert cache.kept("c") is None  # and now b has gone
        assert cache.kept("a") is small
        assert cache.kept("b") is None
        cache.put("b", large)
        assert cache.kept("b") is large
        assert cache.kept("c") is None  # a large model does not stay beside one that comes
        assert cache.kept("b") is None


def test_no_cluster_there_is_one_line(tmp_path):
    with pytest.raises(MechheadsError, match="--split-layers needs --cluster"):
        sweep(tasks="math", split_layers=True, out=str(tmp_path), quiet=True)
    with pytest.raises(MechheadsError, match=r"no Ray cluster at 127.0.0.1:1 "):
        sweep(tasks="math", cluster="127.0.0.1:1", out=str(tmp_path), quiet=True)


def test_a_local_cluster_is_started_whatever_the_environment_says(monkeypatch):
    seen: list[Any] = []
    ray = SimpleNamespace(is_initialized=lambda: False, init=lambda **given: seen.append(given))
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    assert on_ray._connect(ray, "local")
    assert seen[0]["address"] == "local"


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
    for fits in ((8.0, 0.0), (2.0, 1.0)):
        on_ray._check_room(nodes, *fits)
    with pytest.raises(MechheadsError, match=r"4 CPUs and 1 GPUs, .* have 8 and 0; 2 and 1"):
        on_ray._check_room(nodes, 4.0, 1.0)


def noting(log: Path, doomed: str) -> Any:
    """What a worker does, with a line for every attempt; on the doomed node it does not end."""

    def run(cell: Cell, desk: Any, known: Any = None) -> Done:
        import ray

        from mechheads.sweeping.cluster import _run  # the worker's, which nobody has changed

        node = ray.get_runtime_context().get_node_id()
        with log.open("a") as stream:
            stream.write(f"{cell.name} {node}\n")
        if node == doomed:
            time.sleep(600)
        return _run(cell, desk, known)

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
    axes = {"tasks": ["ioi", "math", "syntax"], "models": ["mini"]}
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
    # The layers of a cell shared among workers: the same again. A relative path is the driver's.
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
    with pytest.raises(MechheadsError, match=r"asks for 64 CPUs and 0 GPUs, .* have 1 and 0"):
        complete(look(made, tmp_path / "no"), on_ray.on_cluster(cluster.address, 64.0), True)


def test_the_table_of_workers_has_a_title_over_every_number():
    titles, values = Scaling(8, 30.0, 16.0).table.splitlines()
    assert titles.split("  ")[:3] == ["cells", "1 worker, s", "2 workers, s"]
    assert titles.endswith(" ratio")
    assert values.split() == ["8", "30.0", "16.0", "1.88", "x"]
    assert len(values) == len(titles)
