"""Dot product of two node rows, for graphs without relations (floor 1)."""

from __future__ import annotations

import torch
from torch import Tensor

from marius_py.nn.decoders.base import ClosedFormDecoder
from marius_py.types import Side


class Dot(ClosedFormDecoder):
    """score = head · tail; relations have no parameters.

    >>> decoder = Dot(2)
    >>> decoder.compare(torch.tensor([[[1.0, 2.0]]]), torch.tensor([[[3.0, 4.0]]])).item()
    11.0
    """

    similarity = "dot"
    product = "none"

    @property
    def relation_dim(self) -> int:
        """Width 0: there is nothing to learn for a relation."""
        return 0

    def query(self, node: Tensor, relation: Tensor, side: Side) -> Tensor:
        """The known node itself, (*, D)."""
        return node

    def compare(self, query: Tensor, candidates: Tensor) -> Tensor:
        """Dot products, (C, P, K)."""
        return torch.bmm(query, candidates.transpose(1, 2))

    def score(self, query: Tensor, candidate: Tensor) -> Tensor:
        """Dot products of pairs, (*)."""
        return (query * candidate).sum(-1)

    def query_into(self, node: Tensor, relation: Tensor, side: Side, out: Tensor) -> None:
        """Copy the known node."""
        out.copy_(node)

    def query_backward(
        self, node: Tensor, relation: Tensor, side: Side, gradient: Tensor, d_node: Tensor, d_relation: Tensor
    ) -> None:
        """The query is the node, so its gradient passes through."""
        d_node.add_(gradient)
