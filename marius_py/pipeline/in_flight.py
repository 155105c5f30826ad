"""How many batches are in flight, and threads in each, where nobody says (floor 3): sizes and cores in.

A core with a batch of its own does more than one that shares in another's. Two cores, each with a batch of
10,000 edges, train 1.9 to 2 times as many edges as one; sharing in one batch 1.5 to 1.7 times, with
PyTorch's own threads in it 1.4 times; with batches of 1,024 it is 1.8 to 1.9, 1.2 to 1.5 and 1.1 to 1.4
times. But a batch in flight misses the changes of those beside it, all threads wait for one interpreter, and
each batch takes memory.
"""

from __future__ import annotations

import math

from marius_py.data.rounds import EpochWork

LEAST, MOST = 2, 8
"""In flight on a CPU. Two keep two cores busy; up to eight rankings were compared on several graphs."""

MOST_ON_DEVICE = 4
"""In flight where rows travel to a device: one is gathered, one sent, one computed and one written back."""

BATCHES_EACH, RUN_BATCHES_EACH = 32, 150
"""Batches an epoch, and of the whole run, for each in flight. With 33 and 166 (8 of 266 in each of 5 epochs,
FB15k-237) the ranking is what it is with two in flight; with 76 of a run it is 4 % behind, with 3 an epoch
the loss stays behind for epochs."""

FLOP_EACH = 1e8
"""Operations of products in the time, a millisecond, that a thread holds the interpreter for its batch or its
part of one. Those who wait for it have at least so much to do meanwhile."""


def batches_in_flight(work: EpochWork, epochs: int, cores: int, room: int) -> int:
    """As many as have a core each, from 2 to 8, while they have enough to do and stay fresh.

    Args:
        work: what an epoch computes.
        epochs: of the run.
        cores: that may have a batch each; they do not count where a device computes.
        room: batches for which there is memory.
    """
    batches = work.num_edges // work.batch_size
    fresh = min(batches // BATCHES_EACH, epochs * batches // RUN_BATCHES_EACH)
    if work.device == "cuda":
        return max(LEAST, min(MOST_ON_DEVICE, fresh, room))
    return max(LEAST, min(MOST, cores, fresh, room, int(work.batch_flop / FLOP_EACH)))


def members_of_each(work: EpochWork, lanes: int, room: int) -> int:
    """Threads that share in each of `lanes` batches that are computed at once, at most.

    With m of them all hold the interpreter for m lanes milliseconds while they compute a batch each, in one
    m-th of its time: m² lanes of these are a batch's whole time at most.

    Args:
        work: what an epoch computes.
        lanes: batches that are computed at once.
        room: batches for which there is memory; each member may hold gradients of a whole one.
    """
    busy = math.isqrt(int(work.batch_flop / FLOP_EACH / lanes))
    return max(1, min(busy, room // lanes))
