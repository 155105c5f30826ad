"""Checks and hashes that the store on disk and its twin share (floor 1)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import xxhash

from marius_py.errors import ConfigError, StorageError
from marius_py.partitioning import Partitioning
from marius_py.storage.protocols import Float32, NodeTable
from marius_py.whole import is_whole

FROM_A_COPY = "restore the file from a copy of the same run, or train anew"
"""What can be done about a damaged file of a node store."""


def check_table(table: NodeTable, spare_slots: int) -> None:
    """Raise ConfigError unless a node store of this shape can exist."""
    if table.partitioning.num_nodes < 1:
        raise ConfigError("the node table has no nodes; a store needs at least one")
    if table.dim < 1 or table.state_dim < 0:
        raise ConfigError(f"dim is {table.dim}, state_dim {table.state_dim}; allowed: dim ≥ 1, state_dim ≥ 0")
    if spare_slots < 0:
        raise ConfigError(f"spare_slots is {spare_slots}; allowed: 0 or more")


def check_arrays(table: NodeTable, part: int, embeddings: Float32, state: Float32) -> None:
    """Raise StorageError unless `part` exists and the arrays have the shape of a slot."""
    check_part(table.partitioning, part)
    for name, array, width in (("embeddings", embeddings, table.dim), ("state", state, table.state_dim)):
        shape = (table.slot_rows, width)
        if array.shape != shape or array.dtype != np.float32 or not array.flags.c_contiguous:
            raise StorageError(
                f"{name} must be C-contiguous float32 of shape {shape}, got {array.dtype} {array.shape}"
            )


def check_part(partitioning: Partitioning, part: int) -> None:
    """Raise StorageError unless `part` is a partition."""
    if not 0 <= part < partitioning.num_partitions:
        raise StorageError(
            f"partition {part} does not exist; allowed: 0 to {partitioning.num_partitions - 1}"
        )


def check_range(partitioning: Partitioning, start: int, stop: int) -> None:
    """Raise StorageError unless start:stop is a range of node ids."""
    if not (is_whole(start, 0) and is_whole(stop, start, partitioning.num_nodes)):
        raise StorageError(f"node range {start!r}:{stop!r} lies outside 0:{partitioning.num_nodes}")


def hash_rows(array: Float32) -> int:
    """xxh3_64 of a C-contiguous array's bytes; releases the GIL for long ones."""
    return xxhash.xxh3_64_intdigest(array.reshape(-1).view(np.uint8).data)


def spans(partitioning: Partitioning, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Pieces (partition, first row, last row + 1) of the node ids start:stop, ascending."""
    while start < stop:
        located, _ = partitioning.locate(np.array([start]))
        part = int(located[0])
        begin = partitioning.start(part)
        end = min(stop, partitioning.start(part + 1))
        yield part, start - begin, end - begin
        start = end


class StreamedHashes:
    """Hashes of partitions whose embeddings pass by in blocks: costs no read of its own.

    A partition that is read from its first row to its last in ascending blocks gets a hash; one that is
    read in another order gets none.
    """

    def __init__(self) -> None:
        self._running: dict[int, tuple[int, xxhash.xxh3_64]] = {}

    def feed(self, part: int, first: int, rows: Float32, size: int) -> int | None:
        """Take rows first:first + n of a partition of `size` rows; returns its hash with the last ones."""
        done, running = (0, xxhash.xxh3_64()) if first == 0 else self._running.get(part, (-1, None))
        if running is None or done != first:
            return None
        running.update(rows.reshape(-1).view(np.uint8).data)
        if first + len(rows) < size:
            self._running[part] = (first + len(rows), running)
            return None
        self._running.pop(part, None)
        return running.intdigest()
