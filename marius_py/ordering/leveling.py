"""Earliest deadline first, then levelling (floor 0). In: spans and costs of buckets. Out: a step for each.

Why levelling is the goal: with I/O of q a swap, the time lost is F(q) = Σ_t max(0, q − work_t). One
assignment loses no more than another for every q exactly if it majorizes from below: each partial sum of
its ascending work is at least the other's. Moving cost x from a step to one with more than x less work
improves F for every q (a Robin Hood transfer), so transfers need no knowledge of the rates.
"""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import accumulate

from marius_py.ordering.residency import Residency

Assignment = list[int]
"""(p²,) the step of bucket head · p + tail."""

LEVELS = (0.8, 0.9, 1.0)
"""Work a step that EDF aims at where the I/O cost is unknown, as shares of the mean."""

MAX_VISITS = 1_500_000
"""Bucket visits that levelling may spend, about a second in all."""


def level_work(residency: Residency, cost: list[float], io_cost: float | None) -> Assignment:
    """The best of several EDF assignments, none of which ever loses more time than the eager one.

    Args:
        residency: what is resident when.
        cost: (p²,) cost of each bucket.
        io_cost: I/O of a swap in the same unit; None judges by the evenness of work.
    """
    eager = residency.first
    if residency.num_steps == 1:
        return eager
    eager_work = step_work(eager, cost, residency.num_steps)
    mean = sum(cost) / residency.num_steps
    levels = [mean * share for share in LEVELS] if io_cost is None else [io_cost]
    queue = _by_deadline(residency, cost)
    starts = [earliest_deadline_first(residency, cost, queue, level) for level in levels]
    # Transfers from the eager assignment only improve on it, so one candidate always passes the test below.
    candidates = [
        _transfer(residency, cost, start, MAX_VISITS // (len(starts) + 1)) for start in [*starts, eager]
    ]
    best: Assignment = eager
    best_loss = float("inf")
    for candidate in candidates:
        work = step_work(candidate, cost, residency.num_steps)
        if not _never_loses_more(work, eager_work):
            continue
        # The sum of squares falls with every transfer: a measure of evenness that needs no I/O cost.
        loss = sum(w * w for w in work[:-1]) if io_cost is None else idle_cost(work, io_cost)
        if loss < best_loss:
            best, best_loss = candidate, loss
    return best


def step_work(place: Assignment, cost: list[float], num_steps: int) -> list[float]:
    """(T,) total cost of the buckets of each step."""
    work = [0.0] * num_steps
    for step, value in zip(place, cost, strict=True):
        work[step] += value
    return work


def idle_cost(work: list[float], io_cost: float) -> float:
    """Work's worth of waiting when each step but the last has I/O of `io_cost` to hide."""
    return sum(max(0.0, io_cost - w) for w in work[:-1])


def _never_loses_more(work: list[float], other: list[float]) -> bool:
    """Whether `work` waits no longer than `other` for every I/O cost; the last step has no I/O to hide."""
    tolerance = 1e-9 * (sum(work) + 1.0)
    ours, theirs = accumulate(sorted(work[:-1])), accumulate(sorted(other[:-1]))
    return all(a >= b - tolerance for a, b in zip(ours, theirs, strict=True))


def _by_deadline(residency: Residency, cost: list[float]) -> list[int]:
    """The buckets, those that can soonest never run again first, among equals the costly ones."""
    costly_first = sorted(range(residency.p**2), key=cost.__getitem__, reverse=True)
    return sorted(costly_first, key=residency.last.__getitem__)


def earliest_deadline_first(
    residency: Residency, cost: list[float], queue: list[int], level: float
) -> Assignment:
    """Runs in each step what can never run later, then, up to `level`, what comes first in `queue`."""
    p = residency.p
    ranks = [0] * p**2
    for rank, bucket in enumerate(queue):
        ranks[bucket] = rank
    place = [-1] * p**2
    pool: list[int] = []
    for time, resident in enumerate(residency.resident):
        for part in residency.admitted[time]:
            for other in resident:
                for bucket in (part * p + other, other * p + part):
                    if place[bucket] < 0:
                        heappush(pool, ranks[bucket])
        here = set(resident)
        work = 0.0
        while pool and (residency.last[queue[pool[0]]] == time or work < level):
            bucket = queue[heappop(pool)]
            # An entry whose pair was parted is stale: the pair is pushed again when it meets again.
            if place[bucket] < 0 and bucket // p in here and bucket % p in here:
                place[bucket] = time
                work += cost[bucket]
    return place


def _transfer(residency: Residency, cost: list[float], start: Assignment, visits: int) -> Assignment:
    """Moves buckets from steps with more work to steps with less until none helps or `visits` are spent."""
    p = residency.p
    place = list(start)
    work = step_work(place, cost, residency.num_steps)
    work[-1] = float("inf")  # nothing is read behind the last step: it gives away all that can run before
    moved = True
    while moved and visits > 0:
        moved = False
        for time in sorted(range(residency.num_steps - 1), key=work.__getitem__):
            resident = residency.resident[time]
            visits -= len(resident) ** 2
            if visits <= 0:
                break
            here = [head * p + tail for head in resident for tail in resident]
            richer = sorted((b for b in here if work[place[b]] > work[time]), key=lambda b: -work[place[b]])
            for bucket in richer:
                donor = place[bucket]
                if 0 < cost[bucket] < work[donor] - work[time]:
                    work[donor] -= cost[bucket]
                    work[time] += cost[bucket]
                    place[bucket] = time
                    moved = True
    return place
