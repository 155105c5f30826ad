"""Checks of what callers pass (floor 0). In: raw arguments. Out: plain Python values, or a ScheduleError."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from random import Random
from typing import Any, Protocol, SupportsFloat, SupportsIndex, runtime_checkable

from marius_py.errors import ScheduleError
from marius_py.types import MAX_PARTITIONS, Schedule

MAX_ROUNDS = 64


@runtime_checkable
class ListLike(Protocol):
    """NumPy and torch arrays, without importing either."""

    def tolist(self) -> object:
        """The entries as nested lists of plain numbers."""


Costs = Sequence[Sequence[float]] | ListLike
"""(p, p) cost of each bucket, in any one unit (edge counts as a rule): sequences, NumPy or torch array."""


def as_integer(value: SupportsIndex, name: str, allowed: str) -> int:
    """The argument `name` as int; booleans, floats, strings and arrays are refused."""
    try:
        if not isinstance(value, bool):
            return operator.index(value)
    except TypeError:  # also of an array, which has __index__ whether or not it is one integer
        pass
    raise wrong_type(value, name, allowed)


def as_integers(values: Iterable[SupportsIndex], name: str, allowed: str) -> list[int]:
    """The argument `name` as a list of ints."""
    try:
        members = list(values)
    except TypeError:
        raise wrong_type(values, name, allowed) from None
    return [as_integer(member, f"a member of {name}", allowed) for member in members]


def wrong_type(value: object, name: str, allowed: str) -> ScheduleError:
    """The error for an argument `name` of another type than it takes."""
    return ScheduleError(f"{name} is {value!r}, a {type(value).__name__}; allowed: {allowed}")


def check_choice(value: str, name: str, choices: Sequence[str]) -> None:
    """Refuses what is none of `choices`."""
    if not isinstance(value, str) or value not in choices:
        raise ScheduleError(f"{name} is {value!r}; allowed: {', '.join(choices)}")


def check_sizes(p: SupportsIndex, c: SupportsIndex) -> tuple[int, int]:
    """Number of partitions and capacity as ints, 2 ≤ c ≤ p, or p = c = 1.

    Raises:
        ScheduleError: not integers, or out of range; names the argument and the range.
    """
    partitions = as_integer(p, "p (number of partitions)", f"an integer from 1 to {MAX_PARTITIONS}")
    if not 1 <= partitions <= MAX_PARTITIONS:
        raise ScheduleError(f"p (number of partitions) is {partitions}; allowed: 1 to {MAX_PARTITIONS}")
    allowed = "1, as p is 1" if partitions == 1 else f"2 to p = {partitions}"
    capacity = as_integer(c, "c (buffer capacity in partitions)", f"an integer, {allowed}")
    if not min(2, partitions) <= capacity <= partitions:
        raise ScheduleError(f"c (buffer capacity in partitions) is {capacity}; allowed: {allowed}")
    return partitions, capacity


def check_start(start: Iterable[SupportsIndex], p: int, c: int, name: str = "start") -> tuple[int, ...]:
    """The resident set at the start, ascending: c distinct partitions out of 0 … p − 1."""
    allowed = f"{c} (= c) distinct partitions from 0 to {p - 1}"
    members = as_integers(start, name, allowed)
    if len(members) != c or len(set(members)) != c or not all(0 <= part < p for part in members):
        raise ScheduleError(f"{name} is {members}, {len(members)} members; allowed: {allowed}")
    return tuple(sorted(members))


def check_seed(seed: SupportsIndex) -> int:
    """A seed as int, 0 or more."""
    value = as_integer(seed, "seed", "an integer of 0 or more")
    if value < 0:
        raise ScheduleError(f"seed is {value}; allowed: an integer of 0 or more")
    return value


def check_schedule(schedule: Schedule, name: str = "schedule") -> None:
    """Refuses what is no schedule, and one without steps."""
    if not isinstance(schedule, Schedule):
        raise wrong_type(schedule, name, "a Schedule, as build_schedule and from_json return it")
    if not schedule.steps:
        raise ScheduleError(f"{name} has no step; allowed: at least the initial state")


def check_rounds(rounds: SupportsIndex) -> int:
    """Number of rounds as int."""
    allowed = f"an integer from 1 to {MAX_ROUNDS}"
    value = as_integer(rounds, "rounds", allowed)
    if not 1 <= value <= MAX_ROUNDS:
        raise ScheduleError(f"rounds is {value}; allowed: {allowed}")
    return value


def check_number(value: SupportsFloat, name: str, *, zero: bool) -> float:
    """A finite float above 0, or from 0 where `zero`."""
    allowed = f"a finite number {'of 0 or more' if zero else 'above 0'}"
    # NumPy turns an array of one entry into a float, with a warning; an array is no number here.
    if isinstance(value, (bool, str)) or not hasattr(value, "__float__") or getattr(value, "ndim", 0) > 0:
        raise ScheduleError(f"{name} is {value!r}; allowed: {allowed}")
    try:
        number = float(value)
    except OverflowError:
        raise ScheduleError(f"{name} is too large for a float; allowed: {allowed}") from None
    if not math.isfinite(number) or number < 0 or (number == 0 and not zero):
        raise ScheduleError(f"{name} is {number}; allowed: {allowed}")
    return number


def check_numbers(values: object, name: str, count: int, allowed: str) -> list[float]:
    """`count` finite floats of 0 or more, out of a sequence, a NumPy or a torch array.

    Raises:
        ScheduleError: none of these, another number of entries, or an entry that is negative or not finite.
    """
    entries = _entries(values, name, count, allowed)
    return [check_number(entry, f"{name}[{index}]", zero=True) for index, entry in enumerate(entries)]


def check_costs(costs: Costs | None, p: int) -> list[list[float]]:
    """Bucket costs as p lists of p floats; None means 1 each.

    Raises:
        ScheduleError: not p × p, or a cost that is negative or not finite.
    """
    if costs is None:
        return [[1.0] * p for _ in range(p)]
    allowed = f"shape (p, p) = ({p}, {p})"
    rows = _entries(costs, "costs", p, allowed)
    return [check_numbers(row, f"costs[{head}]", p, allowed) for head, row in enumerate(rows)]


def _entries(values: object, name: str, count: int, allowed: str) -> Sequence[Any]:
    plain = as_plain(values)
    if isinstance(plain, Sequence) and len(plain) == count:
        return plain
    found = f"has {len(plain)} entries" if isinstance(plain, Sequence) else f"is a {type(values).__name__}"
    raise ScheduleError(f"{name} {found}; allowed: {allowed}")


def as_plain(values: object) -> Any:
    """A NumPy or torch array as nested lists, anything else as it is."""
    return values.tolist() if isinstance(values, ListLike) else values


def generator(seed: int, purpose: str) -> Random:
    """Random numbers of one purpose; the standard library's, so that no array package is imported.

    A string seed is hashed with SHA-512; `shuffle`, `sample`, `randrange` draw the same on every platform.
    """
    return Random(f"marius_py.ordering/{purpose}/{seed}")
