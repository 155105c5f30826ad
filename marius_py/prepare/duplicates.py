"""Counts repeated edges in bounded memory (floor 4). In: an edge store. Out: repeats by split.

Equal edges lie in the same bucket. The edges of a bucket that is larger than `max_rows` go to a temporary
file, block by block, each sorted into bins by hash, and are counted bin by bin: an edge is written once and
read twice whatever the bucket's size, and memory does not grow with it.
"""

from __future__ import annotations

from contextlib import closing
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from marius_py.prepare.dictionary import EdgeSpill
from marius_py.prepare.survey import edge_keys
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
    starts = np.concatenate([[0], np.cumsum(store.bucket_counts())]).astype(np.int64).tolist()
    ranges = {"train": _grouped(starts, max_rows)}
    for split in SPLITS[1:]:
        ranges[split] = [(0, store.num_edges(split))]
    return {
        split: sum(_repeats(store, split, start, stop, folder, max_rows) for start, stop in ranges[split])
        for split in SPLITS
    }


def _grouped(starts: list[int], max_rows: int) -> list[tuple[int, int]]:
    """Runs of whole buckets of at most `max_rows` rows together, or single larger buckets."""
    groups, begin = [], 0
    for previous, stop in pairwise(starts):
        if stop - begin > max_rows and previous > begin:
            groups.append((begin, previous))
            begin = previous
    groups.append((begin, starts[-1]))
    return groups


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
            _repeats_of(np.concatenate([spill.read(*block[one : one + 2].tolist()) for block in ends]))
            for one in range(bins)
        )


def _repeats_of(edges: Edges) -> int:
    if len(edges) < 2:
        return 0
    keys = _packed(edges)
    if keys is not None:
        keys.sort()
        return int(np.count_nonzero(keys[1:] == keys[:-1]))
    order = np.argsort(edge_keys(edges), kind="stable")
    ordered = edges[order]
    return int(np.count_nonzero((ordered[1:] == ordered[:-1]).all(axis=1)))


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
