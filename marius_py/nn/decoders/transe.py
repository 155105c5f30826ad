"""TransE: a relation moves heads onto tails (floor 1)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from marius_py.errors import ConfigError
from marius_py.nn.decoders.base import ClosedFormDecoder
from marius_py.nn.kernels.distance import pairwise_l1, pairwise_l2
from marius_py.types import Side


class TransE(ClosedFormDecoder):
    """score = −‖head + relation − tail‖ (Bordes et al., 2013).

    Args:
        dim: embedding width in floats.
        norm: "l2" (distances by one matrix product) or "l1", which takes twice as long on the CPU.
    """

    product = "sum"

    def __init__(self, dim: int, norm: Literal["l1", "l2"] = "l2") -> None:
        super().__init__(dim)
        if norm not in ("l1", "l2"):
            raise ConfigError(f"model.decoder.norm is {norm!r}; transe knows 'l1' and 'l2'")
        self.norm = norm
        self.similarity = norm

    def query(self, node: Tensor, relation: Tensor, side: Side) -> Tensor:
        """head + relation for ranked tails, tail − relation for ranked heads; (*, D)."""
        return node + relation if side == "tail" else node - relation

    def compare(self, query: Tensor, candidates: Tensor) -> Tensor:
        """Minus the distances, (C, P, K)."""
        return -(pairwise_l2 if self.norm == "l2" else pairwise_l1)(query, candidates)

    def score(self, query: Tensor, candidate: Tensor) -> Tensor:
        """Minus the distances of pairs, (*)."""
        order = 2 if self.norm == "l2" else 1
        distance: Tensor = torch.linalg.vector_norm(query - candidate, ord=order, dim=-1)
        return -distance

    def query_into(self, node: Tensor, relation: Tensor, side: Side, out: Tensor) -> None:
        """Write the moved node."""
        torch.add(node, relation, alpha=1 if side == "tail" else -1, out=out)

    def query_backward(
        self, node: Tensor, relation: Tensor, side: Side, gradient: Tensor, d_node: Tensor, d_relation: Tensor
    ) -> None:
        """The gradient reaches the node as it is and the relation with the side's sign."""
        d_node.add_(gradient)
        d_relation.add_(gradient, alpha=1 if side == "tail" else -1)
