"""mask with heads of the user's: the answers are those of generate(ablate=...)."""

import json
from typing import Any

import pandas as pd
import pytest

from circuits import Circuit
from mechheads.cli.commands import COMMANDS
from mechheads.engine.generate import generate
from mechheads.errors import MechheadsError
from mechheads.mask import mask
from mechheads.masking.experiment import Masking
from mechheads.masking.selection import RANKING
from mechheads.models.load import load
from mechheads.runs.folder import read_run
from mechheads.verify import verify

SMALL: dict[str, Any] = {"n": 4, "rank": 4, "draws": 2, "max_tokens": 3, "quiet": True}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The same two heads masked for two tasks."""
    out = str(tmp_path_factory.mktemp("runs"))
    return mask(tasks="retrieval,inference", heads="L3H4,L2H7", **SMALL, out=out)


def test_the_answers_are_those_without_these_heads(run):
    model = load("mini", quiet=True)
    result, _ = run
    for answers in result.functions:
        by = {c.selection: said for c, said in zip(answers.conditions, answers.said, strict=True)}
        prompts = list(answers.prompts)
        wanted = generate(model, prompts, ablate="L3H4,L2H7", max_tokens=3, quiet=True)
        assert list(by["given"]) == wanted
        assert list(by["none"]) == generate(model, prompts, max_tokens=3, quiet=True)
        assert by["given"] != by["none"]


def test_random_sets_are_as_large_and_have_none_of_these_heads(run):
    for answers in run[0].functions:
        drawn = [c for c in answers.conditions if c.selection == "random"]
        assert [len(set(c.heads)) for c in drawn] == [2, 2]
        assert not {(3, 4), (2, 7)} & {head for c in drawn for head in c.heads}
        assert not answers.ranking


def test_report_sentence_and_tables_name_the_heads(run, capsys):
    result, folder = run
    assert folder.name.startswith("mask-mini-given-")
    assert result.sentence.startswith("Loss of exact match without L3H4 and L2H7: Retrieval ")
    report = (folder / "report.md").read_text()
    assert "what does it answer without L3H4 and L2H7?" in report
    assert "The given heads, L3H4 and L2H7 (solid)" in report
    assert "| method | (not used) |" in report
    assert "top heads" not in report
    assert not (folder / "ranking.csv").exists()
    assert set(pd.read_csv(folder / "masking.csv")["selection"]) == {"none", "given", "random"}
    assert {"given", "given_low", "given_high"} <= set(result.summary().columns)
    headline = read_run(folder).headline
    assert headline["heads"] == ["L3H4", "L2H7"]
    lost = headline["parts"]["Inference"]
    assert lost["given_loses_more"] == pytest.approx(
        lost["lost_without_given"] - lost["lost_without_random"]
    )
    assert "given heads" in str(result.plot().to_dict())
    again = Masking.load(folder)
    assert again.sentence == result.sentence
    verify(str(folder), quiet=True)
    assert capsys.readouterr().out.splitlines()[-1].endswith(": identical")


def test_the_same_questions_are_answered_as_with_a_ranking(run, tmp_path):
    ranked, _ = mask(
        tasks="retrieval", method="attribution", k="2", **SMALL, out=str(tmp_path), metrics="exact"
    )
    assert ranked.functions[0].prompts == run[0].functions[0].prompts


def test_a_circuit_file_works_and_questions_need_no_corrupted_prompts(tmp_path):
    file = Circuit("mine", "L3H4").save(tmp_path / "mine.json")
    questions = tmp_path / "q.jsonl"
    rows = [{"question": f"{a} + {b}", "answer": str(a + b)} for a in range(3) for b in range(4)]
    questions.write_text("\n".join(json.dumps(row) for row in rows))
    given: dict[str, Any] = {"tasks": str(questions), "circuit": str(file), **SMALL, "draws": 0}
    result, folder = mask(**given, out=str(tmp_path / "runs"))
    assert folder is not None
    assert result.heads == ((3, 4),)
    assert "random" not in result.sentence
    assert "circuit_sha256" in read_run(folder).provenance
    with pytest.raises(MechheadsError, match=r"--tasks .*, --circuit .*, which are not part"):
        verify(str(folder), quiet=True)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"method": "ig"}, "--heads and --method cannot be combined: .*patch is the default"),
        ({"k": "2"}, "--heads and --k cannot be combined"),
        ({"signed": True}, "--heads and --signed cannot be combined"),
        ({"matrix": True}, "--heads and --matrix cannot be combined"),
        ({"matrix": True, "matrix_k": "2"}, "--heads and --matrix cannot be combined"),
        ({"circuit": "x.json"}, "--heads and --circuit cannot be combined"),
        ({"heads": "L3H4,L4H4,L3H9"}, "There is no L4H4 or L3H9"),
        ({"heads": ""}, "--heads names no head"),
        ({"heads": "L3H4,L3H4"}, "twice"),
        ({"heads": ",".join(f"L{i}H{j}" for i in range(3) for j in range(8))}, "24 given heads of"),
        ({"heads": None, "circuit": "SOFT"}, "The circuit 'soft' is soft: its heads have gates"),
        ({"heads": None, "circuit": "nothing"}, "Unknown circuit 'nothing'"),
        ({"updates": "3"}, "method patch has no such option"),
    ],
)
def test_wrong_input_is_named_and_writes_nothing(wrong, words, tmp_path):
    soft = Circuit("soft", "L3H4", gates={(3, 4): 0.5}).save(tmp_path / "soft.json")
    given: dict[str, Any] = {"tasks": "retrieval", "heads": "L3H4"} | wrong | SMALL
    given = {name: str(soft) if value == "SOFT" else value for name, value in given.items()}
    with pytest.raises(MechheadsError, match=words) as caught:
        mask(**given, out=str(tmp_path / "runs"))
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.glob("runs/*"))


def test_given_heads_exclude_what_differs_from_the_commands_own_defaults():
    own = COMMANDS["mask"].settings
    assert {name: own[name].default for name in RANKING} == RANKING
