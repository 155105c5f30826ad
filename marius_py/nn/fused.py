"""Loss and gradients of a batch in closed form (floor 1): the fast path, equal to `autograd_gradients`.

A batch is worked through in groups of chunks: rows gathered and queries made for a whole group, then
contrasted with its negatives (`fused_contrast`), last the group's gradients are added to their rows. For any
decoder, loss and dropout that have a closed form; `fused_compiled` does the same for the most frequent ones
in fewer steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from marius_py.nn.closed_query import Query
from marius_py.nn.fused_contrast import ClosedForm, Contrast, divide, extended_rows
from marius_py.nn.fused_scratch import BlockScratch, Rows
from marius_py.nn.gradients import Gradients, StepInput, add_penalty
from marius_py.nn.kernels.workspace import Workspace
from marius_py.nn.regularizers import Regularizer
from marius_py.types import Side


def fused_gradients(
    form: ClosedForm, regularizers: Sequence[Regularizer], given: StepInput, workspace: Workspace
) -> Gradients:
    """Loss and gradients of a batch without autograd; both sides must have the same number of chunks.

    The returned tensors live in the workspace. The loss is infinite or NaN if negatives score too far above a
    true edge for the loss's closed form, or scores overflow; gradients are then worthless and autograd must
    compute them.
    """
    batch = given.batch
    dim = batch.rows.shape[1]
    # As wide as the sums of candidates' gradients, which are then added without a copy.
    d_padded = workspace.zeros("d_rows", len(batch.rows), form.similarity.widths(dim, 0)[1])
    d_rows = d_padded[:, :dim]
    d_relations = workspace.zeros("d_relations", *given.relations.shape)
    contrasts = {side: Contrast(form, given, side, d_padded, workspace) for side in given.sides}
    table = extended_rows(form, given, list(contrasts.values()), workspace)
    for contrast in contrasts.values():
        contrast.extended_rows = table
    losses: list[Tensor] = []
    groups, blocks = divide(list(contrasts.values()), d_rows.device.type)
    for chunks in groups:
        losses += _group(given, contrasts, chunks, blocks, d_padded, d_relations, workspace)
    for regularizer in regularizers:
        add_penalty(regularizer, given, form.decoder, d_rows, d_relations)
    return Gradients(d_rows, d_relations, torch.cat(losses).sum() / len(batch.head))


def _group(
    given: StepInput,
    contrasts: dict[Side, Contrast],
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
            losses.append(_contrast(contrasts[side], chunks, blocks, (known, answer, relation)))
        relation.add_gradient(d_relations)
    head.add_gradient(d_rows)
    tail.add_gradient(d_rows)
    return losses


def _contrast(
    contrast: Contrast, chunks: slice, blocks: Sequence[slice], rows: tuple[Rows, Rows, Rows]
) -> Tensor:
    """Contrast the edges of a group; adds to the gradients of all rows, returns the losses (n,).

    `rows` are those of the known nodes, the answers and the relations.
    """
    known, answer, relation = rows
    form, masks, side = contrast.form, contrast.masks, contrast.side
    similarity, decoder, objective = form.similarity, form.decoder, form.objective
    scratch = contrast.scratch(chunks.stop - chunks.start, blocks)
    dim = scratch.query.shape[1]
    node, of_relation = known.use("node", masks.node), relation.use("relation", masks.relation)
    answer_use = answer.use("answer", masks.answer)
    query = asked = Query(decoder, side, node, of_relation, scratch.query)
    if masks.two_queries:
        node = known.use("positive_node", masks.positive_node)
        of_relation = relation.use("positive_relation", masks.positive_relation)
        asked = Query(decoder, side, node, of_relation, scratch.positive_query)
    positive = similarity.positive(asked.values, answer_use.values, scratch.pairs)
    similarity.extend_queries(scratch.extended, dim, objective.shift(positive), contrast.biases(chunks))

    positives = positive.view(chunks.stop - chunks.start, -1)
    results: list[tuple[Tensor, Tensor, Tensor]] = []

    def finish(block: BlockScratch, row_sums: Tensor, losses: Tensor | None, counted: Tensor | None) -> None:
        loss, factor, d_positive = objective.reduce(
            positives[:, block.edges].unsqueeze(-1),
            row_sums.unsqueeze(-1),
            None if losses is None else losses.unsqueeze(-1),
            counted,
        )
        factor, d_positive = factor.div_(contrast.edges), d_positive.div_(contrast.edges)
        weight = contrast.edge_weights(chunks, block)
        if weight is not None:
            factor, d_positive = factor.mul_(weight), d_positive.mul_(weight)
        torch.mul(block.unscaled, factor, out=block.scaled)
        results.append((loss, factor, d_positive))

    contrast.products(chunks, scratch, finish)
    loss, factor, d_positive = (
        (parts[0] if len(parts) == 1 else torch.cat(parts, 1)).view(-1, 1)
        for parts in zip(*results, strict=True)
    )
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
