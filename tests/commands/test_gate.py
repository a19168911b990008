"""The command gate: what it writes, says and refuses; gating as a scoring method."""

import copy
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
from circuits.validation import faithfulness
from mechheads.engine.head_subsets import keep_only, measure_subsets
from mechheads.errors import MechheadsError
from mechheads.gate import gate
from mechheads.gating.contrast import Contrast
from mechheads.gating.experiment import Gating
from mechheads.jobs.gating import make_prompts, sides_of
from mechheads.jobs.run import Session
from mechheads.verifying.differences import compare_values
from mechheads.verifying.rerun import repeat
from tasks.contrasts import read_contrasts

FEW: dict[str, Any] = {"seeds": 2, "updates": 6, "n": 8, "test": 4, "quiet": True}
SPLIT: dict[str, Any] = {"seed": 0, "split": "test"}


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
    roles = pd.read_csv(run / "roles.csv")
    assert roles.columns.tolist() == [
        "layer",
        "head",
        "role",
        "seeds_agree",
        "gain",
        "gain_low",
        "gain_high",
    ]
    assert len(roles) == 32
    result = json.loads((run / "result.json").read_text())
    (headline,) = result["headline"]["parts"].values()
    assert headline["share_facilitation"] == pytest.approx((gates["facilitation"] >= 0.5).mean())
    assert headline["seeds_agree"] == pytest.approx(roles["seeds_agree"].mean())
    assert headline["batch"] == 8
    assert headline["delta_k"] == 16
    shut = curves.set_index(["order", "k"])["delta"]
    assert headline["delta_facilitation"] == pytest.approx(shut["facilitation", 16], rel=1e-6)
    (part,) = Gating.load(run).tasks
    found = part.gates
    for i, fit in enumerate(("free", "plus", "minus")):
        assert headline[f"nll_{fit}"] == pytest.approx(found.nll[i].mean().item())
    for name in ("rank_correlation", "patching_significant_heads", "welch_t", "welch_p"):
        assert name in headline
    assert "too few to tell" in result["warnings"][0]
    assert result["settings"]["lambda_"] == 0.1
    report = (run / "report.html").read_text()
    for words in ("facilitation", "What the masks keep", "--task math", "6 updates, batch 8"):
        assert words in report


@pytest.mark.parametrize(("file", "fit"), [("circuit", "minus"), ("circuit_plus", "plus")])
def test_masks_are_circuits_soft_and_cut(run, file, fit):
    (part,) = Gating.load(run).tasks
    gates = getattr(part.gates, fit).mean(0)
    soft, cut = (Circuit.load(run / f"{file}{end}.json") for end in ("_soft", ""))
    model = mechheads.load("mini", quiet=True)
    prompts = tasks.make("math", model, n=4)
    keep = torch.stack([gates, keep_only(cut.heads, 4, 8)])
    said = measure_subsets(model, prompts, keep, replacement="zero", quiet=True)
    for circuit, wanted in ((soft, said[0]), (cut, said[1])):
        judged = faithfulness(model, prompts, circuit, replacement="zero", quiet=True)
        torch.testing.assert_close(judged.values[2], wanted)
    assert len(soft) == 32
    assert not cut.gates
    assert set(cut.heads) == {tuple(head) for head in (gates >= 0.5).nonzero().tolist()}


@pytest.mark.parametrize("task", ["math", "syntax", "common_sense"])
def test_what_is_tested_shares_no_group_with_what_was_fitted(task):
    model = mechheads.load("mini", quiet=True)
    settings = SPLIT | {"n": 40, "test": None}
    fitted, tested = make_prompts(model, task, {}, settings)
    assert (len(fitted), len(tested)) == (40, 32)
    assert not {p.group for p in fitted.pairs} & {p.group for p in tested.pairs}


def test_a_small_file_is_divided(tmp_path):
    model = mechheads.load("mini", quiet=True)
    pairs = tasks.make("ioi", model, n=24).pairs
    file = tmp_path / "own.jsonl"
    rows = [
        {"clean": p.clean, "corrupt": p.corrupt, "answer": p.answers, "wrong": p.wrong}
        for p in pairs
    ]
    file.write_text("\n".join(map(json.dumps, rows)))
    for n, sizes in ((None, (18, 6)), (14, (14, 10))):
        sides = make_prompts(model, str(file), {}, SPLIT | {"n": n, "test": None})
        assert tuple(map(len, sides)) == sizes


def test_no_format_is_fitted_to_what_the_other_tests():
    model = mechheads.load("mini", quiet=True)
    (plan,) = read_contrasts("syntax:kind=past+shots=1", "syntax:kind=past+shots=0", None)
    settings = SPLIT | {"n": 40, "test": 8, "split": "all"}
    made = {
        side.name: make_prompts(model, side.task, side.options, settings) for side in plan.tests
    }

    def words(prompts: Any) -> set[str]:
        return {pair.group.partition(" after ")[0] for pair in prompts.pairs}

    sides = sides_of(plan, made)
    tested = words(sides[0].tested) | words(sides[1].tested)
    assert words(made[plan.tests[0].name][0]) & tested  # taken out below
    for side in sides:
        assert len(side.fitted) >= 4
        assert not words(side.fitted) & tested


def test_the_same_again_is_identical(run):
    assert repeat(run, 0.0, Session(quiet=True)).word == "identical"


def test_several_tasks_and_models_are_a_grid(tmp_path, capsys):
    gate(task="math,syntax", model="mini,mini-sparse", no_patching=True, out=str(tmp_path), **FEW)
    (folder,) = tmp_path.iterdir()
    gates = pd.read_csv(folder / "gates.csv")
    assert gates.columns.tolist()[:3] == ["task", "model", "seed"]
    assert len(gates) == 4 * 2 * 32
    result = json.loads((folder / "result.json").read_text())["headline"]
    share = result["parts"]["math on mini-sparse"]["share_facilitation"]
    other = copy.deepcopy(result)
    other["parts"]["math on mini"]["share_facilitation"] *= 1.25
    apart = compare_values(result, other)
    assert apart.relative == pytest.approx(0.25)
    assert "parts math on mini share_facilitation" in apart.where
    assert compare_values(result, result).relative == 0
    assert 0 <= share <= 1
    found = Gating.load(folder).tasks
    assert [part.name for part in found] == list(result["parts"])
    for i in range(4):
        assert len(found[i].gates.plus) == 2
        for file in ("circuit", "circuit_soft", "circuit_plus", "circuit_plus_soft"):
            circuit = Circuit.load(folder / f"{file}_{i}.json")
            assert circuit.task == ("math", "syntax")[i % 2]
    said = capsys.readouterr().out
    assert said.count("of 32 heads") == 4
    assert said.endswith("report.html\n")


def test_contrast_of_two_tasks(tmp_path, capsys):
    gate(retain="ioi", forget="math:low=1+high=9", out=str(tmp_path), **FEW)
    (folder,) = tmp_path.iterdir()
    assert "Retain ioi" in capsys.readouterr().out
    frame = pd.read_csv(folder / "contrast.csv")
    assert frame.columns.tolist() == ["left_out", "side", "prompts", "seed", "before", "after"]
    assert set(frame["prompts"]) == {"ioi", "math:low=1+high=9"}
    assert (folder / "report.html").is_file()
    result = json.loads((folder / "result.json").read_text())
    headline = result["headline"]
    assert headline["all, retain, prompts fitted"] == headline["batch"] == 8
    assert "too few to tell" in result["warnings"][0]
    (trial,) = Contrast.load(folder).trials
    gates = trial.gates.mean(0)
    soft, cut = (Circuit.load(folder / f"circuit{end}.json") for end in ("_soft", ""))
    assert all(soft.gates[head] == gates[head].item() for head in soft.heads)
    assert set(cut.heads) == {tuple(head) for head in (gates >= 0.5).nonzero().tolist()}


def test_a_family_is_left_out_in_turn(tmp_path):
    family = "syntax:kind=past,syntax:kind=plural"
    gate(family=family, retain="shots=1", forget="shots=0", out=str(tmp_path), **FEW)
    (folder,) = tmp_path.iterdir()
    frame = pd.read_csv(folder / "contrast.csv")
    assert set(frame["left_out"]) == {"syntax:kind=past", "syntax:kind=plural"}
    for i in range(2):
        assert len(Circuit.load(folder / f"circuit_soft_{i}.json")) == 32
    trials = read_contrasts("shots=1", "shots=0", family)
    assert [plan.left_out for plan in trials] == family.split(",")
    assert [side.name for side in trials[0].formats] == [
        "syntax:kind=plural+shots=1",
        "syntax:kind=plural+shots=0",
        "syntax:kind=past+shots=1",
        "syntax:kind=past+shots=0",
    ]


def test_gating_is_a_scoring_method():
    model = mechheads.load("mini", quiet=True)
    prompts = tasks.make("ioi", model, n=8)
    effects = mechheads.score_heads(model, prompts, "gating", seeds=2, updates=5, quiet=True)
    assert effects.values.shape == (2, 4, 8)
    assert effects.over == "seeds"
    assert effects.values.abs().max() <= 1
    assert "facilitation minus interference" in str(effects.plot().to_dict())


BOTH = {"retain": "ioi", "forget": "math"}


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"task": "synta"}, "Unknown task 'synta'. Did you mean 'syntax'"),
        ({"task": "math,math"}, "--task lists a name twice: math,math"),
        ({"task": "a/x.jsonl,b/x.jsonl"}, "--task lists a name twice: x,x"),
        ({"model": "mini,mini"}, "--model lists a name twice: mini,mini"),
        ({"model": "minni"}, "No model 'minni'.* Did you mean 'mini'"),
        ({"n": 2}, "--n takes 4 or more prompts, got 2"),
        ({"test": 3}, "--test takes 4 or more prompts, got 3"),
        ({"seeds": 0}, "--seeds takes 1 or more, got 0"),
        ({"lambda_": -0.1}, "--lambda takes a finite number above 0, got -0.1"),
        ({"rates": "0.1"}, "--rates takes the first and the last learning rate.* got 0.1"),
        ({"rates": "nan,0.1"}, "--rates takes the first and the last .* got nan,0.1"),
        ({"pulled_rates": "0.1,x"}, "--pulled-rates takes a number, got 'x'"),
        ({"k": 0}, "--k takes 1 or more, got 0"),
        ({"points": 1}, "--points takes 2 or more, got 1"),
        ({"retain": "ioi"}, "needs both --retain and --forget"),
        ({"retain": "ioi", "forget": "ioi"}, "--retain and --forget are the same: ioi"),
        ({"retain": "math:shots=01", "forget": "math:shots=1"}, "the same: math:shots=01"),
        ({"retain": "syntax", "forget": "syntax:kind=all"}, "the same: syntax"),
        ({"retain": "ioi", "forget": "maths"}, "Unknown task 'maths'. Did you mean 'math'"),
        ({"retain": "ioi", "forget": "math:low"}, "--forget takes options like shots=2.* 'low'"),
        (BOTH | {"model": "mini,mini-sparse"}, "Contrastive gating takes one --model"),
        (BOTH | {"shots": "2"}, "does not take --shots: put it after the task.* math:shots=2"),
        (BOTH | {"task": "math"}, "does not use --task"),
        (BOTH | {"no_patching": True}, "does not use --no-patching"),
        (
            {"family": "ioi", "retain": "shots=1", "forget": "shots=0"},
            "--family takes two or more different tasks, got ioi",
        ),
        (
            {"family": "syntax,common_sense", "retain": "shots=1", "forget": "shots=01"},
            "the same: syntax:shots=1",
        ),
        ({"task": "math", "n": 5000}, "there are only about .* 5004 were requested"),
    ],
)
def test_wrong_input_is_named_and_writes_nothing(wrong, words, tmp_path):
    with pytest.raises(MechheadsError, match=words):
        gate(**(FEW | wrong), out=str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_prompts_of_all_models_are_made_before_the_first_fit(tmp_path, monkeypatch):
    made = []

    def make(model: Any, task: str, options: Any, settings: Any) -> Any:
        made.append(model.cfg.model_name)
        if model.cfg.model_name == "mini-sparse":
            raise MechheadsError("no prompts")
        return make_prompts(model, task, options, settings)

    monkeypatch.setattr("mechheads.jobs.gating.make_prompts", make)
    monkeypatch.setattr(
        "mechheads.gating.experiment.gate_task", lambda *_, **__: pytest.fail("fitted too early")
    )
    with pytest.raises(MechheadsError, match="no prompts"):
        gate(task="math", model="mini,mini-sparse", out=str(tmp_path), **FEW)
    assert made[-1] == "mini-sparse"


def test_lambda_is_a_flag():
    command = [sys.executable, "-m", "mechheads.gate", "--lambda", "x"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "--lambda takes a number, got 'x'" in done.stderr
    shown = subprocess.run([*command[:3], "--help"], capture_output=True, text=True).stdout
    assert "--lambda LAMBDA" in shown
