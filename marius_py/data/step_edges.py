"""A step's edges in blocks that fit in memory (floor 2).

In: a step's spans of the train split. Out: (E, 3) arrays, each shuffled together over all spans, in an order
that follows from the run's seed and the position alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import cast

import numpy as np
from numpy.typing import NDArray

from marius_py.data.plan import Spans
from marius_py.nn.negatives import chunks_of
from marius_py.storage.protocols import Edges
from marius_py.streams import Purpose, stream
from marius_py.workers import Workers

BLOCK_EDGES = 16_000_000
"""Edges that are shuffled at once: 192 MB of int32 triples beside as much for the next block."""
_GROUPS, _SHARES = 256, 8
_EVEN = 3
"""Batches' worth of edges, and the rest of a division, that the last batches of a block share."""
_LEAST_GROUPED = 1 << 18
"""Edges from which they are shuffled by groups; of fewer, a permutation fits the cache."""


@dataclass(frozen=True, slots=True, eq=False)
class EdgeBlock:
    """One part of every span of a step.

    Attributes:
        step: index of the step in the schedule.
        ranges: (n, 2) rows of (start, stop), positions in the train split.
        order: 0-based number of the block within its step.
        last: whether no block of the step follows.
    """

    step: int
    ranges: Spans
    order: int
    last: bool

    @property
    def num_edges(self) -> int:
        """Edges of the block."""
        return int((self.ranges[:, 1] - self.ranges[:, 0]).sum())


def split_step(step: int, spans: Spans, block_edges: int = BLOCK_EDGES) -> list[EdgeBlock]:
    """Cut a step into the fewest blocks of about `block_edges` edges, each with a share of every span.

    Args:
        step: index of the step in the schedule.
        spans: (n, 2) spans of the train split that the step has.
        block_edges: edges that may be in memory as one block.
    """
    start, size = spans[:, 0], spans[:, 1] - spans[:, 0]
    num_blocks = max(1, -(-int(size.sum()) // block_edges))
    blocks = []
    for order in range(num_blocks):
        cuts = (start + size * number // num_blocks for number in (order, order + 1))
        ranges = np.stack(list(cuts), axis=1)
        kept = ranges[ranges[:, 0] < ranges[:, 1]]
        blocks.append(EdgeBlock(step, kept, order, order == num_blocks - 1))
    return blocks


def read_block(
    read: Callable[[int, int], Edges], block: EdgeBlock, seed: int, epoch: int, *, threads: int = 1
) -> Edges:
    """Read a block and shuffle its edges together: (E, 3) ids, the integer type of what is read.

    Args:
        read: (start, stop) → edges of the train split by position.
        block: which part of it.
        seed, epoch: with the block's place, what the order follows from.
        threads: that share in shuffling; the order is the same for any number.
    """
    parts = [read(start, stop) for start, stop in _joined(block.ranges).tolist()]
    if not parts:
        return np.empty((0, 3), dtype=np.int32)
    rng = stream(seed, Purpose.SHUFFLE, epoch, block.step, block.order)
    return shuffled(cast(Edges, np.concatenate(parts)), rng, threads)


def shuffled(edges: Edges, rng: np.random.Generator, threads: int = 1) -> Edges:
    """Edges (E, 3) in random order, each order as likely as another, and the same for any number of threads.

    A permutation of millions is made by one core at the speed of memory. Here each edge goes to a random
    group first, then groups, which fit a core's cache, are permuted, both by as many threads as there are
    (Sanders, 1998: Random permutations on distributed, external and hierarchical memory).
    """
    if len(edges) < _LEAST_GROUPED:
        return cast(Edges, np.take(edges, rng.permutation(len(edges)), axis=0))
    rngs = rng.spawn(_SHARES + _GROUPS)
    begins = [len(edges) * share // _SHARES for share in range(_SHARES + 1)]

    def divide(share: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Places of a share of the edges, group after group, and where each group ends among them."""
        group = rngs[share].integers(0, _GROUPS, begins[share + 1] - begins[share], dtype=np.uint8)
        ends = np.cumsum(np.bincount(group, minlength=_GROUPS))
        return np.argsort(group, kind="stable") + begins[share], ends

    def permute(number: int) -> None:
        mine = [order[0 if number == 0 else ends[number - 1] : ends[number]] for order, ends in divided]
        places = rngs[_SHARES + number].permutation(np.concatenate(mine))
        stop = int(sum(ends[number] for _, ends in divided))
        np.take(edges, places, axis=0, out=found[stop - len(places) : stop], mode="clip")

    found: Edges = np.empty_like(edges)
    with Workers(threads, "marius-shuffle") as pool:
        divided = pool.map(divide, range(_SHARES))
        pool.map(permute, range(_GROUPS))
    return found


def _joined(ranges: Spans) -> Spans:
    """Ranges in file order, neighbours read as one."""
    ordered = ranges[np.argsort(ranges[:, 0])]
    apart = ordered[1:, 0] != ordered[:-1, 1]
    starts = ordered[np.insert(apart, 0, True)[: len(ordered)], 0]
    stops = ordered[np.append(apart, True)[: len(ordered)], 1]
    return np.stack([starts, stops], axis=1)


def batch_bounds(num_edges: int, batch_size: int, chunks: int) -> list[tuple[int, int]]:
    """Cut a block into batches that divide into `chunks` chunks, or nearly so many.

    The first ones are full, so that a device sees one shape again and again; what is left, three to four
    batches' worth, is cut evenly. No block ends in a sliver, and none in a batch of few chunks, whose edges
    would all see the same few negatives. All batches but the last are multiples of `chunks`; the last one
    takes what is left, in a size that has a divisor near `chunks`. A block that is one batch without such a
    divisor is cut in two.

    Args:
        num_edges: edges of the block.
        batch_size: most edges a batch, a multiple of `chunks`.
        chunks: wanted for each batch.
    """
    if num_edges == 0:
        return []
    full = max(0, num_edges // batch_size - _EVEN) * batch_size
    size, last = _sizes(num_edges - full, batch_size, chunks)
    stop = num_edges - last
    starts = [*range(0, full, batch_size), *range(full, stop, size), stop]
    return list(pairwise([*starts, num_edges]))


def _sizes(num_edges: int, batch_size: int, chunks: int) -> tuple[int, int]:
    """Sizes of all batches but the last, and of the last: that of fewest batches and nearest to the mean
    whose number of chunks will do, or the one with most chunks."""
    fewest = -(-num_edges // batch_size)
    size = min(batch_size, -(-num_edges // (fewest * chunks)) * chunks)
    best, most_chunks = (size, num_edges - (num_edges - 1) // size * size), 0
    if num_edges % chunks == 0:
        return best
    for count in (fewest, fewest + 1):
        for size, last in _divisions(num_edges, count, batch_size, chunks):
            found = chunks_of(last, chunks)
            if 5 * found >= 4 * chunks:
                return size, last
            if found > most_chunks:
                best, most_chunks = (size, last), found
    return best


def _divisions(num_edges: int, count: int, batch_size: int, chunks: int) -> Iterator[tuple[int, int]]:
    """(size of the others, of the last) of `count` batches, all within about a quarter of the mean."""
    mean = num_edges // count
    if count == 1:
        yield batch_size, num_edges
        return
    others = (count - 1) * chunks  # edges of the other batches together are a multiple of this
    least = max(1, mean - mean // 4)
    least += (num_edges - least) % chunks
    for last in sorted(range(least, mean + mean // 4 + 1, chunks), key=lambda one: abs(one - mean)):
        size = -(-(num_edges - last) // others) * chunks
        if max(size, last) <= batch_size and (count - 2) * size < num_edges - last:
            yield size, last
