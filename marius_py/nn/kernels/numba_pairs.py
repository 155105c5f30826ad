"""Queries of edges and their true answers (floor 1, Numba), forward and backward in one pass over the edges.

In: the rows of a batch and its edges as indices into them. Out: queries with the column that shifts their
scores, and gradients added to the rows'. For decoders whose scores are dot products with a query that is the
known node's row (`NONE`), its product with the relation's coordinate by coordinate (`REAL`), or their product
as complex rows (`COMPLEX`). Importing this module needs Numba.
"""

from __future__ import annotations

import numpy as np

from marius_py.nn.kernels.compiling import helper, kernel

NONE, REAL, COMPLEX = 0, 1, 2
_ZERO, _ONE = np.float32(0), np.float32(1)


@helper
def _multiply(product, node, relation, sign, out):
    """Write a query: the product of two rows, of the relation's conjugate if sign is -1."""
    if product == COMPLEX:
        half = len(node) // 2
        for d in range(half):
            im = relation[half + d] * sign
            out[d] = node[d] * relation[d] - node[half + d] * im
            out[half + d] = node[half + d] * relation[d] + node[d] * im
    elif product == REAL:
        for d in range(len(node)):
            out[d] = node[d] * relation[d]
    else:
        for d in range(len(node)):
            out[d] = node[d]


@kernel(reordered=True)
def ask(
    rows: np.ndarray,
    relations: np.ndarray,
    known: np.ndarray,
    relation: np.ndarray,
    answer: np.ndarray,
    product: int,
    sign: np.float32,
    log_weight: np.float32,
    queries: np.ndarray,
) -> None:
    """Write the queries of n edges, and the shift by their own answers' scores in the column after them.

    Args:
        rows, relations: (U, D) and (V, Dr) float32.
        known, relation, answer: (n,) int64, indices of rows, relations, rows.
        product: how a query is made. sign: -1 if the relation's complex conjugate takes part, else 1.
        log_weight: added to the shift.
        queries: (n, W) float32: D columns, log_weight - positive score, zeros.
    """
    dim, width = rows.shape[1], queries.shape[1]
    for e in range(len(known)):
        query, right = queries[e], rows[answer[e]]
        _multiply(product, rows[known[e]], relations[relation[e]], sign, query)
        positive = _ZERO
        for d in range(dim):
            positive += query[d] * right[d]
        query[dim] = log_weight - positive
        for d in range(dim + 1, width):
            query[d] = _ZERO


@kernel()
def reduce_softmax(
    row_sums: np.ndarray,
    queries: np.ndarray,
    num_edges: int,
    scaled: np.ndarray,
    loss: np.ndarray,
    factor: np.ndarray,
    d_positive: np.ndarray,
) -> None:
    """Finish the softmax of n edges, `kernels.objectives.SoftmaxObjective.reduce`.

    Args:
        row_sums: (n,) float32 sums of weights of each edge's negatives.
        queries: (n, W), W at least G.
        num_edges: edges of the batch, whose mean loss the gradients are of.
        scaled: (n, G), written: the queries' first columns times the factor.
        loss, factor, d_positive: (n,), written: loss, factor of the sums, gradient of the positive score.
    """
    share = _ONE / np.float32(num_edges)
    for e in range(len(row_sums)):
        total = row_sums[e]
        inverse = _ONE / (total + _ONE)
        loss[e] = np.log1p(total)
        factor[e] = inverse * share
        d_positive[e] = -total * inverse * share
        for d in range(scaled.shape[1]):
            scaled[e, d] = queries[e, d] * factor[e]


@kernel(reordered=True)
def answer_back(
    rows: np.ndarray,
    relations: np.ndarray,
    known: np.ndarray,
    relation: np.ndarray,
    answer: np.ndarray,
    product: int,
    sign: np.float32,
    queries: np.ndarray,
    sums: np.ndarray,
    factor: np.ndarray,
    d_positive: np.ndarray,
    d_rows: np.ndarray,
    d_relations: np.ndarray,
) -> None:
    """Add the gradients of n edges' known nodes, relations and answers, by the product rule.

    Args:
        rows, relations, known, relation, answer, product, sign, queries: as for `ask`.
        sums: (n, G) whose first D columns, times factor (n,), are the gradient that comes from negatives.
        d_positive: (n,) gradients of the positive scores.
        d_rows, d_relations: (U, G) and (V, Dr), added to.
    """
    dim = rows.shape[1]
    half = dim // 2
    gradient = np.empty(dim, np.float32)
    for e in range(len(known)):
        node, right, of = rows[known[e]], rows[answer[e]], relations[relation[e]]
        d_right, d_node, d_of = d_rows[answer[e]], d_rows[known[e]], d_relations[relation[e]]
        scale, pull = factor[e], d_positive[e]
        for d in range(dim):
            gradient[d] = sums[e, d] * scale + right[d] * pull
        for d in range(dim):
            d_right[d] += queries[e, d] * pull
        if product == COMPLEX:
            for d in range(half):
                im = of[half + d] * sign
                d_node[d] += gradient[d] * of[d] + gradient[half + d] * im
                d_node[half + d] += gradient[half + d] * of[d] - gradient[d] * im
            for d in range(half):
                d_of[d] += gradient[d] * node[d] + gradient[half + d] * node[half + d]
                d_of[half + d] += (gradient[half + d] * node[d] - gradient[d] * node[half + d]) * sign
        elif product == REAL:
            for d in range(dim):
                d_node[d] += gradient[d] * of[d]
            for d in range(dim):
                d_of[d] += gradient[d] * node[d]
        else:
            for d in range(dim):
                d_node[d] += gradient[d]
