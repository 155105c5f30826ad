"""Queries made by a matrix for each relation (floor 1, Numba): rows in, queries out, and gradients back.

A relation's row (D · b) holds matrices W of b × b, row by row, that lie along the diagonal of one of D × D; a
query is xᵀ · W, or W · x if `turned`, of a row x after dropout. Edges are worked through in an order that
keeps those of a relation together, so that its matrices stay in a core's cache. Importing this module needs
Numba.
"""

from __future__ import annotations

import numpy as np

from marius_py.compiling import helper, kernel, reordered_helper
from marius_py.prefetch import ROWS_AHEAD, ask_for_row

_ZERO = np.float32(0)


@helper
def _use(rows, row, mask, place, scale, out):
    """Write a row after dropout."""
    for d in range(len(out)):
        out[d] = rows[row, d]
    for d in range(len(out) if len(mask) else 0):
        out[d] *= scale if mask[place, d] else _ZERO


@helper
def _give_back(gradient, row, mask, place, scale, d_rows):
    """Add the gradient of what `_use` has written to that of its row."""
    for d in range(len(gradient) if len(mask) else 0):
        gradient[d] *= scale if mask[place, d] else _ZERO
    for d in range(len(gradient)):
        d_rows[row, d] += gradient[d]


@reordered_helper
def _multiply(x, matrices, of, first, block, out, e):
    """Write the part of xᵀ · W that the matrix from coordinate `first` on makes."""
    for c in range(block):
        out[e, np.uint64(first + c)] = _ZERO
    for r in range(block):
        one, place = x[np.uint64(first + r)], (first + r) * block
        for c in range(block):
            out[e, np.uint64(first + c)] += one * matrices[of, np.uint64(place + c)]


@reordered_helper
def _multiply_turned(x, matrices, of, first, block, out, e):
    """Write the part of W · x that the matrix from coordinate `first` on makes."""
    for r in range(block):
        total, place = _ZERO, (first + r) * block
        for c in range(block):
            total += matrices[of, np.uint64(place + c)] * x[np.uint64(first + c)]
        out[e, np.uint64(first + r)] = total


@kernel(reordered=True)
def ask(
    rows: np.ndarray,
    matrices: np.ndarray,
    known: np.ndarray,
    relation: np.ndarray,
    order: np.ndarray,
    turned: bool,
    mask: np.ndarray,
    scale: np.float32,
    queries: np.ndarray,
) -> None:
    """Write the queries (B, D) of edges.

    Args:
        rows, matrices: (U, D) and (V, D · b) float32.
        known, relation: (B,) int64, indices of both.
        order: (B,) int64, each edge once.
        turned: whether W · x is asked for.
        mask: (B, D or more) bool, which coordinates of x are kept; of no rows: all.
        scale: what is kept is multiplied by.
    """
    dim = rows.shape[1]
    x = np.empty(dim, np.float32)
    block = matrices.shape[1] // dim
    for i in range(len(order)):
        if i + ROWS_AHEAD < len(order):
            ask_for_row(rows, known[order[i + ROWS_AHEAD]])
        e = order[i]
        of = relation[e]
        _use(rows, known[e], mask, np.uint64(e), scale, x)
        for first in range(0, dim, block):
            if turned:
                _multiply_turned(x, matrices, of, first, block, queries, e)
            else:
                _multiply(x, matrices, of, first, block, queries, e)


@reordered_helper
def _back(x, matrices, of, first, block, gradients, e, d_x, d_matrices):
    """Add the gradients of the part of a query that `_multiply` writes."""
    for r in range(block):
        i, place, total = np.uint64(first + r), (first + r) * block, _ZERO
        one = x[i]
        for c in range(block):
            gradient = gradients[e, np.uint64(first + c)]
            total += matrices[of, np.uint64(place + c)] * gradient
            d_matrices[of, np.uint64(place + c)] += one * gradient
        d_x[i] = total


@reordered_helper
def _back_turned(x, matrices, of, first, block, gradients, e, d_x, d_matrices):
    """Add the gradients of the part of a query that `_multiply_turned` writes."""
    for c in range(block):
        d_x[np.uint64(first + c)] = _ZERO
    for r in range(block):
        gradient, place = gradients[e, np.uint64(first + r)], (first + r) * block
        for c in range(block):
            i, j = np.uint64(first + c), np.uint64(place + c)
            d_x[i] += matrices[of, j] * gradient
            d_matrices[of, j] += gradient * x[i]


@kernel(reordered=True)
def ask_back(
    rows: np.ndarray,
    matrices: np.ndarray,
    known: np.ndarray,
    relation: np.ndarray,
    order: np.ndarray,
    turned: bool,
    mask: np.ndarray,
    scale: np.float32,
    gradients: np.ndarray,
    d_rows: np.ndarray,
    d_matrices: np.ndarray,
) -> None:
    """Add the gradients of rows and matrices, from those of the queries (B, D); arguments as for `ask`."""
    dim = rows.shape[1]
    x, d_x = np.empty(dim, np.float32), np.empty(dim, np.float32)
    block = matrices.shape[1] // dim
    for i in range(len(order)):
        if i + ROWS_AHEAD < len(order):
            ask_for_row(rows, known[order[i + ROWS_AHEAD]])
            ask_for_row(d_rows, known[order[i + ROWS_AHEAD]])
        e = order[i]
        of = relation[e]
        _use(rows, known[e], mask, np.uint64(e), scale, x)
        for first in range(0, dim, block):
            if turned:
                _back_turned(x, matrices, of, first, block, gradients, e, d_x, d_matrices)
            else:
                _back(x, matrices, of, first, block, gradients, e, d_x, d_matrices)
        _give_back(d_x, known[e], mask, np.uint64(e), scale, d_rows)
