"""Cells of objects in memory (floor 4): which are missing, and which are weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marius_py.errors import ConfigError, FormatError
from marius_py.prepare.blocks import WEIGHTS, bad_weight
from marius_py.prepare.records import as_number


def as_weights(values: Sequence[Any], what: str) -> NDArray[np.float64]:
    """Values (E,) as weights; `what` they are begins messages.

    Raises:
        ConfigError: one is no number. FormatError: one is missing, or a number that is no weight.
    """
    try:
        found = np.array([_number(value) for value in values], dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigError(f"{what} is for weights, and holds what is no number: {error}") from error
    check_weights(found, values, what)
    return found


def check_weights(numbers: NDArray[np.float64], values: Sequence[Any] | NDArray[Any], what: str) -> None:
    """Refuse numbers (E,) that are no weights with a FormatError that shows the first one's value."""
    place = bad_weight(numbers)
    if place >= 0:
        raise FormatError(f"{what}, edge {place} (counted from 0): the weight is {values[place]}; {WEIGHTS}")


def _number(value: Any) -> float:
    """A value as a number, a text as files have them; NaN: it is missing."""
    if is_missing(value):
        return math.nan
    if not isinstance(value, str):
        return float(value)
    number = as_number(value)
    if number is None:
        raise ValueError(repr(value))
    return number


def is_missing(value: Any) -> bool:
    """None, an empty text, NaN, and pandas' NA, whose truth is not defined."""
    if isinstance(value, (str, bytes)):
        return not value
    try:
        return value is None or bool(value != value)
    except TypeError:
        return True
    except ValueError:
        return False  # an array of several values
