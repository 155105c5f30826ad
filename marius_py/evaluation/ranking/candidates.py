"""Whom a true answer competes with (floor 4): a row reader in, blocks of candidate rows out.

Embeddings may lie on disk and need not fit in memory: they are read in blocks of consecutive node ids.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]
Ids = NDArray[np.int64]

_GAP_BYTES = 64 << 10
"""Reading so many bytes more costs about what another read does."""

_READ_BYTES = 512 << 10
"""So many bytes of a stream take longer than a read of a few rows, where the disk is quick or slow."""


class NodeReader(Protocol):
    """Read access to an (N, D) float32 node table, in memory or on disk."""

    def read_rows(self, start: int, stop: int) -> Float32:
        """Rows (stop − start, D) of node ids start ≤ id < stop; the caller owns the array."""
        ...


def gather_rows(reader: NodeReader, ids: Ids, num_nodes: int, dim: int, block_rows: int) -> Float32:
    """Rows (n, D) of ascending, distinct node ids, by reads of their own if few and by one stream if many.

    Args:
        reader: the node table.
        ids: (n,) ascending distinct node ids.
        num_nodes: N.
        dim: D.
        block_rows: rows to read at a time.
    """
    if ids.size * _READ_BYTES < num_nodes * 4 * dim:
        return near_rows(reader, ids, dim, block_rows)
    rows = np.empty((ids.size, dim), dtype=np.float32)
    if not ids.size:
        return rows
    for start in range(int(ids[0]) // block_rows * block_rows, int(ids[-1]) + 1, block_rows):
        stop = min(start + block_rows, num_nodes)
        first, last = np.searchsorted(ids, (start, stop))
        if first < last:
            np.take(reader.read_rows(start, stop), ids[first:last] - start, axis=0, out=rows[first:last])
    return rows


def near_rows(reader: NodeReader, ids: Ids, dim: int, block_rows: int) -> Float32:
    """Rows (n, D) of ascending, distinct node ids; one read for those that lie near each other in a block.

    Args:
        reader: the node table.
        ids: (n,) ascending distinct node ids.
        dim: D.
        block_rows: rows to read at a time.
    """
    rows = np.empty((ids.size, dim), dtype=np.float32)
    is_far = np.diff(ids) > max(1, _GAP_BYTES // (4 * dim))
    is_far |= np.diff(ids // block_rows) > 0
    cuts = [0, *(np.flatnonzero(is_far) + 1).tolist(), ids.size]
    for first, last in pairwise(cuts):
        if first < last:
            low, high = int(ids[first]), int(ids[last - 1]) + 1
            np.take(reader.read_rows(low, high), ids[first:last] - low, axis=0, out=rows[first:last])
    return rows


class CandidateSource(Protocol):
    """An ordered list of candidate nodes, known by index."""

    @property
    def size(self) -> int:
        """Number of candidates before filtering."""
        ...

    def blocks(self, block_rows: int) -> Iterator[tuple[int, Float32]]:
        """(index of the first row, rows (≤ block_rows, D)) in ascending order, all candidates once."""
        ...

    def index(self, nodes: Ids) -> Ids:
        """Index of each node id among the candidates, −1 if it is none of them; (n,)."""
        ...


class AllNodes:
    """Every node is a candidate; a candidate's index is its node id.

    Args:
        reader: the node table.
        num_nodes: N.
    """

    def __init__(self, reader: NodeReader, num_nodes: int) -> None:
        self._reader = reader
        self._num_nodes = num_nodes

    @property
    def size(self) -> int:
        """N."""
        return self._num_nodes

    def blocks(self, block_rows: int) -> Iterator[tuple[int, Float32]]:
        """Consecutive node ids, read one block at a time."""
        for start in range(0, self._num_nodes, block_rows):
            yield start, self._reader.read_rows(start, min(start + block_rows, self._num_nodes))

    def index(self, nodes: Ids) -> Ids:
        """The ids themselves."""
        return nodes


class ChosenNodes:
    """Some nodes, whose rows are read when they are due, and no others.

    Args:
        reader: the node table.
        ids: (n,) ascending distinct node ids, at least one.
        dim: D.
    """

    def __init__(self, reader: NodeReader, ids: Ids, dim: int) -> None:
        self._reader = reader
        self._ids = ids
        self._dim = dim

    @property
    def size(self) -> int:
        """n."""
        return int(self._ids.size)

    def blocks(self, block_rows: int) -> Iterator[tuple[int, Float32]]:
        """(place of the first row, rows (≤ block_rows, D)) in ascending order."""
        for start in range(0, self.size, block_rows):
            ids = self._ids[start : start + block_rows]
            yield start, near_rows(self._reader, ids, self._dim, block_rows)

    def index(self, nodes: Ids) -> Ids:
        """Place of each node id, −1 if it was not chosen."""
        return position_in(self._ids, nodes)


class SampledNodes:
    """A fixed sample of nodes, held in memory.

    Args:
        ids: (n,) ascending distinct node ids.
        rows: (n, D) float32 rows of these nodes.
    """

    def __init__(self, ids: Ids, rows: Float32) -> None:
        self._ids = ids
        self._rows = rows

    @property
    def size(self) -> int:
        """Number of sampled nodes."""
        return int(self._ids.size)

    def blocks(self, block_rows: int) -> Iterator[tuple[int, Float32]]:
        """Slices of the sample."""
        for start in range(0, self.size, block_rows):
            yield start, self._rows[start : start + block_rows]

    def index(self, nodes: Ids) -> Ids:
        """Position in the sample or −1."""
        return position_in(self._ids, nodes)


def position_in(ids: Ids, nodes: Ids) -> Ids:
    """Position of each node among ascending, distinct ids (n,), −1 where it is none of them."""
    if not ids.size:
        return np.full(nodes.shape, -1, dtype=np.int64)
    position = np.searchsorted(ids, nodes)
    position[position == ids.size] = 0
    return np.where(ids[position] == nodes, position, -1)
