"""Our work and that of the scripts of peers: the same numbers, and what is missing is said."""

import importlib
import json
import random
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mechheads.benchmarks import ours, peers, workload
from mechheads.benchmarks.peers import PEERS, compare_peers, difference, find_pythons
from mechheads.benchmarks.workload import Workload
from mechheads.models import peers as scripts
from mechheads.models.untrained import SHAPES

SMALL = {"n_layers": 3, "n_heads": 2, "d_model": 16, "d_mlp": 32, "d_vocab": 60, "n_ctx": 16}
ANSWER = {
    "python": "3", "torch": "2", "transformers": "5", "mechheads": "0", "seconds": 2.0,
    "how": "whole", "values": {"effect": {"L0H0": 1.0}}, "memory": 2.0, "loaded": 1.0,
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("work")
    Workload(SMALL, 1, rows=4, length=8, first=5, loops=0).write(place)
    return place


@pytest.fixture(scope="module")
def lens(folder):
    """The script of TransformerLens as a module, and the model as it loads it."""
    with pytest.MonkeyPatch.context() as patched, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the environment's TransformerLens
        patched.syspath_prepend(str(Path(scripts.__file__).parent))
        for name in ("HF_HUB_OFFLINE", "TQDM_DISABLE", "TOKENIZERS_PARALLELISM"):
            patched.setenv(name, "1")  # set back afterwards
        script = importlib.import_module("lens")
        work = json.loads((folder / "work.json").read_text())
        yield script, script.load(folder / "model", work)[0]
    for name in ("lens", "handed"):
        sys.modules.pop(name)


@pytest.mark.parametrize("name", ["patch", "attribution", "discover", "gating"])
def test_the_script_for_transformerlens_finds_our_numbers(name, folder, lens, monkeypatch):
    settings = replace(workload.GATING, seeds=2, updates=4, batch=3)
    monkeypatch.setattr(ours, "GATING", settings)
    monkeypatch.setattr(sys, "argv", ["ours"])
    before = json.loads((folder / "work.json").read_text())
    _, _, mine = getattr(ours, name)(*ours.load(folder / "model", before), before)
    work = json.loads((folder / "work.json").read_text())
    script, model = lens
    seconds, how, theirs = getattr(script, name)(model, work)
    assert {kind: set(values) for kind, values in theirs.items()} == {
        kind: set(values) for kind, values in mine.items()
    }
    assert difference(theirs, mine) < 1e-4
    assert seconds > 0
    assert how


def test_who_is_timed_on_a_part_of_the_heads_is_scaled_up(folder, lens, monkeypatch):
    script, model = lens
    work = json.loads((folder / "work.json").read_text()) | {"loops": 2}
    monkeypatch.setattr(script.handed, "timed", lambda job: (job(), 1.0))
    seconds, how, values = script.patch(model, work)
    assert (seconds, how) == (1.0 + 3.0, "2 of 6 heads")  # the other run and the clean one, once
    assert list(values["effect"]) == ["L0H0", "L1H1"]


def test_prompts_are_the_same_before_the_position_from_which_they_differ():
    tokens = Workload(SMALL, 1, rows=4, length=8, first=5)._tokens(seed=0)
    clean, corrupt = torch.tensor(tokens["clean"]), torch.tensor(tokens["corrupt"])
    assert (clean[:, :5] == corrupt[:, :5]).all()
    assert not (clean[:, 5:] == corrupt[:, 5:]).all()
    assert all(a != b for a, b in zip(tokens["answers"], tokens["wrong"], strict=True))


def test_the_difference_is_relative_to_the_largest_of_our_numbers_of_a_kind():
    mine = {"effect": {"a": 2.0, "b": -4.0}, "curve": {"0": 100.0}}
    assert difference({"effect": {"a": 2.5}}, mine) == 0.5 / 4
    assert difference({"effect": {"b": -4.0}, "curve": {"0": 90.0}}, mine) == 0.1


def test_a_peer_that_is_nowhere_installed_is_said_to_be(monkeypatch):
    monkeypatch.setitem(SHAPES, "small", SMALL)
    monkeypatch.setattr(peers, "run_ours", lambda *_: ANSWER)
    monkeypatch.setattr(peers, "MEASUREMENTS", ("attribution",))
    first, *rest = compare_peers("small", 1, {}, rows=2, length=4, first=2, quiet=True)
    assert (first.peer, first.seconds, first.ratio, first.difference) == ("mechheads", 2.0, 1.0, 0)
    assert [side.peer for side in rest] == [peer.name for peer in PEERS]
    assert {side.seconds for side in rest} == {None}
    assert all("--with" in side.how for side in rest)


def test_a_peer_that_fails_is_told_with_its_last_line(monkeypatch):
    monkeypatch.setitem(SHAPES, "small", SMALL)
    monkeypatch.setattr(peers, "run_ours", lambda *_: ANSWER)
    monkeypatch.setattr(peers, "MEASUREMENTS", ("patch",))
    failing = replace(PEERS[-1], script="missing.py")
    monkeypatch.setattr(peers, "PEERS", (failing,))
    sides = {"nnsight": sys.executable}
    _, side = compare_peers("small", 1, sides, rows=2, length=4, first=2, quiet=True)
    assert side.seconds is None
    assert side.how.startswith("failed: ")
    assert "missing.py" in side.how


def test_each_peer_runs_in_the_first_environment_that_has_it():
    has = {
        sys.executable: {"transformer-lens": "3.9.0", "nnsight": None},
        "a": {"transformer-lens": None, "nnsight": "0.8"},
        "b": {"transformer-lens": "4.3.0", "nnsight": "0.9"},
    }
    assert find_pythons(["a", "b"], has.__getitem__) == {
        "TransformerLens 3": sys.executable,
        "TransformerLens 4": "b",
        "nnsight": "a",
    }
    assert find_pythons([], has.__getitem__) == {"TransformerLens 3": sys.executable}


def test_ours_is_measured_in_a_process_of_its_own_which_tells_its_memory(folder):
    found = peers.run_ours(folder, "attribution", 1, None)
    assert found["memory"] >= found["loaded"] > 50
    names = [f"L{i}H{h}" for i in range(3) for h in range(2)]
    assert sorted(found["values"]["effect"]) == names
    chosen = random.Random(0).choice(names)
    assert found["values"]["effect"][chosen] != 0
