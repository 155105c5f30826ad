"""Units of the host for bfloat16 (floor 1): whether float32 products of this process may use them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Literal

import torch

HostPrecision = Literal["float32", "bfloat16"]
"""Of the host's matrix products: what their factors are rounded to; sums are float32."""


def rounds_products() -> bool:
    """Whether batched float32 products of this process, as PyTorch is set, round their factors on this CPU.

    Asking for units is not having them: a CPU may know bfloat16, and PyTorch still multiply in float32.
    """
    precision = torch.get_float32_matmul_precision()
    return precision != "highest" and _rounds(precision)


@cache
def _rounds(precision: str) -> bool:
    """As found by a product under the setting `precision`, which is the one at hand."""
    factors = torch.full((1, 64, 64), 1 + 2**-12)  # nearest in bfloat16 and in TensorFloat-32: 1
    return bool(torch.bmm(factors, factors)[0, 0, 0] < 64 * (1 + 2**-12))


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
