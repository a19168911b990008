"""Greedy decoding with some heads masked, many masks and prompts in one pass.

1. Prompts of the same length run together, so no padding is needed.
2. Keys and values are cached, and each step runs only the newest token. A model that the direct
   engine does not support reruns its whole text at every step, with the same result.
3. Masks act at `all` positions, or only at the `last` one of every pass: then the full model reads
   the prompt, which all masks share, and only what it generates is masked.
4. Instead of zero, a masked head's z may be that of the corrupted prompt followed by the same new
   text, as when an answer of several tokens is scored. That reruns both texts at every step.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechheads.errors import MechheadsError, shown, unknown
from mechheads.heads import read_heads
from mechheads.models.hooks import embed, unembed
from mechheads.models.model import Model, encoder_of, model_name, shape_of
from mechheads.models.wrap import check_logits
from mechheads.options import check_least
from mechheads.progress import bar
from mechheads.prompts import Pair, Prompts

from .cached_run import Engine
from .direct import DirectEngine, KeyValueCache
from .head_subsets import keep_only
from .interventions import Replace
from .select import budget_for, engine_for

Positions = Literal["last", "all"]
Replacement = Literal["zero", "corrupt"]
# Prompts that are read together.
ROWS = 16


def generate(
    model: Model,
    prompts: str | Sequence[str] | Pair | Prompts,
    keep: Float[Tensor, "variant layer head"] | None = None,
    *,
    ablate: Any = None,
    replacement: str = "zero",
    positions: str = "last",
    max_tokens: int = 32,
    stop: str | Sequence[str] = ("\n",),
    budget: int | None = None,
    engine: Engine | None = None,
    quiet: bool = False,
) -> Any:
    """Continue prompts by greedy decoding, with all heads or with some masked.

    Args:
        model: what `mechheads.load` returns
        prompts: a text to continue, a list of texts, or prompts, whose clean texts are continued
        keep: a mask per variant that multiplies every head's output z
        ablate: instead of `keep`, heads to leave out: "L9H6,L9H9", a list of heads or a circuit
        replacement: "zero", or "corrupt" for prompts with corrupted twins: z then comes from the
            run of the corrupted prompt, followed by the same new text
        positions: "last" masks heads only at the last position of every pass, so that the full
            model reads the prompt; "all" masks them everywhere
        max_tokens: the longest continuation in tokens
        stop: texts that end a continuation and are not part of it
        budget: tokens per pass, which bounds memory; default: chosen for the device
        engine: an engine to run on; default: the fastest that supports the model
        quiet: show no progress bar

    Returns:
        The continuation of the text, or a list of them for a list of texts; with `keep`, one such
        result for every mask. Costs a pass per token, with keys and values cached; with "corrupt"
        three full passes per token.

    >>> import mechheads, tasks
    >>> model = mechheads.load("mini")
    >>> pair = tasks.make("math_calculation", model, n=1)[0]
    >>> mechheads.generate(model, pair.clean, quiet=True), pair.answers
    (' 25', (' 25',))
    """
    if keep is not None and ablate is not None:
        raise MechheadsError("Give either keep or ablate to generate, not both.")
    if keep is not None and keep.shape[1:] != shape_of(model).grid:
        raise MechheadsError(
            f"keep has shape {tuple(keep.shape)}, expected (masks, {shape_of(model).layers}, "
            f"{shape_of(model).heads})."
        )
    if positions not in get_args(Positions):
        raise unknown("value for positions:", str(positions), get_args(Positions))
    check_least("max_tokens", max_tokens, 1)
    stop = (stop,) if isinstance(stop, str) else stop
    if replacement not in get_args(Replacement):
        raise unknown("replacement", str(replacement), get_args(Replacement))
    given: Any = prompts
    corrupt = None
    if isinstance(prompts, Pair | Prompts):
        pairs = [prompts] if isinstance(prompts, Pair) else list(prompts)
        given = [pair.clean for pair in pairs] if isinstance(prompts, Prompts) else prompts.clean
        corrupt = [pair.corrupt for pair in pairs]
    if replacement == "zero":
        corrupt = None
    elif not corrupt or not all(corrupt):
        raise MechheadsError(
            "The replacement corrupt takes a pair or prompts that have corrupted prompts. Give "
            'those, or use replacement="zero".'
        )
    if not isinstance(given, str) and not all(isinstance(text, str) for text in given):
        raise MechheadsError("generate takes a text, a list of texts, or what tasks.make returns.")
    left_out = keep_only(read_heads(() if ablate is None else ablate), *shape_of(model).grid)
    found = continue_all(
        model,
        [given] if isinstance(given, str) else given,
        (1 - left_out)[None] if keep is None else keep,
        corrupt=corrupt,
        positions=positions,
        max_tokens=max_tokens,
        stop=stop,
        budget=budget,
        engine=engine,
        quiet=quiet,
    )
    if isinstance(given, str):
        found = [texts[0] for texts in found]
    return found[0] if keep is None else found


@torch.inference_mode()
def continue_all(
    model: Model,
    prompts: Sequence[str],
    keep: Float[Tensor, "variant layer head"],
    *,
    corrupt: Sequence[str] | None = None,
    positions: str = "last",
    max_tokens: int = 32,
    stop: Sequence[str] = ("\n",),
    budget: int | None = None,
    engine: Engine | None = None,
    quiet: bool = False,
) -> list[list[str]]:
    """For every mask, the continuation of every prompt.

    Heads that are not kept are zero, or those of the `corrupt` prompts with the same new text.
    """
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
    others = None if corrupt is None else [encoder_of(model).ids(text) for text in corrupt]
    for text, own, other in zip(prompts, ids, others or ids, strict=True):
        if len(own) != len(other):
            raise MechheadsError(
                f"{shown(text)} has {len(own)} tokens, its corrupted prompt {len(other)}. Pick "
                "words that tokenize alike."
            )
    said = [[""] * len(prompts) for _ in keep]
    budget = budget_for(model, budget, 4)
    with bar(len(keep) * len(prompts), "Answers", quiet) as progress:
        for length, members in sorted(groups.items()):
            for begin in range(0, len(members), ROWS):
                some = members[begin : begin + ROWS]
                tokens = torch.tensor([ids[i] for i in some])
                size = max(1, budget // (len(some) * (length + max_tokens)))
                source = None if others is None else torch.tensor([others[i] for i in some])
                reader = _reader(model, engine, tokens, source, positions, max_tokens)
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
    model: Model,
    engine: Engine,
    tokens: Int[Tensor, "row pos"],
    source: Int[Tensor, "row pos"] | None,
    positions: str,
    max_tokens: int,
) -> Callable[[Float[Tensor, "variant layer head"]], Step]:
    """A function that takes masks, reads all but the last token of the prompts, and returns a step.

    The step continues from there.
    """
    rows, n = tokens.shape
    since = n - 1 if positions == "last" else 0
    if source is not None or not isinstance(engine, DirectEngine):
        return lambda keep: lambda now: _whole(engine, now, keep, since, source)
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
    engine: Engine,
    tokens: Int[Tensor, "variant row pos"],
    keep: Float[Tensor, "variant layer head"],
    since: int,
    source: Int[Tensor, "row start"] | None,
) -> Float[Tensor, "variant row d_model"]:
    """Rerun the whole text, one variant at a time; other heads' z may come from another prompt."""
    ends = []
    for variant, rows in enumerate(tokens):
        z = None
        if source is not None:
            z = engine.cache(torch.cat([source, rows[:, source.shape[1] :]], dim=1), 0, 1).z
        edit = Replace(keep[variant : variant + 1], z, since=since)
        ends.append(engine.rerun(engine.cache(rows, 0, 1), edit)[0, :, -1])
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
    encoder = encoder_of(model)
    rows, n = tokens.shape
    now = tokens.expand(variants, rows, n)
    ends = {getattr(encoder.tokenizer, "eos_token_id", None)} - {None}
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
            text = encoder.decode(ids[:-1] if ended else ids)
            found = [at for at in (text.find(mark) for mark in stop) if at >= 0]
            texts[variant][row] = text[: min(found)] if found else text
            done[variant, row] = ended or bool(found)
        if bool(done.all()):
            break
    return texts
