"""Which edges to be ranked stand in train the other way round (floor 4).

In: blocks of final-id rows: first valid and test, which are sampled, then train, which is looked through.
Out: by split, how many edges of the sample were met reversed, under any relation. A model that has learnt
which relations go both ways knows those by heart (Toutanova and Chen, 2015, of FB15k), so their ranks say
little about pairs that are new. Memory: 16 bytes a sampled edge and a table of 4 MiB.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from marius_py.prepare.survey import edge_keys
from marius_py.storage.protocols import Edges
from marius_py.types import SPLITS

SAMPLE = 1 << 16
"""Edges of a split that are looked for at most: a share of them is known to within .004."""

_TABLE_BITS = 22
_HASH_ROWS = 1 << 15
"""Rows hashed at a time: their intermediate values stay in the processor's cache."""


class ReversedEdges:
    """Counts a sample of the edges of valid and test that train holds the other way round.

    Args:
        sample: edges of a split that are looked for at most.
    """

    def __init__(self, sample: int = SAMPLE) -> None:
        self._sample = sample
        self._drawn = {split: (np.empty(0, np.uint64), np.empty(0, np.uint64)) for split in SPLITS[1:]}
        self._pairs: NDArray[np.uint64] | None = None
        self._met = np.empty(0, dtype=bool)
        self._maybe = np.empty(0, dtype=bool)

    def sample(self, split: str, edges: Edges) -> None:
        """Take rows (n, 3) of a split to be ranked into its sample: those with the smallest hashes stay."""
        edges = edges[edges[:, 0] != edges[:, 2]]
        order = np.concatenate([self._drawn[split][0], edge_keys(edges)])
        pairs = np.concatenate([self._drawn[split][1], _pair_keys(edges[:, 0], edges[:, 2])])
        if len(order) > self._sample:
            kept = np.argpartition(order, self._sample - 1)[: self._sample]
            order, pairs = order[kept], pairs[kept]
        self._drawn[split] = order, pairs

    def look(self, train: Edges) -> None:
        """Look for the reverses of rows (n, 3) of train among the samples, which are complete by now."""
        if self._pairs is None:
            self._pairs = np.unique(np.concatenate([pairs for _, pairs in self._drawn.values()]))
            self._met = np.zeros(len(self._pairs), dtype=bool)
            self._maybe = np.zeros(1 << _TABLE_BITS, dtype=bool)
            self._maybe[_place(self._pairs)] = True
        if not len(self._pairs):
            return
        for start in range(0, len(train), _HASH_ROWS):
            part = train[start : start + _HASH_ROWS]
            keys = _pair_keys(part[:, 2], part[:, 0])
            keys = keys[self._maybe[_place(keys)]]
            found = np.minimum(np.searchsorted(self._pairs, keys), len(self._pairs) - 1)
            self._met[found[self._pairs[found] == keys]] = True

    def report(self) -> dict[str, dict[str, int]]:
        """By split: `sampled` edges, self-loops left out, and how many of them are `reversed` in train."""
        pairs = np.empty(0, np.uint64) if self._pairs is None else self._pairs
        return {
            split: {
                "sampled": len(drawn),
                "reversed": int(self._met[np.searchsorted(pairs, drawn)].sum()) if len(pairs) else 0,
            }
            for split, (_, drawn) in self._drawn.items()
        }


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


def _place(keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    return (keys >> np.uint64(64 - _TABLE_BITS)).view(np.int64)
