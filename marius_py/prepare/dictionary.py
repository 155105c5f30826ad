"""Names to dense numbers in a stream (floor 4).

In: `EdgeBlock`s. Out: rows of (head, relation, tail) numbers in a spill file, and the distinct names in order
of first appearance. Memory is the dictionary and one block, never the edges:

* each block gets a dictionary of its own, and its rows go to the spill with that dictionary's numbers;
* the small dictionaries wait until `NameTable` is full; it then takes them in, and says how to renumber the
  waiting rows.
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
from marius_py.storage.protocols import Edges


class EdgeSpill:
    """A temporary file of (E, 3) rows.

    Args:
        path: file to create.
        dtype: int32 or int64.
    """

    def __init__(self, path: Path, dtype: np.dtype[Any]) -> None:
        self._path = path
        self._dtype = dtype
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
        self.overwrite(start, rows)
        self._rows += len(rows)
        return start

    def overwrite(self, start: int, rows: Edges) -> None:
        """Replace rows from position `start`."""
        data = np.ascontiguousarray(rows, dtype=self._dtype)
        write_array(self._file.fileno(), data, start * 3 * self._dtype.itemsize, self._path)

    def read(self, start: int, stop: int) -> Edges:
        """Read rows start..stop."""
        rows = np.empty((stop - start, 3), dtype=self._dtype)
        read_array(self._file.fileno(), rows, start * 3 * self._dtype.itemsize, self._path)
        return rows

    def close(self) -> None:
        """Close and delete the file. May be called twice."""
        if not self._file.closed:
            self._file.close()
            self._path.unlink(missing_ok=True)


class Ingest:
    """Turns blocks of names into numbered rows in a spill.

    Args:
        spill: int32 rows go here.
        node_kind: kind of all node names.
        relation_kind: kind of all relation names; None for a graph without relations (relation 0 everywhere).
    """

    def __init__(self, spill: EdgeSpill, node_kind: NameKind, relation_kind: NameKind | None) -> None:
        self._spill = spill
        self.nodes = NameTable(node_kind, "node")
        self.relations = NameTable(relation_kind, "relation") if relation_kind else None
        self._waiting: list[tuple[int, int]] = []

    def add(self, block: EdgeBlock) -> None:
        """Number a block and append its rows to the spill."""
        if block.num_edges == 0:
            return
        head, tail, names = _encode([block.head, block.tail], self.nodes.type)
        rows = np.zeros((block.num_edges, 3), dtype=np.int32)
        rows[:, 0], rows[:, 2] = head, tail
        self.nodes.add(names)
        if self.relations is not None:
            if block.relation is None:
                raise StorageError("a block without relations in a graph with relations")
            rows[:, 1], relation_names = _encode([block.relation], self.relations.type)
            self.relations.add(relation_names)
        self._waiting.append((self._spill.append(rows), block.num_edges))
        if self.nodes.full or (self.relations is not None and self.relations.full):
            self.flush()

    def flush(self) -> None:
        """Merge the waiting dictionaries and renumber their rows; then every row of the spill is final."""
        node_maps = self.nodes.merge()
        relation_maps = self.relations.merge() if self.relations is not None else None
        for index, (start, count) in enumerate(self._waiting):
            rows = self._spill.read(start, start + count)
            rows[:, 0] = node_maps[index][rows[:, 0]]
            rows[:, 2] = node_maps[index][rows[:, 2]]
            if relation_maps is not None:
                rows[:, 1] = relation_maps[index][rows[:, 1]]
            self._spill.overwrite(start, rows)
        self._waiting = []
        pa.default_memory_pool().release_unused()  # hash tables, which the pool would keep


def _encode(columns: list[Any], data_type: Any) -> tuple[Any, ...]:
    """Number the values of some columns by one dictionary: an int32 array each, then the dictionary."""
    parts = [column.chunks if isinstance(column, pa.ChunkedArray) else [column] for column in columns]
    # cast only where the kinds of two files differ: text blocks stay string, half the offsets of large_string
    flat = [chunk for part in parts for chunk in part]
    if pa.types.is_integer(flat[0].type) and not pa.types.is_integer(data_type):
        flat = [chunk.cast(data_type) for chunk in flat]
    encoded = pa.chunked_array(flat).dictionary_encode().chunks
    numbers, at = [], 0
    for part in parts:
        indices = [np.asarray(chunk.indices) for chunk in encoded[at : at + len(part)]]
        numbers.append(np.concatenate(indices))
        at += len(part)
    return (*numbers, encoded[0].dictionary)
