"""How well a model answers. `token` judges next tokens, `text` answers in words, `values` maths.

The metrics of tokens are imported from here: METRICS, find, score.
"""

from .token import METRICS, Metric, Scores, answer_tokens, find, score, score_answers

__all__ = ["METRICS", "Metric", "Scores", "answer_tokens", "find", "score", "score_answers"]
