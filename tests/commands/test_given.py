"""discover with heads, a circuit or effects of the user's: the same numbers, or one line."""

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
from process import run as start

from circuits import Circuit, published
from mechheads.cli.commands import COMMANDS
from mechheads.cli.parse import arguments
from mechheads.discover import discover
from mechheads.errors import MechheadsError
from mechheads.jobs.given import file_digests, files_of
from mechheads.runs.files import digest
from mechheads.runs.folder import read_run, read_table
from mechheads.verify import verify

SMALL: dict[str, Any] = {"task": "ioi", "n": 8, "test": 8, "draws": 2, "quiet": True}


def run_small(out: Path, **given: Any) -> tuple[Any, Path]:
    """The result of a small run, and its folder."""
    result, folder = discover(**SMALL, **given, out=str(out))
    assert folder is not None
    return result, folder


@pytest.fixture(scope="module")
def ours(tmp_path_factory) -> Path:
    """A run that ranks heads and chooses a circuit."""
    return run_small(tmp_path_factory.mktemp("runs"))[1]


def test_a_runs_own_effects_give_the_same_curve_and_circuit(ours, tmp_path, capsys):
    result, folder = run_small(tmp_path, effects=str(ours / "effects.csv"))
    assert folder.name.startswith("ioi-mini-given-")
    assert (folder / "curve.csv").read_bytes() == (ours / "curve.csv").read_bytes()
    assert (folder / "minimality.csv").read_bytes() == (ours / "minimality.csv").read_bytes()
    assert (folder / "circuit.json").read_bytes() == (ours / "circuit.json").read_bytes()
    before, after = read_run(ours), read_run(folder)
    for name in ("needed", "needed_low", "circuit", "cpr", "faithfulness", "left_high"):
        assert after.headline[name] == before.headline[name]
    assert after.headline["overlap"] is None
    assert "ranking_seeds" not in after.headline
    assert after.provenance["effects_sha256"] == digest([ours / "effects.csv"])
    report = (folder / "report.md").read_text()
    assert "Given score (given in effects.csv)" in report
    assert "| method | (not used) |" in report
    one, two = (read_table(f / "effects.csv") for f in (ours, folder))
    assert one["effect"].tolist() == two["effect"].tolist()
    assert two.columns.tolist() == one.columns.tolist()
    assert all(two[name].isna().all() for name in ("ci_low", "ci_high", "p_value"))
    assert result.sentence in capsys.readouterr().out


def test_a_runs_own_circuit_is_as_faithful_and_verified_if_its_files_are_allowed(
    ours, tmp_path, capsys
):
    file = tmp_path / "mine.json"
    shutil.copy(ours / "circuit.json", file)
    result, folder = run_small(tmp_path / "runs", circuit=str(file), json=True)
    assert folder.name.startswith("ioi-mini-auto-circuit-")
    printed = json.loads(capsys.readouterr().out)
    assert printed["sentence"] == result.sentence
    before, after = read_run(ours), read_run(folder)
    for name in ("faithfulness", "faithfulness_low", "left_without", "left_high", "idle_heads"):
        assert printed["headline"][name] == after.headline[name] == before.headline[name]
    assert after.headline["explained_by_top"] == pytest.approx(after.headline["faithfulness"])
    assert after.provenance["circuit_sha256"] == digest([file])
    assert Circuit.load(folder / "circuit.json") == Circuit.load(file)
    with pytest.raises(MechheadsError, match=r"uses --circuit .*mine\.json, .* --allow-files"):
        verify(str(folder), quiet=True)
    verify(str(folder), allow_files=True, quiet=True)
    assert capsys.readouterr().out.splitlines()[-1].endswith(": identical")


def test_the_report_says_what_is_yours_and_its_command_line_gives_the_same_settings(tmp_path):
    _, folder = run_small(tmp_path, heads="L3H4,l2h7")
    report = (folder / "report.md").read_text()
    assert "do these heads do the job?" in report
    for words in (
        "| Your circuit | L3H4 and L2H7 (2 heads) |",
        "Explained by the first 2 heads of the ranking",
        "Explained by 2 random heads",
        "## Heads of your circuit",
        "(completeness)",
        "| k | (not used) |",
    ):
        assert words in report
    settings = read_run(folder).settings
    words = shlex.split(COMMANDS["discover"].line(settings))
    assert "--heads" in words
    assert COMMANDS["discover"].in_full(arguments(COMMANDS["discover"], words[3:])) == settings
    content = json.loads((folder / "circuit.json").read_text())
    assert [(h["layer"], h["head"]) for h in content["heads"]] == [(3, 4), (2, 7)]
    graph = json.loads((folder / "importances.json").read_text())["nodes"]
    assert [name for name, node in graph.items() if node["in_graph"] and name[0] == "a"] == [
        "a2.h7",
        "a3.h4",
    ]


def test_only_these_settings_name_files():
    settings = {"heads": "a/b", "circuit": "ioi_gpt2_small", "effects": None}
    assert files_of(settings) == file_digests(settings) == {}
    settings = {"circuit": "circuit.json", "effects": "any"}
    assert files_of(settings) == settings
    for name in ("a/b", "..\\b", "x.json"):
        assert files_of({"circuit": name}) == {"circuit": name}
    assert files_of({}) == {}


@pytest.fixture(scope="module")
def wrong(ours, tmp_path_factory) -> dict[str, str]:
    """Files that are no circuits or effects of the embedded model."""
    place = tmp_path_factory.mktemp("wrong")
    lines = (ours / "effects.csv").read_text().splitlines(keepends=True)
    blank = "," * (lines[0].count(",") - 2) + "\n"
    texts = {
        "SHORT": "".join(lines[:-6]),
        "DOUBLE": "".join([*lines, lines[3]]),
        "NAN": "".join([lines[0], f"0,0,nan{blank}", *lines[2:]]),
        "FOREIGN": "".join([*lines, f"9,9,1{blank}"]),
        "DEEP": "[" * 100_000,
        "HALF": json.dumps(published("ioi_gpt2_small").content | {"name": "\ud800"}),
        "FLOAT": json.dumps(Circuit("c", "L0H0").content).replace('"layer": 0', '"layer": 0.5'),
    }
    files = {name: str(place / f"{name.lower()}.json") for name in texts}
    for name, text in texts.items():
        Path(files[name]).write_text(text)
    Circuit("none", ()).save(place / "empty.json")
    Circuit("far", "L0H0,L9H6,L9H9").save(place / "far.json")
    return files | {"EMPTY": str(place / "empty.json"), "FAR": str(place / "far.json")}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--heads L3H4 --circuit x.json", "--heads and --circuit cannot be combined"),
        ("--heads L3H4 --k 2", "--heads and --k cannot be combined"),
        ("--heads L3H4 --search prune", "--heads and --search cannot be combined.*top is the def"),
        ("--circuit ioi_gpt2_small --k 2", "--circuit and --k cannot be combined"),
        ("--circuit x.json --search greedy", "--circuit and --search cannot be combined"),
        ("--heads L3H4,L4H0,L0H8,L9H9", "There is no L4H0, L0H8 or L9H9: layers are 0 to 3, heads"),
        ("--heads 3.4", "'3.4' is not a head"),
        ("--heads L3H4,L3H4", "L3H4 is in the circuit twice"),
        ("--heads ,", "--heads names no head"),
        (f"--heads L{'9' * 5000}H0", "is not a head"),
        ("--circuit ioi_gpt2", "Did you mean 'ioi_gpt2_small'.*Or give a .json file, or heads"),
        ("--circuit ioi_gpt2_small", "There is no L9H9, "),
        ("--circuit none.json", "none.json is not a valid circuit file .No such file"),
        ("--circuit /", "/ is not a valid circuit file .it is not a file; a run's circuit is"),
        ("--circuit /dev/zero.json", "No such file|Not a directory"),
        ("--circuit DEEP", "deep.json is not a valid circuit file"),
        ("--circuit HALF", "half.json is not a valid circuit file"),
        ("--circuit FLOAT", "float.json is not a valid circuit file .no head: layer 0.5"),
        ("--circuit EMPTY", "empty.json has no heads"),
        ("--circuit FAR", "There is no L9H6 or L9H9"),
        ("--effects none.csv", "cannot read none.csv .No such file"),
        ("--effects SHORT", "short.json lacks L3H2, L3H3, L3H4, L3H5 and 2 more of mini's 32"),
        ("--effects DOUBLE", "double.json, line 34: L0H2 is also in line 4"),
        ("--effects NAN", "nan.json, line 2: effect is 'nan', expected a finite number"),
        ("--effects FOREIGN", "foreign.json, line 34: mini has no L9H9"),
        ("--effects SHORT --method ig", "--effects and --method cannot be combined.*auto is the"),
        ("--effects SHORT --direction denoising", "--effects and --direction cannot be combined"),
    ],
)
def test_wrong_input_is_one_line_and_writes_nothing(words, message, wrong, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    argv = [wrong.get(word, word) for word in words.split()]
    argv += ["--n", "4", "--test", "4", "--draws", "2", "--quiet", "--out", str(tmp_path)]
    with pytest.raises(MechheadsError, match=message) as caught:
        COMMANDS["discover"].call(arguments(COMMANDS["discover"], argv))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["discover", "--heads", "", "--quiet"], "--heads names no head"),
        (["discover", "--circuit", ""], "--circuit is empty"),
        (["discover", "--effects", " "], "--effects is empty"),
        (["mask", "--heads", "L3H4", "--k", "2"], "--heads and --k cannot be combined"),
    ],
)
def test_the_process_ends_with_code_2_and_no_traceback(argv, message, tmp_path):
    done = start(f"mechheads.{argv[0]}", *argv[1:], cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())
