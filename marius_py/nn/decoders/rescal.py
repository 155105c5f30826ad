"""RESCAL and what lies between it and DistMult: a bilinear form for each relation (floor 1)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from marius_py.errors import ConfigError
from marius_py.nn.decoders.base import ClosedFormDecoder
from marius_py.nn.initializers import Initializer
from marius_py.types import Side
from marius_py.whole import is_whole


class RESCAL(ClosedFormDecoder):
    """score = headᵀ · W · tail with a matrix W for each relation (Nickel et al., 2011).

    With `block` b, W is block-diagonal: D / b matrices of b × b (Liu et al., 2017, take b = 2). 1 is
    DistMult, 2 holds ComplEx, D is RESCAL. A relation's row is its matrices, row by row: D · b floats. On a
    device and with dropout of relations an edge's are gathered with it, so that a batch of B edges works on
    B · D · b floats: without blocks keep D at 128 or less there.

    Args:
        dim: embedding width in floats.
        block: b, a divisor of `dim`; None: `dim`.

    Raises:
        ConfigError: `block` does not divide `dim`.
    """

    similarity = "dot"
    product = "matrix"

    def __init__(self, dim: int, block: int | None = None) -> None:
        super().__init__(dim)
        size = dim if block is None else block
        if not is_whole(size, 1) or dim % size:
            raise ConfigError(
                f"model.decoder.block is {block!r}; it must be a whole number that divides model.dim={dim}"
            )
        self.block = int(size)

    @property
    def relation_dim(self) -> int:
        """D · b."""
        return self.dim * self.block

    def _matrices(self, relation: Tensor) -> Tensor:
        """(*, D / b, b, b)."""
        return relation.view(*relation.shape[:-1], -1, self.block, self.block)

    def _pieces(self, rows: Tensor) -> Tensor:
        """(*, D / b, b)."""
        return rows.reshape(*rows.shape[:-1], -1, self.block)

    def query(self, node: Tensor, relation: Tensor, side: Side) -> Tensor:
        """headᵀ · W for ranked tails, W · tail for ranked heads; (*, D)."""
        matrices, pieces = self._matrices(relation), self._pieces(node)
        if side == "tail":
            return torch.matmul(pieces.unsqueeze(-2), matrices).reshape(node.shape)
        return torch.matmul(matrices, pieces.unsqueeze(-1)).reshape(node.shape)

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
        self._matrices(d_relation).addcmul_(
            self._pieces(left).unsqueeze(-1), self._pieces(right).unsqueeze(-2)
        )

    def init_relations(self, out: np.ndarray, rng: np.random.Generator, initializer: Initializer) -> None:
        """Fill (R, D · b) float32: to an initializer a matrix is b rows, or its scale would shrink with b."""
        rows = np.empty((len(out) * self.dim, self.block), np.float32)
        initializer.fill(rows, rng)
        out[...] = rows.reshape(out.shape)
