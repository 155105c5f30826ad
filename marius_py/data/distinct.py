"""Distinct values without sorting (floor 2): one scratch array over the buffer's rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]


class DistinctIndex:
    """Finds the distinct buffer rows of a batch in three linear passes.

    Equivalent to `np.unique(values, return_inverse=True)` up to the order of the distinct values, which is
    that of their last occurrence. One thread; the scratch array is reused.

    Args:
        num_values: values lie in [0, num_values).
    """

    def __init__(self, num_values: int) -> None:
        self._last = np.empty(num_values, dtype=np.int32)

    def __call__(self, values: Ids) -> tuple[Ids, Ids]:
        """Return the distinct values (U,) and, for every value, its index among them (n,)."""
        place = np.arange(len(values), dtype=np.int32)
        self._last[values] = place
        last = self._last[values]
        is_last = last == place
        local = np.cumsum(is_last, dtype=np.int64)
        local -= 1
        return values[is_last], local[last]
