"""Masking heads while a model answers: the most important ones against as many at random.

After "Cognitive heads": `selection` says which heads, `answers` lets the model answer without
them, `probe` ranks heads by how well they tell functions apart, `matrix` masks one function's heads
and tests another, `experiment` is all of it.
"""
