"""Model floor (1): batch types, decoders, losses, negatives, sparse row optimizers."""
