"""What several tests of filler expect."""

# Of a table of accuracies.
COLUMNS = [
    "model",
    "condition",
    "n",
    "correct",
    "accuracy",
    "low",
    "high",
    "p_value",
    "tokens",
    "cut_off",
]
