"""Work of an epoch's steps (floor 1, Numba): weights of steps in, sums by bucket and by step out.

Sums are taken in the order written, that of the NumPy code beside their caller, so results are the same bits.
Importing this module needs Numba.
"""

from __future__ import annotations

import numpy as np

from marius_py.compiling import kernel


@kernel()
def add_weights(resident: np.ndarray, weight: np.ndarray, total: np.ndarray) -> None:
    """Add each step's weight to the buckets that it holds, step after step.

    Args:
        resident: (S, c) int64 partitions of each step.
        weight: (S,) float64.
        total: (p, p) float64, changed.
    """
    steps, c = resident.shape
    for step in range(steps):
        mine = weight[step]
        for a in range(c):
            row = total[resident[step, a]]
            for b in range(c):
                row[resident[step, b]] += mine


@kernel()
def add_work(
    resident: np.ndarray, weight: np.ndarray, total: np.ndarray, edges: np.ndarray, work: np.ndarray
) -> None:
    """Add up what each step gets of its buckets' edges, bucket after bucket.

    Args:
        resident: (S, c) int64 partitions of each step, ascending.
        weight: (S,) float64, of which a step's part of its share of a bucket's `total` is made.
        total, edges: (p, p) float64.
        work: (S,) float64, filled.
    """
    steps, c = resident.shape
    for step in range(steps):
        mine, done = weight[step], 0.0
        for a in range(c):
            row, here = total[resident[step, a]], edges[resident[step, a]]
            for b in range(c):
                part = resident[step, b]
                done += mine / row[part] * here[part]
        work[step] = done
