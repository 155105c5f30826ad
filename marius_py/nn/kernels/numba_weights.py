"""What losses make of scores (floor 1, Numba): weights of negatives, pulls of true answers, and the loss.

As `kernels.objectives`, edge by edge. The gradient with respect to the score of negative k of edge e is
factor_e · weight_ek, with respect to that of its own answer pull_e. Importing this module needs Numba.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from marius_py.compiling import elementwise, helper, reordered_helper
from marius_py.nn.kernels.gemm import ROUNDED
from marius_py.nn.kernels.objectives import MOST_WEIGHT

LOGISTIC, MARGIN, SMOOTHED = 0, 1, 2

_ZERO, _ONE = np.float32(0), np.float32(1)
NOTHING = -np.float32(np.inf)
"""A score that weighs nothing."""
_MOST_WEIGHT = np.float32(MOST_WEIGHT)
LOG2_E = np.float32(1.4426950408889634)
_ROUND = np.float32(3 << 22)
"""Added to a smaller number, it leaves the nearest whole one, in the lowest bits."""
_BIAS, _MANTISSA = np.int32(127), np.int32(23)
_POLYNOMIAL = tuple(
    np.float32(one)
    for one in (1.3264727214e-3, 9.6715128e-3, 5.5507337448e-2, 2.4022242083e-1, 6.931469776e-1)
)
"""Of 2^x - 1 for x from -1/2 to 1/2, divided by x: at most 1e-7 of 2^x away from it."""
_LOGARITHM = tuple(
    np.float32(one)
    for one in (
        -3.25637848e-3,
        1.9907161e-2,
        -5.70642008e-2,
        1.06142647e-1,
        -1.53118631e-1,
        1.96781173e-1,
        -2.49545589e-1,
        3.3330004e-1,
        -4.9999904e-1,
        9.99999995e-1,
    )
)
"""Of log(1 + t) for t from 0 to 1, divided by t: at most 2e-7 of it away."""
_SIGN, _MAGNITUDE = np.int32(31), np.int32((1 << 31) - 1)
_LEAST = np.int32(-0x7F800000)
"""The least float32 that is finite, as `_ordered` has it."""


_HALF, _TIE = np.uint32(16), np.uint32(1 << 15)
_NAN = np.uint16(0x7FC0)


class Averages(NamedTuple):
    """A loss that goes over all negatives of an edge before it weighs one: any but the plain softmax loss.

    Attributes:
        kind: LOGISTIC or MARGIN; SMOOTHED, the softmax loss with smoothed labels.
        margin: float32, of the first two. temperature: float32, theirs, of negatives' weights; 0: even ones.
        smoothing: float32, of SMOOTHED.
    """

    kind: int
    margin: np.float32
    temperature: np.float32
    smoothing: np.float32


class Negatives(NamedTuple):
    """K shared negatives of each of C chunks of P edges, C · P = B, and what they count.

    Attributes:
        nodes: (C, K) int64, indices of rows.
        group: (C, K) int64, in [0, G), which best changes seldom along K.
        bias: (C, P, G) float32, logarithms of what those of a group count for each edge; G may be 0.
        dropped: (M,) int64, ascending positions in (C, P, K) that do not count.
    """

    nodes: np.ndarray
    group: np.ndarray
    bias: np.ndarray
    dropped: np.ndarray


class Counts(NamedTuple):
    """What the K negatives of a chunk count.

    Attributes:
        log_weight: float32, logarithm of what all of them count under the softmax losses.
        bias, group: of the chunk, see `Negatives`.
        runs: (K + 1,) int64, where each run of negatives of one group begins, and K. num_runs: how many.
        shares: (K,) float32, scratch of the losses that `Averages` are of.
    """

    log_weight: np.float32
    bias: np.ndarray
    group: np.ndarray
    runs: np.ndarray
    num_runs: int
    shares: np.ndarray


class Block(NamedTuple):
    """Edges worked on together: `size` of a batch from `first` on, of their chunk from `inside` on."""

    first: int
    inside: int
    size: int


@elementwise
def power_of_2(x):
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
def write_factor(factors, row, column, number):
    """Write a float32 into a table of factors, rounded to the nearest if that holds bfloat16."""
    if factors.dtype == ROUNDED:  # known when this is compiled
        factors[row, column] = _nearest(number) if number == number else _NAN
    else:
        factors[row, column] = number


@helper
def leave_out(dropped, place, block, width, score, scores):
    """Set the scores, `width` an edge, that must not count to `score`, which weighs nothing.

    Returns the place in `dropped` after them.
    """
    for e in range(block.size):
        begin = (block.first + e) * width
        while place < len(dropped) and dropped[place] < begin + width:
            scores[e, np.uint64(dropped[place] - begin)] = score
            place += 1
    return place


@helper
def count_chunk(negatives, number, log_weight, runs, shares):
    """What the negatives of a chunk count, by its number; `runs` and `shares` are written.

    Negatives in the order of ids come in as many runs as there are groups.
    """
    bias, group = negatives.bias[number], negatives.group[number]
    runs[0], last = 0, 0
    for k in range(1, len(shares) if len(group) else 0):
        if group[k] != group[k - 1]:
            last += 1
            runs[last] = k
    runs[last + 1] = len(shares)
    return Counts(log_weight, bias, group, runs, last + 1, shares)


@elementwise
def share_of(edges, edge):
    """What the gradients of an edge of a batch are multiplied by: its part of the mean loss."""
    share = _ONE / np.float32(len(edges.known))
    return share * edges.weight[edge] if len(edges.weight) else share


@helper
def settle(totals, edges, block, factors, pulls):
    """Write the softmax loss's factors and pulls of a block from its sums of weights; returns its losses.

    A loss is infinite where the sum is too large for gradients to be sure. `pulls` may be `totals`.
    """
    loss = 0.0
    for e in range(block.size):
        total = totals[e]
        loss += np.inf if total > _MOST_WEIGHT else np.log1p(np.float64(total))
        factor = share_of(edges, block.first + e) / (total + _ONE)
        factors[e] = factor
        pulls[e] = -total * factor
    return loss


@elementwise
def _power_of_minus(x):
    """e^−|x|."""
    return power_of_2(-np.abs(x) * LOG2_E)


@elementwise
def _softplus(x):
    """log(1 + e^x) = max(x, 0) + log(1 + e^−|x|)."""
    t = _power_of_minus(x)
    c9, c8, c7, c6, c5, c4, c3, c2, c1, c0 = _LOGARITHM
    inner = c4 + t * (c5 + t * (c6 + t * (c7 + t * (c8 + t * c9))))
    return (x if x > _ZERO else _ZERO) + t * (c0 + t * (c1 + t * (c2 + t * (c3 + t * inner))))


@elementwise
def _sigmoid(x):
    t = _power_of_minus(x)
    inverse = _ONE / (_ONE + t)
    return inverse * (_ONE if x >= _ZERO else t)


@elementwise
def _ordered(bits):
    """The bits of a float32 as a whole number that is larger where the float is, and such a number back.

    The compiler makes vector instructions of a search for the largest whole number alone.
    """
    return np.int32(bits ^ ((bits >> _SIGN) & _MAGNITUDE))


@reordered_helper
def _share_evenly(scores, e, inside, counts):
    """Write what the negatives of an edge, `inside` a chunk, count in an even average; returns the sum.

    It is what their groups count; those that score `NOTHING` count nothing.
    """
    bias, group, runs, shares = counts.bias, counts.group, counts.runs, counts.shares
    total = _ZERO
    for r in range(counts.num_runs):
        every = _ONE
        if bias.shape[1]:
            every = power_of_2(bias[inside, group[runs[r]]] * LOG2_E)
        for k in range(np.uint64(runs[r]), np.uint64(runs[r + 1])):
            share = _ZERO if scores[e, k] == NOTHING else every
            shares[k] = share
            total += share
    return total


@reordered_helper
def _share_by_score(scores, e, inside, temperature, counts):
    """As `_share_evenly`, times e^(temperature · score), all divided by e^l, which keeps them finite.

    Returns the sum and l.
    """
    bias, group, runs, shares = counts.bias, counts.group, counts.runs, counts.shares
    for r in range(counts.num_runs):
        shift = bias[inside, group[runs[r]]] if bias.shape[1] else _ZERO
        for k in range(np.uint64(runs[r]), np.uint64(runs[r + 1])):
            shares[k] = scores[e, k] * temperature + shift
    highest, count = _LEAST, np.uint64(len(shares))
    for k in range(count):
        highest = max(highest, _ordered(np.float32(shares[k]).view(np.int32)))
    largest = np.int32(_ordered(highest)).view(np.float32)
    total = _ZERO
    for k in range(count):
        share = power_of_2((shares[k] - largest) * LOG2_E)
        shares[k] = share
        total += share
    return total, largest


@reordered_helper
def _smooth(scores, e, inside, positive, share, counts, averages):
    """As `average`, by the softmax loss with smoothed labels (`objectives.SmoothedObjective`)."""
    bias, group, runs, shares = counts.bias, counts.group, counts.runs, counts.shares
    count, kept, gaps = np.uint64(len(shares)), _ZERO, _ZERO
    for r in range(counts.num_runs):
        shift = bias[inside, group[runs[r]]] if bias.shape[1] else _ZERO
        for k in range(np.uint64(runs[r]), np.uint64(runs[r + 1])):
            is_kept = scores[e, k] != NOTHING
            kept += _ONE if is_kept else _ZERO
            gaps += positive - (scores[e, k] + shift) if is_kept else _ZERO
    total, largest = _share_by_score(scores, e, inside, _ONE, counts)
    smoothed = averages.smoothing / (kept + _ONE)
    above = np.float32(largest + np.log(total)) + (counts.log_weight - positive)
    inverse = _ZERO if total == _ZERO else _sigmoid(above) / total  # NaN stays
    slopes = _ZERO
    for k in range(count):
        slope = shares[k] * inverse - smoothed if scores[e, k] != NOTHING else _ZERO
        scores[e, k] = slope
        slopes += slope
    return _softplus(above) + smoothed * gaps, share, -slopes * share


@reordered_helper
def average(scores, e, inside, positive, share, counts, averages):
    """Turn the scores of an edge's negatives into weights by a loss that goes over all of them.

    Args:
        scores: of which row e is replaced.
        inside: place of the edge in its chunk.
        positive: score of the own answer. share: what the edge's gradients are multiplied by.

    Returns:
        Loss, factor and pull.
    """
    if averages.kind == SMOOTHED:
        return _smooth(scores, e, inside, positive, share, counts, averages)
    margin, temperature, shares = averages.margin, averages.temperature, counts.shares
    count = np.uint64(len(shares))
    if temperature == _ZERO:
        total = _share_evenly(scores, e, inside, counts)
    else:
        total, _ = _share_by_score(scores, e, inside, temperature, counts)
    inverse = _ZERO if total == _ZERO else _ONE / total  # NaN stays
    losses, slopes = _ZERO, _ZERO
    if averages.kind == LOGISTIC:
        for k in range(count):
            score = scores[e, k] + margin
            losses += shares[k] * _softplus(score)
            scores[e, k] = shares[k] * _sigmoid(score)
        own = -(positive + margin)
        return losses * inverse + _softplus(own), share * inverse, -_sigmoid(own) * share
    for k in range(count):
        gap = scores[e, k] + (margin - positive)
        losses += shares[k] * (_ZERO if gap <= _ZERO else gap)
        slope = shares[k] if gap > _ZERO else _ZERO
        scores[e, k] = slope
        slopes += slope
    return losses * inverse, share * inverse, -slopes * (share * inverse)


@elementwise
def _write_weight(scores, e, k, shift, weights):
    """Write e^(score − s⁺) of negative k of edge e, where `shift` is all but the score, for powers of 2.

    Returns it. A weight that is float32 takes the score's place.
    """
    weight = power_of_2(scores[e, k] * LOG2_E + shift)
    if weights.dtype == ROUNDED:
        weights[e, k] = _nearest(weight)  # the total tells of NaN
    else:
        scores[e, k] = weight
    return weight


@reordered_helper
def weigh_softmax(scores, positives, block, counts, weights, totals):
    """Write the softmax loss's weights e^(score − s⁺) of a block, and their sums.

    Weights that are float32 take the scores' place. Runs of negatives may be shorter than what a processor
    takes at once: only what they count is written run by run, into `counts.shares`.
    """
    bias, group, runs, shifts = counts.bias, counts.group, counts.runs, counts.shares
    count = np.uint64(len(shifts))
    for e in range(block.size):
        total = _ZERO
        shift = counts.log_weight - positives[e]
        if counts.num_runs > 1:
            for r in range(counts.num_runs):
                own = (shift + bias[block.inside + e, group[runs[r]]]) * LOG2_E
                for k in range(np.uint64(runs[r]), np.uint64(runs[r + 1])):
                    shifts[k] = own
            for k in range(count):
                total += _write_weight(scores, e, k, shifts[k], weights)
        else:
            if bias.shape[1]:
                shift += bias[block.inside + e, group[0]]
            shift *= LOG2_E
            for k in range(count):
                total += _write_weight(scores, e, k, shift, weights)
        totals[e] = total


@reordered_helper
def _weigh_average(scores, room, edges, block, counts, averages):
    """Write the weights, factors and pulls of a block as `average` has them; returns losses."""
    weights, positives, factors, pulls = room.weights, room.positives, room.factors, room.pulls
    loss = 0.0
    for e in range(block.size):
        share = share_of(edges, block.first + e)
        found = average(scores, e, block.inside + e, positives[e], share, counts, averages)
        losses, factors[e], pulls[e] = found
        loss += losses
        for k in range(np.uint64(len(counts.shares) if weights.dtype == ROUNDED else 0)):
            write_factor(weights, e, k, scores[e, k])
    return loss


@reordered_helper
def weigh(scores, room, edges, block, counts, averages):
    """Turn the scores of a block of edges into weights.

    Args:
        scores: (n, K or more), replaced where `room.weights` is the same array.
        room: holds `positives`, scores of own answers; `weights`, `factors` and `pulls` are written.
        averages: None: the loss is softmax. Known when this is compiled: a loop for either is made sooner.

    Returns:
        The sum of losses.
    """
    if averages is None:
        weigh_softmax(scores, room.positives, block, counts, room.weights, room.pulls)
        return settle(room.pulls, edges, block, room.factors, room.pulls)
    return _weigh_average(scores, room, edges, block, counts, averages)
