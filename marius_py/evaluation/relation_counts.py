"""How many tails a head has by relation, and the reverse (floor 4): blocks of train edges in, means out."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import numpy as np
from numpy.typing import NDArray

from marius_py.arrays import distinct
from marius_py.evaluation.ranking.candidates import Ids
from marius_py.evaluation.ranking.known import side_keys
from marius_py.prepare.survey import edge_keys
from marius_py.storage.file_io import os_errors_as_storage
from marius_py.storage.protocols import Edges

_KINDS = 3
_KEY_BYTES = 32
"""Bytes of a key while those of one part are read, sorted and told apart."""
_MAX_PARTS = 1 << 16


def count_multiplicity(
    blocks: Iterable[Edges], num_edges: int, num_nodes: int, num_relations: int, memory_bytes: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean tails per (head, relation) and mean heads per (relation, tail) of train edges, for each relation.

    What outgrows the budget goes to a temporary file of 24 bytes an edge or less, so that the edges are gone
    through once.

    Args:
        blocks: blocks (E, 3) of train edges; an edge that repeats counts once.
        num_edges: in all blocks together.
        num_nodes: N.
        num_relations: R.
        memory_bytes: budget for distinct edges and pairs.

    Returns:
        tails_per_head (R,), heads_per_tail (R,) float64; NaN for a relation without edges.

    Raises:
        StorageError: the temporary file cannot be written or read.
    """
    relations = max(num_relations, 1)
    with _Keys(relations, num_edges, memory_bytes) as keys:
        for part in blocks:
            keys.add(
                _edge_keys(part, relations),
                side_keys(part, "tail", num_nodes, relations),
                side_keys(part, "head", num_nodes, relations),
            )
        edges, *pairs = (keys.count(kind) for kind in range(_KINDS))
    tails, heads = (np.where(edges > 0, edges / np.maximum(number, 1), np.nan) for number in pairs)
    return tails, heads


class _Keys:
    """Keys of several kinds, whose remainder by R is a relation, to be counted without repetitions.

    They are held in memory up to a third of the budget. From there on they go to a temporary file, cut into
    parts by residue class, so that a key is in one part however often it comes, and a part fits in memory.

    Args:
        relations: R.
        num_edges: most keys of a kind.
        memory_bytes: budget.
    """

    def __init__(self, relations: int, num_edges: int, memory_bytes: int) -> None:
        budget = max(memory_bytes, 1)
        self._relations = relations
        self._num_parts = min(max(1, -(-num_edges * _KEY_BYTES // budget)), _MAX_PARTS)
        self._most_bytes = budget // 3
        self._held: list[list[Ids]] = [[] for _ in range(_KINDS)]
        self._held_bytes = 0
        self._file: IO[bytes] | None = None
        self._runs: list[list[tuple[int, NDArray[np.uint32]]]] = [[] for _ in range(_KINDS)]
        """Of each kind its runs in the file: their first byte, and which key is the first of each part."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, *keys: Ids) -> None:
        """Take in keys (n,) of each kind."""
        for held, mine in zip(self._held, keys, strict=True):
            held.append(mine)
            self._held_bytes += mine.nbytes
        if self._held_bytes > self._most_bytes:
            self._write()

    def count(self, kind: int) -> NDArray[np.int64]:
        """Distinct keys (R,) of a kind by relation; the last that is asked of it."""
        if self._file is None:
            parts: Iterable[Ids] = [np.concatenate([np.empty(0, np.int64), *self._held[kind]])]
            self._held[kind] = []
        else:
            self._write()
            parts = (self._read(kind, part) for part in range(self._num_parts))
        counts = np.zeros(self._relations, dtype=np.int64)
        for part in parts:
            counts += np.bincount(distinct(part) % self._relations, minlength=self._relations)
        return counts

    def _write(self) -> None:
        """Append what is held to the file, a run for each kind, by part."""
        if not self._held_bytes:
            return
        folder = Path(tempfile.gettempdir())
        with os_errors_as_storage("write what details=true counts to a temporary file in TMPDIR", folder):
            if self._file is None:
                self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - closed by __exit__
            for held, runs in zip(self._held, self._runs, strict=True):
                keys = distinct(np.concatenate(held))
                held.clear()
                part = (keys // self._relations % self._num_parts).astype(np.uint16)
                ends = np.cumsum(np.bincount(part, minlength=self._num_parts))
                runs.append((self._file.tell(), np.concatenate(([0], ends)).astype(np.uint32)))
                keys[np.argsort(part, kind="stable")].tofile(self._file)
        self._held_bytes = 0

    def _read(self, kind: int, part: int) -> Ids:
        """Keys (n,) of one part, from all runs."""
        assert self._file is not None
        found = [np.empty(0, dtype=np.int64)]
        with os_errors_as_storage("read from a temporary file in TMPDIR", Path(tempfile.gettempdir())):
            for first, starts in self._runs[kind]:
                start, stop = starts[part : part + 2].tolist()
                self._file.seek(first + 8 * start)
                found.append(np.fromfile(self._file, np.int64, stop - start))
        return np.concatenate(found)


def _edge_keys(edges: Edges, relations: int) -> Ids:
    """Key (E,) of each edge (E, 3): hash · R + relation.

    Three ids need not fit in 64 bits. A relation has 2⁶² / R keys: of a billion edges of one relation, the
    hash makes about R / 9 disappear.
    """
    keys = (edge_keys(edges) >> np.uint64(2)).astype(np.int64)
    keys -= keys % relations
    keys += edges[:, 1]
    return keys
