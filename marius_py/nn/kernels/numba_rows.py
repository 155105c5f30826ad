"""Rows of a table changed in place in one pass (floor 1, Numba): gather, step and scatter at once.

In: a table and gradients of some of its rows, C-contiguous float32. The order of operations and of additions
is that of the PyTorch code beside their callers, so results are the same, but for roots, which PyTorch does
not always round correctly. Importing this module needs Numba.
"""

from __future__ import annotations

import numpy as np

from marius_py.compiling import helper, kernel
from marius_py.prefetch import ROWS_AHEAD, ask_for_row

_ZERO, _ONE, _THREE = np.float32(0), np.float32(1), np.float32(3)


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
        if i + ROWS_AHEAD < len(index):
            ask_for_row(rows, index[i + ROWS_AHEAD])
            ask_for_row(state, index[i + ROWS_AHEAD])
        row = index[i]
        for d in range(dim):
            g = gradient[i, d]
            total = state[row, d] + g * g
            state[row, d] = total
            rows[row, d] += g / (np.sqrt(total) + eps) * -lr * rate


@kernel()
def adam(
    rows: np.ndarray,
    state: np.ndarray,
    index: np.ndarray,
    gradient: np.ndarray,
    lr: float,
    beta1: float,
    beta2: float,
    eps: np.float32,
    rate: np.float32,
) -> None:
    """Lazy Adam's step of some rows, `nn.optimizers.Adam`.

    Args:
        rows: (N, D), changed at `index`.
        state: (N, 2 D + 1) first moments, second moments, step counts, likewise.
        index: (U,) int64, each row once.
        gradient: (U, G) whose first D columns count.
        lr, beta1, beta2, eps: the optimizer's, the first three float64; eps above 0.
        rate: factor of the rows' deltas.
    """
    dim = rows.shape[1]
    decay1, decay2 = np.float32(1 - beta1), np.float32(1 - beta2)
    keep1, keep2 = np.float32(beta1), np.float32(beta2)
    for i in range(len(index)):
        if i + ROWS_AHEAD < len(index):
            ask_for_row(rows, index[i + ROWS_AHEAD])
            ask_for_row(state, index[i + ROWS_AHEAD])
        row = index[i]
        step = state[row, 2 * dim] + _ONE
        state[row, 2 * dim] = step
        # In float64: float32 loses 1 - beta2 ** step for the first steps.
        size = np.float32(lr / (1 - beta1 ** np.float64(step)))
        scale = np.float32(np.sqrt(1 / (1 - beta2 ** np.float64(step))))
        for d in range(dim):
            g = gradient[i, d]
            old1, old2 = state[row, d], state[row, dim + d]
            first = g * decay1 + old1 * keep1
            second = g * g * decay2 + old2 * keep2
            state[row, d] = old1 + (first - old1)
            state[row, dim + d] = old2 + (second - old2)
            rows[row, d] += first / (np.sqrt(second) * scale + eps) * -size * rate


@kernel()
def add_n3(
    rows: np.ndarray, index: np.ndarray, factors: np.ndarray, out: np.ndarray, complex_halves: bool
) -> None:
    """Add the gradients of some rows' cubed moduli, 3 |x| x, times the rows' factors.

    Args:
        rows: (U, D); real parts, then imaginary ones if `complex_halves`.
        index: (n,) int64, each row once.
        factors: (U,) float32.
        out: (U, G) whose first D columns are added to.
    """
    dim = rows.shape[1]
    half = dim // 2
    for i in range(len(index)):
        row = index[i]
        factor = factors[row] * _THREE
        if complex_halves:
            for d in range(half):
                e = np.uint64(half + d)
                re, im = rows[row, d], rows[row, e]
                scale = np.sqrt(re * re + im * im) * factor
                out[row, d] += re * scale
                out[row, e] += im * scale
        else:
            for d in range(dim):
                x = rows[row, d]
                out[row, d] += abs(x) * x * factor


@helper
def add_each(table: np.ndarray, index: np.ndarray, rows: np.ndarray) -> None:
    """As `add_rows`, within compiled loops."""
    dim = table.shape[1]
    for i in range(len(index)):
        if i + ROWS_AHEAD < len(index):
            ask_for_row(table, index[i + ROWS_AHEAD])
        row = index[i]
        for d in range(dim):
            table[row, d] += rows[i, d]


@helper
def add_columns(table: np.ndarray, index: np.ndarray, columns: np.ndarray) -> None:
    """As `add_each`, of rows that are the first columns of (W, M or more)."""
    dim = table.shape[1]
    for i in range(len(index)):
        if i + ROWS_AHEAD < len(index):
            ask_for_row(table, index[i + ROWS_AHEAD])
        row = index[i]
        for d in range(dim):
            table[row, d] += columns[d, i]


@kernel()
def add_rows(table: np.ndarray, index: np.ndarray, rows: np.ndarray) -> None:
    """Add the first columns of rows (M, W) to a table (N, D) at `index` (M,) int64, which may repeat."""
    add_each(table, index, rows)


@kernel()
def take_rows(table: np.ndarray, index: np.ndarray, out: np.ndarray) -> None:
    """Copy the rows of a table (N, D) at `index` (M,) int64 to `out` (M, D)."""
    dim = table.shape[1]
    for i in range(len(index)):
        if i + ROWS_AHEAD < len(index):
            ask_for_row(table, index[i + ROWS_AHEAD])
        row = index[i]
        for d in range(dim):
            out[i, d] = table[row, d]
