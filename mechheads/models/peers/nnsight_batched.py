"""nnsight on the transformers model: all heads of a layer along the batch dimension of one pass.

Runs with the Python of any environment that has nnsight: `python nnsight_batched.py FOLDER NAME`.
"""

from typing import Any

import handed

handed.quietly()

import nnsight  # noqa: E402  # pyright: ignore[reportMissingImports]
import torch  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402


def load(folder: Any, work: dict) -> tuple[Any]:
    """The model as nnsight wraps it."""
    hf = AutoModelForCausalLM.from_pretrained(folder).eval().requires_grad_(False)
    wrapped = getattr(nnsight, "TransformersModel", None) or nnsight.LanguageModel
    hf(torch.tensor(work["ranking"]["clean"]))  # the first pass is slower
    return (wrapped(hf, tokenizer=AutoTokenizer.from_pretrained(folder)),)


def tokens_of(prompts: dict) -> list[torch.Tensor]:
    """Clean, corrupt, answer and wrong answer, a row per prompt."""
    return [torch.tensor(prompts[key]) for key in ("clean", "corrupt", "answers", "wrong")]


def logit_diffs(logits: torch.Tensor, answers: torch.Tensor, wrong: torch.Tensor) -> torch.Tensor:
    """Of every row, at the last position."""
    last, rows = logits[:, -1], torch.arange(len(answers))
    return last[rows, answers] - last[rows, wrong]


def patch(model: Any, work: dict) -> handed.Answer:
    """The effect of every head by activation patching, a layer at a time."""
    clean, corrupt, answers, wrong = tokens_of(work["ranking"])
    layers, heads, rows = len(model.transformer.h), model.config.n_head, len(clean)
    width = model.config.n_embd // heads
    some = handed.spread(range(layers), -(-work["loops"] // heads))

    @torch.no_grad()
    def both() -> tuple[Any, Any]:
        with model.trace(corrupt):
            other = nnsight.save([block.attn.c_proj.input for block in model.transformer.h])
        with model.trace(clean, logits_to_keep=1):
            logits = nnsight.save(model.output.logits)
        return other, logit_diffs(logits, answers, wrong).mean()

    @torch.no_grad()
    def loop() -> dict[str, float]:
        effects = {}
        for layer in some:
            with model.trace(clean.repeat(heads, 1), logits_to_keep=1):
                z = model.transformer.h[layer].attn.c_proj.input
                for head in range(heads):
                    here = slice(head * width, (head + 1) * width)
                    z[head * rows : (head + 1) * rows, :, here] = other[layer][:, :, here]
                after = nnsight.save(model.output.logits)
            found = logit_diffs(after, answers.repeat(heads), wrong.repeat(heads))
            for head, value in enumerate(found.unflatten(0, (heads, rows)).mean(1)):
                effects[f"L{layer}H{head}"] = float(before - value)
        return effects

    (other, before), once = handed.timed(both)
    effects, each = handed.timed(loop)
    how = f"{len(some) * heads} of {layers * heads} heads"
    return once + each * layers / len(some), how, {"effect": effects}


def attribution(model: Any, work: dict) -> handed.Answer:
    """The effect of every head, estimated from the gradient of the clean run."""
    clean, corrupt, answers, wrong = tokens_of(work["ranking"])
    heads = model.config.n_head

    def estimate() -> dict[str, float]:
        with torch.no_grad(), model.trace(corrupt):
            other = nnsight.save([block.attn.c_proj.input for block in model.transformer.h])
        with torch.enable_grad(), model.trace(clean, logits_to_keep=1):
            z = nnsight.save([])
            for block in model.transformer.h:
                z.append(block.attn.c_proj.input.requires_grad_())
            logits = nnsight.save(model.output.logits)
        slopes = torch.autograd.grad(logit_diffs(logits, answers, wrong).mean(), z)
        effects = {}
        for layer, slope in enumerate(slopes):
            change = (z[layer].detach() - other[layer]) * slope
            sums = change.unflatten(-1, (heads, -1)).sum((0, 1, 3))
            effects |= {f"L{layer}H{h}": float(x) for h, x in enumerate(sums)}
        return effects

    effects, seconds = handed.timed(estimate)
    return seconds, "whole", {"effect": effects}


if __name__ == "__main__":
    handed.main("nnsight", {"patch": patch, "attribution": attribution}, load)
