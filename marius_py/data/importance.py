"""What a resident negative counts (floor 2): slots of an edge's ends in, weights out.

An edge is trained while both of its partitions lie in the buffer, so a negative drawn from the buffer comes
from them far more often than a node drawn from the whole graph would. Weights undo that: with 2 c >= p
the negatives of an edge stand evenly for all nodes (the correction of a sampled softmax by its proposal
distribution; Bengio and Senécal, 2008). With a smaller c, weights that undo it in full would leave few
negatives that count (57 of 100 for p = 32, c = 4), so that they undo it in part.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

LEAST_SHARE = 0.5
"""Least weight of a negative from a partition of the edge's own."""


def slot_shares(num_partitions: int, capacity: int) -> tuple[float, float, float] | None:
    """What a negative counts: from a partition of the edge's own; from another, where both of the edge's ends
    lie in one partition; from another, where they lie in two. None: see `slot_weights`.

    >>> slot_shares(8, 4), slot_shares(32, 4)
    ((0.5, 1.1666666666666667, 1.5), (0.5, 1.1666666666666667, 1.5))
    """
    if capacity >= num_partitions or capacity < 3:
        return None
    own = max(capacity / num_partitions, LEAST_SHARE)
    # Draws are even over the c residents: the mean weight of a draw stays 1.
    inside, between = ((capacity - held * own) / (capacity - held) for held in (1, 2))
    return own, inside, between


def slot_weights(
    head_slot: NDArray[np.int64],
    tail_slot: NDArray[np.int64],
    num_partitions: int,
    capacity: int,
    num_slots: int,
) -> NDArray[np.float32] | None:
    """Weights of negatives drawn evenly from c resident of p partitions, by the slot they lie in.

    An edge between k partitions (1 or 2) meets each of them with probability 1 / c a negative, and each of
    the p - k others, over the steps in which it can be trained, with (c - k) / (c (p - k)). A draw from the
    whole graph would meet each with 1 / p. The weight is the quotient, 1 on average over the draws, where
    that of an edge's own partitions, c / p, reaches `LEAST_SHARE`; else it is that, and others' are lower.

    Args:
        head_slot: (B,) slots of the edges' heads.
        tail_slot: (B,) slots of their tails.
        num_partitions: p.
        capacity: c.
        num_slots: S, slots of the buffer, at least c.

    Returns:
        (B, S) float32. None where nothing is to be corrected (c = p) or where it cannot be: with c = 2 an
        edge between two partitions never meets a node of another.
    """
    shares = slot_shares(num_partitions, capacity)
    if shares is None:
        return None
    own, inside, between = shares
    others = np.where(head_slot == tail_slot, inside, between)
    weights = np.repeat(others.astype(np.float32)[:, None], num_slots, axis=1)
    edges = np.arange(len(weights))
    weights[edges, head_slot] = weights[edges, tail_slot] = own
    return weights
