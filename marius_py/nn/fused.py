"""Loss and gradients of a batch in closed form (floor 1): the fast path, equal to `autograd_gradients`.

A batch is worked through in blocks of edges of one chunk, each block in one go: rows gathered, queries made,
scores by one matrix product, weights in place, gradients of queries and candidates by two more products,
gradients added to their rows. A block's tensors stay in cache; nothing of size (C, P, K), (C, K, D) or (B, D)
is ever whole, no autograd graph is built, and all scratch is reused.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from marius_py.nn.decoders.base import ClosedFormDecoder, Decoder
from marius_py.nn.dropout import RowMasks
from marius_py.nn.gradients import Gradients, StepInput, penalty_factors, relations_are_complex
from marius_py.nn.kernels.objectives import Objective, closed_form
from marius_py.nn.kernels.similarity import SIMILARITIES, Similarity
from marius_py.nn.kernels.workspace import Workspace
from marius_py.nn.losses import Loss
from marius_py.nn.regularizers import Regularizer
from marius_py.types import Side

BLOCK_SCORES = {"cpu": 1 << 18, "cuda": 1 << 27}
"""Scores a block: a MiB stays in a core's cache; a device wants few launches."""

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
    owners = {_owner(decoder, name) for name in ("query", "compare", "score", "query_into", "query_backward")}
    if len(owners) > 1:
        return None
    return ClosedForm(decoder, SIMILARITIES[decoder.similarity], objective)


def _owner(decoder: Decoder, name: str) -> type:
    return next(cls for cls in type(decoder).__mro__ if name in vars(cls))


def fused_gradients(
    form: ClosedForm, regularizers: Sequence[Regularizer], given: StepInput, workspace: Workspace
) -> Gradients:
    """Loss and gradients of a batch without autograd; both sides must have the same number of chunks.

    The returned tensors live in the workspace. The loss is infinite or NaN if scores overflow the float range
    relative to the positive ones; gradients are then worthless and must be computed by autograd.
    """
    batch = given.batch
    d_rows = workspace.zeros("d_rows", *batch.rows.shape)
    d_relations = workspace.zeros("d_relations", *given.relations.shape)
    contrasts = {side: _Contrast(form, given, side, d_rows, workspace) for side in given.sides}
    losses: list[Tensor] = []
    for chunks, blocks in _blocks(contrasts.values(), d_rows.device.type):
        for contrast in contrasts.values():
            contrast.load(chunks)
        for block in blocks:
            losses += _block(given, contrasts, chunks, block, d_rows, d_relations, workspace)
        for contrast in contrasts.values():
            contrast.flush()
    for regularizer in regularizers:
        nodes, relations = penalty_factors(regularizer, given)
        of_nodes = regularizer.gradient(batch.rows, form.decoder.complex_halves)
        of_relations = regularizer.gradient(given.relations, relations_are_complex(form.decoder))
        d_rows.addcmul_(of_nodes, nodes.unsqueeze(1))
        d_relations.addcmul_(of_relations, relations.unsqueeze(1))
    return Gradients(d_rows, d_relations, torch.cat(losses).sum() / len(batch.head))


def _blocks(contrasts: Collection[_Contrast], device: str) -> Iterator[tuple[slice, list[slice]]]:
    """Groups of chunks and blocks of each chunk's edges: many small chunks at once, large ones in parts."""
    limit = BLOCK_SCORES.get(device, BLOCK_SCORES["cuda"])
    num_chunks, chunk_edges = next((contrast.num_chunks, contrast.chunk_edges) for contrast in contrasts)
    scores = max(1, chunk_edges * max(contrast.count for contrast in contrasts))
    group = max(1, limit // scores)
    size = max(-(-chunk_edges // (1 if group > 1 else -(-scores // limit))), min(LEAST_EDGES, chunk_edges))
    blocks = [slice(first, min(first + size, chunk_edges)) for first in range(0, chunk_edges, size)]
    for first in range(0, num_chunks, group):
        yield slice(first, min(first + group, num_chunks)), blocks


def _block(
    given: StepInput,
    contrasts: dict[Side, _Contrast],
    chunks: slice,
    block: slice,
    d_rows: Tensor,
    d_relations: Tensor,
    workspace: Workspace,
) -> list[Tensor]:
    """Both sides of a block's edges; adds to d_rows (U, D) and d_relations (V, Dr), returns their losses."""
    batch = given.batch
    chunk_edges = len(batch.head) // next(iter(contrasts.values())).num_chunks
    edges = slice(chunks.start * chunk_edges + block.start, (chunks.stop - 1) * chunk_edges + block.stop)
    head = _Rows("head", batch.rows, batch.head[edges], workspace)
    tail = _Rows("tail", batch.rows, batch.tail[edges], workspace)
    losses = []
    for group in given.relation_groups:
        relation = _Rows("relation", given.relations, given.relation_index[group[0]][edges], workspace)
        for side in group:
            known, answer = (head, tail) if side == "tail" else (tail, head)
            losses.append(contrasts[side].block(block, known, answer, relation))
        relation.add_gradient(d_relations)
    head.add_gradient(d_rows)
    tail.add_gradient(d_rows)
    return losses


class _Rows:
    """Rows of a block's edges, `values`, and their `gradient`; both (n, width)."""

    def __init__(self, name: str, table: Tensor, index: Tensor, workspace: Workspace) -> None:
        self._index = index
        self._name = name
        self._workspace = workspace
        self.values = torch.index_select(
            table, 0, index, out=workspace.take(name, len(index), table.shape[1])
        )
        self.gradient = workspace.zeros(f"d_{name}", len(index), table.shape[1])

    def use(self, name: str, masks: RowMasks) -> _Use:
        """The rows after dropout; `name` tells apart the uses that are open at once."""
        return _Use(name, self, masks.take(len(self._index)), self._workspace)

    def add_gradient(self, table: Tensor) -> None:
        """Add the gradient to the table's."""
        table.index_add_(0, self._index, self.gradient)


class _Use:
    """One use of rows: `values` after its dropout, and their `gradient`; both (n, width)."""

    def __init__(self, name: str, rows: _Rows, mask: Tensor | None, workspace: Workspace) -> None:
        self._rows, self._mask = rows, mask
        self.values, self.gradient = rows.values, rows.gradient
        if mask is not None:
            self.values = torch.mul(rows.values, mask, out=workspace.take(f"use_{name}", *mask.shape))
            self.gradient = workspace.zeros(f"d_use_{name}", *mask.shape)

    def close(self) -> None:
        """Take the gradient back through dropout to the rows."""
        if self._mask is not None:
            self._rows.gradient.addcmul_(self.gradient, self._mask)


class _Query:
    """A query made of a use of the known node and one of the relation, written into `out` (n, D)."""

    def __init__(
        self, decoder: ClosedFormDecoder, side: Side, node: _Use, relation: _Use, out: Tensor
    ) -> None:
        self._decoder, self._side = decoder, side
        self._node, self._relation = node, relation
        self.values = out
        decoder.query_into(node.values, relation.values, side, out)

    def backward(self, gradient: Tensor) -> None:
        """Add the gradients of what it was made of, from its own (n, D), which may be overwritten."""
        node, relation = self._node, self._relation
        self._decoder.query_backward(
            node.values, relation.values, self._side, gradient, node.gradient, relation.gradient
        )
        node.close()
        relation.close()


class _Scratch:
    """Scratch of a block of g chunks of P edges with K candidates, and the views of it that are used.

    Views are made once for each shape: a step would otherwise spend a few per cent of its time on them.
    """

    def __init__(
        self, chunks: int, edges: int, count: int, dim: int, widths: tuple[int, int], ws: Workspace
    ) -> None:
        width, gradient_width = widths
        flat = chunks * edges
        self.pairs = ws.take("pairs", flat, dim)
        self.scores = ws.take("scores", chunks, edges, count)
        self.inverse = ws.take("inverse", chunks, edges, count)
        self.counts = ws.take("counts", chunks, edges, count)
        self.softplus = ws.take("softplus", chunks, edges, count)
        self.extended = ws.take("query", flat, width)
        self.query = self.extended[:, :dim]
        self.unscaled = self.extended[:, :gradient_width]
        self.queries = self.extended.view(chunks, edges, width)
        self.scaled = ws.take("scaled", flat, gradient_width)
        self.scaled_queries = self.scaled.view(chunks, edges, gradient_width)
        gradient = ws.take("d_query", flat, gradient_width)
        self.d_query = gradient[:, :dim]
        self.d_queries = gradient.view(chunks, edges, gradient_width)
        self.positive_query = ws.take("positive_query", flat, dim)
        self.d_positive_query = ws.take("d_positive_query", flat, dim)


class _Contrast:
    """One corrupted side of a batch: the candidates of the current chunks and what is added up for them."""

    def __init__(
        self, form: ClosedForm, given: StepInput, side: Side, d_rows: Tensor, workspace: Workspace
    ) -> None:
        self._form = form
        self._side = given.query_side(side)
        self._rows = given.batch.rows
        self._negatives = given.batch.negatives[side]
        self._masks = given.masks.sides[side]
        self._name = side
        self._d_rows = d_rows
        self._edges = len(given.batch.head)
        self._dim = d_rows.shape[1]
        self._widths = form.similarity.widths(self._dim)
        self._workspace = workspace
        self.num_chunks, self.count = self._negatives.nodes.shape
        self.chunk_edges = self._edges // self.num_chunks

    def load(self, chunks: slice) -> None:
        """Gather the candidates of a group of chunks."""
        similarity, dim = self._form.similarity, self._dim
        nodes = self._negatives.nodes[chunks]
        shape = (len(nodes), self.count)
        self._chunks = chunks
        self._nodes = nodes.reshape(-1)
        self._mask = self._masks.candidates.take(len(self._nodes))
        gathered = self._workspace.take("gathered", len(self._nodes), dim)
        torch.index_select(self._rows, 0, self._nodes, out=gathered)
        self._candidates = self._workspace.take(f"candidates_{self._name}", *shape, self._widths[0])
        plain = self._candidates[..., :dim]
        if self._mask is None:
            plain.copy_(gathered.view(*shape, dim))
        else:
            torch.mul(gathered.view(*shape, dim), self._mask.view(*shape, dim), out=plain)
        similarity.extend_candidates(self._candidates, dim)
        self._sums = self._workspace.zeros(f"candidate_sums_{self._name}", *shape, self._widths[1])
        importance = self._negatives.importance
        self._members = None if importance is None else importance.members(chunks)

    def _scratch(self, edges: int) -> _Scratch:
        chunks = len(self._candidates)
        key = ("block", chunks, edges, self.count, self._dim, *self._widths)
        return self._workspace.remember(
            key,
            lambda: _Scratch(chunks, edges, self.count, self._dim, self._widths, self._workspace),
        )

    def block(self, block: slice, known: _Rows, answer: _Rows, relation: _Rows) -> Tensor:
        """Contrast the edges of a block; adds to the gradients of the rows, returns their losses (n,)."""
        similarity, objective, decoder = self._form.similarity, self._form.objective, self._form.decoder
        dim, candidates, masks, side = self._dim, self._candidates, self._masks, self._side
        scratch = self._scratch(len(known.values) // len(candidates))
        scores = scratch.scores
        node, of_relation = known.use("node", masks.node), relation.use("relation", masks.relation)
        answer_use = answer.use("answer", masks.answer)
        query = asked = _Query(decoder, side, node, of_relation, scratch.query)
        if masks.two_queries:
            node = known.use("positive_node", masks.positive_node)
            of_relation = relation.use("positive_relation", masks.positive_relation)
            asked = _Query(decoder, side, node, of_relation, scratch.positive_query)
        positive = similarity.positive(asked.values, answer_use.values, scratch.pairs)
        similarity.extend_queries(scratch.extended, dim, objective.shift(positive))

        similarity.scores(scratch.queries, candidates, dim, scores, scratch.inverse)
        counts = self._counts(block, scratch)
        losses = objective.weigh(scores, counts, scratch.softplus)
        row_sums = similarity.query_gradient(
            scores, scratch.queries, candidates, dim, scratch.d_queries, scratch.inverse
        )
        loss, factor, d_positive = objective.reduce(
            positive.view(-1, 1),
            row_sums.reshape(-1, 1),
            None if losses is None else losses.view(-1, 1),
            self._counted(counts) if objective.averages else None,
        )
        factor = factor / self._edges
        torch.mul(scratch.unscaled, factor, out=scratch.scaled)
        similarity.candidate_gradient(scores, scratch.scaled_queries, self._sums)

        d_query = d_asked = scratch.d_query.mul_(factor)
        if asked is not query:
            d_asked = scratch.d_positive_query.zero_()
        own = d_positive.div_(self._edges)
        similarity.positive_gradient(
            asked.values, answer_use.values, own, d_asked, answer_use.gradient, scratch.pairs
        )
        query.backward(d_query)
        if asked is not query:
            asked.backward(d_asked)
        answer_use.close()
        return loss.view(-1)

    def _counts(self, block: slice, scratch: _Scratch) -> Tensor | None:
        """What each negative counts for each edge (g, P, K): int8 if it counts or not, or float32."""
        keep, importance = self._negatives.keep, self._negatives.importance
        if keep is not None:
            keep = keep[self._chunks, block].view(torch.int8)
        if importance is None or self._members is None:
            return keep
        # A product with rows of which one is 1 looks the weight up, faster than indexing does.
        torch.bmm(importance.weight[self._chunks, block], self._members, out=scratch.counts)
        return scratch.counts if keep is None else scratch.counts.mul_(keep)

    def _counted(self, counts: Tensor | None) -> Tensor:
        """Number of negatives that count, for each edge (n, 1) or for all ()."""
        if counts is None:
            return torch.tensor(self.count, device=self._d_rows.device)
        return counts.sum(-1).view(-1, 1)

    def flush(self) -> None:
        """Add the candidates' gradients to their rows."""
        gradient = self._form.similarity.finish_candidates(self._sums, self._candidates, self._dim)
        flat = self._workspace.take("gathered", len(self._nodes), self._dim)  # index_add_ wants it contiguous
        if self._mask is None:
            flat.view_as(gradient).copy_(gradient)
        else:
            torch.mul(gradient, self._mask.view_as(gradient), out=flat.view_as(gradient))
        self._d_rows.index_add_(0, self._nodes, flat)
