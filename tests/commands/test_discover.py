"""The commands discover, compare and verify: what they write, say and refuse."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from mechheads.compare import compare
from mechheads.discover import discover
from mechheads.errors import MechheadsError
from mechheads.runs.folder import Record, finish
from mechheads.verify import verify
from mechheads.verifying.rerun import verify_run
from mechheads.verifying.trust import Allowed
from tasks import words


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A small discover run on the embedded model."""
    out = tmp_path_factory.mktemp("runs")
    discover(task="ioi", n=8, test=8, draws=2, out=str(out), quiet=True)
    (folder,) = out.iterdir()
    return folder


def test_a_run_has_all_its_files(run):
    names = {file.name for file in run.iterdir()}
    assert names == {
        "arrays.safetensors",
        "circuit.json",
        "curve.csv",
        "effects.csv",
        "importances.json",
        "minimality.csv",
        "paths.csv",
        "report.html",
        "report.md",
        "result.json",
        "timings.json",
    }
    assert run.name.startswith("ioi-mini-auto-")
    assert (run / "report.html").stat().st_size < 6_000_000


def test_tables_have_the_promised_columns(run):
    effects, curve = pd.read_csv(run / "effects.csv"), pd.read_csv(run / "curve.csv")
    columns = ["layer", "head", "effect", "ci_low", "ci_high", "p_value", "inclusion"]
    columns += ["first_token", "written"]
    assert effects.columns.tolist() == columns
    assert len(effects) == 32
    assert curve.columns.tolist() == [
        "k",
        "layer",
        "head",
        "explained",
        "ci_low",
        "ci_high",
        "random_mean",
        "random_low",
        "random_high",
    ]
    assert curve["explained"].iloc[0] == 0
    assert curve["explained"].iloc[-1] == 1
    assert pd.isna(curve["head"].iloc[0])
    first = effects.loc[effects["effect"].abs().idxmax()]
    assert (curve["layer"][1], curve["head"][1]) == (first["layer"], first["head"])


def test_the_result_says_what_made_it(run):
    content = json.loads((run / "result.json").read_text())
    assert content["settings"]["task"] == "ioi"
    assert "out" not in content["settings"]
    origin = content["provenance"]
    assert len(origin["weights_sha256"]) == 64
    assert len(origin["prompts_sha256"]) == 2
    assert origin["packages"]["transformer-lens"].startswith(("3.", "4."))
    assert origin["device"] == "cpu"
    assert content["headline"]["needed"] > 0


def test_importances_are_what_mib_takes(run):
    content = json.loads((run / "importances.json").read_text())
    assert content["cfg"] == {
        "n_layers": 4,
        "n_heads": 8,
        "parallel_attn_mlp": False,
        "d_model": 128,
    }
    heads = {name: node for name, node in content["nodes"].items() if name.startswith("a")}
    assert len(heads) == 32
    effects = pd.read_csv(run / "effects.csv").set_index(["layer", "head"])["effect"]
    assert heads["a2.h5"]["score"] == pytest.approx(effects[(2, 5)], rel=1e-5)
    needed = json.loads((run / "result.json").read_text())["headline"]["needed"]
    assert sum(node["in_graph"] for node in heads.values()) == needed


def test_the_same_settings_give_the_same_bytes(run, tmp_path):
    discover(task="ioi", n=8, test=8, draws=2, out=str(tmp_path), quiet=True)
    (again,) = tmp_path.iterdir()
    assert again.name == run.name
    for file in sorted(run.iterdir()):
        if file.name != "timings.json":
            assert file.read_bytes() == (again / file.name).read_bytes(), file.name


def test_the_last_line_is_the_report(run, tmp_path, capsys):
    discover(task="ioi", n=4, test=4, draws=2, out=str(tmp_path), quiet=True)
    lines = capsys.readouterr().out.splitlines()
    assert Path(lines[-1]).is_file()
    assert "heads" in lines[0]


def test_verify_says_identical_close_or_different(run, tmp_path, capsys):
    verify(str(run), quiet=True)
    assert "identical" in capsys.readouterr().out.splitlines()[-1]
    changed = tmp_path / run.name
    shutil.copytree(run, changed)
    _scale(changed, 1 + 1e-6)
    assert "equal within 0.0001" in list(verify_run(changed, 1e-4, Allowed(), quiet=True))[-1]
    _scale(changed, 1.1)
    with pytest.raises(MechheadsError, match=r"DIFFERENT numbers now.*effect in row"):
        list(verify_run(changed, 1e-4, Allowed(), quiet=True))


def _scale(folder: Path, factor: float) -> None:
    """Other numbers in a run that is whole all the same."""
    frame = pd.read_csv(folder / "effects.csv")
    frame["effect"] *= factor
    frame.to_csv(folder / "effects.csv", index=False)
    content = json.loads((folder / "result.json").read_text())
    parts = [content[key] for key in ("command", "settings", "headline", "provenance")]
    record = Record(*parts, warnings=tuple(content["warnings"]))
    for name in ("result.json", "timings.json"):
        (folder / name).unlink()
    finish(folder, record, {})


def test_two_saved_runs_can_be_compared(run, tmp_path, capsys):
    compare(standard=str(run), sparse=str(run), out=str(tmp_path), quiet=True)
    (folder,) = tmp_path.iterdir()
    frame = pd.read_csv(folder / "comparison.csv")
    assert frame["multiplier"].tolist() == [1.0]
    assert Path(capsys.readouterr().out.splitlines()[-1]).is_file()


def test_two_models_can_be_compared(tmp_path, capsys):
    compare(tasks="greater_than,ioi", n=4, test=4, draws=2, out=str(tmp_path), quiet=True)
    (folder,) = tmp_path.iterdir()
    frame = pd.read_csv(folder / "comparison.csv")
    names = ["task", "n_standard", "n_sparse", "multiplier", "ci_low", "ci_high"]
    assert frame.columns.tolist() == names
    assert frame["task"].tolist() == ["greater_than", "ioi"]
    ratio = frame["n_standard"] / frame["n_sparse"]
    assert ratio.to_numpy() == pytest.approx(frame["multiplier"].to_numpy(), rel=1e-6)
    assert (folder / "report.html").stat().st_size < 6_000_000
    assert "x (" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "words", "message"),
    [
        ("discover", ["--task", "io"], "did you mean"),
        ("discover", ["--method", "pach"], "patch"),
        ("discover", ["--n", "2"], "--n takes 4 or more"),
        ("discover", ["--steps", "3"], "method auto has no such option"),
        ("discover", ["--search", "prun"], "prune"),
        ("discover", ["--out", "/proc/nowhere"], "cannot write to"),
        ("compare", ["--tasks", "ioi,doc"], "docstring"),
        ("compare", ["--sparse", "/nowhere/at/all"], "No such model"),
        ("discover", ["--draws", "1"], "--draws takes 2 or more"),
        ("discover", ["--threshold", "1.5"], "up to 1, got 1.5"),
        ("discover", ["--metric", "logit"], "logit_diff"),
        ("compare", ["--tasks", "ioi,ioi"], "twice"),
        ("verify", ["/nowhere"], "/nowhere does not exist. Give the folder of a run"),
        ("discover", ["--budget", "0"], "--budget takes 1 or more tokens per pass, got 0"),
        ("discover", ["--out", ""], "--out is empty"),
        ("sweep", ["--cpus", "nan"], "--cpus takes more than 0"),
        ("mask", ["--tasks", "none.jsonl"], "No question file none.jsonl"),
        ("attention", ["--prompt", "", "--out", "a.html"], "prompt"),
    ],
)
def test_wrong_input_is_one_line_and_no_folder(command, words, message, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", f"mechheads.{command}", *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 2
    assert message.lower() in done.stderr.lower()
    assert len(done.stderr.splitlines()) == 1
    assert not list(tmp_path.glob("**/*.json"))


def test_heads_out_of_range_and_damaged_runs_are_named(run, tmp_path):
    with pytest.raises(MechheadsError, match="--k takes 1 to 32 heads of mini, got 33"):
        discover(k=33, n=4, test=4, out=str(tmp_path), quiet=True)
    broken = tmp_path / "broken"
    shutil.copytree(run, broken)
    (broken / "arrays.safetensors").write_bytes(b"nothing")
    with pytest.raises(MechheadsError, match=r"arrays.safetensors was changed"):
        compare(standard=str(broken), sparse=str(run), out=str(tmp_path), quiet=True)
    with pytest.raises(MechheadsError, match=r"arrays.safetensors was changed"):
        verify(str(broken), quiet=True)
    with pytest.raises(MechheadsError, match="--search greedy finds its own number"):
        discover(k=3, search="greedy", n=4, test=4, out=str(tmp_path), quiet=True)
    with pytest.raises(MechheadsError, match="not one of each"):
        compare(standard=str(run), sparse="mini", out=str(tmp_path), quiet=True)


def test_a_task_file_is_shuffled_without_its_doubles_and_cut_in_two(tmp_path):
    one, two = words.NAMES[:5], words.NAMES[5:10]
    lines = [
        json.dumps({"clean": f"To {a} and", "corrupt": f"To {b} and", "answer": a, "wrong": b})
        for a, b in zip(one, two, strict=True)
    ]
    file = tmp_path / "mine.jsonl"
    file.write_text("\n".join([*lines, *lines]))
    with pytest.raises(
        MechheadsError, match="has 5 different prompts, but 4 to rank and 4 to judge"
    ):
        discover(task=str(file), n=4, test=4, out=str(tmp_path), quiet=True)


@pytest.mark.parametrize("task", ["ioi_long", "docstring"])
def test_reports_of_long_prompts_stay_small(task, tmp_path):
    discover(task=task, n=4, test=4, draws=2, out=str(tmp_path), quiet=True)
    (folder,) = tmp_path.iterdir()
    assert (folder / "report.html").stat().st_size < 6_000_000


def test_a_model_that_cannot_do_the_task_is_marked(checkpoint, tmp_path, capsys):
    discover(model=str(checkpoint("gpt2")), n=4, test=4, draws=2, out=str(tmp_path), quiet=True)
    out = capsys.readouterr().out
    assert "Warning" in out
    (folder,) = tmp_path.iterdir()
    assert 'class="warning"' in (folder / "report.html").read_text()
    assert json.loads((folder / "result.json").read_text())["warnings"]
