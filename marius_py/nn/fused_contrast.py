"""Negatives of a batch's edges (floor 1): queries in, weights and sums of gradients out, block by block.

For any decoder, loss and dropout that have a closed form: candidates are looked up for a group of chunks; in
blocks of edges whose scores stay in cache, one matrix product makes scores, which become weights in place,
and two more make the gradients of queries and candidates; last those of candidates are added to their rows.
Nothing of size (C, P, K), (C, K, D) or (B, D) is ever whole, and all scratch is reused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from marius_py.nn.decoders.base import ClosedFormDecoder, Decoder, declared_similarity, written_together
from marius_py.nn.fused_scratch import BlockScratch, Scratch
from marius_py.nn.gradients import StepInput
from marius_py.nn.kernels.host import add_rows, compiled_distance
from marius_py.nn.kernels.objectives import Objective, SmoothedObjective, SoftmaxObjective, closed_form
from marius_py.nn.kernels.similarity import SIMILARITIES, Similarity
from marius_py.nn.kernels.workspace import Workspace
from marius_py.nn.losses import Loss
from marius_py.types import Side

BLOCK_SCORES = {"cpu": 1 << 19, "cuda": 1 << 27}
"""Scores a block: 2 MiB stay in a core's cache; a device wants few launches."""

LEAST_EDGES = 128
"""Edges a block at least: with fewer, reading all candidates once a block costs more than their products."""


Finish = Callable[[BlockScratch, Tensor, Tensor | None, Tensor | None], None]
"""Finishes the rows of a block, given row sums of weights (g, n), sums of losses (g, n) if the objective has
any, and how many negatives count, (g, n, 1) or (), if it averages: fills the block's `scaled` queries."""


@dataclass(frozen=True, slots=True)
class ClosedForm:
    """A decoder and a loss whose gradients are known."""

    decoder: ClosedFormDecoder
    similarity: Similarity
    objective: Objective

    def steadier(self) -> ClosedForm | None:
        """The same, slower, for scores that this is infinite for; None if there is none."""
        if type(self.objective) is not SoftmaxObjective:
            return None
        return replace(self, objective=SmoothedObjective(self.objective.log_weight, 0.0))


def find_closed_form(decoder: Decoder, loss: Loss, device: str = "cpu") -> ClosedForm | None:
    """How to compute this pair's gradients without autograd on a type of device, or None.

    A subclass that changes a decoder's `query`, `compare` or `score` but not its closed form goes through
    autograd: all of them must come from the class that also wrote `query_backward`, and `similarity` must be
    its word.
    """
    objective = closed_form(loss)
    if objective is None or not isinstance(decoder, ClosedFormDecoder):
        return None
    declared = declared_similarity(decoder)
    if declared is None:
        return None
    if not written_together(decoder, "query", "compare", "score", "query_into", "query_backward"):
        return None
    similarity = SIMILARITIES[declared]
    if similarity.compiled and (device != "cpu" or compiled_distance() is None):
        return None
    return ClosedForm(decoder, similarity, objective)


def extended_rows(
    form: ClosedForm, given: StepInput, contrasts: Sequence[Contrast], workspace: Workspace
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


def divide(contrasts: Sequence[Contrast], device: str) -> tuple[list[slice], list[slice]]:
    """Groups of chunks, and blocks of each chunk's edges: many small chunks at once, large ones in parts."""
    limit = BLOCK_SCORES.get(device, BLOCK_SCORES["cuda"])
    num_chunks, chunk_edges = contrasts[0].num_chunks, contrasts[0].chunk_edges
    scores = max(1, chunk_edges * max(contrast.count for contrast in contrasts))
    group = max(1, limit // scores)
    group = -(-num_chunks // -(-num_chunks // group))  # groups of nearly equal size
    size = max(-(-chunk_edges // (1 if group > 1 else -(-scores // limit))), min(LEAST_EDGES, chunk_edges))
    groups = [slice(first, min(first + group, num_chunks)) for first in range(0, num_chunks, group)]
    return groups, [slice(first, min(first + size, chunk_edges)) for first in range(0, chunk_edges, size)]


class Contrast:
    """One corrupted side of a batch."""

    def __init__(
        self, form: ClosedForm, given: StepInput, side: Side, d_rows: Tensor, workspace: Workspace
    ) -> None:
        self.form = form
        self.side = given.query_side(side)
        self._rows = given.batch.rows
        self._negatives = negatives = given.batch.negatives[side]
        self.masks = given.masks.sides[side]
        self._name = side
        self._d_rows = d_rows
        self.edges = len(given.batch.head)
        self._dim = self._rows.shape[1]
        self.extended_rows: Tensor | None = None
        # Weights of groups of negatives ride in the products where they can, else they are multiplied in.
        importance, self._groups = negatives.importance, 0
        if importance is not None and form.objective.exponential and form.similarity.adds_biases:
            self._groups = importance.weight.shape[2]
        self._widths = form.similarity.widths(self._dim, self._groups)
        self._workspace = workspace
        self.num_chunks, self.count = negatives.nodes.shape
        self.chunk_edges = self.edges // self.num_chunks
        # A list of positions is found by the block where it lies on the host; a device would have to wait.
        on_host = d_rows.device.type == "cpu" and negatives.known is None
        self._dropped = negatives.dropped if on_host else None
        self._keep = None if on_host else negatives.mask(self.edges)

    @property
    def takes_rows_as_they_are(self) -> bool:
        """Whether candidates are rows without dropout and belong to no groups."""
        return not self.masks.candidates.active and not self._groups

    def _load(self, chunks: slice) -> tuple[Tensor, Tensor, Tensor | None]:
        """Rows, extended, of a group's candidates (g, K, W), their nodes (g · K,) and dropout masks."""
        similarity, dim, count = self.form.similarity, self._dim, self.count
        nodes = self._negatives.nodes[chunks].reshape(-1)
        candidates = self._workspace.take("candidates", len(nodes), self._widths[0])
        if self.extended_rows is not None:
            torch.index_select(self.extended_rows, 0, nodes, out=candidates)
            return candidates.view(-1, count, self._widths[0]), nodes, None
        mask = self.masks.candidates.take(len(nodes))
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

    def scratch(self, chunks: int, blocks: Sequence[slice]) -> Scratch:
        """What a group of so many chunks works on."""
        key = ("group", chunks, self.chunk_edges, self.count, self._dim, *self._widths, len(blocks))
        make = lambda: Scratch(  # noqa: E731
            chunks, self.chunk_edges, self.count, self._dim, self._widths, blocks, self._workspace
        )
        return self._workspace.remember(key, make)

    def biases(self, chunks: slice) -> Tensor | None:
        """What is added to the scores of each edge's negatives of a group (n, groups); None: nothing."""
        importance = self._negatives.importance
        if importance is None or not self._groups:
            return None
        return importance.weight[chunks].log().view(-1, self._groups)

    def edge_weights(self, chunks: slice, block: BlockScratch) -> Tensor | None:
        """What the loss of each edge of a block counts (g, n, 1); None: 1."""
        weight = self._negatives.edge_weights(chunks, block.edges)
        return None if weight is None else weight.view(*block.scores.shape[:2], 1)

    def products(self, chunks: slice, scratch: Scratch, finish: Finish) -> None:
        """All that touches scores: fills d_query but for its factor, adds to the candidates' gradients."""
        similarity, objective, dim = self.form.similarity, self.form.objective, self._dim
        candidates, nodes, mask = self._load(chunks)
        sums = self._workspace.take("candidate_sums", *candidates.shape[:2], self._widths[1])
        members = None
        if self._negatives.importance is not None and not self._groups:
            members = self._negatives.importance.members(chunks)
        dropped = self._dropped_of(chunks, scratch)
        for number, (block, left_out) in enumerate(zip(scratch.blocks, dropped, strict=True)):
            similarity.scores(block, candidates, dim, self._groups)
            counts = self._counts(chunks, block, members)
            losses = objective.weigh(block.scores, counts, left_out, block.softplus)
            row_sums = similarity.query_gradient(block, candidates, dim)
            counted = self._counted(counts, left_out, block) if objective.averages else None
            finish(block, row_sums, losses, counted)
            similarity.candidate_gradient(block, candidates, sums, add=number > 0)
        gradient = similarity.finish_candidates(sums, candidates, dim)
        if mask is not None:
            gradient.mul_(mask.view_as(gradient))
        add_rows(self._d_rows, nodes, sums.view(len(nodes), -1), self._workspace.compiled)

    def _dropped_of(self, chunks: slice, scratch: Scratch) -> list[Tensor | None]:
        """Positions that each block leaves out, in its own flattened (g, n, K)."""
        if self._dropped is None:
            return [None] * len(scratch.blocks)
        # Blocks of a group of more than one chunk are whole chunks: each lies in one piece.
        size = self.chunk_edges * self.count
        last = (chunks.stop - chunks.start - 1) * size
        first = [chunks.start * size + block.first for block in scratch.blocks]
        bounds = [*first, chunks.start * size + last + scratch.blocks[-1].stop]
        cuts = torch.searchsorted(self._dropped, self._dropped.new_tensor(bounds)).tolist()
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
            counts.view(-1).index_fill_(0, left_out, 0)
        return counts.sum(-1, keepdim=True)
