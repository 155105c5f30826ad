"""The matrix product that PyTorch brings along (floor 1): its address, for loops that Numba compiles.

A loop that calls it runs from end to end without the interpreter. PyTorch's library of the host exports the
standard BLAS function where it is built so; found in the package of PyTorch 2.13 for Linux on x86-64.
"""

from __future__ import annotations

import ctypes
import logging
from functools import cache
from pathlib import Path

import torch

log = logging.getLogger(__name__)


@cache
def sgemm_address() -> int | None:
    """Address of Fortran's `sgemm_` in PyTorch's library or one that it links; None if there is none."""
    path = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        found = ctypes.CDLL(str(path)).sgemm_
    except (OSError, AttributeError) as error:
        log.debug("no matrix product for compiled loops: %s", error)
        return None
    return ctypes.cast(found, ctypes.c_void_p).value
