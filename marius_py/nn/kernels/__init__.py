"""Kernels of the model floor (1): workspaces, row sums, fused contrastive losses, distances."""
