"""Greater-than between years (Hanna et al. 2023, arXiv:2305.00586).

"The war lasted from the year 1732 to the year 17" -> any of "33" to "99", none of "00" to "32"

The corrupted prompt begins in the year 1701, so that (nearly) every end is right. Where the
tokenizer does not split a year into its century and two digits (" 1732" -> " 17" + "32", or digit
by digit), the prompt ends in "to the year" and the answers are the century's whole years.
"""

import random

from mechheads.errors import MechheadsError
from mechheads.prompts import Lexicon, Pair, draw, one_of

from .words import EVENTS

CORRUPTIONS = ("01",)
TEMPLATE = "The {event} lasted from the year {year} to the year"


def usable(lexicon: Lexicon, century: int) -> tuple[list[str], bool]:
    """The two-digit years of a century that align with its 01, and whether they split cleanly.

    They split cleanly when every year of the century is the century's tokens and then those of
    two digits: then the prompt may end in the century.
    """
    stem = lexicon.split(f" {century}")
    splits = {f"{y:02}": lexicon.split(f" {century}{y:02}") for y in range(100)}
    size = len(splits["01"])
    clean = {
        y: s for y, s in splits.items() if len(s) == size and s[: len(stem)] == stem and len(s) > 1
    }
    whole = "01" in clean and len(clean) > 60
    years = clean if whole else {y: s for y, s in splits.items() if len(s) == size}
    return [y for y in years if 2 <= int(y) <= 98], whole


def pairs(n: int, seed: int, lexicon: Lexicon, *, corruption: str = "01") -> list[Pair]:
    """n prompts over the centuries 11 to 17 and the years 02 to 98."""
    one_of(corruption, CORRUPTIONS, "corruption")
    events = [e for e in EVENTS if len(lexicon.split(f" {e}")) <= 2]
    centuries = {c: usable(lexicon, c) for c in range(11, 18)}
    centuries = {c: kept for c, kept in centuries.items() if len(kept[0]) >= 10}
    if not centuries or len(events) < 10:
        raise MechheadsError(
            f"greater_than finds {len(events)} event nouns and {len(centuries)} centuries whose "
            f"years align for the tokenizer of {lexicon.name}; it needs 10 and 1. "
            "Use a model whose tokenizer knows digits."
        )

    def make(rng: random.Random) -> Pair:
        century = rng.choice(sorted(centuries))
        years, splits = centuries[century]
        year, event = rng.choice(years), rng.choice(events)
        ends = [f"{y:02}" if splits else f" {century}{y:02}" for y in range(100)]
        stem = f" {century}" if splits else ""
        return Pair(
            clean=TEMPLATE.format(event=event, year=f"{century}{year}") + stem,
            corrupt=TEMPLATE.format(event=event, year=f"{century}{corruption}") + stem,
            answers=tuple(ends[int(year) + 1 :]),
            wrong=tuple(ends[: int(year) + 1]),
        )

    return draw(n, seed, "greater_than", make)
