"""The matrix product that PyTorch brings along (floor 1): its address, for loops that Numba compiles.

A loop that calls it runs from end to end without the interpreter. PyTorch's library of the host exports the
standard BLAS function wherever it is built with one: of the published packages those for Linux and macOS.
"""

from __future__ import annotations

import ctypes
import logging
import sys
from functools import cache
from pathlib import Path

import torch

log = logging.getLogger(__name__)

_LIBRARY = {"linux": "libtorch_cpu.so", "darwin": "libtorch_cpu.dylib", "win32": "torch_cpu.dll"}


@cache
def sgemm_address() -> int | None:
    """Address of Fortran's `sgemm_` in PyTorch's library or one that it links; None if there is none."""
    path = Path(torch.__file__).parent / "lib" / _LIBRARY.get(sys.platform, "libtorch_cpu.so")
    try:
        found = ctypes.CDLL(str(path)).sgemm_
    except (OSError, AttributeError) as error:
        log.debug("no matrix product for compiled loops: %s", error)
        return None
    return ctypes.cast(found, ctypes.c_void_p).value
