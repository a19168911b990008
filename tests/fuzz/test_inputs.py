"""Untrusted inputs, made up by hypothesis: each is accepted or refused with one of our errors.

`make test` tries a few of each kind, `make fuzz` thousands.
"""

import contextlib
import copy
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from sweeps import toy_run
from torch import Tensor

import circuits
from mechheads.cli.commands import COMMANDS
from mechheads.cli.parse import arguments
from mechheads.compare import compare
from mechheads.discover import discover
from mechheads.errors import MechheadsError, printable
from mechheads.gate import gate
from mechheads.leaderboard import leaderboard
from mechheads.mask import mask
from mechheads.models import locate
from mechheads.models.model import encoder_of
from mechheads.options import read_path
from mechheads.prefix import prefix
from mechheads.prompts.batches import batches
from mechheads.prompts.positions import chosen_spans, span_positions
from mechheads.runs.folder import RESULT, Record, read_run, signature
from mechheads.runs.result import ARRAYS
from mechheads.scoring.effects_table import read_effects
from mechheads.sweeping.cells import INPUTS, CellRun, look, rows_in
from mechheads.sweeping.grid import Cell, from_file
from mechheads.sweeping.overview import write_overview
from mechheads.verifying.differences import compare_values
from mechheads.verifying.trust import Allowed, trusted_settings
from tasks import questions
from tasks.files import from_file as task_file

EXAMPLES = 2000 if os.environ.get("MECHHEADS_FUZZ") else 40
FUZZ = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=not os.environ.get("MECHHEADS_FUZZ"),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
TEXT = st.text(st.characters(codec=None, exclude_categories=()), max_size=30)
PLAIN = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), TEXT, st.just(10**400), st.just("~x/y")
)
JSON = st.recursive(
    PLAIN, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4)
)
REFUSED = contextlib.suppress(MechheadsError)


def dumps(value: Any) -> str:
    """JSON as a stranger may write it, NaN and lone surrogates included."""
    return json.dumps(value, ensure_ascii=True)


def places(value: Any) -> list[tuple[Any, ...]]:
    """The paths of everything inside a JSON value."""
    found: list[tuple[Any, ...]] = [()]
    items = value.items() if isinstance(value, dict) else []
    items = enumerate(value) if isinstance(value, list) else items
    for key, inner in items:
        found += [(key, *rest) for rest in places(inner)]
    return found


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """A copy with another value at a place; None there removes it."""
    if not path:
        return new
    value = copy.deepcopy(value)
    inner = value
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = new
    return value


RECORD = {"clean": "The Mary and", "corrupt": "The John and", "answer": " Mary", "wrong": " John"}
RECORD |= {"group": "a", "spans": {"IO": "Mary", "S": [0, 3]}}
QUESTION = {"question": "2 + 2?", "answer": ["4"], "function": "Math", "context": "Think."}
STEPS = {"subquestion": "a?", "answer": "b", "cognitive_skill": "c"}
COGQA = [{"question": "2 + 2?", "generated": [STEPS, STEPS]}]


def edited(whole: Any) -> "st.SearchStrategy[str]":
    """JSON of it with another value somewhere, or one removed, also numbers of any length."""
    spot = st.sampled_from(places(whole))
    texts = st.builds(lambda path, value: dumps(changed(whole, path, value)), spot, JSON)
    longer = st.builds(lambda text: text.replace('"4"', "9" * 5000), texts)
    return st.one_of(texts, longer)


@FUZZ
@given(st.lists(st.one_of(TEXT, edited(RECORD), edited(QUESTION)), max_size=5))
def test_task_and_question_files(tmp_path, tiny, lines):
    check_tasks_and_questions(tmp_path, tiny, "\n".join(lines))


@FUZZ
@given(edited(COGQA))
def test_files_of_many_questions(tmp_path, tiny, text):
    check_tasks_and_questions(tmp_path, tiny, text)


def check_tasks_and_questions(folder: Path, tiny: Any, text: str) -> None:
    """Read a file as both: what is accepted has tokens, positions and a digest."""
    file = folder / "own.jsonl"
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    with REFUSED:
        prompts = task_file(file)
        prompts.digest()
        list(batches(encoder_of(tiny), prompts))
        span_positions(encoder_of(tiny), prompts, chosen_spans(prompts, None))
    with REFUSED:
        for question in questions.from_file(file):
            encoder_of(tiny).ids(question.prompt)
            for answer in question.answers:
                assert answer.encode()
            assert question.function.encode()


CELL = st.one_of(TEXT, st.integers(-1, 3).map(str), st.floats().map(str), st.just("L0H1"))
CIRCUIT = circuits.Circuit("c", "L0H0,L0H1", gates={(0, 0): 0.5}).content


@FUZZ
@given(
    st.one_of(
        TEXT,
        st.builds(
            lambda header, rows: "\n".join([header, *map(",".join, rows)]),
            st.sampled_from(["layer,head,effect", "head,effect", "effect,x,head"]),
            st.lists(st.lists(CELL, min_size=2, max_size=3), max_size=5),
        ),
    )
)
def test_effects_files(tmp_path, text):
    file = tmp_path / "own.csv"
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    with REFUSED:
        read_effects(file).rows(1, 2, "m")


@FUZZ
@given(st.data())
def test_circuit_files(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("circuit")
    content = changed(CIRCUIT, data.draw(st.sampled_from(places(CIRCUIT))), data.draw(JSON))
    (folder / "c.json").write_text(dumps(content))
    with REFUSED:
        found = circuits.Circuit.load(folder / "c.json")
        assert circuits.Circuit.load(found.save(folder / "again.json")) == found


@FUZZ
@given(
    st.sampled_from(sorted(COMMANDS)),
    st.lists(
        st.one_of(
            TEXT.filter(lambda word: "\0" not in word),
            st.sampled_from(
                ["--", "-", "--n", "--task=ioi", "--n=3", "--json", "=", "--=", "---n"]
            ),
        ),
        max_size=5,
    ),
)
def test_flags(name, words):
    with REFUSED:
        arguments(COMMANDS[name], words)


@FUZZ
@given(st.one_of(TEXT, st.lists(
    st.builds(lambda key, value: f"{key} = {value}\n",
              st.sampled_from(["command", "tasks", "seeds", "n", "method", "models", "lambda"]),
              st.one_of(st.integers().map(str), st.sampled_from(
                  ['"discover"', '"gate"', '["ioi"]', "[]", "[1]", "true", "1.5", '"x"', "{}"]))),
    max_size=6).map(lambda rows: "[[grid]]\n" + "".join(rows))))  # fmt: skip
def test_grids(tmp_path, text):
    file = tmp_path / "grid.toml"
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    with REFUSED:
        from_file(str(file))


@FUZZ
@given(st.one_of(TEXT, st.text("/.~x\0", max_size=6000)))
def test_paths(text):
    with REFUSED:
        read_path(text, "--out")


EDITS: dict[str, Callable[[Tensor], Tensor]] = {
    "empty": lambda old: old[:0],
    "short": lambda old: old[..., :1],
    "deep": lambda old: old[None],
    "double": lambda old: old.double(),
    "nan": lambda old: old * float("nan") if old.is_floating_point() else old - 10**18,
    "huge": lambda old: old * 1e30 if old.is_floating_point() else old + 10**18,
    "negative": lambda old: -old,
}
RUNS: dict[str, Any] = {
    "discover": lambda: discover(
        task="math", n=4, test=4, draws=2, method="attribution", out="runs", quiet=True
    ),
    "discover_given": lambda: discover(
        task="math", n=4, test=4, draws=2, heads="L3H4,L2H7", method="attribution", out="runs",
        quiet=True,
    ),
    "edges": lambda: discover(
        task="math", n=4, test=4, draws=2, level="edges", out="runs", quiet=True
    ),
    "mask_given": lambda: mask(
        tasks="retrieval", n=4, rank=4, heads="L3H4,L2H7", draws=1, max_tokens=1, out="runs",
        quiet=True,
    ),
    "compare": lambda: compare(
        tasks="math", n=4, test=4, draws=2, method="attribution", out="runs", quiet=True
    ),
    "leaderboard": lambda: leaderboard(
        models="known/induction", n=4, test=4, seeds=2, draws=2, methods="direct,random",
        out="runs", quiet=True,
    ),
    "gate": lambda: gate(n=8, test=8, seeds=1, updates=2, points=2, out="runs", quiet=True),
    "mask": lambda: mask(
        tasks="retrieval,inference", n=4, rank=4, k="2", draws=1, max_tokens=1, matrix=True,
        out="runs", quiet=True, method="attribution",
    ),
    "contrast": lambda: gate(
        retain="math:shots=1", forget="math:shots=0", n=8, test=8, seeds=1, updates=2, out="runs",
        quiet=True,
    ),
    "prefix": lambda: prefix(n=32, length=4, max_tokens=1, out="runs", quiet=True),
}  # fmt: skip


@pytest.fixture(scope="module", params=RUNS)
def run(request, tmp_path_factory) -> tuple[Any, Path]:
    """The result of a small run, and its folder."""
    with contextlib.chdir(tmp_path_factory.mktemp("runs")):
        found, folder = RUNS[request.param]()
        return found, folder.resolve()


@FUZZ
@given(st.data())
def test_records_of_runs(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("run")
    own = {"task": "ioi", "n": 4, "seed": 0, "signed": False, "threshold": 0.9, "device": None}
    own |= {"heads": "L0H0", "circuit": None, "effects": None, "backend": "hooked", "model": "mini"}
    own |= {"method": "patch", "quantize": None, "skip_misaligned": False, "n_devices": 1}
    content = {
        "schema": 1,
        "command": "discover",
        "settings": own,
        "headline": {"needed": 3, "parts": {"a": {"x": 1.5}}},
        "warnings": [],
        "provenance": {"threads": 2, "packages": {"torch": "2"}},
        "files": {},
        "signature": "",
    }
    content = changed(content, data.draw(st.sampled_from(places(content))), data.draw(JSON))
    with contextlib.suppress(Exception):  # as good a forgery as it can be
        parts = [content[name] for name in ("command", "settings", "headline", "provenance")]
        record = Record(*parts, warnings=tuple(content["warnings"]))
        content["signature"] = signature(record, {})
    (folder / RESULT).write_text(dumps(content))
    with REFUSED:
        record = read_run(folder)
        trusted_settings(folder, record, Allowed())
    (folder / "sweep.json").write_text(dumps([content, data.draw(JSON)]))
    with REFUSED:
        rows_in(folder)


ROW = {
    "command": "discover",
    "cell": "task ioi",
    "state": "done",
    "report": "cells/a/b/report.html",
}
ROW |= {"headline": {"needed": 1}, "warnings": []}


@FUZZ
@given(st.data())
def test_sweeps(tmp_path_factory, data):
    """A sweep is resumed and its overview read, whatever its runs and its overview say."""
    out = tmp_path_factory.mktemp("sweep")
    rows = changed([ROW], data.draw(st.sampled_from(places([ROW]))), data.draw(JSON))
    (out / "sweep.json").write_text(dumps(rows))
    cell = Cell("discover", (("task", "ioi"),), (("mini", "abc"),))
    place = toy_run(cell, out)
    record = read_run(place)
    with REFUSED:
        for row in rows_in(out):
            assert isinstance(row.mistake(record), str)
    (place.parent / INPUTS).write_text(dumps({"mini": "abc"} if data.draw(st.booleans()) else
                                             data.draw(JSON)))  # fmt: skip
    swept = look([cell], out)
    headline = {"needed": 1, "parts": {"a": {"needed": 1}}}
    headline = changed(headline, data.draw(st.sampled_from(places(headline))), data.draw(JSON))
    swept.runs[cell] = CellRun(place, replace(record, headline=headline)) if isinstance(
        headline, dict
    ) else CellRun(place, record)  # fmt: skip
    table = "\n".join([data.draw(st.sampled_from(["k,explained", "k,k", "a"])), *data.draw(
        st.lists(st.lists(CELL, min_size=1, max_size=3).map(",".join), max_size=3)
    )])  # fmt: skip
    (place / "curve.csv").write_text(table)
    with REFUSED:
        write_overview(swept, "again")


@FUZZ
@given(JSON, JSON)
def test_values_that_are_compared(one, two):
    found = compare_values(one, two)
    assert found.relative >= 0
    assert printable(found.words).isprintable()
    assert compare_values(one, one).relative == 0


@settings(FUZZ, max_examples=EXAMPLES // 4)  # a report is written of what is accepted
@given(st.sampled_from(["header", "header", *EDITS]), st.integers(0, 10**6), JSON)
def test_arrays_of_runs(run, tmp_path_factory, edit, at, value):
    result, place = run
    folder = tmp_path_factory.mktemp("arrays")
    with safe_open(place / ARRAYS, "pt") as stored:
        header = json.loads(stored.metadata()["result"])
    tensors = load_file(place / ARRAYS)
    if edit == "header":
        header = changed(header, places(header)[at % len(places(header))], value)
    else:
        name = sorted(tensors)[at % len(tensors)]
        old = tensors[name]
        old = old.long() if old.dtype == torch.bool else old
        tensors[name] = EDITS[edit](old).contiguous()
    save_file(tensors, folder / ARRAYS, {"result": dumps(header)})
    with REFUSED:
        found = type(result).load(folder)
        found.report(folder / "report")
        if isinstance(found, circuits.Discovery):
            assert found.edges.density <= 1
            circuits.compare([found], [found]).report(folder / "report")


@FUZZ
@given(st.data())
def test_configs_of_models(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("model")
    config = json.loads((locate.EMBEDDED / "mini" / "config.json").read_text())
    index = {"weight_map": {"x": "model.safetensors"}, "metadata": {"total_size": 5}}
    (folder / "model.safetensors").touch()
    for name, content in (("config.json", config), ("model.safetensors.index.json", index)):
        content = changed(content, data.draw(st.sampled_from(places(content))), data.draw(JSON))
        (folder / name).write_text(dumps(content))
    with REFUSED:
        locate.check(locate.find(str(folder)))


def test_what_is_nested_deeply_is_refused(tmp_path):
    deep = "[" * 100_000
    save_file({"a": torch.ones(1)}, tmp_path / ARRAYS, {"result": deep})
    for name in ("own.jsonl", "grid.toml", RESULT, "sweep.json", "config.json"):
        (tmp_path / name).write_text(f"a = {deep}" if name.endswith("toml") else deep)
    for read in (
        lambda: task_file(tmp_path / "own.jsonl"),
        lambda: questions.from_file(tmp_path / "own.jsonl"),
        lambda: from_file(str(tmp_path / "grid.toml")),
        lambda: read_run(tmp_path),
        lambda: rows_in(tmp_path),
        lambda: circuits.Discovery.load(tmp_path),
        lambda: locate.check(locate.find(str(tmp_path))),
    ):
        with pytest.raises(MechheadsError):
            read()
