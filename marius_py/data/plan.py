"""Which edges run in which step (floor 2): a schedule and bucket counts in, spans of the train split out.

Two ways. *Whole buckets*: a step runs the buckets that the schedule gives it. *Spread*: every bucket is cut
into shares for all the steps in which both of its partitions are resident, so that each step holds edges
between all of its partitions instead of mostly those of the newest one. Training in parts is then much closer
to training in one piece. Shares are chosen so that the steps have equal work, as far as residency allows:
level work is what hides the I/O of a swap.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from marius_py.types import Schedule

Span = tuple[int, int]
"""(start, stop) positions in the train split."""

LEVEL_ROUNDS = 60


def whole_spans(schedule: Schedule, counts: NDArray[np.int64]) -> list[list[Span]]:
    """Spans of each step when buckets run whole, in the schedule's order of buckets.

    Args:
        schedule: steps with their buckets.
        counts: (p, p) train edges a bucket; buckets lie in the file in row-major order.
    """
    offsets = np.concatenate([[0], np.cumsum(counts.ravel())])
    p = len(counts)
    return [
        [(int(offsets[h * p + t]), int(offsets[h * p + t + 1])) for h, t in step.buckets]
        for step in schedule.steps
    ]


def spread_spans(schedule: Schedule, counts: NDArray[np.int64], rng: np.random.Generator) -> list[list[Span]]:
    """Spans of each step when every bucket is cut among the steps that hold both of its partitions.

    Each edge lies in exactly one span. Which edges of a bucket make a share, and which step gets it, is
    drawn: a bucket is a circle that starts at a random edge, and its steps take their arcs in random order.

    Args:
        schedule: steps; only their resident sets matter.
        counts: (p, p) train edges a bucket; buckets lie in the file in row-major order.
        rng: generator of the epoch.
    """
    p = len(counts)
    resident = [np.asarray(step.resident, dtype=np.int64) for step in schedule.steps]
    bucket = np.concatenate([(parts[:, None] * p + parts).ravel() for parts in resident])
    step = np.repeat(np.arange(len(resident)), [len(parts) ** 2 for parts in resident])
    edges = counts.ravel()
    shares = level_shares(bucket, step, edges)
    order = np.lexsort((rng.random(len(bucket)), bucket))
    bucket, step, shares = bucket[order], step[order], shares[order]
    first = np.searchsorted(bucket, bucket, side="left")  # where the bucket's own entries begin
    running = np.cumsum(shares)
    upto = running - (running - shares)[first]  # share of the bucket up to and with this entry
    is_last = np.append(bucket[1:] != bucket[:-1], True)
    stop = np.where(is_last, edges[bucket], np.rint(upto * edges[bucket]).astype(np.int64))
    start = np.where(first == np.arange(len(bucket)), 0, np.concatenate([[0], stop[:-1]]))
    turn = (rng.random(p * p) * edges).astype(np.int64)[bucket]
    origin = (np.cumsum(edges) - edges)[bucket]
    spans: list[list[Span]] = [[] for _ in resident]
    for at, low, high, zero, size in zip(
        step.tolist(),
        (start + turn).tolist(),
        (stop + turn).tolist(),
        origin.tolist(),
        edges[bucket].tolist(),
        strict=True,
    ):
        spans[at].extend(_unrolled(low, high, zero, size))
    return spans


def level_shares(
    bucket: NDArray[np.int64], step: NDArray[np.int64], edges: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Shares (n,) of bucket `bucket[i]` (n,) for step `step[i]` (n,) that level the edges of all steps.

    A bucket's shares are in proportion to a weight of each step that holds it; the weights are raised for
    steps with too little work and lowered for those with too much until they settle (iterative
    proportional fitting). Every share stays above zero, so the steps are as mixed as level work allows.

    Args:
        bucket, step: the pairs in which a bucket may run, each once.
        edges: (p²,) edges of each bucket.
    """
    num_steps = int(step.max()) + 1
    weight = np.ones(num_steps)
    cost = edges.astype(np.float64)[bucket]
    target = edges.sum() / num_steps
    for _ in range(LEVEL_ROUNDS):
        shares = _shares(bucket, weight[step], len(edges))
        work = np.bincount(step, shares * cost, minlength=num_steps)
        if target == 0 or np.abs(work - target).max() < 0.01 * target:
            break
        weight *= np.clip(target / np.maximum(work, 1e-9 * target), 0.5, 2.0)
        weight = np.clip(weight / weight.mean(), 1e-3, 1e3)
    return _shares(bucket, weight[step], len(edges))


def _shares(bucket: NDArray[np.int64], weight: NDArray[np.float64], num_buckets: int) -> NDArray[np.float64]:
    shares: NDArray[np.float64] = weight / np.bincount(bucket, weight, minlength=num_buckets)[bucket]
    return shares


def _unrolled(low: int, high: int, origin: int, size: int) -> list[Span]:
    """Spans of the arc [low, high) of a circle of `size` edges that begins at `origin` in the file."""
    if low == high:
        return []
    if low >= size:
        return [(origin + low - size, origin + high - size)]
    if high <= size:
        return [(origin + low, origin + high)]
    return [(origin + low, origin + size), (origin, origin + high - size)]
