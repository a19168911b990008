"""Filler prefixes: what a run of meaningless tokens does to accuracy and to a head's attention.

After arXiv:2510.01032. `insertion` makes the prompts, `accuracy` asks the questions, `weights`
measures attention, and `redistribution` is the paper's intervention without filler.
"""
