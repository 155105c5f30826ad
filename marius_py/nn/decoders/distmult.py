"""DistMult: a diagonal bilinear form for each relation (floor 1)."""

from __future__ import annotations

import torch
from torch import Tensor

from marius_py.nn.decoders.base import ProductDecoder
from marius_py.types import Side


class DistMult(ProductDecoder):
    """score = Σ head · relation · tail (Yang et al., 2015); symmetric in head and tail.

    Args:
        dim, popularity: see `ProductDecoder`.
    """

    similarity = "dot"
    product = "real"

    def query(self, node: Tensor, relation: Tensor, side: Side) -> Tensor:
        """Node times relation, (*, D), on either side."""
        return node * relation

    def compare(self, query: Tensor, candidates: Tensor) -> Tensor:
        """Dot products, (C, P, K)."""
        return torch.bmm(query, candidates.transpose(1, 2))

    def score(self, query: Tensor, candidate: Tensor) -> Tensor:
        """Dot products of pairs, (*)."""
        return (query * candidate).sum(-1)

    def query_into(self, node: Tensor, relation: Tensor, side: Side, out: Tensor) -> None:
        """Write node times relation."""
        torch.mul(node, relation, out=out)

    def query_backward(
        self, node: Tensor, relation: Tensor, side: Side, gradient: Tensor, d_node: Tensor, d_relation: Tensor
    ) -> None:
        """Product rule."""
        d_node.addcmul_(gradient, relation)
        d_relation.addcmul_(gradient, node)
