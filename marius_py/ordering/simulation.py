"""What a schedule costs in time and bytes (floor 0). In: a schedule, costs, rates. Out: a `Simulation`.

The model is the buffer with one spare slot, c + 1 in memory: on entering a step the I/O thread writes back
what was evicted, then reads what the next step admits into the slot that became free; the next step starts
when its partition is there and the work is done. A step therefore lasts max(work, write + read).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import SupportsFloat

from marius_py.ordering.arguments import (
    Costs,
    ListLike,
    as_plain,
    check_costs,
    check_number,
    check_numbers,
    check_schedule,
)
from marius_py.types import Schedule


@dataclass(frozen=True, slots=True)
class StepTiming:
    """One step of a simulated epoch.

    Attributes:
        start_s: when its compute starts, seconds from the start of the epoch.
        compute_s: seconds of work.
        io_s: seconds the I/O thread is busy behind it.
        idle_s: seconds that compute waits for I/O after the work.
    """

    start_s: float
    compute_s: float
    io_s: float
    idle_s: float


@dataclass(frozen=True, slots=True)
class Simulation:
    """A simulated epoch.

    Attributes:
        makespan_s: seconds from start to end: compute_s + exposed_io_s.
        compute_s: seconds of work.
        idle_s: seconds that compute waits for swaps.
        io_s: seconds of reading and writing, hidden or not.
        exposed_io_s: seconds of I/O with no compute beside it: idle_s, and filling and emptying the buffer.
        bytes_read: read from the store.
        bytes_written: written back.
        steps: the timing of each step.
    """

    makespan_s: float
    compute_s: float
    idle_s: float
    io_s: float
    exposed_io_s: float
    bytes_read: float
    bytes_written: float
    steps: tuple[StepTiming, ...]


def simulate(
    schedule: Schedule,
    *,
    costs: Costs | None = None,
    compute_rate: SupportsFloat = 1.0,
    partition_bytes: SupportsFloat | Sequence[float] | ListLike = 1.0,
    read_rate: SupportsFloat = 1.0,
    write_rate: SupportsFloat = 1.0,
    cold: bool = True,
    overlap: bool = True,
) -> Simulation:
    """Plays an epoch: when each step runs, and how long compute waits for the disk.

    With the defaults time is counted in units: a bucket, a read and a write take one second each.

    Args:
        schedule: a valid schedule.
        costs: (p, p) work of bucket [head][tail], say its edge count; None means 1 each.
        compute_rate: work a second, in the unit of `costs` (edges/s).
        partition_bytes: bytes of a partition with its optimizer state, one number or (p,) of them (a
            sequence, NumPy or torch array).
        read_rate: bytes a second.
        write_rate: bytes a second.
        cold: the epoch fills an empty buffer first and writes it back last; False is an epoch between others.
        overlap: swap behind compute with a spare slot; False stops compute for every swap.

    Raises:
        ScheduleError: no steps, a rate that is not above 0, costs or sizes of the wrong shape.

    Example:
        >>> from marius_py.ordering import assign_buckets, beta
        >>> for policy in "eager", "deadline":
        ...     epoch = simulate(assign_buckets(beta(32, 8), policy), read_rate=1 / 5, write_rate=1 / 5)
        ...     print(policy, epoch.compute_s, epoch.idle_s)
        eager 1024.0 74.0
        deadline 1024.0 0.0
    """
    check_schedule(schedule)
    rows = check_costs(costs, schedule.p)
    speed = check_number(compute_rate, "compute_rate", zero=False)
    sizes = _check_bytes(partition_bytes, schedule.p)
    read_s = [size / check_number(read_rate, "read_rate", zero=False) for size in sizes]
    write_s = [size / check_number(write_rate, "write_rate", zero=False) for size in sizes]

    fill_s = sum(read_s[part] for part in schedule.initial) if cold else 0.0
    flush_s = sum(write_s[part] for part in schedule.final) if cold else 0.0
    clock = fill_s
    timings: list[StepTiming] = []
    following = [*(step.admit for step in schedule.steps[1:]), ()]
    for step, admits in zip(schedule.steps, following, strict=True):
        work = sum(rows[head][tail] for head, tail in step.buckets) / speed
        io = sum(write_s[part] for part in step.evict) + sum(read_s[part] for part in admits)
        idle = max(0.0, io - work) if overlap else io
        timings.append(StepTiming(clock, work, io, idle))
        clock += work + idle

    moved = [part for step in schedule.steps for part in step.admit]
    gone = [part for step in schedule.steps for part in step.evict]
    idle_s = sum(timing.idle_s for timing in timings)
    return Simulation(
        makespan_s=clock + flush_s,
        compute_s=sum(timing.compute_s for timing in timings),
        idle_s=idle_s,
        io_s=sum(timing.io_s for timing in timings) + fill_s + flush_s,
        exposed_io_s=idle_s + fill_s + flush_s,
        bytes_read=sum(sizes[part] for part in [*moved, *(schedule.initial if cold else ())]),
        bytes_written=sum(sizes[part] for part in [*gone, *(schedule.final if cold else ())]),
        steps=tuple(timings),
    )


def hidden_io_cost(schedule: Schedule, *, costs: Costs | None = None, tolerance: float = 0.001) -> float:
    """The I/O a swap (one read, one write) that the schedule hides, in the unit of `costs`.

    Args:
        schedule: a valid schedule.
        costs: (p, p) work of each bucket; None means 1 each.
        tolerance: idle time allowed, as a share of all work.

    Returns:
        The largest q with Σ_t max(0, q − work_t) ≤ tolerance · Σ work; infinite where nothing is swapped.

    Example:
        >>> from marius_py.ordering import assign_buckets, auto
        >>> order = auto(64, 16)
        >>> [round(hidden_io_cost(assign_buckets(order, policy)), 1) for policy in ("eager", "deadline")]
        [4.0, 29.3]
    """
    check_schedule(schedule)
    rows = check_costs(costs, schedule.p)
    allowed = check_number(tolerance, "tolerance", zero=True) * sum(map(sum, rows))
    work = sorted(sum(rows[head][tail] for head, tail in step.buckets) for step in schedule.steps[:-1])
    below = 0.0
    for count, level in enumerate(work, start=1):
        below += level
        # With q between this level and the next, count steps wait for count · q − below in all.
        if count == len(work) or count * work[count] - below > allowed:
            return (allowed + below) / count
    return float("inf")


def _check_bytes(partition_bytes: SupportsFloat | Sequence[float] | ListLike, p: int) -> list[float]:
    """Bytes of each of the p partitions."""
    sizes = as_plain(partition_bytes)
    if isinstance(sizes, Sequence):
        return check_numbers(sizes, "partition_bytes", p, f"a number, or {p} (= p) of them")
    return [check_number(sizes, "partition_bytes", zero=True)] * p
