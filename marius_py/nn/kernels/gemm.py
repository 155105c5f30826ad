"""Matrix products that PyTorch brings along (floor 1): their addresses, for loops that Numba compiles.

A loop that calls one runs from end to end without the interpreter. PyTorch's library of the host exports the
standard BLAS function, and MKL's for factors in bfloat16, where it is built so; found in the package of
PyTorch 2.13 for Linux on x86-64.
"""

from __future__ import annotations

import ctypes
import logging
from functools import cache
from pathlib import Path

import torch

log = logging.getLogger(__name__)


def sgemm_address() -> int | None:
    """Address of Fortran's `sgemm_` in PyTorch's library or one that it links; None if there is none."""
    return _address("sgemm_")


def bfloat16_gemm_address() -> int | None:
    """Address of `gemm_bf16bf16f32_`: as `sgemm_`, but for factors in bfloat16; None if there is none."""
    return _address("gemm_bf16bf16f32_")


@cache
def _address(name: str) -> int | None:
    path = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        found = getattr(ctypes.CDLL(str(path)), name)
    except (OSError, AttributeError) as error:
        log.debug("no matrix product for compiled loops: %s", error)
        return None
    return ctypes.cast(found, ctypes.c_void_p).value
