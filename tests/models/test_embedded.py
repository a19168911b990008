"""The models that ship with the package: what their cards say of them holds."""

import json

import pytest

import tasks
from mechheads.models import locate
from mechheads.models.load import load
from mechheads.models.model import is_gated
from mechheads.observe.edges import count_edges
from mechheads.observe.evaluation import evaluate

PAIR = ("mini", "mini-sparse")
# Accuracy against all tokens: what the cards say, less what 64 prompts may miss by luck.
BARS = {
    "mini": {
        "ioi": 0.98,
        "ioi_long": 0.98,
        "docstring": 0.98,
        "math": 0.90,
        "syntax": 0.97,
        "common_sense": 0.98,
        "retrieval": 0.98,
        "knowledge_recall": 0.98,
        "math_calculation": 0.92,
        "inference": 0.95,
    },
    "mini-sparse": {
        "ioi": 0.95,
        "ioi_long": 0.95,
        "docstring": 0.96,
        "math": 0.78,
        "syntax": 0.96,
        "common_sense": 0.96,
        "retrieval": 0.98,
        "knowledge_recall": 0.98,
        "math_calculation": 0.85,
        "inference": 0.95,
    },
}


@pytest.fixture(scope="module", params=PAIR)
def model(request):
    """Each model of the pair."""
    return load(request.param)


def test_both_are_embedded():
    assert set(PAIR) <= set(locate.embedded())


@pytest.mark.parametrize("name", PAIR)
def test_each_is_a_directory_below_ten_megabytes_with_a_card(name):
    folder = locate.EMBEDDED / name
    files = {file.name for file in folder.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "README.md"} <= files
    assert sum(file.stat().st_size for file in folder.iterdir()) < 10_000_000
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["GPT2LMHeadModel"]
    assert (locate.SPARSE_MARK in config) == (name == "mini-sparse")


@pytest.mark.parametrize("task", BARS["mini"])
def test_held_out_accuracy_is_what_the_card_says(task, model):
    prompts = tasks.make(task, model, n=64, seed=7, or_all=True)
    found = evaluate(model, prompts, quiet=True)
    assert found.clean["top1"].mean() >= BARS[model.cfg.model_name][task]


def test_greater_than_is_known_by_its_probability(model):
    prompts = tasks.make("greater_than", model, n=64, seed=7)
    found = evaluate(model, prompts, quiet=True)
    assert found.clean["prob_diff"].mean() >= 0.75
    assert found.warning is None


def test_only_the_sparse_one_leaves_edges_out(model):
    prompts = tasks.make("ioi", model, n=16)
    edges = count_edges(model, prompts, quiet=True)
    assert edges.density < 0.02 if is_gated(model) else edges.density == 1.0
