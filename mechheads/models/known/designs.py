"""The known models, head by head. Their prompts are the tasks of the same names.

A head that finds nothing to look at attends to <bos>, from which nothing is copied.
"""

from collections.abc import Iterable

from .design import BEGIN, ONE, Copy, Head, KnownDesign, Look, place, token

LETTERS = tuple("abcdefghijkl")
NAMES = tuple("Mary John Tom Anna Paul Lucy Mark Jane Peter Sarah David Emma".split())
# The other words of the sentences about them.
SENTENCE = tuple("When and were at the gave a to ,".split())
PLACES = tuple("shop park school garden house market".split())
THINGS = tuple("book ball drink cake ring pen".split())
POSITIONS = 32


def copied(words: Iterable[str], to: str, weight: float = 1.0) -> tuple[Copy, ...]:
    """Copies the token that is looked at: to="say" makes it more likely."""
    return tuple((token(word), f"{to} {word}", weight) for word in words)


def rest(score: float) -> Look:
    """Looks at <bos> from everywhere."""
    return ONE, token(BEGIN), score


def previous_token(to: str = "previous", role: str = "previous token") -> Head:
    """Writes which token came before, to the axes "previous a"."""
    looks = [(place(i), place(i - 1), 12.0) for i in range(1, POSITIONS)]
    return Head(role, tuple(looks), copied(LETTERS, to))


def after_same(score: float, weight: float, role: str, bos: float = 0.0) -> Head:
    """Looks at tokens that came after the present one, and makes them more or less likely."""
    looks = [(token(word), f"previous {word}", score) for word in LETTERS]
    return Head(role, (*looks, rest(bos)), copied(LETTERS, "say", weight))


# Idle heads: one looks at nothing and writes nothing, the others write what nothing reads.
IDLE = Head()
IDLE_SAME = Head(
    looks=tuple((token(word), token(word), 6.0) for word in LETTERS),
    copies=copied(LETTERS, "unread"),
)
IDLE_PREVIOUS = previous_token("unread", role="")

INDUCTION = KnownDesign(
    "induction",
    "a previous-token head, an induction head that reads it, and one that opposes",
    LETTERS,
    (
        (previous_token(), IDLE_SAME, IDLE_PREVIOUS, IDLE),
        (
            after_same(5.0, 6.0, "induction"),
            IDLE_SAME,
            after_same(5.0, -2.0, "opposing"),
            IDLE,
        ),
    ),
)

# As INDUCTION, but the softmax is so sharp that its gradient is 0 in float32.
SATURATED = KnownDesign(
    "saturated",
    "an induction head whose softmax is saturated: no gradient passes to what it reads",
    LETTERS,
    (
        (IDLE_SAME, previous_token(), IDLE),
        (IDLE, IDLE_SAME, after_same(200.0, 6.0, "induction", bos=100.0)),
    ),
)

# Either previous-token head is enough: with both, the score is 20 where 5 is needed.
REDUNDANT = KnownDesign(
    "redundant",
    "two previous-token heads, either of which is enough for the induction head",
    LETTERS,
    (
        (previous_token(role="first copy"), IDLE_SAME, previous_token(role="second copy")),
        (IDLE, after_same(10.0, 6.0, "induction", bos=5.0), IDLE_SAME),
    ),
)

# At "?", the switch looks at <bos> whatever the prompt is, and writes "on".
CONSTANT = KnownDesign(
    "constant",
    "a head that is needed and writes the same for every prompt: it switches another one on",
    (*LETTERS, "?"),
    (
        (
            IDLE,
            Head(
                "switch",
                (
                    (token("?"), token(BEGIN), 40.0),
                    *((place(i), place(i), 20.0) for i in range(POSITIONS)),
                ),
                ((token(BEGIN), "on", 1.0),),
            ),
            IDLE_PREVIOUS,
        ),
        (
            IDLE_SAME,
            IDLE,
            Head(
                "first token mover",
                (("on", place(1), 8.0), rest(4.0)),
                copied(LETTERS, "say", 6.0),
            ),
        ),
    ),
)


def _mover(role: str, weight: float, *more: Look) -> Head:
    """At "to", looks at names that are not inhibited, and copies them."""
    looks = [(token("to"), token(name), 4.0) for name in NAMES]
    looks += [(f"inhibited {name}", token(name), -4.0) for name in NAMES]
    return Head(role, (*looks, *more, rest(2.0)), copied(NAMES, "say", weight))


def _with(head: Head, *copies: Copy) -> Head:
    return Head(head.role, head.looks, (*head.copies, *copies))


IOI = KnownDesign(
    "ioi",
    "the circuit of Wang et al. 2022 in small, with a negative mover and a backup",
    (*NAMES, *SENTENCE, *PLACES, *THINGS),
    (
        (
            Head(
                "duplicate token",
                (
                    *((token(name), token(name), 12.0) for name in NAMES),
                    *((place(i), place(i), -12.0) for i in range(POSITIONS)),
                    rest(6.0),
                ),
                tuple((token(name), "duplicate", 1.0) for name in NAMES),
            ),
            IDLE,
            Head(
                looks=((token("to"), token("gave"), 6.0),),
                copies=copied(NAMES, "unread"),
            ),
        ),
        (
            IDLE,
            Head(
                "S-inhibition",
                ((token("to"), "duplicate", 6.0), rest(3.0)),
                copied(NAMES, "inhibited"),
            ),
            IDLE,
        ),
        (
            _with(_mover("name mover", 6.0), *((token(name), "done", 1.0) for name in NAMES)),
            _mover("negative name mover", -2.0),
            IDLE,
        ),
        (
            IDLE,
            IDLE,
            _mover("backup name mover", 6.0, *(("done", token(name), -8.0) for name in NAMES)),
        ),
    ),
)

DESIGNS = {f"known/{d.name}": d for d in (INDUCTION, IOI, SATURATED, CONSTANT, REDUNDANT)}
