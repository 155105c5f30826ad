"""Schedules as JSON (floor 0). In: a Schedule. Out: text that anyone can read, and the Schedule again.

    {"format": "marius_py.schedule", "version": 1, "p": 3, "c": 2, "initial": [0, 1],
     "steps": [{"evict": [], "admit": [], "buckets": [[0, 0], …]}, …]}

Resident sets are not stored: they follow from `initial` and the swaps.
"""

from __future__ import annotations

import json
from typing import TypeGuard

from marius_py.errors import FormatError
from marius_py.ordering.arguments import check_schedule
from marius_py.ordering.validation import validate
from marius_py.types import Bucket, Schedule, Step

FORMAT = "marius_py.schedule"
VERSION = 1


def to_json(schedule: Schedule) -> str:
    """The schedule as one line of JSON.

    Example:
        >>> from marius_py.ordering import beta
        >>> from_json(to_json(beta(8, 4))) == beta(8, 4)
        True
    """
    check_schedule(schedule)
    steps = [{"evict": step.evict, "admit": step.admit, "buckets": step.buckets} for step in schedule.steps]
    header = {
        "format": FORMAT,
        "version": VERSION,
        "p": schedule.p,
        "c": schedule.c,
        "initial": schedule.initial,
    }
    return json.dumps({**header, "steps": steps}, separators=(",", ":"))


def from_json(text: str) -> Schedule:
    """The schedule that `to_json` wrote, validated.

    Raises:
        FormatError: not JSON, another format or version, a key that is missing or of the wrong type.
        ScheduleError: well-formed, but not a valid schedule.
    """
    try:
        data = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:  # numbers too long, lists too deep among them
        raise FormatError(f"schedule is not JSON: {error}") from error
    if not _is_stored(data):
        found = (
            {key: data.get(key) for key in ("format", "version")}
            if isinstance(data, dict)
            else type(data).__name__
        )
        raise FormatError(
            f"not a stored schedule: found {found}; allowed: format {FORMAT!r}, version {VERSION}"
        )
    resident = frozenset(initial := _integers(data, "initial"))
    steps: list[Step] = []
    for index, row in enumerate(_list(data, "steps")):
        if not isinstance(row, dict):
            raise FormatError(f"schedule: step {index} is a {type(row).__name__}; allowed: an object")
        evict, admit = _integers(row, "evict"), _integers(row, "admit")
        resident = resident - set(evict) | set(admit)
        buckets = tuple(_bucket(pair, index) for pair in _list(row, "buckets"))
        steps.append(Step(tuple(sorted(resident)), admit, evict, buckets))
    schedule = Schedule(_integer(data.get("p"), "p"), _integer(data.get("c"), "c"), initial, tuple(steps))
    validate(schedule)
    return schedule


def _is_stored(data: object) -> bool:
    """Whether an object says that it is a schedule, of this version."""
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        return False
    version = data.get("version")
    return _is_integer(version) and version == VERSION


def _list(row: dict[str, object], key: str) -> list[object]:
    value = row.get(key)
    if not isinstance(value, list):
        raise FormatError(f"schedule: {key!r} is {value!r}; allowed: a list")
    return value


def _integers(row: dict[str, object], key: str) -> tuple[int, ...]:
    return tuple(_integer(value, key) for value in _list(row, key))


def _is_integer(value: object) -> TypeGuard[int]:
    """Whether a value is an integer in JSON: true and 1.0 are others."""
    return isinstance(value, int) and not isinstance(value, bool)


def _integer(value: object, key: str) -> int:
    if not _is_integer(value):
        raise FormatError(f"schedule: {key!r} holds {value!r}; allowed: integers")
    return value


def _bucket(pair: object, index: int) -> Bucket:
    if not isinstance(pair, list) or len(pair) != 2:
        raise FormatError(f"schedule: step {index} has bucket {pair!r}; allowed: [head, tail]")
    head, tail = _integers({"bucket": pair}, "bucket")
    return Bucket(head, tail)
