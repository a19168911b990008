"""How the embedded pair was made: pretraining, sparsification, data, workers, checkpoints."""
