"""Weights of scores in the softmax loss (floor 1, Numba): powers of 2, groups, and scores that weigh nothing.

Importing this module needs Numba.
"""

from __future__ import annotations

import numpy as np

from marius_py.nn.kernels.compiling import elementwise, helper

_ONE = np.float32(1)
LOG2_E = np.float32(1.4426950408889634)
_ROUND = np.float32(3 << 22)
"""Added to a smaller number, it leaves the nearest whole one, in the lowest bits."""
_BIAS, _MANTISSA = np.int32(127), np.int32(23)
_POLYNOMIAL = tuple(
    np.float32(one)
    for one in (1.3264727214e-3, 9.6715128e-3, 5.5507337448e-2, 2.4022242083e-1, 6.931469776e-1)
)
"""Of 2^x - 1 for x from -1/2 to 1/2, divided by x: at most 1e-7 of 2^x away from it."""


@elementwise
def power_of_2(x):
    """2^x to 2e-7 of it: infinite above 127.5, zero below -126.5.

    A loop over it becomes vector instructions, which one over the library's function does not.
    """
    x = np.float32(128) if x > np.float32(128) else x  # NaN stays
    x = np.float32(-127) if x < np.float32(-127) else x
    shifted = np.float32(x + _ROUND)
    rest = x - (shifted - _ROUND)
    of5, of4, of3, of2, of1 = _POLYNOMIAL
    result = _ONE + rest * (of1 + rest * (of2 + rest * (of3 + rest * (of4 + rest * of5))))
    # The bits of a whole power of 2 are its exponent, biased: 0 is those of -127, 255 those of 128, infinity.
    whole = np.int32((shifted.view(np.int32) << _MANTISSA) + (_BIAS << _MANTISSA))
    return result * whole.view(np.float32)


@helper
def leave_out(dropped, place, first, count, width, score, scores):
    """Set the scores, `width` an edge, that must not count to `score`, which weighs nothing.

    Returns the place in `dropped` after them.
    """
    for e in range(count):
        begin = (first + e) * width
        while place < len(dropped) and dropped[place] < begin + width:
            scores[e, np.uint64(dropped[place] - begin)] = score
            place += 1
    return place


@helper
def find_runs(group, count, runs):
    """Write where each run of candidates of one group begins, and `count`; returns how many there are.

    Negatives in the order of ids come in as many runs as there are groups.
    """
    runs[0], number = 0, 0
    for k in range(1, count if len(group) else 0):
        if group[k] != group[k - 1]:
            number += 1
            runs[number] = k
    runs[number + 1] = count
    return number + 1
