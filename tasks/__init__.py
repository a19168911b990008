"""Tasks for models: one module per task, and the task registry.

>>> import mechheads, tasks
>>> model = mechheads.load("mini")
>>> prompts = tasks.make("ioi", model, n=32)            # a built-in task
>>> len(prompts), prompts.metric
(32, 'logit_diff')
>>> pair = {"clean": "2 + 3 =", "corrupt": "2 + 4 =", "answer": " 5", "wrong": " 6"}
>>> tasks.from_records([pair]).pairs[0].answers         # records, or a pandas frame
(' 5',)

A .jsonl file with the same four fields works wherever a task's name does.
"""

from mechheads.prompts import Pair, Prompts, Span, Task, words_as_tokens

from .files import from_records, from_tokens
from .registry import TASKS, make, register

__all__ = [
    "TASKS",
    "Pair",
    "Prompts",
    "Span",
    "Task",
    "from_records",
    "from_tokens",
    "make",
    "register",
    "words_as_tokens",
]
