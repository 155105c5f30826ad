"""What a resident negative counts (floor 2): partitions of an edge's ends in, weights out.

An edge is trained while both of its partitions lie in the buffer, so a negative drawn from the buffer comes
from them far more often than a node drawn from the whole graph would. Weights undo that: with 2 c >= p
the negatives of an edge stand evenly for all nodes (the correction of a sampled softmax by its proposal
distribution; Bengio and Senécal, 2008). With a smaller c, weights that undo it in full would leave few
negatives that count (57 of 100 for p = 32, c = 4), so that they undo it in part.

Negatives count by group: the residents in ascending order have the groups 0 to c - 1. Their slots would do
as well, but in which slot a partition lies depends on all swaps of the process, while which ones are resident
follows from the schedule. Groups are columns of a product, which rounds by their order: by group a resumed
run computes what an unbroken one does, to the bit.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

LEAST_SHARE = 0.5
"""Least weight of a negative from a partition of the edge's own."""


def resident_groups(first_rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """(p,) group of each resident partition, in [0, c); of others any.

    Args:
        first_rows: (p,) below zero for partitions that are not resident.

    >>> resident_groups(np.array([-1, 4096, -1, 0]))[[1, 3]].tolist()
    [0, 1]
    """
    groups: NDArray[np.int64] = np.maximum(np.cumsum(first_rows >= 0) - 1, 0)
    return groups


def group_shares(num_partitions: int, capacity: int) -> tuple[float, float, float] | None:
    """What a negative counts: from a partition of the edge's own; from another, where both of the edge's ends
    lie in one partition; from another, where they lie in two (see `group_weights`).

    None where nothing is to be corrected (c = p) or where it cannot be: with c = 2 an edge between two
    partitions never meets a node of another.

    >>> group_shares(8, 4), group_shares(32, 4)
    ((0.5, 1.1666666666666667, 1.5), (0.5, 1.1666666666666667, 1.5))
    """
    if capacity >= num_partitions or capacity < 3:
        return None
    own = max(capacity / num_partitions, LEAST_SHARE)
    # Draws are even over the c residents: the mean weight of a draw stays 1.
    inside, between = ((capacity - held * own) / (capacity - held) for held in (1, 2))
    return own, inside, between


def group_weights(
    head_group: NDArray[np.int64],
    tail_group: NDArray[np.int64],
    shares: tuple[float, float, float],
    capacity: int,
) -> NDArray[np.float32]:
    """Weights of negatives drawn evenly from c resident of p partitions, by group.

    An edge between k partitions (1 or 2) meets each of them with probability 1 / c a negative, and each of
    the p - k others, over the steps in which it can be trained, with (c - k) / (c (p - k)). A draw from the
    whole graph would meet each with 1 / p. The weight is the quotient, 1 on average over the draws, where
    that of an edge's own partitions, c / p, reaches `LEAST_SHARE`; else it is that, and others' are lower.

    Args:
        head_group: (B,) groups of the edges' heads.
        tail_group: (B,) groups of their tails.
        shares: of `group_shares`.
        capacity: c.

    Returns:
        (B, c) float32.
    """
    own, inside, between = shares
    others = np.where(head_group == tail_group, inside, between)
    weights = np.repeat(others.astype(np.float32)[:, None], capacity, axis=1)
    edges = np.arange(len(weights))
    weights[edges, head_group] = weights[edges, tail_group] = own
    return weights
