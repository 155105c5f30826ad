"""Schedules by name (floor 0): construction, then relabelling, then the assignment of buckets."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import SupportsFloat, SupportsIndex

from marius_py.ordering.arguments import (
    Costs,
    check_choice,
    check_rounds,
    check_seed,
    check_sizes,
    check_start,
    generator,
)
from marius_py.ordering.assignment import Policy, assign_buckets
from marius_py.ordering.order import to_schedule
from marius_py.ordering.orders import DRAWN, ORDERS
from marius_py.ordering.transforms import join, relabel
from marius_py.types import Schedule

ORDER_NAMES = tuple(ORDERS)
"""What `order` may be."""


def build_schedule(
    p: SupportsIndex,
    c: SupportsIndex,
    order: str = "auto",
    seed: SupportsIndex | None = 0,
    *,
    policy: Policy | None = None,
    costs: Costs | None = None,
    io_cost: SupportsFloat | None = None,
    start: Sequence[SupportsIndex] | None = None,
    rounds: SupportsIndex = 1,
) -> Schedule:
    """An epoch's schedule: which partitions are resident when, and which buckets run then.

    Args:
        p: number of partitions, 1 to 1024.
        c: buffer capacity in partitions, 2 ≤ c ≤ p; with c = p one step runs everything.
        order: one of `ORDER_NAMES`; `auto` has the fewest loads available.
        seed: decides which partition takes which role, and all other draws; the same seed gives the same
            schedule. None keeps the construction's own numbering, which is easier to read.
        policy: how buckets are assigned (see `assign_buckets`); None means `deadline`, for comet `random`.
        costs: (p, p) cost of bucket [head][tail], say its edge count; None means equal costs.
        io_cost: reading one partition and writing one, in the unit of `costs`; None levels for all rates.
        start: c partitions that are resident already, say the `final` of the last epoch's schedule.
        rounds: how often the order is gone through, each time with other roles for the partitions; buckets
            are assigned over all of it. With c = p there is nothing to repeat.

    Raises:
        ScheduleError: an argument is out of range; names it and what is allowed.

    Example:
        >>> for p, c in (16, 4), (32, 8), (64, 16):
        ...     schedule = build_schedule(p, c, order="auto", seed=0)
        ...     print(p, c, schedule.loads, len(schedule.steps), sum(len(s.buckets) for s in schedule.steps))
        16 4 42 39 256
        32 8 79 72 1024
        64 16 152 137 4096
        >>> following = build_schedule(32, 8, seed=1, start=build_schedule(32, 8, seed=0).final)
        >>> build_schedule(16, 4, rounds=2).swaps == 2 * build_schedule(16, 4).swaps
        True
    """
    p, c = check_sizes(p, c)
    check_choice(order, "order", ORDER_NAMES)
    number = 0 if seed is None else check_seed(seed)
    times = check_rounds(rounds)
    schedule = _construct(order, p, c, number if order in DRAWN else 0)
    if start is not None:
        schedule = relabel(schedule, seed=number, start=check_start(start, p, c))
    elif seed is not None:
        schedule = relabel(schedule, seed=number)
    drawn = generator(number, "rounds")
    for _ in range(times - 1 if c < p else 0):
        further = drawn.getrandbits(32)
        again = _construct(order, p, c, further if order in DRAWN else 0)
        schedule = join(schedule, relabel(again, seed=further, start=schedule.final))
    if policy is None:
        policy = "random" if order == "comet" else "deadline"
    return assign_buckets(schedule, policy, costs=costs, io_cost=io_cost, seed=number)


@lru_cache(maxsize=16)
def _construct(name: str, p: int, c: int, seed: int) -> Schedule:
    """A construction's steps, without buckets; kept, since every epoch relabels the same ones."""
    return to_schedule(ORDERS[name](p, c, generator(seed, name)))
