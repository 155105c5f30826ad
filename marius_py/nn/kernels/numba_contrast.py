"""Edges contrasted with shared negatives (floor 1, Numba): one side of a batch from rows to gradients.

In: the rows of a batch and its edges and negatives as indices into them. Out: the loss, and gradients added
to the rows'. For decoders whose scores are dot products with a query that `numba_queries` makes, under the
softmax loss. A chunk's candidates are looked up once; a block of its edges at a time goes from queries to
gradients while scores and candidates lie in a core's cache. Nothing of this holds the interpreter's lock, for
which batches computed side by side would wait at every small operation.

The factors of products may be rounded to bfloat16, for processors that have units for them. Everything else,
sums of products included, is float32. Importing this module needs Numba.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from marius_py.nn.kernels.compiling import elementwise, helper, kernel, reordered_helper
from marius_py.nn.kernels.numba_gemm import multiply
from marius_py.nn.kernels.numba_prefetch import ROWS_AHEAD, ask_for_row
from marius_py.nn.kernels.numba_queries import Edges, ask, ask_back
from marius_py.nn.kernels.numba_rows import add_columns, add_each
from marius_py.nn.kernels.numba_weights import LOG2_E, find_runs, leave_out, power_of_2
from marius_py.nn.kernels.objectives import MOST_WEIGHT

_ZERO, _ONE = np.float32(0), np.float32(1)
_NOTHING = -np.float32(np.inf)
"""A score that weighs nothing."""
_MOST_WEIGHT = np.float32(MOST_WEIGHT)  # compiled code that is kept notices changes of this file alone


class Negatives(NamedTuple):
    """K shared negatives of each of C chunks of P edges, C · P = B, and what they count.

    Attributes:
        nodes: (C, K) int64, indices of rows.
        group: (C, K) int64, in [0, G), which best changes seldom along K.
        bias: (C, P, G) float32, logarithms of what those of a group count for each edge; G may be 0.
        dropped: (M,) int64, ascending positions in (C, P, K) that do not count.
        log_weight: float32, logarithm of what all count.
    """

    nodes: np.ndarray
    group: np.ndarray
    bias: np.ndarray
    dropped: np.ndarray
    log_weight: np.float32


class Room(NamedTuple):
    """What a block of n edges is worked on in, W at least D; contents do not matter.

    Attributes:
        queries, gradients: (n, W) float32. totals: (n,) float32. scores: (n, K or more) float32.
        sums: (K, W) float32, of the candidates' gradients; or (D, K or more) if `turned`.
        asked, scaled: (n, W), weights: (n, K or more), candidates: (K, W), factors of products, float32 or
            bfloat16 held as uint16; if float32, `asked` must be `queries` and `weights` must be `scores`.
        turned: whether sums are made of columns, which a product is faster at where rows are no whole
            registers: it works along the rows of what it writes.
    """

    queries: np.ndarray
    gradients: np.ndarray
    totals: np.ndarray
    scores: np.ndarray
    sums: np.ndarray
    asked: np.ndarray
    scaled: np.ndarray
    weights: np.ndarray
    candidates: np.ndarray
    turned: bool


_HALF, _TIE = np.uint32(16), np.uint32(1 << 15)
_NAN = np.uint16(0x7FC0)
_ROUNDED = np.dtype(np.uint16)


@elementwise
def _nearest(number):
    """The bits of the bfloat16 that is nearest to a float32, ties up; for some NaN those of a number."""
    number = np.float32(number)
    return np.uint16((number.view(np.uint32) + _TIE) >> _HALF)


@elementwise
def _write(factors, row, column, number):
    """Write a float32 into a table of factors, rounded to the nearest if that holds bfloat16."""
    if factors.dtype == _ROUNDED:  # known when this is compiled
        factors[row, column] = _nearest(number) if number == number else _NAN
    else:
        factors[row, column] = number


@reordered_helper
def _weigh(scores, shifts, count, negatives, chunk, inside, runs, num_runs, weights):
    """Write the weights e^(score + shift) of `count` edges, from `inside` a chunk on.

    The scores are multiplied by log2 e already; what a candidate's group counts is added to the shifts, which
    are replaced by sums of weights. Weights that are float32 take the scores' place.
    """
    group, bias = negatives.group, negatives.bias
    for e in range(count):
        total = _ZERO
        for r in range(num_runs):
            shift = shifts[e] + negatives.log_weight
            if bias.shape[2]:
                shift += bias[chunk, inside + e, group[chunk, runs[r]]]
            shift *= LOG2_E
            for k in range(np.uint64(runs[r]), np.uint64(runs[r + 1])):
                weight = power_of_2(scores[e, k] + shift)
                if weights.dtype == _ROUNDED:
                    weights[e, k] = _nearest(weight)  # the total tells of NaN
                else:
                    scores[e, k] = weight
                total += weight
        shifts[e] = total


@reordered_helper
def _shift(rows, answer, first, count, queries, shifts):
    """Write minus the scores of the own answers of `count` edges from `first` on."""
    dim = rows.shape[1]
    for e in range(count):
        if e + ROWS_AHEAD < count:
            ask_for_row(rows, answer[first + e + ROWS_AHEAD])
        right = answer[first + e]
        positive = _ZERO
        for d in range(dim):
            positive += queries[e, d] * rows[right, d]
        shifts[e] = -positive


@reordered_helper
def _finish(totals, count, share, queries, dim, scaled):
    """Write the queries of `count` edges times their factor, share / (1 + total); returns their losses.

    A loss is infinite where the total is too large for gradients to be sure.
    """
    loss = 0.0
    for e in range(count):
        loss += np.inf if totals[e] > _MOST_WEIGHT else np.log1p(np.float64(totals[e]))
        factor = share / (totals[e] + _ONE)
        for d in range(dim):
            _write(scaled, e, d, queries[e, d] * factor)
    return loss


@reordered_helper
def _answer_back(rows, answer, first, count, totals, share, queries, gradients, d_rows):
    """Turn the weighted sums of `count` edges' candidates into gradients of their queries, in place.

    The true answers have their part in them; their own gradients are added to those of rows.
    """
    dim = rows.shape[1]
    for e in range(count):
        if e + ROWS_AHEAD < count:
            ask_for_row(rows, answer[first + e + ROWS_AHEAD])
            ask_for_row(d_rows, answer[first + e + ROWS_AHEAD])
        right = answer[first + e]
        factor = share / (totals[e] + _ONE)
        pull = -totals[e] * factor
        for d in range(dim):
            gradients[e, d] = gradients[e, d] * factor + rows[right, d] * pull
        for d in range(dim):
            d_rows[right, d] += queries[e, d] * pull


@helper
def _round(queries, count, width, asked):
    """Write the first `width` columns of `count` queries as factors, where these are other than float32."""
    for e in range(count if asked.dtype == _ROUNDED else 0):
        for d in range(width):
            _write(asked, e, d, queries[e, d])


@helper
def _look_up(rows, nodes, candidates):
    """Write a chunk's candidates."""
    dim = rows.shape[1]
    for k in range(len(nodes)):
        if k + ROWS_AHEAD < len(nodes):
            ask_for_row(rows, nodes[k + ROWS_AHEAD])
        node = nodes[k]
        for d in range(dim):
            _write(candidates, k, d, rows[node, d])


@kernel()
def contrast(
    rows: np.ndarray,
    relations: np.ndarray,
    edges: Edges,
    negatives: Negatives,
    room: Room,
    gemm: int,
    d_rows: np.ndarray,
    d_relations: np.ndarray,
) -> float:
    """Contrast edges with negatives: loss = log(1 + w Σ_k w_k e^(s_k - s⁺)), gradients of its mean.

    Args:
        rows, relations: (U, D) and (V, D) float32, of relations the decoder's `factors`.
        gemm: address of the matrix product, for factors of the type of the room's.
        d_rows, d_relations: (U, D) and (V, D), added to.

    Returns:
        Sum of the edges' losses; infinite or NaN if negatives score too far above an edge (`MOST_WEIGHT`) or
        scores overflow: gradients are then worthless.
    """
    dim = rows.shape[1]
    num_chunks, count = negatives.nodes.shape
    chunk_edges, block = len(edges.known) // num_chunks, len(room.queries)
    share = _ONE / np.float32(len(edges.known))
    queries, gradients, totals, scores = room.queries, room.gradients, room.totals, room.scores
    asked, scaled, weights, candidates = room.asked, room.scaled, room.weights, room.candidates
    runs = np.empty(count + 1, np.int64)
    loss, place = 0.0, 0
    for chunk in range(num_chunks):
        nodes = negatives.nodes[chunk]
        _look_up(rows, nodes, candidates)
        num_runs = find_runs(negatives.group[chunk], count, runs)
        for inside in range(0, chunk_edges, block):
            first, n = chunk * chunk_edges + inside, min(block, chunk_edges - inside)
            ask(rows, relations, edges, first, n, queries)
            _shift(rows, edges.answer, first, n, queries, totals)
            _round(queries, n, dim, asked)
            multiply(gemm, False, True, (n, count, dim), LOG2_E, asked, candidates, _ZERO, scores)
            place = leave_out(negatives.dropped, place, first, n, count, _NOTHING, scores)
            _weigh(scores, totals, n, negatives, chunk, inside, runs, num_runs, weights)
            multiply(gemm, False, False, (n, dim, count), _ONE, weights, candidates, _ZERO, gradients)
            loss += _finish(totals, n, share, queries, dim, scaled)
            kept = _ONE if inside else _ZERO
            if room.turned:
                multiply(gemm, True, False, (dim, count, n), _ONE, scaled, weights, kept, room.sums)
            else:
                multiply(gemm, True, False, (count, dim, n), _ONE, weights, scaled, kept, room.sums)
            _answer_back(rows, edges.answer, first, n, totals, share, queries, gradients, d_rows)
            ask_back(rows, relations, edges, first, n, gradients, d_rows, d_relations)
        if room.turned:
            add_columns(d_rows, nodes, room.sums)
        else:
            add_each(d_rows, nodes, room.sums)
    return loss
