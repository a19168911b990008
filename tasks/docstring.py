'''Docstring completion (Heimersheim and Janiak 2023).

def port(self, old, state, load, size, files, last):
    """oil column piece

    :param load: crime population
    :param size: unit dark
    :param                          -> " files", the next argument, not any of the others

Of the arguments (prefix, matching, suffix), the matching ones are documented in order, except the
last, which is the answer. The corruptions have the names and the meaning of the authors' generator;
they replace names with unrelated ones:

- `random_random`: the matching arguments in the definition and, by others, in the documentation;
- `random_def`: those in the definition, except the answer; `random_doc`: the documented ones;
- `random_def_doc`: both of these, so that the answer stays where it was;
- `random_answer`: only the answer in the definition; `random_answer_doc`: also the documented ones;
- `vary_length_doc_desc` keeps all names and moves words from one description to another, so that
  only positions change; `vary_length_doc_desc_random_doc` also replaces the documented names.

The wrong answers are, as published, all other names drawn for the prompt, whether or not the
corruption uses them.

Spans, as in the paper: A_def, B_def, C_def (load, size, files in the definition) and A_doc, B_doc
(load, size where they are documented); more matching arguments continue with D, E, ...
'''

import random
from string import ascii_uppercase
from typing import Literal

from mechheads.errors import MechheadsError
from mechheads.prompts import Lexicon, Maker, Pair, fill

from .words import ARGUMENTS, NOUNS

Corruption = Literal[
    "random_random",
    "random_def",
    "random_doc",
    "random_def_doc",
    "random_answer",
    "random_answer_doc",
    "vary_length_doc_desc",
    "vary_length_doc_desc_random_doc",
]


def render(
    function: str, arguments: list[str], title: str, documented: list[str], words: list[list[str]]
) -> str:
    """The function's signature and its docstring up to the `:param` to complete."""
    lines = [f"def {function}(self, {', '.join(arguments)}):", f'    """{title}', ""]
    lines += [f"    :param {a}: {' '.join(w)}" for a, w in zip(documented, words, strict=True)]
    return "\n".join([*lines, "    :param"])


def maker(
    lexicon: Lexicon,
    *,
    corruption: Corruption = "random_random",
    prefix: int = 2,
    matching: int = 3,
    suffix: int = 1,
) -> Maker:
    """prefix, matching and suffix are numbers of arguments; all matching but one are documented."""
    varied = corruption.startswith("vary_length")
    least = 3 if varied else 2
    if matching < least or prefix < 0 or suffix < 0:
        raise MechheadsError(
            f"docstring needs --matching of {least} or more for {corruption}, and --prefix and "
            f"--suffix of 0 or more; got {matching}, {prefix} and {suffix}."
        )
    needed = prefix + suffix + 4 * matching - 1
    names = lexicon.single(ARGUMENTS, "argument names", at_least=needed)
    nouns = lexicon.single(NOUNS, "nouns", at_least=12)
    letters = ascii_uppercase[:matching]
    marks = [*(f"{x}_def" for x in letters), *(f"{x}_doc" for x in letters[:-1])]

    def make(rng: random.Random) -> Pair:
        drawn = rng.sample(names, needed)
        left = list(drawn)
        take = lambda count: [left.pop() for _ in range(count)]  # noqa: E731 - a name for a loop
        before, target, after = take(prefix), take(matching), take(suffix)
        strange, stranger = take(matching), take(matching - 1)
        unlike = [*take(matching - 1), target[-1]]
        answer = [*target[:-1], *take(1)]
        function, *title = rng.sample(nouns, 4)
        words = [rng.sample(nouns, 2) for _ in target[:-1]]
        moved = words
        if varied:
            source, sink = rng.sample(range(len(words)), 2)
            flat = words[source][1]
            moved = [list(w) for w in words]
            moved[source], moved[sink] = words[source][:1], [*words[sink], flat]
        definition, documented = {
            "random_random": (strange, stranger),
            "random_def": (unlike, target[:-1]),
            "random_doc": (target, stranger),
            "random_def_doc": (unlike, stranger),
            "random_answer": (answer, target[:-1]),
            "random_answer_doc": (answer, stranger),
            "vary_length_doc_desc": (target, target[:-1]),
            "vary_length_doc_desc_random_doc": (target, stranger),
        }[corruption]
        arguments = [*before, *definition, *after]
        values = dict(zip(marks, [*target, *target[:-1]], strict=True))
        fields = [f"{{{mark}}}" for mark in marks]
        marked = [*before, *fields[:matching], *after]
        template = render(function, marked, " ".join(title), fields[matching:], words)
        text, spans = fill(template, values)
        return Pair(
            clean=text,
            corrupt=render(function, arguments, " ".join(title), documented, moved),
            answers=(f" {target[-1]}",),
            wrong=tuple(f" {name}" for name in reversed(drawn) if name != target[-1]),
            group=", ".join(target[-2:]),
            spans=spans,
        )

    return make
