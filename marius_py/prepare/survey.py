"""What one pass over all edges counts (floor 4).

In: blocks of final-id rows. Out: bucket counts, degrees, the order-free hash of each split, self-loops, the
weight of all train edges, and which nodes and relations each split knows. Memory: 10 bytes a node, 24 bytes a
bucket.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from marius_py.partitioning import Partitioning
from marius_py.storage.edge_writer import count_buckets
from marius_py.storage.protocols import Edges
from marius_py.storage.weighted import WEIGHT, weights_of
from marius_py.types import SPLITS

HASH_ROWS = 1 << 15
"""Rows hashed at a time: their intermediate values stay in the processor's cache."""

_ODD = (0x9E37_79B9_7F4A_7C15, 0xC2B2_AE3D_27D4_EB4F, 0x1656_67B1_9E37_79F9)


class Survey:
    """Collects counts over blocks of edges.

    Args:
        partitioning: the graph's nodes and buckets.
        num_relations: R.
    """

    def __init__(self, partitioning: Partitioning, num_relations: int) -> None:
        self._partitioning = partitioning
        nodes = partitioning.num_nodes
        self.bucket_counts = np.zeros(partitioning.num_partitions**2, dtype=np.int64)
        self.degrees = np.zeros(nodes, dtype=np.int64)
        self.counts = dict.fromkeys(SPLITS, 0)
        self.self_loops = dict.fromkeys(SPLITS, 0)
        self.total_weight = self.largest_weight = 0.0
        """Of train edges, if they have weights."""
        self._sums = dict.fromkeys(SPLITS, 0)
        self._nodes = {split: np.zeros(nodes, dtype=bool) for split in SPLITS[1:]}
        self._relations = {split: np.zeros(num_relations, dtype=bool) for split in SPLITS}

    def add(self, split: str, edges: Edges) -> None:
        """Count a block (n, 3) of a split, or (n, 4) with weights."""
        head, relation, tail = edges[:, 0], edges[:, 1], edges[:, 2]
        self.counts[split] += len(edges)
        self.self_loops[split] += int(np.count_nonzero(head == tail))
        self._sums[split] = (self._sums[split] + edges_hash(edges)) & 0xFFFF_FFFF_FFFF_FFFF
        self._relations[split][relation] = True
        if split == "train":
            self.bucket_counts += count_buckets(self._partitioning, edges)
            add_counts(self.degrees, head)
            add_counts(self.degrees, tail)
            if edges.shape[1] > WEIGHT:
                weights = weights_of(edges)
                self.total_weight += float(weights.sum(dtype=np.float64))
                self.largest_weight = max(self.largest_weight, float(weights.max(initial=0.0)))
        else:
            self._nodes[split][head] = True
            self._nodes[split][tail] = True

    def content(self) -> dict[str, list[int]]:
        """Count and order-free hash of each split."""
        return {split: [self.counts[split], self._sums[split]] for split in SPLITS}

    def unknown_nodes(self, split: str) -> NDArray[np.int64]:
        """Ids of nodes in valid or test that no train edge has."""
        return np.flatnonzero(self._nodes[split] & (self.degrees == 0))

    def unknown_relations(self, split: str) -> NDArray[np.int64]:
        """Ids of relations in valid or test that no train edge has."""
        return np.flatnonzero(self._relations[split] & ~self._relations["train"])

    def unused_nodes(self) -> NDArray[np.int64]:
        """Ids of nodes that no edge of any split has."""
        return np.flatnonzero((self.degrees == 0) & ~self._nodes["valid"] & ~self._nodes["test"])

    def unused_relations(self) -> NDArray[np.int64]:
        """Ids of relations that no edge of any split has."""
        return np.flatnonzero(~np.logical_or.reduce([self._relations[split] for split in SPLITS]))


def add_counts(counts: NDArray[np.int64], ids: NDArray[np.integer]) -> None:
    """Add 1 to counts[id] for each id, in time by the smaller of the two where possible."""
    if len(counts) <= len(ids):
        counts += np.bincount(ids, minlength=len(counts))
    else:
        np.add.at(counts, ids, 1)


def edge_keys(edges: Edges) -> NDArray[np.uint64]:
    """A 64-bit hash of each edge (n,); the same for the same edge in every file, whatever its weight."""
    found = np.empty(len(edges), dtype=np.uint64)
    for start in range(0, len(edges), HASH_ROWS):
        found[start : start + HASH_ROWS] = _hashed(edges[start : start + HASH_ROWS])
    return found


def _hashed(edges: Edges) -> NDArray[np.uint64]:
    keys = edges[:, 0].astype(np.uint64) * np.uint64(_ODD[0])
    for column, factor in ((1, _ODD[1]), (2, _ODD[2])):
        keys ^= keys >> np.uint64(32)
        keys += edges[:, column].astype(np.uint64) + np.uint64(1)
        keys *= np.uint64(factor)
    keys ^= keys >> np.uint64(29)
    keys *= np.uint64(_ODD[0])
    keys ^= keys >> np.uint64(32)
    return keys


def edges_hash(edges: Edges) -> int:
    """Sum of the edges' hashes modulo 2⁶⁴, weights taken in: the same whatever the order of the rows."""
    keys = edge_keys(edges)
    if edges.shape[1] > WEIGHT:
        keys ^= edges[:, WEIGHT].astype(np.uint64) * np.uint64(_ODD[1])
        keys *= np.uint64(_ODD[2])
        keys ^= keys >> np.uint64(32)
    return int(np.add.reduce(keys, dtype=np.uint64)) if len(edges) else 0
