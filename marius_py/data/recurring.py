"""Sizes that recur (floor 2): what a device does with tensors of the same shapes again can be recorded.

Rows and known edges of a batch are as many as they happen to be. A few more, which change nothing, make most
batches alike.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

LEAST_POSITIONS = 256
"""Positions that a list of any is padded to, at least."""


def padded_rows(number: int) -> int:
    """Rows that a batch of so many is padded to, 1/16 more at most.

    >>> padded_rows(100), padded_rows(113_000), padded_rows(113_900)
    (104, 114688, 114688)
    """
    grain = max(8, 1 << max(0, number.bit_length() - 5))
    return -(-number // grain) * grain


def padded_positions(positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """Positions (M,) to be marked, the last one repeated until they are a power of 2; none stay none.

    >>> len(padded_positions(np.arange(300))), len(padded_positions(np.arange(0)))
    (512, 0)
    """
    number = len(positions)
    if not number:
        return positions
    return np.pad(positions, (0, max(LEAST_POSITIONS, 1 << (number - 1).bit_length()) - number), "edge")
