"""Edges contrasted with shared negatives (floor 1, Numba): one side of a batch from rows to gradients.

In: the rows of a batch and its edges and negatives as indices into them. Out: the loss, and gradients added
to the rows'. For decoders whose scores are dot products with a query that is the known node's row (`NONE`),
its product with the relation's coordinate by coordinate (`REAL`), or their product as complex rows
(`COMPLEX`), under the softmax loss. A chunk's candidates are looked up once; a block of its edges at a time
goes from queries to gradients while scores and candidates lie in a core's cache. Nothing of this holds the
interpreter's lock, for which batches computed side by side would wait at every small operation.

The factors of products may be rounded to bfloat16, for processors that have units for them: among them the
logarithms of what negatives count, which so are off by .2 % at most while none counts less than half or more
than twice. Everything else, sums of products included, is float32. Importing this module needs Numba.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from marius_py.nn.kernels.compiling import elementwise, helper, kernel, reordered_helper
from marius_py.nn.kernels.numba_gemm import multiply
from marius_py.nn.kernels.numba_prefetch import ROWS_AHEAD, ask_for_row
from marius_py.nn.kernels.numba_rows import add_columns, add_each
from marius_py.nn.kernels.objectives import MOST_WEIGHT

NONE, REAL, COMPLEX = 0, 1, 2
_ZERO, _ONE = np.float32(0), np.float32(1)
_MOST_WEIGHT = np.float32(MOST_WEIGHT)  # compiled code that is kept notices changes of this file alone


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
        dropped: (M,) int64, ascending positions in (C, P, K) that do not count.
        log_weight: float32, logarithm of what all count.
    """

    nodes: np.ndarray
    group: np.ndarray
    weight: np.ndarray
    dropped: np.ndarray
    log_weight: np.float32


class Room(NamedTuple):
    """What a block of n edges is worked on in, W at least D + G; contents do not matter.

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


_LOG2_E = np.float32(1.4426950408889634)
_ROUND = np.float32(3 << 22)
"""Added to a smaller number, it leaves the nearest whole one, in the lowest bits."""
_HALF, _TIE = np.uint32(16), np.uint32(1 << 15)
_NAN = np.uint16(0x7FC0)
_ROUNDED = np.dtype(np.uint16)
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
def _weigh(scores, shifts, count, width, log_weight, weights):
    """Write the weights e^(score + shift) of `count` edges, and replace the shifts by their sums.

    The scores, `width` an edge, are multiplied by log2 e already. Weights that are float32 take their place.
    """
    for e in range(count):
        shift = (shifts[e] + log_weight) * _LOG2_E
        total = _ZERO
        for k in range(width):
            weight = _power_of_2(scores[e, k] + shift)
            if weights.dtype == _ROUNDED:
                weights[e, k] = _nearest(weight)  # the total tells of NaN
            else:
                scores[e, k] = weight
            total += weight
        shifts[e] = total


# The loops below index whole tables: a view of a row would be counted as a reference, which takes longer
# than the row's own numbers. Indices that are sums are unsigned, or loops would provide for negative ones.


@reordered_helper
def _ask(rows, relations, edges, first, count, queries, shifts):
    """Write the queries of `count` edges from `first` on, and minus their own answers' scores as shifts."""
    known, of, answer = edges.known, edges.relation, edges.answer
    dim, product, sign = rows.shape[1], edges.product, edges.sign
    half = dim // 2
    for e in range(count):
        if e + ROWS_AHEAD < count:
            ask_for_row(rows, known[first + e + ROWS_AHEAD])
            ask_for_row(rows, answer[first + e + ROWS_AHEAD])
        node, relation, right = known[first + e], of[first + e], answer[first + e]
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
        else:
            for d in range(dim):
                queries[e, d] = rows[node, d]
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


@reordered_helper
def _ask_back(rows, relations, edges, first, count, gradients, d_rows, d_relations):
    """Add the gradients of the known nodes and relations of `count` edges, from those of their queries."""
    known, of = edges.known, edges.relation
    dim, product, sign = rows.shape[1], edges.product, edges.sign
    half = dim // 2
    for e in range(count):
        if e + ROWS_AHEAD < count:
            ask_for_row(rows, known[first + e + ROWS_AHEAD])
            ask_for_row(d_rows, known[first + e + ROWS_AHEAD])
        node, relation = known[first + e], of[first + e]
        if product == COMPLEX:
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
        elif product == REAL:
            for d in range(dim):
                d_rows[node, d] += gradients[e, d] * relations[relation, d]
            for d in range(dim):
                d_relations[relation, d] += gradients[e, d] * rows[node, d]
        else:
            for d in range(dim):
                d_rows[node, d] += gradients[e, d]


@helper
def _round(queries, count, width, asked):
    """Write the first `width` columns of `count` queries as factors, where these are other than float32."""
    for e in range(count if asked.dtype == _ROUNDED else 0):
        for d in range(width):
            _write(asked, e, d, queries[e, d])


@helper
def _look_up(rows, nodes, group, groups, candidates):
    """Write a chunk's candidates; in the columns after their rows, 1 in that of their group."""
    dim = rows.shape[1]
    for k in range(len(nodes)):
        if k + ROWS_AHEAD < len(nodes):
            ask_for_row(rows, nodes[k + ROWS_AHEAD])
        node = nodes[k]
        for d in range(dim):
            _write(candidates, k, d, rows[node, d])
        for g in range(groups):
            _write(candidates, k, dim + g, _ONE if group[k] == g else _ZERO)


@helper
def _leave_out(dropped, place, first, count, width, scores):
    """Set the scores, `width` an edge, that must not count to minus infinity.

    Returns the place in `dropped` after them.
    """
    for e in range(count):
        begin = (first + e) * width
        while place < len(dropped) and dropped[place] < begin + width:
            scores[e, np.uint64(dropped[place] - begin)] = -np.float32(np.inf)
            place += 1
    return place


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
        rows, relations: (U, D) and (V, Dr) float32.
        gemm: address of the matrix product, for factors of the type of the room's.
        d_rows, d_relations: (U, D) and (V, Dr), added to.

    Returns:
        Sum of the edges' losses; infinite or NaN if negatives score too far above an edge (`MOST_WEIGHT`) or
        scores overflow: gradients are then worthless.
    """
    dim, groups = rows.shape[1], negatives.weight.shape[2]
    num_chunks, count = negatives.nodes.shape
    chunk_edges, block = len(edges.known) // num_chunks, len(room.queries)
    share = _ONE / np.float32(len(edges.known))
    queries, gradients, totals, scores = room.queries, room.gradients, room.totals, room.scores
    asked, scaled, weights, candidates = room.asked, room.scaled, room.weights, room.candidates
    loss, place = 0.0, 0
    for chunk in range(num_chunks):
        nodes = negatives.nodes[chunk]
        _look_up(rows, nodes, negatives.group[chunk], groups, candidates)
        for inside in range(0, chunk_edges, block):
            first, n = chunk * chunk_edges + inside, min(block, chunk_edges - inside)
            _ask(rows, relations, edges, first, n, queries, totals)
            for e in range(n if groups else 0):
                for g in range(groups):
                    queries[e, dim + g] = np.log(negatives.weight[chunk, inside + e, g])
            _round(queries, n, dim + groups, asked)
            sizes = n, count, dim + groups
            multiply(gemm, False, True, sizes, _LOG2_E, asked, candidates, _ZERO, scores)
            place = _leave_out(negatives.dropped, place, first, n, count, scores)
            _weigh(scores, totals, n, count, negatives.log_weight, weights)
            multiply(gemm, False, False, (n, dim, count), _ONE, weights, candidates, _ZERO, gradients)
            loss += _finish(totals, n, share, queries, dim, scaled)
            kept = _ONE if inside else _ZERO
            if room.turned:
                multiply(gemm, True, False, (dim, count, n), _ONE, scaled, weights, kept, room.sums)
            else:
                multiply(gemm, True, False, (count, dim, n), _ONE, weights, scaled, kept, room.sums)
            _answer_back(rows, edges.answer, first, n, totals, share, queries, gradients, d_rows)
            _ask_back(rows, relations, edges, first, n, gradients, d_rows, d_relations)
        if room.turned:
            add_columns(d_rows, nodes, room.sums)
        else:
            add_each(d_rows, nodes, room.sums)
    return loss
