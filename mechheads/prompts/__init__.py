"""The prompt contract: what a task provides, and what it may know about a tokenizer.

A task makes `Pair`s of text from a seed. It sees the tokenizer only as a `Lexicon`: a function
that splits mid-sentence text into tokens. Nothing here needs a model or torch.
"""

from .lexicon import Lexicon, encoder_for, lexicon_of, words_as_tokens
from .pairs import (
    LEAST,
    MOST,
    Maker,
    Pair,
    Prompts,
    Share,
    Split,
    TokenIds,
    check_given,
    check_prompts,
    draw,
)
from .questions import Question, Questions
from .spans import Span, fill
from .splits import held_out, split_groups
from .task import Task
from .tokens import drop_misaligned, tokenize

__all__ = [
    "LEAST",
    "MOST",
    "Lexicon",
    "Maker",
    "Pair",
    "Prompts",
    "Question",
    "Questions",
    "Share",
    "Span",
    "Split",
    "Task",
    "TokenIds",
    "check_given",
    "check_prompts",
    "draw",
    "drop_misaligned",
    "encoder_for",
    "fill",
    "held_out",
    "lexicon_of",
    "split_groups",
    "tokenize",
    "words_as_tokens",
]
