"""Units of the host for bfloat16 (floor 1): whether float32 products of this process may use them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

HostPrecision = Literal["float32", "bfloat16"]
"""Of the host's matrix products: what their factors are rounded to; sums are float32."""


@contextmanager
def product_units(precision: HostPrecision) -> Iterator[None]:
    """Let float32 products of this process use the units for bfloat16 meanwhile, if that is the precision."""
    before = torch.get_float32_matmul_precision()
    if precision == "bfloat16":
        torch.set_float32_matmul_precision("medium")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
