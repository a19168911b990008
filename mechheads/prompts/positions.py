"""Where the spans of prompts are among a model's tokens.

1. A span covers all tokens that have any of its characters: "Mary" covers " Mary", since a space
   before a word belongs to the word's token.
2. The tokens of the clean and the corrupted prompt align, so the positions hold for both.
3. Prompts of any templates can be compared by the spans that all of them have.
"""

from collections import Counter
from collections.abc import Sequence

from mechheads.errors import MechheadsError, unknown

from .encoder import Encoder
from .pairs import Pair, Prompts
from .spans import END
from .tokens import where_of


def common_spans(prompts: Prompts) -> list[str]:
    """The names of the spans that all prompts have, as the first prompt lists them, END last."""
    everyone = _counts(prompts)
    first = dict.fromkeys(span.name for span in prompts.pairs[0].spans)
    return [*(name for name in first if everyone[name] == len(prompts)), END]


def chosen_spans(prompts: Prompts, wanted: str | Sequence[str] | None) -> list[str]:
    """The wanted spans, all of which every prompt must have; by default the common ones."""
    common = common_spans(prompts)
    if wanted is None:
        return common
    names = list(dict.fromkeys([wanted] if isinstance(wanted, str) else wanted))
    if not names:
        raise MechheadsError(f"spans got no name. Choose from: {', '.join(common)}.")
    have = _counts(prompts)
    for name in names:
        if name not in common and have[name]:
            raise MechheadsError(
                f"Only {have[name]} of {len(prompts)} prompts of {prompts.task} have the span "
                f"{name!r}. All have: {', '.join(common)}."
            )
        if name not in common:
            raise unknown("span", name, common)
    return names


def span_positions(
    encoder: Encoder, prompts: Prompts, names: Sequence[str]
) -> list[list[tuple[int, ...]]]:
    """For every prompt, the token positions of each of these spans; all have at least one."""
    found = []
    for i, pair in enumerate(prompts.pairs):
        offsets = encoder.offsets(pair.clean)
        found.append([_positions(pair, name, offsets) for name in names])
        for name, positions in zip(names, found[-1], strict=True):
            if not positions:
                shown = [[span.begin, span.end] for span in pair.spans if span.name == name]
                raise MechheadsError(
                    f"{where_of(i, pair, prompts)}: the span {name!r} {shown} has no token of "
                    f"{encoder.name}. Mark at least one character that is not a space."
                )
    return found


def _positions(pair: Pair, name: str, offsets: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    if name == END:
        return (len(offsets) - 1,)
    marked = [span for span in pair.spans if span.name == name]
    return tuple(
        position
        for position, (begin, end) in enumerate(offsets)
        if any(begin < span.end and span.begin < end for span in marked)
    )


def _counts(prompts: Prompts) -> Counter[str]:
    """How many prompts have a span of each name."""
    return Counter(name for pair in prompts.pairs for name in {span.name for span in pair.spans})
