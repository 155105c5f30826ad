"""Which nodes have embeddings that are not finite (floor 4): such a node has no score and is near nothing."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray

from marius_py.buffer.numbers import NotFinite
from marius_py.evaluation.ranking.candidates import Float32, Ids

if TYPE_CHECKING:
    from marius_py.run_files.reader import RunReader

logger = logging.getLogger(__name__)

_told: WeakKeyDictionary[RunReader, set[str]] = WeakKeyDictionary()
"""Opened runs, and what of theirs was said to be left out."""
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


def only_numbers(
    rows: Float32, seen: NotFinite | None = None, start: int = 0
) -> tuple[Float32, NDArray[np.bool_] | None]:
    """Rows (n, D), those that are not finite NaN throughout, so that none has a score; and which (n,).

    An infinity alone would stand above, or below, all that is a number. None: all rows are finite. They are
    counted in `seen`, by their numbers from `start` on.
    """
    odd = (seen or NotFinite()).see(rows, start)
    if odd is None:
        return rows, None
    return np.where(odd[:, None], np.float32(np.nan), rows), odd


def odd_relations(run: RunReader) -> torch.Tensor:
    """Which relation rows (R,), or (2R,) of a reciprocal run, are not finite: bool, on the CPU."""
    return torch.isfinite(run.model.relations).all(1).logical_not().cpu()


def tell_left_out(run: RunReader, what: str, count: int, total: int, first: str) -> None:
    """Warn, once for an opened run, that nodes or relations are no answers because they have no numbers."""
    told = _told.setdefault(run, set())
    if what not in told:
        told.add(what)
        logger.warning(
            "%d of %d %s have embeddings that are not finite, the first of them %r: they are left out of all "
            "answers",
            count,
            total,
            what,
            first,
        )
