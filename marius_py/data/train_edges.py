"""Train edges held in memory where they are few (floor 2): an edge store in, the same without its disk out.

A step on disk reads some buckets and parts of others anew. Where a graph is small these are many short reads,
each with its checksum, and all of its edges take less memory than one block of a large graph.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from marius_py.partitioning import Partitioning
from marius_py.storage.protocols import Edges, EdgeStore
from marius_py.types import Bucket

HELD_EDGES = 1 << 21
"""Edges that are held, at most: 25 MB."""


class HeldEdges:
    """An `EdgeStore` over another one whose train edges it reads whole, when the first of them are asked for.

    By one thread. What is returned are views.

    Attributes:
        bytes_read: of train edges from the other store, so far.
    """

    def __init__(self, store: EdgeStore) -> None:
        self._store = store
        self._counts = store.bucket_counts()
        self._starts = np.concatenate([[0], np.cumsum(self._counts.ravel())]).tolist()
        self._train: Edges | None = None
        self.bytes_read = 0

    @property
    def partitioning(self) -> Partitioning:
        """The partition ranges by which train edges are sorted into buckets."""
        return self._store.partitioning

    def bucket_counts(self) -> NDArray[np.int64]:
        """Train edges by bucket: (p, p)."""
        return self._counts.copy()

    def num_edges(self, split: str) -> int:
        """Edges of a split."""
        return self._store.num_edges(split)

    def read(self, split: str, bucket: Bucket | None = None) -> Edges:
        """The (E, 3) edges of a split, or of one bucket of the train split."""
        if split != "train":
            return self._store.read(split, bucket)
        if bucket is None:
            return self._held()
        place = bucket[0] * len(self._counts) + bucket[1]
        return self._held()[self._starts[place] : self._starts[place + 1]]

    def read_range(self, split: str, start: int, stop: int) -> Edges:
        """The (stop − start, 3) edges of a split by position."""
        return self._held()[start:stop] if split == "train" else self._store.read_range(split, start, stop)

    def close(self) -> None:
        """Close the other store."""
        self._store.close()

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return 0 if self._train is None else self._train.nbytes

    def clear(self) -> None:
        """Let go of the edges."""
        self._train = None

    def _held(self) -> Edges:
        if self._train is None:
            self._train = self._store.read("train")
            self.bytes_read = self._train.nbytes
        return self._train
