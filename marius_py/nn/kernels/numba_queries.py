"""Queries of edges, and their gradients taken back to rows (floor 1, Numba): what contrasting starts and ends
with, whatever queries are compared by.

A query is the known node's row (`NONE`), its product with the relation's coordinate by coordinate (`REAL`),
their product as complex rows (`COMPLEX`), or their sum (`SUM`). Importing this module needs Numba.

The loops index whole tables: a view of a row would be counted as a reference, which takes longer than the
row's own numbers. Indices that are sums are unsigned, or loops would provide for negative ones.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from marius_py.compiling import reordered_helper
from marius_py.prefetch import ROWS_AHEAD, ask_for_row

NONE, REAL, COMPLEX, SUM = 0, 1, 2, 3


class Edges(NamedTuple):
    """B edges, asked for one side.

    Attributes:
        known, relation, answer: (B,) int64, indices of rows, relations, rows.
        own: (B,) int64, indices of the rows that `known` are where an edge meets its own answer: the same,
            unless these have been through a dropout of their own.
        product: how a query is made. sign: float32 -1 if the relation's complex conjugate takes part, or
            if it is subtracted, else 1.
        weight: (B,) float32, what their losses count; empty: 1 each.
    """

    known: np.ndarray
    relation: np.ndarray
    answer: np.ndarray
    own: np.ndarray
    product: int
    sign: np.float32
    weight: np.ndarray


@reordered_helper
def ask(rows, relations, edges, first, count, queries):
    """Write the queries of `count` edges from `first` on."""
    known, of = edges.known, edges.relation
    dim, product, sign = rows.shape[1], edges.product, edges.sign
    half = dim // 2
    for e in range(count):
        if e + ROWS_AHEAD < count:
            ask_for_row(rows, known[first + e + ROWS_AHEAD])
        node, relation = known[first + e], of[first + e]
        if product == COMPLEX:
            for d in range(half):
                i = np.uint64(half + d)
                im = relations[relation, i] * sign
                queries[e, d] = rows[node, d] * relations[relation, d] - rows[node, i] * im
            for d in range(half):
                i = np.uint64(half + d)
                im = relations[relation, i] * sign
                queries[e, i] = rows[node, i] * relations[relation, d] + rows[node, d] * im
        elif product == REAL:
            for d in range(dim):
                queries[e, d] = rows[node, d] * relations[relation, d]
        elif product == SUM:
            for d in range(dim):
                queries[e, d] = rows[node, d] + relations[relation, d] * sign
        else:
            for d in range(dim):
                queries[e, d] = rows[node, d]


@reordered_helper
def ask_back(rows, relations, edges, first, count, gradients, d_rows, d_relations):
    """Add the gradients of the known nodes and relations of `count` edges, from those of their queries."""
    if edges.product == COMPLEX:
        _products_back(rows, relations, edges, first, count, gradients, d_rows, d_relations)
        return
    known, of = edges.known, edges.relation
    dim, product, sign = rows.shape[1], edges.product, edges.sign
    for e in range(count):
        if e + ROWS_AHEAD < count:
            ask_for_row(rows, known[first + e + ROWS_AHEAD])
            ask_for_row(d_rows, known[first + e + ROWS_AHEAD])
        node, relation = known[first + e], of[first + e]
        if product == REAL:
            for d in range(dim):
                d_rows[node, d] += gradients[e, d] * relations[relation, d]
            for d in range(dim):
                d_relations[relation, d] += gradients[e, d] * rows[node, d]
            continue
        for d in range(dim):
            d_rows[node, d] += gradients[e, d]
        for d in range(dim if product == SUM else 0):
            d_relations[relation, d] += gradients[e, d] * sign


@reordered_helper
def _products_back(rows, relations, edges, first, count, gradients, d_rows, d_relations):
    """As `ask_back`, of complex products."""
    known, of = edges.known, edges.relation
    sign, half = edges.sign, rows.shape[1] // 2
    for e in range(count):
        if e + ROWS_AHEAD < count:
            ask_for_row(rows, known[first + e + ROWS_AHEAD])
            ask_for_row(d_rows, known[first + e + ROWS_AHEAD])
        node, relation = known[first + e], of[first + e]
        for d in range(half):
            i = np.uint64(half + d)
            im = relations[relation, i] * sign
            d_rows[node, d] += gradients[e, d] * relations[relation, d] + gradients[e, i] * im
        for d in range(half):
            i = np.uint64(half + d)
            im = relations[relation, i] * sign
            d_rows[node, i] += gradients[e, i] * relations[relation, d] - gradients[e, d] * im
        for d in range(half):
            i = np.uint64(half + d)
            d_relations[relation, d] += gradients[e, d] * rows[node, d] + gradients[e, i] * rows[node, i]
        for d in range(half):
            i = np.uint64(half + d)
            im = gradients[e, i] * rows[node, d] - gradients[e, d] * rows[node, i]
            d_relations[relation, i] += im * sign
