"""Turns pairs of text into aligned tokens.

1. The clean and corrupted prompts must have the same number of tokens, so that positions align.
2. An answer's tokens continue the prompt's: they come from prompt + answer if that keeps the
   prompt's tokens, else from the answer alone, which must then decode to the same text.
"""

from dataclasses import dataclass, replace

from mechheads.errors import MechheadsError

from .encoder import Encoder
from .pairs import Pair, Prompts, TokenIds

LISTED = 8  # prompts that an error lists
SKIP = (
    "--skip-misaligned on the command line, tasks.make(..., skip_misaligned=True) for a file, "
    "tasks.from_records(..., usable_by=model) for records"
)


@dataclass(frozen=True)
class Tokens:
    """One pair as token ids; `corrupt` is `clean` again if there is no corrupted prompt."""

    clean: tuple[int, ...]
    corrupt: tuple[int, ...]
    answers: list[tuple[int, ...]]
    wrong: list[tuple[int, ...]]

    @property
    def first(self) -> int:
        """The first position at which the prompts differ; 0 if there is no corrupted prompt."""
        both = enumerate(zip(self.clean, self.corrupt, strict=True))
        return next((i for i, (a, b) in both if a != b), 0)


def tokenize(encoder: Encoder, prompts: Prompts) -> list[Tokens]:
    """The tokens of all pairs; the error lists every pair that cannot be used."""
    texts = [pair.clean for pair in prompts.pairs if not isinstance(pair.clean, TokenIds)]
    if encoder.tokenizer is None and texts:
        encoder.ids(texts[0])  # raises: it can read none of them
    found, problems = _try(encoder, prompts)
    if len(problems) == 1:
        raise MechheadsError(next(iter(problems.values())))
    if problems:
        listed = " ".join(list(problems.values())[:LISTED])
        more = f" And {len(problems) - LISTED} more." if len(problems) > LISTED else ""
        raise MechheadsError(
            f"{len(problems)} of {len(prompts)} prompts of {prompts.task} cannot be used. {listed}"
            f"{more} Fix them, or leave them out: {SKIP}."
        )
    return found


def drop_misaligned(encoder: Encoder, prompts: Prompts) -> Prompts:
    """The prompts that can be used; `skipped` counts the others."""
    _, problems = _try(encoder, prompts)
    kept = tuple(pair for i, pair in enumerate(prompts.pairs) if i not in problems)
    if not kept:
        raise MechheadsError(
            f"None of the {len(prompts)} prompts of {prompts.task} can be used. "
            f"{next(iter(problems.values()))}"
        )
    return replace(prompts, pairs=kept, skipped=prompts.skipped + len(problems))


def _try(encoder: Encoder, prompts: Prompts) -> tuple[list[Tokens], dict[int, str]]:
    """The tokens of the pairs that can be used, and what is wrong with the others."""
    found, problems = [], {}
    for i, pair in enumerate(prompts.pairs):
        try:
            found.append(_tokenize(encoder, pair, where_of(i, pair, prompts)))
        except MechheadsError as error:
            problems[i] = str(error)
    return found, problems


def where_of(i: int, pair: Pair, prompts: Prompts) -> str:
    """How errors name a prompt: where it comes from, and how it begins."""
    start = pair.clean if len(pair.clean) < 40 else f"{pair.clean[:36]}..."
    return f"{pair.source or f'Prompt {i + 1} of task {prompts.task}'} ({start!r})"


def _tokenize(encoder: Encoder, pair: Pair, where: str) -> Tokens:
    clean = encoder.ids(pair.clean)
    corrupt = encoder.ids(pair.corrupt) if pair.corrupt else clean
    if len(clean) != len(corrupt):
        raise MechheadsError(
            f"{where}: clean has {len(clean)} tokens, corrupt has {len(corrupt)}. "
            "Pick words that tokenize alike."
        )
    if pair.corrupt and clean == corrupt:
        raise MechheadsError(f"{where}: clean and corrupt are the same. Change a word in one.")
    answers = [_continue(encoder, pair.clean, clean, a, where) for a in pair.answers]
    wrong = [_continue(encoder, pair.clean, clean, w, where) for w in pair.wrong]
    if both := set(answers) & set(wrong):
        text = pair.answers[answers.index(both.pop())]
        raise MechheadsError(f"{where}: {text!r} has the same tokens as a wrong answer. Drop one.")
    longest = len(clean) + max(map(len, answers + wrong)) - 1
    if longest > encoder.context:
        raise MechheadsError(
            f"{where} has {longest} tokens, but {encoder.name} takes {encoder.context}. "
            "Use shorter prompts, or load the model with a larger n_ctx if it allows one."
        )
    return Tokens(clean, corrupt, answers, wrong)


def _continue(
    encoder: Encoder, prompt: str, before: tuple[int, ...], answer: str, where: str
) -> tuple[int, ...]:
    """The answer's tokens after those of the prompt."""
    if isinstance(answer, TokenIds):
        return encoder.plain_ids(answer)
    joint = encoder.ids(prompt + answer)
    if joint[: len(before)] == before and len(joint) > len(before):
        return joint[len(before) :]
    alone = encoder.plain_ids(answer)
    if alone and encoder.decode(before + alone) == encoder.decode(before) + answer:
        return alone
    raise MechheadsError(
        f"{where}: the answer {answer!r} has no tokens of its own after the prompt's. "
        "Start it with a space, or end the prompt earlier."
    )
