"""Dropout masks of a batch (floor 1): seed and shapes in, float multipliers out.

Every use of a row in a batch has a mask of its own, as if every lookup were followed by dropout: on each
side the known node and the relation where they question the negatives, both again where they question the
true answer, the answer, and each chunk's candidates. Masks that are shared are cheaper, but tie together what
should be noise: with one mask for both queries of an edge the true answer and its competitors are compared
under the same noise, and with one for a node as query of one side and as answer of the other the two sides
are fitted to the same subset. ComplEx on FB15k-237 ranked 1.6 % to 2.5 % worse that way.

Drawing is cheap by small integers: eight coordinates for each 64-bit random word, one comparison each. Rates
are therefore rounded to multiples of 2⁻⁸, or of 2⁻¹⁶ where that would change them or 1 − rate by more than
2 %; the scale 1 / (1 − rate) uses the rounded rate.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from marius_py.errors import ConfigError
from marius_py.nn.kernels.workspace import Workspace
from marius_py.types import SIDES, Side

_WORD_BITS = 64
_NEAR = 0.02
"""Relative change, of a rate and of its complement, that a byte a coordinate instead of two may make."""


def _bits_of(rate: float, device: str) -> int:
    """Random bits a coordinate."""
    if device != "cpu":
        return 16
    return 8 if abs(round(rate * 256) / 256 - rate) <= _NEAR * min(rate, 1 - rate) else 16


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

    Attributes:
        active: whether anything is dropped.
        scale: what kept coordinates are multiplied by.
    """

    def __init__(
        self, seed: tuple[int, int], name: str, total: int, width: int, rate: float, workspace: Workspace
    ) -> None:
        bits = _bits_of(rate, workspace.device.type)
        levels, half = 1 << bits, 1 << (bits - 1)
        dropped = min(round(rate * levels), levels - 1)
        self.active = dropped > 0 and width > 0
        self._threshold = dropped - half
        self.scale = levels / (levels - dropped)
        self._type = np.int8 if bits == 8 else np.int16
        self._a_word = _WORD_BITS // bits
        self._name = name
        self._shape = (total, width)
        self._words_a_row = -(-width // self._a_word)
        self._workspace = workspace
        self._taken = 0
        if not self.active:
            return
        if workspace.device.type == "cpu":
            self._words = np.random.SFC64(np.random.SeedSequence(seed))
        else:
            mixed = int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0] >> np.uint64(1))
            generator = torch.Generator(workspace.device).manual_seed(mixed)
            self._levels = torch.randint(
                -half, half, self._shape, generator=generator, dtype=torch.int16, device=workspace.device
            )

    def kept(self, count: int) -> np.ndarray:
        """Which coordinates of the next rows are kept, on the host: (count, width or more) bool.

        Of no rows if nothing is dropped.
        """
        if not self.active:
            return np.empty((0, 0), np.bool_)
        self._taken += count
        kept: np.ndarray = self._drawn(count) >= self._threshold
        return kept

    def _drawn(self, count: int) -> np.ndarray:
        """Random whole numbers (count, width or more) of the next rows, on the host."""
        # A row starts on a word of its own, so that the split of rows over calls does not matter.
        words = self._words.random_raw(count * self._words_a_row)
        return words.view(self._type).reshape(count, self._words_a_row * self._a_word)

    def take(self, count: int) -> Tensor | None:
        """Multipliers (count, width) of the next rows: 0 or 1 / (1 − rate); valid until the next call.

        None if nothing is dropped.
        """
        if not self.active:
            return None
        width = self._shape[1]
        if self._workspace.device.type == "cpu":
            levels = torch.from_numpy(self._drawn(count))[:, :width]
        else:
            levels = self._levels[self._taken : self._taken + count]
        self._taken += count
        out = self._workspace.take(self._name, count, width)
        return torch.ge(levels, self._threshold, out=out).mul_(self.scale)

    def skip(self, count: int) -> None:
        """Pass over the next rows, as if they had been taken."""
        if not self.active:
            return
        if self._workspace.device.type == "cpu":
            self._words.random_raw(count * self._words_a_row, output=False)
        self._taken += count


@dataclass(frozen=True, slots=True)
class SideMasks:
    """Masks of one corrupted side, for the B edges and for the candidates.

    Attributes:
        node, relation: of D and Dr, for the query that meets the negatives.
        positive_node, positive_relation: likewise, for the query that meets the true answer.
        answer: of D.
        candidates: of D, for the C · K negatives.
    """

    node: RowMasks
    relation: RowMasks
    positive_node: RowMasks
    positive_relation: RowMasks
    answer: RowMasks
    candidates: RowMasks

    @property
    def two_queries(self) -> bool:
        """Whether a query of the true answer differs from that of the negatives."""
        return self.node.active or self.relation.active

    @property
    def active(self) -> bool:
        """Whether anything is dropped."""
        return self.two_queries or self.answer.active or self.candidates.active

    def skip(self, edges: int, candidates: int) -> None:
        """Pass over the masks of the first `edges` edges and `candidates` candidates."""
        for masks in (self.node, self.relation, self.positive_node, self.positive_relation, self.answer):
            masks.skip(edges)
        self.candidates.skip(candidates)


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
        sides: corrupted side → its masks.
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
        self.sides: dict[Side, SideMasks] = {}
        for number, side in enumerate(SIDES):
            if side not in candidates:
                continue
            uses = [
                ("node", 0, edges),
                ("relation", 1, edges),
                ("positive_node", 0, edges),
                ("positive_relation", 1, edges),
                ("answer", 0, edges),
                ("candidates", 0, candidates[side]),
            ]
            first = number * len(uses)
            masks = [
                RowMasks((seed, first + use), f"mask_{name}_{side}", rows, dims[kind], rates[kind], workspace)
                for use, (name, kind, rows) in enumerate(uses)
            ]
            self.sides[side] = SideMasks(*masks)
