"""Which nodes have embeddings that are not finite (floor 4): such a node has no score and is near nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from marius_py.evaluation.ranking.candidates import Ids

if TYPE_CHECKING:
    from marius_py.run_files.reader import RunReader

_CHECKED_ROWS = 1 << 10
"""Rows that are read at a time to see whether they are finite."""


def not_finite(run: RunReader, nodes: Ids) -> NDArray[np.bool_]:
    """Which nodes (n,) have a row that is not finite, (n,) bool; false for negative ids."""
    odd = np.zeros(nodes.shape, dtype=np.bool_)
    for start in range(0, nodes.size, _CHECKED_ROWS):
        part = nodes[start : start + _CHECKED_ROWS]
        rows = run.embeddings(np.maximum(part, 0))
        odd[start : start + part.size] = (part >= 0) & ~np.isfinite(rows).all(1)
    return odd
