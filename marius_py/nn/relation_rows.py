"""Relation rows and their optimizer state (floor 1): those of a batch out, gradients in.

Relations are few: all their rows stay where batches are computed, and the next batch sees what the last one
made of them. Several threads may train at once: taking rows and updating them take turns.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from marius_py.errors import ConfigError
from marius_py.nn.cuda_kernels import Kernels, step_rows
from marius_py.nn.optimizers import Adagrad, AdagradRow, SparseOptimizer
from marius_py.types import Side

DENSE_RELATIONS = 1 << 16
"""Most relation rows that every batch on a device takes along instead of looking for its own."""

_SPARSE = 8
"""Rows for each that a batch names up to which all are looked through; beyond, sorting is quicker."""

Taken = Tensor | slice
"""Which rows a batch takes: (V,) int64, each once and ascending, or all."""


class RelationRows:
    """Rows of all relations, of reciprocal ones after them.

    Args:
        rows: (R, Dr) float32 initial values, or (2R, Dr).
        state: (…, S) float32 initial optimizer state.
        optimizer: changes them.
        num_relations: R.
        device: where they live.
        takes_all: whether batches on a device take all rows along if there are at most `DENSE_RELATIONS`:
            finding their own makes the host wait.
        kernels: of the device, if there are any.
    """

    def __init__(
        self,
        rows: np.ndarray,
        state: np.ndarray,
        optimizer: SparseOptimizer,
        *,
        num_relations: int,
        device: torch.device,
        takes_all: bool,
        kernels: Kernels | None = None,
    ) -> None:
        self._rows = torch.from_numpy(rows).to(device)
        self._state = torch.from_numpy(state).to(device)
        self._optimizer = optimizer
        self._kernels = kernels
        self._num_relations = num_relations
        self._reciprocal = len(rows) > num_relations
        self._lock = threading.Lock()
        self.takes_all = takes_all and len(rows) <= DENSE_RELATIONS
        self._everything = torch.arange(len(rows) if self.takes_all else 0, device=device)

    @property
    def nbytes(self) -> int:
        """Bytes of rows and state."""
        return self._rows.nbytes + self._state.nbytes

    def index(self, relation: Tensor, sides: Sequence[Side]) -> tuple[dict[Side, Tensor], Taken]:
        """Which rows a batch takes, and where among them each side's are.

        Args:
            relation: (B,) int64 relation ids.
            sides: the corrupted ones.

        Returns:
            Side → (B,) int64, places among the rows that are taken; and these.
        """
        first = {"head": self._num_relations if self._reciprocal else 0, "tail": 0}
        if self.takes_all:
            return {side: relation + first[side] if first[side] else relation for side in sides}, slice(None)
        if self._reciprocal:
            ids = torch.cat([relation + first[side] for side in sides])
            unique, inverse = _distinct(ids, len(self._rows))
            return dict(zip(sides, inverse.view(len(sides), -1), strict=True)), unique
        unique, inverse = _distinct(relation, len(self._rows))
        return dict.fromkeys(sides, inverse), unique

    def take(self, which: Taken) -> Tensor:
        """(V, Dr) a copy of these rows; all of them, the rows themselves."""
        with self._lock:
            return self._rows[which]

    def update(
        self, which: Taken, gradient: Tensor, rate: float | Tensor, index: Mapping[Side, Tensor]
    ) -> None:
        """Take the optimizer's step of some rows, on their newest values.

        Args:
            which: the rows, as `index` returned them, and their places too.
            gradient: (V, Dr).
            rate: factor of the rows' deltas; on a device perhaps a tensor ().
            index: the sides' places: where all rows are taken, others stay as they are.
        """
        with self._lock:
            if isinstance(which, Tensor) and not which.is_cuda:
                self._optimizer.step(self._rows, self._state, which, gradient, float(rate))
                return
            if isinstance(which, slice) and type(self._optimizer) in (Adagrad, AdagradRow) and self._kernels:
                # Adagrad leaves rows without a gradient as they are: one launch instead of eighteen.
                given = self._rows, self._state, self._everything, gradient
                step_rows(self._kernels, self._optimizer, *given, rate=rate)
                return
            rows, state = self._rows[which], self._state[which]
            d_rows, d_state = self._optimizer.delta(rows, state, gradient)
            if isinstance(which, slice):
                taken = torch.zeros(len(rows), 1, dtype=torch.bool, device=rows.device)
                for ids in index.values():
                    taken.index_fill_(0, ids, True)
                d_rows, d_state = torch.where(taken, d_rows, 0.0), torch.where(taken, d_state, 0.0)
            rows, state = rows + d_rows * rate, state + d_state  # both before either is stored
            self._rows[which] = rows
            self._state[which] = state

    def of_queries(self, relations: Tensor, side: Side) -> tuple[Tensor, Side]:
        """Rows (Q, Dr) of relations (Q,), below R, for ranking a side, and the side then asked for.

        Not while batches are computed.
        """
        if self._reciprocal and side == "head":
            return self._rows[relations + self._num_relations], "tail"
        return self._rows[relations], side

    def arrays(self, *, copy: bool = True) -> dict[str, np.ndarray]:
        """Rows and state, for a checkpoint.

        Args:
            copy: False: on the CPU they may be the rows themselves, for as long as no batch runs.
        """
        with self._lock:
            arrays = {"relations": self._rows.cpu().numpy(), "relation_state": self._state.cpu().numpy()}
            own = copy and self._rows.device.type == "cpu"
            return {name: array.copy() for name, array in arrays.items()} if own else arrays

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Take over what `arrays` returned.

        Raises:
            ConfigError: an array is missing or has another shape.
        """
        ours = {"relations": self._rows, "relation_state": self._state}
        for key, tensor in ours.items():
            found = None if key not in arrays else tuple(arrays[key].shape)
            if found != tuple(tensor.shape):
                raise ConfigError(
                    f"the checkpoint's array {key!r} has shape {found}, the model's {tuple(tensor.shape)}: "
                    "model.decoder, model.dim, model.reciprocal or optimizer.name differ from the run's, "
                    "or the graph has other relations"
                )
        with self._lock:
            for key, tensor in ours.items():
                tensor.copy_(torch.from_numpy(np.ascontiguousarray(arrays[key], dtype=np.float32)))


def _distinct(ids: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """As `torch.unique(ids, return_inverse=True)` of ids below `count`; sorts only where these are many."""
    if ids.is_cuda or count > _SPARSE * len(ids):
        unique, inverse = torch.unique(ids, return_inverse=True)
        return unique, inverse
    unique = torch.bincount(ids, minlength=count).nonzero().view(-1)
    place = torch.empty(count, dtype=torch.int64, device=ids.device)
    place[unique] = torch.arange(len(unique), device=ids.device)
    return unique, place[ids]
