"""Masking heads while a model answers: the most important ones against equally many at random.

After "Cognitive heads": `selection` chooses heads, `answers` lets the model answer without them,
`probe` ranks heads by how well they distinguish functions, `matrix` masks one function's heads and
tests another, `experiment` runs it all.
"""
