"""Rows after dropout (floor 1, Numba): uses of rows out of tables, and gradients of uses back into these.

Each use of a row has a mask of its own (`nn.dropout`), so that the query of an edge's negatives and that of
its own answer are two. Importing this module needs Numba.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from marius_py.compiling import helper
from marius_py.nn.kernels.numba_queries import Edges, ask, ask_back
from marius_py.nn.kernels.numba_weights import write_factor
from marius_py.prefetch import ROWS_AHEAD, ask_for_row

_ZERO = np.float32(0)


class Masks(NamedTuple):
    """Which coordinates of each use are kept, bool, as wide as the rows or wider; of no rows: all are.

    Attributes:
        node, relation: (B, W), for queries that meet negatives.
        positive_node, positive_relation, answer: (B, W), for those that meet the own answer, and for it.
        candidates: (C · K, W).
        node_scale, relation_scale: float32, what is kept is multiplied by.
    """

    node: np.ndarray
    relation: np.ndarray
    positive_node: np.ndarray
    positive_relation: np.ndarray
    answer: np.ndarray
    candidates: np.ndarray
    node_scale: np.float32
    relation_scale: np.float32


class Uses(NamedTuple):
    """Rows of a block of n edges after dropout, their own queries, and scratch; (n, D) float32 each.

    Attributes:
        nodes, relations: for queries that meet negatives.
        positive_nodes, positive_relations, queries, answers: for those that meet own answers, and these;
            the gradients of `queries` and `answers` take their place.
        d_nodes, d_relations: gradients of a query's rows.
        places: (n,) int64, 0 to n.
    """

    nodes: np.ndarray
    relations: np.ndarray
    positive_nodes: np.ndarray
    positive_relations: np.ndarray
    queries: np.ndarray
    answers: np.ndarray
    d_nodes: np.ndarray
    d_relations: np.ndarray
    places: np.ndarray


@helper
def use(table, index, first, count, mask, scale, out):
    """Write the rows of a table at index[first:first + count], after dropout; rounded if `out` is."""
    width = table.shape[1]
    for e in range(count):
        if e + ROWS_AHEAD < count:
            ask_for_row(table, index[first + e + ROWS_AHEAD])
        row, place = index[first + e], np.uint64(first + e)
        if len(mask):
            for d in range(width):
                write_factor(out, e, d, table[row, d] * (scale if mask[place, d] else _ZERO))
        else:
            for d in range(width):
                write_factor(out, e, d, table[row, d])


@helper
def _give_back(gradients, index, first, count, mask, scale, table):
    """Add the gradients of what `use` has written to those of its table."""
    width = table.shape[1]
    for e in range(count):
        if e + ROWS_AHEAD < count:
            ask_for_row(table, index[first + e + ROWS_AHEAD])
        row, place = index[first + e], np.uint64(first + e)
        if len(mask):
            for d in range(width):
                table[row, d] += gradients[e, d] * (scale if mask[place, d] else _ZERO)
        else:
            for d in range(width):
                table[row, d] += gradients[e, d]


@helper
def _in_place(edges, uses):
    """Edges whose rows are the uses of a block, in order."""
    places = uses.places
    return Edges(places, places, places, places, edges.product, edges.sign, edges.weight)


@helper
def ask_dropped(rows, relations, edges, first, count, masks, uses, queries):
    """As `numba_queries.ask`, both queries of each edge, and its answer after dropout."""
    known, relation, here = edges.known, edges.relation, _in_place(edges, uses)
    scale, of_relation = masks.node_scale, masks.relation_scale
    use(rows, known, first, count, masks.node, scale, uses.nodes)
    use(relations, relation, first, count, masks.relation, of_relation, uses.relations)
    ask(uses.nodes, uses.relations, here, 0, count, queries)
    use(rows, edges.own, first, count, masks.positive_node, scale, uses.positive_nodes)
    use(relations, relation, first, count, masks.positive_relation, of_relation, uses.positive_relations)
    ask(uses.positive_nodes, uses.positive_relations, here, 0, count, uses.queries)
    use(rows, edges.answer, first, count, masks.answer, scale, uses.answers)


@helper
def _query_back(nodes, relations, edges, count, gradients, uses):
    """Write the gradients of the rows that a query is made of."""
    d_nodes, d_relations = uses.d_nodes, uses.d_relations
    for e in range(count):
        for d in range(d_nodes.shape[1]):
            d_nodes[e, d] = _ZERO
        for d in range(d_relations.shape[1]):
            d_relations[e, d] = _ZERO
    ask_back(nodes, relations, edges, 0, count, gradients, d_nodes, d_relations)


@helper
def ask_back_dropped(edges, first, count, masks, uses, gradients, d_rows, d_relations):
    """Add the gradients of all uses to those of their rows, from those of queries, own ones and answers."""
    known, relation, here = edges.known, edges.relation, _in_place(edges, uses)
    scale, of_relation = masks.node_scale, masks.relation_scale
    _give_back(uses.answers, edges.answer, first, count, masks.answer, scale, d_rows)
    _query_back(uses.nodes, uses.relations, here, count, gradients, uses)
    _give_back(uses.d_nodes, known, first, count, masks.node, scale, d_rows)
    _give_back(uses.d_relations, relation, first, count, masks.relation, of_relation, d_relations)
    _query_back(uses.positive_nodes, uses.positive_relations, here, count, uses.queries, uses)
    _give_back(uses.d_nodes, edges.own, first, count, masks.positive_node, scale, d_rows)
    _give_back(uses.d_relations, relation, first, count, masks.positive_relation, of_relation, d_relations)


@helper
def add_dropped(table, index, sums, first, mask, scale, turned):
    """Add the gradients of candidates, the uses of theirs from `first` on, to those of their rows.

    Sums are (K, D or more), or (D, K or more) if `turned`.
    """
    width = table.shape[1]
    for k in range(len(index)):
        if k + ROWS_AHEAD < len(index):
            ask_for_row(table, index[k + ROWS_AHEAD])
        row, place = index[k], np.uint64(first + k)
        for d in range(width):
            gradient = sums[d, k] if turned else sums[k, d]
            if len(mask):
                gradient *= scale if mask[place, d] else _ZERO
            table[row, d] += gradient
