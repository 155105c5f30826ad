"""Many rows of a table in RAM, read and changed by several threads (floor 2): memory feeds more than one.

In: rows and what is to be done with each. A device computes batches faster than one thread can gather their
rows and take the optimizer's step with what comes back.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor

from marius_py.nn.kernels.host import take_rows
from marius_py.workers import Workers

MOST_THREADS = 8
"""More gain nothing: a few threads keep the memory of a machine busy."""
_LEAST_ROWS = 2048
"""Rows from which a thread of their own pays."""


class RowThreads:
    """Does something with many rows by as many threads as torch has, at most `MOST_THREADS`.

    Torch's own threads would do, but they wait for work by spinning, and hold up the pipeline's others.
    """

    def __init__(self) -> None:
        # Threads start when they are first needed: for one that gathers and one that steps at the same time.
        self._pool = Workers(2 * MOST_THREADS, "marius-rows")

    def take(self, table: Tensor, index: Tensor, out: Tensor) -> Tensor:
        """Copy the rows of a table (N, D) at places (U,) int64 to `out` (U, D), which is returned."""
        self.share(len(index), lambda part: take_rows(table, index[part], out[part]))
        return out

    def close(self) -> None:
        """End the threads. May be called twice."""
        self._pool.shutdown()

    def share(self, count: int, work: Callable[[slice], None]) -> None:
        """Have `work` do all of `count` rows, which it must allow to be done side by side."""
        shares = min(torch.get_num_threads(), MOST_THREADS, count // _LEAST_ROWS)
        if shares <= 1:
            work(slice(0, count))
            return
        bounds = [count * share // shares for share in range(shares + 1)]
        parts = [slice(begin, end) for begin, end in pairwise(bounds)]
        for done in [self._pool.submit(work, part) for part in parts]:
            done.result()
