"""Operations on arrays that NumPy lacks or does slowly (floor 0): arrays in, arrays out."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

_LARGEST = float(np.finfo(np.float32).max)
_SMALLEST = float(np.finfo(np.float32).smallest_subnormal)

Number = TypeVar("Number", bound=np.integer)


def distinct(values: NDArray[Number]) -> NDArray[Number]:
    """The distinct values (U,) of integers (n,), ascending.

    As `np.unique`, which since NumPy 2.3 hashes plain integers and takes up to twenty times as long.

    >>> distinct(np.array([3, 1, 3, 2])).tolist(), distinct(np.array([], dtype=np.int64)).tolist()
    ([1, 2, 3], [])
    """
    ordered = np.sort(values)
    keep = np.ones(len(ordered), dtype=np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=keep[1:])
    return ordered[keep]


def is_float32(value: float) -> bool:
    """Whether float32 holds a number, though perhaps rounded: it is finite there, and 0 only if it is 0.

    >>> [is_float32(value) for value in (0, -1.5, 1e38, 1e39, 1e-46, float("nan"))]
    [True, True, True, False, False, False]
    """
    return -_LARGEST <= value <= _LARGEST and (value == 0 or abs(value) >= _SMALLEST)
