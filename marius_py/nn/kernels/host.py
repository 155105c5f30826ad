"""Which loops are compiled for the host (floor 1): all of them with Numba, none without.

Each has a plain counterpart in NumPy or PyTorch beside its caller, which is the reference in tests and takes
over where Numba cannot be imported.
"""

from __future__ import annotations

import logging
from functools import cache
from importlib import import_module
from types import ModuleType

import torch
from torch import Tensor

from marius_py.nn.kernels.gemm import sgemm_address

log = logging.getLogger(__name__)

COMPILED_EDGES = 200_000
COMPILED_WORK = 2e8
"""Train edges, or those of all epochs times the floats of a node, from which loops are compiled. That takes
half a minute at first, later .6 s to load; the demo, of 180,000 edges and 1.2e8 floats, takes twelve."""


def is_worth_compiling(num_edges: int, epochs: int, dim: int) -> bool:
    """Whether a run of so many edges, epochs and floats a node gains more by compiled loops than they cost.

    >>> is_worth_compiling(86_835, 20, 128), is_worth_compiling(180_000, 10, 64)
    (True, False)
    """
    return num_edges >= COMPILED_EDGES or num_edges * epochs * dim >= COMPILED_WORK


@cache
def numba_works() -> bool:
    """Whether Numba can be imported; if not, a warning has said so."""
    try:
        import numba  # noqa: F401
    except ImportError as error:  # not installed, or installed for another NumPy
        log.warning(
            "Numba cannot be imported (%s): training on the CPU goes on with slower code; "
            "pip install --upgrade numba",
            error,
        )
        return False
    return True


def _kernels(name: str) -> ModuleType | None:
    return import_module(f"marius_py.nn.kernels.{name}") if numba_works() else None


def compiled_distance() -> ModuleType | None:
    """`numba_distance`, or None."""
    return _kernels("numba_distance")


def compiled_rows() -> ModuleType | None:
    """`numba_rows`, or None."""
    return _kernels("numba_rows")


def compiled_distinct() -> ModuleType | None:
    """`numba_distinct`, or None."""
    return _kernels("numba_distinct")


def compiled_levels() -> ModuleType | None:
    """`numba_levels`, or None."""
    return _kernels("numba_levels")


def compiled_index() -> ModuleType | None:
    """`numba_index`, or None."""
    return _kernels("numba_index")


def compiled_known() -> ModuleType | None:
    """`numba_known`, or None."""
    return _kernels("numba_known")


def compiled_queries() -> ModuleType | None:
    """`numba_queries`, or None."""
    return _kernels("numba_queries")


def compiled_matrices() -> ModuleType | None:
    """`numba_matrices`, or None."""
    return _kernels("numba_matrices")


def compiled_dropout() -> ModuleType | None:
    """`numba_dropout`, or None."""
    return _kernels("numba_dropout")


def compiled_weights() -> ModuleType | None:
    """`numba_weights`, or None."""
    return _kernels("numba_weights")


def compiled_contrast() -> ModuleType | None:
    """`numba_contrast`, or None; it needs a matrix product as well."""
    return _kernels("numba_contrast") if sgemm_address() is not None else None


def compiled_products() -> ModuleType | None:
    """`numba_products`, or None."""
    return _kernels("numba_products")


def compiled_contrast_l2() -> ModuleType | None:
    """`numba_contrast_l2`, or None; it needs a matrix product as well."""
    return _kernels("numba_contrast_l2") if sgemm_address() is not None else None


def compiled_contrast_sums() -> ModuleType | None:
    """`numba_contrast_sums`, or None."""
    return _kernels("numba_contrast_sums")


@cache
def _processor() -> tuple[str, frozenset[str]]:
    """Name of this processor and of its features, as LLVM has them; none where it does not know it."""
    if not numba_works():
        return "", frozenset()
    from llvmlite.binding import get_host_cpu_features, get_host_cpu_name  # what Numba compiles with

    try:
        return get_host_cpu_name(), frozenset(name for name, has in get_host_cpu_features().items() if has)
    except RuntimeError:
        return "", frozenset()


def has_bfloat16_tiles() -> bool:
    """Whether this processor multiplies tiles of bfloat16 (AMX), several times as fast as float32."""
    return "amx-bf16" in _processor()[1]


def has_bfloat16_pairs() -> bool:
    """Whether this processor multiplies pairs of bfloat16 (AVX-512), twice as many at once as of float32."""
    return "avx512bf16" in _processor()[1]


def has_slower_mkl() -> bool:
    """Whether MKL leaves much of this processor's AVX-512 unused, as it does on AMD's."""
    name, features = _processor()
    return name.startswith("znver") and "avx512f" in features


def padded_rows(rows: Tensor) -> Tensor:
    """Rows (n, D) that begin those of a wider contiguous array, as that array (n, G); else a copy if need be.

    Compiled loops over columns are fast only where the compiler knows that rows lie in one piece.
    """
    step = rows.stride(0)
    if rows.is_contiguous():
        return rows
    held = rows.untyped_storage().nbytes() // rows.element_size() - rows.storage_offset()
    if rows.stride(1) == 1 and step > rows.shape[1] and len(rows) * step <= held:
        return torch.as_strided(rows, (len(rows), step), (step, 1))
    return rows.contiguous()


def take_rows(table: Tensor, index: Tensor, out: Tensor) -> None:
    """As `torch.index_select(table, 0, index, out=out)`: (N, D) float32, (M,) int64, (M, D); contiguous."""
    kernels = compiled_rows() if torch.get_num_threads() > 1 else None
    if kernels is None:
        torch.index_select(table, 0, index, out=out)
    else:
        kernels.take_rows(table.numpy(), index.numpy(), out.numpy())


def add_rows(table: Tensor, index: Tensor, rows: Tensor, compiled: bool = True) -> None:
    """As `table.index_add_(0, index, rows)`, to the last bit: (N, D), (M,) int64, (M, D)."""
    compiled = compiled and table.device.type == "cpu" and table.dtype == torch.float32
    kernels = compiled_rows() if compiled and table.is_contiguous() and rows.is_contiguous() else None
    if kernels is None:
        table.index_add_(0, index, rows)
    else:
        kernels.add_rows(table.numpy(), index.numpy(), rows.numpy())
