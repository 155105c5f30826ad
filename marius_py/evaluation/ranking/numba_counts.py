"""Scores counted against bounds (floor 4, Numba): one pass over the scores, none of it written.

Importing this module needs Numba; `marius_py.evaluation.ranking.counting` is what imports it, and only then.
"""

from __future__ import annotations

import numpy as np

from marius_py.compiling import kernel

_ZERO, _ONE = np.int32(0), np.int32(1)


@kernel()
def count(
    scores: np.ndarray,
    rows: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    above: np.ndarray,
    within: np.ndarray,
) -> None:
    """Count the scores above `high`, and those of at least `low`, of each answer.

    Args:
        scores: (Q, K) float32.
        rows: (n,) int64 row of each answer's query.
        low, high: (n,) float32.
        above, within: (n,) int64, written.
    """
    for i in range(len(rows)):
        row = rows[i]
        floor, ceiling = low[i], high[i]
        num_above, num_within = _ZERO, _ZERO
        for k in range(scores.shape[1]):
            score = scores[row, k]
            num_above = np.int32(num_above + (_ONE if score > ceiling else _ZERO))
            num_within = np.int32(num_within + (_ONE if score >= floor else _ZERO))
        above[i] = num_above
        within[i] = num_within
