"""The only package that uses TransformerLens: loading, hooks, weights, shapes, provenance.

`model` is what the rest of mechheads sees: a Shape and an Encoder.
"""

import logging

# TransformerLens imports bitsandbytes where it is installed, and that asks for another package.
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
