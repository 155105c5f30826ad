"""Loss and gradients of a batch in closed form (floor 1), compiled: the most frequent case of `fused`.

Queries that are products or sums, compared by dot products, with dropout or without, or by distances
without: DistMult, ComplEx, dot, TransE and RotatE under the softmax, logistic and margin losses. A side of
the batch is one call of a loop that Numba has compiled.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from marius_py.nn.decoders.base import ClosedFormDecoder, written_together
from marius_py.nn.fused_contrast import ClosedForm
from marius_py.nn.gradients import Gradients, StepInput, add_penalty
from marius_py.nn.kernels.gemm import bfloat16_gemm_address, sgemm_address
from marius_py.nn.kernels.host import (
    compiled_contrast,
    compiled_contrast_l2,
    compiled_contrast_sums,
    compiled_dropout,
    compiled_queries,
    compiled_weights,
    has_bfloat16_tiles,
)
from marius_py.nn.kernels.objectives import (
    AveragedObjective,
    LogisticObjective,
    MarginObjective,
    SoftmaxObjective,
)
from marius_py.nn.kernels.workspace import REGISTER, Workspace, padded
from marius_py.nn.product_units import product_precision, rounds_products
from marius_py.nn.regularizers import Regularizer
from marius_py.types import Side

BLOCK_SCORES = 7 << 14
"""Scores a block: not half a MiB, which stays in a core's cache beside the candidates and their gradients."""

LEAST_EDGES = 112
"""Edges a block at least: with fewer, reading all candidates once a block costs more than their products."""

ROUNDED_BLOCK_SCORES, ROUNDED_LEAST_EDGES = 5 << 14, 64
"""The same for products of bfloat16, whose factors lie in the cache beside their scores."""

_OBJECTIVES = {SoftmaxObjective: "SOFTMAX", LogisticObjective: "LOGISTIC", MarginObjective: "MARGIN"}
"""Objectives that loops know, and what they call them."""

_Gemm = tuple[int | None, np.dtype[np.generic]]
"""Address of a matrix product, and what its factors are held in."""


def can_compile(form: ClosedForm, given: StepInput, workspace: Workspace) -> bool:
    """Whether this module computes such a batch."""
    rows = given.batch.rows
    if not workspace.compiled or not _is_joined(form.decoder):
        return False
    if type(form.objective) not in _OBJECTIVES or rows.device.type != "cpu":
        return False
    if any(one.known is not None for one in given.batch.negatives.values()):
        return False
    if rows.dtype != torch.float32:
        return False
    if any(given.masks.sides[side].active for side in given.sides) and not _may_drop(form.decoder):
        return False
    if form.decoder.similarity == "l2":
        return compiled_contrast_l2() is not None  # in float32 at any rate: rounding would hide distances
    if form.decoder.similarity in ("l1", "moduli"):
        return compiled_contrast_sums() is not None
    return form.decoder.similarity == "dot" and _gemm() is not None and compiled_contrast() is not None


def _may_drop(decoder: ClosedFormDecoder) -> bool:
    """Whether loops take the decoder's rows after dropout: those of relations must be factors themselves."""
    return decoder.similarity == "dot" and type(decoder).factors is ClosedFormDecoder.factors


def _is_joined(decoder: ClosedFormDecoder) -> bool:
    """Whether `product` says how the decoder's queries are made, of factors that it makes itself if any."""
    if decoder.product is None or not written_together(decoder, "product", "query_into"):
        return False
    if type(decoder).factors is ClosedFormDecoder.factors:
        return True
    return written_together(decoder, "product", "factors", "factors_backward")


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


def compiled_gradients(
    form: ClosedForm, regularizers: Sequence[Regularizer], given: StepInput, workspace: Workspace
) -> Gradients:
    """As `fused.fused_gradients`, for what `can_compile` allows."""
    rows = given.batch.rows
    d_rows = workspace.zeros("d_rows", *rows.shape)
    d_relations = workspace.zeros("d_relations", *given.relations.shape)
    factors, d_factors = form.decoder.factors(given.relations), d_relations
    if factors is not given.relations:
        d_factors = workspace.zeros("d_factors", *factors.shape)
    loss = sum(
        _contrast(
            form, given, side, (rows.contiguous(), factors.contiguous()), (d_rows, d_factors), workspace
        )
        for side in given.sides
    )
    if d_factors is not d_relations:
        form.decoder.factors_backward(given.relations, d_factors, d_relations)
    for regularizer in regularizers:
        add_penalty(regularizer, given, form.decoder, d_rows, d_relations)
    return Gradients(d_rows, d_relations, given.batch.rows.new_tensor(loss / len(given.batch.head)))


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


def _contrast(
    form: ClosedForm,
    given: StepInput,
    side: Side,
    tables: tuple[Tensor, Tensor],
    gradients: tuple[Tensor, Tensor],
    workspace: Workspace,
) -> float:
    """Contrast one side.

    Args:
        tables: rows (U, D) and factors of relations (V, D).
        gradients: of both, added to.

    Returns:
        The sum of losses.
    """
    num_chunks, count = given.batch.negatives[side].nodes.shape
    sizes = len(given.batch.head) // num_chunks, tables[0].shape[1], count
    kernels, others = _loops(form, given, side, sizes, workspace)
    loss: float = kernels.contrast(
        *(one.numpy() for one in tables),
        _edges(form, given, side),
        _negatives(given, side),
        _objective(form),
        *others,
        *(one.numpy() for one in gradients),
    )
    return loss


_Sizes = tuple[int, int, int]
"""Edges of a chunk or a block, floats of a row, candidates of a chunk."""

_Loops = tuple[ModuleType, list[Any]]
"""Compiled loops, and what they take besides rows, a batch's side and gradients."""


def _loops(form: ClosedForm, given: StepInput, side: Side, sizes: _Sizes, workspace: Workspace) -> _Loops:
    """Those of what the decoder compares by."""
    similarity = form.decoder.similarity
    if similarity == "dot":
        return _by_product(given, side, sizes, workspace)
    if similarity == "l2":
        return _by_distance(sizes, workspace)
    return _by_sum(sizes, workspace, is_complex=similarity == "moduli")


def _by_product(given: StepInput, side: Side, sizes: _Sizes, workspace: Workspace) -> _Loops:
    """Loops of dot products, their Masks and Uses, Room and matrix product."""
    kernels, (chunk_edges, dim, count) = compiled_contrast(), sizes
    assert kernels is not None
    # Another run in this process may have changed what PyTorch is set to since `can_compile` asked.
    address, dtype = _gemm() or (sgemm_address(), np.dtype(np.float32))
    is_rounded = dtype != np.float32
    block = block_edges(chunk_edges, count, is_rounded=is_rounded)
    turned = turns_sums(dim, is_rounded=is_rounded)
    room = kernels.Room(*_room(workspace, (block, dim, count), dtype, turned=turned), turned)
    return kernels, [*_dropout(given, side, (block, dim, given.relations.shape[1]), workspace), room, address]


def _by_distance(sizes: _Sizes, workspace: Workspace) -> _Loops:
    """Loops of euclidean distances, their Room and matrix product."""
    kernels, (chunk_edges, dim, count) = compiled_contrast_l2(), sizes
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
    return kernels, [room, sgemm_address()]


def _by_sum(sizes: _Sizes, workspace: Workspace, *, is_complex: bool) -> _Loops:
    """Loops of distances that are sums over coordinates, complex or not, and their Room."""
    kernels, (chunk_edges, dim, count) = compiled_contrast_sums(), sizes
    assert kernels is not None
    block, width = block_edges(chunk_edges, count), padded(dim)
    shapes = {
        "queries": (block, width),
        "query_gradients": (block, width),
        "positives": (block,),
        "factors": (block,),
        "pulls": (block,),
        "scores": (block, padded(count)),
        "candidates": (dim, _apart(count)),
        "candidate_sums": (dim, _apart(count)),
    }
    queries, gradients, positives, factors, pulls, scores, candidates, sums = (
        workspace.take(name, *shape).numpy() for name, shape in shapes.items()
    )
    room = kernels.Room(queries, gradients, positives, factors, pulls, scores, scores, candidates, sums)
    return kernels, [is_complex, room]


def _edges(form: ClosedForm, given: StepInput, side: Side) -> Any:
    """The loops' Edges: what a side asks."""
    queries, batch = compiled_queries(), given.batch
    assert queries is not None
    known, answer = (batch.head, batch.tail) if side == "tail" else (batch.tail, batch.head)
    products = {
        "none": queries.NONE,
        "real": queries.REAL,
        "complex": queries.COMPLEX,
        "sum": queries.SUM,
    }
    return queries.Edges(
        *(one.numpy() for one in (known, given.relation_index[side], answer)),
        products[form.decoder.product or "none"],
        np.float32(1 if given.query_side(side) == "tail" else -1),
        _array(batch.negatives[side].edge_weight, np.float32, 0),
    )


def _apart(count: int) -> int:
    """Floats from row to row of so many: an odd number of lines, or columns would crowd the cache."""
    return padded(count) | REGISTER


def _room(
    workspace: Workspace, sizes: tuple[int, int, int], dtype: np.dtype[np.generic], *, turned: bool
) -> list[np.ndarray]:
    """Arrays of the loop's Room for a block, dim and candidates, with factors held in `dtype`."""
    block, dim, count = sizes
    width = padded(dim)
    shapes = {
        "queries": (block, width),
        "query_gradients": (block, width),
        "positives": (block,),
        "factors": (block,),
        "pulls": (block,),
        "scores": (block, padded(count)),
        "candidate_sums": (dim, _apart(count)) if turned else (count, width),
    }
    queries, gradients, positives, scales, pulls, scores, sums = (
        workspace.take(name, *shape).numpy() for name, shape in shapes.items()
    )

    def factors(name: str, rows: int, columns: int) -> np.ndarray:
        return workspace.take(name, rows, padded(columns) * dtype.itemsize // 4).numpy().view(dtype)

    is_rounded = dtype != np.float32
    return [
        queries,
        gradients,
        positives,
        scales,
        pulls,
        scores,
        sums,
        factors("asked", block, width) if is_rounded else queries,
        factors("scaled", block, width),
        factors("weights", block, count) if is_rounded else scores,
        factors("candidates", count, width),
    ]


def _dropout(given: StepInput, side: Side, sizes: tuple[int, int, int], workspace: Workspace) -> list[Any]:
    """The loops' Masks, and Uses for a block, dim and floats of a relation; None each without dropout."""
    masks, kernels = given.masks.sides[side], compiled_dropout()
    if not masks.active:
        return [None, None]
    assert kernels is not None
    edges, (block, dim, relation_dim) = len(given.batch.head), sizes
    drawn = [
        one.kept(edges)
        for one in (masks.node, masks.relation, masks.positive_node, masks.positive_relation, masks.answer)
    ]
    candidates = masks.candidates.kept(given.batch.negatives[side].nodes.numel())
    scales = (np.float32(one.scale) for one in (masks.node, masks.relation))
    widths = {
        "nodes": dim,
        "relations": relation_dim,
        "positive_nodes": dim,
        "positive_relations": relation_dim,
        "queries": dim,
        "answers": dim,
        "d_nodes": dim,
        "d_relations": relation_dim,
    }
    uses = (workspace.take(f"use of {name}", block, width).numpy() for name, width in widths.items())
    return [kernels.Masks(*drawn, candidates, *scales), kernels.Uses(*uses, np.arange(block))]


def _negatives(given: StepInput, side: Side) -> Any:
    """The loops' Negatives."""
    weights, corruption = compiled_weights(), given.batch.negatives[side]
    assert weights is not None
    importance, chunks = corruption.importance, len(corruption.nodes)
    chunk_edges = len(given.batch.head) // chunks
    return weights.Negatives(
        corruption.nodes.contiguous().numpy(),
        _array(None if importance is None else importance.group, np.int64, chunks, 0),
        _array(None if importance is None else importance.weight.log(), np.float32, chunks, chunk_edges, 0),
        _array(corruption.dropped, np.int64, 0),
    )


def _objective(form: ClosedForm) -> Any:
    """The loops' Objective."""
    weights, given = compiled_weights(), form.objective
    assert weights is not None
    kind = getattr(weights, _OBJECTIVES[type(given)])
    if isinstance(given, AveragedObjective):
        return weights.Objective(kind, np.float32(0), np.float32(given.margin), np.float32(given.temperature))
    assert isinstance(given, SoftmaxObjective)
    return weights.Objective(kind, np.float32(given.log_weight), np.float32(0), np.float32(0))


def _array(given: Tensor | None, dtype: type[np.generic], *shape: int) -> np.ndarray:
    """A tensor as an array; what there is none of is an empty one."""
    return np.empty(shape, dtype) if given is None else given.contiguous().numpy()
