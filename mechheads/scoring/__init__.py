"""One file per scoring method, the table of them, and what all of them return.

Positive effects always mean that the head helps.
"""
