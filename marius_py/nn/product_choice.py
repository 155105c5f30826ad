"""Which matrix product compiled loops call (floor 1): MKL's or oneDNN's, of float32 or bfloat16.

As PyTorch is set and this processor has units. On AMD's processors MKL's makes less of AVX-512 than oneDNN's
does, and nothing of their products of pairs of bfloat16.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from marius_py.nn.kernels.gemm import ROUNDED, SINGLE, bfloat16_gemm_address, rows_gemm_address, sgemm_address
from marius_py.nn.kernels.host import has_bfloat16_pairs, has_bfloat16_tiles, has_slower_mkl
from marius_py.nn.product_units import product_precision, rounds_products


class Gemm(NamedTuple):
    """A matrix product.

    Attributes:
        address: of the function.
        dtype: what its factors are held in: float32, or bfloat16 as uint16.
        by_rows: whether it takes no factor transposed (`numba_products.Turned`).
    """

    address: int
    dtype: np.dtype[np.generic]
    by_rows: bool


def choose_gemm() -> Gemm | None:
    """The matrix product to take.

    None if there is none in the precision that PyTorch is set to: such products are left to PyTorch.
    """
    rounds, address, by_rows = rounds_products(), None, False
    if product_precision("cpu") == "bf16" and has_bfloat16_tiles():
        address = bfloat16_gemm_address() if rounds else None
    elif product_precision("cpu") == "bf16" and has_bfloat16_pairs():
        address, by_rows = rows_gemm_address(is_rounded=True), True
    if address is not None:
        return Gemm(address, ROUNDED, by_rows)
    return None if rounds else choose_single_gemm()


def choose_single_gemm() -> Gemm | None:
    """The matrix product of float32 to take."""
    address = rows_gemm_address(is_rounded=False) if _prefers_rows() else None
    if address is not None:
        return Gemm(address, SINGLE, by_rows=True)
    address = sgemm_address()
    return None if address is None else Gemm(address, SINGLE, by_rows=False)


def _prefers_rows() -> bool:
    """Whether oneDNN's product of float32 is the faster one, which does not share its work among threads."""
    return has_slower_mkl() and torch.get_num_threads() == 1


def rounds_factors() -> bool:
    """Whether loops, as PyTorch is set, round the factors of dot products to bfloat16."""
    gemm = choose_gemm()
    return gemm is not None and gemm.dtype == ROUNDED
