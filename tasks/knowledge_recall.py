"""Knowledge recall: capitals, opposites and the like (a cognitive function of arXiv:2512.10978).

Question: What is the capital of France?
Answer:                             -> " Paris"; corrupted, with "Italy": " Rome", wrong here

The corrupted prompt asks the same about a different subject. A group is a subject in one wording,
so a held-out question asks for a known fact in a wording never seen with it. Spans: SUBJECT.
"""

import random
from typing import Literal

from mechheads.prompts import Lexicon, Maker, fill

from .facts import RELATIONS
from .question_answer import Item, question_maker

Relation = Literal["all", "capital", "opposite", "language", "young", "color"]


def maker(lexicon: Lexicon, *, relation: Relation = "all", shots: int = 1) -> Maker:
    """Questions of one relation (capital, opposite, language, young, color) or of all."""
    # Relations are weighted by their number of facts, so that every fact is equally likely.
    drawn = [r for r in RELATIONS if relation in ("all", r)]
    weights = [len(RELATIONS[r][0]) for r in drawn]

    def items(rng: random.Random) -> tuple[Item, Item]:
        facts, wordings = RELATIONS[rng.choices(drawn, weights)[0]]
        wording = rng.choice(wordings)
        one, two = rng.sample(sorted(facts), 2)

        def item(subject: str) -> Item:
            text, spans = fill(wording, {"": subject}, {"": "SUBJECT"})
            return Item(text, facts[subject], f"{subject}: {wording}", spans=spans)

        return item(one), item(two)

    return question_maker(lexicon, "", items, shots)
