"""Edges of a batch whose partitions are leased (floor 2): what a source hands out, nothing drawn yet."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from marius_py.buffer import Lease
from marius_py.data.resident_edges import EdgesAtHand
from marius_py.nn.known_edges import KnownEdges
from marius_py.nn.negatives import ResidentNodes
from marius_py.storage.protocols import Edges
from marius_py.types import Position


@dataclass(frozen=True, slots=True)
class LeasedEdges:
    """A batch as its source leaves it; everything drawn for it depends on this alone.

    Attributes:
        edges: (B, 3) head, relation, tail with global node ids.
        here: position of the batch. after: where the run stands when it is done.
        nodes: the resident nodes, to draw from.
        known: edges that negatives must not make, indexed, or as a device takes them; or None.
        first_row: (p,) buffer row of each partition's first node, -1 where it is not resident.
        lease: of the resident partitions, released when the batch's update has been added.
        weight: (B,) float32, what each edge counts; None: all count alike.
    """

    edges: Edges
    here: Position
    after: Position
    nodes: ResidentNodes
    known: KnownEdges | EdgesAtHand | None
    first_row: NDArray[np.int64]
    lease: Lease
    weight: NDArray[np.float32] | None = None
