"""How the embedded models were made: pretraining, sparsification, data, workers, checkpoints."""
