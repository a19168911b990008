"""Common sense with lettered options (after CommonsenseQA); the answer is the letter.

Choose the right option.

Question: Which of these is a fruit? A: dog B: peach C: iron D: bus
Answer: B

Question: What do you use to cut paper? A: lamp B: pen C: scissors D: cup
Answer:                             -> " C"; corrupted, with "write a letter": " B", wrong here

The corrupted prompt asks for a different one of the same options. Only one option is right: orange
is never offered as a fruit where a color is wanted. A group is a question with its options in any
order.

Spans: SUBJECT (cut paper), ANSWER and OTHER (scissors, and pen, the corrupted prompt's answer), and
their letters, ANSWER_LETTER and OTHER_LETTER.
"""

import random

from mechheads.errors import MechheadsError
from mechheads.prompts import Lexicon, Maker, fill

from .facts import ALSO_RIGHT, CATEGORIES, PLACES, USES
from .question_answer import Item, question_maker

LETTERS = "ABCDE"


def maker(lexicon: Lexicon, *, choices: int = 4, shots: int = 1, instruction: bool = True) -> Maker:
    """Questions about categories, uses and places with `choices` options from A on."""
    if not 2 <= choices <= len(LETTERS):
        raise MechheadsError(f"--choices takes 2 to {len(LETTERS)} options, got {choices}.")

    def subjects(rng: random.Random) -> tuple[str, list[tuple[str, str]]]:
        """A wording, and subjects that fit it, with their answers."""
        kind = rng.randrange(3)
        if kind == 0:
            drawn = rng.sample(sorted(CATEGORIES), choices)
            return "Which of these is {}?", [(c, rng.choice(CATEGORIES[c])) for c in drawn]
        wording, table = (
            ("What do you use to {}?", USES),
            ("Where would you find {}?", PLACES),
        )[kind - 1]
        return wording, [(s, table[s]) for s in rng.sample(sorted(table), choices)]

    def items(rng: random.Random) -> tuple[Item, Item]:
        while True:
            wording, drawn = subjects(rng)
            (one, answer), (two, other) = drawn[:2]
            right = {*ALSO_RIGHT.get(one, ()), *ALSO_RIGHT.get(two, ())}
            if not right.intersection(option for _, option in drawn):
                break
        options = [option for _, option in drawn]
        rng.shuffle(options)
        letters = LETTERS[:choices]
        template = " ".join([wording, *(f"{{{a}}}: {{{a}_option}}" for a in letters)])
        shown = {a: a for a in letters}
        shown |= {f"{a}_option": option for a, option in zip(letters, options, strict=True)}

        def item(subject: str, right: str, wrong: str) -> Item:
            letter, other_letter = (letters[options.index(word)] for word in (right, wrong))
            marked = {"": "SUBJECT", letter: "ANSWER_LETTER", f"{letter}_option": "ANSWER"}
            marked |= {other_letter: "OTHER_LETTER", f"{other_letter}_option": "OTHER"}
            text, spans = fill(template, {"": subject, **shown}, marked)
            group = f"{subject}: {sorted(options)}"
            return Item(text, letter, group, spans=spans, telling=(subject, right))

        return item(one, answer, other), item(two, other, answer)

    return question_maker(lexicon, "Choose the right option." if instruction else "", items, shots)
