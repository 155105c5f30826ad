"""Which edges to be ranked stand in train already, as they are or the other way round (floor 4).

In: blocks of final-id rows: first valid and test, which are sampled, then train, which is looked through.
Out: by split, how many edges of the sample were met. An edge that is in train says nothing about edges that
are not. A model that has learnt which relations go both ways knows the reverses of train by heart (Toutanova
and Chen, 2015, of FB15k), under whatever relation, so their ranks say little about pairs that are new.
Memory: 50 bytes a sampled edge and a table of 4 MiB.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from marius_py.prepare.survey import HASH_ROWS, edge_keys
from marius_py.storage.protocols import Edges
from marius_py.types import SPLITS

SAMPLE = 1 << 16
"""Edges of a split that are looked for at most: a share of them is known to within .004."""

_TABLE_BITS = 22
_FAR = np.uint64(0x9E37_79B9_7F4A_7C15)


class TrainOverlap:
    """Counts a sample of the edges of valid and test that train holds, as they are or the other way round.

    Args:
        sample: edges of a split that are looked for at most.
    """

    def __init__(self, sample: int = SAMPLE) -> None:
        self._sample = sample
        self._drawn: dict[str, Edges] = {split: np.empty((0, 3), np.int64) for split in SPLITS[1:]}
        self._order = {split: np.empty(0, np.uint64) for split in SPLITS[1:]}
        self._same = _Met(np.empty(0, np.uint64))
        self._reversed = _Met(np.empty(0, np.uint64))
        self._maybe: NDArray[np.bool_] | None = None

    def sample(self, split: str, edges: Edges) -> None:
        """Take rows (n, 3) of a split to be ranked into its sample: those with the smallest hashes stay."""
        order = np.concatenate([self._order[split], edge_keys(edges)])
        drawn = np.concatenate([self._drawn[split], edges])
        if len(order) > self._sample:
            kept = np.argpartition(order, self._sample - 1)[: self._sample]
            order, drawn = order[kept], drawn[kept]
        self._order[split], self._drawn[split] = order, drawn

    def look(self, train: Edges) -> None:
        """Look for rows (n, 3) of train, and their reverses, among the samples, which are complete by now."""
        if self._maybe is None:
            drawn = np.concatenate(list(self._drawn.values()))
            self._same = _Met(edge_keys(drawn))
            self._reversed = _Met(_pair_keys(drawn[:, 0], drawn[:, 2]))
            self._maybe = np.zeros(1 << _TABLE_BITS, dtype=bool)
            self._maybe[_place(drawn)] = True
        if not len(self._same):
            return
        for start in range(0, len(train), HASH_ROWS):
            part = train[start : start + HASH_ROWS]
            part = part[self._maybe[_place(part)]]
            self._same.look(edge_keys(part))
            self._reversed.look(_pair_keys(part[:, 2], part[:, 0]))

    def in_train(self) -> dict[str, dict[str, int]]:
        """By split: `sampled` edges, and how many of them are `in_train`, with the same relation."""
        return {
            split: {"sampled": len(drawn), "in_train": self._same.count(edge_keys(drawn))}
            for split, drawn in self._drawn.items()
        }

    def reversed_in_train(self) -> dict[str, dict[str, int]]:
        """By split: `sampled` edges, self-loops left out, and how many of them are `reversed` in train."""
        found = {}
        for split, drawn in self._drawn.items():
            pairs = drawn[drawn[:, 0] != drawn[:, 2]]
            count = self._reversed.count(_pair_keys(pairs[:, 0], pairs[:, 2]))
            found[split] = {"sampled": len(pairs), "reversed": count}
        return found


class _Met:
    """Which of some 64-bit hashes (n,) were met."""

    def __init__(self, keys: NDArray[np.uint64]) -> None:
        self._keys = np.unique(keys)
        self._met = np.zeros(len(self._keys), dtype=bool)

    def __len__(self) -> int:
        return len(self._keys)

    def look(self, keys: NDArray[np.uint64]) -> None:
        """Meet these; there is at least one that can be met."""
        found = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        self._met[found[self._keys[found] == keys]] = True

    def count(self, keys: NDArray[np.uint64]) -> int:
        """How many of these, which are among those given at first, were met."""
        return int(self._met[np.searchsorted(self._keys, keys)].sum()) if len(self) else 0


def _pair_keys(first: NDArray[np.integer], second: NDArray[np.integer]) -> NDArray[np.uint64]:
    """A 64-bit hash (n,) of ordered pairs of ids (n,), (n,)."""
    keys = first.astype(np.uint64)
    keys *= np.uint64(0x9E37_79B9_7F4A_7C15)
    keys ^= keys >> np.uint64(32)
    keys += second.astype(np.uint64)
    keys *= np.uint64(0xC2B2_AE3D_27D4_EB4F)
    keys ^= keys >> np.uint64(29)
    keys *= np.uint64(0x1656_67B1_9E37_79F9)
    return keys


def _place(edges: Edges) -> NDArray[np.int64]:
    """Places (n,) of edges (n, 3) in the table, the same for an edge and its reverse."""
    keys = edges[:, 0].astype(np.uint64)
    keys += _FAR
    others = edges[:, 2].astype(np.uint64)
    others += _FAR
    keys *= others
    keys *= np.uint64(0xC2B2_AE3D_27D4_EB4F)
    keys >>= np.uint64(64 - _TABLE_BITS)
    return keys.view(np.int64)
