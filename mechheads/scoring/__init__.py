"""One module per scoring method, the method registry, and the results they share.

Positive effects always mean that the head helps.
"""
