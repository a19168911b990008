import pytest
from process import run

from mechheads.cli.commands import COMMANDS
from mechheads.cli.parse import arguments

WRONG = [
    (["--task", "ioi", "--length", "3"], "unknown flag --length: task ioi has no such option"),
    (["--task", "ioi_long", "--lenght", "3"], "unknown flag --lenght. Did you mean '--length'?"),
    (["--taks", "ioi"], "unknown flag --taks. Did you mean '--task'"),
    (["ioi"], "unexpected argument 'ioi'"),
    (["--model", "-", "--n", "3"], "'-' is not a valid argument"),
    (["--test", "0"], "--test takes 1 or more prompts, got 0"),
    (["--split", "tset"], "Unknown value for --split: 'tset'. Did you mean 'test'?"),
    (["--model", "x" * 5000], "is too long for a model name"),
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


def test_flags_become_the_types_of_the_signature_and_groups_stay_flat():
    given = arguments(
        COMMANDS["discover"], ["--n", "8", "--signed", "--n-ctx=64", "--task", "ioi_long"]
    )
    assert given == {"n": 8, "signed": True, "n_ctx": 64, "task": "ioi_long"}


def test_a_sweep_takes_switches_of_the_commands_without_a_value():
    given = arguments(COMMANDS["sweep"], ["--signed", "--no-patching", "--n", "8"])
    assert given == {"signed": "true", "no_patching": "true", "n": "8"}
