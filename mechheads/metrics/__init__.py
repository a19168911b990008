"""How well a model answers. `token` judges next tokens, `text` free-form answers, `values` maths.

Token metrics are imported from here: METRICS, find, score.
"""

from .token import METRICS, Metric, Scores, answer_tokens, find, score, score_answers

__all__ = ["METRICS", "Metric", "Scores", "answer_tokens", "find", "score", "score_answers"]
