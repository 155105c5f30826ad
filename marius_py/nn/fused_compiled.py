"""Loss and gradients of a batch in closed form (floor 1), compiled: the most frequent case of `fused`.

Queries that are products or sums, or that a matrix makes, compared by dot products or distances, with dropout
or without: all registered decoders under the softmax, logistic and margin losses.
A side of the batch is one call of a loop that Numba has compiled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from marius_py.nn.decoders.base import ClosedFormDecoder, written_together
from marius_py.nn.fused_contrast import ClosedForm
from marius_py.nn.fused_loops import Sizes, choose_loops, has_loops
from marius_py.nn.gradients import Gradients, StepInput, add_penalty
from marius_py.nn.kernels.host import (
    compiled_dropout,
    compiled_matrices,
    compiled_queries,
    compiled_weights,
)
from marius_py.nn.kernels.objectives import (
    AveragedObjective,
    LogisticObjective,
    MarginObjective,
    SmoothedObjective,
    SoftmaxObjective,
)
from marius_py.nn.kernels.workspace import Workspace
from marius_py.nn.regularizers import Regularizer
from marius_py.types import Side

_ZERO, _ONE = np.float32(0), np.float32(1)
_ALL = np.empty((0, 0), np.bool_)
"""A mask that drops nothing."""
_AVERAGES = {SmoothedObjective: "SMOOTHED", LogisticObjective: "LOGISTIC", MarginObjective: "MARGIN"}
"""Objectives beside softmax that loops know, and what they call them."""


def can_compile(form: ClosedForm, given: StepInput, workspace: Workspace) -> bool:
    """Whether this module computes such a batch."""
    rows = given.batch.rows
    if not workspace.compiled or rows.device.type != "cpu" or rows.dtype != torch.float32:
        return False
    if any(one.known is not None for one in given.batch.negatives.values()):
        return False
    masks = (given.masks.sides[side] for side in given.sides)
    return loops_know(form, drops_relations=any(one.relation.active for one in masks))


def loops_know(form: ClosedForm, *, drops_relations: bool) -> bool:
    """Whether there are loops for a decoder and a loss, with dropout of relations or without."""
    if not _is_joined(form.decoder) or type(form.objective) not in (SoftmaxObjective, *_AVERAGES):
        return False
    if drops_relations and not _may_drop_relations(form.decoder):
        return False
    return has_loops(form.decoder.similarity)


def _may_drop_relations(decoder: ClosedFormDecoder) -> bool:
    """Whether loops take rows of relations after dropout: they must be factors themselves, no matrices."""
    return type(decoder).factors is ClosedFormDecoder.factors and decoder.product != "matrix"


def _is_joined(decoder: ClosedFormDecoder) -> bool:
    """Whether `product` says how the decoder's queries are made, of factors that it makes itself if any."""
    if decoder.product is None or not written_together(decoder, "product", "query_into"):
        return False
    if type(decoder).factors is ClosedFormDecoder.factors:
        return True
    return written_together(decoder, "product", "factors", "factors_backward")


def compiled_gradients(
    form: ClosedForm, regularizers: Sequence[Regularizer], given: StepInput, workspace: Workspace
) -> Gradients:
    """As `fused.fused_gradients`, for what `can_compile` allows."""
    d_relations = workspace.zeros("d_relations", *given.relations.shape)
    contrast_sides = _contrast_by_matrices if form.decoder.product == "matrix" else _contrast_sides
    d_rows, loss = contrast_sides(form, given, d_relations, workspace)
    for regularizer in regularizers:
        add_penalty(regularizer, given, form.decoder, d_rows, d_relations)
    return Gradients(d_rows, d_relations, given.batch.rows.new_tensor(loss / len(given.batch.head)))


def _contrast_sides(
    form: ClosedForm, given: StepInput, d_relations: Tensor, workspace: Workspace
) -> tuple[Tensor, float]:
    """Contrast all sides; adds to the gradients of relations, returns those of rows and the sum of losses."""
    rows = given.batch.rows.contiguous()
    d_rows = workspace.zeros("d_rows", *rows.shape)
    factors, d_factors = form.decoder.factors(given.relations).contiguous(), d_relations
    if type(form.decoder).factors is not ClosedFormDecoder.factors:
        d_factors = workspace.zeros("d_factors", *factors.shape)
    tables, gradients = (rows, factors), (d_rows, d_factors)
    loss = 0.0
    for side in given.sides:
        edges, masks = _edges(form, given, side), _masks(given, side)
        loss += _contrast(form, given, side, (edges, masks), tables, gradients, workspace)
    if d_factors is not d_relations:
        form.decoder.factors_backward(given.relations, d_factors, d_relations)
    return d_rows, loss


def _contrast_by_matrices(
    form: ClosedForm, given: StepInput, d_relations: Tensor, workspace: Workspace
) -> tuple[Tensor, float]:
    """As `_contrast_sides`, of queries that are made before, relation by relation, and follow the rows."""
    loops, (count, dim), edges = compiled_matrices(), given.batch.rows.shape, len(given.batch.head)
    assert loops is not None
    most = 1 + any(given.masks.sides[side].two_queries for side in given.sides)
    table = workspace.take("rows_and_queries", count + most * edges, dim)
    sums = workspace.zeros("d_rows_and_queries", count + most * edges, dim)
    rows, relations = table[:count], given.relations.contiguous()
    none = relations.new_empty(len(relations), 0)  # what is left of relations to contrast with
    rows.copy_(given.batch.rows)
    loss = 0.0
    for side in given.sides:
        relation, masks = given.relation_index[side], _masks(given, side)
        order = torch.argsort(relation, stable=True)
        indices = (one.numpy() for one in (_ends(given, side)[0], relation, order))
        asked = rows.numpy(), relations.numpy(), *indices, given.query_side(side) == "head"
        uses = [(_ALL, _ONE)]
        if masks is not None:
            uses = [(mask, masks.node_scale) for mask in (masks.node, masks.positive_node)]
            masks = masks._replace(node=_ALL, positive_node=_ALL)  # queries have been through them by then
        places = [slice(count + n * edges, count + (n + 1) * edges) for n in range(len(uses))]
        for place, use in zip(places, uses, strict=True):
            loops.ask(*asked, *use, table[place].numpy())
        ends = places[0], places[-1]
        known, own = (torch.arange(end.start, end.stop, device=rows.device) for end in ends)
        questions = _edges(form, given, side, known, own), masks
        loss += _contrast(form, given, side, questions, (table, none), (sums, none), workspace)
        for place, use in zip(places, uses, strict=True):
            loops.ask_back(*asked, *use, *(one.numpy() for one in (sums[place], sums[:count], d_relations)))
        sums[count:].zero_()
    return sums[:count], loss


def _ends(given: StepInput, side: Side) -> tuple[Tensor, Tensor]:
    """Indices (B,) of the known rows and of the answers."""
    head, tail = given.batch.head, given.batch.tail
    return (head, tail) if side == "tail" else (tail, head)


def _contrast(
    form: ClosedForm,
    given: StepInput,
    side: Side,
    questions: tuple[Any, Any],
    tables: tuple[Tensor, Tensor],
    gradients: tuple[Tensor, Tensor],
    workspace: Workspace,
) -> float:
    """Contrast one side.

    Args:
        questions: the loops' Edges, and Masks or None.
        tables: rows (U, D) and factors of relations (V, D).
        gradients: of both, added to.

    Returns:
        The sum of losses.
    """
    (edges, masks), (num_chunks, count) = questions, given.batch.negatives[side].nodes.shape
    sizes = Sizes(len(edges.known) // num_chunks, count, tables[0].shape[1])
    loops = choose_loops(form.decoder.similarity, sizes, workspace)
    uses = None if masks is None else _uses((loops.block, sizes.dim, tables[1].shape[1]), workspace)
    loss: float = loops.module.contrast(
        *(one.numpy() for one in tables),
        edges,
        _negatives(given, side),
        *_objective(form),
        masks,
        uses,
        *loops.given,
        *(one.numpy() for one in gradients),
    )
    return loss


def _edges(
    form: ClosedForm, given: StepInput, side: Side, known: Tensor | None = None, own: Tensor | None = None
) -> Any:
    """The loops' Edges: what a side asks; of rows (B,) that are `known` and `own`, not those at the ends."""
    queries, batch = compiled_queries(), given.batch
    assert queries is not None
    end, answer = _ends(given, side)
    known = end if known is None else known
    own = known if own is None else own
    products = {
        "none": queries.NONE,
        "real": queries.REAL,
        "complex": queries.COMPLEX,
        "sum": queries.SUM,
        "matrix": queries.NONE,
    }
    return queries.Edges(
        *(one.numpy() for one in (known, given.relation_index[side], answer, own)),
        products[form.decoder.product or "none"],
        np.float32(1 if given.query_side(side) == "tail" else -1),
        _array(batch.negatives[side].edge_weight, np.float32, 0),
    )


def _masks(given: StepInput, side: Side) -> Any:
    """The loops' Masks; None without dropout."""
    masks, kernels = given.masks.sides[side], compiled_dropout()
    if not masks.active:
        return None
    assert kernels is not None
    edges = len(given.batch.head)
    drawn = [
        one.kept(edges)
        for one in (masks.node, masks.relation, masks.positive_node, masks.positive_relation, masks.answer)
    ]
    candidates = masks.candidates.kept(given.batch.negatives[side].nodes.numel())
    scales = (np.float32(one.scale) for one in (masks.node, masks.relation))
    return kernels.Masks(*drawn, candidates, *scales)


def _uses(sizes: tuple[int, int, int], workspace: Workspace) -> Any:
    """The loops' Uses for a block, dim and floats of a relation."""
    kernels, (block, dim, relation_dim) = compiled_dropout(), sizes
    assert kernels is not None
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
    return kernels.Uses(*uses, np.arange(block))


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


def _objective(form: ClosedForm) -> tuple[np.float32, Any]:
    """What the loops take for a loss: the logarithm of what all negatives count, and Averages or None."""
    weights, given = compiled_weights(), form.objective
    assert weights is not None
    if type(given) is SoftmaxObjective:
        return np.float32(given.log_weight), None
    kind = getattr(weights, _AVERAGES[type(given)])
    if isinstance(given, AveragedObjective):
        return _ZERO, weights.Averages(kind, np.float32(given.margin), np.float32(given.temperature), _ZERO)
    assert isinstance(given, SmoothedObjective)
    smoothed = weights.Averages(kind, _ZERO, _ZERO, np.float32(given.smoothing))
    return np.float32(given.log_weight), smoothed


def _array(given: Tensor | None, dtype: type[np.generic], *shape: int) -> np.ndarray:
    """A tensor as an array; what there is none of is an empty one."""
    return np.empty(shape, dtype) if given is None else given.contiguous().numpy()
