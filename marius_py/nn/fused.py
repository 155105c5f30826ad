"""Loss and gradients of a batch in closed form (floor 1): the fast path, equal to `autograd_gradients`.

A batch is worked through in groups of chunks: rows gathered and queries made for a whole group, then, in
blocks of edges whose scores stay in cache, scores by one matrix product, weights in place, gradients of
queries and candidates by two more products; last the group's gradients are added to their rows. Nothing of
size (C, P, K), (C, K, D) or (B, D) is ever whole, no autograd graph is built, and all scratch is reused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from marius_py.nn.decoders.base import ClosedFormDecoder, Decoder, written_together
from marius_py.nn.fused_scratch import BlockScratch, Query, Rows, Scratch
from marius_py.nn.gradients import Gradients, StepInput, add_penalty
from marius_py.nn.kernels.host import add_rows
from marius_py.nn.kernels.objectives import Objective, closed_form
from marius_py.nn.kernels.similarity import SIMILARITIES, Similarity
from marius_py.nn.kernels.workspace import Workspace
from marius_py.nn.losses import Loss
from marius_py.nn.regularizers import Regularizer
from marius_py.types import Side

BLOCK_SCORES = {"cpu": 1 << 19, "cuda": 1 << 27}
"""Scores a block: 2 MiB stay in a core's cache; a device wants few launches."""

LEAST_EDGES = 128
"""Edges a block at least: with fewer, reading all candidates once a block costs more than their products."""


@dataclass(frozen=True, slots=True)
class ClosedForm:
    """A decoder and a loss whose gradients are known."""

    decoder: ClosedFormDecoder
    similarity: Similarity
    objective: Objective


def find_closed_form(decoder: Decoder, loss: Loss) -> ClosedForm | None:
    """How to compute this pair's gradients without autograd, or None.

    A subclass that changes a decoder's `query`, `compare` or `score` but not its closed form goes through
    autograd: all of them must come from the class that also wrote `query_backward`.
    """
    objective = closed_form(loss)
    if objective is None or not isinstance(decoder, ClosedFormDecoder) or decoder.similarity is None:
        return None
    if not written_together(decoder, "query", "compare", "score", "query_into", "query_backward"):
        return None
    return ClosedForm(decoder, SIMILARITIES[decoder.similarity], objective)


def fused_gradients(
    form: ClosedForm, regularizers: Sequence[Regularizer], given: StepInput, workspace: Workspace
) -> Gradients:
    """Loss and gradients of a batch without autograd; both sides must have the same number of chunks.

    The returned tensors live in the workspace. The loss is infinite or NaN if scores overflow the float range
    relative to the positive ones; gradients are then worthless and must be computed by autograd.
    """
    batch = given.batch
    dim = batch.rows.shape[1]
    # As wide as the sums of candidates' gradients, which are then added without a copy.
    d_padded = workspace.zeros("d_rows", len(batch.rows), form.similarity.widths(dim, 0)[1])
    d_rows = d_padded[:, :dim]
    d_relations = workspace.zeros("d_relations", *given.relations.shape)
    contrasts = {side: _Contrast(form, given, side, d_padded, workspace) for side in given.sides}
    extended = _extended_rows(form, given, list(contrasts.values()), workspace)
    for contrast in contrasts.values():
        contrast.extended_rows = extended
    losses: list[Tensor] = []
    groups, blocks = _divide(list(contrasts.values()), d_rows.device.type)
    for chunks in groups:
        losses += _group(given, contrasts, chunks, blocks, d_padded, d_relations, workspace)
    for regularizer in regularizers:
        add_penalty(regularizer, given, form.decoder, d_rows, d_relations)
    return Gradients(d_rows, d_relations, torch.cat(losses).sum() / len(batch.head))


def _extended_rows(
    form: ClosedForm, given: StepInput, contrasts: Sequence[_Contrast], workspace: Workspace
) -> Tensor | None:
    """All rows as candidates (U, W); None where that is more work than extending candidates one by one."""
    rows = given.batch.rows
    if not all(contrast.takes_rows_as_they_are for contrast in contrasts):
        return None
    if sum(contrast.num_chunks * contrast.count for contrast in contrasts) < len(rows):
        return None
    dim = rows.shape[1]
    extended = workspace.take("extended_rows", len(rows), form.similarity.widths(dim, 0)[0])
    extended[:, :dim].copy_(rows)
    form.similarity.extend_candidates(extended, dim)
    return extended


def _divide(contrasts: Sequence[_Contrast], device: str) -> tuple[list[slice], list[slice]]:
    """Groups of chunks, and blocks of each chunk's edges: many small chunks at once, large ones in parts."""
    limit = BLOCK_SCORES.get(device, BLOCK_SCORES["cuda"])
    num_chunks, chunk_edges = contrasts[0].num_chunks, contrasts[0].chunk_edges
    scores = max(1, chunk_edges * max(contrast.count for contrast in contrasts))
    group = max(1, limit // scores)
    group = -(-num_chunks // -(-num_chunks // group))  # groups of nearly equal size
    size = max(-(-chunk_edges // (1 if group > 1 else -(-scores // limit))), min(LEAST_EDGES, chunk_edges))
    groups = [slice(first, min(first + group, num_chunks)) for first in range(0, num_chunks, group)]
    return groups, [slice(first, min(first + size, chunk_edges)) for first in range(0, chunk_edges, size)]


def _group(
    given: StepInput,
    contrasts: dict[Side, _Contrast],
    chunks: slice,
    blocks: Sequence[slice],
    d_rows: Tensor,
    d_relations: Tensor,
    workspace: Workspace,
) -> list[Tensor]:
    """Both sides of a group's edges; adds to d_rows (U, G) and d_relations (V, Dr), returns their losses."""
    batch = given.batch
    chunk_edges = len(batch.head) // next(iter(contrasts.values())).num_chunks
    edges = slice(chunks.start * chunk_edges, chunks.stop * chunk_edges)
    width = d_rows.shape[1]
    head = Rows("head", batch.rows, batch.head[edges], width, workspace)
    tail = Rows("tail", batch.rows, batch.tail[edges], width, workspace)
    losses = []
    for group in given.relation_groups:
        index = given.relation_index[group[0]][edges]
        relation = Rows("relation", given.relations, index, d_relations.shape[1], workspace)
        for side in group:
            known, answer = (head, tail) if side == "tail" else (tail, head)
            losses.append(contrasts[side].contrast(chunks, blocks, known, answer, relation))
        relation.add_gradient(d_relations)
    head.add_gradient(d_rows)
    tail.add_gradient(d_rows)
    return losses


class _Contrast:
    """One corrupted side of a batch."""

    def __init__(
        self, form: ClosedForm, given: StepInput, side: Side, d_rows: Tensor, workspace: Workspace
    ) -> None:
        self._form = form
        self._side = given.query_side(side)
        self._rows = given.batch.rows
        self._negatives = negatives = given.batch.negatives[side]
        self._masks = given.masks.sides[side]
        self._name = side
        self._d_rows = d_rows
        self._edges = len(given.batch.head)
        self._dim = self._rows.shape[1]
        self.extended_rows: Tensor | None = None
        # Weights of groups of negatives ride in the products where they can, else they are multiplied in.
        importance, self._groups = negatives.importance, 0
        if importance is not None and form.objective.exponential and form.similarity.adds_biases:
            self._groups = importance.weight.shape[2]
        self._widths = form.similarity.widths(self._dim, self._groups)
        self._workspace = workspace
        self.num_chunks, self.count = negatives.nodes.shape
        self.chunk_edges = self._edges // self.num_chunks
        # A list of positions is found by the block where it lies on the host; a device would have to wait.
        on_host = d_rows.device.type == "cpu"
        self._dropped = negatives.dropped if on_host else None
        self._keep = negatives.keep if on_host else negatives.mask(self._edges)

    @property
    def takes_rows_as_they_are(self) -> bool:
        """Whether candidates are rows without dropout and belong to no groups."""
        return not self._masks.candidates.active and not self._groups

    def _load(self, chunks: slice) -> tuple[Tensor, Tensor, Tensor | None]:
        """Rows, extended, of a group's candidates (g, K, W), their nodes (g · K,) and dropout masks."""
        similarity, dim, count = self._form.similarity, self._dim, self.count
        nodes = self._negatives.nodes[chunks].reshape(-1)
        candidates = self._workspace.take("candidates", len(nodes), self._widths[0])
        if self.extended_rows is not None:
            torch.index_select(self.extended_rows, 0, nodes, out=candidates)
            return candidates.view(-1, count, self._widths[0]), nodes, None
        mask = self._masks.candidates.take(len(nodes))
        gathered = self._workspace.take("gathered", len(nodes), dim)
        torch.index_select(self._rows, 0, nodes, out=gathered)
        if mask is None:
            candidates[:, :dim].copy_(gathered)
        else:
            torch.mul(gathered, mask, out=candidates[:, :dim])
        candidates = candidates.view(-1, count, self._widths[0])
        importance = self._negatives.importance
        group = importance.group[chunks] if importance is not None and self._groups else None
        similarity.extend_candidates(candidates, dim, group)
        return candidates, nodes, mask

    def _scratch(self, chunks: int, blocks: Sequence[slice]) -> Scratch:
        key = ("group", chunks, self.chunk_edges, self.count, self._dim, *self._widths, len(blocks))
        make = lambda: Scratch(  # noqa: E731
            chunks, self.chunk_edges, self.count, self._dim, self._widths, blocks, self._workspace
        )
        return self._workspace.remember(key, make)

    def contrast(
        self, chunks: slice, blocks: Sequence[slice], known: Rows, answer: Rows, relation: Rows
    ) -> Tensor:
        """Contrast the edges of a group; adds to the gradients of all rows, returns the losses (n,)."""
        similarity, decoder, masks, side = self._form.similarity, self._form.decoder, self._masks, self._side
        scratch = self._scratch(chunks.stop - chunks.start, blocks)
        node, of_relation = known.use("node", masks.node), relation.use("relation", masks.relation)
        answer_use = answer.use("answer", masks.answer)
        query = asked = Query(decoder, side, node, of_relation, scratch.query)
        if masks.two_queries:
            node = known.use("positive_node", masks.positive_node)
            of_relation = relation.use("positive_relation", masks.positive_relation)
            asked = Query(decoder, side, node, of_relation, scratch.positive_query)
        positive = similarity.positive(asked.values, answer_use.values, scratch.pairs)
        importance, biases = self._negatives.importance, None
        if importance is not None and self._groups:
            biases = importance.weight[chunks].log().view(-1, self._groups)
        shift = self._form.objective.shift(positive)
        similarity.extend_queries(scratch.extended, self._dim, shift, biases)

        loss, factor, d_positive = self._products(chunks, scratch, positive)
        d_query = d_asked = scratch.d_query.mul_(factor)
        if asked is not query:
            d_asked = scratch.d_positive_query.zero_()
        similarity.positive_gradient(
            asked.values, answer_use.values, d_positive, d_asked, answer_use.gradient, scratch.pairs
        )
        query.backward(d_query)
        if asked is not query:
            asked.backward(d_asked)
        answer_use.close()
        return loss.view(-1)

    def _products(self, chunks: slice, scratch: Scratch, positive: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """All that touches scores: fills d_query but for its factor, adds to the candidates' gradients.

        Returns:
            Losses, the factors of d_query, and the gradients of the positive scores, all (n, 1).
        """
        similarity, objective, dim = self._form.similarity, self._form.objective, self._dim
        candidates, nodes, mask = self._load(chunks)
        sums = self._workspace.take("candidate_sums", *candidates.shape[:2], self._widths[1])
        members = None
        if self._negatives.importance is not None and not self._groups:
            members = self._negatives.importance.members(chunks)
        positives = positive.view(len(candidates), -1)
        dropped = self._dropped_of(chunks, scratch)
        results: list[tuple[Tensor, Tensor, Tensor]] = []
        for block, left_out in zip(scratch.blocks, dropped, strict=True):
            scores = block.scores
            similarity.scores(block.query, candidates, dim, self._groups, scores, block.inverse)
            counts = self._counts(chunks, block, members)
            losses = objective.weigh(scores, counts, left_out, block.softplus)
            row_sums = similarity.query_gradient(
                scores, block.query, candidates, dim, block.d_query, block.inverse
            )
            loss, factor, d_positive = objective.reduce(
                positives[:, block.edges].unsqueeze(-1),
                row_sums.unsqueeze(-1),
                None if losses is None else losses.unsqueeze(-1),
                self._counted(counts, left_out, block) if objective.averages else None,
            )
            factor = factor.div_(self._edges)
            torch.mul(block.unscaled, factor, out=block.scaled)
            similarity.candidate_gradient(scores, block.scaled, sums, add=len(results) > 0)
            results.append((loss, factor, d_positive.div_(self._edges)))
        gradient = similarity.finish_candidates(sums, candidates, dim)
        if mask is not None:
            gradient.mul_(mask.view_as(gradient))
        add_rows(self._d_rows, nodes, sums.view(len(nodes), -1))
        if len(results) == 1:
            loss, factor, d_positive = results[0]
        else:
            loss, factor, d_positive = (torch.cat(parts, 1) for parts in zip(*results, strict=True))
        return loss.view(-1, 1), factor.view(-1, 1), d_positive.view(-1, 1)

    def _dropped_of(self, chunks: slice, scratch: Scratch) -> list[Tensor | None]:
        """Positions that each block leaves out, in its own flattened (g, n, K)."""
        if self._dropped is None:
            return [None] * len(scratch.blocks)
        # Blocks of a group of more than one chunk are whole chunks: each lies in one piece.
        size = self.chunk_edges * self.count
        last = (chunks.stop - chunks.start - 1) * size
        first = [chunks.start * size + block.first for block in scratch.blocks]
        bounds = [*first, chunks.start * size + last + scratch.blocks[-1].stop]
        cuts = torch.searchsorted(self._dropped, torch.tensor(bounds)).tolist()
        return [
            self._dropped[low:high] - offset if low < high else None
            for low, high, offset in zip(cuts[:-1], cuts[1:], first, strict=True)
        ]

    def _counts(self, chunks: slice, block: BlockScratch, members: Tensor | None) -> Tensor | None:
        """What each negative counts for each edge (g, n, K): int8 if it counts or not, or float32."""
        keep, importance = self._keep, self._negatives.importance
        if keep is not None:
            keep = keep[chunks, block.edges].view(torch.int8)
        if importance is None or members is None:
            return keep
        # A product with rows of which one is 1 looks the weight up, faster than indexing does.
        torch.bmm(importance.weight[chunks, block.edges], members, out=block.counts)
        return block.counts if keep is None else block.counts.mul_(keep)

    def _counted(self, counts: Tensor | None, left_out: Tensor | None, block: BlockScratch) -> Tensor:
        """Number of negatives that count, for each edge (g, n, 1) or for all ()."""
        if counts is None:
            if left_out is None:
                return torch.tensor(self.count, device=self._d_rows.device)
            edges = torch.bincount(left_out // self.count, minlength=block.scores[..., 0].numel())
            return (self.count - edges).view(*block.scores.shape[:2], 1)
        if left_out is not None:
            counts = counts if counts is block.counts else counts.clone()  # the batch's own mask
            counts.view(-1).index_fill_(0, left_out, 0)
        return counts.sum(-1, keepdim=True)
