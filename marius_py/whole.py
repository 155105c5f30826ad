"""Whole numbers (floor 0): whether an argument is one, of Python's or NumPy's types."""

from __future__ import annotations

from numbers import Integral
from typing import TypeGuard

MAX_INT64 = 2**63 - 1
"""Largest integer that arrays of ids, counts and bytes hold."""


def is_whole(value: object, low: int, high: int | None = None) -> TypeGuard[int]:
    """Whether a value is an integer, of Python or NumPy, from `low` to `high`; True and False are none.

    >>> [is_whole(value, 1, 9) for value in (1, 9, 0, 10, True, 1.0, "1", None)]
    [True, True, False, False, False, False, False, False]
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        return False
    return bool(low <= int(value) and (high is None or int(value) <= high))
