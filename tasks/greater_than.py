"""Greater-than between years (Hanna et al. 2023, arXiv:2305.00586).

"The war lasted from the year 1732 to the year 17" -> any of "33" to "99", none of "00" to "32"

The corrupted prompt starts in the year 1701, so that (nearly) every end year is right. If the
tokenizer does not split a year into its century and two digits (" 1732" -> " 17" + "32", or digit
by digit), the prompt ends with "to the year" and the answers are the whole years of the century.

Spans, as the paper names them: NOUN (war), XX1 and YY (17 and 32), XX2 (17 at the end, if there).
"""

import random
from collections.abc import Callable
from typing import Literal

from mechheads.errors import MechheadsError
from mechheads.prompts import Lexicon, Maker, Pair, fill

from .words import EVENTS

TEMPLATE = "The {NOUN} lasted from the year {XX1}{YY} to the year"


def years_that_split(lexicon: Lexicon, century: int) -> list[str]:
    """The two-digit years 02 to 98 that, like 01, split off after the century's tokens."""
    stem = lexicon.split(f" {century}")
    kept = [
        year
        for year in (f"{y:02}" for y in range(1, 99))
        if (split := lexicon.split(f" {century}{year}"))[: len(stem)] == stem
        and len(split) > len(stem)
        and len(split) == len(lexicon.split(f" {century}01"))
    ]
    return kept[1:] if kept[:1] == ["01"] else []


def years_alike(lexicon: Lexicon, century: int) -> list[str]:
    """The two-digit years 02 to 98 whose whole year has as many tokens as that of 01."""
    size = len(lexicon.split(f" {century}01"))
    every = (f"{y:02}" for y in range(2, 99))
    return [year for year in every if len(lexicon.split(f" {century}{year}")) == size]


def maker(lexicon: Lexicon, *, corruption: Literal["01"] = "01") -> Maker:
    """Prompts over the centuries 11 to 17 and the years 02 to 98."""
    events = [e for e in EVENTS if len(lexicon.split(f" {e}")) <= 2]

    def centuries_by(choose: Callable[[Lexicon, int], list[str]]) -> dict[int, list[str]]:
        years = {century: choose(lexicon, century) for century in range(11, 18)}
        return {century: kept for century, kept in years.items() if len(kept) >= 10}

    splitting = centuries_by(years_that_split)
    centuries = splitting or centuries_by(years_alike)
    if not centuries or len(events) < 10:
        raise MechheadsError(
            f"greater_than finds {len(events)} event nouns of one or two tokens and "
            f"{len(centuries)} centuries whose years align for the tokenizer of {lexicon.name}; "
            "it needs 10 and 1. Use a model with a larger vocabulary."
        )

    def make(rng: random.Random) -> Pair:
        century = rng.choice(sorted(centuries))
        year, event = rng.choice(centuries[century]), rng.choice(events)
        ends = [f"{y:02}" if splitting else f" {century}{y:02}" for y in range(100)]
        template = TEMPLATE + (" {XX2}" if splitting else "")
        values = {"NOUN": event, "XX1": century, "YY": year, "XX2": century}
        text, spans = fill(template, values)
        return Pair(
            clean=text,
            corrupt=template.format(**values | {"YY": corruption}),
            answers=tuple(ends[int(year) + 1 :]),
            wrong=tuple(ends[: int(year) + 1]),
            group=f"{century}{year}",
            spans=spans,
        )

    return make
