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

    Equivalent to `np.unique(values, return_inverse=True)`: rows are gathered and scattered 1.3 to 2 times as
    fast in the order in which they lie in memory. One thread; the scratch array is reused.

    Args:
        num_values: values lie in [0, num_values).
        compiled: find them with loops compiled with Numba.
    """

    def __init__(self, num_values: int, *, compiled: bool = False) -> None:
        self._last = np.empty(num_values, dtype=np.int32)
        self._kernels = compiled_distinct() if compiled else None
        self._bits = np.zeros(-(-num_values // 64) if self._kernels else 0, dtype=np.uint64)

    def __call__(self, values: Ids) -> tuple[Ids, Ids]:
        """Return the distinct values (U,), ascending, and, for every value, its index among them (n,)."""
        if self._kernels is not None and len(self._bits) <= _WORDS_A_VALUE * len(values):
            found, local = np.empty_like(values), np.empty_like(values)
            count = self._kernels.distinct(values, self._bits, self._last, found, local)
            return found[:count], local
        place = np.arange(len(values), dtype=np.int32)
        self._last[values] = place
        distinct = np.sort(values[self._last[values] == place])
        self._last[distinct] = place[: len(distinct)]
        return distinct, self._last[values].astype(np.int64)
