"""Which edges run in which step (floor 2): a schedule and bucket counts in, spans of the train split out.

Two ways. *Whole buckets*: a step runs the buckets that the schedule gives it. *Spread*: every bucket is cut
into shares for all the steps in which both of its partitions are resident, so that each step holds edges
between all of its partitions instead of mostly those of the newest one. Training in parts is then much closer
to training in one piece. Shares are chosen so that the steps have equal work, to the nearest whole batch and
as far as residency allows: level work hides the I/O of a swap, whole batches cost the least an edge.

An epoch has about p² c / 2 shares a round, 17 million with 128 of 512 partitions: they are kept in a few
bytes each, and a step's are spelled out when it comes.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from itertools import pairwise
from types import ModuleType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from marius_py.nn.kernels.host import compiled_levels
from marius_py.types import Schedule

Spans = NDArray[np.int64]
"""(n, 2) rows of (start, stop), positions in the train split; start < stop."""

DIVISION = 2
"""Raised with every change of which edges run in which step of a schedule: a position inside an epoch means
nothing to another."""

LEVEL_ROUNDS = 60
LEVEL_WITHIN = 0.01
"""Share of its target by which a step's work may miss it."""
_LEAST_FULL = 0.9
"""Share of a batch's edges that is planned for, at least, however many chunks there are."""

_BANDS = 16
"""Most parts in which shares are cut: each goes through all random numbers of the epoch."""
_BAND_SHARES = 1 << 20
"""Shares that are cut at once, at least, in some 100 bytes each."""
_CHUNK = 1 << 17
"""Numbers that fit a core's cache."""


class EpochSpans(Protocol):
    """The spans of each step of an epoch."""

    def __getitem__(self, step: int) -> Spans:
        """Spans of a step by its index in the schedule, in the order of its buckets; no two overlap."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class _WholeSpans:
    schedule: Schedule
    offsets: NDArray[np.int64]
    """(p² + 1,) first row of each bucket, then the number of rows."""

    def __getitem__(self, step: int) -> Spans:
        buckets = np.array(self.schedule.steps[step].buckets, dtype=np.int64).reshape(-1, 2)
        first = buckets[:, 0] * self.schedule.p + buckets[:, 1]
        return _non_empty(self.offsets[first], self.offsets[first + 1])


@dataclass(frozen=True, slots=True, eq=False)
class _SpreadSpans:
    resident: NDArray[np.int64]
    """(S, c) partitions of each step."""
    edges: NDArray[np.int64]
    """(p, p) edges of each bucket."""
    origin: NDArray[np.int64]
    """(p, p) first row of each bucket."""
    start: NDArray[np.unsignedinteger[Any]]
    """(S, c, c) where the share of a pair of a step's partitions begins in its bucket, a circle."""
    length: NDArray[np.unsignedinteger[Any]]
    """(S, c, c) edges of the share."""
    passed: NDArray[np.int64]
    """(S, 3) bucket, begin in its circle and number of the edges that a step has from the one before it."""

    def __getitem__(self, step: int) -> Spans:
        parts, (passed, begin, number) = self.resident[step], self.passed[step]
        bucket = np.append(parts[:, None] * len(self.edges) + parts, passed)
        size, origin = self.edges.reshape(-1)[bucket], self.origin.reshape(-1)[bucket]
        start = np.append(self.start[step].astype(np.int64), begin)
        stop = start + np.append(self.length[step].astype(np.int64), number)
        # a share that runs over its bucket's end goes on at the beginning
        starts = np.stack([start + origin, origin], axis=-1)
        stops = np.stack([np.minimum(stop, size) + origin, np.maximum(stop - size, 0) + origin], axis=-1)
        return _non_empty(starts.ravel(), stops.ravel())


def _non_empty(start: NDArray[np.int64], stop: NDArray[np.int64]) -> Spans:
    kept = start < stop
    return np.stack([start[kept], stop[kept]], axis=1)


def whole_spans(schedule: Schedule, counts: NDArray[np.int64]) -> EpochSpans:
    """Spans of each step when buckets run whole, in the schedule's order of buckets.

    Args:
        schedule: steps with their buckets.
        counts: (p, p) train edges a bucket; buckets lie in the file in row-major order.
    """
    return _WholeSpans(schedule, np.concatenate([[0], np.cumsum(counts.ravel())]))


def spread_spans(
    schedule: Schedule,
    counts: NDArray[np.int64],
    rng: np.random.Generator,
    *,
    batch_size: int = 1,
    chunks: int = 1,
    compiled: bool = False,
) -> EpochSpans:
    """Spans of each step when every bucket is cut among the steps that hold both of its partitions.

    Each edge lies in exactly one span. Which edges of a bucket make a share, and which step gets it, is
    drawn: a bucket is a circle that starts at a random edge, and its steps take their arcs in random order.

    Args:
        schedule: steps; only their resident sets matter.
        counts: (p, p) train edges a bucket; buckets lie in the file in row-major order.
        rng: generator of the epoch; it is left as it is.
        batch_size: B, most edges of the batches into which a step is cut.
        chunks: C, of which the edges of a step are a multiple, where the one after it can take the rest.
        compiled: level the steps with loops compiled with Numba; the spans are the same.
    """
    resident = np.array([step.resident for step in schedule.steps], dtype=np.int64)
    target = level_targets(int(counts.sum()), len(resident), batch_size, chunks)
    weight, total = level_weights(resident, counts, target, compiled)
    kind = np.min_scalar_type(int(counts.max()))
    start, length = (np.empty((*resident.shape, resident.shape[1]), dtype=kind) for _ in range(2))
    origin = (np.cumsum(counts.ravel()) - counts.ravel()).reshape(counts.shape)
    passed = np.zeros((len(resident), 3), dtype=np.int64)
    spans = _SpreadSpans(resident, counts, origin, start, length, passed)
    _cut(spans, weight, total, rng)
    _pass_on(spans, chunks)
    return spans


def level_targets(num_edges: int, num_steps: int, batch_size: int, chunks: int) -> NDArray[np.float64]:
    """Edges (S,) that each step should have: level, and of whole batches that are nearly full.

    As many batches as hold the edges, with room for what levelling and chunks leave over, are dealt out
    evenly; with fewer edges than would fill a batch a step, all steps have as many.
    """
    full = max(batch_size - chunks, _LEAST_FULL * batch_size) / (1 + LEVEL_WITHIN)
    batches = max(num_steps, int(np.ceil(num_edges / full)))
    own = np.diff(np.arange(num_steps + 1) * batches // num_steps)
    return own * (num_edges / batches)


def _cut(
    spans: _SpreadSpans, weight: NDArray[np.float64], total: NDArray[np.float64], rng: np.random.Generator
) -> None:
    """Fill `spans.start` and `spans.length`, for the buckets of some head partitions at a time.

    Every share of a step, in the order of its buckets, has a random number, step after step, by which the
    shares of a bucket are ordered; after them comes one for each bucket, where its circle starts.
    """
    p, (steps, c) = len(total), spans.resident.shape
    row_part = spans.resident.ravel()  # a row of shares: one head partition of one step
    start, length = spans.start.reshape(-1, c), spans.length.reshape(-1, c)
    least = max(_BAND_SHARES, -(-steps * c * c // _BANDS))
    turn = None
    given = 0.0  # of the buckets before, 1 each but for rounding
    for first, last in _bands(np.bincount(row_part, minlength=p) * c, least):
        rows = np.flatnonzero((row_part >= first) & (row_part < last))
        draws = deepcopy(rng)
        drawn = _drawn_rows(draws, rows, steps * c, c)
        if turn is None:
            turn = draws.random(p * p)
        bucket = (row_part[rows] - first)[:, None] * p + spans.resident[rows // c]
        order = _by_bucket(bucket.ravel(), drawn.ravel())
        number = np.bincount(bucket.ravel(), minlength=(last - first) * p)
        ends = np.cumsum(number)
        heads, tails = (ends - number)[number > 0], (ends - 1)[number > 0]  # first and last share of a bucket
        del drawn, bucket

        share = weight[rows[order // c] // c] / np.repeat(total[first:last].ravel(), number)
        running = np.cumsum(np.concatenate([[given], share]))[1:]
        given = running[-1]
        before = np.repeat((running - share)[heads], number[number > 0])
        size = spans.edges[first:last].ravel()
        stop = np.rint((running - before) * np.repeat(size, number)).astype(np.int64)
        stop[tails] = size[number > 0]
        low = np.concatenate([[0], stop[:-1]])
        low[heads] = 0
        edges = stop - low
        low += np.repeat((turn[first * p : last * p] * size).astype(np.int64), number)
        low -= np.where(low >= np.repeat(size, number), np.repeat(size, number), 0)
        for found, filled in ((low, start), (edges, length)):
            unsorted = np.empty(len(order), dtype=filled.dtype)
            unsorted[order] = found
            filled[rows] = unsorted.reshape(-1, c)


def _pass_on(spans: _SpreadSpans, chunks: int) -> None:
    """Let each step pass to the next the few edges by which it is no multiple of `chunks`.

    They are the end of its largest share of those buckets that the next step holds, too; a step all of whose
    shares are smaller keeps them.
    """
    p, (steps, c) = len(spans.edges), spans.resident.shape
    length = spans.length.reshape(steps, -1)
    place, most = np.empty(steps - 1, dtype=np.int64), np.empty(steps - 1, dtype=np.int64)
    for some in _slices(steps - 1, c):
        here, after = spans.resident[:-1][some], spans.resident[1:][some]
        stays = (here[:, :, None] == after[:, None, :]).any(axis=2)
        both = (stays[:, :, None] & stays[:, None, :]).reshape(len(here), -1)
        place[some] = np.where(both, length[:-1][some], 0).argmax(axis=1)
        most[some] = np.take_along_axis(np.where(both, length[:-1][some], 0), place[some][:, None], 1)[:, 0]

    passed, number = [], 0
    for edges, largest in zip(length.sum(axis=1, dtype=np.int64)[:-1].tolist(), most.tolist(), strict=True):
        number = (edges + number) % chunks
        if number > largest:
            number = 0
        passed.append(number)
    giver = np.flatnonzero(passed)
    given, place = np.array(passed, dtype=np.int64)[giver], place[giver]
    length[giver, place] -= given.astype(length.dtype)
    parts = spans.resident[giver]
    each = np.arange(len(giver))
    bucket = parts[each, place // c] * p + parts[each, place % c]
    begin = spans.start.reshape(steps, -1)[giver, place].astype(np.int64) + length[giver, place]
    spans.passed[giver + 1] = np.stack([bucket, begin % spans.edges.reshape(-1)[bucket], given], axis=1)


def _bands(shares: NDArray[np.int64], least: int) -> Iterator[tuple[int, int]]:
    """Ranges first:last of head partitions that have about `least` of the (p,) shares together."""
    band = (np.cumsum(shares) - 1) // least
    cuts = np.flatnonzero(np.diff(band)) + 1
    yield from pairwise([0, *cuts.tolist(), len(shares)])


def _drawn_rows(rng: np.random.Generator, rows: NDArray[np.int64], count: int, c: int) -> NDArray[np.float64]:
    """Rows (len(rows), c) of a table (count, c) of random numbers, all of which are drawn."""
    found = np.empty((len(rows), c))
    size = max(1, _CHUNK // c)
    for first in range(0, count, size):
        drawn = rng.random((min(size, count - first), c))
        low, high = np.searchsorted(rows, (first, first + len(drawn)))
        np.take(drawn, rows[low:high] - first, axis=0, out=found[low:high])
    return found


def _by_bucket(bucket: NDArray[np.int64], drawn: NDArray[np.float64]) -> NDArray[np.int64]:
    """The order of shares by bucket, then by what was drawn from [0, 1), then as they come."""
    key = bucket + drawn
    order = np.argsort(key)
    key = key[order]
    if (key[1:] == key[:-1]).any():  # sums have fewer digits than what was drawn
        order = np.lexsort((drawn, bucket))
    return order


def level_weights(
    resident: NDArray[np.int64],
    counts: NDArray[np.int64],
    target: NDArray[np.float64],
    compiled: bool = False,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Weights of the steps that give each the edges it should have, when a bucket is shared out by weight.

    The weights are raised for steps with too little work and lowered for those with too much until they
    settle (iterative proportional fitting). Every weight stays above zero, so the steps are as mixed as
    level work allows.

    Args:
        resident: (S, c) partitions of each step, ascending: between each two of them lies a bucket.
        counts: (p, p) edges of each bucket.
        target: (S,) edges that each step should have.
        compiled: with loops compiled with Numba, to the same bits.

    Returns:
        (S,) weights, and (p, p) their sums over the steps that hold both partitions: a step's share of a
        bucket is the one divided by the other.
    """
    kernels = compiled_levels() if compiled else None
    num_steps = len(resident)
    weight = np.ones(num_steps)
    cost = counts.astype(np.float64)
    for _ in range(LEVEL_ROUNDS):
        total = _totals(resident, weight, len(counts), kernels)
        work = _work(resident, weight, total, cost, kernels)
        if (np.abs(work - target) <= LEVEL_WITHIN * target).all():
            return weight, total
        weight *= np.clip(target / np.maximum(work, 1e-9 * target), 0.5, 2.0)
        weight = np.clip(weight / weight.mean(), 1e-3, 1e3)
    return weight, _totals(resident, weight, len(counts), kernels)


def _totals(
    resident: NDArray[np.int64], weight: NDArray[np.float64], p: int, kernels: ModuleType | None
) -> NDArray[np.float64]:
    """Sums (p, p) of the weights of the steps that hold both partitions."""
    total = np.zeros((p, p))
    if kernels is not None:
        kernels.add_weights(resident, weight, total)
        return total
    for steps, bucket in _buckets(resident, p):
        np.add.at(total.reshape(-1), bucket.ravel(), np.repeat(weight[steps], bucket.shape[1]))
    return total


def _work(
    resident: NDArray[np.int64],
    weight: NDArray[np.float64],
    total: NDArray[np.float64],
    cost: NDArray[np.float64],
    kernels: ModuleType | None,
) -> NDArray[np.float64]:
    """Edges (S,) of each step."""
    work = np.empty(len(resident))
    if kernels is not None:
        kernels.add_work(resident, weight, total, cost, work)
        return work
    for steps, bucket in _buckets(resident, len(total)):
        shares = weight[steps, None] / total.reshape(-1)[bucket] * cost.reshape(-1)[bucket]
        work[steps] = np.cumsum(shares, axis=1)[:, -1]  # one after the other, as compiled loops add
    return work


def _buckets(resident: NDArray[np.int64], p: int) -> Iterator[tuple[slice, NDArray[np.int64]]]:
    """Some steps at a time, and the (n, c²) numbers of their buckets."""
    for some in _slices(len(resident), resident.shape[1]):
        parts = resident[some]
        buckets = parts[:, :, None] * p + parts[:, None, :]
        yield some, buckets.reshape(len(parts), -1)


def _slices(steps: int, c: int) -> Iterator[slice]:
    """So many steps at a time that their shares, c² each, fit a core's cache."""
    size = max(1, _CHUNK // c**2)
    for first in range(0, steps, size):
        yield slice(first, min(first + size, steps))
