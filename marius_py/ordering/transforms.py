"""One schedule from another (floor 0): reversed in time, with other names for the partitions, or two as one.

The first two keep the number of loads and the coverage, and both let an epoch start from what the last one
left resident, so that it costs S loads and not c + S: `reverse` starts where the schedule ended, and
`relabel` with `start=schedule.final` does so while all other partitions change places at random.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import SupportsIndex

from marius_py.errors import ScheduleError
from marius_py.ordering.arguments import (
    as_integers,
    check_schedule,
    check_seed,
    check_sizes,
    check_start,
    generator,
)
from marius_py.types import Bucket, Schedule, Step


def reverse(schedule: Schedule) -> Schedule:
    """The schedule run backwards: it starts with `schedule.final`, each bucket runs in the same state.

    Raises:
        ScheduleError: no steps.

    Example:
        >>> from marius_py.ordering import beta
        >>> reverse(beta(6, 3)).initial == beta(6, 3).final
        True
    """
    check_schedule(schedule)
    swapped = [((), ()), *((step.admit, step.evict) for step in reversed(schedule.steps[1:]))]
    steps = tuple(
        Step(step.resident, admit, evict, step.buckets)
        for step, (evict, admit) in zip(reversed(schedule.steps), swapped, strict=True)
    )
    return replace(schedule, initial=schedule.final, steps=steps)


def join(schedule: Schedule, following: Schedule) -> Schedule:
    """One schedule after another, as one; `following` starts with what `schedule` leaves resident.

    Buckets run where `schedule` runs them; assign them anew to use the steps of both.

    Raises:
        ScheduleError: other sizes, or `following.initial` is not `schedule.final`.

    Example:
        >>> from marius_py.ordering import beta
        >>> first = beta(8, 4)
        >>> join(first, relabel(first, seed=1, start=first.final)).swaps == 2 * first.swaps
        True
    """
    check_schedule(schedule)
    check_schedule(following, "following")
    if (schedule.p, schedule.c) != (following.p, following.c) or schedule.final != following.initial:
        raise ScheduleError(
            f"a schedule of ({following.p}, {following.c}) that starts with {following.initial} cannot "
            f"follow one of ({schedule.p}, {schedule.c}) that ends with {schedule.final}"
        )
    return replace(
        schedule, steps=schedule.steps + tuple(replace(step, buckets=()) for step in following.steps[1:])
    )


def relabel(
    schedule: Schedule,
    permutation: Sequence[SupportsIndex] | None = None,
    *,
    seed: SupportsIndex = 0,
    start: Sequence[SupportsIndex] | None = None,
) -> Schedule:
    """The same schedule with other partitions in each role.

    Args:
        schedule: any valid schedule.
        permutation: (p,) new number of each partition; None draws one from `seed`.
        seed: of the draw; unused with a permutation.
        start: c partitions that the drawn permutation makes the initial set, say the last epoch's `final`;
            None leaves it to chance.

    Returns:
        A schedule whose buckets moved with their partitions; assign them anew if costs differ.

    Raises:
        ScheduleError: not a permutation, or a start set of the wrong size, or both were given.

    Example:
        >>> from marius_py.ordering import beta
        >>> first = beta(8, 4)
        >>> following = relabel(first, seed=1, start=first.final)
        >>> following.initial == first.final, following.swaps == first.swaps
        (True, True)
    """
    check_schedule(schedule)
    p, c = check_sizes(schedule.p, schedule.c)
    if permutation is None:
        names = _draw(schedule, check_seed(seed), None if start is None else check_start(start, p, c))
    elif start is not None:
        raise ScheduleError("permutation and start are both given; allowed: one of them")
    else:
        allowed = f"each of 0 to {p - 1} once"
        names = as_integers(permutation, "permutation", allowed)
        if sorted(names) != list(range(p)):
            raise ScheduleError(f"permutation is {names}; allowed: {allowed}")
    return _rename(schedule, names)


def _draw(schedule: Schedule, seed: int, start: tuple[int, ...] | None) -> list[int]:
    """A random permutation, which maps the initial set onto `start` where that is given."""
    rng = generator(seed, "relabel")
    names = list(range(schedule.p))
    if start is None:
        rng.shuffle(names)
        return names
    inside, outside = list(start), [part for part in range(schedule.p) if part not in set(start)]
    rng.shuffle(inside)
    rng.shuffle(outside)
    first = set(schedule.initial)
    for part in range(schedule.p):
        names[part] = inside.pop() if part in first else outside.pop()
    return names


def _rename(schedule: Schedule, names: list[int]) -> Schedule:
    """Applies new names; resident sets stay ascending."""

    def rename(parts: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(sorted(names[part] for part in parts))

    steps = tuple(
        Step(
            rename(step.resident),
            rename(step.admit),
            rename(step.evict),
            tuple(Bucket(names[head], names[tail]) for head, tail in step.buckets),
        )
        for step in schedule.steps
    )
    return replace(schedule, initial=rename(schedule.initial), steps=steps)
