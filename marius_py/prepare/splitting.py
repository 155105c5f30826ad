"""Which rows of a spill belong to which split (floor 4).

In: rows in input order. Out: blocks labelled by split, the same ones at every pass. Given splits are ranges
of rows. A random split is decided by a seeded hash of the edge, so that copies of an edge (same head,
relation and tail; in an undirected graph, its reverse too) share a split: what training has seen must not be
what a test asks for.

Shares are met by two passes over the spill. The first counts rows by the leading bits of their hash, in bins;
bins go whole to test, then to valid, as long as they fit what is still wanted. The second pass counts the
copies of each edge of the few bins that did not fit, and these edges fill up the rest. Memory is the bins and
the edges of those few, whatever the number of rows.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from marius_py.errors import ConfigError
from marius_py.prepare.dictionary import EdgeSpill
from marius_py.prepare.progress import ProgressHook
from marius_py.prepare.survey import HASH_ROWS, add_counts, edge_keys
from marius_py.storage.edge_writer import BLOCK_ROWS
from marius_py.storage.protocols import Edges
from marius_py.streams import Purpose, stream_seed
from marius_py.types import SPLITS

logger = logging.getLogger(__name__)

BIN_BITS = 20
MAX_OPEN = 64
"""Bins that are looked into for a split's last edges: several, as one may hold only copies of one edge."""

_TRAIN, _VALID, _TEST, _OPEN = range(4)
_SHIFT = np.uint64(64 - BIN_BITS)


@dataclass(frozen=True, slots=True)
class GivenSplits:
    """Splits that lie one after the other in the spill: rows of train, then valid, then test."""

    counts: tuple[int, int, int]

    def blocks(self, spill: EdgeSpill, block_rows: int) -> Iterator[tuple[str, Edges]]:
        """Yield (split, rows (n, 3)) over all rows."""
        start = 0
        for split, count in zip(SPLITS, self.counts, strict=True):
            for begin in range(start, start + count, block_rows):
                yield split, spill.read(begin, min(begin + block_rows, start + count))
            start += count


@dataclass(frozen=True, slots=True)
class RandomSplits:
    """A seeded random choice of edges for train, valid and test, the copies of an edge in one of them.

    Attributes:
        seed: of the hash.
        bins: (2^BIN_BITS,) uint8 split of each bin of hashes, or that its edges are decided one by one; None:
            everything is train.
        keys: (n,) uint64 ascending hashes of the edges that are decided one by one.
        labels: (n,) uint8 their splits.
        undirected: an edge and its reverse are copies of each other.
    """

    seed: int
    bins: NDArray[np.uint8] | None
    keys: NDArray[np.uint64]
    labels: NDArray[np.uint8]
    undirected: bool

    @classmethod
    def draw(
        cls,
        spill: EdgeSpill,
        counts: tuple[int, int, int],
        seed: int,
        progress: ProgressHook,
        block_rows: int = BLOCK_ROWS,
        *,
        undirected: bool = False,
    ) -> RandomSplits:
        """Choose `counts` rows for train, valid and test: exactly so many where no edge has a copy.

        Otherwise valid and test get as many as whole groups of copies allow, never more; train the rest.
        """
        wanted = {_TEST: counts[2], _VALID: counts[1]}
        nothing = np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.uint8)
        if not any(wanted.values()):
            return cls(seed, None, *nothing, undirected)

        def key_blocks(stage: str) -> Iterator[NDArray[np.uint64]]:
            return _key_blocks(spill, seed, undirected, block_rows, progress, stage)

        sizes = np.zeros(1 << BIN_BITS, dtype=np.int64)
        for keys in key_blocks("split"):
            add_counts(sizes, _bin_of(keys))
        bins, missing = _assign_bins(sizes, wanted)
        if not (bins == _OPEN).any():
            return cls(seed, bins, *nothing, undirected)
        found, copies = nothing[0], np.empty(0, dtype=np.int64)
        for keys in key_blocks("split exactly"):
            new = keys[bins[_bin_of(keys)] == _OPEN]
            found, copies = _merge_counts(found, copies, new)
        labels = np.full(len(found), _TRAIN, dtype=np.uint8)
        for label in wanted:
            missing[label] = _fill(labels, copies, missing[label], label)
        for label, split in ((_VALID, "valid"), (_TEST, "test")):
            if missing[label]:
                given = wanted[label] - missing[label]
                logger.log(
                    logging.INFO if given else logging.WARNING,
                    "the random split gives %s %d of the %d edges it should have: copies of an edge stay in "
                    "one split, and no smaller group of copies is left",
                    split,
                    given,
                    wanted[label],
                )
        return cls(seed, bins, found, labels, undirected)

    def blocks(self, spill: EdgeSpill, block_rows: int) -> Iterator[tuple[str, Edges]]:
        """Yield (split, rows (n, 3)) over all rows, within a split in input order."""
        for begin in range(0, len(spill), block_rows):
            rows = spill.read(begin, min(begin + block_rows, len(spill)))
            if self.bins is None:
                yield SPLITS[_TRAIN], rows
                continue
            keys = _keys(rows, self.seed, self.undirected)
            chosen = self.bins[_bin_of(keys)]
            one_by_one = np.flatnonzero(chosen == _OPEN)
            if len(one_by_one):
                chosen[one_by_one] = self.labels[np.searchsorted(self.keys, keys[one_by_one])]
            for label, split in enumerate(SPLITS):
                part = np.flatnonzero(chosen == label)
                if len(part):
                    yield split, rows.take(part, axis=0)


def _keys(rows: Edges, seed: int, undirected: bool) -> NDArray[np.uint64]:
    """Seeded 64-bit hashes (n,) of rows: the finalizer of SplitMix64 over their unseeded ones.

    With `undirected` a row and its reverse have the same.
    """
    seeded = np.uint64(stream_seed(seed, Purpose.SPLIT))
    keys = np.empty(len(rows), dtype=np.uint64)
    for start in range(0, len(rows), HASH_ROWS):
        block = rows[start : start + HASH_ROWS]
        part = edge_keys(_ends_sorted(block) if undirected else block)
        part ^= seeded
        part *= np.uint64(0xBF58_476D_1CE4_E5B9)
        part ^= part >> np.uint64(27)
        part *= np.uint64(0x94D0_49BB_1331_11EB)
        part ^= part >> np.uint64(31)
        keys[start : start + HASH_ROWS] = part
    return keys


def _ends_sorted(rows: Edges) -> Edges:
    """Rows (n, 3) with the smaller of both ends as the head."""
    ordered = np.empty_like(rows)
    np.minimum(rows[:, 0], rows[:, 2], out=ordered[:, 0])
    ordered[:, 1] = rows[:, 1]
    np.maximum(rows[:, 0], rows[:, 2], out=ordered[:, 2])
    return ordered


def _bin_of(keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    return (keys >> _SHIFT).view(np.int64)


def _key_blocks(
    spill: EdgeSpill, seed: int, undirected: bool, block_rows: int, progress: ProgressHook, stage: str
) -> Iterator[NDArray[np.uint64]]:
    for begin in range(0, len(spill), block_rows):
        stop = min(begin + block_rows, len(spill))
        yield _keys(spill.read(begin, stop), seed, undirected)
        progress(stage, stop, len(spill), "edges")


def _assign_bins(
    sizes: NDArray[np.int64], wanted: dict[int, int]
) -> tuple[NDArray[np.uint8], dict[int, int]]:
    """Give whole bins to the splits in the order of `wanted`.

    Returns:
        The label of each bin, `_OPEN` where edges are to be decided one by one, and the rows still missing.
    """
    bins = np.full(len(sizes), _TRAIN, dtype=np.uint8)
    filled = np.flatnonzero(sizes)
    ends = np.cumsum(sizes[filled])
    missing, at = {}, 0
    for label, rest in wanted.items():
        opened = 0
        while rest and at < len(filled) and opened < MAX_OPEN:
            taken = int(ends[at - 1]) if at else 0
            stop = int(np.searchsorted(ends, taken + rest, side="right"))
            if stop > at:
                bins[filled[at:stop]] = label
                rest -= int(ends[stop - 1]) - taken
            else:
                bins[filled[at]] = _OPEN
                opened += 1
                stop = at + 1
            at = stop
        missing[label] = rest
    return bins, missing


def _merge_counts(
    keys: NDArray[np.uint64], counts: NDArray[np.int64], new: NDArray[np.uint64]
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Distinct ascending keys and how often each occurs, those of a further block added."""
    more, times = np.unique(new, return_counts=True)
    merged, place = np.unique(np.concatenate([keys, more]), return_inverse=True)
    total = np.zeros(len(merged), dtype=np.int64)
    total[place[: len(keys)]] = counts
    total[place[len(keys) :]] += times
    return merged, total


def _fill(labels: NDArray[np.uint8], copies: NDArray[np.int64], rest: int, label: int) -> int:
    """Give the groups of copies that fit to a split, in the order of hashes; returns the rows missing."""
    for index in np.flatnonzero((labels == _TRAIN) & (copies <= rest)).tolist():
        if rest == 0:
            break
        if copies[index] <= rest:
            labels[index] = label
            rest -= int(copies[index])
    return rest


def random_counts(num_edges: int, split: Sequence[float], path: object) -> tuple[int, int, int]:
    """How many edges a random split should give to train, valid and test.

    Raises:
        ConfigError: as `check_shares`, or train gets no edge.
    """
    shares = check_shares(split)
    num_valid, num_test = round(num_edges * shares[1]), round(num_edges * shares[2])
    num_train = num_edges - num_valid - num_test
    if num_train < 1:
        raise ConfigError(f"{path} has {num_edges} edges; a split of {split!r} leaves none for train")
    return num_train, num_valid, num_test


def check_shares(split: Sequence[float]) -> list[float]:
    """The shares of a random split; ConfigError unless they are three that add up to 1, train above 0."""
    has_order = isinstance(split, Iterable) and not isinstance(split, (set, frozenset))
    shares = list(split) if has_order else []
    valid = len(shares) == 3 and all(isinstance(s, (int, float, np.floating)) and 0 <= s <= 1 for s in shares)
    if not valid or abs(sum(shares) - 1) > 1e-6 or shares[0] <= 0:
        raise ConfigError(
            f"split is {split!r}; give three shares (train, valid, test) that add up to 1, train above 0"
        )
    return [float(share) for share in shares]
