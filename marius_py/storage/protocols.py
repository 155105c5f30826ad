"""What the floors above ask of storage (floor 1): arrays in, arrays out; numpy, no torch.

Two node stores fulfil `PartitionStore`: `storage.hdf5_store` on disk and its twin `storage.memory`. All bulk
methods are called from one I/O thread at a time; `commit` and `checkpoint` only while no bulk call runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from marius_py.partitioning import Partitioning
from marius_py.types import Bucket

Float32 = NDArray[np.float32]
Edges = NDArray[np.int32] | NDArray[np.int64]
"""(E, 3) rows of (head, relation, tail) ids; int32 below 2³¹ nodes, int64 from there.

Where weights are asked for, (E, 4), the fourth made of the weight (see `storage.weighted`).
"""

ROW_MULTIPLE = 1024
"""Rows of a slot are rounded up to this, so that a slot is 4 KiB-aligned for any width of float32."""

SMALL_SLOT = 64 << 20
"""Bytes up to which a buffer has two slots to read into: small partitions are swapped often."""


@dataclass(frozen=True, slots=True)
class NodeTable:
    """Shape of a run's node table: N rows in p partitions, D floats of embedding, S of state a row."""

    partitioning: Partitioning
    dim: int
    state_dim: int

    @property
    def slot_rows(self) -> int:
        """Rows of one slot: the largest partition rounded up to a multiple of `ROW_MULTIPLE`."""
        return -(-self.partitioning.max_size // ROW_MULTIPLE) * ROW_MULTIPLE

    @property
    def slot_bytes(self) -> int:
        """Bytes of one slot, embeddings and state together."""
        return self.slot_rows * (self.dim + self.state_dim) * 4

    def num_slots(self, capacity: int) -> int:
        """Slots of a buffer of c partitions: as many, and one to read into where others are on disk.

        Two where slots are small, four or more partitions are in memory and two or more others on disk.
        """
        most = 2 if capacity >= 4 and self.slot_bytes <= SMALL_SLOT else 1
        return capacity + min(most, self.partitioning.num_partitions - capacity)


@dataclass(frozen=True, slots=True)
class JsonText:
    """A value in a checkpoint's meta that is JSON already: `text` is written as it is."""

    text: str


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """All that commits together with the node partitions.

    Attributes:
        arrays: small arrays by name (relations, their optimizer state, …); no object dtype.
        meta: JSON-serialisable facts (position, history, fingerprint, settings, …). Where it is committed, a
            value may be a `JsonText`; what is read back holds none.
    """

    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    meta: Mapping[str, Any] = field(default_factory=dict)


@runtime_checkable
class PartitionStore(Protocol):
    """Versioned node partitions: reads see the newest write, a crash returns to the last commit."""

    @property
    def table(self) -> NodeTable:
        """Shape of the stored node table."""
        ...

    def read_into(self, part: int, embeddings: Float32, state: Float32) -> int:
        """Fill `embeddings` (slot_rows, D) and `state` (slot_rows, S) with partition `part`.

        Returns:
            Bytes read. Raises StorageError on failure or checksum mismatch; the arrays are then undefined.
        """
        ...

    def write(self, part: int, embeddings: Float32, state: Float32) -> int:
        """Store a new, uncommitted version of partition `part`; the committed one stays intact.

        Returns:
            Bytes written. Raises StorageError on failure; the committed version is never touched.
        """
        ...

    def free_slots(self) -> int:
        """How many partitions beside the uncommitted ones can be written before a commit is due."""
        ...

    def commit(self, checkpoint: Checkpoint) -> None:
        """Make all writes so far and `checkpoint` the committed state, atomically and durably."""
        ...

    def checkpoint(self) -> Checkpoint | None:
        """The last committed checkpoint, or None before the first commit."""
        ...

    @property
    def meta(self) -> Mapping[str, Any] | None:
        """A copy of the last committed checkpoint's meta alone, or None before the first commit."""
        ...

    def close(self) -> None:
        """Release files and locks; uncommitted writes are forgotten. May be called twice."""
        ...


@runtime_checkable
class EdgeStore(Protocol):
    """Edges of a prepared graph; train edges lie in bucket order. Thread-safe reads."""

    @property
    def partitioning(self) -> Partitioning:
        """The partition ranges by which train edges are sorted into buckets."""
        ...

    def bucket_counts(self) -> NDArray[np.int64]:
        """Count the train edges by bucket: (p, p), entry [head partition, tail partition]."""
        ...

    def train_order(self) -> str:
        """A digest of the train edges in their order, which is another in another file of the same edges."""
        ...

    def num_edges(self, split: str) -> int:
        """Count the edges of split "train", "valid" or "test" (0 if the graph has no such split)."""
        ...

    @property
    def weighted(self) -> bool:
        """Whether the train edges have weights."""
        ...

    def read(self, split: str, bucket: Bucket | None = None, *, weights: bool = False) -> Edges:
        """Read the (E, 3) edges of a split, or of one bucket of the train split.

        With `weights`, (E, 4) rows of the train split of a graph that has some.
        """
        ...

    def read_range(self, split: str, start: int, stop: int, *, weights: bool = False) -> Edges:
        """Read the (stop − start, 3) edges of a split by position in the file, for streaming in blocks.

        With `weights`, as `read`.
        """
        ...

    def close(self) -> None:
        """Release the files. May be called twice."""
        ...
