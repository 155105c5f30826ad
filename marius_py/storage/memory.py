"""Twins of the stores on disk, in memory (floor 1): same protocols, same semantics, nothing durable.

In: arrays. Out: copies of them. For graphs that fit in RAM, for tests, and as the reference that the
stores on disk are compared with.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self, cast

import numpy as np
from numpy.typing import NDArray

from marius_py.errors import FormatError, StorageError
from marius_py.partitioning import Partitioning
from marius_py.storage.aligned import allocate
from marius_py.storage.checkpoint_file import copy_checkpoint
from marius_py.storage.checks import check_arrays, check_part, check_table
from marius_py.storage.edge_writer import edge_dtype
from marius_py.storage.file_io import array_checksum
from marius_py.storage.protocols import Checkpoint, Edges, Float32, NodeTable
from marius_py.storage.slots import EMPTY, SlotTable
from marius_py.storage.weighted import WEIGHT, without_weights
from marius_py.types import SPLITS, Bucket


def _copied(rows: Float32) -> Float32:
    """A copy whose memory goes back to the system with it, whatever else is in use between: rows are many."""
    copy: Float32 = allocate(rows.shape)
    copy[...] = rows
    return copy


class MemoryPartitionStore:
    """`PartitionStore` in memory. Same threading rules as the store on disk.

    Args:
        table: shape of the node table.
        spare_slots: versions beyond one a partition, as on disk; None: one a partition, never short.
    """

    def __init__(self, table: NodeTable, *, spare_slots: int | None = None) -> None:
        parts = table.partitioning.num_partitions
        spare = parts if spare_slots is None else spare_slots
        check_table(table, spare)
        self._table = table
        self._slots = SlotTable(parts + spare, np.full(parts, EMPTY, np.int64))
        self._versions: dict[int, tuple[Float32, Float32]] = {}
        self._checkpoint: Checkpoint | None = None
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def table(self) -> NodeTable:
        """Shape of the stored node table."""
        return self._table

    def read_into(self, part: int, embeddings: Float32, state: Float32) -> int:
        """Fill slot-shaped arrays with the newest version of `part`; returns bytes copied."""
        self._check_open()
        check_arrays(self._table, part, embeddings, state)
        rows = self._table.partitioning.size(part)
        stored = self._versions[self._slots.current(part)]
        embeddings[:rows], state[:rows] = stored
        return stored[0].nbytes + stored[1].nbytes

    def write(self, part: int, embeddings: Float32, state: Float32) -> int:
        """Store a copy as the new, uncommitted version of `part`; returns bytes copied."""
        self._check_open()
        check_arrays(self._table, part, embeddings, state)
        slot = self._slots.claim(part)
        rows = self._table.partitioning.size(part)
        self._versions[slot] = (_copied(embeddings[:rows]), _copied(state[:rows]))
        self._slots.confirm(part)
        return sum(array.nbytes for array in self._versions[slot])

    def free_slots(self) -> int:
        """How many further partitions can be written before a commit is due."""
        return self._slots.num_free()

    def commit(self, checkpoint: Checkpoint) -> None:
        """Make all writes so far and a copy of `checkpoint` the committed state."""
        self._check_open()
        self._slots.proposal()
        copy = copy_checkpoint(checkpoint)
        self._slots.commit()
        self._checkpoint = copy

    def rollback(self) -> None:
        """Forget all writes since the last commit, as opening a store on disk anew does."""
        self._check_open()
        self._slots.rollback()

    def checkpoint(self) -> Checkpoint | None:
        """A copy of the last committed checkpoint, or None before the first commit."""
        return None if self._checkpoint is None else copy_checkpoint(self._checkpoint)

    @property
    def meta(self) -> Mapping[str, Any] | None:
        """A copy of the last committed checkpoint's meta alone, or None before the first commit."""
        committed = self._checkpoint
        return None if committed is None else copy_checkpoint(Checkpoint(meta=committed.meta)).meta

    def close(self) -> None:
        """Free the memory. May be called twice."""
        self._closed = True
        self._versions.clear()

    def _check_open(self) -> None:
        if self._closed:
            raise StorageError("the node store in memory is closed")


class MemoryEdgeStore:
    """`EdgeStore` in memory; sorts the train edges into buckets, stable within each.

    Args:
        partitioning: the partition ranges.
        train, valid, test: (E, 3) integer rows of (head, relation, tail); copied. Those of train may be
            (E, 4), with weights (see `storage.weighted`).

    Raises:
        FormatError: a wrong shape or dtype, or an id outside the graph.
    """

    def __init__(
        self,
        partitioning: Partitioning,
        train: NDArray[np.integer],
        valid: NDArray[np.integer] | None = None,
        test: NDArray[np.integer] | None = None,
    ) -> None:
        self._partitioning = partitioning
        dtype = edge_dtype(partitioning.num_nodes)
        empty = np.empty((0, 3), dtype)
        self._edges: dict[str, Edges] = {
            split: _checked_edges(split, empty if edges is None else edges, partitioning, dtype)
            for split, edges in zip(SPLITS, (train, valid, test), strict=True)
        }
        p = partitioning.num_partitions
        unsorted = self._edges["train"]
        buckets = partitioning.locate(unsorted[:, 0])[0] * p + partitioning.locate(unsorted[:, 2])[0]
        self._edges["train"] = unsorted[np.argsort(buckets, kind="stable")]
        self._counts = np.bincount(buckets, minlength=p * p).astype(np.int64).reshape(p, p)
        self._offsets = np.concatenate([[0], np.cumsum(self._counts)])

    @property
    def partitioning(self) -> Partitioning:
        """The partition ranges by which train edges are sorted into buckets."""
        return self._partitioning

    def bucket_counts(self) -> NDArray[np.int64]:
        """Count the train edges by bucket: (p, p)."""
        return self._counts.copy()

    def train_order(self) -> str:
        """A digest of the train edges in their order."""
        return f"{array_checksum(self._edges['train']):016x}"

    @property
    def weighted(self) -> bool:
        """Whether the train edges have weights."""
        return bool(self._edges["train"].shape[1] > WEIGHT)

    def num_edges(self, split: str) -> int:
        """Count the edges of a split."""
        return len(self._split(split))

    def read(self, split: str, bucket: Bucket | None = None, *, weights: bool = False) -> Edges:
        """Copy the (E, 3) edges of a split, or of one bucket of the train split; (E, 4) with `weights`."""
        edges = self._split(split)
        if bucket is None:
            return self.read_range(split, 0, len(edges), weights=weights)
        if split != "train":
            raise StorageError(f"only train edges lie in buckets; read {split!r} without bucket={bucket}")
        for part in bucket:
            check_part(self._partitioning, part)
        index = bucket.head * self._partitioning.num_partitions + bucket.tail
        return self.read_range(split, *self._offsets[index : index + 2].tolist(), weights=weights)

    def read_range(self, split: str, start: int, stop: int, *, weights: bool = False) -> Edges:
        """Copy the (stop − start, 3) edges of a split by position; (stop − start, 4) with `weights`."""
        edges = self._split(split)
        if not 0 <= start <= stop <= len(edges):
            raise StorageError(f"edge range {start}:{stop} of {split!r} lies outside 0:{len(edges)}")
        rows = edges[start:stop].copy()
        return rows if weights else without_weights(rows)

    def close(self) -> None:
        """Do nothing; the memory goes with the object."""

    def _split(self, split: str) -> Edges:
        if split not in self._edges:
            raise StorageError(f"unknown split {split!r}; allowed: {', '.join(SPLITS)}")
        return self._edges[split]


def _checked_edges(
    split: str, edges: NDArray[np.integer], partitioning: Partitioning, dtype: np.dtype[Any]
) -> Edges:
    widths = (WEIGHT, WEIGHT + 1) if split == "train" else (WEIGHT,)
    if edges.ndim != 2 or edges.shape[1] not in widths or edges.dtype.kind not in "iu":
        raise FormatError(f"{split} edges must be integers of shape (E, 3), got {edges.dtype} {edges.shape}")
    nodes = edges[:, [0, 2]]
    if len(edges) and (int(nodes.min()) < 0 or int(nodes.max()) >= partitioning.num_nodes):
        raise FormatError(f"{split} edges have node ids outside 0 to {partitioning.num_nodes - 1}")
    return cast("Edges", np.array(edges, dtype))
