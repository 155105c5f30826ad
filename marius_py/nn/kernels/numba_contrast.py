"""Edges contrasted with shared negatives (floor 1, Numba): one side of a batch from rows to gradients.

In: the rows of a batch and its edges and negatives as indices into them. Out: the loss, and gradients added
to the rows'. For decoders whose scores are dot products with a query that `numba_queries` makes, under the
losses of `numba_weights`. A chunk's candidates are looked up once; a block of its edges at a time goes from
queries to gradients while scores and candidates lie in a core's cache. Nothing of this holds the
interpreter's lock, for which batches computed side by side would wait at every small operation.

The factors of products may be rounded to bfloat16, for processors that have units for them. Everything else,
sums of products included, is float32. Importing this module needs Numba.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from marius_py.compiling import helper, kernel, reordered_helper
from marius_py.nn.kernels.gemm import ROUNDED
from marius_py.nn.kernels.numba_dropout import Masks, Uses, add_dropped, ask_back_dropped, ask_dropped, use
from marius_py.nn.kernels.numba_products import Turned, add_candidates, add_queries, compare, lay_out
from marius_py.nn.kernels.numba_queries import Edges, ask, ask_back
from marius_py.nn.kernels.numba_rows import add_columns, add_each
from marius_py.nn.kernels.numba_weights import (
    NOTHING,
    Averages,
    Block,
    Negatives,
    count_chunk,
    leave_out,
    weigh,
    write_factor,
)
from marius_py.prefetch import ROWS_AHEAD, ask_for_row

_ZERO = np.float32(0)


class Room(NamedTuple):
    """What a block of n edges is worked on in, W at least D; contents do not matter.

    Attributes:
        queries, gradients: (n, W) float32. scores: (n, K or more) float32.
        positives, factors, pulls: (n,) float32: scores of own answers, and see `numba_weights`.
        sums: (K, W) float32, of the candidates' gradients; or (D, K or more) if `by_columns`.
        asked, scaled: (n, W), weights: (n, K or more), candidates: (K, W), factors of products, float32 or
            bfloat16 held as uint16; if float32, `asked` must be `queries` and `weights` must be `scores`.
        by_columns: whether sums are made of columns, which a product is faster at where rows are no whole
            registers: it works along the rows of what it writes.
    """

    queries: np.ndarray
    gradients: np.ndarray
    positives: np.ndarray
    factors: np.ndarray
    pulls: np.ndarray
    scores: np.ndarray
    sums: np.ndarray
    asked: np.ndarray
    scaled: np.ndarray
    weights: np.ndarray
    candidates: np.ndarray
    by_columns: bool


@reordered_helper
def _answer(rows, answer, first, count, queries, positives):
    """Write the scores of the own answers of `count` edges from `first` on."""
    dim = rows.shape[1]
    for e in range(count):
        if e + ROWS_AHEAD < count:
            ask_for_row(rows, answer[first + e + ROWS_AHEAD])
        right = answer[first + e]
        positive = _ZERO
        for d in range(dim):
            positive += queries[e, d] * rows[right, d]
        positives[e] = positive


@reordered_helper
def _answer_back(rows, answer, first, count, factors, pulls, queries, gradients, d_rows):
    """Turn the weighted sums of `count` edges' candidates into gradients of their queries, in place.

    The true answers have their part in them; their own gradients are added to those of rows.
    """
    dim = rows.shape[1]
    for e in range(count):
        if e + ROWS_AHEAD < count:
            ask_for_row(rows, answer[first + e + ROWS_AHEAD])
            ask_for_row(d_rows, answer[first + e + ROWS_AHEAD])
        right = answer[first + e]
        factor, pull = factors[e], pulls[e]
        for d in range(dim):
            gradients[e, d] = gradients[e, d] * factor + rows[right, d] * pull
        for d in range(dim):
            d_rows[right, d] += queries[e, d] * pull


@reordered_helper
def _answer_back_dropped(count, factors, pulls, uses, gradients):
    """Turn weighted sums of candidates into gradients of queries, own queries and answers into theirs."""
    queries, answers = uses.queries, uses.answers
    for e in range(count):
        factor, pull = factors[e], pulls[e]
        for d in range(answers.shape[1]):
            gradients[e, d] *= factor
            d_query = answers[e, d] * pull
            answers[e, d] = queries[e, d] * pull
            queries[e, d] = d_query


@helper
def _round(queries, count, width, asked):
    """Write the first `width` columns of `count` queries as factors, where these are other than float32."""
    for e in range(count if asked.dtype == ROUNDED else 0):
        for d in range(width):
            write_factor(asked, e, d, queries[e, d])


@helper
def _look_up(rows, nodes, candidates):
    """Write a chunk's candidates."""
    dim = rows.shape[1]
    for k in range(len(nodes)):
        if k + ROWS_AHEAD < len(nodes):
            ask_for_row(rows, nodes[k + ROWS_AHEAD])
        node = nodes[k]
        for d in range(dim):
            write_factor(candidates, k, d, rows[node, d])


@kernel(takes_long=True)
def contrast(
    rows: np.ndarray,
    relations: np.ndarray,
    edges: Edges,
    negatives: Negatives,
    log_weight: np.float32,
    averages: Averages | None,
    masks: Masks | None,
    uses: Uses | None,
    room: Room,
    turned: Turned | None,
    gemm: int,
    d_rows: np.ndarray,
    d_relations: np.ndarray,
) -> float:
    """Contrast edges with negatives: gradients of the mean loss.

    Args:
        rows, relations: (U, D) and (V, D) float32, of relations the decoder's `factors`.
        log_weight, averages: the loss, see `numba_weights.weigh`.
        masks, uses: for dropout; None: there is none. Known when this is compiled.
        turned: what oneDNN's products take; None: they are BLAS's. Known when this is compiled.
        gemm: address of the matrix product, for factors of the type of the room's.
        d_rows, d_relations: (U, D) and (V, D), added to.

    Returns:
        Sum of the edges' losses; infinite or NaN if negatives score too far above an edge (`MOST_WEIGHT`) or
        scores overflow: gradients are then worthless.
    """
    dim = rows.shape[1]
    num_chunks, count = negatives.nodes.shape
    chunk_edges = len(edges.known) // num_chunks
    queries, gradients, scores = room.queries, room.gradients, room.scores
    positives, factors, pulls = room.positives, room.factors, room.pulls
    asked, scaled, weights, candidates = room.asked, room.scaled, room.weights, room.candidates
    runs, shares = np.empty(count + 1, np.int64), np.empty(count, np.float32)
    listed = negatives.nodes.reshape(-1)
    loss, place = 0.0, 0
    for number in range(num_chunks):
        nodes = negatives.nodes[number]
        if masks is None:
            _look_up(rows, nodes, candidates)
        else:
            use(rows, listed, number * count, count, masks.candidates, masks.node_scale, candidates)
        lay_out(turned, candidates, count, dim)
        counts = count_chunk(negatives, number, log_weight, runs, shares)
        for inside in range(0, chunk_edges, len(queries)):
            first, n = number * chunk_edges + inside, min(len(queries), chunk_edges - inside)
            block, sizes = Block(first, inside, n), (n, count, dim)
            if masks is None:
                ask(rows, relations, edges, first, n, queries)
                _answer(rows, edges.answer, first, n, queries, positives)
            elif uses is not None:
                ask_dropped(rows, relations, edges, first, n, masks, uses, queries)
                _answer(uses.answers, uses.places, 0, n, uses.queries, positives)
            _round(queries, n, dim, asked)
            compare(gemm, turned, sizes, asked, candidates, scores)
            place = leave_out(negatives.dropped, place, block, count, NOTHING, scores)
            loss += weigh(scores, room, edges, block, counts, averages)
            add_candidates(gemm, turned, sizes, weights, candidates, gradients)
            is_added, sums = inside > 0, room.sums
            add_queries(
                gemm, turned, sizes, queries, factors, weights, is_added, room.by_columns, scaled, sums
            )
            if masks is None:
                _answer_back(rows, edges.answer, first, n, factors, pulls, queries, gradients, d_rows)
                ask_back(rows, relations, edges, first, n, gradients, d_rows, d_relations)
            elif uses is not None:
                _answer_back_dropped(n, factors, pulls, uses, gradients)
                ask_back_dropped(edges, first, n, masks, uses, gradients, d_rows, d_relations)
        if masks is not None:
            add_dropped(
                d_rows, nodes, room.sums, number * count, masks.candidates, masks.node_scale, room.by_columns
            )
        elif room.by_columns:
            add_columns(d_rows, nodes, room.sums)
        else:
            add_each(d_rows, nodes, room.sums)
    return loss
