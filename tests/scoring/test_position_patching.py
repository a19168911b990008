"""Patching by position and by span, against TransformerLens's loops and hooks of our own."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from pairs import random_pairs
from transformer_lens import patching as lens

import tasks
from mechheads.engine.direct import DirectEngine
from mechheads.errors import MechheadsError
from mechheads.metrics.token import METRICS, score
from mechheads.models.load import load
from mechheads.models.model import encoder_of
from mechheads.prompts import Pair, Prompts, Span
from mechheads.prompts.batches import batches
from mechheads.runs.schema import check_result
from mechheads.scoring.activation_patching import patch, patch_positions
from mechheads.scoring.effects import PositionEffects

LOOPS = {
    "corrupt": lens.get_act_patch_attn_head_out_by_pos,
    "q": lens.get_act_patch_attn_head_q_by_pos,
    "k": lens.get_act_patch_attn_head_k_by_pos,
    "v": lens.get_act_patch_attn_head_v_by_pos,
    "pattern": lens.get_act_patch_attn_head_pattern_by_pos,
}


def close(ours, theirs):
    """To 1e-5 of the largest effect, and what float32 rounds off log probabilities of about 10."""
    atol = 1e-5 * float(theirs.abs().max()) + 5e-6
    torch.testing.assert_close(ours, theirs, rtol=0, atol=atol)


@torch.inference_mode()
def lens_scores(model, prompts, part, direction):
    """The mean effects [layer, head, pos] of a loop of TransformerLens, at the prompt alone."""
    (batch,) = batches(encoder_of(model), prompts)
    base, other = batch.clean, batch.corrupt
    if direction == "denoising":
        base, other = other, base
    _, cache = model.run_with_cache(other)

    def value(logits):
        return METRICS["logit_diff"](score(logits[:, -batch.steps :], batch)).mean()

    after = LOOPS[part](model, base, cache, value)
    lost = value(model(base)) - after
    lost = lost if part == "pattern" else lost.movedim(1, 2)
    return (lost if direction == "noising" else -lost)[:, :, : batch.length - batch.steps + 1]


# One norm over the queries, or keys, of all heads (olmo2) ties them together: no part of a head.
@pytest.mark.parametrize(
    ("kind", "part"),
    [
        *((kind, part) for kind in ("gpt2", "llama-gqa", "neox", "qwen3") for part in LOOPS),
        *(("olmo2", part) for part in ("corrupt", "v", "pattern")),
    ],
)
def test_effects_by_position_equal_those_of_the_loop(kind, part, checkpoint):
    model = load(str(checkpoint(kind)))
    prompts = random_pairs(model, 3)
    ours = patch_positions(model, prompts, replacement=part)
    theirs = lens_scores(model, prompts, part, "noising")
    assert theirs[..., 3:].abs().max() > 1e-4
    close(ours.scores, theirs)
    shared = model.cfg.n_key_value_heads is not None and part in ("k", "v")
    assert ours.unit == ("kv_head" if shared else "head")
    assert ours.headline["strongest"].startswith(("L0KV", "L1KV") if shared else ("L0H", "L1H"))


@pytest.mark.parametrize("part", LOOPS)
@pytest.mark.parametrize("direction", ["noising", "denoising"])
def test_with_answers_of_several_tokens_only_the_prompt_is_patched(part, direction, tiny):
    prompts = random_pairs(tiny, 3, tokens=2)
    ours = patch_positions(tiny, prompts, replacement=part, direction=direction)
    assert ours.values.shape[3] == 9
    close(ours.scores, lens_scores(tiny, prompts, part, direction))


@torch.inference_mode()
def test_sentences_as_answers_are_patched_as_hooks_do_it():
    model = load("mini")
    prompts = tasks.make("syntax", model, n=4, kind="negation")
    found = patch_positions(model, prompts, spans=["SUBJECT", "END"])
    encoder = encoder_of(model)
    for i, pair in enumerate(prompts):
        clean, corrupt = encoder.ids(pair.clean), encoder.ids(pair.corrupt)
        (subject,) = (p for p, (a, b) in enumerate(zip(clean, corrupt, strict=True)) if a != b)
        for s, position in enumerate((subject, len(clean) - 1)):
            for layer, heads in ((1, [3]), (2, [5]), (3, [4]), (2, list(range(8)))):
                lost = 0.0
                for answer, sign in ((pair.answers[0], 1), (pair.wrong[0], -1)):
                    ids = encoder.ids(pair.clean + answer)[len(clean) :]
                    assert len(ids) > 3
                    name = f"blocks.{layer}.attn.hook_z"
                    theirs = model.run_with_cache(torch.tensor([corrupt]))[1][name]

                    def hook(z, hook, theirs=theirs, heads=heads, position=position):
                        z[:, position, heads] = theirs[:, position, heads]
                        return z

                    rows = torch.tensor([clean + ids])
                    changes: Any = (([], 1), ([(name, hook)], -1))
                    for hooks, way in changes:
                        logits = model.run_with_hooks(rows, fwd_hooks=hooks)
                        said = logits.log_softmax(-1)[0, len(clean) - 1 : -1]
                        lost += sign * way * float(said[range(len(ids)), ids].sum())
                one = found.values[i, layer, heads[0], s]
                ours = one if len(heads) == 1 else found.by_layer[i, layer, s]
                assert float(ours) == pytest.approx(lost, abs=2e-4)


def positions_of(model, pair):
    """Where IOI's names are, from the tokens alone."""
    ids = encoder_of(model).ids(pair.clean)
    tokens = [model.tokenizer.decode([i]).strip() for i in ids]
    s1, s2 = (i for i, token in enumerate(tokens) if token == pair.wrong[0].strip())
    io = tokens.index(pair.answers[0].strip())
    return {"IO": [io], "S1": [s1], "S1+1": [s1 + 1], "S2": [s2], "END": [len(ids) - 1]}


@torch.inference_mode()
def by_hand(model, pair, positions, layer, heads, part="z", direction="noising", zero=False):
    """The effect on one prompt of heads patched at positions, with nothing but hooks."""
    base, other = (torch.tensor([encoder_of(model).ids(t)]) for t in (pair.clean, pair.corrupt))
    if direction == "denoising":
        base, other = other, base
    name = f"blocks.{layer}.attn.hook_{part}"
    theirs = model.run_with_cache(other)[1][name]

    def hook(value, hook):
        for position in positions:
            value[:, position, heads] = 0 if zero else theirs[:, position, heads]
        return value

    right, wrong = (
        model.tokenizer.encode(text[0], add_special_tokens=False)
        for text in (pair.answers, pair.wrong)
    )

    def value(logits):
        return float(logits[0, -1, right[0]] - logits[0, -1, wrong[0]])

    changed = value(model.run_with_hooks(base, fwd_hooks=[(name, hook)]))
    lost = value(model(base)) - changed
    return lost if direction == "noising" else -lost


@pytest.fixture(scope="module")
def mixed(tiny):
    """IOI prompts of several templates and lengths."""
    made = tasks.make("ioi", tiny, n=10, split="all")
    assert len({len(encoder_of(tiny).ids(pair.clean)) for pair in made}) > 3
    return made


@pytest.mark.parametrize(
    ("direction", "replacement"),
    [
        *(("noising", replacement) for replacement in ("corrupt", "zero", "q", "k", "v")),
        *(("denoising", replacement) for replacement in ("corrupt", "v")),
    ],
)
def test_effects_by_span_equal_those_of_hooks_prompt_by_prompt(direction, replacement, mixed, tiny):
    found = patch_positions(tiny, mixed, direction=direction, replacement=replacement)
    assert (found.by, found.positions) == ("span", ("IO", "S1", "S1+1", "S2", "END"))
    part = replacement if replacement in ("k", "v", "q") else "z"
    settings = {"part": part, "direction": direction, "zero": replacement == "zero"}
    heads, layers = torch.zeros(10, 2, 4, 5), torch.zeros(10, 2, 5)
    for i, pair in enumerate(mixed):
        for s, positions in enumerate(positions_of(tiny, pair).values()):
            for layer in range(2):
                where = tiny, pair, positions, layer
                layers[i, layer, s] = by_hand(*where, [0, 1, 2, 3], **settings)
                for head in range(4):
                    heads[i, layer, head, s] = by_hand(*where, [head], **settings)
    assert float(heads.abs().max()) > 1e-2
    close(found.values, heads)
    close(found.by_layer, layers)


def test_a_span_of_several_tokens_is_patched_at_all_of_them_together(tiny):
    text = "The Mary and John to Anna and Tom"
    spans = (Span("BOTH", 4, 8), Span("BOTH", 21, 25), Span("TWO", 13, 20))
    pair = Pair(text, "The Anna and Tom to Mary and John", (" Mary",), (" John",), spans=spans)
    found = patch_positions(tiny, Prompts("own", "logit_diff", (pair,)), by="span")
    assert found.positions == ("BOTH", "TWO", "END")
    for s, positions in enumerate(([2, 6], [4, 5], [8])):
        for layer in range(2):
            ours = found.values[0, layer, 1, s]
            close(ours, torch.tensor(by_hand(tiny, pair, positions, layer, [1])))


def test_a_span_of_one_token_is_its_position(tiny):
    rows = torch.randint(3, 40, (6, 8), generator=torch.Generator().manual_seed(0))
    other = rows.clone()
    other[:, 2] = (rows[:, 2] + 1) % 40
    spans = {"A": 2, "B": 5}
    made = tasks.from_tokens(rows, other, [1] * 6, [2] * 6, spans=spans)
    single = patch_positions(tiny, made)
    assert (single.by, single.positions) == ("position", tuple("01234567"))
    named = patch_positions(tiny, made, spans=["B", "END", "A"])
    assert (named.by, named.positions) == ("span", ("B", "END", "A"))
    assert torch.equal(named.values, single.values[..., [5, 7, 2]])
    assert torch.equal(named.by_layer, single.by_layer[..., [5, 7, 2]])


def test_what_cannot_matter_is_exactly_zero(tiny):
    found = patch_positions(tiny, random_pairs(tiny, 4, (9,) * 5))
    assert not found.values[..., :4].any()  # before the prompts differ
    assert not found.values[:, -1, :, :8].any()  # the last layer is read at the end alone
    assert found.values[:, -1, :, 8].all()
    assert found.values[:, 0, :, 4:].all()
    assert not found.by_layer[:, -1, :8].any()


def test_all_positions_together_are_the_effect_without_positions(tiny):
    prompts = random_pairs(tiny, 3)
    whole = tuple(replace(pair, spans=(Span("ALL", 0, len(pair.clean)),)) for pair in prompts.pairs)
    for part in ("corrupt", "k", "v"):
        ours = patch_positions(tiny, replace(prompts, pairs=whole), replacement=part, spans="ALL")
        close(ours.values[..., 0], patch(tiny, prompts, replacement=part).values)


def test_answers_of_other_lengths_do_not_change_the_length_of_prompts(tiny):
    one, two = random_pairs(tiny, 3, (9, 9)), random_pairs(tiny, 3, (9, 9), tokens=3)
    both = patch_positions(tiny, one + two)
    assert both.positions == tuple("012345678")
    close(both.values[:2], patch_positions(tiny, one).values)


def test_no_pass_is_larger_than_the_budget(mixed, tiny, monkeypatch):
    sizes = []
    rerun = DirectEngine.rerun

    def watched(self, run, intervention):
        rows, n = run.shape
        sizes.append(intervention.variants * rows * (n - run.first))
        return rerun(self, run, intervention)

    monkeypatch.setattr(DirectEngine, "rerun", watched)
    small = patch_positions(tiny, mixed, budget=40)
    assert max(sizes) <= 40
    close(small.values, patch_positions(tiny, mixed).values)


def unmarked(tiny):
    return random_pairs(tiny, 3, (7, 9))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"7 to 9 tokens.*single template, or mark spans .* by=\"span\""),
        ({"by": "position"}, "7 to 9 tokens"),
        ({"by": "spans"}, r"Unknown by 'spans'. Did you mean 'span'"),
        ({"by": "position", "spans": ["END"]}, 'spans are patched by="span"'),
        ({"spans": ["IO"]}, r"Unknown span 'IO'. Choose from: END."),
        ({"replacement": "keys"}, "Unknown replacement"),
    ],
)
def test_what_cannot_be_patched_is_refused(options, message, tiny):
    with pytest.raises(MechheadsError, match=message):
        patch_positions(tiny, unmarked(tiny), **options)


def test_the_end_needs_no_mark(tiny):
    assert patch_positions(tiny, unmarked(tiny), by="span").positions == ("END",)


@pytest.fixture(scope="module")
def found(mixed, tiny):
    return patch_positions(tiny, mixed)


def test_frame_table_and_headline_name_spans(found):
    frame, table = found.frame(), found.table()
    assert list(frame["position"][:5]) == list(found.positions) == list(table.columns)
    assert len(frame) == found.scores.numel()
    strengths = table.abs().max(axis=1)
    assert list(strengths) == sorted(strengths, reverse=True)
    assert table.loc["L1H2", "END"] == pytest.approx(float(found.scores[1, 2, 4]))
    assert table.index[0] == found.headline["strongest"]
    assert table.loc[table.index[0]].abs().idxmax() == found.headline["position"]
    assert found.sentence.endswith(f"at {found.headline['position']}.")


def test_positions_are_numbers_in_frame_table_and_headline(tiny):
    found = patch_positions(tiny, random_pairs(tiny, 3))
    assert found.frame()["position"].dtype.kind == "i"
    assert list(found.table().columns) == list(range(9))
    assert isinstance(found.headline["position"], int)
    assert f"at position {found.headline['position']}." in found.sentence


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"positions": ("IO", "S1", "S2", "END")}, "4 names for 5 positions"),
        ({"positions": ("IO", "IO", "S1", "S2", "END")}, "5 names for 5"),
        ({"by": "position"}, "not numbered from 0 on"),
        ({"by": "token"}, "by token"),
        ({"unit": "neuron"}, "effects of neuron"),
        ({"by_layer": torch.zeros(10, 2)}, "by_layer has shape"),
    ],
)
def test_stored_effects_that_cannot_be_ours_are_refused(change, message, found, tmp_path):
    check_result(found)
    assert torch.equal(PositionEffects.load(found.save(tmp_path)).by_layer, found.by_layer)
    broken = object.__new__(PositionEffects)
    for name, value in {**vars(found), **change}.items():
        object.__setattr__(broken, name, value)
    with pytest.raises(ValueError, match=message):
        check_result(broken)
