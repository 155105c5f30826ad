"""Edges contrasted with shared negatives by euclidean distances (floor 1, Numba), from rows to gradients.

As `numba_contrast`, but the score is −‖q − k‖ for a query q and a candidate k. One product yields q·k, from
which expanded squares make distances; with f the weight over the distance, the gradients of an edge's
query and of a candidate are Σ_k f (k − q) and Σ_e f (q − k): a product each, and sums of f. Distances of own
answers are those of differences, for they may be too near for expansion. Importing this module needs Numba.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from marius_py.compiling import helper, kernel, reordered_helper
from marius_py.nn.kernels.distance import SQUARE_FLOOR
from marius_py.nn.kernels.numba_dropout import Masks, Uses, add_dropped, ask_back_dropped, ask_dropped, use
from marius_py.nn.kernels.numba_products import Turned, add_candidates, add_queries, compare, lay_out
from marius_py.nn.kernels.numba_queries import Edges, ask, ask_back
from marius_py.nn.kernels.numba_weights import (
    LOG2_E,
    NOTHING,
    Averages,
    Block,
    Negatives,
    average,
    count_chunk,
    leave_out,
    power_of_2,
    settle,
    share_of,
)
from marius_py.prefetch import ROWS_AHEAD, ask_for_row

_ZERO, _ONE, _MINUS_TWO = np.float32(0), np.float32(1), np.float32(-2)
_FLOOR = np.float32(SQUARE_FLOOR)
_FAR, _FARTHEST = np.float32(-1e30), np.float32(1e29)
"""A product by which a candidate weighs nothing, and a squared distance that no other exceeds."""


class Room(NamedTuple):
    """What a block of n edges is worked on in, W at least D + 1; all float32, contents do not matter.

    Attributes:
        queries, gradients, scaled: (n, W). scores: (n, K or more).
        distances, norms, forces: (n,): distances of own answers, squared norms of queries, sums of weights
            over distances. factors, pulls: (n,), see `numba_weights`.
        candidates: (K, W), candidate_norms: (K,).
        sums: (D + 1, K or more), of candidates' gradients by columns; last those of weights over distances.
    """

    queries: np.ndarray
    gradients: np.ndarray
    scaled: np.ndarray
    scores: np.ndarray
    distances: np.ndarray
    norms: np.ndarray
    forces: np.ndarray
    factors: np.ndarray
    pulls: np.ndarray
    candidates: np.ndarray
    candidate_norms: np.ndarray
    sums: np.ndarray


@reordered_helper
def _look_up(rows, nodes, candidates, norms):
    """Write a chunk's candidates and their squared norms."""
    dim = rows.shape[1]
    for k in range(len(nodes)):
        if k + ROWS_AHEAD < len(nodes):
            ask_for_row(rows, nodes[k + ROWS_AHEAD])
        node = nodes[k]
        norm = _ZERO
        for d in range(dim):
            candidates[k, d] = rows[node, d]
            norm += rows[node, d] * rows[node, d]
        norms[k] = norm


@reordered_helper
def _measure_candidates(candidates, count, dim, norms):
    """Write squared norms of candidates that are there already."""
    for k in range(count):
        norm = _ZERO
        for d in range(dim):
            norm += candidates[k, d] * candidates[k, d]
        norms[k] = norm


@reordered_helper
def _measure(rows, answer, first, count, queries, own, norms, distances):
    """Write squared norms of the queries of `count` edges, and distances of own queries from own answers.

    A column more of the queries is 1: times their factors it makes sums of these.
    """
    dim = rows.shape[1]
    for e in range(count):
        if e + ROWS_AHEAD < count:
            ask_for_row(rows, answer[first + e + ROWS_AHEAD])
        right = answer[first + e]
        norm, square = _ZERO, _ZERO
        for d in range(dim):
            norm += queries[e, d] * queries[e, d]
            square += (own[e, d] - rows[right, d]) * (own[e, d] - rows[right, d])
        queries[e, np.uint64(dim)] = _ONE
        norms[e] = norm
        distances[e] = np.sqrt(square)


@reordered_helper
def _weigh(scores, block, counts, room, totals):
    """Turn products q·k of a block of edges into weights over distances.

    A weight, the softmax loss's, is e^(distance of the own answer − distance), times what the candidate's
    group counts. Distances that rounding hides have no gradient. Sums of weights, and of those over
    distances, are written.
    """
    norms, distances, candidate_norms = room.norms, room.distances, room.candidate_norms
    bias, group, runs, room_forces = counts.bias, counts.group, counts.runs, room.forces
    for e in range(block.size):
        norm = norms[e]
        total, forces = _ZERO, _ZERO
        for r in range(counts.num_runs):
            shift = distances[e] + counts.log_weight
            if bias.shape[1]:
                shift += bias[block.inside + e, group[runs[r]]]
            shift *= LOG2_E
            for k in range(np.uint64(runs[r]), np.uint64(runs[r + 1])):
                square = norm + candidate_norms[k] + _MINUS_TWO * scores[e, k]
                distance = np.sqrt(_FLOOR if square < _FLOOR else square)  # NaN stays
                weight = power_of_2(shift - distance * LOG2_E)
                force = _ZERO if square < _FLOOR else weight / distance
                scores[e, k] = force
                total += weight
                forces += force
        totals[e] = total
        room_forces[e] = forces


@reordered_helper
def _average(scores, room, edges, block, counts, averages, apart):
    """As `_weigh` by another loss, see `Averages`; writes factors and pulls as well and returns losses.

    `apart` is scratch (K,).
    """
    norms, distances, candidate_norms = room.norms, room.distances, room.candidate_norms
    factors, pulls, room_forces = room.factors, room.pulls, room.forces
    loss = 0.0
    for e in range(block.size):
        norm, forces = norms[e], _ZERO
        for k in range(np.uint64(len(apart))):
            square = norm + candidate_norms[k] + _MINUS_TWO * scores[e, k]
            distance = np.sqrt(_FLOOR if square < _FLOOR else square)  # NaN stays
            apart[k] = _ZERO if square < _FLOOR else _ONE / distance
            scores[e, k] = NOTHING if square > _FARTHEST else -distance
        share = share_of(edges, block.first + e)
        found = average(scores, e, block.inside + e, -distances[e], share, counts, averages)
        losses, factors[e], pulls[e] = found
        for k in range(np.uint64(len(apart))):
            force = scores[e, k] * apart[k]
            scores[e, k] = force
            forces += force
        loss += losses
        room_forces[e] = forces
    return loss


@reordered_helper
def _answer_back(rows, answer, first, count, room, d_rows):
    """Turn the sums of f k of `count` edges into gradients of their queries, in place.

    The true answers have their part in them; their own gradients are added to those of rows.
    """
    queries, gradients, distances, forces = room.queries, room.gradients, room.distances, room.forces
    factors, pulls = room.factors, room.pulls
    dim = rows.shape[1]
    for e in range(count):
        if e + ROWS_AHEAD < count:
            ask_for_row(rows, answer[first + e + ROWS_AHEAD])
            ask_for_row(d_rows, answer[first + e + ROWS_AHEAD])
        right = answer[first + e]
        factor = factors[e]
        pull = pulls[e] / distances[e] if distances[e] > _ZERO else _ZERO
        for d in range(dim):
            apart = (rows[right, d] - queries[e, d]) * pull
            gradients[e, d] = (gradients[e, d] - queries[e, d] * forces[e]) * factor + apart
        for d in range(dim):
            d_rows[right, d] -= (rows[right, d] - queries[e, d]) * pull


@reordered_helper
def _answer_back_dropped(count, room, uses):
    """As `_answer_back`, but turn own queries and answers into their gradients."""
    queries, gradients, distances, forces = room.queries, room.gradients, room.distances, room.forces
    factors, pulls, own, answers = room.factors, room.pulls, uses.queries, uses.answers
    for e in range(count):
        factor = factors[e]
        pull = pulls[e] / distances[e] if distances[e] > _ZERO else _ZERO
        for d in range(answers.shape[1]):
            gradients[e, d] = (gradients[e, d] - queries[e, d] * forces[e]) * factor
            apart = (answers[e, d] - own[e, d]) * pull
            own[e, d] = apart
            answers[e, d] = -apart


@helper
def _finish(count, candidates, sums):
    """Turn the sums Σ_e f q_e of `count` candidates into their gradients, in place."""
    dim = len(sums) - 1
    for d in range(dim):
        for k in range(count):
            sums[d, k] -= candidates[k, d] * sums[np.uint64(dim), k]


@helper
def _add(nodes, candidates, sums, d_rows):
    """Add the gradients of a chunk's candidates, Σ_e f q_e less their own row times Σ_e f."""
    dim = d_rows.shape[1]
    for k in range(len(nodes)):
        if k + ROWS_AHEAD < len(nodes):
            ask_for_row(d_rows, nodes[k + ROWS_AHEAD])
        node, force = nodes[k], sums[np.uint64(dim), k]
        for d in range(dim):
            d_rows[node, d] += sums[d, k] - candidates[k, d] * force


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
    """Contrast edges with negatives, a score being a distance times −1: gradients of the mean loss.

    Args:
        rows, relations: (U, D) and (V, D) float32, of relations the decoder's `factors`.
        log_weight, averages, masks, uses, turned, gemm: as for `numba_contrast`, of float32.
        d_rows, d_relations: (U, D) and (V, D), added to.

    Returns:
        Sum of the edges' losses; infinite or NaN if negatives score too far above an edge (`MOST_WEIGHT`) or
        squares overflow: gradients are then worthless.
    """
    dim = rows.shape[1]
    num_chunks, count = negatives.nodes.shape
    chunk_edges = len(edges.known) // num_chunks
    queries, scores, candidates = room.queries, room.scores, room.candidates
    runs = np.empty(count + 1, np.int64)
    shares, apart = np.empty(count, np.float32), np.empty(count, np.float32)
    listed = negatives.nodes.reshape(-1)
    loss, place = 0.0, 0
    for number in range(num_chunks):
        nodes = negatives.nodes[number]
        if masks is None:
            _look_up(rows, nodes, candidates, room.candidate_norms)
        else:
            use(rows, listed, number * count, count, masks.candidates, masks.node_scale, candidates)
            _measure_candidates(candidates, count, dim, room.candidate_norms)
        lay_out(turned, candidates, count, dim)
        counts = count_chunk(negatives, number, log_weight, runs, shares)
        for inside in range(0, chunk_edges, len(queries)):
            first, n = number * chunk_edges + inside, min(len(queries), chunk_edges - inside)
            block = Block(first, inside, n)
            if masks is None:
                ask(rows, relations, edges, first, n, queries)
                _measure(rows, edges.answer, first, n, queries, queries, room.norms, room.distances)
            elif uses is not None:
                ask_dropped(rows, relations, edges, first, n, masks, uses, queries)
                _measure(uses.answers, uses.places, 0, n, queries, uses.queries, room.norms, room.distances)
            compare(gemm, turned, (n, count, dim), queries, candidates, scores)
            place = leave_out(negatives.dropped, place, block, count, _FAR, scores)
            if averages is None:
                _weigh(scores, block, counts, room, room.pulls)
                loss += settle(room.pulls, edges, block, room.factors, room.pulls)
            else:
                loss += _average(scores, room, edges, block, counts, averages, apart)
            add_candidates(gemm, turned, (n, count, dim), scores, candidates, room.gradients)
            sizes, is_added = (n, count, dim + 1), inside > 0
            add_queries(
                gemm, turned, sizes, queries, room.factors, scores, is_added, True, room.scaled, room.sums
            )
            if masks is None:
                _answer_back(rows, edges.answer, first, n, room, d_rows)
                ask_back(rows, relations, edges, first, n, room.gradients, d_rows, d_relations)
            elif uses is not None:
                _answer_back_dropped(n, room, uses)
                ask_back_dropped(edges, first, n, masks, uses, room.gradients, d_rows, d_relations)
        if masks is None:
            _add(nodes, candidates, room.sums, d_rows)
        else:
            _finish(count, candidates, room.sums)
            add_dropped(d_rows, nodes, room.sums, number * count, masks.candidates, masks.node_scale, True)
    return loss
