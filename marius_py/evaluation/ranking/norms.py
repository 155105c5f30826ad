"""How long candidate rows are at most (floor 4): rows in, a bound of their norms out, for bands of scores."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from marius_py.evaluation.ranking.scorer import ROUNDOFF

_NORM_ROWS = 1 << 11
_MOST_SHARE = 1 / 16
_JUST_ABOVE = 1 + 1e-12
"""Makes up for the rounding of what is computed in float64."""


def norm_bound(rows: Tensor) -> tuple[float, Tensor | None]:
    """What no finite norm of rows (n, D) exceeds, and the rows (n,) bool that hold an infinity; None: no row.

    A row with NaN counts for neither: it scores NaN everywhere, in the fast form already.
    """
    bound = _quick_norm_bound(rows) if rows.device.type == "cpu" else None
    if bound is not None:
        return bound, None
    # Some at a time, whose copies in float64 stay in a cache.
    step = _NORM_ROWS if rows.device.type == "cpu" else max(1, len(rows))
    parts = torch.split(rows, step)
    norms = torch.cat([torch.linalg.vector_norm(part, dim=1, dtype=torch.float64) for part in parts])
    finite, odd = torch.isfinite(norms), torch.isinf(norms)
    largest = float(norms[finite].max()) * _JUST_ABOVE if bool(finite.any()) else 0.0
    return largest, odd if bool(odd.any()) else None


def _quick_norm_bound(rows: Tensor) -> float | None:
    """What no norm of rows (n, D) exceeds, from squares in float32; None if one of these is not finite.

    A sum of D squares, in whatever order, is short of the true one by a share of γ = D u / (1 − D u) at most,
    u = 2⁻²⁴ (Higham, Accuracy and Stability of Numerical Algorithms, 2002, section 3.1), and by what D of
    them lost below the least normal number.
    """
    dim = rows.shape[1]
    share = dim * ROUNDOFF[torch.float32]
    if rows.dtype is not torch.float32 or share > _MOST_SHARE:
        return None
    array = rows.numpy()
    with np.errstate(over="ignore", invalid="ignore"):
        # Not by torch: its threads, on a busy machine, wait for each other longer than this takes.
        largest = float(np.einsum("ij,ij->i", array, array).max(initial=0.0))
    if not math.isfinite(largest):
        return None
    lost = dim * torch.finfo(torch.float32).tiny
    return math.sqrt((largest + lost) / (1 - share / (1 - share))) * _JUST_ABOVE
