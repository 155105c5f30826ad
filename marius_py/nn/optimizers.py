"""Sparse row optimizers (floor 1): rows, state and gradient in, deltas of rows and state out.

The whole state of a row is one float row of width S that pages with the node's partition, step counts
included; a row that is not in a batch is neither read nor changed.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import numpy as np
import torch
from torch import Tensor

from marius_py.arrays import is_float32
from marius_py.errors import ConfigError
from marius_py.nn.kernels.host import compiled_rows, padded_rows

_BLOCK_FLOATS = (1 << 16, 1 << 30)  # on the cpu, on a device


class SparseOptimizer(ABC):
    """Turns gradients of rows into deltas; keeps nothing itself but its settings.

    Args:
        lr: learning rate, above 0. What `delta` returns for rows must be in proportion to it: schedules
            scale that.

    Attributes:
        compiled: whether `step` may use loops compiled with Numba.
    """

    compiled = True

    def __init__(self, lr: float) -> None:
        if not (lr > 0 and is_float32(lr)):
            raise ConfigError(f"optimizer.lr is {lr!r}; it must be a finite number of float32 above 0")
        self.lr = float(lr)

    @abstractmethod
    def state_dim(self, dim: int) -> int:
        """State width S for rows of `dim` floats."""

    def init_state(self, out: np.ndarray) -> None:
        """Fill (n, S) float32 with the state of untrained rows: zeros unless a subclass says otherwise."""
        out[...] = 0

    @abstractmethod
    def delta(self, rows: Tensor, state: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Deltas to be added to rows and state; the arguments are not changed.

        Args:
            rows: (U, D) float32, each row once.
            state: (U, S) float32.
            gradient: (U, D) float32.

        Returns:
            d_rows (U, D) and d_state (U, S), new tensors.
        """

    def step(self, rows: Tensor, state: Tensor, index: Tensor, gradient: Tensor, rate: float = 1.0) -> None:
        """Add the deltas of some rows of a table in place, in blocks, so that memory is passed over once.

        Args:
            rows: (N, D) float32 table, changed at `index`.
            state: (N, S) float32, likewise.
            index: (U,) int64, each row once.
            gradient: (U, D) float32.
            rate: factor of the rows' deltas.
        """
        size = max(1, 2 * _BLOCK_FLOATS[gradient.is_cuda] // max(1, gradient.shape[1]))
        for first in range(0, len(index), size):
            block = slice(first, first + size)
            mine = index[block]
            d_rows, d_state = self.delta(
                rows.index_select(0, mine), state.index_select(0, mine), gradient[block]
            )
            rows.index_add_(0, mine, d_rows if rate == 1 else d_rows * rate)
            if state.shape[1]:
                state.index_add_(0, mine, d_state)


def _check_range(key: str, value: float, low: float, high: float) -> float:
    if not (low <= value < high and is_float32(value)):
        raise ConfigError(
            f"optimizer.{key} is {value!r}; it must lie in [{low:g}, {high:g}), and be a number of float32"
        )
    return float(value)


class SGD(SparseOptimizer):
    """Plain gradient descent; no state.

    The gradients are those of a batch's mean loss, of which a row has a small share: rates far above 1 suit.
    """

    def __init__(self, lr: float = 10.0) -> None:
        super().__init__(lr)

    def state_dim(self, dim: int) -> int:
        """No state."""
        return 0

    def delta(self, rows: Tensor, state: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """d_rows = −lr · gradient."""
        return gradient * -self.lr, torch.zeros_like(state)


class Adagrad(SparseOptimizer):
    """Adagrad with a sum of squares for each coordinate (Duchi et al., 2011).

    Args:
        lr: learning rate.
        eps: added to the root, at least 0.
        initial: value the sums start from, at least 0. Gradients are those of a mean over a batch and their
            squares small: at the default rate 1e-6 changes little on umls, and 0.1, Keras's default, leaves
            nothing to be learnt.
    """

    def __init__(self, lr: float = 0.1, eps: float = 1e-10, initial: float = 0.0) -> None:
        super().__init__(lr)
        self.eps = _check_range("eps", eps, 0, math.inf)
        self.initial = _check_range("initial", initial, 0, math.inf)

    def state_dim(self, dim: int) -> int:
        """One sum for each coordinate."""
        return dim

    def init_state(self, out: np.ndarray) -> None:
        """Fill with the initial sum."""
        out[...] = self.initial

    def delta(self, rows: Tensor, state: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """d_state = g², d_rows = −lr · g / (√(state + g²) + eps)."""
        d_rows, d_state = torch.empty_like(gradient), torch.empty_like(state)
        eps = max(self.eps, torch.finfo(torch.float32).tiny)
        # Blocks stay in cache from the first operation to the last, so that memory is passed over once.
        size = max(1, _BLOCK_FLOATS[gradient.is_cuda] // max(1, gradient.shape[1]))
        for first in range(0, len(gradient), size):
            block = slice(first, first + size)
            mine, root = gradient[block], d_rows[block]
            torch.mul(mine, mine, out=d_state[block])
            torch.add(state[block], d_state[block], out=root).sqrt_().add_(eps)
            torch.div(mine, root, out=root).mul_(-self.lr)
        return d_rows, d_state

    def step(self, rows: Tensor, state: Tensor, index: Tensor, gradient: Tensor, rate: float = 1.0) -> None:
        """As the base class, in one pass over the rows with Numba, else in blocks without reading them."""
        if gradient.is_cuda or type(self).delta is not Adagrad.delta:
            super().step(rows, state, index, gradient, rate)
            return
        width = gradient.shape[1]
        eps = max(self.eps, torch.finfo(torch.float32).tiny)
        compiled = compiled_rows() if self.compiled else None
        if compiled is not None and rows.is_contiguous() and state.is_contiguous():
            arrays = [one.numpy() for one in (rows, state, index, padded_rows(gradient))]
            compiled.adagrad(*arrays, *(np.float32(number) for number in (self.lr, eps, rate)))
            return
        size = max(1, _BLOCK_FLOATS[False] // max(1, width))
        scratch = torch.empty(2, min(size, len(index)), width, dtype=torch.float32, device=gradient.device)
        for first in range(0, len(index), size):
            mine, of_mine = index[first : first + size], gradient[first : first + size]
            root, square = scratch[0, : len(mine)], scratch[1, : len(mine)]
            torch.index_select(state, 0, mine, out=root)
            torch.mul(of_mine, of_mine, out=square)
            state.index_add_(0, mine, square)
            root.add_(square).sqrt_().add_(eps)
            torch.div(of_mine, root, out=root).mul_(-self.lr)
            rows.index_add_(0, mine, root if rate == 1 else root.mul_(rate))


class AdagradRow(Adagrad):
    """Adagrad with one sum a row, the mean square of its gradient: 1 float of state instead of D."""

    def state_dim(self, dim: int) -> int:
        """One sum a row."""
        return 1

    def delta(self, rows: Tensor, state: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """d_state = mean(g²), d_rows = −lr · g / (√(state + mean(g²)) + eps)."""
        width = max(1, gradient.shape[1])
        d_state = torch.linalg.vector_norm(gradient, dim=1, keepdim=True).square_().div_(width)
        root = (state + d_state).sqrt_().add_(max(self.eps, torch.finfo(torch.float32).tiny))
        return gradient * (-self.lr / root), d_state


class Adam(SparseOptimizer):
    """Adam whose moments and step count belong to each row (lazy Adam; Kingma and Ba, 2015).

    A row's bias correction counts the batches that the row was part of, so that a row seen first in a late
    epoch starts like any other, and a partition that was paged out has nothing to catch up.

    Args:
        lr: learning rate.
        beta1, beta2: decay of the first and the second moment, in [0, 1).
        eps: added to the root, at least 0.
    """

    def __init__(self, lr: float = 0.01, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8) -> None:
        super().__init__(lr)
        self.beta1 = _check_range("beta1", beta1, 0, 1)
        self.beta2 = _check_range("beta2", beta2, 0, 1)
        self.eps = _check_range("eps", eps, 0, math.inf)

    def state_dim(self, dim: int) -> int:
        """First moment, second moment, step count."""
        return 2 * dim + 1

    def delta(self, rows: Tensor, state: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """State columns: [0, D) first moment, [D, 2D) second moment, 2D the row's step count."""
        dim = gradient.shape[1]
        first, second, step = state[:, :dim], state[:, dim : 2 * dim], state[:, 2 * dim :] + 1
        d_state = torch.empty_like(state)
        d_first, d_second = d_state[:, :dim], d_state[:, dim : 2 * dim]
        # Not by adding to the old ones: where these are much larger, nothing of the gradient would be left.
        new_first = (gradient * (1 - self.beta1)).add_(first * self.beta1)
        new_second = (gradient * gradient).mul_(1 - self.beta2).add_(second * self.beta2)
        torch.sub(new_first, first, out=d_first)
        torch.sub(new_second, second, out=d_second)
        d_state[:, 2 * dim :] = 1
        # In float64: float32 loses 1 − beta2ᵗ for the first steps.
        correction = step.double()
        rate = (self.lr / (1 - self.beta1**correction)).to(state.dtype)
        scale = (1 / (1 - self.beta2**correction)).sqrt_().to(state.dtype)
        root = new_second.sqrt_().mul_(scale).add_(max(self.eps, 1e-38))
        return new_first.div_(root).mul_(-rate), d_state

    def step(self, rows: Tensor, state: Tensor, index: Tensor, gradient: Tensor, rate: float = 1.0) -> None:
        """As the base class, in one pass over the rows with Numba."""
        plain = gradient.is_cuda or type(self).delta is not Adam.delta or not self.compiled
        compiled = None if plain else compiled_rows()
        if compiled is None or not (rows.is_contiguous() and state.is_contiguous()):
            super().step(rows, state, index, gradient, rate)
            return
        arrays = [one.numpy() for one in (rows, state, index, padded_rows(gradient))]
        eps = np.float32(max(self.eps, 1e-38))
        compiled.adam(*arrays, self.lr, self.beta1, self.beta2, eps, np.float32(rate))
