"""Which step runs which bucket (floor 0): eager, by deadline, or at random among the steps that can.

In: a schedule (its buckets are ignored), costs of buckets. Out: the same steps with buckets assigned anew.

A bucket may run in any step that holds both of its ends. While step t computes, the I/O thread writes back
what t evicted and reads what t + 1 admits, so the time lost is the sum over steps of max(0, I/O − work):
level work hides I/O, and a step without work exposes it in full. See docs/ordering.md.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product, starmap
from typing import Literal, SupportsFloat, SupportsIndex, get_args

from marius_py.ordering.arguments import (
    Costs,
    check_choice,
    check_costs,
    check_number,
    check_schedule,
    check_seed,
    generator,
)
from marius_py.ordering.leveling import Assignment, level_work
from marius_py.ordering.residency import Residency
from marius_py.types import Bucket, Schedule

Policy = Literal["eager", "deadline", "random"]
POLICIES: tuple[Policy, ...] = get_args(Policy)


def assign_buckets(
    schedule: Schedule,
    policy: Policy = "deadline",
    *,
    costs: Costs | None = None,
    io_cost: SupportsFloat | None = None,
    seed: SupportsIndex = 0,
) -> Schedule:
    """Distributes the p² buckets over the steps that hold both of their ends.

    `deadline` never leaves compute waiting longer than `eager`, whatever the rates of disk and compute.

    Args:
        schedule: the order; only its resident sets matter.
        policy: `eager`: the first step that can, as BETA's authors do; `deadline`: earliest deadline first,
            levelled so that every step has work to hide its I/O; `random`: any step that can, as COMET does.
        costs: (p, p) cost of bucket [head][tail], say its edge count; None means equal costs.
        io_cost: reading one partition and writing one, in the unit of `costs` (seconds × edges per second);
            None levels the work for all rates at once. Used by `deadline` alone.
        seed: used by `random` alone.

    Returns:
        A schedule with the same resident sets. Within a step, buckets that can never run later come first.

    Raises:
        ScheduleError: no steps, unknown policy, costs of the wrong shape, a pair that is never resident
            together.

    Example:
        >>> from marius_py.ordering import beta
        >>> [len(step.buckets) for step in assign_buckets(beta(5, 3), "eager").steps]
        [9, 5, 5, 2, 4]
        >>> [len(step.buckets) for step in assign_buckets(beta(5, 3), "deadline").steps]
        [5, 5, 5, 6, 4]
    """
    check_schedule(schedule)
    check_choice(policy, "policy", POLICIES)
    cost = [value for row in check_costs(costs, schedule.p) for value in row]
    level = None if io_cost is None else check_number(io_cost, "io_cost", zero=True)
    residency = Residency(schedule)
    if policy == "eager":
        place = residency.first
    elif policy == "random":
        place = _random_steps(residency, check_seed(seed))
    else:
        place = level_work(residency, cost, level)
    return _with_buckets(schedule, residency, place)


def _random_steps(residency: Residency, seed: int) -> Assignment:
    """Each bucket's step, uniform over those that hold it."""
    rng = generator(seed, "assign")
    place: Assignment = []
    for spans in residency.spans():
        draw = rng.randrange(sum(last - first + 1 for first, last in spans))
        for first, last in spans:
            if draw <= last - first:
                place.append(first + draw)
                break
            draw -= last - first + 1
    return place


def _with_buckets(schedule: Schedule, residency: Residency, place: Assignment) -> Schedule:
    """The schedule's steps with bucket head · p + tail in step place[head · p + tail]."""
    members: list[list[Bucket]] = [[] for _ in schedule.steps]
    buckets = list(starmap(Bucket, product(range(schedule.p), repeat=2)))
    for bucket in sorted(range(len(place)), key=residency.last.__getitem__):
        members[place[bucket]].append(buckets[bucket])
    steps = tuple(replace(step, buckets=tuple(m)) for step, m in zip(schedule.steps, members, strict=True))
    return replace(schedule, steps=steps)
