"""Regularizers of batch rows (floor 1): rows in, a penalty for each row out.

A penalty applies to the rows of a batch's true edges, without dropout: to heads and tails by `weight`, to
relations by `relation_weight`. With `weighted` a row counts as often as it occurs in the batch's edges (so
that penalties follow the data's frequencies; Lacroix et al., 2018), otherwise once. The sum is divided by
the number of edges, like the loss. Rows that occur as negatives only are left alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from marius_py.arrays import is_float32
from marius_py.errors import ConfigError
from marius_py.nn.kernels.host import compiled_rows, padded_rows


class Regularizer(ABC):
    """A differentiable penalty of single rows; a subclass defines `penalty`.

    Args:
        weight: factor for head and tail rows, at least 0.
        relation_weight: factor for relation rows, at least 0; None takes `weight`.
        weighted: count a row once for each occurrence in the batch's edges, instead of once.

    Attributes:
        compiled: whether `add_gradient` may use loops compiled with Numba.
    """

    compiled = True

    def __init_subclass__(cls) -> None:
        """A class that writes `penalty` anew has no use for a closed form of the one above."""
        super().__init_subclass__()
        if "penalty" in vars(cls) and "gradient" not in vars(cls):
            cls.gradient = Regularizer.gradient  # type: ignore[method-assign]

    def __init__(self, weight: float, relation_weight: float | None = None, weighted: bool = True) -> None:
        if relation_weight is None:
            relation_weight = weight
        for key, value in (("weight", weight), ("relation_weight", relation_weight)):
            if not (value >= 0 and is_float32(value)):
                raise ConfigError(
                    f"regularizer {key} is {value!r}; it must be a finite number of float32, at least 0"
                )
        self.weight = float(weight)
        self.relation_weight = float(relation_weight)
        self.weighted = bool(weighted)

    @abstractmethod
    def penalty(self, rows: Tensor, complex_halves: bool) -> Tensor:
        """Penalties of rows.

        Args:
            rows: (n, width) node or relation rows.
            complex_halves: whether a row is a complex vector, real parts first.

        Returns:
            (n,) penalties, differentiable.
        """

    def gradient(self, rows: Tensor, complex_halves: bool) -> Tensor:
        """Gradient of `penalty`, (n, width); by autograd unless a subclass knows it in closed form."""
        leaf = rows.detach().requires_grad_()
        with torch.enable_grad():
            total = self.penalty(leaf, complex_halves).sum()
            return torch.autograd.grad(total, leaf)[0]

    def add_gradient(
        self, rows: Tensor, complex_halves: bool, factors: Tensor, out: Tensor, which: Tensor | slice
    ) -> None:
        """Add the gradients of some rows' penalties, each times the row's factor.

        Args:
            rows: (U, width). complex_halves: as for `penalty`.
            factors: (U,). out: (U, width), added to.
            which: (n,) int64, each row once; or a range of rows.
        """
        if isinstance(which, slice):
            out[which].addcmul_(self.gradient(rows[which], complex_halves), factors[which].unsqueeze(1))
            return
        gradient = self.gradient(rows.index_select(0, which), complex_halves)
        out.index_add_(0, which, gradient.mul_(factors.index_select(0, which).unsqueeze(1)))


class L2(Regularizer):
    """Σ_j x_j²."""

    def penalty(self, rows: Tensor, complex_halves: bool) -> Tensor:
        """Squared norms, (n,)."""
        return rows.square().sum(1)

    def gradient(self, rows: Tensor, complex_halves: bool) -> Tensor:
        """2 x."""
        return rows * 2


class N3(Regularizer):
    """Σ_j |x_j|³, the nuclear 3-norm; |x_j| is the modulus where rows are complex (Lacroix et al., 2018)."""

    def penalty(self, rows: Tensor, complex_halves: bool) -> Tensor:
        """Cubed 3-norms, (n,)."""
        if complex_halves:
            # A norm over two stacked parts has gradient zero, not NaN, where both parts are zero.
            moduli: Tensor = torch.linalg.vector_norm(torch.stack(rows.chunk(2, 1), -1), dim=-1)
        else:
            moduli = rows.abs()
        return moduli.pow(3).sum(1)

    def gradient(self, rows: Tensor, complex_halves: bool) -> Tensor:
        """3 |x| x."""
        if not complex_halves:
            return rows.abs().mul_(rows).mul_(3)
        re, im = rows.chunk(2, 1)
        moduli = torch.mul(re, re).addcmul_(im, im).sqrt_().mul_(3)
        return torch.cat((re * moduli, im * moduli), 1)

    def add_gradient(
        self, rows: Tensor, complex_halves: bool, factors: Tensor, out: Tensor, which: Tensor | slice
    ) -> None:
        """As the base class, in one pass over the rows with Numba."""
        plain = rows.device.type != "cpu" or rows.dtype != torch.float32 or not rows.is_contiguous()
        plain = plain or not self.compiled or type(self).gradient is not N3.gradient
        kernels = None if plain else compiled_rows()
        wide = out if kernels is None else padded_rows(out)
        if kernels is None or wide.data_ptr() != out.data_ptr():
            super().add_gradient(rows, complex_halves, factors, out, which)
            return
        index = torch.arange(len(rows), device=rows.device)[which] if isinstance(which, slice) else which
        kernels.add_n3(*(one.numpy() for one in (rows, index, factors, wide)), complex_halves)
