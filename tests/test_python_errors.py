"""What a user of Python gets wrong: one line that says what was expected, and no half-done work."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import circuits
import mechheads
import tasks
from mechheads import MechheadsError


@pytest.fixture(scope="module")
def mini() -> Any:
    return mechheads.load("mini")


@pytest.fixture(scope="module")
def prompts(mini):
    return tasks.make("ioi", mini, n=8)


MEASURES = {
    "evaluate": lambda m, p: mechheads.evaluate(m, p),
    "score_heads": lambda m, p: mechheads.score_heads(m, p),
    "ablate": lambda m, p: mechheads.ablate(m, p, "L3H4"),
    "patch_positions": lambda m, p: mechheads.patch_positions(m, p),
    "path_patch": lambda m, p: mechheads.path_patch(m, p),
    "edge_attribution": lambda m, p: mechheads.edge_attribution(m, p),
    "faithfulness": lambda m, p: circuits.faithfulness(m, p, "L3H4"),
    "discover": lambda m, p: circuits.discover(m, p),
}


@pytest.mark.parametrize("name", MEASURES)
def test_no_prompts_are_refused_everywhere(name, mini, prompts):
    with pytest.raises(MechheadsError, match="There are no prompts of ioi"):
        MEASURES[name](mini, prompts[:0])


def test_a_mask_of_another_model_is_refused(mini, prompts):
    for shape in ((1, 5, 8), (1, 3, 8), (1, 4, 7)):
        with pytest.raises(MechheadsError, match=r"expected \(masks, 4, 8\)"):
            mechheads.generate(mini, prompts[0], torch.ones(shape))


def test_generate_takes_prompts_and_one_text_to_stop_at(mini, prompts):
    one = mechheads.generate(mini, prompts[0], max_tokens=3, stop="zzz", quiet=True)
    assert mechheads.generate(mini, prompts[:2], max_tokens=3, stop="zzz", quiet=True)[0] == one
    with pytest.raises(MechheadsError, match="positions: 'END'"):
        mechheads.generate(mini, "Mary", positions="END")
    with pytest.raises(MechheadsError, match="max_tokens takes 1 or more, got 0"):
        mechheads.generate(mini, "Mary", max_tokens=0)


def test_attend_takes_a_pair(mini, prompts):
    pair = mechheads.attend(mini, prompts[0])
    assert torch.equal(pair.weights, mechheads.attend(mini, prompts[0].clean).weights)


def test_heads_may_be_a_discovery_or_a_table(mini, prompts):
    effects = mechheads.score_heads(mini, prompts, "attribution", quiet=True)
    found = circuits.discover(
        mini, prompts, effects=None, method="attribution", draws=2, quiet=True
    )
    tested = circuits.faithfulness(mini, prompts, found, quiet=True)
    assert tested.heads == found.circuit.heads
    some = mechheads.ablate(mini, prompts, effects.top(2), quiet=True)
    assert [f"L{layer}H{head}" for layer, head in some.heads] == list(effects.top(2).name)


def test_compare_takes_single_discoveries(mini, prompts):
    found = circuits.discover(mini, prompts, method="attribution", draws=2, quiet=True)
    assert circuits.compare(found, found).tasks[0].heads.standard == found.needed


def test_too_few_prompts_to_halve_are_counted(mini, prompts):
    with pytest.raises(MechheadsError, match="6 prompts are too few: half of them rank"):
        circuits.discover(mini, prompts[:6], quiet=True)


def test_paths_to_the_logits_need_the_last_token(mini, prompts):
    with pytest.raises(MechheadsError, match="act only at the last token"):
        mechheads.path_patch(mini, prompts, positions="S2", quiet=True)


def test_a_function_of_yours_need_not_take_quiet(mini, prompts):
    found = mechheads.score_heads(mini, prompts, lambda m, p, metric: torch.rand(4, 8), quiet=True)
    assert found.scores.shape == (4, 8)


def test_a_wrong_tokenizer_leaves_the_model_as_it_was():
    small = transformers.GPT2Config(n_embd=8, n_layer=1, n_head=2, vocab_size=20, n_positions=16)
    model = transformers.GPT2LMHeadModel(small).eval()
    with pytest.raises(MechheadsError, match="Expected a tokenizer of transformers, got str"):
        mechheads.wrap(model, "tok")
    ids = tasks.from_tokens([[1, 2]] * 4, [[3, 2]] * 4, [4] * 4, [5] * 4)
    assert mechheads.score_heads(model, ids, quiet=True).values.shape == (4, 1, 2)


def test_a_task_file_may_be_a_path(mini, tmp_path):
    file = tmp_path / "own.jsonl"
    file.write_text('{"clean": "1 +", "answer": " 2"}')
    assert len(tasks.make(Path(file), mini)) == 1


def test_results_and_prompts_are_shown_in_a_line(mini, prompts):
    effects = mechheads.score_heads(mini, prompts, "attribution", quiet=True)
    assert repr(effects) == f"<HeadEffects: {effects.sentence}>"
    assert repr(prompts) == "<Prompts: 8 of ioi, metric logit_diff>"


def test_head_types_need_rows_and_tokens(mini):
    for wrong in ({"rows": 0}, {"length": 0}):
        with pytest.raises(MechheadsError, match="takes"):
            mechheads.head_types(mini, **wrong)


# In a process of its own: the type checks of the test run would refuse a name sooner.
NAMES = """
import circuits, mechheads, tasks, torch

model = mechheads.load("mini", quiet=True)
prompts = tasks.make("ioi", model, n=8)
ranking = [(layer, head) for layer in range(4) for head in range(8)]
of_prompts = [
    mechheads.evaluate,
    mechheads.score_heads,
    lambda m, p: mechheads.ablate(m, p, "L3H4"),
    mechheads.patch_positions,
    mechheads.path_patch,
    mechheads.edge_attribution,
    mechheads.fit_gates,
    lambda m, p: mechheads.measure_subsets(m, p, torch.ones(1, 4, 8)),
    lambda m, p: circuits.faithfulness(m, p, "L3H4"),
    lambda m, p: circuits.explained_effect_curve(m, p, ranking),
    circuits.discover,
]
of_models = [
    mechheads.head_types,
    lambda m: mechheads.attend(m, "Mary and John"),
    lambda m: mechheads.generate(m, "Mary and"),
    lambda m: tasks.make("ioi", m),
    mechheads.wrap,
]
for measure in of_prompts:
    for wrong in (("mini", prompts), (model, "ioi"), (model, list(prompts))):
        try:
            measure(*wrong)
        except mechheads.MechheadsError as error:
            print(error)
for measure in of_models:
    try:
        measure("mini")
    except mechheads.MechheadsError as error:
        print(error)
"""


def test_names_instead_of_what_they_name_are_refused_by_every_function():
    done = subprocess.run(
        [sys.executable, "-c", NAMES], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    said = done.stdout.splitlines()
    assert len(said) == 11 * 3 + 5
    model = "Expected a loaded model, got the name 'mini'. Use mechheads.load('mini')."
    assert said.count(model) == 11 + 5
    assert said.count("Expected what tasks.make returns, not the name 'ioi'.") == 11
    assert said.count("Expected what tasks.make returns, not list.") == 11


def test_a_name_is_refused_under_type_checks_too(prompts):
    name: Any = "mini"
    with pytest.raises(MechheadsError, match=r"Use mechheads.load\('mini'\)"):
        mechheads.score_heads(name, prompts)


def test_effects_of_all_prompts_leave_none_to_judge_them(mini):
    prompts = tasks.make("ioi", mini, n=16)
    effects = mechheads.score_heads(mini, prompts, "attribution", quiet=True)
    with pytest.raises(MechheadsError, match="and others as test, which judge the ranking"):
        circuits.discover(mini, prompts, effects=effects, quiet=True)
    others = tasks.make("ioi", mini, n=8, seed=1)
    found = circuits.discover(mini, prompts, others, effects=effects, draws=2, quiet=True)
    assert found.effects is effects


def test_scores_and_masks_may_be_arrays_of_numpy(mini, prompts):
    scores = np.arange(32.0).reshape(4, 8)
    by_array = mechheads.score_heads(mini, prompts, lambda m, p, metric: scores)
    assert by_array.ranking()[0] == (3, 7)
    found = circuits.discover(
        mini, prompts, prompts, effects=scores, draws=2, threshold=0.5, quiet=True
    )
    assert found.curve.ranking[0] == (3, 7)
    curve = circuits.explained_effect_curve(mini, prompts, by_array, draws=2, quiet=True)
    assert curve.ranking == found.curve.ranking


def test_what_is_not_saved_cannot_be_loaded(mini, prompts, tmp_path):
    effects = mechheads.score_heads(mini, prompts, "attribution", quiet=True)
    with pytest.raises(MechheadsError, match=r"There is no Discovery in .*nowhere"):
        circuits.Discovery.load(tmp_path / "nowhere")
    effects.save(tmp_path / "new" / "folders")
    with pytest.raises(MechheadsError, match="it holds HeadEffects"):
        circuits.Discovery.load(str(tmp_path / "new" / "folders"))


def test_a_path_names_its_receivers(mini, prompts):
    found = mechheads.path_patch(mini, prompts, to="L3H4,L3H6", part="q", quiet=True)
    assert "ioi on mini, path to L3H4.q,L3H6.q: the strongest head is L2H" in found.sentence
