"""Scores counted against bounds (floor 4, Numba): one pass over the scores, none of it written.

Importing this module needs Numba; `marius_py.evaluation.ranking.counting` is what imports it, and only then.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from marius_py.compiling import kernel

_ZERO, _ONE = np.int32(0), np.int32(1)


class Answers(NamedTuple):
    """Answers that are compared together.

    Attributes:
        rows: (n,) int64 row of each answer's query.
        places: (n,) int64, where its counts are; distinct.
        low, high: (n,) float32, bounds of scores that may be equal to its own.
        certain: (n,) bool, whether scores inside them are.
    """

    rows: np.ndarray
    places: np.ndarray
    low: np.ndarray
    high: np.ndarray
    certain: np.ndarray


@kernel()
def count(
    scores: np.ndarray, answers: Answers, inside: np.ndarray, better: np.ndarray, equal: np.ndarray
) -> int:
    """Count the scores above the bounds of each answer, and those inside.

    Args:
        scores: (Q, K) float32.
        answers: n of them.
        inside: (n,) int64, written: scores inside the bounds that may be equal or not.
        better, equal: (t,) int64, added to.

    Returns:
        The sum of `inside`.
    """
    total = 0
    for i in range(len(answers.rows)):
        row = answers.rows[i]
        floor, ceiling = answers.low[i], answers.high[i]
        num_above, num_within = _ZERO, _ZERO
        for k in range(scores.shape[1]):
            score = scores[row, k]
            num_above = np.int32(num_above + (_ONE if score > ceiling else _ZERO))
            num_within = np.int32(num_within + (_ONE if score >= floor else _ZERO))
        better[answers.places[i]] += num_above
        inside[i] = num_within - num_above
        if answers.certain[i]:
            equal[answers.places[i]] += inside[i]
            inside[i] = 0
        total += inside[i]
    return total


@kernel()
def collect(
    scores: np.ndarray, answers: Answers, inside: np.ndarray, place: np.ndarray, column: np.ndarray
) -> None:
    """Find the scores that `count` noted to be inside the bounds.

    Args:
        scores, answers, inside: as there.
        place, column: (m,) int64, written for each of them, m = the sum of `inside`: place of the answer's
            counts, and of the score in its row.
    """
    found = 0
    for i in range(len(answers.rows)):
        row, left = answers.rows[i], inside[i]
        floor, ceiling = answers.low[i], answers.high[i]
        k = 0
        while left:
            if floor <= scores[row, k] <= ceiling:
                place[found], column[found] = answers.places[i], k
                found, left = found + 1, left - 1
            k += 1
