"""Edges contrasted with shared negatives (floor 1, Numba): one side of a batch from rows to gradients.

In: the rows of a batch and its edges and negatives as indices into them. Out: the loss, and gradients added
to the rows'. For decoders whose scores are dot products with a query that is the known node's row (`NONE`),
its product with the relation's coordinate by coordinate (`REAL`), or their product as complex rows
(`COMPLEX`), under the softmax loss. A chunk's candidates are looked up once; a block of its edges at a time
goes from queries to gradients while scores and candidates lie in a core's cache. Nothing of this holds the
interpreter's lock, for which batches computed side by side would wait at every small operation. Importing
this module needs Numba.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from marius_py.nn.kernels.compiling import elementwise, helper, kernel, reordered_helper
from marius_py.nn.kernels.numba_sgemm import multiply

NONE, REAL, COMPLEX = 0, 1, 2
_ZERO, _ONE = np.float32(0), np.float32(1)


class Edges(NamedTuple):
    """B edges, asked for one side.

    Attributes:
        known, relation, answer: (B,) int64, indices of rows, relations, rows.
        product: how a query is made. sign: float32 -1 if the relation's complex conjugate takes part, else 1.
    """

    known: np.ndarray
    relation: np.ndarray
    answer: np.ndarray
    product: int
    sign: np.float32


class Negatives(NamedTuple):
    """K shared negatives of each of C chunks of P edges, C · P = B, and what they count.

    Attributes:
        nodes: (C, K) int64, indices of rows.
        group: (C, K) int64, in [0, G). weight: (C, P, G) float32, what those of a group count; G may be 0.
        keep: (C, P, K) bool, False where one does not count, or (C, P, 0): all do.
        dropped: (M,) int64, ascending positions in (C, P, K) that do not count either.
        log_weight: float32, logarithm of what all count.
    """

    nodes: np.ndarray
    group: np.ndarray
    weight: np.ndarray
    keep: np.ndarray
    dropped: np.ndarray
    log_weight: np.float32


class Room(NamedTuple):
    """What a block of n edges is worked on in, float32, W at least D + G; contents do not matter.

    Attributes:
        queries, scaled, d_queries: (n, W). shifts: (n,). scores: (n, K). candidates, sums: (K, W).
    """

    queries: np.ndarray
    scaled: np.ndarray
    d_queries: np.ndarray
    shifts: np.ndarray
    scores: np.ndarray
    candidates: np.ndarray
    sums: np.ndarray


_LOG2_E = np.float32(1.4426950408889634)
_ROUND = np.float32(3 << 22)
"""Added to a smaller number, it leaves the nearest whole one, in the lowest bits."""
_BIAS, _MANTISSA = np.int32(127), np.int32(23)
_POLYNOMIAL = tuple(
    np.float32(one)
    for one in (1.3264727214e-3, 9.6715128e-3, 5.5507337448e-2, 2.4022242083e-1, 6.931469776e-1)
)
"""Of 2^x - 1 for x from -1/2 to 1/2, divided by x: at most 1e-7 of 2^x away from it."""


@elementwise
def _power_of_2(x):
    """2^x to 2e-7 of it: infinite above 127.5, zero below -126.5.

    A loop over it becomes vector instructions, which one over the library's function does not.
    """
    x = np.float32(128) if x > np.float32(128) else x  # NaN stays
    x = np.float32(-127) if x < np.float32(-127) else x
    shifted = np.float32(x + _ROUND)
    rest = x - (shifted - _ROUND)
    of5, of4, of3, of2, of1 = _POLYNOMIAL
    result = _ONE + rest * (of1 + rest * (of2 + rest * (of3 + rest * (of4 + rest * of5))))
    # The bits of a whole power of 2 are its exponent, biased: 0 is those of -127, 255 those of 128, infinity.
    whole = np.int32((shifted.view(np.int32) << _MANTISSA) + (_BIAS << _MANTISSA))
    return result * whole.view(np.float32)


@reordered_helper
def _weigh(row, shift):
    """Replace scores by 2^(score + shift); returns their sum."""
    total = _ZERO
    for k in range(len(row)):
        weight = _power_of_2(row[k] + shift)
        row[k] = weight
        total += weight
    return total


@reordered_helper
def _ask(rows, relations, edges, first, room, count):
    """Write the queries of `count` edges from `first` on, and minus their own answers' scores as shifts."""
    dim = rows.shape[1]
    half = dim // 2
    for e in range(count):
        query, node = room.queries[e], rows[edges.known[first + e]]
        relation, right = relations[edges.relation[first + e]], rows[edges.answer[first + e]]
        if edges.product == COMPLEX:
            for d in range(half):
                im = relation[half + d] * edges.sign
                query[d] = node[d] * relation[d] - node[half + d] * im
                query[half + d] = node[half + d] * relation[d] + node[d] * im
        elif edges.product == REAL:
            for d in range(dim):
                query[d] = node[d] * relation[d]
        else:
            for d in range(dim):
                query[d] = node[d]
        positive = _ZERO
        for d in range(dim):
            positive += query[d] * right[d]
        room.shifts[e] = -positive


@reordered_helper
def _answer_back(rows, relations, edges, first, room, e, factor, pull, d_rows, d_relations):
    """Add the gradients of edge `first + e`'s known node, relation and answer, by the product rule.

    `factor` times the block's d_queries are the gradient that comes from negatives, `pull` is the gradient
    of the positive score.
    """
    dim = rows.shape[1]
    half = dim // 2
    known, answer, of = edges.known[first + e], edges.answer[first + e], edges.relation[first + e]
    node, right, relation = rows[known], rows[answer], relations[of]
    d_node, d_right, d_relation = d_rows[known], d_rows[answer], d_relations[of]
    query, gradient = room.queries[e], room.d_queries[e]
    for d in range(dim):
        gradient[d] = gradient[d] * factor + right[d] * pull
    for d in range(dim):
        d_right[d] += query[d] * pull
    if edges.product == COMPLEX:
        for d in range(half):
            im = relation[half + d] * edges.sign
            d_node[d] += gradient[d] * relation[d] + gradient[half + d] * im
            d_node[half + d] += gradient[half + d] * relation[d] - gradient[d] * im
        for d in range(half):
            d_relation[d] += gradient[d] * node[d] + gradient[half + d] * node[half + d]
            d_relation[half + d] += (gradient[half + d] * node[d] - gradient[d] * node[half + d]) * edges.sign
    elif edges.product == REAL:
        for d in range(dim):
            d_node[d] += gradient[d] * relation[d]
        for d in range(dim):
            d_relation[d] += gradient[d] * node[d]
    else:
        for d in range(dim):
            d_node[d] += gradient[d]


@helper
def _look_up(rows, nodes, group, groups, candidates):
    """Write a chunk's candidates; in the columns after their rows, 1 in that of their group."""
    dim = rows.shape[1]
    for k in range(len(nodes)):
        row, candidate = rows[nodes[k]], candidates[k]
        for d in range(dim):
            candidate[d] = row[d]
        for g in range(groups):
            candidate[dim + g] = _ONE if group[k] == g else _ZERO


@helper
def _leave_out(keep, dropped, place, first, count, scores):
    """Set the scores that must not count to minus infinity; returns the place in `dropped` after them."""
    width = scores.shape[1]
    for e in range(count if keep.shape[1] else 0):
        for k in range(width):
            scores[e, k] = scores[e, k] if keep[e, k] else -np.float32(np.inf)
    flat = scores.reshape(-1)
    while place < len(dropped) and dropped[place] < (first + count) * width:
        flat[dropped[place] - first * width] = -np.float32(np.inf)
        place += 1
    return place


@kernel()
def contrast(
    rows: np.ndarray,
    relations: np.ndarray,
    edges: Edges,
    negatives: Negatives,
    room: Room,
    sgemm: int,
    d_rows: np.ndarray,
    d_relations: np.ndarray,
) -> float:
    """Contrast edges with negatives: loss = log(1 + w Σ_k w_k e^(s_k - s⁺)), gradients of its mean.

    Args:
        rows, relations: (U, D) and (V, Dr) float32.
        sgemm: address of the matrix product.
        d_rows, d_relations: (U, D) and (V, Dr), added to.

    Returns:
        Sum of the edges' losses; infinite or NaN if scores overflow, then gradients are worthless.
    """
    dim, groups = rows.shape[1], negatives.weight.shape[2]
    num_chunks, count = negatives.nodes.shape
    chunk_edges, block = len(edges.known) // num_chunks, len(room.queries)
    share = _ONE / np.float32(len(edges.known))
    queries, candidates, scores = room.queries, room.candidates, room.scores
    loss, place = 0.0, 0
    for chunk in range(num_chunks):
        nodes = negatives.nodes[chunk]
        _look_up(rows, nodes, negatives.group[chunk], groups, candidates)
        for inside in range(0, chunk_edges, block):
            first, n = chunk * chunk_edges + inside, min(block, chunk_edges - inside)
            _ask(rows, relations, edges, first, room, n)
            for e in range(n if groups else 0):
                for g in range(groups):
                    queries[e, dim + g] = np.log(negatives.weight[chunk, inside + e, g])
            multiply(
                sgemm, False, True, (n, count, dim + groups), _LOG2_E, queries, candidates, _ZERO, scores
            )
            place = _leave_out(negatives.keep[chunk, inside:], negatives.dropped, place, first, n, scores)
            for e in range(n):
                room.shifts[e] = _weigh(scores[e], (room.shifts[e] + negatives.log_weight) * _LOG2_E)
            multiply(sgemm, False, False, (n, dim, count), _ONE, scores, candidates, _ZERO, room.d_queries)
            for e in range(n):
                total = room.shifts[e]
                loss += np.log1p(np.float64(total))
                factor = share / (total + _ONE)
                for d in range(dim):
                    room.scaled[e, d] = queries[e, d] * factor
                _answer_back(
                    rows, relations, edges, first, room, e, factor, -total * factor, d_rows, d_relations
                )
            kept = _ONE if inside else _ZERO
            multiply(sgemm, True, False, (count, dim, n), _ONE, scores, room.scaled, kept, room.sums)
        for k in range(count):
            sums, d_row = room.sums[k], d_rows[nodes[k]]
            for d in range(dim):
                d_row[d] += sums[d]
    return loss
