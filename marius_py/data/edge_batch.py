"""A batch of ids on its way to the buffer (floor 2): everything drawn, nothing gathered yet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from marius_py.buffer import Lease
from marius_py.types import Position, Side

Ids = NDArray[np.int64]


class GroupWeights(NamedTuple):
    """What negatives count, by group (see `resident_groups`).

    Attributes:
        group: (C, K) int64, each negative's group. weight: (C, P, c) float32, what it counts for an edge.
    """

    group: Ids
    weight: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class EdgeBatch:
    """Ids of a batch, drawn and indexed; its partitions are leased.

    Attributes:
        here: position of the batch. position: where the run stands when it is done.
        index: (U,) buffer rows of the batch's distinct nodes.
        head, tail: (B,) indices into `index`. relation: (B,) relation ids.
        negatives: corrupted side → (C, K) indices into `index`.
        dropped: corrupted side → (M,) positions in the flattened (C, P, K) of negatives that do not count,
            since they make known edges; ascending, distinct. Sides where all count are left out.
        importance: corrupted side → what its negatives count; sides whose negatives count alike are left out.
        edge_weight: corrupted side → (B,) float32, what each edge's loss counts; empty: 1 on both sides.
        seed: seed of the batch's dropout stream.
        lease: released when the batch's update has been added.
    """

    here: Position
    position: Position
    index: Ids
    head: Ids
    relation: Ids
    tail: Ids
    negatives: dict[Side, Ids]
    dropped: dict[Side, Ids]
    importance: dict[Side, GroupWeights]
    edge_weight: dict[Side, NDArray[np.float32]]
    seed: int
    lease: Lease

    @property
    def num_edges(self) -> int:
        """B."""
        return len(self.relation)
