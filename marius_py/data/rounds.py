"""Which order an epoch follows and how often (floor 2): sizes of a run in, an order's name and rounds out.

While a partition is in the buffer, its nodes are negatives of every batch and its edges come one after the
other; while it is not, there are none. The fewer and longer its stays, the more its rows follow the edges of
the moment, which costs quality. Two things make stays short and many: the order `random`, whose states
overlap little and differ in every epoch, and several rounds an epoch, each with a share of every bucket. Both
cost I/O, which is free as long as it hides behind training.

The choice follows from sizes and the kind of device, not from what was measured on a machine, so that the
same seed gives the same embeddings on each machine of that kind.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from marius_py.ordering import build_schedule

FLOP_PER_BYTE = {"cpu": 400.0, "cuda": 10_000.0}
"""Operations an epoch computes for each byte it moves, at least: 100 GFLOP/s beside half of 0.5 GB/s, and on
a device 20 TFLOP/s beside half of 4 GB/s."""

FLOP_PER_KNOWN_EDGE = {"cpu": 15_000.0, "cuda": 2.5e6}
"""Operations of training for each known edge that a step indexes, at least. Indexing one takes 0.006 to 0.03
µs of a core where few of them are asked for, as with many steps: in 0.025 µs it computes 3,000, a fifth."""

FLOP_PER_EDGE = {"cpu": 300_000.0, "cuda": 0.0}
"""Operations in whose time an edge is drawn, gathered and written back, beside its products: 3 µs of a core
(measured at dim 64 with 100 negatives)."""

LEAST_FILLING, FILLING = 0.75, 0.9
"""Share of `training.batch_size` that batches keep on average where each step has its own, at least: under
the mixed order, and under several rounds."""

MANY_BATCHES, HALF_FILLED = 100, 0.5
"""An epoch of at least so many batches, filled to less than this, is worth a warning."""

MOST_ROUNDS = 16

MIXED, FEWEST = "random", "auto"
"""The order whose stays are the shortest, and the one with the fewest loads."""


@dataclass(frozen=True, slots=True)
class EpochOrder:
    """What an epoch follows.

    Attributes:
        name: of the order, as `build_schedule` takes it.
        rounds: how often it is gone through.
    """

    name: str
    rounds: int


class Batches(NamedTuple):
    """Batches of an epoch: how many, about, and their mean size as a share of `training.batch_size`."""

    number: int
    filling: float


@dataclass(frozen=True, slots=True)
class EpochWork:
    """What an epoch computes and moves.

    Attributes:
        num_edges: train edges. batch_size: edges a batch.
        flop_per_edge: floating-point operations of an edge's products.
        partition_bytes: of one partition with its optimizer state.
        known_edges: that each step indexes to leave them out of the negatives.
        device: "cuda" where batches are computed on one, else "cpu".
    """

    num_edges: int
    batch_size: int
    flop_per_edge: float
    partition_bytes: int
    known_edges: int = 0
    device: str = "cpu"

    @property
    def batch_flop(self) -> float:
        """Floating-point operations of a batch's products."""
        return min(self.batch_size, self.num_edges) * self.flop_per_edge

    def rounds(self, name: str, p: int, c: int) -> int:
        """Most rounds of an order that fit, from 1 to 16; 1 where everything is resident."""
        swaps, steps = _size(name, p, c)
        if not swaps:
            return 1
        most = int(min(self._hidden_swaps() / swaps, self._hidden_indices() / steps, MOST_ROUNDS))
        return next((times for times in range(most, 1, -1) if self._filling(times * swaps + 1) >= FILLING), 1)

    def order(self, p: int, c: int) -> EpochOrder:
        """The mixed order if a round of it fits, else the one with the fewest loads, and its rounds."""
        if c < p:
            swaps, steps = _size(MIXED, p, c)
            hides = swaps <= self._hidden_swaps() and steps <= self._hidden_indices()
            if hides and self._filling(steps) >= LEAST_FILLING:
                return EpochOrder(MIXED, self.rounds(MIXED, p, c))
        return EpochOrder(FEWEST, self.rounds(FEWEST, p, c))

    def batches(self, order: EpochOrder, p: int, c: int) -> Batches:
        """How many batches an epoch has where each step is cut into its own, and their mean size."""
        steps = order.rounds * _size(order.name, p, c)[1]
        return Batches(max(steps, math.ceil(self.num_edges / self.batch_size)), self._filling(steps))

    def _hidden_swaps(self) -> float:
        """Swaps of an epoch, each of which reads a partition and writes one, that should hide."""
        return self._computed() / (2 * self.partition_bytes * FLOP_PER_BYTE[self.device])

    def _hidden_indices(self) -> float:
        """Steps of an epoch whose indices of known edges should hide."""
        if not self.known_edges:
            return math.inf
        return self._computed() / (self.known_edges * FLOP_PER_KNOWN_EDGE[self.device])

    def _computed(self) -> float:
        """Operations of an epoch, or what takes as long."""
        return self.num_edges * (self.flop_per_edge + FLOP_PER_EDGE[self.device])

    def _filling(self, steps: int) -> float:
        """Mean size of the batches in that of a full one: steps have whole batches where they can."""
        return min(1.0, self.num_edges / (steps * self.batch_size))


@lru_cache(maxsize=64)
def _size(name: str, p: int, c: int) -> tuple[int, int]:
    """Swaps and steps of a round."""
    one = build_schedule(p, c, order=name, seed=0, policy="eager")
    return one.swaps, len(one.steps)


def product_flop(dim: int, negatives: int) -> float:
    """Operations of an edge's products: scores, gradients of queries and of candidates (2 K D each).

    Args:
        dim: D, floats a node. negatives: of both sides together.
    """
    return 6.0 * dim * negatives
