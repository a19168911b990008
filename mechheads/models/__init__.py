"""The only package that uses TransformerLens: loading, hooks, weights, shapes, provenance.

`model` is what the rest of mechheads sees: a Shape and an Encoder.
"""
