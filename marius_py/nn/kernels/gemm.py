"""Matrix products that PyTorch brings along (floor 1): their addresses, for loops that Numba compiles.

A loop that calls one runs from end to end without the interpreter. PyTorch's library of the host exports the
standard BLAS function, and MKL's for factors in bfloat16, where it is built so, and PyTorch's own way to
oneDNN's product of blocks; found in the packages of PyTorch 2.11 and 2.13 for Linux on x86-64.
"""

from __future__ import annotations

import ctypes
import logging
import os
from functools import cache
from pathlib import Path

import numpy as np
import torch

log = logging.getLogger(__name__)

SINGLE, ROUNDED = np.dtype(np.float32), np.dtype(np.uint16)
"""What factors of products are held in: float32, or bfloat16 as the bits of it."""

_PIECE = 1 << 20


def sgemm_address() -> int | None:
    """Address of Fortran's `sgemm_` in PyTorch's library or one that it links; None if there is none."""
    return _address("sgemm_")


def bfloat16_gemm_address() -> int | None:
    """Address of `gemm_bf16bf16f32_`: as `sgemm_`, but for factors in bfloat16; None if there is none."""
    return _address("gemm_bf16bf16f32_")


def rows_gemm_address(*, is_rounded: bool) -> int | None:
    """Address of PyTorch's `brgemm(M, N, K, lda, ldb, ldc, adds, A, B, C, in_pairs)`; None if there is none.

    Factors are float32, or bfloat16 if `is_rounded`: B then comes in pairs of rows, for which the function
    ends the process where oneDNN is not built in, has no AVX-512 or may not be used. It is no part of
    PyTorch's interface: what it computes is tried once. There is none of bfloat16 where oneDNN would multiply
    by tiles (AMX): it relies on what they were set to before, which others, MKL among them, change, and
    several threads are known to crash (pytorch/pytorch#187912).
    """
    is_held_back = {"ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"} & os.environ.keys()
    has_units = not is_rounded or torch.backends.cpu.get_cpu_capability() == "AVX512"
    if is_held_back or not has_units or not torch.backends.mkldnn.enabled:
        return None
    return _tried_rows_gemm(is_rounded)


@cache
def _tried_rows_gemm(is_rounded: bool) -> int | None:
    single, rounded = "f", "N3c108BFloat16E"
    kind = f"{rounded}S5_" if is_rounded else f"{single}S3_"
    address = _address(f"_ZN2at6native7cpublas6brgemmEllllllbPK{kind}Pfb")
    within = f"N2at6native7cpublas6Brgemm4callI{rounded if is_rounded else single}"  # where it is oneDNN's
    if address is None or not _holds(_library(), within.encode()) or (is_rounded and _takes_tiles()):
        return None
    m, n, k, dtype = 5, 18, 6, torch.bfloat16 if is_rounded else torch.float32
    left, right = torch.arange(m * k).view(m, k).to(dtype) - 9, torch.arange(k * n).view(k, n).to(dtype) % 7
    laid = right.view(k // 2, 2, n).transpose(1, 2).contiguous() if is_rounded else right
    out = torch.ones(m, n)
    whole, place, truth = ctypes.c_int64, ctypes.c_void_p, ctypes.c_bool
    function = ctypes.CFUNCTYPE(None, *[whole] * 6, truth, *[place] * 3, truth)(address)
    function(m, n, k, k, n, n, True, left.data_ptr(), laid.data_ptr(), out.data_ptr(), is_rounded)
    if torch.equal(out, 1 + left.float() @ right.float()):
        return address
    log.debug("oneDNN's product of blocks is another than expected: not used")
    return None


def _takes_tiles() -> bool:
    """Whether oneDNN multiplies bfloat16 by tiles, or may do so: PyTorch then packs factors for it."""
    address = _address("_ZN2at6native7cpublas10could_packEN3c1010ScalarTypeE")
    bfloat16 = 15  # in PyTorch's enumeration of types, which files of its tensors hold as well
    return address is None or bool(ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_int8)(address)(bfloat16))


def _holds(path: Path, words: bytes) -> bool:
    """Whether a file holds words, read in pieces: mapped, it would count as memory of this process."""
    end = b""
    try:
        with path.open("rb") as file:
            while piece := file.read(_PIECE):
                if words in end + piece:
                    return True
                end = piece[1 - len(words) :]
    except OSError as error:
        log.debug("%s: %s", path, error)
    return False


def _library() -> Path:
    return Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"


@cache
def _address(name: str) -> int | None:
    try:
        found = getattr(ctypes.CDLL(str(_library())), name)
    except (OSError, AttributeError) as error:
        log.debug("no matrix product for compiled loops: %s", error)
        return None
    return ctypes.cast(found, ctypes.c_void_p).value
