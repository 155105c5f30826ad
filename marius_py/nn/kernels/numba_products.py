"""Products of a block of edges with their chunk's candidates (floor 1, Numba): three, of two makers.

Scores are queries times candidates, gradients of queries weights times candidates, and those of candidates
weights, by columns, times queries. MKL's product takes factors transposed as they lie, and lays them out for
itself at every call. oneDNN's takes rows alone: `Turned` holds what has to be laid out before, candidates
once a chunk. Importing this module needs Numba.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from marius_py.compiling import helper
from marius_py.nn.kernels.gemm import ROUNDED
from marius_py.nn.kernels.numba_gemm import multiply, multiply_rows
from marius_py.nn.kernels.numba_turning import turn
from marius_py.nn.kernels.numba_weights import write_factor
from marius_py.nn.kernels.workspace import padded

_ZERO, _ONE = np.float32(0), np.float32(1)
_HALF = np.uint32(16)
_PIECE = 2048
"""Candidates whose sum is made in one go: longer ones would round as many small numbers to a large one."""


class Turned(NamedTuple):
    """Factors as rows of oneDNN's products, contents do not matter; n, K, W and G whole registers.

    Factors are float32, or bfloat16 held as uint16. Words are numbers of 32 bits: a factor of float32, or two
    of bfloat16.

    Attributes:
        words: (K, W or W/2), the candidates' own memory as words. columns: the same turned, (W or W/2, G).
        candidates: words, the candidates (K, W) themselves or their rows in pairs (K/2, W).
        weights: words, the weights (n, K) themselves or their rows in pairs (n/2, K).
        queries: (W, n) float32, scratch. scaled: (W, n), queries times the edges' factors.
    """

    words: np.ndarray
    columns: np.ndarray
    candidates: np.ndarray
    weights: np.ndarray
    queries: np.ndarray
    scaled: np.ndarray


_padded = helper(padded)


@helper
def _whole(count):
    """Edges that oneDNN's products take instead of so many: it compiles one for each number of them."""
    return (count + 3) // 4 * 4 if count <= 256 else _padded(count)


@helper
def _make_even(factors, rows, columns):
    """Columns that a product takes: bfloat16 comes in pairs, an odd last one with zeros that are written."""
    even = columns + columns % 2 if factors.dtype == ROUNDED else columns
    for i in range(rows if even > columns else 0):
        factors[i, columns] = 0
    return even


@helper
def _pair(rows, count, width, pairs):
    """Write rows of bfloat16, an even number, in pairs; of float32 nothing."""
    for i in range(count // 2 if rows.dtype == ROUNDED else 0):
        for c in range(width):
            pairs[i, c] = np.uint32(rows[2 * i, c]) | (np.uint32(rows[2 * i + 1, c]) << _HALF)


@helper
def lay_out(turned, candidates, count, dim):
    """Lay out a chunk's `count` candidates (K, W) for its products."""
    if turned is not None:
        if candidates.dtype == ROUNDED:
            even = count + count % 2
            for d in range(dim if even > count else 0):
                candidates[count, d] = 0
            _pair(candidates, even, dim, turned.candidates)
        width = _make_even(candidates, count, dim)
        turn(turned.words, count, width * candidates.itemsize // 4, turned.columns)


@helper
def compare(gemm, turned, sizes, asked, candidates, scores):
    """Write the products of queries (n, W), as factors, with candidates to scores (n, K or more).

    `sizes`, of all products: n, K and D.
    """
    n, count, dim = sizes
    if turned is None:
        multiply(gemm, False, True, (n, count, dim), asked, candidates, _ZERO, scores)
    else:
        depth = _make_even(asked, n, dim)
        multiply_rows(gemm, (_whole(n), count, depth), asked, turned.columns, False, scores)


@helper
def add_candidates(gemm, turned, sizes, weights, candidates, sums):
    """Write the sums (n, W) of candidates by the weights (n, K or more) of n edges."""
    n, count, dim = sizes
    if turned is None:
        multiply(gemm, False, False, (n, dim, count), weights, candidates, _ZERO, sums)
    else:
        depth = _make_even(weights, n, count)
        for e in range(n, _whole(n)):  # no edges; they must not count among those of a candidate either
            for k in range(depth):
                weights[e, k] = 0
        # Whole registers of a row take no longer, and what comes of columns beyond D is not looked at.
        width = dim if candidates.dtype == ROUNDED else _padded(dim)
        for low in range(0, depth, _PIECE):
            piece = _whole(n), width, min(_PIECE, depth - low)
            multiply_rows(gemm, piece, weights, turned.candidates, low > 0, sums, low)


@helper
def add_queries(gemm, turned, sizes, queries, factors, weights, is_added, by_columns, scaled, sums):
    """Write the sums of n queries, times `factors` (n,), by the weights of each candidate, or add them.

    To (K, W), or (D, K or more) if `by_columns`, which they are in any case where products are oneDNN's.
    After `add_candidates`.
    """
    n, count, dim = sizes
    if turned is None:
        for e in range(n):
            for d in range(dim):
                write_factor(scaled, e, d, queries[e, d] * factors[e])
        kept = _ONE if is_added else _ZERO
        if by_columns:
            multiply(gemm, True, False, (dim, count, n), scaled, weights, kept, sums)
        else:
            multiply(gemm, True, False, (count, dim, n), weights, scaled, kept, sums)
    else:
        whole = _whole(n)
        turn(queries, n, dim, turned.queries)
        for d in range(dim):
            for e in range(n):
                write_factor(turned.scaled, d, e, turned.queries[d, e] * factors[e])
            for e in range(n, whole):
                turned.scaled[d, e] = 0
        _pair(weights, whole, count, turned.weights)
        multiply_rows(gemm, (dim, count, whole), turned.scaled, turned.weights, is_added, sums)
