"""Known edges between resident partitions (floor 2): buckets in, an index for masking negatives out.

A negative that makes a known edge teaches a falsehood, whether or not that edge runs in the step at hand. So
what is masked are all train edges whose two ends are resident: exactly those that a negative drawn from the
buffer can make. Buckets stay while their partitions do; a swap reads the 2c − 1 new ones, and the edges that
run in a step are taken from them. Where they are too many for memory, only those of the block at hand are
masked. Where a device finds them itself, they are handed on as they are. Few edges are indexed once, all of
them: no step has to wait for an index of its own. An index of a step's own leaves out what none of its edges
asks, and, where its negatives are known ahead (`drawn_ahead`), what none of them answers.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray

from marius_py.data.train_edges import TrainEdges
from marius_py.nn.known_edges import IdBounds, KnownEdges
from marius_py.storage.protocols import Edges
from marius_py.types import Bucket, Side

log = logging.getLogger(__name__)


_FEW = 0.25
"""Edges of a step, as a share of those between the residents, up to which only what they ask is indexed."""

_MOST_THREADS = 8
"""Of those that torch has, where the host has some to spare: batches wait for an index."""


def most_between(counts: NDArray[np.int64], capacity: int) -> int:
    """No fewer than the edges between any `capacity` partitions, and as many as there are between all.

    Args:
        counts: (p, p) edges a bucket.
        capacity: c, 1 to p.

    >>> most_between(np.array([[1, 9], [0, 3]]), 1), most_between(np.array([[1, 9], [0, 3]]), 2)
    (9, 13)
    """
    of_heads = np.sort(counts, axis=1)[:, -capacity:].sum(axis=1)
    return int(np.sort(of_heads)[-capacity:].sum())


class EdgesAtHand:
    """Known edges (E, 3) for a device to find: another object whenever they are others."""

    def __init__(self, edges: Edges) -> None:
        self.edges = edges


class ResidentEdges:
    """Train edges between the resident partitions, and their index.

    `load` runs on the I/O thread, `index` or `at_hand` on the thread that draws batches, one call of each in
    turn.

    Args:
        edges: where buckets are read.
        limit: most edges to hold; where there are more, a block's own edges only are indexed.
        compiled: as for `KnownEdges`.
        on_device: they are handed on, `at_hand`.
    """

    def __init__(
        self, edges: TrainEdges, limit: int, compiled: bool = True, *, on_device: bool = False
    ) -> None:
        self._edges = edges
        self._compiled = compiled
        self._counts = edges.counts
        self._starts = np.concatenate([[0], np.cumsum(edges.counts.ravel())])
        self._limit = limit
        self._takes_all = edges.is_held and self._starts[-1] <= limit and not on_device
        self._buckets: dict[int, Edges] = {}
        self._bucket_bytes = 0
        self._num_relations = 1
        self._indexed: tuple[int, ...] | None = None
        self._index: KnownEdges | None = None
        self._at_hand: EdgesAtHand | None = None
        self._warned = False

    def load(self, resident: tuple[int, ...]) -> Edges | None:
        """All edges (E, 3) between `resident` partitions; None if there are more than the limit.

        All edges of the graph if they are indexed once.
        """
        if self._takes_all:
            return self._edges.rows(0, int(self._starts[-1]))
        parts, p = np.array(resident), len(self._counts)
        wanted = (parts[:, None] * p + parts).ravel()
        counts = self._counts.ravel()[wanted]
        total = int(counts.sum())
        if total > self._limit:
            if not self._warned:
                self._warned = True
                log.warning(
                    "%d known edges lie between the %d partitions in the buffer, and at most %d are held: "
                    "negatives.mask_known=true leaves out those of the block at hand only; a smaller "
                    "storage.capacity or more storage.partitions make them fewer",
                    total,
                    len(resident),
                    self._limit,
                )
            self._let_go()
            return None
        before, kept = self._buckets, dict[int, Edges]()
        # Of many partitions most buckets are empty, and a swap changes few of the others.
        for bucket in wanted[counts > 0].tolist() or wanted[:1].tolist():
            found = before.get(bucket)
            if found is None:
                found = self._edges.bucket(Bucket(*divmod(bucket, p)))
                self._num_relations = max(self._num_relations, int(found[:, 1].max(initial=0)) + 1)
            kept[bucket] = found
        self._buckets = kept
        loaded = np.concatenate(list(kept.values()))
        self._bucket_bytes = 0 if self._edges.is_held else loaded.nbytes  # else buckets are views
        return loaded

    def clear(self) -> None:
        """Let go of the edges and their index."""
        self._let_go()
        self._indexed = self._index = self._at_hand = None

    def _let_go(self) -> None:
        self._buckets.clear()
        self._bucket_bytes = 0

    def rows(self, start: int, stop: int) -> Edges:
        """Edges (stop − start, 3) by position in the train split, of buckets that were loaded last."""
        if self._takes_all:
            return self._edges.rows(start, stop)
        bucket = int(np.searchsorted(self._starts, start, side="right")) - 1
        found = []
        while start < stop:
            origin, end = int(self._starts[bucket]), min(stop, int(self._starts[bucket + 1]))
            if start < end:
                edges = self._buckets[bucket]
                found.append(edges[start - origin : end - origin])
            start, bucket = end, bucket + 1
        return found[0] if len(found) == 1 else cast(Edges, np.concatenate(found))

    @property
    def nbytes(self) -> int:
        """Bytes of the edges and the index that are held here; asked after every batch, from any thread."""
        index, at_hand = self._index, self._at_hand
        held = 0 if index is None else index.nbytes
        return self._bucket_bytes + held + (0 if at_hand is None else at_hand.edges.nbytes)

    def at_hand(self, resident: tuple[int, ...], loaded: Edges | None, own: Edges) -> EdgesAtHand:
        """The edges that `index` would be made of, of all residents however few `own` are."""
        if loaded is None or self._indexed != resident or self._at_hand is None:
            self._at_hand = EdgesAtHand(own if loaded is None else loaded)
            self._indexed = None if loaded is None else resident
        return self._at_hand

    def serves_again(self, resident: tuple[int, ...], loaded: Edges | None) -> bool:
        """Whether an index of what `load` returned is of use beyond the next block."""
        return self._takes_all or (loaded is not None and len(resident) == len(self._counts))

    def index(
        self,
        resident: tuple[int, ...],
        loaded: Edges | None,
        own: Edges,
        drawn: Mapping[Side, NDArray[np.int64]] | None = None,
    ) -> KnownEdges:
        """Index of what `load` returned for `resident`, or of the block's `own` edges where that is None.

        Where these are few of what was loaded, it is for them alone, and the next step needs another.

        Args:
            resident: partitions in the buffer.
            loaded: edges between them.
            own: the block's.
            drawn: corrupted side → ids among which all negatives of the block are, if they are known and no
                index `serves_again`: it is for them alone, too.
        """
        threads = min(_MOST_THREADS, torch.get_num_threads())
        if loaded is None:
            self._indexed = self._index = None  # its memory goes to the next one
            self._index = KnownEdges(own, self._compiled, threads=threads, drawn=drawn)
            return self._index
        if self._takes_all:
            if self._index is None:
                self._index = KnownEdges(loaded, self._compiled, threads=threads)
            return self._index
        partitioning = self._edges.partitioning
        nodes = partitioning.start(min(resident)), partitioning.start(max(resident) + 1) - 1
        within = IdBounds(nodes, self._num_relations)
        share = sum(map(partitioning.size, resident)) / partitioning.num_nodes
        asking = own if len(own) <= len(loaded) * _FEW else None
        if asking is not None or drawn is not None:
            self._indexed = self._index = None  # its memory goes to the next one
            self._index = KnownEdges(loaded, self._compiled, asking, within, threads, share, drawn)
        elif self._indexed != resident or self._index is None:
            self._index = KnownEdges(loaded, self._compiled, within=within, threads=threads, share=share)
            self._indexed = resident
        return self._index
