"""Does a schedule keep its promises? (floor 0). In: a Schedule from anywhere. Out: nothing, or an error."""

from __future__ import annotations

from itertools import product

from marius_py.errors import ScheduleError
from marius_py.ordering.arguments import check_schedule, check_sizes, check_start
from marius_py.types import Schedule, Step


def validate(schedule: Schedule) -> None:
    """Checks every invariant that the buffer and the trainer rely on.

    The first step holds `initial` and swaps nothing; each later one evicts one resident and admits one that
    is not; c distinct partitions are resident at all times; every bucket runs once, with both ends resident.

    Raises:
        ScheduleError: names the step and what is wrong with it.
    """
    check_schedule(schedule)
    p, c = check_sizes(schedule.p, schedule.c)
    ascending = check_start(schedule.initial, p, c, "initial")
    if ascending != schedule.initial:
        raise ScheduleError(f"initial is {schedule.initial!r}; allowed: the tuple {ascending}")
    resident = set(schedule.initial)
    done: set[tuple[int, int]] = set()
    for index, step in enumerate(schedule.steps):
        _check_swap(step, index, resident, p)
        resident = resident - set(step.evict) | set(step.admit)
        if step.resident != tuple(sorted(resident)):
            raise ScheduleError(
                f"step {index}: resident is {step.resident}; allowed: {tuple(sorted(resident))}"
            )
        for bucket in step.buckets:
            if tuple(bucket) in done:
                raise ScheduleError(
                    f"step {index}: bucket {tuple(bucket)} has run before; allowed: once an epoch"
                )
            if not resident.issuperset(bucket):
                raise ScheduleError(
                    f"step {index}: bucket {tuple(bucket)} has an end outside {step.resident}"
                )
            done.add((bucket[0], bucket[1]))
    missing = next((bucket for bucket in product(range(p), repeat=2) if bucket not in done), None)
    if missing is not None:
        raise ScheduleError(f"bucket {missing} never runs ({p * p - len(done)} of {p * p} are missing)")


def _check_swap(step: Step, index: int, resident: set[int], p: int) -> None:
    """One partition out, one in; none in the first step."""
    count = 1 if index else 0
    if len(step.evict) != count or len(step.admit) != count:
        allowed = "one of each" if index else "none, as the first step holds the initial set"
        raise ScheduleError(f"step {index}: evicts {step.evict} and admits {step.admit}; allowed: {allowed}")
    if not resident.issuperset(step.evict):
        raise ScheduleError(f"step {index}: evicts {step.evict}, not resident among {sorted(resident)}")
    if not set(range(p)).issuperset(step.admit):
        raise ScheduleError(f"step {index}: admits {step.admit}; allowed: partitions 0 to {p - 1}")
    if not resident.isdisjoint(step.admit):
        raise ScheduleError(f"step {index}: admits {step.admit}, which is resident already")
