"""Loss and gradients of a batch in closed form (floor 1), compiled: the most frequent case of `fused`.

Queries that are products, compared by dot products under the softmax loss without dropout: DistMult, ComplEx
and dot as they are by default. All that is neither a matrix product nor an exponential is one of three loops
that Numba compiles: they read rows and add to gradients by the edges' own indices, and they do not hold the
interpreter's lock, for which the batches computed side by side would wait at every small operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from marius_py.nn.decoders.base import written_together
from marius_py.nn.fused_contrast import ClosedForm, Contrast, divide, extended_rows
from marius_py.nn.fused_scratch import BlockScratch
from marius_py.nn.gradients import Gradients, StepInput, add_penalty
from marius_py.nn.kernels.host import compiled_pairs
from marius_py.nn.kernels.objectives import SoftmaxObjective
from marius_py.nn.kernels.workspace import Workspace
from marius_py.nn.regularizers import Regularizer
from marius_py.types import Side


def can_compile(form: ClosedForm, given: StepInput, workspace: Workspace) -> bool:
    """Whether this module computes such a batch."""
    decoder, rows = form.decoder, given.batch.rows
    if (
        not workspace.compiled
        or decoder.product is None
        or not written_together(decoder, "product", "query_into")
    ):
        return False
    if type(form.objective) is not SoftmaxObjective or rows.device.type != "cpu":
        return False
    if rows.dtype != torch.float32 or any(given.masks.sides[side].active for side in given.sides):
        return False
    return compiled_pairs() is not None


def compiled_gradients(
    form: ClosedForm, regularizers: Sequence[Regularizer], given: StepInput, workspace: Workspace
) -> Gradients:
    """As `fused.fused_gradients`, for what `can_compile` allows."""
    kernels = compiled_pairs()
    assert kernels is not None
    batch = given.batch
    dim = batch.rows.shape[1]
    d_padded = workspace.zeros("d_rows", len(batch.rows), form.similarity.widths(dim, 0)[1])
    d_relations = workspace.zeros("d_relations", *given.relations.shape)
    pairs = {
        side: _Pairs(Contrast(form, given, side, d_padded, workspace), given, side, kernels, workspace)
        for side in given.sides
    }
    contrasts = [one.contrast for one in pairs.values()]
    table = extended_rows(form, given, contrasts, workspace)
    groups, blocks = divide(contrasts, "cpu")
    for contrast in contrasts:
        contrast.extended_rows = table
    for chunks in groups:
        for one in pairs.values():
            one.work(chunks, blocks, d_padded, d_relations)
    d_rows = d_padded[:, :dim]
    for regularizer in regularizers:
        add_penalty(regularizer, given, form.decoder, d_rows, d_relations)
    total = sum(float(one.losses.sum(dtype=np.float64)) for one in pairs.values())
    return Gradients(d_rows, d_relations, torch.tensor(total / len(batch.head)))


class _Pairs:
    """The edges of a batch on one corrupted side: queries with their answers.

    Attributes:
        losses: (B,) float32, of the edges worked through.
    """

    def __init__(
        self, contrast: Contrast, given: StepInput, side: Side, kernels: ModuleType, workspace: Workspace
    ) -> None:
        batch, decoder = given.batch, contrast.form.decoder
        self.contrast = contrast
        self._kernels = kernels
        known, answer = (batch.head, batch.tail) if side == "tail" else (batch.tail, batch.head)
        self._rows, self._relations = batch.rows.numpy(), given.relations.numpy()
        self._index = [one.numpy() for one in (known, given.relation_index[side], answer)]
        self._product = {"none": kernels.NONE, "real": kernels.REAL, "complex": kernels.COMPLEX}[
            decoder.product or "none"
        ]
        self._sign = np.float32(1 if contrast.side == "tail" else -1)
        objective = contrast.form.objective
        assert isinstance(objective, SoftmaxObjective)
        self._log_weight = np.float32(objective.log_weight)
        self.losses, self._factors, self._pulls = (
            workspace.take(f"{name}_{side}", contrast.edges).numpy() for name in ("loss", "factor", "pull")
        )

    def work(self, chunks: slice, blocks: Sequence[slice], d_rows: Tensor, d_relations: Tensor) -> None:
        """Contrast the edges of a group of chunks; adds to d_rows (U, G) and d_relations (V, Dr)."""
        contrast = self.contrast
        scratch = contrast.scratch(chunks.stop - chunks.start, blocks)
        dim = scratch.query.shape[1]
        first = chunks.start * contrast.chunk_edges
        edges = slice(first, chunks.stop * contrast.chunk_edges)
        index = [one[edges] for one in self._index]
        queries = scratch.extended.numpy()
        how = self._product, self._sign
        self._kernels.ask(self._rows, self._relations, *index, *how, self._log_weight, queries)
        biases = contrast.biases(chunks)
        if biases is not None:
            scratch.extended[:, dim + 1 : dim + 1 + biases.shape[1]] = biases

        def finish(block: BlockScratch, row_sums: Tensor, *_: Tensor | None) -> None:
            # Blocks lie one after another: of a group of several chunks there is but one.
            start = first + block.edges.start
            mine = slice(start, start + row_sums.numel())
            self._kernels.reduce_softmax(
                np.ascontiguousarray(row_sums.numpy()).reshape(-1),
                block.query.flatten(0, 1).numpy(),
                contrast.edges,
                block.scaled.flatten(0, 1).numpy(),
                self.losses[mine],
                self._factors[mine],
                self._pulls[mine],
            )

        contrast.products(chunks, scratch, finish)
        self._kernels.answer_back(
            self._rows,
            self._relations,
            *index,
            *how,
            queries,
            scratch.padded_gradient.numpy(),
            self._factors[edges],
            self._pulls[edges],
            d_rows.numpy(),
            d_relations.numpy(),
        )
