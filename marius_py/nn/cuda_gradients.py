"""Loss and gradients of a batch on a device (floor 1): `fused_gradients` for few launches and no waiting.

The whole batch is one block, and the contrast with the negatives is one kernel of `cuda_kernels`. Nothing
here asks the device for a value, so the host runs ahead of it. Scores never overflow: no result has to be
checked and computed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from marius_py.nn.closed_query import Query
from marius_py.nn.cuda_kernels import Kernels, TorchKernels, TritonKernels
from marius_py.nn.decoders.base import ClosedFormDecoder
from marius_py.nn.decoders.complex import ComplEx
from marius_py.nn.decoders.distmult import DistMult
from marius_py.nn.fused_contrast import ClosedForm
from marius_py.nn.gradients import Gradients, StepInput, relations_are_complex
from marius_py.nn.kernels.objectives import LogisticObjective, Objective, SoftmaxObjective
from marius_py.nn.kernels.similarity import DotSimilarity
from marius_py.nn.regularizers import N3, Regularizer
from marius_py.types import Side


def takes(form: ClosedForm | None) -> bool:
    """Whether `device_gradients` can compute this pair of decoder and loss."""
    return (
        form is not None
        and isinstance(form.similarity, DotSimilarity)
        and type(form.objective) in (SoftmaxObjective, LogisticObjective)
        and getattr(form.objective, "temperature", 0) == 0
    )


def contrasted_by(kernels: Kernels, form: ClosedForm | None) -> str:
    """Name of the kernels that contrast batches with their negatives.

    Args:
        kernels: those of the model.
        form: its decoder and loss, if they have a closed form.
    """
    if form is None or not takes(form):
        return TorchKernels.name
    too_wide = isinstance(kernels, TritonKernels) and form.decoder.dim > kernels.widest
    return TorchKernels.name if too_wide else kernels.name


def _shift(objective: Objective) -> float:
    """What is added to the candidates' scores."""
    return float(
        getattr(objective, "log_weight" if isinstance(objective, SoftmaxObjective) else "margin", 0.0)
    )


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of a batch's edges and their gradient, both (B, width)."""

    values: Tensor
    gradient: Tensor

    @classmethod
    def of(cls, table: Tensor, index: Tensor) -> _Rows:
        values = table.index_select(0, index)
        return cls(values, torch.zeros_like(values))

    def use(self, mask: Tensor | None) -> _Use:
        if mask is None:
            return _Use(self.values, self.gradient, self.gradient, None)
        return _Use(self.values * mask, torch.zeros_like(self.values), self.gradient, mask)


@dataclass(frozen=True, slots=True)
class _Use:
    """One use of rows: `values` after its dropout, and the `gradient` of those."""

    values: Tensor
    gradient: Tensor
    into: Tensor
    mask: Tensor | None

    def close(self) -> None:
        """Take the gradient back through dropout to the rows."""
        if self.mask is not None:
            self.into.addcmul_(self.gradient, self.mask)


def device_gradients(
    form: ClosedForm, regularizers: Sequence[Regularizer], given: StepInput, kernels: Kernels
) -> Gradients:
    """Loss and gradients of a batch whose decoder and loss `takes` agreed to."""
    batch = given.batch
    d_rows = torch.zeros_like(batch.rows)
    d_relations = torch.zeros_like(given.relations)
    if isinstance(kernels, TritonKernels) and _is_product(form.decoder, given):
        total = _products(form, given, d_rows, d_relations, kernels)
    else:
        total = _any_decoder(form, given, d_rows, d_relations, kernels)
    for regularizer in regularizers:
        _penalize(form.decoder, regularizer, given, d_rows, d_relations, kernels)
    return Gradients(d_rows, d_relations, total / len(batch.head))


def _is_product(decoder: ClosedFormDecoder, given: StepInput) -> bool:
    """Whether queries are products of node and relation, and no row is dropped out."""
    masks = given.masks.sides.values()
    dropped = any(side.two_queries or side.answer.active or side.candidates.active for side in masks)
    return type(decoder) in (ComplEx, DistMult) and not dropped


def _products(
    form: ClosedForm, given: StepInput, d_rows: Tensor, d_relations: Tensor, kernels: TritonKernels
) -> Tensor:
    """Sum () of the losses; adds to d_rows (U, D) and d_relations (V, D). See `triton_edges`."""
    batch = given.batch
    total = batch.rows.new_zeros(())
    for side in given.sides:
        known, answer = (batch.head, batch.tail) if side == "tail" else (batch.tail, batch.head)
        ends = (batch.rows, given.relations, known, answer, given.relation_index[side])
        kind: dict[str, Any] = {
            "is_complex": form.decoder.complex_halves,
            "sign": 1 if given.query_side(side) == "tail" else -1,
        }
        queries, positive = kernels.make_queries(*ends, **kind)
        losses, slopes, d_queries = _negatives(form, given, side, queries, positive, d_rows, kernels, None)
        kernels.queries_backward(*ends, queries, d_queries, slopes, d_rows, d_relations, **kind)
        total = total + losses
    return total


def _any_decoder(
    form: ClosedForm, given: StepInput, d_rows: Tensor, d_relations: Tensor, kernels: Kernels
) -> Tensor:
    """Sum () of the losses; adds to d_rows (U, D) and d_relations (V, Dr)."""
    batch = given.batch
    head, tail = _Rows.of(batch.rows, batch.head), _Rows.of(batch.rows, batch.tail)
    total = batch.rows.new_zeros(())
    for group in given.relation_groups:
        index = given.relation_index[group[0]]
        relation = _Rows.of(given.relations, index)
        for side in group:
            known, answer = (head, tail) if side == "tail" else (tail, head)
            total = total + _contrast(form, given, side, (known, answer, relation), d_rows, kernels)
        d_relations.index_add_(0, index, relation.gradient)
    d_rows.index_add_(0, batch.head, head.gradient)
    d_rows.index_add_(0, batch.tail, tail.gradient)
    return total


def _contrast(
    form: ClosedForm,
    given: StepInput,
    side: Side,
    rows: tuple[_Rows, _Rows, _Rows],
    d_rows: Tensor,
    kernels: Kernels,
) -> Tensor:
    """Sum () of the losses of one corrupted side; adds to the gradients of the rows and to d_rows (U, D)."""
    known, answer, relation = rows
    decoder, masks = form.decoder, given.masks.sides[side]
    asked_side = given.query_side(side)
    edges = len(known.values)
    answers = answer.use(masks.answer.take(edges))
    node, of_relation = known.use(masks.node.take(edges)), relation.use(masks.relation.take(edges))
    query = asked = Query(decoder, asked_side, node, of_relation, torch.empty_like(node.values))
    if masks.two_queries:
        node = known.use(masks.positive_node.take(edges))
        of_relation = relation.use(masks.positive_relation.take(edges))
        asked = Query(decoder, asked_side, node, of_relation, torch.empty_like(node.values))
    positive = (asked.values * answers.values).sum(1)
    mask = masks.candidates.take(given.batch.negatives[side].nodes.numel())
    losses, slopes, d_query = _negatives(form, given, side, query.values, positive, d_rows, kernels, mask)
    own = slopes.view(-1, 1)
    if asked is query:
        query.backward(d_query.addcmul_(answers.values, own))
    else:
        query.backward(d_query)
        asked.backward(answers.values * own)
    answers.gradient.addcmul_(asked.values, own)
    answers.close()
    return losses


def _negatives(
    form: ClosedForm,
    given: StepInput,
    side: Side,
    queries: Tensor,
    positive: Tensor,
    d_rows: Tensor,
    kernels: Kernels,
    mask: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Contrast queries (B, D) and their answers' scores (B,) with a side's negatives.

    Args:
        mask: (C · K, D) dropout of the negatives.

    Returns:
        Sum () of the losses, gradients of the scores (B,) and of the queries (B, D). Those of the negatives
        are added to d_rows.
    """
    batch, objective = given.batch, form.objective
    negatives = batch.negatives[side]
    num_chunks, count = negatives.nodes.shape
    edges, dim = queries.shape
    nodes = negatives.nodes.reshape(-1)
    candidates = kernels.take(batch.rows, nodes)
    if mask is not None:
        candidates.mul_(mask)
    importance, edge_weight = negatives.importance, negatives.edge_weight
    losses, slopes, d_queries, d_candidates = kernels.contrast(
        queries.view(num_chunks, -1, dim),
        candidates.view(num_chunks, count, dim),
        positive.view(num_chunks, -1),
        dropped=negatives.left_out,
        group=None if importance is None else importance.group,
        weight=None if importance is None else importance.weight,
        edge_weight=None if edge_weight is None else edge_weight.view(num_chunks, -1),
        softmax=isinstance(objective, SoftmaxObjective),
        shift=_shift(objective),
        scale=1 / edges,
    )
    d_candidates = d_candidates.view(-1, dim)
    d_rows.index_add_(0, nodes, d_candidates if mask is None else d_candidates.mul_(mask))
    return losses.sum(), slopes.view(-1), d_queries.view(-1, dim)


def _penalize(
    decoder: ClosedFormDecoder,
    regularizer: Regularizer,
    given: StepInput,
    d_rows: Tensor,
    d_relations: Tensor,
    kernels: Kernels,
) -> None:
    """Add the gradients of a penalty, as `gradients.penalty_factors` weighs it."""
    in_one_pass = isinstance(kernels, TritonKernels) and type(regularizer).gradient is N3.gradient
    batch = given.batch
    edges = len(batch.head)
    indices = [given.relation_index[group[0]] for group in given.relation_groups]
    for table, sums, used, weight, is_complex in (
        (batch.rows, d_rows, [batch.head, batch.tail], regularizer.weight, decoder.complex_halves),
        (given.relations, d_relations, indices, regularizer.relation_weight, relations_are_complex(decoder)),
    ):
        occurrences = table.new_zeros(len(table))  # bincount would make the host wait for the largest index
        for index in used:
            occurrences.index_add_(0, index, occurrences.new_ones(1).expand(len(index)))
        if not regularizer.weighted:
            occurrences.clamp_max_(1)
        factors = occurrences.mul_(weight / edges)
        if in_one_pass and table.is_contiguous():
            kernels.add_n3(table, factors, sums, is_complex=is_complex)  # type: ignore[attr-defined]
        else:
            factor = factors.unsqueeze(1)
            # Rows that occur as negatives only have no penalty, be its gradient no number there.
            sums.addcmul_(torch.where(factor > 0, regularizer.gradient(table, is_complex), 0.0), factor)
