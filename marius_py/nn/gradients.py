"""Loss and gradients of a batch (floor 1), for any decoder and loss, by autograd: the reference path.

`StepInput` is what a path needs, `Gradients` what it returns; `fused.fused_gradients` is the other path.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from marius_py.nn.batch import Batch, Corruption
from marius_py.nn.decoders.base import Decoder
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
        masks: dropout multipliers; sides that share relation rows use the first side's.
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
    edges = len(batch.head)
    return (
        occurrences * (regularizer.weight / edges),
        relation_occurrences * (regularizer.relation_weight / edges),
    )


def relations_are_complex(decoder: Decoder) -> bool:
    """Whether relation rows, like node rows, are complex vectors."""
    return decoder.complex_halves and decoder.relation_dim == decoder.dim


def masked(rows: Tensor, mask: Tensor | None) -> Tensor:
    """Rows after dropout."""
    return rows if mask is None else rows * mask


def _contrast(
    decoder: Decoder, loss: Loss, query: Tensor, answer: Tensor, candidates: Tensor, negatives: Corruption
) -> Tensor:
    """Mean loss () of queries (B, D) with their answers (B, D) and shared candidates (C · K, D)."""
    num_chunks, count = negatives.nodes.shape
    dim = query.shape[1]
    positive = decoder.score(query, answer)
    scores = decoder.compare(query.view(num_chunks, -1, dim), candidates.view(num_chunks, count, dim))
    keep = None if negatives.keep is None else negatives.keep.view(-1, count)
    return loss(positive, scores.reshape(-1, count), keep)


def autograd_gradients(
    decoder: Decoder, loss: Loss, regularizers: Sequence[Regularizer], given: StepInput
) -> Gradients:
    """Loss and gradients of a batch through an autograd graph; right for every decoder and loss."""
    batch, masks = given.batch, given.masks
    with torch.enable_grad():
        rows = batch.rows.detach().requires_grad_()
        relations = given.relations.detach().requires_grad_()
        edges = len(batch.head)
        head = masked(rows[batch.head], masks.head.take(edges))
        tail = masked(rows[batch.tail], masks.tail.take(edges))
        total = rows.new_zeros(())
        for group in given.relation_groups:
            relation_mask = masks.relation[group[0]].take(edges)
            relation = masked(relations[given.relation_index[group[0]]], relation_mask)
            for side in group:
                known, answer = (head, tail) if side == "tail" else (tail, head)
                query = decoder.query(known, relation, given.query_side(side))
                negatives = batch.negatives[side]
                candidate_mask = masks.candidates[side].take(negatives.nodes.numel())
                candidates = masked(rows[negatives.nodes.flatten()], candidate_mask)
                total = total + _contrast(decoder, loss, query, answer, candidates, negatives)
        objective = total
        for regularizer in regularizers:
            node_factors, relation_factors = penalty_factors(regularizer, given)
            of_nodes = regularizer.penalty(rows, decoder.complex_halves)
            of_relations = regularizer.penalty(relations, relations_are_complex(decoder))
            objective = objective + node_factors @ of_nodes + relation_factors @ of_relations
        d_rows, d_relations = torch.autograd.grad(objective, (rows, relations), allow_unused=True)
    return Gradients(
        torch.zeros_like(rows) if d_rows is None else d_rows,
        torch.zeros_like(relations) if d_relations is None else d_relations,
        total.detach(),
    )
