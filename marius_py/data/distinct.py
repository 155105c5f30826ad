"""Distinct values without sorting (floor 2): one scratch array over the buffer's rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from marius_py.nn.kernels.host import compiled_distinct

Ids = NDArray[np.int64]

_WORDS_A_VALUE = 8
"""Words of 64 buffer rows for each value up to which all are looked through; beyond, sorting is quicker."""


class DistinctIndex:
    """Finds the distinct buffer rows of a batch in linear passes.

    Equivalent to `np.unique(values, return_inverse=True)`, unless not `ascending` up to the order of the
    distinct values, which then is that of their last occurrence. One thread; the scratch array is reused.

    Args:
        num_values: values lie in [0, num_values).
        ascending: sort the distinct values. Rows are gathered and scattered 1.3 to 2 times as fast in the
            order in which they lie in memory.
        compiled: find them with loops compiled with Numba, if `ascending`.
    """

    def __init__(self, num_values: int, *, ascending: bool = False, compiled: bool = False) -> None:
        self._last = np.empty(num_values, dtype=np.int32)
        self._ascending = ascending
        self._kernels = compiled_distinct() if compiled and ascending else None
        self._bits = np.zeros(-(-num_values // 64) if self._kernels else 0, dtype=np.uint64)

    def __call__(self, values: Ids) -> tuple[Ids, Ids]:
        """Return the distinct values (U,) and, for every value, its index among them (n,)."""
        if self._kernels is not None and len(self._bits) <= _WORDS_A_VALUE * len(values):
            found, local = np.empty_like(values), np.empty_like(values)
            count = self._kernels.distinct(values, self._bits, self._last, found, local)
            return found[:count], local
        place = np.arange(len(values), dtype=np.int32)
        self._last[values] = place
        last = self._last[values]
        is_last = last == place
        if self._ascending:
            distinct = np.sort(values[is_last])
            self._last[distinct] = place[: len(distinct)]
            return distinct, self._last[values].astype(np.int64)
        order = np.cumsum(is_last, dtype=np.int64)
        order -= 1
        return values[is_last], order[last]
