"""Distances that are sums over coordinates (floor 1, Numba): of queries and shared candidates, and back.

Σ_d |q_d − k_d| of real rows, or Σ_j |q_j − k_j| of complex ones, D floats whose first half holds the real
parts. No matrix product makes them. Candidates are turned, (D, K), for the loops to run along them: four
queries meet two coordinates of a block of candidates at a time, whose sums stay in a core's cache. Importing
this module needs Numba.
"""

from __future__ import annotations

import numpy as np

from marius_py.compiling import elementwise, helper, kernel, reordered_helper

BLOCK = 512
"""Candidates that all queries meet before the next: with their gradients they stay in a core's cache."""
LINE = 16
"""Candidates that are turned together: they fill a line of a column."""

_ZERO, _ONE = np.float32(0), np.float32(1)
_LEAST_SQUARE = np.float32(1e-24)
_SIGN = np.uint32(1 << 31)
_SINGLE = np.dtype(np.float32)


@elementwise
def modulus(re, im):
    """|re + i im|."""
    return np.sqrt(re * re + im * im)


@elementwise
def _inverse_modulus(re, im):
    """1 / |re + i im|, by which a difference of zero stays one."""
    return _ONE / np.sqrt(re * re + im * im + _LEAST_SQUARE)


@elementwise
def _signed(weights, row, column, difference):
    """A weight times the sign of a difference, that of zero being 1 or −1."""
    if weights.dtype == _SINGLE:  # known when this is compiled; a product would take longer
        sign = np.float32(difference).view(np.uint32) & _SIGN
        bits = np.float32(weights[row, column]).view(np.uint32)
        return np.uint32(bits ^ sign).view(np.float32)
    return weights[row, column] if difference >= _ZERO else -weights[row, column]


@reordered_helper
def measure(queries, count, turned, num_candidates, is_complex, unit, distances, column):
    """Write the distances of `count` queries from the first candidates, times a unit, from a column on.

    Args:
        queries: (n, D or more). turned: (D, K or more), candidates.
        distances: (n, column + num_candidates or more).
    """
    dim = len(turned)
    sums = np.empty((4, BLOCK), distances.dtype)
    for low in range(0, num_candidates, BLOCK):
        size = min(BLOCK, num_candidates - low)
        for e in range(0, count, 4):
            for i in range(4):
                for k in range(size):
                    sums[i, k] = _ZERO
            for i in range((dim + 1) // 2):
                d = i if is_complex else 2 * i
                other = dim // 2 + i if is_complex else min(d + 1, dim - 1)
                _add_distances(queries, e, count, turned, d, other, low, size, is_complex, sums)
            for i in range(min(4, count - e)):
                for k in range(size):
                    distances[np.uint64(e + i), np.uint64(column + low + k)] = sums[i, k] * unit


@reordered_helper
def _add_distances(queries, e, count, turned, d, f, low, size, is_complex, sums):
    """Add what coordinates d and f do to the distances of four queries, real and imaginary part or each."""
    last = count - 1
    e1, e2, e3 = min(e + 1, last), min(e + 2, last), min(e + 3, last)
    x0, x1, x2, x3 = queries[e, d], queries[e1, d], queries[e2, d], queries[e3, d]
    y0, y1, y2, y3 = queries[e, f], queries[e1, f], queries[e2, f], queries[e3, f]
    if is_complex:
        for k in range(size):
            x, y = turned[d, np.uint64(low + k)], turned[f, np.uint64(low + k)]
            sums[0, k] += modulus(x0 - x, y0 - y)
            sums[1, k] += modulus(x1 - x, y1 - y)
            sums[2, k] += modulus(x2 - x, y2 - y)
            sums[3, k] += modulus(x3 - x, y3 - y)
    elif f == d:  # the last of an odd number
        for k in range(size):
            x = turned[d, np.uint64(low + k)]
            sums[0, k] += abs(x0 - x)
            sums[1, k] += abs(x1 - x)
            sums[2, k] += abs(x2 - x)
            sums[3, k] += abs(x3 - x)
    else:
        for k in range(size):
            x, y = turned[d, np.uint64(low + k)], turned[f, np.uint64(low + k)]
            sums[0, k] += abs(x0 - x) + abs(y0 - y)
            sums[1, k] += abs(x1 - x) + abs(y1 - y)
            sums[2, k] += abs(x2 - x) + abs(y2 - y)
            sums[3, k] += abs(x3 - x) + abs(y3 - y)


@reordered_helper
def measure_back(
    queries, count, turned, num_candidates, is_complex, weights, column, factors, d_queries, d_turned
):
    """Add the gradients of distances that `measure` writes, of differences of zero any that is one.

    Args:
        queries, count, turned, num_candidates, is_complex, column: as for `measure`.
        weights: (n, column + num_candidates or more), by which the distances' gradients are multiplied.
        factors: (n,), further ones for the sums of candidates.
        d_queries: (n, D or more), Σ_k weight_k ∂distance_k/∂query is added to.
        d_turned: (D, K or more), Σ_e factor_e weight_e ∂distance_e/∂query_e is added to: minus the gradient
            of the candidates.
    """
    dim = len(turned)
    for low in range(0, num_candidates, BLOCK):
        stop = min(low + BLOCK, num_candidates)
        for e in range(0, count, 4):
            if is_complex:
                for d in range(dim // 2):
                    _add_tangents(
                        queries, e, count, turned, d, low, stop, weights, column, factors, d_queries, d_turned
                    )
            else:
                for d in range(dim):
                    _add_signs(
                        queries, e, count, turned, d, low, stop, weights, column, factors, d_queries, d_turned
                    )


@reordered_helper
def _add_signs(queries, e, count, turned, d, low, stop, weights, column, factors, d_queries, d_turned):
    """As `measure_back`, of coordinate d of four real queries and of candidates low:stop."""
    last = count - 1
    e1, e2, e3 = min(e + 1, last), min(e + 2, last), min(e + 3, last)
    f0, f1 = factors[e], factors[e1] if e + 1 < count else _ZERO
    f2, f3 = factors[e2] if e + 2 < count else _ZERO, factors[e3] if e + 3 < count else _ZERO
    x0, x1, x2, x3 = queries[e, d], queries[e1, d], queries[e2, d], queries[e3, d]
    s0, s1, s2, s3 = _ZERO, _ZERO, _ZERO, _ZERO
    for k in range(np.uint64(low), np.uint64(stop)):
        x, place = turned[d, k], np.uint64(column + k)
        u0 = _signed(weights, e, place, x0 - x)
        u1 = _signed(weights, e1, place, x1 - x)
        u2 = _signed(weights, e2, place, x2 - x)
        u3 = _signed(weights, e3, place, x3 - x)
        s0 += u0
        s1 += u1
        s2 += u2
        s3 += u3
        d_turned[d, k] += (u0 * f0 + u1 * f1) + (u2 * f2 + u3 * f3)
    d_queries[e, d] += s0
    if e + 1 < count:
        d_queries[e1, d] += s1
    if e + 2 < count:
        d_queries[e2, d] += s2
    if e + 3 < count:
        d_queries[e3, d] += s3


@reordered_helper
def _add_tangents(queries, e, count, turned, d, low, stop, weights, column, factors, d_queries, d_turned):
    """As `_add_signs`, of complex coordinate d."""
    last, f = count - 1, np.uint64(len(turned) // 2 + d)
    e1, e2, e3 = min(e + 1, last), min(e + 2, last), min(e + 3, last)
    f0, f1 = factors[e], factors[e1] if e + 1 < count else _ZERO
    f2, f3 = factors[e2] if e + 2 < count else _ZERO, factors[e3] if e + 3 < count else _ZERO
    x0, x1, x2, x3 = queries[e, d], queries[e1, d], queries[e2, d], queries[e3, d]
    y0, y1, y2, y3 = queries[e, f], queries[e1, f], queries[e2, f], queries[e3, f]
    s0, s1, s2, s3 = _ZERO, _ZERO, _ZERO, _ZERO
    t0, t1, t2, t3 = _ZERO, _ZERO, _ZERO, _ZERO
    for k in range(np.uint64(low), np.uint64(stop)):
        x, y, place = turned[d, k], turned[f, k], np.uint64(column + k)
        u0, v0 = x0 - x, y0 - y
        u1, v1 = x1 - x, y1 - y
        u2, v2 = x2 - x, y2 - y
        u3, v3 = x3 - x, y3 - y
        r0 = weights[e, place] * _inverse_modulus(u0, v0)
        r1 = weights[e1, place] * _inverse_modulus(u1, v1)
        r2 = weights[e2, place] * _inverse_modulus(u2, v2)
        r3 = weights[e3, place] * _inverse_modulus(u3, v3)
        u0, u1, u2, u3 = u0 * r0, u1 * r1, u2 * r2, u3 * r3
        v0, v1, v2, v3 = v0 * r0, v1 * r1, v2 * r2, v3 * r3
        s0 += u0
        s1 += u1
        s2 += u2
        s3 += u3
        t0 += v0
        t1 += v1
        t2 += v2
        t3 += v3
        d_turned[d, k] += (u0 * f0 + u1 * f1) + (u2 * f2 + u3 * f3)
        d_turned[f, k] += (v0 * f0 + v1 * f1) + (v2 * f2 + v3 * f3)
    d_queries[e, d] += s0
    d_queries[e, f] += t0
    if e + 1 < count:
        d_queries[e1, d] += s1
        d_queries[e1, f] += t1
    if e + 2 < count:
        d_queries[e2, d] += s2
        d_queries[e2, f] += t2
    if e + 3 < count:
        d_queries[e3, d] += s3
        d_queries[e3, f] += t3


@helper
def _turn(candidates, first, count, turned):
    """Write `count` candidates (K, W) from the first on as columns."""
    for low in range(0, count, LINE):
        for d in range(len(turned)):
            for k in range(low, min(low + LINE, count)):
                turned[d, k] = candidates[np.uint64(first + k), d]


@helper
def _turn_back(sums, first, count, d_candidates):
    """Subtract columns from the gradients of `count` candidates (K, W) from the first on."""
    for low in range(0, count, LINE):
        for d in range(len(sums)):
            for k in range(low, min(low + LINE, count)):
                d_candidates[np.uint64(first + k), d] -= sums[d, k]


@elementwise
def _apart(count):
    """Floats from row to row of so many: an odd number of lines, or columns would crowd the cache."""
    return ((count // LINE + 1) | 1) * LINE


@kernel(reordered=True)
def distances(query: np.ndarray, candidates: np.ndarray, dim: int, is_complex: bool, out: np.ndarray) -> None:
    """Write the distances of queries (C, P, W) and candidates (C, K, W) to out (C, P, K), of one dtype."""
    count = candidates.shape[1]
    turned = np.empty((dim, _apart(min(BLOCK, count))), out.dtype)
    for c in range(len(query)):
        for first in range(0, count, BLOCK):
            size = min(BLOCK, count - first)
            _turn(candidates[c], first, size, turned)
            measure(query[c], query.shape[1], turned, size, is_complex, _ONE, out[c], first)


@kernel(reordered=True)
def distances_backward(
    gradient: np.ndarray,
    query: np.ndarray,
    candidates: np.ndarray,
    dim: int,
    is_complex: bool,
    factor: np.ndarray,
    d_query: np.ndarray,
    d_candidates: np.ndarray,
) -> None:
    """Add the gradients of `distances` to those of queries and candidates.

    Args:
        gradient: (C, P, K), of the distances.
        query, candidates, dim, is_complex: as for `distances`.
        factor: (C, P), of an edge's part in the gradients of candidates.
        d_query, d_candidates: (C, P, G) and (C, K, G), added to in the first D columns.
    """
    count, edges = candidates.shape[1], query.shape[1]
    turned = np.empty((dim, _apart(min(BLOCK, count))), gradient.dtype)
    sums = np.empty_like(turned)
    for c in range(len(query)):
        for first in range(0, count, BLOCK):
            size = min(BLOCK, count - first)
            _turn(candidates[c], first, size, turned)
            sums[:] = _ZERO
            measure_back(
                query[c], edges, turned, size, is_complex, gradient[c], first, factor[c], d_query[c], sums
            )
            _turn_back(sums, first, size, d_candidates[c])
