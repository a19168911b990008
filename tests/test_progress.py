import errno
import io
import sys
import types
import warnings

import pytest
from process import run
from tqdm import TqdmWarning, notebook, tqdm

import mechheads
import tasks
from mechheads import progress
from mechheads.cli.commands import COMMANDS
from mechheads.cli.help import help_text
from mechheads.progress import bar, forced, say, stages
from mechheads.scoring.gate_fitting import FitSettings, fit_gates


class Recorded(tqdm):
    """A bar that remembers where it was, and under which name."""

    made: "list[Recorded]"

    def __init__(self, *args, **options):
        self.seen: list[tuple[float, str]] = []
        super().__init__(*args, **options)
        self.made.append(self)

    def update(self, n=1):
        shown = super().update(n)
        self.seen.append((self.n / self.total, self.desc.removesuffix(": ")))
        return shown


@pytest.fixture
def bars(monkeypatch):
    """The bars drawn in a terminal."""
    monkeypatch.setattr(Recorded, "made", [], raising=False)
    monkeypatch.setattr(progress, "tqdm", Recorded)
    monkeypatch.setattr(progress, "drawn", lambda quiet=False: not quiet)
    return Recorded.made


class Log:
    """What a log gets to read, at times that we choose."""

    def __init__(self, capsys):
        self.now, self.capsys = 0.0, capsys

    @property
    def lines(self) -> list[str]:
        return self.capsys.readouterr().err.splitlines()


@pytest.fixture
def log(monkeypatch, capsys):
    log = Log(capsys)
    monkeypatch.setattr(progress, "clock", lambda: log.now)
    return log


FEW = {"n": 8, "test": 8}
RUNS = {
    "discover": {"method": "attribution", **FEW},
    "compare": {"tasks": "math,ioi", "method": "attribution", **FEW},
    "leaderboard": {"models": "mini,known/induction", "tasks": "math", "seeds": 2}
    | {"methods": "attribution,direct,random", **FEW},
    "gate": {"task": "math,syntax", "seeds": 2, "updates": 5, "points": 2, **FEW},
    "mask": {"tasks": "math_calculation,retrieval", "n": 8, "rank": 8, "draws": 2, "k": "2"}
    | {"method": "attribution", "matrix": True},
    "prefix": {"models": "mini", "n": 8, "conditions": "none,mless"},
    "show": {"model": "mini-sparse", "n": 1, "test": 8},
    "sweep": {"tasks": "math,ioi", "models": "mini", "methods": "attribution"}
    | {name: str(n) for name, n in FEW.items()},
}


@pytest.mark.parametrize("name", RUNS)
def test_a_command_has_one_bar_that_never_goes_back_and_ends_at_100_percent(
    name, bars, tmp_path, capsys
):
    out = {} if name == "show" else {"out": str(tmp_path)}
    COMMANDS[name].call({**RUNS[name], **out})
    (only,) = bars
    shares = [share for share, _ in only.seen]
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1)
    assert len({round(share, 3) for share in shares}) > 3
    bars.clear()
    COMMANDS[name].call({**RUNS[name], **out, "quiet": True})
    assert not bars


def test_the_stages_of_discover_are_named(bars, tmp_path, capsys):
    COMMANDS["discover"].call({**RUNS["discover"], "out": str(tmp_path)})
    names = list(dict.fromkeys(name for _, name in bars[0].seen))
    assert names[:3] == ["Evaluating", "Ranking heads", "Measuring the curve"]
    assert len(names) == len(set(names)) >= 7


def test_a_function_called_alone_has_its_own_bar(bars):
    model = mechheads.load("mini")
    mechheads.score_heads(model, tasks.make("math", model, n=4), "patch")
    assert [(one.desc, one.n) for one in bars] == [("Heads", pytest.approx(32))]


def test_the_pulled_fits_count_twice_as_much_as_the_free_ones(bars, monkeypatch):
    model = mechheads.load("mini")
    fit_gates(model, tasks.make("math", model, n=4), FitSettings(seeds=2, updates=6))
    (only,) = bars
    assert only.seen[5][0] == pytest.approx(1 / 3)
    assert only.seen[11][0] == pytest.approx(1)


def test_nested_stages_and_bars_fill_the_stage_they_run_in(bars):
    with stages("outer", {"one": 1, "two": 3}) as outer:
        with outer.stage("one"), stages("inner", {"a": 1, "b": 1}) as inner:
            with inner.stage("a"), bar(10, "tenths") as tenths, bar(5, "inside the other") as no:
                no.update(5)
                tenths.update(5)
                assert outer.n == pytest.approx(0.25)
            with inner.stage("b"):
                pass
            assert outer.n == pytest.approx(1)
        with outer.stage("two"):
            for _ in range(2):  # the second bar has nothing left to fill
                with bar(2, "halves", quiet=True) as halves:
                    halves.update(2)
                    assert outer.n == pytest.approx(4)
    (only,) = bars
    assert [name for _, name in only.seen][:2] == ["one", "one, a"]


def test_an_error_leaves_the_stage_where_it_was():
    with stages("command", {"one": 1, "two": 1}, quiet=True) as progress:
        with pytest.raises(ValueError, match="broken"), progress.stage("one"):
            raise ValueError("broken")
        assert progress.n == 0
        with bar(1, "not in a stage any more", quiet=True) as other:
            other.update()
        assert progress.n == 0


def test_a_log_gets_a_line_every_30_seconds(log):
    with (
        stages("discover", {"Ranking heads": 1, "Curve": 1}) as progress,
        progress.stage("Ranking heads"),
        bar(200, "Heads") as heads,
    ):
        for _ in range(172):
            log.now += 80 / 172
            heads.update()
    assert log.lines == [
        "discover: Ranking heads, 16 %, 30 s, about 3 min left",
        "discover: Ranking heads, 32 %, 1 min, about 2 min left",
    ]


def test_a_log_stays_empty_below_30_seconds_and_with_quiet(log):
    for seconds, quiet in ((29, False), (300, True)):
        with stages("discover", {"one": 1, "two": 1}, quiet) as progress:
            for name in progress.weights:
                with progress.stage(name):
                    log.now += seconds / 2
        with bar(10, "Heads", quiet) as heads:
            log.now += seconds
            heads.update()
    say("Loading mini ...")
    assert log.lines == []


def test_forced_progress_prints_notices_and_every_stage_in_a_log(log):
    with forced():
        say("Loading mini ...")
        with stages("discover", {"one": 1, "two": 1}) as progress:
            for name in progress.weights:
                with progress.stage(name), bar(3, "Heads") as heads:
                    heads.update()
    assert log.lines == ["Loading mini ...", "discover: one, 0 %, 0 s", "discover: two, 50 %, 0 s"]


def test_a_full_disk_behind_the_log_does_not_end_the_run(monkeypatch, log):
    class Full(io.StringIO):
        def write(self, text):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sys, "stderr", Full())
    with bar(2, "Heads") as heads:
        log.now += 31
        heads.update()
        assert heads.n == 1


@pytest.mark.parametrize(
    ("seconds", "words", "rough"),
    [
        (45.4, "45 s", "45 s"),
        (80, "1 min 20 s", "1 min"),
        (110, "1 min 50 s", "2 min"),
        (3600, "1 h", "1 h"),
        (7500, "2 h 5 min", "2 h 5 min"),
    ],
)
def test_durations_are_in_words(seconds, words, rough):
    assert (progress.duration(seconds), progress.duration(seconds, rough=True)) == (words, rough)


@pytest.fixture
def kernel(monkeypatch):
    """As in the kernel of a notebook."""
    shell = types.SimpleNamespace(kernel=object())
    fake = types.SimpleNamespace(get_ipython=lambda: shell)
    monkeypatch.setitem(sys.modules, "ipykernel", types.ModuleType("ipykernel"))
    monkeypatch.setitem(sys.modules, "IPython", fake)


def test_a_notebook_gets_the_widget(kernel):
    assert progress.drawn()
    assert not progress.drawn(quiet=True)
    assert progress._kind() is notebook.tqdm


def test_a_notebook_without_ipywidgets_gets_text_and_no_warning(kernel, monkeypatch):
    monkeypatch.setattr(progress.importlib.util, "find_spec", lambda name: None)
    with warnings.catch_warnings():
        warnings.simplefilter("error", TqdmWarning)
        assert progress._kind() is tqdm


def test_a_shell_that_is_no_kernel_is_no_notebook(monkeypatch):
    fake = types.SimpleNamespace(get_ipython=lambda: object())
    monkeypatch.setitem(sys.modules, "ipykernel", types.ModuleType("ipykernel"))
    monkeypatch.setitem(sys.modules, "IPython", fake)
    assert not progress.in_notebook()


def test_a_real_kernel_draws_the_widget_without_warnings(tmp_path):
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    code = (
        "from mechheads.progress import stages\n"
        "with stages('discover', {'Ranking heads': 1}) as progress:\n"
        "    with progress.stage('Ranking heads'):\n"
        "        print(type(progress.display.bar).__module__)\n"
    )
    page = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    nbclient.NotebookClient(page, timeout=120, kernel_name="python3").execute()
    outputs = page.cells[0].outputs
    assert "tqdm.notebook" in "".join(o.get("text", "") for o in outputs)
    assert not [o for o in outputs if o.get("name") == "stderr"]


def test_every_command_with_quiet_has_progress():
    for command in COMMANDS.values():
        assert ("--progress" in help_text(command)) == ("quiet" in command.flags)


def test_progress_and_quiet_together_are_an_error_in_one_line():
    done = run("mechheads.show", "--progress", "--quiet")
    assert done.returncode == 2
    assert done.stderr == "mechheads.show: --progress and --quiet cannot be combined. Use one.\n"


def test_names_that_are_left_out_are_said_in_a_log_too():
    names = "Mary,Zebulonia,Simon,John,Tom,Bob,Sue,Max,Lily,Ben,Sam,Emma"
    words = ("--task", "ioi", "--n", "1", "--test", "4", "--names", names)
    said, silent = run("mechheads.show", *words), run("mechheads.show", *words, "--quiet")
    assert said.stderr.splitlines() == [
        "mechheads.show: --names: Zebulonia is not a single token of mini: no prompt has it."
    ]
    assert silent.stderr == ""


def test_only_with_progress_is_a_short_run_heard_in_a_pipe(tmp_path):
    words = ("--task", "math", "--n", "1", "--test", "4")
    silent, heard = run("mechheads.show", *words), run("mechheads.show", *words, "--progress")
    assert silent.stderr == ""
    assert heard.stderr.splitlines()[0] == "Loading mini ..."
    assert "Tasks: math, 0 %" in heard.stderr
    assert heard.stdout == silent.stdout
