"""Tiles of scores on all cores (floor 4): workers that take one each, comparisons, and where they hold."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch
from torch import Tensor

from marius_py.machine import available_cores
from marius_py.pipeline.execution import torch_threads
from marius_py.workers import Workers

LANE_BYTES = 8
"""Flags that are looked at together."""

ENOUGH = 4
"""Tiles of queries for each worker of which one more or less does not matter."""
EVEN = 16
"""Queries of which a multiple is multiplied faster."""


@contextmanager
def tile_workers(device: torch.device) -> Iterator[Workers]:
    """As many threads as torch has, one torch thread each; the caller reads the next block meanwhile.

    No more of either than the cores that this process may use: torch does not know of the quota of a
    container. Whole tiles in parallel need no barrier after each operation, which on a busy machine costs
    more than the operation. On an accelerator there is one, to queue its kernels.
    """
    threads = min(torch.get_num_threads(), available_cores())
    alone = partial(torch.set_num_threads, 1)
    pool = Workers(1 if device.type == "cuda" else threads, "tile", begin=alone)
    with torch_threads(threads):
        try:
            yield pool
        finally:
            pool.shutdown(drop=True)


def finish(running: list[Future[None]]) -> None:
    """Wait for all; raise the first error."""
    for future in running:
        future.result()


def greater(scores: Tensor, bound: Tensor) -> Tensor:
    """scores (T, K) > bound (T,), bool; numpy's comparison is several times faster than torch's on a CPU."""
    if scores.device.type != "cpu":
        return scores > bound.unsqueeze(1)
    with np.errstate(invalid="ignore"):
        return torch.from_numpy(np.greater(scores.numpy(), bound.numpy()[:, None]))


def not_less(scores: Tensor, bound: Tensor) -> Tensor:
    """Not scores (T, K) < bound (T,), bool, so true of NaN; as `greater`."""
    if scores.device.type != "cpu":
        return (scores < bound.unsqueeze(1)).logical_not_()
    with np.errstate(invalid="ignore"):
        less = np.less(scores.numpy(), bound.numpy()[:, None])
        return torch.from_numpy(np.logical_not(less, out=less))


def greater_equal(scores: Tensor, bound: Tensor) -> Tensor:
    """scores (T, K) ≥ bound (T,), bool; as `greater`."""
    if scores.device.type != "cpu":
        return scores >= bound.unsqueeze(1)
    with np.errstate(invalid="ignore"):
        return torch.from_numpy(np.greater_equal(scores.numpy(), bound.numpy()[:, None]))


def where(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Row and column (n,), (n,) of each True in (T, K), row by row; quick where few are."""
    if mask.device.type != "cpu" or mask.shape[1] % LANE_BYTES or not mask.is_contiguous():
        row, column = torch.nonzero(mask, as_tuple=True)
        return row, column
    # Few are True: words of eight flags are searched first.
    flags = mask.numpy()
    words = np.flatnonzero(flags.reshape(-1).view(np.int64))
    word, byte = np.nonzero(flags.reshape(-1, LANE_BYTES)[words])
    row_of, column_of = np.divmod(words[word] * LANE_BYTES + byte, mask.shape[1])
    return torch.from_numpy(row_of), torch.from_numpy(column_of)
