import pytest
from sweeps import ROOT

from mechheads.cli.commands import COMMANDS
from mechheads.cli.parse import arguments
from mechheads.errors import MechheadsError
from mechheads.sweep import sweep
from mechheads.sweeping.grid import Cell, from_file, from_flags


def test_a_grid_has_every_combination_once():
    axes = {
        "tasks": ["ioi", "math"],
        "models": ["mini"],
        "methods": ["patch", "ig"],
        "seeds": [0, 1],
    }
    made = from_flags(["discover", "gate"], axes, {"n": "8"})
    assert len(made) == 8 + 4  # gate has no methods
    assert len({cell.name for cell in made}) == 12
    assert dict(made[0].settings) == {
        "task": "ioi",
        "model": "mini",
        "method": "patch",
        "seed": 0,
        "n": 8,
    }
    (pair,) = from_flags(["compare"], {"tasks": ["ioi", "math"], "models": ["a", "b"]}, {})
    assert dict(pair.settings) == {"standard": "a", "sparse": "b", "tasks": "ioi,math"}
    for wrong, words in (
        ((["discovr"], {}, {}), "Did you mean"),
        ((["gate"], {}, {"metrics": "x"}), "unknown flag --metrics"),
        ((["gate"], {"methods": ["ig"]}, {}), "unknown flag --methods: none of gate has it"),
        ((["discover"], {"tasks": ["ioi"]}, {"task": "math"}), "task is also given as an axis"),
        ((["compare"], {"models": ["a"]}, {}), "two --models"),
        ((["discover"], {}, {"n": "x"}), "--n takes a whole number"),
        ((["discover"], {}, {"seed": 2**64}), "--seed takes a whole number up to 2,147,483,647"),
        ((["discover"], {"tasks": ["ioi"]}, {"shots": "2"}), "--shots: no task or method of this"),
        ((["discover"], {"methods": ["pach"]}, {}), "Did you mean 'patch'"),
        ((["discover"], {"tasks": ["ioj"]}, {}), "Did you mean 'ioi'"),
    ):
        with pytest.raises(MechheadsError, match=words):
            from_flags(*wrong)


def test_cells_are_ordered_by_model_and_the_order_of_flags_does_not_matter():
    axes = {"tasks": ["ioi", "math"], "models": ["mini", "mini-sparse"]}
    made = from_flags(["discover"], axes, {"n": "8", "k": "2"})
    assert [dict(cell.settings)["model"] for cell in made] == ["mini"] * 2 + ["mini-sparse"] * 2
    again = from_flags(["discover"], dict(reversed(axes.items())), {"k": "2", "n": "8"})
    assert again == made
    turned = Cell("discover", tuple(reversed(made[0].settings)))
    assert turned.name[-8:] == made[0].name[-8:]


def test_switches_lambda_and_options_of_tasks_and_methods_can_be_given(tmp_path):
    words = ["--signed", "--lambda", "0.2", "--no-patching", "--steps", "5", "--shots=2"]
    given = arguments(COMMANDS["sweep"], words)
    assert given == {
        "signed": "true",
        "lambda": "0.2",
        "no_patching": "true",
        "steps": "5",
        "shots": "2",
    }
    axes = {"tasks": ["math", "ioi"], "methods": ["ig", "patch"]}
    made = [dict(cell.settings) for cell in from_flags(["discover", "gate"], axes, given)]
    assert made == [
        {"task": "math", "method": "ig", "signed": True, "shots": "2", "steps": "5"},
        {"task": "math", "method": "patch", "signed": True, "shots": "2"},
        {"task": "ioi", "method": "ig", "signed": True, "steps": "5"},
        {"task": "ioi", "method": "patch", "signed": True},
        {"task": "math", "lambda_": 0.2, "no_patching": True, "shots": "2"},
        {"task": "ioi", "lambda_": 0.2, "no_patching": True},
    ]
    two = {"lambda_": 0.2, "no_patching": True, "shots": "2"}  # syntax is gate's own task
    file = tmp_path / "grid.toml"
    file.write_text('[[grid]]\ncommand = "gate"\nlambda = 0.2\nno_patching = true\nshots = 2\n')
    assert dict(from_file(str(file))[0].settings) == two


def test_heads_are_no_axis(tmp_path):
    given = arguments(COMMANDS["sweep"], ["--heads", "L3H4,L3H6", "--tasks", "ioi,math"])
    made = from_flags(["discover"], {"tasks": ["ioi", "math"]}, {"heads": given["heads"]})
    assert [dict(cell.settings)["heads"] for cell in made] == ["L3H4,L3H6"] * 2
    file = tmp_path / "grid.toml"
    file.write_text('[[grid]]\ncommand = "mask"\nheads = ["L3H4", "L3H6"]\n')
    assert [dict(cell.settings) for cell in from_file(str(file))] == [{"heads": "L3H4,L3H6"}]


@pytest.mark.parametrize("name", ["gallery", "gallery_smollm2"])
def test_the_gallery_is_a_grid(name):
    assert from_file(str(ROOT / "notebooks" / f"{name}.toml"))


def test_a_grid_from_a_file(tmp_path):
    file = tmp_path / "grid.toml"
    file.write_text(
        '[[grid]]\ncommand = "discover"\ntasks = ["ioi", "math"]\nseeds = [0, 1]\nn = 8\n'
        '[[grid]]\ncommand = "prefix"\nmodels = ["mini"]\nlength = 5\n'
    )
    made = from_file(str(file))
    assert len(made) == 5
    assert dict(made[-1].settings) == {"models": "mini", "length": 5}
    file.write_text('[[grid]]\ncommand = "gate"\nseeds = 3\n')
    assert dict(from_file(str(file))[0].settings) == {"seeds": 3}
    for text, words in (
        ("", "no \\[\\[grid\\]\\]"),
        ("[[grid]]\ncommand = 'x'", "grid 1: command must be one of .* got 'x'"),
        ("grid = [1]", "command must be one of .* got 1"),
        ("[[grid]]\ncommand = ['discover']", "command must be one of .* got \\['discover'\\]"),
        ("[[grid]]\ncommand = 'gate'\nmethods = ['ig']", "gate has no methods"),
        ("[[grid]]\ncommand = 'gate'\ntask = 'a'\ntasks = ['b']", "task is also given as an axis"),
        ("[[grid]]\ncommand = 'gate'\ntasks = 'ioi'", "tasks takes a list"),
        ("[[grid]]\ncommand = 'gate'\nfoo = 1", "gate has no setting foo"),
        ("= =", "is not valid TOML"),
        ("n = 4\n[[grid]]\ncommand = 'gate'", "n is not inside a \\[\\[grid\\]\\]"),
        ("[[grid]]\ncommand = 'gate'\n[[grids]]\ncommand = 'mask'", "grids is not inside a"),
    ):
        file.write_text(text)
        with pytest.raises(MechheadsError, match=words):
            from_file(str(file))
    with pytest.raises(MechheadsError, match="cannot read"):
        from_file(str(tmp_path / "missing.toml"))
    with pytest.raises(MechheadsError, match="--config defines its own grid"):
        sweep(config=str(file), commands="gate", out=str(tmp_path))
