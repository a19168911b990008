"""The only floor that knows TransformerLens: loading, hooks, weights, shapes, provenance.

`model` is what everybody else sees: a Shape and an Encoder.
"""
