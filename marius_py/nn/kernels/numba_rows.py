"""Rows of a table changed in place in one pass (floor 1, Numba): gather, step and scatter at once.

In: a table and gradients of some of its rows, C-contiguous float32. The order of operations and of additions
is that of the PyTorch code beside their callers, so results are the same, but for roots, which PyTorch does
not always round correctly. Importing this module needs Numba.
"""

from __future__ import annotations

import numpy as np

from marius_py.nn.kernels.compiling import kernel


@kernel()
def adagrad(
    rows: np.ndarray,
    state: np.ndarray,
    index: np.ndarray,
    gradient: np.ndarray,
    lr: np.float32,
    eps: np.float32,
    rate: np.float32,
) -> None:
    """Adagrad's step of some rows.

    Args:
        rows, state: (N, D), changed at `index`.
        index: (U,) int64, each row once.
        gradient: (U, G) whose first D columns count.
        lr, eps: the optimizer's; eps above 0.
        rate: factor of the rows' deltas.
    """
    dim = rows.shape[1]
    for i in range(len(index)):
        row = index[i]
        for d in range(dim):
            g = gradient[i, d]
            total = state[row, d] + g * g
            state[row, d] = total
            rows[row, d] += g / (np.sqrt(total) + eps) * -lr * rate


@kernel()
def add_rows(table: np.ndarray, index: np.ndarray, rows: np.ndarray) -> None:
    """Add rows (M, D) to those of a table (N, D) at `index` (M,) int64, which may repeat."""
    dim = rows.shape[1]
    for i in range(len(index)):
        row = index[i]
        for d in range(dim):
            table[row, d] += rows[i, d]
