"""RotatE: a relation rotates heads onto tails in the complex plane (floor 1)."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from marius_py.arrays import is_float32
from marius_py.errors import ConfigError
from marius_py.nn.decoders.base import ClosedFormDecoder, require_even
from marius_py.nn.initializers import Initializer
from marius_py.nn.kernels.distance import pairwise_l2, pairwise_moduli
from marius_py.types import Side


class RotatE(ClosedFormDecoder):
    """score = −distance(head ∘ e^{iθ}, tail), θ the relation's phases (Sun et al., 2019).

    Args:
        dim: embedding width in floats, even: dim / 2 complex numbers.
        norm: "l2" is the euclidean distance of whole rows, one matrix product; "moduli" is the paper's sum of
            the moduli of complex differences, which takes five to six times as long on the CPU.
        phase_scale: radians a unit of a relation's parameter. Phases span 2π where node rows may span 0.01,
            so an optimizer with one learning rate for both needs a larger unit for small node rows.
    """

    product = "complex"
    complex_halves = True

    def __init__(self, dim: int, norm: Literal["l2", "moduli"] = "l2", phase_scale: float = 1.0) -> None:
        super().__init__(dim)
        require_even(dim, "RotatE")
        if norm not in ("l2", "moduli"):
            raise ConfigError(f"model.decoder.norm is {norm!r}; rotate knows 'l2' and 'moduli'")
        if not (phase_scale > 0 and is_float32(phase_scale) and is_float32(math.pi / phase_scale)):
            raise ConfigError(
                f"model.decoder.phase_scale is {phase_scale!r}; it must be a finite number of float32 above "
                "0, and so must be the parameter of half a turn, pi over it"
            )
        self.norm = norm
        self.phase_scale = float(phase_scale)
        self.similarity = norm

    @property
    def relation_dim(self) -> int:
        """One phase for each complex coordinate."""
        return self.dim // 2

    def query(self, node: Tensor, relation: Tensor, side: Side) -> Tensor:
        """head ∘ e^{iθ} for ranked tails, tail ∘ e^{−iθ} for ranked heads; (*, D)."""
        re, im = node.chunk(2, -1)
        phase = relation * self.phase_scale
        cos, sin = phase.cos(), phase.sin()
        if side == "head":
            sin = -sin
        return torch.cat((re * cos - im * sin, re * sin + im * cos), -1)

    def compare(self, query: Tensor, candidates: Tensor) -> Tensor:
        """Minus the distances, (C, P, K)."""
        return -(pairwise_l2 if self.norm == "l2" else pairwise_moduli)(query, candidates)

    def score(self, query: Tensor, candidate: Tensor) -> Tensor:
        """Minus the distances of pairs, (*)."""
        difference = query - candidate
        distance: Tensor
        if self.norm == "l2":
            distance = torch.linalg.vector_norm(difference, dim=-1)
        else:
            # A norm over two stacked parts, unlike hypot, has gradient zero where both parts are zero.
            distance = torch.linalg.vector_norm(torch.stack(difference.chunk(2, -1), -1), dim=-1).sum(-1)
        return -distance

    def init_relations(self, out: np.ndarray, rng: np.random.Generator, initializer: Initializer) -> None:
        """Phases uniform over the circle, whatever the initializer of the node rows."""
        bound = math.pi / self.phase_scale
        out[...] = rng.uniform(-bound, bound, out.shape)

    def query_into(self, node: Tensor, relation: Tensor, side: Side, out: Tensor) -> None:
        """Write the rotated node."""
        re, im = node.chunk(2, -1)
        out_re, out_im = out.chunk(2, -1)
        phase = relation * self.phase_scale
        cos, sin = phase.cos(), phase.sin_()
        sign = 1 if side == "tail" else -1
        torch.mul(re, cos, out=out_re)
        out_re.addcmul_(im, sin, value=-sign)
        torch.mul(im, cos, out=out_im)
        out_im.addcmul_(re, sin, value=sign)

    def query_backward(
        self, node: Tensor, relation: Tensor, side: Side, gradient: Tensor, d_node: Tensor, d_relation: Tensor
    ) -> None:
        """Rotate the gradient back; a phase's gradient is the gradient along the tangent of the rotation."""
        re, im = node.chunk(2, -1)
        gradient_re, gradient_im = gradient.chunk(2, -1)
        d_re, d_im = d_node.chunk(2, -1)
        phase = relation * self.phase_scale
        cos, sin = phase.cos(), phase.sin_()
        if side == "head":
            sin.neg_()
        back_re = gradient_re * cos + gradient_im * sin
        back_im = gradient_im * cos - gradient_re * sin
        d_re.add_(back_re)
        d_im.add_(back_im)
        sign = 1 if side == "tail" else -1
        d_relation.addcmul_(back_im, re, value=sign * self.phase_scale)
        d_relation.addcmul_(back_re, im, value=-sign * self.phase_scale)

    def factors(self, relation: Tensor) -> Tensor:
        """Complex numbers of modulus 1, cosines before sines."""
        phase = relation * self.phase_scale
        return torch.cat((phase.cos(), phase.sin()), -1)

    def factors_backward(self, relation: Tensor, gradient: Tensor, d_relation: Tensor) -> None:
        """Along the tangents of the circle."""
        phase = relation * self.phase_scale
        d_cos, d_sin = gradient.chunk(2, -1)
        d_relation.addcmul_(d_sin, phase.cos(), value=self.phase_scale)
        d_relation.addcmul_(d_cos, phase.sin(), value=-self.phase_scale)
