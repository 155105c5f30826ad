"""Dropout masks of a batch (floor 1): seed and shapes in, float multipliers out.

Rows are dropped at each use: an edge's head, its tail, its relation on each side, and each chunk's
candidates have masks of their own, as if every lookup were followed by dropout. A head's (tail's) mask is
the same whether it serves as the query of one side or as the answer of the other. One mask a unique row would
be cheaper still, but would drop the same coordinates of a node in its query, answer and candidate roles at
once, so that a true answer and its competitors were never compared on all of them.

Drawing is cheap by 16-bit integers: four coordinates for each 64-bit random word, one comparison each.
Rates are therefore rounded to multiples of 2⁻¹⁶; the scale 1 / (1 − rate) uses the rounded rate.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from marius_py.errors import ConfigError
from marius_py.types import SIDES, Side

_LEVELS = 1 << 16


def check_rate(key: str, rate: float) -> float:
    """Return a dropout rate in [0, 1) or raise ConfigError naming `key`."""
    if not 0 <= rate < 1:
        raise ConfigError(f"{key} is {rate!r}; a dropout rate must lie in [0, 1)")
    return float(rate)


class MaskSource:
    """Draws masks one after another from one seed; the order of calls decides what is drawn.

    Args:
        seed: seed of the batch, at least 0.
        device: where the masks shall live.
    """

    def __init__(self, seed: int, device: torch.device) -> None:
        self._device = device
        if device.type == "cpu":
            self._numpy = np.random.Generator(np.random.SFC64(seed))
        else:
            self._torch = torch.Generator(device).manual_seed(seed)

    def draw(self, shape: tuple[int, ...], rate: float, out: Tensor | None = None) -> Tensor:
        """Multipliers, 0 with probability `rate`, else 1 / (1 − rate).

        Args:
            shape: shape of the mask.
            rate: probability of zero, in [0, 1).
            out: contiguous float32 tensor of that shape to fill; None makes one.
        """
        dropped = min(round(rate * _LEVELS), _LEVELS - 1)
        threshold = dropped - _LEVELS // 2
        if self._device.type == "cpu":
            count = int(np.prod(shape))
            words = self._numpy.integers(0, 1 << 64, -(-count // 4), dtype=np.uint64)
            levels = torch.from_numpy(words.view(np.int16)[:count]).view(shape)
        else:
            half = _LEVELS // 2
            levels = torch.randint(
                -half, half, shape, generator=self._torch, dtype=torch.int16, device=self._device
            )
        if out is None:
            out = torch.empty(shape, device=self._device)
        return torch.mul(levels >= threshold, _LEVELS / (_LEVELS - dropped), out=out)


@dataclass(frozen=True, slots=True)
class Masks:
    """Multipliers for each use of a row in a batch; None where nothing is dropped.

    Attributes:
        head, tail: (B, D).
        relation: side → (B, Dr); the same tensor for both sides unless relations are reciprocal.
        candidates: side → (C, K, D).
    """

    head: Tensor | None
    tail: Tensor | None
    relation: dict[Side, Tensor]
    candidates: dict[Side, Tensor]


def draw_masks(
    seed: int,
    device: torch.device,
    edges: int,
    dims: tuple[int, int],
    candidates: dict[Side, tuple[int, int]],
    rates: tuple[float, float],
    reciprocal: bool,
) -> Masks:
    """Draw all masks of a batch, always in the same order.

    Args:
        seed: the batch's seed.
        device: device of the batch.
        edges: B.
        dims: (D, Dr).
        candidates: corrupted side → (C, K).
        rates: dropout of node rows and of relation rows.
        reciprocal: whether the two sides use different relation rows.
    """
    dim, relation_dim = dims
    node_rate, relation_rate = rates
    source = MaskSource(seed, device) if node_rate or relation_rate else None
    head = tail = None
    relation: dict[Side, Tensor] = {}
    rows: dict[Side, Tensor] = {}
    sides = [side for side in SIDES if side in candidates]
    if source is not None and node_rate:
        head = source.draw((edges, dim), node_rate)
        tail = source.draw((edges, dim), node_rate)
        for side in sides:
            rows[side] = source.draw((*candidates[side], dim), node_rate)
    if source is not None and relation_rate and relation_dim:
        shared: Tensor | None = None
        for side in sides:
            if shared is None or reciprocal:
                shared = source.draw((edges, relation_dim), relation_rate)
            relation[side] = shared
    return Masks(head, tail, relation, rows)
