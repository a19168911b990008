"""The verb gate: what it writes, says and refuses; gating as a scoring method."""

import json
import subprocess
import sys
from typing import Any

import pandas as pd
import pytest
import torch

import mechheads
import tasks
from circuits.circuit import Circuit
from circuits.judgement import judge
from mechheads.errors import MechheadsError
from mechheads.gate import gate, read_contrasts
from mechheads.gating import Gating
from mechheads.masks import measure_masks
from mechheads.verification import repeat

FEW: dict[str, Any] = {"seeds": 2, "updates": 6, "n": 8, "test": 4, "quiet": True}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A small run on the embedded model."""
    out = tmp_path_factory.mktemp("runs")
    gate(task="math", out=str(out), **FEW)
    (folder,) = out.iterdir()
    return folder


def test_a_run_has_the_promised_tables(run):
    assert run.name.startswith("gate-math-mini-")
    gates, curves = pd.read_csv(run / "gates.csv"), pd.read_csv(run / "ablation.csv")
    assert gates.columns.tolist() == [
        "seed",
        "layer",
        "head",
        "g_plus",
        "g_minus",
        "facilitation",
        "irrelevance",
        "interference",
    ]
    assert len(gates) == 2 * 32
    assert curves.columns.tolist() == ["order", "k", "delta", "low", "high"]
    assert len(curves) == 3 * 33
    result = json.loads((run / "result.json").read_text())
    assert result["headline"]["share_facilitation"] == pytest.approx(
        (gates["facilitation"] >= 0.5).mean()
    )
    assert result["settings"]["lambda_"] == 0.1
    report = (run / "report.html").read_text()
    for words in ("facilitation", "interference", "What the masks keep", "--task math"):
        assert words in report


def test_masks_are_circuits(run):
    found = Gating.load(run / "gating.safetensors")
    needed, most = (Circuit.load(run / f) for f in ("circuit.json", "circuit_plus.json"))
    assert set(needed.heads) == set(found.kept("minus"))
    assert set(most.heads) == set(found.kept("plus"))
    head = most.heads[0]
    assert most.gates[head] == pytest.approx(found.plus.mean(0)[head].item(), abs=1e-6)
    model = mechheads.load("mini", quiet=True)
    prompts = tasks.make("math", mechheads.lexicon(model), n=4)
    soft = judge(model, prompts, most, replacement="zero", quiet=True)
    hard = judge(model, prompts, Circuit("cut", most.heads), replacement="zero", quiet=True)
    assert soft.faithfulness != hard.faithfulness
    kept = torch.zeros(1, 4, 8)
    for layer, head in most.heads:
        kept[0, layer, head] = most.gates[layer, head]
    said = measure_masks(model, prompts, kept, replacement="zero", quiet=True)
    torch.testing.assert_close(soft.values[2], said[0])


def test_the_same_again_is_identical(run):
    assert repeat(run, 0.0, quiet=True).endswith("identical")


def test_several_tasks_and_models_are_a_grid(tmp_path, capsys):
    gate(task="math,syntax", model="mini,mini-sparse", no_patching=True, out=str(tmp_path), **FEW)
    (folder,) = tmp_path.iterdir()
    gates = pd.read_csv(folder / "gates.csv")
    assert gates.columns.tolist()[:3] == ["task", "model", "seed"]
    assert len(gates) == 4 * 2 * 32
    said = capsys.readouterr().out
    assert said.count("Of the 32 heads") == 4
    assert said.endswith("report.html\n")


def test_contrast_of_two_tasks(tmp_path, capsys):
    gate(retain="ioi", forget="math:low=1+high=9", out=str(tmp_path), **FEW)
    (folder,) = tmp_path.iterdir()
    assert "Retain ioi" in capsys.readouterr().out
    frame = pd.read_csv(folder / "contrast.csv")
    assert frame.columns.tolist() == ["left_out", "side", "prompts", "seed", "before", "after"]
    assert set(frame["prompts"]) == {"ioi", "math:low=1+high=9"}
    assert (folder / "report.html").is_file()


def test_a_family_is_left_out_in_turn(tmp_path):
    family = "syntax:kind=past,syntax:kind=plural"
    gate(family=family, retain="shots=1", forget="shots=0", out=str(tmp_path), **FEW)
    (folder,) = tmp_path.iterdir()
    frame = pd.read_csv(folder / "contrast.csv")
    assert set(frame["left_out"]) == {"syntax:kind=past", "syntax:kind=plural"}
    trials = read_contrasts("shots=1", "shots=0", family)
    assert [name for name, *_ in trials] == family.split(",")
    _, kept, lost, kept_test, lost_test = trials[0]
    assert [side.name for side in kept] == ["syntax:kind=plural+shots=1"]
    assert [side.name for side in lost] == ["syntax:kind=plural+shots=0"]
    assert (kept_test.name, lost_test.name) == (
        "syntax:kind=past+shots=1",
        "syntax:kind=past+shots=0",
    )


def test_gating_is_a_scoring_method():
    model = mechheads.load("mini", quiet=True)
    prompts = tasks.make("ioi", mechheads.lexicon(model), n=8)
    effects = mechheads.score_heads(model, prompts, "gating", seeds=2, updates=5, quiet=True)
    assert effects.values.shape == (2, 4, 8)
    assert effects.over == "seeds"
    assert effects.values.abs().max() <= 1
    assert "facilitation less interference" in str(effects.plot().to_dict())


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"task": "synta"}, "Did you mean"),
        ({"task": "math,math"}, "--task names one twice"),
        ({"model": "mini,mini"}, "--model names one twice"),
        ({"model": "minni"}, "minni"),
        ({"n": 2}, "--n takes 4 or more"),
        ({"seeds": 0}, "--seeds takes 1 or more"),
        ({"lambda_": -0.1}, "--lambda takes more than 0"),
        ({"rates": "0.1"}, "--rates takes the first and the last"),
        ({"pulled_rates": "0.1,x"}, "--pulled-rates takes a number"),
        ({"k": 0}, "--k takes 1 or more"),
        ({"points": 1}, "--points takes 2 or more"),
        ({"retain": "ioi"}, "takes both"),
        ({"retain": "ioi", "forget": "ioi"}, "the same"),
        ({"retain": "ioi", "forget": "maths"}, "Did you mean"),
        ({"retain": "ioi", "forget": "math:low"}, "shots=2"),
        ({"retain": "ioi", "forget": "math", "model": "mini,mini-sparse"}, "one --model"),
        ({"family": "ioi", "retain": "shots=1", "forget": "shots=0"}, "two or more"),
        ({"n": 5000}, "5"),
    ],
)
def test_wrong_input_is_named_and_writes_nothing(wrong, words, tmp_path):
    with pytest.raises(MechheadsError, match=words):
        gate(**({"task": "math"} | FEW | wrong), out=str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_lambda_is_a_flag():
    command = [sys.executable, "-m", "mechheads.gate", "--lambda", "x"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "--lambda takes a number, got 'x'" in done.stderr
    shown = subprocess.run([*command[:3], "--help"], capture_output=True, text=True).stdout
    assert "--lambda LAMBDA" in shown
