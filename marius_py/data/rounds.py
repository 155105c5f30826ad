"""How often an epoch goes through the partitions (floor 2): sizes of a run in, a number of rounds out.

While a partition is in the buffer, its nodes are negatives of every batch; while it is not, of none. The
longer it stays and stays away, the more its rows follow the edges of the moment, which costs quality. Several
rounds an epoch, each with a share of every bucket, shorten both. They cost as many times the I/O, which is
free as long as it hides behind training.

The number follows from sizes alone, not from what was measured on a machine, so that the same seed gives the
same embeddings everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass

FLOP_PER_BYTE = {"cpu": 400.0, "cuda": 10_000.0}
"""Operations an epoch computes for each byte it moves, at least: 100 GFLOP/s beside half of 0.5 GB/s, and on
a device 20 TFLOP/s beside half of 4 GB/s."""

FLOP_PER_KNOWN_EDGE = {"cpu": 60_000.0, "cuda": 1e7}
"""Operations of training for each known edge that a step indexes, at least. Indexing one takes about 0.1 µs
of a core, in which that core computes 12,000: a fifth of the time of training at most, in another thread."""

LEAST_BATCHES = 2
"""Batches of a step: with fewer, batches would shrink."""

MOST_ROUNDS = 16


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

    def rounds(self, swaps: int, steps: int) -> int:
        """Most rounds whose swaps and indices should hide and whose steps hold whole batches, from 1 to 16.

        Args:
            swaps: partitions that a round admits; 0: everything is resident, one round.
            steps: buffer states of a round.
        """
        if not swaps:
            return 1
        computed = self.num_edges * self.flop_per_edge
        moved = 2 * swaps * self.partition_bytes  # each swap reads one partition and writes one
        hidden = computed / (moved * FLOP_PER_BYTE[self.device])
        whole = self.num_edges / (steps * LEAST_BATCHES * self.batch_size)
        if self.known_edges:
            indexed = steps * self.known_edges * FLOP_PER_KNOWN_EDGE[self.device]
            hidden = min(hidden, computed / indexed)
        return int(max(1, min(hidden, whole, MOST_ROUNDS)))


def product_flop(dim: int, negatives: int) -> float:
    """Operations of an edge's products: scores, gradients of queries and of candidates (2 K D each).

    Args:
        dim: D, floats a node. negatives: of both sides together.
    """
    return 6.0 * dim * negatives
