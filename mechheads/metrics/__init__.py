"""How well a model answers. `token` judges next tokens, `text` free-form answers, `values` maths.

Token metrics are imported from here: METRICS, find, score.
"""

from .token import (
    METRICS,
    Metric,
    MetricLike,
    Scores,
    after_prompt,
    answer_tokens,
    check_name,
    choose,
    find,
    label_of,
    score,
    score_answers,
)

__all__ = [
    "METRICS",
    "Metric",
    "MetricLike",
    "Scores",
    "after_prompt",
    "answer_tokens",
    "check_name",
    "choose",
    "find",
    "label_of",
    "score",
    "score_answers",
]
