"""Tasks, methods and metrics of other packages: registered in a session, or by entry points."""

import sys

import process
import pytest
import torch

import circuits
import mechheads
import tasks
from mechheads import MechheadsError
from mechheads.plugins import Table
from mechheads.prompts import Pair, Task

PACKAGE = '''
"""Count on."""

from tasks import Pair, Task


def maker(lexicon, *, high: int = 8):
    def make(rng):
        n = rng.randrange(2, high)
        return Pair(f"1 {n}", f"1 {n - 1}", (f" {n + 1}",), (f" {n}",))
    return make


COUNTING = Task("counting", maker, "logit_diff")
TWICE = Task("ioi", maker, "logit_diff")


def margin(scores):
    """Logit of the answer above the mean."""
    answer = scores.logits[..., range(len(scores.tokens)), scores.tokens[:, 0]]
    return answer - scores.logits.mean(-1)


def later(model, prompts, metric, *, power: int = 1):
    """Later layers first."""
    import torch

    return torch.arange(4.0)[:, None].expand(4, 8) ** power


def fails(model, prompts, metric):
    return 1 / 0
'''
POINTS = """[mechheads.tasks]
broken = broken_package:TASK
counting = counting_package:COUNTING
missing = counting_package:NOTHING
twice = counting_package:TWICE
[mechheads.metrics]
margin = counting_package:margin
[mechheads.methods]
later = counting_package:later
fails = counting_package:fails
"""


@pytest.fixture
def installed(tmp_path):
    """A folder with an installed package that has one good task, and others that fail."""
    (tmp_path / "counting_package.py").write_text(PACKAGE)
    (tmp_path / "broken_package.py").write_text("raise RuntimeError('no licence')")
    info = tmp_path / "counting_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: counting-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(POINTS)
    return str(tmp_path)


def test_an_installed_task_works_like_ours_and_broken_ones_are_named(installed, tmp_path):
    shown = process.run(
        "mechheads.show", "--task", "counting", "--n", "2", "--test", "4", "--split", "all",
        "--high", "9", PYTHONPATH=installed,
    )  # fmt: skip
    assert shown.returncode == 0, shown.stderr
    assert "counting" in shown.stdout
    left_out = [line for line in shown.stderr.splitlines() if "is left out" in line]
    assert len(left_out) == 3
    assert "'broken' of counting-package is left out: RuntimeError('no licence')" in left_out[0]
    assert "two tasks named 'ioi': one of mechheads, one of counting-package" in left_out[2]
    helped = process.run("mechheads.discover", "--help", PYTHONPATH=installed)
    assert "  counting          Count on." in helped.stdout
    swept = process.run(
        "mechheads.sweep", "--tasks", "counting", "--models", "mini", "--n", "4", "--test", "4",
        "--draws", "2", "--method", "attribution", "--split", "all", "--high", "12",
        "--out", str(tmp_path / "sweep"), PYTHONPATH=installed,
    )  # fmt: skip
    assert swept.returncode == 0, swept.stderr
    unknown = process.run("mechheads.discover", "--task", "countin", PYTHONPATH=installed)
    assert "Did you mean 'counting'" in unknown.stderr


def test_installed_metrics_and_methods_work_like_ours(installed, tmp_path):
    few = ("--task", "math", "--n", "4", "--test", "4", "--draws", "2", "--out", str(tmp_path))
    found = process.run(
        "mechheads.discover", *few, "--method", "later", "--power", "2", "--metric", "margin",
        PYTHONPATH=installed,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    assert "of the logit of the answer above the mean of mini on math" in found.stdout
    helped = process.run("mechheads.discover", "--help", PYTHONPATH=installed)
    assert "  later             Later layers first; --power" in helped.stdout
    assert "Metrics of installed packages: margin" in helped.stdout
    failed = process.run("mechheads.discover", *few, "--method", "fails", PYTHONPATH=installed)
    assert failed.returncode == 2
    message = "The method fails raised ZeroDivisionError: division by zero"
    assert [line for line in failed.stderr.splitlines() if "left out" not in line] == [
        f"mechheads.discover: {message}"
    ]


def maker(lexicon):
    return lambda rng: Pair(f"1 {rng.random()}", "2", (" a",), (" b",))


def test_a_task_of_this_session():
    tasks.register("mine")(maker)
    try:
        assert len(tasks.make("mine", tasks.words_as_tokens(), n=3, split="all")) == 3
        with pytest.raises(MechheadsError, match="two tasks named 'mine'"):
            tasks.register("mine")(maker)
        tasks.register("mine", replace=True)(maker)
    finally:
        tasks.TASKS._items.pop("mine")
        tasks.TASKS._origins.pop("mine")


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (maker, "a task must be a Task, got function"),
        (Task("My Task", maker, "logit_diff"), "'My Task' cannot be the name of a task"),
        (Task("../x", maker, "logit_diff"), "cannot be the name of a task"),
    ],
)
def test_what_cannot_be_registered_is_named(item, message):
    with pytest.raises(MechheadsError, match=message):
        Table("task", Task, ()).register(item)


def test_nothing_is_loaded_before_it_is_needed(installed, monkeypatch):
    monkeypatch.syspath_prepend(installed)
    table = Table("task", Task, ())
    assert "counting_package" not in sys.modules
    assert list(table) == ["counting", "ioi"]
    sys.modules.pop("counting_package")


def by_norm(model, prompts, metric, *, power: int = 1):
    """Rank heads by the norm of their output weights."""
    return torch.stack([block.attn.W_O.norm(dim=(1, 2)) ** power for block in model.blocks])


def test_a_function_is_a_method(planted):
    prompts = tasks.make("ioi", planted, n=8)
    found = mechheads.score_heads(planted, prompts, by_norm, power=2)
    assert set(found.ranking()[:2]) == {(0, 1), (1, 2)}  # all other heads write nothing
    assert found.method == "by_norm"
    whole = circuits.discover(planted, prompts, method=by_norm, draws=2, quiet=True)
    assert set(whole.curve.ranking[:2]) == {(0, 1), (1, 2)}
    given = circuits.discover(planted, prompts, effects=found.scores, draws=2, quiet=True)
    assert given.curve.ranking == whole.curve.ranking


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (None, "method wrong returned NoneType, expected HeadEffects or a tensor"),
        (torch.ones(3, 4), "method wrong returned 3 x 4 heads, but .* has 2 x 4"),
        (torch.ones(2), r"scores of wrong have shape \(2,\)"),
        (torch.ones(5, 2, 4), r"scores of wrong have shape \(5, 2, 4\), .* with 4 prompts"),
        (torch.full((2, 4), float("nan")), "method wrong returned scores that are not finite"),
    ],
)
def test_what_a_method_returns_is_checked(returned, message, tiny):
    def wrong(model, prompts, metric):
        return returned

    with pytest.raises(MechheadsError, match=message):
        mechheads.score_heads(tiny, tasks.make("ioi", tiny, n=4), wrong)
    with pytest.raises(MechheadsError, match=r"wrong has no option steps\. Its options: none"):
        mechheads.score_heads(tiny, tasks.make("ioi", tiny, n=4), wrong, steps=3)
