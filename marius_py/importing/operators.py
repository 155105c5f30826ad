"""PyTorch-BigGraph's operators and comparators as a decoder (floor 5), where no decoder of `nn` is the same.

Rows of nodes and relations in, scores out, as every `Decoder`. With separate operators for the two sides (its
dynamic relations) a run is reciprocal, and only queries for tails are ever made.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from marius_py.errors import ConfigError
from marius_py.nn.decoders.base import Decoder, require_even
from marius_py.nn.kernels.distance import pairwise_l2
from marius_py.types import Side

Operator = Literal["none", "diagonal", "translation", "complex_diagonal", "linear", "affine"]
Comparator = Literal["dot", "cos", "l2", "squared_l2"]

_TINY = 1e-30


class OperatorDecoder(Decoder):
    """score = comparator(operator(node), candidate).

    Args:
        dim: embedding width in floats; even for complex_diagonal.
        operator: what a relation does to the known node. A relation's row holds the operator's parameters:
            D floats; none: no floats; linear: D² row by row; affine: D², then D of translation.
        comparator: dot, cos (cosine of the angle, 0 with a zero row), l2 and squared_l2 (minus the distance
            or its square).
        bias: the first coordinate of either side is left out of the comparison and added to it.

    Raises:
        ConfigError: an unknown operator or comparator, or a dim that does not fit.
    """

    def __init__(
        self, dim: int, operator: Operator = "none", comparator: Comparator = "dot", bias: bool = False
    ) -> None:
        super().__init__(dim)
        for key, value, known in (
            ("operator", operator, get_args(Operator)),
            ("comparator", comparator, get_args(Comparator)),
        ):
            if value not in known:
                raise ConfigError(f"model.decoder.{key} is {value!r}; allowed: {', '.join(known)}")
        if operator == "complex_diagonal":
            require_even(dim, "complex_diagonal")
        if bias and dim < 2:
            raise ConfigError("model.dim is 1; with a bias there is nothing left to compare, so at least 2")
        self.operator = operator
        self.comparator = comparator
        self.bias = bool(bias)

    @property
    def relation_dim(self) -> int:
        """Floats of the operator's parameters."""
        return {"none": 0, "linear": self.dim**2, "affine": self.dim**2 + self.dim}.get(
            self.operator, self.dim
        )

    @property
    def needs_reciprocal(self) -> bool:
        """Whether heads can only be asked as tails of an inverse relation."""
        distance = self.comparator in ("l2", "squared_l2") and not self.bias
        return self.operator != "none" and not (self.operator == "translation" and distance)

    def query(self, node: Tensor, relation: Tensor, side: Side) -> Tensor:
        """The node moved by the operator and, for cos, brought to length 1; (*, D).

        Raises:
            ConfigError: the operator has no inverse that the comparator respects, and heads are asked.
        """
        if side == "head" and self.needs_reciprocal:
            raise ConfigError(
                f"the operator {self.operator} with the comparator {self.comparator} cannot rank heads "
                "by the relation's own row: set model.reciprocal=true"
            )
        return self._prepared(self._moved(node, relation, side))

    def compare(self, query: Tensor, candidates: Tensor) -> Tensor:
        """Scores, (C, P, K)."""
        candidates = self._prepared(candidates)
        scores = self._compared(query[..., self.bias :], candidates[..., self.bias :])
        if self.bias:
            scores = scores + query[..., :1] + candidates[..., :1].transpose(1, 2)
        return scores

    def _moved(self, node: Tensor, relation: Tensor, side: Side) -> Tensor:
        if self.operator == "none":
            return node
        if self.operator == "translation":
            return node + relation if side == "tail" else node - relation
        if self.operator == "diagonal":
            return node * relation
        if self.operator == "complex_diagonal":
            re, im = node.chunk(2, -1)
            relation_re, relation_im = relation.chunk(2, -1)
            return torch.cat((re * relation_re - im * relation_im, re * relation_im + im * relation_re), -1)
        size = self.dim * self.dim
        matrices = relation[..., :size].reshape(*relation.shape[:-1], self.dim, self.dim)
        moved = torch.matmul(matrices, node.unsqueeze(-1)).squeeze(-1)
        return moved + relation[..., size:] if self.operator == "affine" else moved

    def _prepared(self, rows: Tensor) -> Tensor:
        """For cos: rows of length 1, the bias left as it is."""
        if self.comparator != "cos":
            return rows
        compared = rows[..., self.bias :]
        unit = compared / torch.linalg.vector_norm(compared, dim=-1, keepdim=True).clamp_min(_TINY)
        return torch.cat((rows[..., :1], unit), -1) if self.bias else unit

    def _compared(self, query: Tensor, candidates: Tensor) -> Tensor:
        if self.comparator == "l2":
            return -pairwise_l2(query, candidates)
        if self.comparator == "squared_l2":
            norms = query.square().sum(-1, keepdim=True) + candidates.square().sum(-1).unsqueeze(1)
            return -torch.baddbmm(norms, query, candidates.transpose(1, 2), alpha=-2).clamp_min(0)
        return torch.bmm(query, candidates.transpose(1, 2))
