"""Checks of what callers pass (floor 0). In: raw arguments. Out: plain Python values, or a ScheduleError."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from random import Random
from typing import Protocol, SupportsFloat, SupportsIndex, runtime_checkable

from marius_py.errors import ScheduleError

MAX_PARTITIONS = 4096
MAX_ROUNDS = 64


@runtime_checkable
class _ListLike(Protocol):
    """NumPy and torch arrays, without importing either."""

    def tolist(self) -> object: ...


Costs = Sequence[Sequence[float]] | _ListLike
"""(p, p) cost of each bucket, in any one unit (edge counts as a rule): sequences, NumPy or torch array."""


def as_integer(value: SupportsIndex, name: str, allowed: str) -> int:
    """The argument `name` as int; booleans, floats and strings are refused."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise ScheduleError(f"{name} is {value!r}, a {type(value).__name__}; allowed: {allowed}")
    return operator.index(value)


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


def check_start(start: Iterable[SupportsIndex], p: int, c: int) -> tuple[int, ...]:
    """The resident set at the start, ascending: c distinct partitions out of 0 … p − 1."""
    allowed = f"{c} (= c) distinct partitions from 0 to {p - 1}"
    members = [as_integer(part, "a member of start", allowed) for part in start]
    if len(members) != c or len(set(members)) != c or not all(0 <= part < p for part in members):
        raise ScheduleError(f"start is {members}, {len(members)} members; allowed: {allowed}")
    return tuple(sorted(members))


def check_seed(seed: SupportsIndex) -> int:
    """A seed as int, 0 or more."""
    value = as_integer(seed, "seed", "an integer of 0 or more")
    if value < 0:
        raise ScheduleError(f"seed is {value}; allowed: an integer of 0 or more")
    return value


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
    if isinstance(value, (bool, str)) or not hasattr(value, "__float__"):
        raise ScheduleError(f"{name} is {value!r}; allowed: {allowed}")
    number = float(value)
    if not math.isfinite(number) or number < 0 or (number == 0 and not zero):
        raise ScheduleError(f"{name} is {number}; allowed: {allowed}")
    return number


def check_costs(costs: Costs | None, p: int) -> list[list[float]]:
    """Bucket costs as p lists of p floats; None means 1 each.

    Raises:
        ScheduleError: not p × p, or a cost that is negative or not finite.
    """
    if costs is None:
        return [[1.0] * p for _ in range(p)]
    rows = costs.tolist() if isinstance(costs, _ListLike) else costs
    if not isinstance(rows, Sequence) or len(rows) != p:
        size = len(rows) if isinstance(rows, Sequence) else type(rows).__name__
        raise ScheduleError(f"costs has {size} rows; allowed: shape (p, p) = ({p}, {p})")
    checked: list[list[float]] = []
    for head, row in enumerate(rows):
        if isinstance(row, _ListLike):
            row = row.tolist()
        if not isinstance(row, Sequence) or len(row) != p:
            raise ScheduleError(
                f"costs[{head}] does not have {p} entries; allowed: shape (p, p) = ({p}, {p})"
            )
        checked.append(
            [check_number(cost, f"costs[{head}][{tail}]", zero=True) for tail, cost in enumerate(row)]
        )
    return checked


def generator(seed: int, purpose: str) -> Random:
    """Random numbers of one purpose; the standard library's, so that no array package is imported.

    A string seed is hashed with SHA-512; `shuffle`, `sample`, `randrange` draw the same on every platform.
    """
    return Random(f"marius_py.ordering/{purpose}/{seed}")
