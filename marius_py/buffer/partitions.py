"""Resident rows (floor 2): c partitions and one or two spare slots, swapped without stopping the pipeline.

In: the steps of a schedule. Out: rows by buffer index; gradients of rows come back for a step. Entering a
step flips the slot table and copies nothing: the admitted partition was read into a spare slot while
the last step computed, and the evicted one is written back as soon as the batches that lease it have
ended. No slot is used again before its write has succeeded.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from marius_py.buffer.numbers import check_numbers
from marius_py.buffer.row_threads import RowThreads
from marius_py.buffer.swap import IOThread
from marius_py.errors import ConfigError, ScheduleError, StorageError
from marius_py.memory import buffer_too_large
from marius_py.nn.kernels.host import compiled_distinct
from marius_py.nn.micro_batches import is_out_of_memory
from marius_py.nn.optimizers import SparseOptimizer
from marius_py.storage.aligned import allocate
from marius_py.storage.protocols import Float32, NodeTable, PartitionStore
from marius_py.types import Step

T = TypeVar("T")


class Lease:
    """A batch's right to its partitions: their slots stay where they are until `release`."""

    __slots__ = ("_buffer", "_parts")

    def __init__(self, buffer: PartitionBuffer, parts: Sequence[int]) -> None:
        self._buffer: PartitionBuffer | None = buffer
        self._parts = tuple(parts)

    def release(self) -> None:
        """End the lease. May be called twice and from any thread."""
        buffer, self._buffer = self._buffer, None
        if buffer is not None:
            buffer._release(self._parts)


class PartitionBuffer:
    """Slots of node rows over a PartitionStore: c, and spare ones to read into.

    One thread walks the schedule (`begin`, `enter`, `lease`, `index`); one gathers; one scatters; the
    buffer's own I/O thread reads and writes. The buffer owns its memory; views never leave it.

    Args:
        store: where partitions come from and go to.
        capacity: c, partitions that are resident at once.
        io: the I/O thread to use; the caller shuts it down.

    Raises:
        ScheduleError: no such capacity. ConfigError: there is not enough memory for the slots.
    """

    def __init__(self, store: PartitionStore, capacity: int, io: IOThread) -> None:
        table = store.table
        num_partitions = table.partitioning.num_partitions
        if not 1 <= capacity <= num_partitions:
            raise ScheduleError(
                f"storage.capacity is {capacity}; allowed: 1 to storage.partitions ({num_partitions})"
            )
        self.store = store
        self.capacity = capacity
        self._io = io
        num_slots = table.num_slots(capacity)
        rows = table.slot_rows
        self._slot_rows = rows
        self._num_slots = num_slots
        try:
            self._allocate(table, num_slots)
        except (MemoryError, OSError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            raise ConfigError(buffer_too_large(num_slots, table.slot_bytes, capacity, error)) from error
        self._starts = table.partitioning.starts()
        self._slot_of: dict[int, int] = {}
        self._first_row = np.full(num_partitions, -1, dtype=np.int64)
        self._free = deque(range(num_slots))
        self._dirty: set[int] = set()
        self._leaving: list[tuple[int, int]] = []
        self._reads: dict[int, Future[int]] = {}
        self._leases = [0] * num_partitions
        self._changed = threading.Condition()
        self._aborted = False
        self._threads = RowThreads()
        self.bytes_read = 0
        self.bytes_written = 0
        self.loads = 0
        self.waits: list[tuple[float, float]] = []
        """(start, end) of the schedule thread's waits for reads, in time.perf_counter() seconds."""

    def _allocate(self, table: NodeTable, num_slots: int) -> None:
        """Make the slots."""
        rows = table.slot_rows
        self._embeddings = allocate((num_slots, rows, table.dim))
        self._state = allocate((num_slots, rows, table.state_dim))
        self._flat_embeddings = torch.from_numpy(self._embeddings).view(num_slots * rows, table.dim)
        self._flat_state = torch.from_numpy(self._state).view(num_slots * rows, table.state_dim)

    def fill_store(self, fill: Callable[[int, Float32, Float32], None]) -> None:
        """Write a first version of every partition, made in one slot; the buffer must be empty.

        Args:
            fill: called with (first node id, rows (n, D), state (n, S)), to be filled in place.
        """
        partitioning = self.store.table.partitioning
        embeddings, state = self._pages()
        for part in range(partitioning.num_partitions):
            size = partitioning.size(part)
            fill(partitioning.start(part), embeddings[:size], state[:size])
            self.bytes_written += self.store.write(part, embeddings, state)

    # ------------------------------------------------------------------ schedule thread

    @property
    def num_slots(self) -> int:
        """Slots: c, and one or two to read into where partitions are swapped."""
        return self._num_slots

    @property
    def num_rows(self) -> int:
        """Rows of all slots: the range of buffer indices."""
        return int(self._flat_embeddings.shape[0])

    @property
    def bytes(self) -> int:
        """Host memory of the slots."""
        return int(self._embeddings.nbytes + self._state.nbytes)

    @property
    def resident(self) -> tuple[int, ...]:
        """Partitions in the slot table, ascending."""
        return tuple(sorted(self._slot_of))

    def begin(self, resident: Sequence[int]) -> None:
        """Make exactly `resident` the buffer's content; what is already here stays and is not read again."""
        self._forget_prefetched(resident)
        for part in [part for part in self._slot_of if part not in resident]:
            self._evict(part)
        self.write_back()
        missing = [part for part in resident if part not in self._slot_of]
        self.prefetch(missing)
        for part in missing:
            self._admit(part)

    def prefetch(self, parts: Iterable[int]) -> None:
        """Queue reads of partitions into free slots; a read waits for the write-back that frees its slot."""
        for part in parts:
            if part not in self._reads and part not in self._slot_of:
                self._reads[part] = self._io.submit(self._read, part)

    def prefetch_for(self, upcoming: Step) -> None:
        """Queue the reads of the step to come, as far as the spare slots hold them."""
        if len(upcoming.admit) <= self.num_slots - self.capacity:
            self.prefetch(upcoming.admit)

    def timed(self, future: Future[T]) -> T:
        """Wait for a read of the I/O thread and note from when to when."""
        started = time.perf_counter()
        try:
            return future.result()
        finally:
            self.waits.append((started, time.perf_counter()))
            self._io.tell("wait for the disk", started)

    def enter(self, step: Step, upcoming: Step | None = None) -> None:
        """Swap to `step` and queue the reads of the `upcoming` one. Waits only for `step`'s own read.

        Where a spare slot is left for what is read next, the write-back of what leaves, which waits for the
        batches in it, is queued behind: `write_back` does it.
        """
        started = time.perf_counter()
        self.write_back()
        for part in step.evict:
            self._evict(part)
        if not self._has_room_ahead(step, upcoming):
            self.write_back()
        self.prefetch(step.admit)
        for part in step.admit:
            self._admit(part)
        if upcoming is not None:
            self.prefetch_for(upcoming)
        if self.resident != tuple(sorted(step.resident)):
            raise ScheduleError(
                f"the step expects partitions {tuple(sorted(step.resident))} in the buffer, which "
                f"holds {self.resident}; the schedule breaks its invariants"
            )
        self._io.tell("swap", started, admit=step.admit, evict=step.evict)

    def _has_room_ahead(self, step: Step, upcoming: Step | None) -> bool:
        """Whether the upcoming step's reads need no slot, and no partition, that leaves with this step."""
        if upcoming is None or not self._reads.keys() >= set(step.admit):
            return False
        spare = self.num_slots - self.capacity - len(step.admit)
        return len(upcoming.admit) <= spare and set(upcoming.admit).isdisjoint(step.evict)

    def write_back(self) -> None:
        """Queue the write-back of what has left and was not yet queued, behind what is queued by now."""
        leaving, self._leaving = self._leaving, []
        for part, slot in leaving:
            if part in self._dirty:
                self._dirty.discard(part)
                self._io.submit(self._write, part, slot, slot)
            else:
                self._io.submit(self._drop, part, slot)

    def lease(self, parts: Sequence[int]) -> Lease:
        """Hold `parts` in their slots until the lease is released; they count as changed from now on."""
        with self._changed:
            for part in parts:
                self._leases[part] += 1
        self._dirty.update(parts)
        return Lease(self, parts)

    def first_rows(self) -> NDArray[np.int64]:
        """(p,) buffer row of each partition's first node, -1 where it is not resident; a copy.

        What it says of leased partitions holds until their leases end, also once a swap has begun.
        """
        return self._first_row.copy()

    def index(
        self, nodes: NDArray[np.int64], first_rows: NDArray[np.int64], compiled: bool = False
    ) -> NDArray[np.int64]:
        """Buffer row (U,) of node ids (U,), whose partitions must be resident, as `first_rows` says.

        With `compiled` by a loop compiled with Numba, if there is Numba.
        """
        kernels = compiled_distinct() if compiled else None
        rows = np.empty_like(nodes)
        if kernels is not None and kernels.rows_of(nodes, self._starts, first_rows, rows):
            return rows
        part, row = self.store.table.partitioning.locate(nodes)
        first: NDArray[np.int64] = first_rows[part]
        if first.size and int(first.min()) < 0:
            missing = sorted(set(part[first < 0].tolist()))
            resident = tuple(np.flatnonzero(first_rows >= 0).tolist())
            raise ScheduleError(f"partitions {missing} are used by a batch but not resident {resident}")
        return first + row

    def slot(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Slot of buffer rows, in [0, num_slots)."""
        return rows // self._slot_rows

    # ------------------------------------------------------------------ gather and scatter threads

    def gather_rows(self, index: Tensor, out: Tensor) -> Tensor:
        """Copy the rows at buffer indices (U,) int64 to `out` (U, D), which is returned."""
        return self._threads.take(self._tables()[0], index, out)

    def update(self, optimizer: SparseOptimizer, index: Tensor, gradients: Tensor, rate: float) -> None:
        """One step of the optimizer on the rows at distinct buffer indices, in place.

        Of one batch at a time; several threads may each do rows of their own.

        As many threads share in it as torch has: one does some million rows a second.

        Args:
            optimizer: whose state the slots hold.
            index: (U,) int64. gradients: (U, D).
            rate: factor of the learning rate.
        """
        rows, state = self._tables()

        def step(part: slice) -> None:
            optimizer.step(rows, state, index[part], gradients[part], rate)

        self._threads.share(len(index), step)

    # ------------------------------------------------------------------ between segments

    def flush(self) -> None:
        """Write every changed resident partition to the store and wait; call when no batch is in flight."""
        self.write_back()
        for part, slot in sorted(self._slot_of.items()):
            if part in self._dirty:
                self._io.submit(self._write, part, slot, None)
        self._io.drain()
        self._dirty.clear()

    def abort(self) -> None:
        """Wake and fail whatever waits for leases, after an error elsewhere. The content is lost."""
        with self._changed:
            self._aborted = True
            self._changed.notify_all()

    def close(self) -> None:
        """Abort waiters and free the slots; the I/O thread must have ended. May be called twice."""
        self.abort()
        self._threads.close()
        table = self.store.table
        self._embeddings = np.empty((0, 0, table.dim), np.float32)
        self._state = np.empty((0, 0, table.state_dim), np.float32)
        self._flat_embeddings = torch.from_numpy(self._embeddings).view(0, table.dim)
        self._flat_state = torch.from_numpy(self._state).view(0, table.state_dim)
        self._slot_of.clear()

    def __enter__(self) -> PartitionBuffer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ------------------------------------------------------------------ inner

    def _release(self, parts: Sequence[int]) -> None:
        with self._changed:
            for part in parts:
                self._leases[part] -= 1
            if any(self._leases[part] == 0 for part in parts):
                self._changed.notify_all()

    def _evict(self, part: int) -> None:
        slot = self._slot_of.pop(part)
        self._first_row[part] = -1
        self._leaving.append((part, slot))

    def _admit(self, part: int) -> None:
        slot = self.timed(self._reads.pop(part))
        self._slot_of[part] = slot
        self._first_row[part] = slot * self._slot_rows

    def _forget_prefetched(self, resident: Sequence[int]) -> None:
        for part in [part for part in self._reads if part not in resident]:
            self._io.submit(self._free.append, self._reads.pop(part).result())

    def _wait_unleased(self, part: int) -> None:
        if not self._leases[part] and not self._aborted:
            return
        started = time.perf_counter()
        self._io.doing("wait for the batches in the partition to be written back")
        with self._changed:
            self._changed.wait_for(lambda: self._aborted or self._leases[part] == 0)
            if self._aborted:
                raise StorageError(f"write-back of partition {part} given up: the run is stopping")
        self._io.tell("wait for batches before a write", started, partition=part)
        self._io.doing("I/O: write")

    def _read(self, part: int) -> int:
        if not self._free:
            raise StorageError(f"no free slot to read partition {part} into; the schedule admits too many")
        slot, started = self._free.popleft(), time.perf_counter()
        self.bytes_read += self._load(part, slot)
        self.loads += 1
        self._io.tell("read", started, partition=part)
        return slot

    def _write(self, part: int, slot: int, release: int | None) -> None:
        self._wait_unleased(part)
        started = time.perf_counter()
        self.bytes_written += self._save(part, slot)
        self._io.tell("write", started, partition=part)
        if release is not None:
            self._free.append(release)

    def _drop(self, part: int, slot: int) -> None:
        self._wait_unleased(part)
        self._free.append(slot)

    def _tables(self) -> tuple[Tensor, Tensor]:
        """Rows and state of all slots, to be held while they are used: compiled loops check no index.

        Raises:
            StorageError: the buffer was closed under a thread that its run has left behind.
        """
        rows, state = self._flat_embeddings, self._flat_state
        if not (len(rows) and len(state)):
            raise StorageError("the buffer was closed while a batch was under way")
        return rows, state

    # ------------------------------------------------------------------ between store and slots

    def _pages(self) -> tuple[Float32, Float32]:
        """Slot-shaped memory of the host, free before anything is resident."""
        return self._embeddings[0], self._state[0]

    def _load(self, part: int, slot: int) -> int:
        """Read a partition into a slot; returns bytes read."""
        return self.store.read_into(part, self._embeddings[slot], self._state[slot])

    def _save(self, part: int, slot: int) -> int:
        """Write a slot back as a partition; returns bytes written."""
        return self._write_numbers(part, self._embeddings[slot], self._state[slot])

    def _write_numbers(self, part: int, embeddings: Float32, state: Float32) -> int:
        """Write a partition from a slot's arrays, unless its rows are no numbers; returns bytes written.

        Gradients are looked at before they are used, but what an optimizer makes of them is not.
        """
        used = slice(self.store.table.partitioning.size(part))

        def before() -> Float32:
            rows, other = allocate(embeddings.shape), allocate(state.shape)
            self.store.read_into(part, rows, other)
            return rows[used]

        check_numbers(embeddings[used], f"rows of partition {part}", before)
        return self.store.write(part, embeddings, state)
