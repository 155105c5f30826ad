"""Compiled loops that contrast a side of a batch (floor 1): which there are, and what they work on.

In: what a decoder compares by, and sizes. Out: a module of loops and its Room, arrays of a `Workspace` as
large as a block of edges and a chunk's candidates need.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from marius_py.nn.kernels.gemm import bfloat16_gemm_address, sgemm_address
from marius_py.nn.kernels.host import (
    compiled_contrast,
    compiled_contrast_l2,
    compiled_contrast_sums,
    has_bfloat16_tiles,
)
from marius_py.nn.kernels.workspace import REGISTER, Workspace, padded
from marius_py.nn.product_units import product_precision, rounds_products

BLOCK_SCORES = 7 << 14
"""Scores a block: not half a MiB, which stays in a core's cache beside the candidates and their gradients."""

LEAST_EDGES = 112
"""Edges a block at least: with fewer, reading all candidates once a block costs more than their products."""

ROUNDED_BLOCK_SCORES, ROUNDED_LEAST_EDGES = 5 << 14, 64
"""The same for products of bfloat16, whose factors lie in the cache beside their scores."""

_Gemm = tuple[int | None, np.dtype[np.generic]]
"""Address of a matrix product, and what its factors are held in."""


class Loops(NamedTuple):
    """Compiled loops.

    Attributes:
        module: has `contrast`.
        given: what that takes besides rows, a side of a batch, masks and gradients.
        block: edges a block.
    """

    module: ModuleType
    given: list[Any]
    block: int


class Sizes(NamedTuple):
    """Edges and candidates of a chunk, and floats of a row."""

    edges: int
    candidates: int
    dim: int


def has_loops(similarity: str | None) -> bool:
    """Whether there are loops for a decoder's `similarity`."""
    if similarity == "dot":
        return _gemm() is not None and compiled_contrast() is not None
    if similarity == "l2":
        return compiled_contrast_l2() is not None  # in float32 at any rate: rounding would hide distances
    return similarity in ("l1", "moduli") and compiled_contrast_sums() is not None


def choose_loops(similarity: str | None, sizes: Sizes, workspace: Workspace) -> Loops:
    """The loops of a decoder's `similarity`, for which `has_loops`."""
    if similarity == "dot":
        return _by_product(sizes, workspace)
    if similarity == "l2":
        return _by_distance(sizes, workspace)
    return _by_sum(sizes, workspace, is_complex=similarity == "moduli")


def _gemm() -> _Gemm | None:
    """The matrix product to take.

    None if there is none in the precision that PyTorch is set to: such products are left to PyTorch.
    """
    address: int | None = None
    is_rounded = rounds_products()
    if not is_rounded:
        address = sgemm_address()
    elif product_precision("cpu") == "bf16" and has_bfloat16_tiles():
        address = bfloat16_gemm_address()
    return None if address is None else (address, np.dtype(np.uint16 if is_rounded else np.float32))


def block_edges(chunk_edges: int, count: int, *, is_rounded: bool = False) -> int:
    """Edges a block of chunks of so many edges with `count` candidates, factors in bfloat16 or not.

    Whole registers if that leaves no sliver for the last block, which then has half a block at least; else
    blocks of equal size.
    """
    scores, least = BLOCK_SCORES, LEAST_EDGES
    if is_rounded:
        scores, least = ROUNDED_BLOCK_SCORES, ROUNDED_LEAST_EDGES
    most = max(scores // max(count, 1), least, REGISTER) // REGISTER * REGISTER
    blocks = -(-chunk_edges // most)
    even = -(-chunk_edges // blocks)
    whole = min(padded(even), chunk_edges)
    return whole if 2 * (chunk_edges - (blocks - 1) * whole) >= whole else even


def turns_sums(dim: int, *, is_rounded: bool = False) -> bool:
    """Whether sums of candidates' gradients are made of columns: if registers of a row are a tenth empty."""
    return 10 * padded(dim) >= 11 * dim and not is_rounded


def _apart(count: int) -> int:
    """Floats from row to row of so many: an odd number of lines, or columns would crowd the cache."""
    return padded(count) | REGISTER


def _by_product(sizes: Sizes, workspace: Workspace) -> Loops:
    """Loops of dot products, their Room and matrix product."""
    kernels = compiled_contrast()
    assert kernels is not None
    # Another run in this process may have changed what PyTorch is set to since `has_loops` asked.
    address, dtype = _gemm() or (sgemm_address(), np.dtype(np.float32))
    is_rounded = dtype != np.float32
    block = block_edges(sizes.edges, sizes.candidates, is_rounded=is_rounded)
    turned = turns_sums(sizes.dim, is_rounded=is_rounded)
    room = kernels.Room(*_room(workspace, sizes, block, dtype, turned=turned), turned)
    return Loops(kernels, [room, address], block)


def _block_arrays(workspace: Workspace, sizes: Sizes, block: int) -> list[np.ndarray]:
    """Queries and their gradients, own scores, factors, pulls and scores of a block."""
    shapes = {
        "queries": (block, padded(sizes.dim)),
        "query_gradients": (block, padded(sizes.dim)),
        "positives": (block,),
        "factors": (block,),
        "pulls": (block,),
        "scores": (block, padded(sizes.candidates)),
    }
    return [workspace.take(name, *shape).numpy() for name, shape in shapes.items()]


def _room(
    workspace: Workspace, sizes: Sizes, block: int, dtype: np.dtype[np.generic], *, turned: bool
) -> list[np.ndarray]:
    """Arrays of the Room of `_by_product`, with factors held in `dtype`."""
    _, count, dim = sizes
    width = padded(dim)
    block_arrays = _block_arrays(workspace, sizes, block)
    queries, scores = block_arrays[0], block_arrays[-1]
    sums = workspace.take("candidate_sums", *((dim, _apart(count)) if turned else (count, width))).numpy()

    def factors(name: str, rows: int, columns: int) -> np.ndarray:
        return workspace.take(name, rows, padded(columns) * dtype.itemsize // 4).numpy().view(dtype)

    is_rounded = dtype != np.float32
    return [
        *block_arrays,
        sums,
        factors("asked", block, width) if is_rounded else queries,
        factors("scaled", block, width),
        factors("weights", block, count) if is_rounded else scores,
        factors("candidates", count, width),
    ]


def _by_distance(sizes: Sizes, workspace: Workspace) -> Loops:
    """Loops of euclidean distances, their Room and matrix product."""
    kernels, (chunk_edges, count, dim) = compiled_contrast_l2(), sizes
    assert kernels is not None
    block, width = block_edges(chunk_edges, count), padded(dim + 1)
    shapes = {
        "queries": (block, width),
        "query_gradients": (block, width),
        "scaled": (block, width),
        "scores": (block, padded(count)),
        "distances": (block,),
        "norms": (block,),
        "forces": (block,),
        "factors": (block,),
        "pulls": (block,),
        "candidates": (count, width),
        "candidate_norms": (count,),
        "candidate_sums": (dim + 1, _apart(count)),
    }
    room = kernels.Room(*(workspace.take(name, *shape).numpy() for name, shape in shapes.items()))
    return Loops(kernels, [room, sgemm_address()], block)


def _by_sum(sizes: Sizes, workspace: Workspace, *, is_complex: bool) -> Loops:
    """Loops of distances that are sums over coordinates, complex or not, and their Room."""
    kernels = compiled_contrast_sums()
    assert kernels is not None
    block = block_edges(sizes.edges, sizes.candidates)
    block_arrays = _block_arrays(workspace, sizes, block)
    columns = sizes.dim, _apart(sizes.candidates)
    candidates, sums = (workspace.take(name, *columns).numpy() for name in ("candidates", "candidate_sums"))
    room = kernels.Room(*block_arrays, block_arrays[-1], candidates, sums)
    return Loops(kernels, [is_complex, room], block)
