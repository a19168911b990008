"""What the three doors give, and that the example of every public function runs."""

import doctest
import inspect
import types

import pytest

import circuits
import mechheads
import tasks

DOORS = {
    mechheads: "load evaluate score_heads patch_positions path_patch edge_attribution head_types "
    "head_activity "
    "ablate attend generate measure_subsets fit_gates METHODS METRICS __version__ MechheadsError "
    "register_method register_metric wrap",
    circuits: "discover compare explained_effect_curve faithfulness Circuit Curve Discovery "
    "Comparison Faithfulness published discover_edges compare_edges edge_curve EdgeCurve "
    "EdgeDiscovery EdgeComparison inclusion Inclusion alternative_circuits Alternatives "
    "several_circuits PromptClusters rank_methods Leaderboard Round",
    tasks: "make from_records from_tokens register TASKS Task Pair Prompts Span words_as_tokens",
}
FUNCTIONS = [
    (door, name)
    for door in DOORS
    for name in door.__all__
    if isinstance(getattr(door, name), types.FunctionType)
]


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.__name__)
def test_a_door_gives_what_was_promised_and_its_example_runs(door):
    assert set(door.__all__) == set(DOORS[door].split())
    for name in door.__all__:
        assert hasattr(door, name)
    assert examples(door, door.__name__) > 0


@pytest.mark.parametrize(("door", "name"), FUNCTIONS, ids=[name for _, name in FUNCTIONS])
def test_help_says_what_goes_in_and_what_comes_out_and_its_example_runs(door, name):
    function = inspect.unwrap(getattr(door, name))
    text = inspect.getdoc(function) or ""
    for parameter in inspect.signature(function).parameters:
        assert f"\n    {parameter}: " in text
    assert "\nReturns:\n" in text
    assert examples(function, name) > 0


def examples(thing, name):
    """Runs the examples of a docstring; how many there were."""
    runner = doctest.DocTestRunner(verbose=False)
    found = doctest.DocTestParser().get_doctest(inspect.getdoc(thing) or "", {}, name, None, 0)
    said = []
    runner.run(found, out=said.append)
    assert not runner.failures, "".join(said)
    return len(found.examples)
