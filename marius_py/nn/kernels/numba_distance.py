"""Sums of moduli between queries and candidates (floor 1, Numba), forward and backward in one pass each.

In: complex rows of D floats whose first half holds the real parts; rows may be wider. Candidates are taken in
blocks that stay in a core's cache while all queries of their chunk meet them. Importing this module needs
Numba.
"""

from __future__ import annotations

import numpy as np

from marius_py.nn.kernels.compiling import kernel

_BLOCK_FLOATS = 1 << 17
_LEAST_SQUARE = np.float32(1e-24)
_ZERO = np.float32(0)


@kernel(reordered=True)
def moduli(query: np.ndarray, candidates: np.ndarray, dim: int, out: np.ndarray) -> None:
    """Write Σ_j |q_j − k_j| of queries (C, P, W) and candidates (C, K, W) to out (C, P, K), of one dtype."""
    chunks, edges = query.shape[:2]
    count, half = candidates.shape[1], dim // 2
    size = max(1, _BLOCK_FLOATS // max(1, dim))
    for c in range(chunks):
        for first in range(0, count, size):
            for p in range(edges):
                for k in range(first, min(first + size, count)):
                    total = _ZERO
                    for d in range(half):
                        re = query[c, p, d] - candidates[c, k, d]
                        im = query[c, p, half + d] - candidates[c, k, half + d]
                        total += np.sqrt(re * re + im * im)
                    out[c, p, k] = total


@kernel(reordered=True)
def moduli_backward(
    gradient: np.ndarray,
    query: np.ndarray,
    candidates: np.ndarray,
    dim: int,
    factor: np.ndarray,
    d_query: np.ndarray,
    d_candidates: np.ndarray,
) -> None:
    """Add the gradients of `moduli` to those of queries and candidates; that of a difference of zero is zero.

    Args:
        gradient: (C, P, K), of the sums.
        query, candidates, dim: as for `moduli`.
        factor: (C, P), of an edge's part in the gradients of candidates.
        d_query, d_candidates: (C, P, G) and (C, K, G), added to in the first D columns.
    """
    chunks, edges = query.shape[:2]
    count, half = candidates.shape[1], dim // 2
    size = max(1, _BLOCK_FLOATS // max(1, 2 * dim))
    for c in range(chunks):
        for first in range(0, count, size):
            for p in range(edges):
                share = factor[c, p]
                for k in range(first, min(first + size, count)):
                    weight = gradient[c, p, k]
                    for d in range(half):
                        re = query[c, p, d] - candidates[c, k, d]
                        im = query[c, p, half + d] - candidates[c, k, half + d]
                        scale = weight / np.sqrt(max(re * re + im * im, _LEAST_SQUARE))
                        re *= scale
                        im *= scale
                        d_query[c, p, d] += re
                        d_query[c, p, half + d] += im
                        d_candidates[c, k, d] -= re * share
                        d_candidates[c, k, half + d] -= im * share
