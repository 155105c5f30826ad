"""Negative sampling over resident nodes (floor 1): edges and the buffer's content in, node ids out; numpy.

The edges of a chunk share their negatives, so that their scores are one matrix product. Samplers keep no
random state: every call gets the generator of its batch, which draws for heads first and then for tails, and
several threads may call at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from marius_py.errors import ConfigError
from marius_py.types import Side
from marius_py.whole import is_whole


@dataclass(frozen=True, slots=True)
class ResidentNodes:
    """The nodes whose rows are in the buffer, as c ranges of ids.

    Attributes:
        starts: (c,) int64 first id of each resident partition.
        sizes: (c,) int64 nodes of each.
        degree_cumsum: for each partition its (size,) int64 running sum of degrees, in the order of ids; None
            if nobody draws by degree.
    """

    starts: np.ndarray
    sizes: np.ndarray
    degree_cumsum: Sequence[np.ndarray] | None = None
    _ends: np.ndarray = field(init=False, repr=False)
    _degree_ends: np.ndarray | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_ends", np.cumsum(self.sizes, dtype=np.int64))
        totals = None
        if self.degree_cumsum is not None:
            totals = np.cumsum([sums[-1] if len(sums) else 0 for sums in self.degree_cumsum], dtype=np.int64)
        object.__setattr__(self, "_degree_ends", totals)

    @property
    def count(self) -> int:
        """Number of resident nodes."""
        return int(self._ends[-1]) if len(self._ends) else 0

    def all(self) -> np.ndarray:
        """(count,) int64 ids of all resident nodes."""
        ranges = [np.arange(start, start + size) for start, size in zip(self.starts, self.sizes, strict=True)]
        return np.concatenate([np.zeros(0, np.int64), *ranges])

    def uniform(self, rng: np.random.Generator, size: int) -> np.ndarray:
        """Draw (size,) int64 ids, each resident node equally likely, with replacement."""
        place: np.ndarray = rng.integers(0, self.count, size, dtype=np.int64)
        offsets = self.starts - self._ends + self.sizes
        if (offsets == offsets[0]).all():  # one range after another, as where all partitions are resident
            place += offsets[0]
            return place
        ids: np.ndarray = place + offsets[np.searchsorted(self._ends, place, side="right")]
        return ids

    def by_degree(self, rng: np.random.Generator, size: int) -> np.ndarray:
        """Draw (size,) int64 ids with probability in proportion to degree, with replacement.

        Falls back to uniform if no resident node has an edge.

        Raises:
            ConfigError: built without degrees, as for a sampler that does not set `needs_degrees`.
        """
        if self.degree_cumsum is None or self._degree_ends is None:
            raise ConfigError(
                "negatives.sampler draws by_degree, but the graph's degrees were not loaded: set "
                "needs_degrees = True on the sampler's class"
            )
        total = int(self._degree_ends[-1]) if len(self._degree_ends) else 0
        if total == 0:
            return self.uniform(rng, size)
        place = rng.integers(0, total, size, dtype=np.int64)
        part = np.searchsorted(self._degree_ends, place, side="right")
        ids = np.empty(size, np.int64)
        for index in range(len(self.sizes)):
            mine = np.flatnonzero(part == index)
            sums = self.degree_cumsum[index]
            before = self._degree_ends[index] - (sums[-1] if len(sums) else 0)
            ids[mine] = np.searchsorted(sums, place[mine] - before, side="right") + self.starts[index]
        return ids


class NegativeSampler(ABC):
    """Draws the negatives that a chunk's edges share.

    A subclass that needs `ResidentNodes.by_degree` sets `needs_degrees`; one whose negatives always hold the
    edges' own answers sets `holds_answers`, and these are then left out even where known edges are not. One
    that asks of a batch's edges but how many they are clears `reads_edges`: they may be of any integer type.
    """

    needs_degrees: bool = False
    holds_answers: bool = False
    reads_edges: bool = True

    @abstractmethod
    def sample(
        self, edges: np.ndarray, resident: ResidentNodes, side: Side, rng: np.random.Generator
    ) -> np.ndarray:
        """Draw negatives for one corrupted side of a batch.

        Args:
            edges: (B, 3) int64 head, relation, tail with global node ids; it cannot be written to.
            resident: nodes to draw from.
            side: the corrupted end.
            rng: generator of this batch, for both sides: tails are drawn with it after heads.

        Returns:
            (C, K) int64 global ids of resident nodes; C divides B, edge b belongs to chunk b // (B / C).
        """


def chunks_of(batch: int, chunks: int) -> int:
    """Number of chunks for a batch of `batch` edges: `chunks`, else the largest divisor up to one more.

    A step's last batch is seldom a multiple of the chunk count; its chunks must be equal all the same.

    >>> chunks_of(10_000, 10), chunks_of(9_999, 10), chunks_of(7, 10), chunks_of(13, 10)
    (10, 11, 7, 1)
    """
    if batch % chunks == 0:
        return chunks
    return next(count for count in range(min(chunks + 1, batch), 0, -1) if batch % count == 0)


class UniformNegatives(NegativeSampler):
    """Negatives drawn uniformly from resident nodes, with replacement.

    Args:
        count: negatives K a chunk and side, at least 1.
        chunks: chunks C a batch, at least 1; one more or fewer where the batch is no multiple of it.
        count_head, count_tail: negatives for heads and for tails; None takes `count`.
    """

    def __init__(
        self,
        count: int = 1000,
        chunks: int = 10,
        count_head: int | None = None,
        count_tail: int | None = None,
    ) -> None:
        head = count if count_head is None else count_head
        tail = count if count_tail is None else count_tail
        given = {"count": count, "chunks": chunks, "count_head": head, "count_tail": tail}
        for key, value in given.items():
            if not is_whole(value, 1):
                raise ConfigError(f"negatives.{key} is {value!r}; it must be a whole number, at least 1")
        self.counts: dict[Side, int] = {"head": int(head), "tail": int(tail)}
        self.chunks = int(chunks)
        self.reads_edges = type(self).sample.__module__ != __name__  # a subclass elsewhere may

    def sample(
        self, edges: np.ndarray, resident: ResidentNodes, side: Side, rng: np.random.Generator
    ) -> np.ndarray:
        """Draw (C, K) int64 ids."""
        chunks = chunks_of(len(edges), self.chunks)
        count = self.counts[side]
        return resident.uniform(rng, chunks * count).reshape(chunks, count)


class DegreeNegatives(UniformNegatives):
    """A part of each chunk's negatives by degree, the rest uniform.

    Args:
        count: negatives K a chunk and side, at least 1.
        chunks: chunks C a batch, at least 1.
        degree_fraction: share of K drawn in proportion to degree, in [0, 1]; 0 is `UniformNegatives`.
        count_head, count_tail: negatives for heads and for tails; None takes `count`.
    """

    def __init__(
        self,
        count: int = 1000,
        chunks: int = 10,
        degree_fraction: float = 0.5,
        count_head: int | None = None,
        count_tail: int | None = None,
    ) -> None:
        super().__init__(count, chunks, count_head, count_tail)
        if not 0 <= degree_fraction <= 1:
            raise ConfigError(f"negatives.degree_fraction is {degree_fraction!r}; it must lie in [0, 1]")
        self.degree_fraction = float(degree_fraction)
        self.needs_degrees = any(round(one * self.degree_fraction) > 0 for one in self.counts.values())

    def sample(
        self, edges: np.ndarray, resident: ResidentNodes, side: Side, rng: np.random.Generator
    ) -> np.ndarray:
        """Draw (C, K) int64 ids, those by degree first in each row."""
        chunks = chunks_of(len(edges), self.chunks)
        count = self.counts[side]
        by_degree = round(count * self.degree_fraction)
        parts = [resident.uniform(rng, chunks * (count - by_degree)).reshape(chunks, -1)]
        if by_degree:
            parts.insert(0, resident.by_degree(rng, chunks * by_degree).reshape(chunks, by_degree))
        return np.concatenate(parts, axis=1)


class AllNegatives(NegativeSampler):
    """Every resident node, once, in one chunk: 1-vs-all where the whole graph is in the buffer.

    A batch then reads and changes every resident row, and its scores fill B times as many floats as there are
    resident nodes on either side, so this is for graphs of some ten thousand nodes.
    """

    holds_answers = True

    def sample(
        self, edges: np.ndarray, resident: ResidentNodes, side: Side, rng: np.random.Generator
    ) -> np.ndarray:
        """All resident ids, (1, K) int64."""
        return resident.all()[None]
