"""Untrusted inputs, made up by hypothesis: each is accepted or refused with one of our errors.

`make test` tries a few of each kind, `make fuzz` thousands.
"""

import contextlib
import copy
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import circuits
import mechheads
import tasks
from mechheads.cli.commands import COMMANDS
from mechheads.cli.parse import arguments
from mechheads.errors import MechheadsError
from mechheads.models import locate
from mechheads.models.model import encoder_of
from mechheads.options import read_path
from mechheads.prompts.batches import batches
from mechheads.runs.folder import RESULT, Record, read_run, signature
from mechheads.runs.result import ARRAYS
from mechheads.sweeping.cells import runs_in
from mechheads.sweeping.grid import from_file
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


@FUZZ
@given(st.lists(st.one_of(TEXT, JSON.map(dumps), st.builds(
    lambda key, value: dumps({**RECORD, key: value}), st.sampled_from([*RECORD, "x"]), JSON
)), max_size=5))  # fmt: skip
def test_task_and_question_files(tmp_path, tiny, lines):
    file = tmp_path / "own.jsonl"
    file.write_bytes("\n".join(lines).encode("utf-8", "surrogatepass"))
    with REFUSED:
        list(batches(encoder_of(tiny), task_file(file)))
    with REFUSED:
        questions.from_file(file)


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


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A small run."""
    model = mechheads.load("mini")
    prompts = tasks.make("math", model, n=8)
    found = circuits.discover(model, prompts, method="attribution", draws=2, quiet=True)
    return found.save(tmp_path_factory.mktemp("runs"))


@FUZZ
@given(st.data())
def test_records_of_runs(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("run")
    own = {"task": "ioi", "n": 4, "seed": 0, "signed": False, "threshold": 0.9, "device": None}
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
        runs_in(folder)


@FUZZ
@given(st.data())
def test_arrays_of_runs(run, tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("arrays")
    with safe_open(run / ARRAYS, "pt") as stored:
        header = json.loads(stored.metadata()["result"])
    tensors = load_file(run / ARRAYS)
    if data.draw(st.booleans()):
        header = changed(header, data.draw(st.sampled_from(places(header))), data.draw(JSON))
    else:
        name = data.draw(st.sampled_from(sorted(tensors)))
        old = tensors[name]
        tensors[name] = data.draw(
            st.sampled_from(
                [
                    old[:0],
                    old[..., :1],
                    old[None],
                    old.double(),
                    old * float("nan") if old.is_floating_point() else old - 10**18,
                    old * 1e30 if old.is_floating_point() else old + 10**18,
                    -old if old.dtype.is_signed else old,
                ]
            )
        ).contiguous()
    save_file(tensors, folder / ARRAYS, {"result": dumps(header)})
    with REFUSED:
        found = circuits.Discovery.load(folder)
        assert found.edges.density <= 1
        comparison = circuits.compare([found], [found])
        comparison.report(folder / "report")
        found.report(folder / "report")


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
    for name in ("own.jsonl", "grid.toml", RESULT, "sweep.json", "config.json"):
        (tmp_path / name).write_text(f"a = {deep}" if name.endswith("toml") else deep)
    for read in (
        lambda: task_file(tmp_path / "own.jsonl"),
        lambda: questions.from_file(tmp_path / "own.jsonl"),
        lambda: from_file(str(tmp_path / "grid.toml")),
        lambda: read_run(tmp_path),
        lambda: runs_in(tmp_path),
        lambda: locate.check(locate.find(str(tmp_path))),
    ):
        with pytest.raises(MechheadsError):
            read()
