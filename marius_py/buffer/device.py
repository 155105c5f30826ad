"""The partition buffer in a device's memory (floor 2): partitions travel, batches' rows do not.

In: as for `PartitionBuffer`, whose schedule, leases and swaps these are. Slots are tensors on the device; a
partition passes through one slot's worth of pinned memory between the store and its slot, on the I/O thread
and on a stream of its own, while batches are computed. Batches read and change rows where they lie.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from marius_py.buffer.partitions import PartitionBuffer
from marius_py.buffer.swap import IOThread
from marius_py.buffer.transfer import Transfer
from marius_py.nn.cuda_kernels import Kernels, step_rows
from marius_py.nn.optimizers import SparseOptimizer
from marius_py.storage.protocols import Float32, NodeTable, PartitionStore


class DeviceBuffer(PartitionBuffer):
    """Slots of node rows in a device's memory: c, and spare ones to read into.

    A lease ends when a batch's work has been handed to the device, not when it is done: what writes a
    partition back waits for it on the device's own clock. So one thread computes, in the order of batches,
    and calls `mark` before it ends a lease.

    Args:
        store, capacity, io: as for `PartitionBuffer`.
        transfer: copies to and from the device.
    """

    def __init__(self, store: PartitionStore, capacity: int, io: IOThread, transfer: Transfer) -> None:
        self.transfer = transfer
        super().__init__(store, capacity, io)

    def _allocate(self, table: NodeTable, num_slots: int) -> None:
        rows = table.slot_rows
        self._embeddings = np.empty((0, rows, table.dim), np.float32)  # nothing lies in the host's slots
        self._state = np.empty((0, rows, table.state_dim), np.float32)
        self._staging = tuple(self.transfer.staging((rows, width)) for width in (table.dim, table.state_dim))
        self._slot_embeddings = self.transfer.slots((num_slots, rows, table.dim))
        self._slot_state = self.transfer.slots((num_slots, rows, table.state_dim))
        self._flat_embeddings = self._slot_embeddings.view(num_slots * rows, table.dim)
        self._flat_state = self._slot_state.view(num_slots * rows, table.state_dim)

    @property
    def bytes(self) -> int:
        """Device memory of the slots; the host holds one slot more, pinned."""
        return 4 * (self._slot_embeddings.numel() + self._slot_state.numel())

    @property
    def slot_rows(self) -> int:
        """Rows of a slot."""
        return self._slot_rows

    # ------------------------------------------------------------------ computing thread

    def rows(self, kernels: Kernels, index: Tensor) -> Tensor:
        """Copy of the embeddings (n, D) at buffer rows (n,) int64."""
        return kernels.take(self._tables()[0], index)

    def step(
        self,
        kernels: Kernels,
        optimizer: SparseOptimizer,
        index: Tensor,
        gradients: Tensor,
        *,
        count: Tensor | None,
        rate: float | Tensor,
    ) -> None:
        """One step of the optimizer on the rows `index` (n,), in place; arguments as for `step_rows`."""
        rows, state = self._tables()
        step_rows(kernels, optimizer, rows, state, index, gradients, count=count, rate=rate)

    def mark(self) -> None:
        """What has been handed to the device so far must be done before a partition is written back."""
        self.transfer.computed()

    def close(self) -> None:
        """As `PartitionBuffer.close`; frees the device's memory as well."""
        super().close()
        self.transfer.close()
        self._staging = ()
        self._slot_embeddings = self._slot_state = torch.empty(0, dtype=torch.float32, device="cpu")

    # ------------------------------------------------------------------ I/O thread

    def _pages(self) -> tuple[Float32, Float32]:
        embeddings, state = self._staging
        return embeddings, state

    def _load(self, part: int, slot: int) -> int:
        embeddings, state = self._pages()
        size = self.store.read_into(part, embeddings, state)
        self.transfer.load(self._pairs(slot))
        return size

    def _save(self, part: int, slot: int) -> int:
        self.transfer.save(self._pairs(slot))
        return self._write_numbers(part, *self._pages())

    def _pairs(self, slot: int) -> list[tuple[Float32, Tensor]]:
        embeddings, state = self._pages()
        return [(embeddings, self._slot_embeddings[slot]), (state, self._slot_state[slot])]
