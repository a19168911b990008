'''Docstring completion (Heimersheim and Janiak 2023).

def port(self, old, state, load, size, files, last):
    """oil column piece

    :param load: crime population
    :param size: unit dark
    :param                          -> " files", the next argument, not any of the others

Of the arguments (prefix, matching, suffix), the matching ones are documented in order, except the
last, which is the answer. Corruptions replace names with unrelated ones: `random_random` replaces
the matching arguments in both the definition and the documentation, `random_def` those in the
definition, `random_doc` the documented ones, `random_answer` only the answer in the definition.
`random_answer_doc` combines the last two (`random_def_doc` would be the same as `random_random`).
`vary_length_doc_desc` keeps all names and moves words from one description to another, so that
only positions change; `vary_length_doc_desc_random_doc` also replaces the documented names.
'''

import random
from typing import Literal

from mechheads.errors import MechheadsError
from mechheads.prompts import Lexicon, Maker, Pair

from .words import ARGUMENTS, NOUNS

Corruption = Literal[
    "random_random",
    "random_def",
    "random_doc",
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
    needed = prefix + 3 * matching + suffix
    names = lexicon.single(ARGUMENTS, "argument names", at_least=needed)
    nouns = lexicon.single(NOUNS, "nouns", at_least=12)

    def make(rng: random.Random) -> Pair:
        drawn = rng.sample(names, needed)
        take = lambda count: [drawn.pop() for _ in range(count)]  # noqa: E731 - a name for a loop
        before, target, after = take(prefix), take(matching), take(suffix)
        strange, stranger = take(matching), take(matching)
        function, *title = rng.sample(nouns, 4)
        words = [rng.sample(nouns, 2) for _ in target[:-1]]
        moved = words
        if varied:
            source, sink = rng.sample(range(len(words)), 2)
            flat = words[source][1]
            moved = [list(w) for w in words]
            moved[source], moved[sink] = words[source][:1], [*words[sink], flat]
        definition, documented = {
            "random_random": (strange, stranger[:-1]),
            "random_def": (strange, target[:-1]),
            "random_doc": (target, stranger[:-1]),
            "random_answer": ([*target[:-1], strange[-1]], target[:-1]),
            "random_answer_doc": ([*target[:-1], strange[-1]], stranger[:-1]),
            "vary_length_doc_desc": (target, target[:-1]),
            "vary_length_doc_desc_random_doc": (target, stranger[:-1]),
        }[corruption]
        arguments = [*before, *target, *after]
        replaced = [*before, *definition, *after]
        wrong = dict.fromkeys(a for a in [*arguments, *replaced] if a != target[-1])
        return Pair(
            clean=render(function, arguments, " ".join(title), target[:-1], words),
            corrupt=render(function, replaced, " ".join(title), documented, moved),
            answers=(f" {target[-1]}",),
            wrong=tuple(f" {name}" for name in wrong),
            group=", ".join(target[-2:]),
        )

    return make
