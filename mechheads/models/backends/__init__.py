"""What the rest of mechheads needs of a model, and the two kinds of model that provide it.

`lens` is the protocol, `hooked` implements it for HookedTransformer, `bridge` for TransformerBridge
(TransformerLens 4, and any transformers model in memory). Nothing above this folder knows which.
"""
