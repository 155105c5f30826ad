"""Rows that training has spoilt (floor 2): arrays in, nothing or an error out."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from marius_py.errors import DivergedError
from marius_py.storage.protocols import Float32


def check_numbers(rows: Float32, what: str, before: Callable[[], Float32 | None]) -> None:
    """Refuse rows for a commit that hold infinite numbers or NaN, or such as float32 cannot add up.

    Args:
        rows: as they are to be committed.
        what: of what they are, for the error.
        before: makes the rows of the last commit; what was so then, an imported model's perhaps, stays so.

    Raises:
        DivergedError: says that it is `what` and which settings to look at.
    """
    if _are_numbers(rows):
        return
    committed = before()
    if committed is not None and not _are_numbers(committed):
        return
    raise DivergedError(
        f"{what} became infinite or NaN, though losses and gradients were finite; the last commit is intact. "
        "Lower optimizer.lr; if the optimizer is a class of your own, look at its delta",
        stage="write",
    )


class NotFinite:
    """Counts the rows that hold a NaN or an infinity while blocks of them pass by.

    Attributes:
        count: of such rows so far. first: number of the first of them; -1: there is none.
    """

    count, first = 0, -1

    def see(self, rows: Float32, start: int) -> NDArray[np.bool_] | None:
        """Which of rows (n, D), numbered from `start`, are such (n,); None: none is."""
        if _are_numbers(rows):
            return None
        odd: NDArray[np.bool_] = np.logical_not(np.isfinite(rows).all(axis=1))
        found = int(odd.sum())
        if not found:
            return None
        self.count += found
        self.first = start + int(odd.argmax()) if self.first < 0 else self.first
        return odd


def _are_numbers(rows: Float32) -> bool:
    """Whether rows (n, D) hold no NaN and no infinity; false, too, of some whose sum leaves float32."""
    with np.errstate(all="ignore"):  # one pass at the speed of memory, where looking at each makes an array
        return bool(np.isfinite(np.add.reduce(rows, axis=None)))
