import json

from process import run

from mechheads.show import show

RECORD = {"clean": "The Mary and", "corrupt": "The John and", "answer": " Mary", "wrong": " John"}


def test_show_of_all_tasks_takes_no_options_of_one():
    out = run("mechheads.show", "--task", "all", "--length", "70")
    assert "unknown flag --length: --task all takes no task options" in out.stderr


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


def test_show_returns_what_it_evaluated_and_prints_it_as_json(capsys):
    found, folder = show(task="math", test=8, quiet=True, json=True)
    printed = json.loads(capsys.readouterr().out)
    assert folder is None
    assert printed["headline"]["parts"]["math"] == found[0].headline
    assert printed["command"] == "show"
