"""Names to dense numbers in a stream (floor 4).

In: `EdgeBlock`s. Out: rows of (head, relation, tail) numbers in a spill file, with the edges' weights where
they have some, and the distinct names in order of first appearance. Memory is the dictionary and one block,
never the edges. Small blocks wait until they are as large as others together: a pass over few names costs the
dictionary, too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from marius_py.errors import StorageError
from marius_py.prepare.blocks import EdgeBlock, NameKind
from marius_py.prepare.name_table import NameTable
from marius_py.storage.file_io import os_errors_as_storage, read_array, write_array
from marius_py.storage.protocols import Edges, Float32
from marius_py.storage.weighted import WEIGHT, weighted_rows

PASS_BYTES = 1 << 24
"""Bytes of names that are worth a pass, at least."""


class EdgeSpill:
    """A temporary file of (E, 3) rows.

    Args:
        path: file to create.
        dtype: int32 or int64.
        weighted: rows are (E, 4), with weights (see `storage.weighted`).
        mirror: behind each row comes its reverse, unless it is a self-loop.
    """

    def __init__(
        self, path: Path, dtype: np.dtype[Any], *, weighted: bool = False, mirror: bool = False
    ) -> None:
        self._path = path
        self._dtype = dtype
        self.weighted = weighted
        self.mirror = mirror
        self._width = WEIGHT + weighted
        self._row_bytes = self._width * dtype.itemsize
        self._rows = 0
        with os_errors_as_storage("write", path):
            self._file = open(path, "x+b", buffering=0)  # noqa: SIM115 - closed by close()

    def __len__(self) -> int:
        return self._rows

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the rows."""
        return self._dtype

    def append(self, rows: Edges) -> int:
        """Add rows at the end; returns the position of the first one."""
        start = self._rows
        data = np.ascontiguousarray(_with_reverses(rows) if self.mirror else rows, dtype=self._dtype)
        write_array(self._file.fileno(), data, start * self._row_bytes, self._path)
        self._rows += len(data)
        return start

    def read(self, start: int, stop: int) -> Edges:
        """Read rows start..stop."""
        rows: Edges = np.empty((stop - start, self._width), dtype=self._dtype)
        read_array(self._file.fileno(), rows, start * self._row_bytes, self._path)
        return rows

    def close(self) -> None:
        """Close and delete the file. May be called twice."""
        if not self._file.closed:
            self._file.close()
            self._path.unlink(missing_ok=True)


class Ingest:
    """Turns blocks of names into numbered rows in a spill.

    Args:
        spill: int32 rows go here; if it has weights, those of blocks that have none are 0.
        node_kind: kind of all node names.
        relation_kind: kind of all relation names; None for a graph without relations (relation 0 everywhere).
    """

    def __init__(self, spill: EdgeSpill, node_kind: NameKind, relation_kind: NameKind | None) -> None:
        self._spill = spill
        self.nodes = NameTable(node_kind, "node")
        self.relations = NameTable(relation_kind, "relation") if relation_kind else None
        self._waiting: list[EdgeBlock] = []
        self._waiting_bytes = 0

    @property
    def num_rows(self) -> int:
        """Rows in the spill so far."""
        return len(self._spill)

    def add(self, block: EdgeBlock) -> None:
        """Number a block, or let it wait for more; its rows go to the spill in the order of the blocks."""
        if block.num_edges == 0:
            return
        if self.relations is not None and block.relation is None:
            raise StorageError("a block without relations in a graph with relations")
        self._waiting.append(block)
        self._waiting_bytes += sum(column.nbytes for column in _columns(block))
        if self._waiting_bytes >= PASS_BYTES:
            self.flush()

    def flush(self) -> None:
        """Number the blocks that wait; then every row is in the spill."""
        blocks, self._waiting, self._waiting_bytes = self._waiting, [], 0
        if not blocks:
            return
        rows: Edges = np.zeros((sum(block.num_edges for block in blocks), WEIGHT), dtype=np.int32)
        ends = self.nodes.number([end for block in blocks for end in (block.head, block.tail)])
        rows[:, 0], rows[:, 2] = np.concatenate(ends[::2]), np.concatenate(ends[1::2])
        del ends
        if self.relations is not None:
            rows[:, 1] = np.concatenate(self.relations.number([block.relation for block in blocks]))
        if self._spill.weighted:
            rows = weighted_rows(rows, np.concatenate([_weights(block) for block in blocks]))
        self._spill.append(rows)
        pa.default_memory_pool().release_unused()  # hash tables, which the pool would keep


def _with_reverses(rows: Edges) -> Edges:
    """Rows (n, 3 or 4), behind each that is no self-loop the same one with head and tail exchanged."""
    both: Any = np.repeat(rows, 2, axis=0)
    both[1::2, 0], both[1::2, 2] = rows[:, 2], rows[:, 0]
    is_kept = np.ones(len(both), dtype=np.bool_)
    is_kept[1::2] = rows[:, 0] != rows[:, 2]
    kept: Edges = both[is_kept]
    return kept


def _weights(block: EdgeBlock) -> Float32:
    return np.zeros(block.num_edges, np.float32) if block.weight is None else block.weight


def _columns(block: EdgeBlock) -> list[Any]:
    return [column for column in (block.head, block.relation, block.tail) if column is not None]
