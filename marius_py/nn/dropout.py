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

import numpy as np
import torch
from torch import Tensor

from marius_py.errors import ConfigError
from marius_py.nn.kernels.workspace import Workspace
from marius_py.types import SIDES, Side

_LEVELS = 1 << 16
_HALF = _LEVELS // 2


def check_rate(key: str, rate: float) -> float:
    """Return a dropout rate in [0, 1) or raise ConfigError naming `key`."""
    if not 0 <= rate < 1:
        raise ConfigError(f"{key} is {rate!r}; a dropout rate must lie in [0, 1)")
    return float(rate)


class RowMasks:
    """Masks of one use of rows, taken in order; how many are taken at a time does not change them.

    Args:
        seed: seeds of the batch and of the use.
        name: name of the buffer in the workspace.
        total: rows in all.
        width: floats a row.
        rate: probability of zero, in [0, 1).
        workspace: where masks are kept.
    """

    def __init__(
        self, seed: tuple[int, int], name: str, total: int, width: int, rate: float, workspace: Workspace
    ) -> None:
        dropped = min(round(rate * _LEVELS), _LEVELS - 1)
        self._active = dropped > 0 and width > 0
        self._threshold = dropped - _HALF
        self._scale = _LEVELS / (_LEVELS - dropped)
        self._name = name
        self._shape = (total, width)
        self._workspace = workspace
        self._taken = 0
        if not self._active:
            return
        if workspace.device.type == "cpu":
            self._words = np.random.SFC64(np.random.SeedSequence(seed))
        else:
            mixed = int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0] >> np.uint64(1))
            generator = torch.Generator(workspace.device).manual_seed(mixed)
            self._levels = torch.randint(
                -_HALF, _HALF, self._shape, generator=generator, dtype=torch.int16, device=workspace.device
            )

    def take(self, count: int) -> Tensor | None:
        """Multipliers (count, width) of the next rows: 0 or 1 / (1 − rate); valid until the next call.

        None if nothing is dropped.
        """
        if not self._active:
            return None
        width = self._shape[1]
        if self._workspace.device.type == "cpu":
            # A row starts on a word of its own, so that the split of rows over calls does not matter.
            padded = -(-width // 4) * 4
            words = self._words.random_raw(count * padded // 4)
            levels = torch.from_numpy(words.view(np.int16)).view(count, padded)[:, :width]
        else:
            levels = self._levels[self._taken : self._taken + count]
        self._taken += count
        out = self._workspace.take(self._name, count, width)
        return torch.ge(levels, self._threshold, out=out).mul_(self._scale)


class BatchMasks:
    """Masks for each use of a row in a batch, the same whichever path computes the gradients.

    Args:
        seed: the batch's seed.
        edges: B.
        candidates: corrupted side → C · K, its candidates.
        dims: (D, Dr).
        rates: dropout of node rows and of relation rows.
        workspace: where masks are kept.

    Attributes:
        head, tail: masks of D for the B edges.
        relation: side → masks of Dr for the B edges; sides that share relation rows use the first side's.
        candidates: side → masks of D for the candidates.
    """

    def __init__(
        self,
        seed: int,
        edges: int,
        candidates: dict[Side, int],
        dims: tuple[int, int],
        rates: tuple[float, float],
        workspace: Workspace,
    ) -> None:
        (dim, relation_dim), (node_rate, relation_rate) = dims, rates
        self.head = RowMasks((seed, 0), "mask_head", edges, dim, node_rate, workspace)
        self.tail = RowMasks((seed, 1), "mask_tail", edges, dim, node_rate, workspace)
        self.relation: dict[Side, RowMasks] = {}
        self.candidates: dict[Side, RowMasks] = {}
        for number, side in enumerate(SIDES):
            if side in candidates:
                name, use = f"mask_relation_{side}", (seed, 2 + number)
                self.relation[side] = RowMasks(use, name, edges, relation_dim, relation_rate, workspace)
                name, use = f"mask_candidates_{side}", (seed, 4 + number)
                self.candidates[side] = RowMasks(use, name, candidates[side], dim, node_rate, workspace)
