"""Loss and gradients of a batch (floor 1), for any decoder and loss, by autograd: the reference path.

`StepInput` is what a path needs, `Gradients` what it returns; `fused.fused_gradients` is the other path.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from marius_py.nn.batch import Batch
from marius_py.nn.decoders.base import Decoder, queries_of, scores_of
from marius_py.nn.dropout import BatchMasks
from marius_py.nn.losses import Loss
from marius_py.nn.regularizers import Regularizer
from marius_py.types import SIDES, Side


@dataclass(frozen=True, slots=True)
class StepInput:
    """A batch with its relation rows.

    Attributes:
        batch: rows, indices and negatives.
        relations: (V, Dr) rows of the batch's unique relations.
        relation_index: side → (B,) int64 indices into `relations`; the same tensor unless reciprocal.
        masks: dropout multipliers.
        reciprocal: whether a head side is asked as a tail query of the reciprocal relation.
    """

    batch: Batch
    relations: Tensor
    relation_index: dict[Side, Tensor]
    masks: BatchMasks
    reciprocal: bool

    @property
    def sides(self) -> list[Side]:
        """Corrupted sides, heads first."""
        return [side for side in SIDES if side in self.batch.negatives]

    @property
    def relation_groups(self) -> list[list[Side]]:
        """Sides that share an edge's relation row: both together, or each for itself if reciprocal."""
        return [[side] for side in self.sides] if self.reciprocal else [self.sides]

    def query_side(self, side: Side) -> Side:
        """The side that the decoder is asked for."""
        return "tail" if self.reciprocal else side


@dataclass(frozen=True, slots=True)
class Gradients:
    """Gradients of the mean loss an edge plus the penalties.

    Attributes:
        rows: (U, D).
        relations: (V, Dr).
        loss: () mean loss an edge, both sides summed, penalties left out.
    """

    rows: Tensor
    relations: Tensor
    loss: Tensor


def penalty_factors(regularizer: Regularizer, given: StepInput) -> tuple[Tensor, Tensor]:
    """Factors of each row's penalty in the objective, for node rows (U,) and relation rows (V,)."""
    batch = given.batch
    occurrences = torch.bincount(torch.cat((batch.head, batch.tail)), minlength=len(batch.rows))
    indices = [given.relation_index[group[0]] for group in given.relation_groups]
    relation_occurrences = torch.bincount(torch.cat(indices), minlength=len(given.relations))
    if not regularizer.weighted:
        occurrences = occurrences.clamp_max_(1)
        relation_occurrences = relation_occurrences.clamp_max_(1)
    edges, dtype = len(batch.head), batch.rows.dtype
    return (
        occurrences.to(dtype) * (regularizer.weight / edges),
        relation_occurrences.to(dtype) * (regularizer.relation_weight / edges),
    )


def _at_once(count: int, work: Callable[[slice], None]) -> None:
    work(slice(0, count))


def add_penalty(
    regularizer: Regularizer,
    given: StepInput,
    decoder: Decoder,
    d_rows: Tensor,
    d_relations: Tensor,
    share: Callable[[int, Callable[[slice], None]], None] = _at_once,
) -> None:
    """Add the gradients of a penalty to those of node rows (U, D) and relation rows (V, Dr).

    Rows that no edge of the batch has are let alone: with many negatives they are the most. A device would
    have to wait for their number. `share` has a function do so many rows, perhaps in several threads.
    """
    tables = (
        (given.batch.rows, d_rows, decoder.complex_halves),
        (given.relations, d_relations, relations_are_complex(decoder)),
    )
    for factors, (rows, out, is_complex) in zip(penalty_factors(regularizer, given), tables, strict=True):
        mine = factors.nonzero().view(-1)
        add = partial(_add_penalty_of, regularizer, is_complex, mine, factors, rows, out)
        if len(mine):
            share(len(mine), add)


def _add_penalty_of(
    regularizer: Regularizer,
    is_complex: bool,
    mine: Tensor,
    factors: Tensor,
    rows: Tensor,
    out: Tensor,
    part: slice,
) -> None:
    """Add the gradients of the penalty of the rows `mine[part]`, each of which has a factor."""
    which = part if len(mine) == len(rows) else mine[part]
    regularizer.add_gradient(rows, is_complex, factors, out, which)


def relations_are_complex(decoder: Decoder) -> bool:
    """Whether relation rows, like node rows, are complex vectors."""
    return decoder.complex_halves and decoder.relation_dim == decoder.dim


def masked(rows: Tensor, mask: Tensor | None) -> Tensor:
    """Rows after dropout."""
    return rows if mask is None else rows * mask


def _counting(scores: Tensor, weight: Tensor) -> Tensor:
    """Scores as they are, whose gradients are multiplied by a weight of the same shape on the way back."""
    still = scores.detach()
    return still + weight * (scores - still)


def _contrast(
    decoder: Decoder, loss: Loss, given: StepInput, side: Side, rows: Tensor, relations: Tensor
) -> Tensor:
    """Mean loss () of one corrupted side, from the batch's rows (U, D) and relation rows (V, Dr)."""
    batch, masks, asked = given.batch, given.masks.sides[side], given.query_side(side)
    known, answer = (batch.head, batch.tail) if side == "tail" else (batch.tail, batch.head)
    edges, dim = len(known), rows.shape[1]
    # Indexing by brackets gives the same rows, but takes several times as long on the way back.
    known_rows = rows.index_select(0, known)
    relation_rows = relations.index_select(0, given.relation_index[side])
    query = positive_query = queries_of(
        decoder,
        masked(known_rows, masks.node.take(edges)),
        masked(relation_rows, masks.relation.take(edges)),
        asked,
    )
    if masks.two_queries:
        node_mask, relation_mask = masks.positive_node.take(edges), masks.positive_relation.take(edges)
        positive_query = queries_of(
            decoder, masked(known_rows, node_mask), masked(relation_rows, relation_mask), asked
        )
    positive = decoder.score(positive_query, masked(rows.index_select(0, answer), masks.answer.take(edges)))
    negatives = batch.negatives[side]
    num_chunks, count = negatives.nodes.shape
    candidates = rows.index_select(0, negatives.nodes.flatten())
    candidates = masked(candidates, masks.candidates.take(num_chunks * count))
    scores = scores_of(decoder, query.view(num_chunks, -1, dim), candidates.view(num_chunks, count, dim))
    scores = scores.reshape(-1, count)
    if negatives.edge_weight is not None:
        positive = _counting(positive, negatives.edge_weight)
        scores = _counting(scores, negatives.edge_weight.unsqueeze(1))
    keep = negatives.mask(edges)
    keep = None if keep is None else keep.view(-1, count)
    if negatives.importance is None:
        return loss(positive, scores, keep)
    weight = torch.bmm(negatives.importance.weight, negatives.importance.members())
    return loss.weighted(positive, scores, keep, weight.view(-1, count))


def autograd_gradients(
    decoder: Decoder, loss: Loss, regularizers: Sequence[Regularizer], given: StepInput
) -> Gradients:
    """Loss and gradients of a batch through an autograd graph; right for every decoder and loss."""
    batch = given.batch
    with torch.enable_grad():
        rows = batch.rows.detach().requires_grad_()
        relations = given.relations.detach().requires_grad_()
        total = rows.new_zeros(())
        for side in given.sides:
            total = total + _contrast(decoder, loss, given, side, rows, relations)
        objective = total
        for regularizer in regularizers:
            tables = (rows, decoder.complex_halves), (relations, relations_are_complex(decoder))
            for factors, (table, is_complex) in zip(penalty_factors(regularizer, given), tables, strict=True):
                mine = factors.nonzero().view(-1)
                if len(mine):
                    objective = objective + factors[mine] @ regularizer.penalty(table[mine], is_complex)
        d_rows, d_relations = torch.autograd.grad(objective, (rows, relations), allow_unused=True)
    return Gradients(
        torch.zeros_like(rows) if d_rows is None else d_rows,
        torch.zeros_like(relations) if d_relations is None else d_relations,
        total.detach(),
    )
