"""The embedded model, and questions that it can answer."""

import pytest

from mechheads.models.load import load
from mechheads.models.model import Model
from mechheads.prompts import Question
from tasks.questions import make_questions


@pytest.fixture(scope="session")
def mini() -> Model:
    """The embedded model."""
    return load("mini", quiet=True)


@pytest.fixture(scope="session")
def questions(mini) -> tuple[Question, ...]:
    """Word problems of one step."""
    return make_questions("math_calculation", mini, n=12)[0].items
