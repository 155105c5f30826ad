"""Edges with weights as rows of integers (floor 1): they are read, sorted and shuffled as one.

In: (E, 3) edges and (E,) float32 weights. Out: (E, 4) rows whose fourth number is made of the weight's 32
bits. A weight is finite and not negative, so that the number is not negative either, and in the order of
weights.
"""

from __future__ import annotations

from typing import cast

import numpy as np
from numpy.typing import NDArray

from marius_py.storage.protocols import Edges, Float32

WEIGHT = 3
"""The column of the weight."""


def weighted_rows(edges: Edges, weights: Float32) -> Edges:
    """Edges (E, 3) and their weights (E,) as (E, 4) rows of the edges' type.

    >>> rows = weighted_rows(np.array([[7, 0, 9]], np.int32), np.array([0.5], np.float32))
    >>> rows.tolist(), weights_of(rows).tolist()
    ([[7, 0, 9, 1056964608]], [0.5])
    """
    rows = np.empty((len(edges), WEIGHT + 1), dtype=edges.dtype)
    rows[:, :WEIGHT] = edges
    rows[:, WEIGHT] = np.abs(weights, dtype=np.float32).view(np.int32)  # -0.0 has a sign
    return rows


def shares_of(rows: Edges, mean: float) -> Float32:
    """Weights (E,) of (E, 4) rows by their mean over a graph, whatever its size."""
    return (weights_of(rows).astype(np.float64) / mean).astype(np.float32)


def weights_of(rows: Edges) -> Float32:
    """Weights (E,) of (E, 4) rows."""
    bits: NDArray[np.int32] = rows[:, WEIGHT].astype(np.int32)
    return bits.view(np.float32)


def without_weights(rows: Edges) -> Edges:
    """The (E, 3) edges of (E, 4) rows, in memory of their own; rows of three as they are."""
    if rows.shape[1] == WEIGHT:
        return rows
    return cast(Edges, np.ascontiguousarray(rows[:, :WEIGHT]))
