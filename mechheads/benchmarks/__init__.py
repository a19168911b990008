"""Speed, measured side by side with TransformerLens's own loop: `python -m mechheads.bench`."""
