"""Initial values of embedding rows (floor 1): a generator in, rows filled; numpy only."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import numpy as np

from marius_py.errors import ConfigError


class Initializer(ABC):
    """Fills rows with initial values that depend on the generator alone."""

    @abstractmethod
    def fill(self, out: np.ndarray, rng: np.random.Generator) -> None:
        """Fill `out`, (n, width) float32, in place."""


MAX_SCALE = 1e6
"""Far above it, products of three entries, as ComplEx scores by, and squares of gradients leave float32."""


def _check_scale(scale: float, key: str = "model.init.scale") -> float:
    if not 0 <= scale <= MAX_SCALE:
        raise ConfigError(f"{key} is {scale!r}; it must be a number from 0 to {MAX_SCALE:,.0f}")
    return float(scale)


class Uniform(Initializer):
    """Uniform in [−scale, scale).

    Args:
        scale: bound, from 0 to 1,000,000.
    """

    def __init__(self, scale: float = 1e-3) -> None:
        self.scale = _check_scale(scale)

    def fill(self, out: np.ndarray, rng: np.random.Generator) -> None:
        """Fill `out`, (n, width) float32, in place."""
        out[...] = rng.random(out.shape, dtype=np.float32)
        out *= 2 * self.scale
        out -= self.scale


class Normal(Initializer):
    """Normal with mean 0.

    Args:
        scale: standard deviation, from 0 to 1,000,000.
    """

    def __init__(self, scale: float = 1e-3) -> None:
        self.scale = _check_scale(scale)

    def fill(self, out: np.ndarray, rng: np.random.Generator) -> None:
        """Fill `out`, (n, width) float32, in place."""
        out[...] = rng.standard_normal(out.shape, dtype=np.float32)
        out *= self.scale


class XavierUniform(Initializer):
    """Uniform with bound gain · √(6 / (2 · width)): Glorot's rule for a map of the row's width onto itself.

    The rule takes the row's width for both fans, not the table's height: values then do not shrink with the
    number of nodes, and a graph that grows keeps its scale.

    Args:
        gain: factor, from 0 to 1,000,000.
    """

    def __init__(self, gain: float = 1.0) -> None:
        self.gain = _check_scale(gain, "model.init.gain")

    def fill(self, out: np.ndarray, rng: np.random.Generator) -> None:
        """Fill `out`, (n, width) float32, in place."""
        Uniform(self.gain * math.sqrt(3 / max(1, out.shape[1]))).fill(out, rng)


class XavierNormal(Initializer):
    """Normal with standard deviation gain · √(2 / (2 · width)); see `XavierUniform` for the choice of fans.

    Args:
        gain: factor, from 0 to 1,000,000.
    """

    def __init__(self, gain: float = 1.0) -> None:
        self.gain = _check_scale(gain, "model.init.gain")

    def fill(self, out: np.ndarray, rng: np.random.Generator) -> None:
        """Fill `out`, (n, width) float32, in place."""
        Normal(self.gain * math.sqrt(1 / max(1, out.shape[1]))).fill(out, rng)
