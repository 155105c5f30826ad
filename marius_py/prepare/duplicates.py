"""Counts repeated edges in bounded memory (floor 4). In: an edge store. Out: repeats by split.

Equal edges lie in the same bucket. The edges of a bucket that is larger than `max_rows` go to a temporary
file, block by block, each sorted into bins by hash, and are counted bin by bin. Whatever the bucket's size,
an edge is written once and read three times: to verify the bucket, to sort the edge into a bin, to count it.
All copies of an edge lie in one bin and are dropped while that is read: memory is its distinct edges, about
`max_rows` at most, and a few times `max_rows` of others that have yet to be compared with them.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from marius_py.prepare.dictionary import EdgeSpill
from marius_py.prepare.survey import edge_keys
from marius_py.storage.edge_layout import bucket_groups
from marius_py.storage.hdf5_edges import Hdf5EdgeStore
from marius_py.storage.protocols import Edges
from marius_py.types import SPLITS

MAX_ROWS = 1 << 22


def count_duplicates(store: Hdf5EdgeStore, folder: Path, max_rows: int = MAX_ROWS) -> dict[str, int]:
    """Count, by split, the edges that repeat an earlier edge of the same split (E minus distinct edges).

    Args:
        store: the edges.
        folder: for a temporary file as large as the edges of a bucket of more than `max_rows`.
        max_rows: edges in memory at a time, about.

    Raises:
        StorageError: reading or writing failed.
    """
    starts = np.concatenate([[0], np.cumsum(store.bucket_counts())]).astype(np.int64)
    groups = bucket_groups(starts, max_rows)
    ranges = {"train": [(int(starts[first]), int(starts[last])) for first, last in groups]}
    for split in SPLITS[1:]:
        ranges[split] = [(0, store.num_edges(split))]
    return {
        split: sum(_repeats(store, split, start, stop, folder, max_rows) for start, stop in ranges[split])
        for split in SPLITS
    }


def _repeats(store: Hdf5EdgeStore, split: str, start: int, stop: int, folder: Path, max_rows: int) -> int:
    bins = -(-(stop - start) // max_rows)
    if bins <= 1:
        return _repeats_of(store.read_range(split, start, stop))
    ends = []  # (bins + 1,) of each block: where in the spill its bins begin and end
    with closing(EdgeSpill(folder / "duplicates.tmp", store.dtype)) as spill:
        for begin in range(start, stop, max_rows):
            edges = store.read_range(split, begin, min(begin + max_rows, stop))
            bin_of = (edge_keys(edges) % np.uint64(bins)).astype(np.min_scalar_type(bins))
            sizes = np.bincount(bin_of, minlength=bins)
            first = spill.append(edges[np.argsort(bin_of, kind="stable")])
            ends.append(first + np.concatenate([[0], np.cumsum(sizes)]))
        return sum(
            _repeats_in((spill.read(*block[one : one + 2].tolist()) for block in ends), max_rows)
            for one in range(bins)
        )


def _repeats_in(parts: Iterable[Edges], max_rows: int) -> int:
    """Repeats among the edges of a bin, which come in parts; its distinct ones are held."""
    held: list[Edges] = []
    repeats = waiting = 0
    for part in parts:
        held.append(part)
        waiting += len(part)
        if waiting > max_rows + max_rows // 4:  # more than a bin without many copies has
            edges = cast(Edges, np.concatenate(held))
            held, waiting = [_distinct(edges)], 0
            repeats += len(edges) - len(held[0])
    return repeats + _repeats_of(cast(Edges, np.concatenate(held)))


def _distinct(edges: Edges) -> Edges:
    """Each edge (n, 3) once."""
    ordered = edges[np.argsort(edge_keys(edges), kind="stable")]
    first = np.ones(len(ordered), dtype=np.bool_)
    first[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    return ordered[first]


def _repeats_of(edges: Edges) -> int:
    if len(edges) < 2:
        return 0
    keys = _packed(edges)
    if keys is not None:
        keys.sort()
        return int(np.count_nonzero(keys[1:] == keys[:-1]))
    return len(edges) - len(_distinct(edges))


def _packed(edges: Edges) -> NDArray[np.uint64] | None:
    """Edges as distinct 64-bit numbers, or None where the ids of this block span too many bits."""
    low = edges.min(axis=0)
    bits = [int(span).bit_length() for span in (edges.max(axis=0) - low).tolist()]
    if sum(bits) > 64:
        return None
    keys: NDArray[np.uint64] = (edges[:, 0] - low[0]).astype(np.uint64)
    for column in (1, 2):
        keys <<= np.uint64(bits[column])
        keys |= (edges[:, column] - low[column]).astype(np.uint64)
    return keys
