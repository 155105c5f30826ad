"""Train edges as steps ask for them (floor 2): an edge store in, buckets and ranges of its train split out.

A step on disk reads some buckets and parts of others anew. Where a graph is small these are many short reads,
each with its checksum, and all of its edges take less memory than one block of a large graph: they are held.
"""

from __future__ import annotations

import numpy as np

from marius_py.partitioning import Partitioning
from marius_py.storage.protocols import Edges, EdgeStore
from marius_py.types import Bucket

HELD_EDGES = 1 << 21
"""Edges that are held, at most: 25 MB."""


class TrainEdges:
    """Reads train edges, and counts what is read; if they are few, all of them when the first are asked for.

    By one thread.

    Args:
        store: where they are.
        most: edges that are held, at most.
        weights: let their weights come along, in rows of four numbers (see `storage.weighted`).

    Attributes:
        is_held: whether they are few; what is returned are views then.
        bytes_read: so far.
    """

    def __init__(self, store: EdgeStore, most: int, *, weights: bool = False) -> None:
        self._store = store
        self._weights = weights
        self.counts = store.bucket_counts()
        """(p, p) edges a bucket."""
        self._starts = np.concatenate([[0], np.cumsum(self.counts.ravel())]).tolist()
        self._held: Edges | None = None
        self.is_held = self._starts[-1] <= most
        self.bytes_read = 0

    @property
    def partitioning(self) -> Partitioning:
        """The partition ranges by which edges are sorted into buckets."""
        return self._store.partitioning

    @property
    def nbytes(self) -> int:
        """Bytes held; asked from any thread."""
        held = self._held
        return 0 if held is None else held.nbytes

    def bucket(self, bucket: Bucket) -> Edges:
        """The (E, 3) edges of a bucket, or (E, 4) with weights."""
        if not self.is_held:
            return self._counted(self._store.read("train", bucket, weights=self._weights))
        place = bucket.head * len(self.counts) + bucket.tail
        return self.rows(self._starts[place], self._starts[place + 1])

    def rows(self, start: int, stop: int) -> Edges:
        """The (stop − start, 3) edges by position, or (stop − start, 4) with weights."""
        if not self.is_held:
            return self._counted(self._store.read_range("train", start, stop, weights=self._weights))
        if self._held is None:
            self._held = self._counted(self._store.read("train", weights=self._weights))
        return self._held[start:stop]

    def clear(self) -> None:
        """Let go of what is held."""
        self._held = None

    def _counted(self, edges: Edges) -> Edges:
        self.bytes_read += edges.nbytes
        return edges
