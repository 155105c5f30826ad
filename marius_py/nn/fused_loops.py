"""Compiled loops that contrast a side of a batch (floor 1): which there are, and what they work on.

In: what a decoder compares by, and sizes. Out: a module of loops and its Room, arrays of a `Workspace` as
large as a block of edges and a chunk's candidates need.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from marius_py.nn.kernels.gemm import ROUNDED, SINGLE
from marius_py.nn.kernels.host import (
    compiled_contrast,
    compiled_contrast_l2,
    compiled_contrast_sums,
    compiled_products,
)
from marius_py.nn.kernels.workspace import REGISTER, Workspace, padded
from marius_py.nn.product_choice import Gemm, choose_gemm, choose_single_gemm

BLOCK_SCORES = 7 << 14
"""Scores a block: not half a MiB, which stays in a core's cache beside the candidates and their gradients."""

LEAST_EDGES = 112
"""Edges a block at least: with fewer, reading all candidates once a block costs more than their products."""

ROUNDED_BLOCK_SCORES, ROUNDED_LEAST_EDGES = 5 << 14, 64
"""The same for products of bfloat16, whose factors lie in the cache beside their scores."""


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
        return choose_gemm() is not None and compiled_contrast() is not None
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
    gemm = choose_gemm() or choose_single_gemm()
    assert gemm is not None
    is_rounded = gemm.dtype == ROUNDED
    block = _block(sizes, gemm)
    by_columns = gemm.by_rows or turns_sums(sizes.dim, is_rounded=is_rounded)
    arrays = _room(workspace, sizes, block, gemm, by_columns=by_columns)
    turned = None
    if gemm.by_rows:
        turned = _turned(workspace, sizes, block, gemm.dtype, (arrays["candidates"], arrays["weights"]))
    room = kernels.Room(*arrays.values(), by_columns)
    return Loops(kernels, [room, turned, gemm.address], block)


def _block(sizes: Sizes, gemm: Gemm) -> int:
    """Edges a block; products by rows take whole registers of them, with room for what is no edge."""
    block = block_edges(sizes.edges, sizes.candidates, is_rounded=gemm.dtype == ROUNDED)
    return padded(block) if gemm.by_rows else block


def _factors(
    workspace: Workspace, name: str, rows: int, columns: int, dtype: np.dtype[np.generic]
) -> np.ndarray:
    """A table of factors, float32 or bfloat16."""
    return workspace.take(name, rows, padded(columns) * dtype.itemsize // 4).numpy().view(dtype)


def _words(workspace: Workspace, name: str, rows: int, columns: int) -> np.ndarray:
    """A table of pairs of bfloat16."""
    return workspace.take(name, rows, columns).numpy().view(np.uint32)


def _block_arrays(workspace: Workspace, sizes: Sizes, block: int) -> dict[str, np.ndarray]:
    """Queries and their gradients, own scores, factors, pulls and scores of a block."""
    shapes = {
        "queries": (block, padded(sizes.dim)),
        "query_gradients": (block, padded(sizes.dim)),
        "positives": (block,),
        "factors": (block,),
        "pulls": (block,),
        "scores": (block, padded(sizes.candidates)),
    }
    return {name: workspace.take(name, *shape).numpy() for name, shape in shapes.items()}


def _room(
    workspace: Workspace, sizes: Sizes, block: int, gemm: Gemm, *, by_columns: bool
) -> dict[str, np.ndarray]:
    """Arrays of the Room of `_by_product`."""
    _, count, dim = sizes
    width, dtype = padded(dim), gemm.dtype
    arrays = _block_arrays(workspace, sizes, block)
    shape = (dim, _apart(count)) if by_columns else (count, width)
    arrays["sums"] = workspace.take("candidate_sums", *shape).numpy()
    arrays["asked"] = arrays["queries"]
    if dtype == ROUNDED:
        arrays["asked"] = _factors(workspace, "asked", block, width, dtype)
    arrays["scaled"] = _factors(workspace, "scaled", block, width, dtype)
    arrays["weights"] = arrays["scores"]
    if dtype == ROUNDED:
        arrays["weights"] = _factors(workspace, "weights", block, count, dtype)
    if gemm.by_rows:  # whole tiles of words are turned
        count, width = padded(count), padded(width * dtype.itemsize // 4) * 4 // dtype.itemsize
    arrays["candidates"] = _factors(workspace, "candidates", count, width, dtype)
    return arrays


def _turned(
    workspace: Workspace,
    sizes: Sizes,
    block: int,
    dtype: np.dtype[np.generic],
    laid: tuple[np.ndarray, np.ndarray],
) -> Any:
    """The Turned of products by rows, of candidates and weights of a block that are `laid` out already."""
    kernels = compiled_products()
    assert kernels is not None
    (candidates, weights), width, words = laid, padded(sizes.dim), laid[0]
    if dtype == ROUNDED:
        words = candidates.view(np.uint32)
        candidates = _words(workspace, "candidates in pairs", len(candidates) // 2, width)
        weights = _words(workspace, "weights in pairs", block // 2, weights.shape[1])
    columns = words.shape[1], _apart(sizes.candidates)
    return kernels.Turned(
        words,
        workspace.take("turned candidates", *columns).numpy().view(words.dtype),
        candidates,
        weights,
        workspace.take("turned queries", width, block).numpy(),
        _factors(workspace, "turned and scaled", width, block, dtype),
    )


def _by_distance(sizes: Sizes, workspace: Workspace) -> Loops:
    """Loops of euclidean distances, their Room and matrix product."""
    kernels, (chunk_edges, count, dim), gemm = compiled_contrast_l2(), sizes, choose_single_gemm()
    assert kernels is not None
    assert gemm is not None
    block, width = _block(sizes, gemm), padded(dim + 1)
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
        "candidates": (padded(count) if gemm.by_rows else count, width),
        "candidate_norms": (count,),
        "candidate_sums": (dim + 1, _apart(count)),
    }
    arrays = {name: workspace.take(name, *shape).numpy() for name, shape in shapes.items()}
    turned = None
    if gemm.by_rows:
        sizes = Sizes(chunk_edges, count, dim + 1)
        turned = _turned(workspace, sizes, block, SINGLE, (arrays["candidates"], arrays["scores"]))
    return Loops(kernels, [kernels.Room(*arrays.values()), turned, gemm.address], block)


def _by_sum(sizes: Sizes, workspace: Workspace, *, is_complex: bool) -> Loops:
    """Loops of distances that are sums over coordinates, complex or not, and their Room."""
    kernels = compiled_contrast_sums()
    assert kernels is not None
    block = block_edges(sizes.edges, sizes.candidates)
    block_arrays = list(_block_arrays(workspace, sizes, block).values())
    columns = sizes.dim, _apart(sizes.candidates)
    candidates, sums = (workspace.take(name, *columns).numpy() for name in ("candidates", "candidate_sums"))
    room = kernels.Room(*block_arrays, block_arrays[-1], candidates, sums)
    return Loops(kernels, [is_complex, room], block)
