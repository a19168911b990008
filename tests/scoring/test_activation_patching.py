"""Exact patching against TransformerLens's own loops, and against runs written out by hand."""

from dataclasses import replace

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
from mechheads.prompts.batches import batches
from mechheads.scoring.activation_patching import patch

PARTS = {
    "corrupt": lens.get_act_patch_attn_head_out_all_pos,
    "q": lens.get_act_patch_attn_head_q_all_pos,
    "k": lens.get_act_patch_attn_head_k_all_pos,
    "v": lens.get_act_patch_attn_head_v_all_pos,
    "pattern": lens.get_act_patch_attn_head_pattern_all_pos,
}


@torch.inference_mode()
def lens_effects(model, prompts, loop, direction="noising"):
    """Effects by a loop of TransformerLens, prompt by prompt."""
    rows = []
    for batch in batches(encoder_of(model), prompts):
        clean, corrupt = batch.clean, batch.corrupt
        base, other = (clean, corrupt) if direction == "noising" else (corrupt, clean)
        _, cache = model.run_with_cache(other)
        found = {}
        for i, pair in enumerate(batch.pairs.tolist()):

            def metric(logits, i=i, batch=batch):
                return METRICS["logit_diff"](score(logits[:, -batch.steps :], batch))[i]

            before = metric(model(base))
            after = loop(model, base, cache, metric)
            found[pair] = before - after if direction == "noising" else after - before
        rows += found.items()
    return torch.stack([value for _, value in sorted(rows, key=lambda row: row[0])])


def close(ours, theirs):
    """To 1e-5 of the largest effect, and the rounding of logits of about 1 in float32."""
    atol = 1e-5 * float(theirs.abs().max()) + 2e-6
    torch.testing.assert_close(ours, theirs, rtol=0, atol=atol)


@pytest.mark.parametrize("kind", ["gpt2", "llama-gqa", "neox", "gemma2", "olmo2"])
@pytest.mark.parametrize("first", [1, 4, -1])
def test_effects_equal_those_of_the_loop_wherever_the_prompts_differ(kind, first, checkpoint):
    model = load(str(checkpoint(kind)))
    prompts = random_pairs(model, first, (7, 10, 7, 8))
    ours = patch(model, prompts)
    assert ours.values.abs().max() > 1e-4
    close(ours.values, lens_effects(model, prompts, PARTS["corrupt"]))


@pytest.mark.shared
def test_effects_on_real_weights_equal_those_of_the_loop(tinystories):
    prompts = tasks.make("ioi", tinystories, n=3)
    ours = patch(tinystories, prompts)
    close(ours.values, lens_effects(tinystories, prompts, PARTS["corrupt"]))


def test_denoising_is_the_loop_from_the_corrupted_run(tiny):
    prompts = random_pairs(tiny, 3)
    ours = patch(tiny, prompts, direction="denoising")
    close(ours.values, lens_effects(tiny, prompts, PARTS["corrupt"], "denoising"))


@pytest.mark.parametrize("part", ["q", "k", "v", "pattern"])
@pytest.mark.parametrize("kind", ["gpt2", "llama-gqa", "qwen3"])
def test_parts_of_heads_equal_those_of_the_loop(part, kind, checkpoint):
    model = load(str(checkpoint(kind)))
    prompts = random_pairs(model, 2)
    ours = patch(model, prompts, replacement=part)
    shared = model.cfg.n_key_value_heads is not None and part in ("k", "v")
    assert ours.unit == ("kv_head" if shared else "head")
    close(ours.values, lens_effects(model, prompts, PARTS[part]))


def test_answers_of_several_tokens_are_scored_as_the_loop_scores_them(tiny):
    prompts = random_pairs(tiny, 3, tokens=2)
    close(patch(tiny, prompts).values, lens_effects(tiny, prompts, PARTS["corrupt"]))


@pytest.mark.parametrize("metric", METRICS.builtin)
def test_every_metric_can_be_patched(metric, tiny):
    prompts = random_pairs(tiny, 3)
    (batch,) = batches(encoder_of(tiny), prompts)
    _, cache = tiny.run_with_cache(batch.corrupt)
    batch = replace(batch, reference=tiny(batch.clean)[:, -1].detach())

    def value(logits):
        return METRICS[metric](score(logits[:, -1:], batch, whole=True)).mean()

    with torch.inference_mode():
        theirs = value(tiny(batch.clean)) - PARTS["corrupt"](tiny, batch.clean, cache, value)
    torch.testing.assert_close(patch(tiny, prompts, metric).scores, theirs, atol=1e-5, rtol=0)


@pytest.mark.parametrize("replacement", ["zero", "mean", "position_mean"])
@torch.inference_mode()
def test_ablations_equal_runs_with_a_hook(replacement, tiny):
    prompts = random_pairs(tiny, 3, (8, 8, 10, 10))
    ours = patch(tiny, prompts, replacement=replacement)
    caches = {
        b.length: (b, tiny.run_with_cache(b.corrupt)[1]) for b in batches(encoder_of(tiny), prompts)
    }
    layer, head = 1, 2
    name = f"blocks.{layer}.attn.hook_z"
    every = torch.cat([cache[name][:, :, head].flatten(0, 1) for _, cache in caches.values()])
    for batch, cache in caches.values():

        def ablate(z, hook, cache=cache):
            z = z.clone()
            z[:, :, head] = {
                "zero": torch.zeros(()),
                "mean": every.mean(0),
                "position_mean": cache[name][:, :, head].mean(0),
            }[replacement]
            return z

        values = [
            METRICS["logit_diff"](score(logits[:, -1:], batch))
            for logits in (
                tiny(batch.clean),
                tiny.run_with_hooks(batch.clean, fwd_hooks=[(name, ablate)]),
            )
        ]
        close(ours.values[batch.pairs, layer, head], values[0] - values[1])


@pytest.mark.parametrize("replacement", ["mean", "position_mean"])
@torch.inference_mode()
def test_means_are_over_the_corrupted_prompts_alone(replacement, tiny):
    """Answers of one and of three tokens, which are neither averaged nor change the averages."""
    prompts = random_pairs(tiny, 3, (8, 8, 10, 10), tokens=3) + random_pairs(tiny, 2, (8, 10))
    ours = patch(tiny, prompts, replacement=replacement)
    ids = [[encoder_of(tiny).ids(t) for t in (pair.clean, pair.corrupt)] for pair in prompts]
    for layer, head in ((0, 1), (1, 2)):
        name = f"blocks.{layer}.attn.hook_z"
        alone = [tiny.run_with_cache(torch.tensor([b]))[1][name][0, :, head] for _, b in ids]
        for i, pair in enumerate(prompts):
            clean = ids[i][0]
            if replacement == "mean":
                mean = torch.cat(alone).mean(0).expand(len(clean), -1)
            else:
                mean = torch.stack([z for z in alone if len(z) == len(clean)]).mean(0)

            def ablate(z, hook, mean=mean, head=head):
                more = mean[-1:].expand(z.shape[1] - len(mean), -1)
                z[:, :, head] = torch.cat([mean, more])
                return z

            lost = 0.0
            for answer, sign in ((pair.answers[0], 1), (pair.wrong[0], -1)):
                own = encoder_of(tiny).ids(pair.clean + answer)[len(clean) :]
                rows = torch.tensor([clean + own])
                before, after = tiny(rows), tiny.run_with_hooks(rows, fwd_hooks=[(name, ablate)])
                for logits, way in ((before, 1), (after, -1)):
                    said = logits.log_softmax(-1)[0, len(clean) - 1 : -1]
                    lost += sign * way * float(said[range(len(own)), own].sum())
            assert float(ours.values[i, layer, head]) == pytest.approx(lost, abs=2e-5)


def test_chosen_heads_have_the_same_effects_and_the_others_none(tiny):
    prompts = random_pairs(tiny, 3)
    some = patch(tiny, prompts, heads=[(0, 3), (1, 1)])
    whole = patch(tiny, prompts)
    for cell in ((0, 3), (1, 1)):
        close(some.values[:, cell[0], cell[1]], whole.values[:, cell[0], cell[1]])
    assert int((some.values.abs().sum(0) > 0).sum()) == 2


def test_no_pass_is_larger_than_the_budget(tiny, monkeypatch):
    sizes = []
    rerun = DirectEngine.rerun

    def watched(self, run, intervention):
        rows, n = run.shape
        sizes.append(intervention.variants * rows * (n - run.first))
        return rerun(self, run, intervention)

    monkeypatch.setattr(DirectEngine, "rerun", watched)
    many = random_pairs(tiny, 3, (9,) * 40)
    small = patch(tiny, many, budget=64)
    assert max(sizes) <= 64
    close(small.values, patch(tiny, many).values)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"direction": "noisy"}, "noising"),
        ({"replacement": "means"}, "mean"),
        ({"direction": "denoising", "replacement": "zero"}, "Use noising"),
        ({"metric": "logit_dif"}, "logit_diff"),
        ({"heads": [(0, 99)]}, "There is no L0H99: layers are 0 to 1, heads 0 to 3"),
    ],
)
def test_what_is_unknown_is_named(options, message, tiny):
    with pytest.raises(MechheadsError, match=message):
        patch(tiny, random_pairs(tiny, 3), **options)
