"""Edges contrasted with shared negatives by sums over coordinates (floor 1, Numba), from rows to gradients.

As `numba_contrast`, but the score of a query and a candidate is minus their distance, Σ_d |q_d − k_d|, or so
over complex coordinates. `numba_distance` takes the place of the products. Importing this module needs Numba.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from marius_py.compiling import helper, kernel, reordered_helper
from marius_py.nn.kernels.numba_distance import LINE, measure, measure_back, modulus
from marius_py.nn.kernels.numba_dropout import Masks, Uses, add_dropped, ask_back_dropped, ask_dropped
from marius_py.nn.kernels.numba_queries import Edges, ask, ask_back
from marius_py.nn.kernels.numba_rows import add_columns
from marius_py.nn.kernels.numba_weights import (
    NOTHING,
    Averages,
    Block,
    Negatives,
    count_chunk,
    leave_out,
    weigh,
)
from marius_py.prefetch import ROWS_AHEAD, ask_for_row

_ZERO, _ONE = np.float32(0), np.float32(1)


class Room(NamedTuple):
    """What a block of n edges is worked on in, W at least D; all float32, contents do not matter.

    Attributes:
        queries, gradients: (n, W). scores: (n, K or more), and `weights` the same array.
        positives, factors, pulls: (n,): scores of own answers, and see `numba_weights`.
        candidates, sums: (D, K or more), candidates and their gradients by columns.
    """

    queries: np.ndarray
    gradients: np.ndarray
    positives: np.ndarray
    factors: np.ndarray
    pulls: np.ndarray
    scores: np.ndarray
    weights: np.ndarray
    candidates: np.ndarray
    sums: np.ndarray


@helper
def _look_up(rows, nodes, candidates):
    """Write a chunk's candidates as columns."""
    count = len(nodes)
    for first in range(0, count, LINE):
        stop = min(first + LINE, count)
        for k in range(stop, min(stop + LINE, count)):
            ask_for_row(rows, nodes[k])
        for d in range(len(candidates)):
            for k in range(first, stop):
                candidates[d, k] = rows[nodes[k], d]


@helper
def _drop(candidates, count, first, mask, scale):
    """Apply dropout to a chunk's candidates, the uses from `first` on."""
    for d in range(len(candidates) if len(mask) else 0):
        for k in range(count):
            candidates[d, k] *= scale if mask[np.uint64(first + k), d] else _ZERO


@reordered_helper
def _answer(rows, answer, first, count, is_complex, queries, positives):
    """Write the scores of the own answers of `count` edges from `first` on."""
    dim, half = rows.shape[1], rows.shape[1] // 2
    for e in range(count):
        if e + ROWS_AHEAD < count:
            ask_for_row(rows, answer[first + e + ROWS_AHEAD])
        right, distance = answer[first + e], _ZERO
        if is_complex:
            for d in range(half):
                i = np.uint64(half + d)
                distance += modulus(queries[e, d] - rows[right, d], queries[e, i] - rows[right, i])
        else:
            for d in range(dim):
                distance += abs(queries[e, d] - rows[right, d])
        positives[e] = -distance


@reordered_helper
def _answer_back(rows, answer, first, count, is_complex, room, d_rows):
    """Turn the sums of what candidates' distances do of `count` edges into gradients of queries, in place.

    The true answers have their part in them; their own gradients are added to those of rows. Differences of
    zero have none.
    """
    queries, gradients, factors, pulls = room.queries, room.gradients, room.factors, room.pulls
    dim, half = rows.shape[1], rows.shape[1] // 2
    for e in range(count):
        if e + ROWS_AHEAD < count:
            ask_for_row(rows, answer[first + e + ROWS_AHEAD])
            ask_for_row(d_rows, answer[first + e + ROWS_AHEAD])
        right, factor, pull = answer[first + e], factors[e], pulls[e]
        for d in range(half if is_complex else 0):
            i = np.uint64(half + d)
            re, im = queries[e, d] - rows[right, d], queries[e, i] - rows[right, i]
            size = modulus(re, im)
            scale = pull / size if size > _ZERO else _ZERO
            gradients[e, d] = -(gradients[e, d] * factor + re * scale)
            gradients[e, i] = -(gradients[e, i] * factor + im * scale)
            d_rows[right, d] += re * scale
            d_rows[right, i] += im * scale
        for d in range(0 if is_complex else dim):
            apart = queries[e, d] - rows[right, d]
            towards = pull if apart > _ZERO else (-pull if apart < _ZERO else _ZERO)
            gradients[e, d] = -(gradients[e, d] * factor + towards)
            d_rows[right, d] += towards


@reordered_helper
def _answer_back_dropped(count, is_complex, room, uses):
    """As `_answer_back`, but turn own queries and answers into their gradients."""
    gradients, factors, pulls = room.gradients, room.factors, room.pulls
    own, answers = uses.queries, uses.answers
    dim, half = answers.shape[1], answers.shape[1] // 2
    for e in range(count):
        factor, pull = factors[e], pulls[e]
        for d in range(dim):
            gradients[e, d] *= -factor
        for d in range(half if is_complex else 0):
            i = np.uint64(half + d)
            re, im = own[e, d] - answers[e, d], own[e, i] - answers[e, i]
            size = modulus(re, im)
            scale = pull / size if size > _ZERO else _ZERO
            answers[e, d], answers[e, i] = re * scale, im * scale
            own[e, d], own[e, i] = -re * scale, -im * scale
        for d in range(0 if is_complex else dim):
            apart = own[e, d] - answers[e, d]
            towards = pull if apart > _ZERO else (-pull if apart < _ZERO else _ZERO)
            answers[e, d] = towards
            own[e, d] = -towards


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
    is_complex: bool,
    room: Room,
    d_rows: np.ndarray,
    d_relations: np.ndarray,
) -> float:
    """Contrast edges with negatives, a score being minus a distance: gradients of the mean loss.

    Args:
        rows, relations: (U, D) and (V, D) float32, of relations the decoder's `factors`.
        log_weight, averages: the loss, see `numba_weights.weigh`.
        masks, uses: for dropout; None: there is none. Known when this is compiled.
        is_complex: whether coordinates are complex, real parts in the first half of a row.
        d_rows, d_relations: (U, D) and (V, D), added to.

    Returns:
        Sum of the edges' losses; infinite or NaN if negatives score too far above an edge (`MOST_WEIGHT`) or
        distances overflow: gradients are then worthless.
    """
    dim = rows.shape[1]
    num_chunks, count = negatives.nodes.shape
    chunk_edges = len(edges.known) // num_chunks
    queries, gradients, scores, sums = room.queries, room.gradients, room.scores, room.sums
    positives, factors = room.positives, room.factors
    runs, shares = np.empty(count + 1, np.int64), np.empty(count, np.float32)
    loss, place = 0.0, 0
    for number in range(num_chunks):
        nodes = negatives.nodes[number]
        _look_up(rows, nodes, room.candidates)
        if masks is not None:
            _drop(room.candidates, count, number * count, masks.candidates, masks.node_scale)
        sums[:] = _ZERO
        counts = count_chunk(negatives, number, log_weight, runs, shares)
        for inside in range(0, chunk_edges, len(queries)):
            first, n = number * chunk_edges + inside, min(len(queries), chunk_edges - inside)
            block = Block(first, inside, n)
            if masks is None:
                ask(rows, relations, edges, first, n, queries)
                _answer(rows, edges.answer, first, n, is_complex, queries, positives)
            elif uses is not None:
                ask_dropped(rows, relations, edges, first, n, masks, uses, queries)
                _answer(uses.answers, uses.places, 0, n, is_complex, uses.queries, positives)
            measure(queries, n, room.candidates, count, is_complex, -_ONE, scores, 0)
            place = leave_out(negatives.dropped, place, block, count, NOTHING, scores)
            loss += weigh(scores, room, edges, block, counts, averages)
            for e in range(n):
                for d in range(dim):
                    gradients[e, d] = _ZERO
            measure_back(queries, n, room.candidates, count, is_complex, scores, 0, factors, gradients, sums)
            if masks is None:
                _answer_back(rows, edges.answer, first, n, is_complex, room, d_rows)
                ask_back(rows, relations, edges, first, n, gradients, d_rows, d_relations)
            elif uses is not None:
                _answer_back_dropped(n, is_complex, room, uses)
                ask_back_dropped(edges, first, n, masks, uses, gradients, d_rows, d_relations)
        if masks is None:
            add_columns(d_rows, nodes, sums)
        else:
            add_dropped(d_rows, nodes, sums, number * count, masks.candidates, masks.node_scale, True)
    return loss
