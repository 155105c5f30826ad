"""Ranking in bfloat16 (floor 4): rows rounded as they are read, so that products fit the units for it.

Queries and candidates are rounded to bfloat16 and kept as float32; products of two such numbers are exact in
float32, in which they are summed. So the scores are those of a model whose rows have 8 bits, as exact as any
other, and ranks still do not depend on how the work is cut; a processor without such units gives the same.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from marius_py.evaluation.ranking.candidates import Float32, NodeReader
from marius_py.nn.product_units import HostPrecision

PRECISIONS: tuple[HostPrecision, ...] = ("float32", "bfloat16")


def rounded(rows: Tensor) -> Tensor:
    """Rows of any shape, float32, with every number rounded to the nearest of bfloat16."""
    return rows.bfloat16().float()


class RoundedReader:
    """A node table whose rows are rounded to bfloat16; (n, D) float32 as before."""

    def __init__(self, inner: NodeReader) -> None:
        self._inner = inner

    def read_rows(self, start: int, stop: int) -> Float32:
        """Rows of node ids start ≤ id < stop, rounded."""
        return _rounded_array(self._inner.read_rows(start, stop))


def _rounded_array(rows: NDArray[np.float32]) -> Float32:
    result: Float32 = rounded(torch.from_numpy(np.ascontiguousarray(rows, dtype=np.float32))).numpy()
    return result
