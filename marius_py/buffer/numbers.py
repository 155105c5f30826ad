"""Rows that training has spoilt (floor 2): arrays in, nothing or an error out."""

from __future__ import annotations

import numpy as np

from marius_py.errors import DivergedError
from marius_py.storage.protocols import Float32


def check_numbers(rows: Float32, what: str) -> None:
    """Refuse rows for a commit that hold infinite numbers or NaN, or such as float32 cannot add up.

    Raises:
        DivergedError: says that it is `what` and which settings to look at.
    """
    with np.errstate(all="ignore"):  # one pass at the speed of memory, where looking at each makes an array
        total = np.add.reduce(rows, axis=None)
    if not np.isfinite(total):
        raise DivergedError(
            f"{what} became infinite or NaN, though losses and gradients were finite; the last commit is "
            "intact. Lower optimizer.lr; if the optimizer is a class of your own, look at its delta",
            stage="write",
        )
