"""Greedy decoding with some heads masked, many masks and prompts in one pass.

1. Prompts of the same length run together, so no padding is needed.
2. Keys and values are cached, and each step runs only the newest token. A model that the direct
   engine does not support reruns its whole text at every step, with the same result.
3. Masks act at `all` positions, or only at the `last` one of every pass: then the full model reads
   the prompt, which all masks share, and only what it generates is masked.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechheads.errors import MechheadsError
from mechheads.models.hooks import check_logits, embed, unembed
from mechheads.models.model import Model, encoder_of, model_name, shape_of
from mechheads.progress import bar

from .cached_run import Engine
from .direct import DirectEngine, KeyValueCache
from .hooked import HookedEngine
from .interventions import Replace
from .select import budget_for, engine_for

Positions = Literal["last", "all"]
# Prompts that are read together.
ROWS = 16


@torch.inference_mode()
def generate(
    model: Model,
    prompts: Sequence[str],
    keep: Float[Tensor, "variant layer head"] | None = None,
    *,
    positions: str = "last",
    max_tokens: int = 32,
    stop: Sequence[str] = ("\n",),
    budget: int | None = None,
    engine: Engine | None = None,
    quiet: bool = False,
) -> list[list[str]]:
    """Continue prompts by greedy decoding with some heads masked.

    Args:
        model: what `mechheads.load` returns
        prompts: texts to continue
        keep: a mask per variant that multiplies every head's output z; default: one that keeps all
            heads
        positions: "last" masks heads only at the last position of every pass, so that the full
            model reads the prompt; "all" masks them everywhere
        max_tokens: the longest continuation in tokens
        stop: texts that end a continuation and are not part of it
        budget: tokens per pass, which bounds memory; default: what suits the device
        engine: an engine to run on; default: the fastest that supports the model
        quiet: show no progress bar

    Returns:
        For every mask, a list with the continuation of every prompt. Costs a pass per token, with
        keys and values cached.

    >>> import mechheads, tasks
    >>> model = mechheads.load("mini")
    >>> pair = tasks.make("math_calculation", model, n=1).pairs[0]
    >>> mechheads.generate(model, [pair.clean], quiet=True), pair.answers
    ([[' 18']], (' 18',))
    """
    if keep is None:
        keep = torch.ones(1, *shape_of(model).grid)
    engine = engine or engine_for(model)
    groups: dict[int, list[int]] = defaultdict(list)
    ids = [encoder_of(model).ids(text) for text in prompts]
    for i, tokens in enumerate(ids):
        groups[len(tokens)].append(i)
        if not tokens:
            raise MechheadsError(
                f"The prompt {prompts[i]!r} has no tokens for {model_name(model)}. Write some text."
            )
        if len(tokens) + max_tokens > shape_of(model).context:
            raise MechheadsError(
                f"A prompt of {len(tokens)} tokens and an answer of up to {max_tokens} are more "
                f"than {model_name(model)} takes ({shape_of(model).context}). Use shorter prompts, "
                "request fewer tokens, or load the model with a larger n_ctx if it allows one."
            )
    said = [[""] * len(prompts) for _ in keep]
    budget = budget_for(model, budget, 4)
    with bar(len(keep) * len(prompts), "Answers", quiet) as progress:
        for length, members in sorted(groups.items()):
            for begin in range(0, len(members), ROWS):
                some = members[begin : begin + ROWS]
                tokens = torch.tensor([ids[i] for i in some])
                size = max(1, budget // (len(some) * (length + max_tokens)))
                reader = _reader(model, engine, tokens, positions, max_tokens)
                for first in range(0, len(keep), size):
                    part = keep[first : first + size]
                    texts = _continue(model, reader(part), tokens, len(part), max_tokens, stop)
                    for variant, row in enumerate(texts):
                        for i, text in zip(some, row, strict=True):
                            said[first + variant][i] = text
                    progress.update(len(part) * len(some))
    return said


# From all tokens so far: the final residual stream of every row of every variant.
Step = Callable[[Int[Tensor, "variant row pos"]], Float[Tensor, "variant row d_model"]]


def _reader(
    model: Model, engine: Engine, tokens: Int[Tensor, "row pos"], positions: str, max_tokens: int
) -> Callable[[Float[Tensor, "variant layer head"]], Step]:
    """A function that takes masks, reads all but the last token of the prompts, and returns a step.

    The step continues from there.
    """
    rows, n = tokens.shape
    since = n - 1 if positions == "last" else 0
    if not isinstance(engine, DirectEngine):
        plain = engine if isinstance(engine, HookedEngine) else HookedEngine(model)
        return lambda keep: lambda now: _whole(plain, now, Replace(keep, since=since))
    everything = Replace(torch.ones(1, *shape_of(model).grid))
    shared: KeyValueCache | None = None

    def read(keep: Float[Tensor, "variant layer head"]) -> KeyValueCache:
        cache = KeyValueCache(shape_of(model).layers, n + max_tokens)
        if n > 1:
            entering = embed(model, tokens)[None, :, :-1].expand(len(keep), -1, -1, -1)
            engine.grow(entering, cache, Replace(keep))
        return cache

    def begin(keep: Float[Tensor, "variant layer head"]) -> Step:
        nonlocal shared
        if positions == "last":
            shared = shared or read(everything.keep)
            cache = shared.copies(len(keep))
        else:
            cache = read(keep)
        edit = Replace(keep)

        def step(now: Int[Tensor, "variant row pos"]) -> Float[Tensor, "variant row d_model"]:
            newest = embed(model, now.flatten(0, 1))[:, -1:].unflatten(0, (len(keep), rows))
            return engine.grow(newest, cache, edit)[:, :, -1]

        return step

    return begin


def _whole(
    engine: HookedEngine, tokens: Int[Tensor, "variant row pos"], edit: Replace
) -> Float[Tensor, "variant row d_model"]:
    """Rerun the whole text, one variant at a time."""
    ends = []
    for variant, rows in enumerate(tokens):
        run = engine.cache(rows, 0, 1)
        one = Replace(edit.keep[variant : variant + 1], since=edit.since)
        ends.append(engine.rerun(run, one)[0, :, -1])
    return torch.stack(ends)


def _continue(
    model: Model,
    step: Step,
    tokens: Int[Tensor, "row pos"],
    variants: int,
    max_tokens: int,
    stop: Sequence[str],
) -> list[list[str]]:
    """Decode token by token until every row has stopped."""
    tokenizer = encoder_of(model).tokenizer
    rows, n = tokens.shape
    now = tokens.expand(variants, rows, n)
    ends = {tokenizer.eos_token_id} - {None}
    done = torch.zeros(variants, rows, dtype=torch.bool)
    texts = [[""] * rows for _ in range(variants)]
    for _ in range(max_tokens):
        logits = unembed(model, step(now))
        check_logits(model_name(model), logits)
        newest = logits.argmax(-1).cpu()
        now = torch.cat([now, newest[..., None]], dim=2)
        for variant, row in (~done).nonzero().tolist():
            ids = now[variant, row, n:].tolist()
            ended = ids[-1] in ends
            text = tokenizer.decode(ids[:-1] if ended else ids)
            found = [at for at in (text.find(mark) for mark in stop) if at >= 0]
            texts[variant][row] = text[: min(found)] if found else text
            done[variant, row] = ended or bool(found)
        if bool(done.all()):
            break
    return texts
