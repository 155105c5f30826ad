"""RESCAL: a full bilinear form for each relation (floor 1)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from marius_py.nn.decoders.base import ClosedFormDecoder
from marius_py.nn.initializers import Initializer
from marius_py.types import Side


class RESCAL(ClosedFormDecoder):
    """score = headᵀ · W · tail with a matrix W for each relation (Nickel et al., 2011).

    A relation's row is its matrix, row by row: D² floats. An edge's matrix is gathered with it, so that a
    batch of B edges works on B · D² floats; keep D at 128 or less.
    """

    similarity = "dot"

    @property
    def relation_dim(self) -> int:
        """D²."""
        return self.dim * self.dim

    def _matrices(self, relation: Tensor) -> Tensor:
        return relation.view(*relation.shape[:-1], self.dim, self.dim)

    def query(self, node: Tensor, relation: Tensor, side: Side) -> Tensor:
        """headᵀ · W for ranked tails, W · tail for ranked heads; (*, D)."""
        matrices = self._matrices(relation)
        if side == "tail":
            return torch.matmul(node.unsqueeze(-2), matrices).squeeze(-2)
        return torch.matmul(matrices, node.unsqueeze(-1)).squeeze(-1)

    def compare(self, query: Tensor, candidates: Tensor) -> Tensor:
        """Dot products, (C, P, K)."""
        return torch.bmm(query, candidates.transpose(1, 2))

    def score(self, query: Tensor, candidate: Tensor) -> Tensor:
        """Dot products of pairs, (*)."""
        return (query * candidate).sum(-1)

    def query_into(self, node: Tensor, relation: Tensor, side: Side, out: Tensor) -> None:
        """Write the products; a result of (n, D) is allocated on the way."""
        out.copy_(self.query(node, relation, side))

    def query_backward(
        self, node: Tensor, relation: Tensor, side: Side, gradient: Tensor, d_node: Tensor, d_relation: Tensor
    ) -> None:
        """d_head = W · gradient, d_tail = Wᵀ · gradient; d_W is the outer product of the two ends."""
        d_node.add_(self.query(gradient, relation, "head" if side == "tail" else "tail"))
        left, right = (node, gradient) if side == "tail" else (gradient, node)
        self._matrices(d_relation).baddbmm_(left.unsqueeze(-1), right.unsqueeze(-2))

    def init_relations(self, out: np.ndarray, rng: np.random.Generator, initializer: Initializer) -> None:
        """Fill (R, D²) float32: to an initializer a matrix is D rows, or its scale would shrink with D."""
        rows = np.empty((len(out) * self.dim, self.dim), np.float32)
        initializer.fill(rows, rng)
        out[...] = rows.reshape(out.shape)
