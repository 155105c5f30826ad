"""Wrappers of node stores (floor 6): the same protocol, with faults or at a given speed."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np

from marius_py.errors import StorageError
from marius_py.storage.protocols import Checkpoint, Float32, NodeTable, PartitionStore

FaultKind = Literal["fail", "tear", "delay", "enospc", "eio"]
Operation = Literal["read_into", "write", "commit"]

_ERRNO = {"tear": errno.EIO, "enospc": errno.ENOSPC, "eio": errno.EIO}


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of a `FaultyStore`.

    Attributes:
        call: number of the call that it strikes, from 1; counted over all operations, or over `operation`.
        kind: "fail", "enospc", "eio" raise StorageError before anything is moved (the latter two with that
            errno); "tear" moves half of the rows, then raises; "delay" sleeps `seconds`, then goes on.
        operation: "read_into", "write" or "commit"; None: any of them.
        seconds: length of a delay.
    """

    call: int
    kind: FaultKind
    operation: Operation | None = None
    seconds: float = 0.05


class WrappedStore:
    """A `PartitionStore` that passes everything on to another one; base of the wrappers."""

    def __init__(self, store: PartitionStore) -> None:
        self.store = store

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def table(self) -> NodeTable:
        """Shape of the stored node table."""
        return self.store.table

    def read_into(self, part: int, embeddings: Float32, state: Float32) -> int:
        """As `PartitionStore.read_into`."""
        return self.store.read_into(part, embeddings, state)

    def write(self, part: int, embeddings: Float32, state: Float32) -> int:
        """As `PartitionStore.write`."""
        return self.store.write(part, embeddings, state)

    def free_slots(self) -> int:
        """As `PartitionStore.free_slots`."""
        return self.store.free_slots()

    def commit(self, checkpoint: Checkpoint) -> None:
        """As `PartitionStore.commit`."""
        self.store.commit(checkpoint)

    def checkpoint(self) -> Checkpoint | None:
        """As `PartitionStore.checkpoint`."""
        return self.store.checkpoint()

    @property
    def meta(self) -> Mapping[str, Any] | None:
        """As `PartitionStore.meta`."""
        return self.store.meta

    def close(self) -> None:
        """As `PartitionStore.close`."""
        self.store.close()


class FaultyStore(WrappedStore):
    """Passes on to `store`, but for the calls that `faults` strike. Never interrupts `close`.

    After a torn write the partition counts as damaged, as on a disk: reading or committing it raises until
    it is written again.

    Attributes:
        calls: (operation, partition or -1) of every counted call so far; run once without faults to learn
            how many there are.
    """

    def __init__(self, store: PartitionStore, faults: Iterable[Fault] = ()) -> None:
        super().__init__(store)
        self.calls: list[tuple[Operation, int]] = []
        self._faults = tuple(faults)
        self._torn: set[int] = set()

    def read_into(self, part: int, embeddings: Float32, state: Float32) -> int:
        """As `PartitionStore.read_into`; a tear fills the first half of the rows and raises."""
        is_torn = self._strike("read_into", part)
        self._check_whole([part])
        if is_torn:
            whole = embeddings.copy(), state.copy()
            self.store.read_into(part, *whole)
            half = len(embeddings) // 2
            embeddings[:half], state[:half] = whole[0][:half], whole[1][:half]
            raise _error("tear", "read_into", part)
        return self.store.read_into(part, embeddings, state)

    def write(self, part: int, embeddings: Float32, state: Float32) -> int:
        """As `PartitionStore.write`; a tear stores half of the rows, zeros behind, and raises."""
        if self._strike("write", part):
            half = self.table.partitioning.size(part) // 2
            torn = embeddings.copy(), state.copy()
            for array in torn:
                array[half:] = 0
            self.store.write(part, *torn)
            self._torn.add(part)
            raise _error("tear", "write", part)
        size = self.store.write(part, embeddings, state)
        self._torn.discard(part)
        return size

    def commit(self, checkpoint: Checkpoint) -> None:
        """As `PartitionStore.commit`; a tear commits nothing and raises."""
        if self._strike("commit", -1):
            raise _error("tear", "commit", -1)
        self._check_whole(self._torn)
        self.store.commit(checkpoint)

    def _strike(self, operation: Operation, part: int) -> bool:
        """Count the call and let a fault raise or delay; whether the call is to be torn."""
        self.calls.append((operation, part))
        number = len(self.calls)
        same = sum(name == operation for name, _ in self.calls)
        is_torn = False
        for fault in self._faults:
            if fault.operation not in (None, operation) or fault.call != (
                same if fault.operation else number
            ):
                continue
            if fault.kind == "delay":
                time.sleep(fault.seconds)
            elif fault.kind == "tear":
                is_torn = True
            else:
                raise _error(fault.kind, operation, part)
        return is_torn

    def _check_whole(self, parts: Iterable[int]) -> None:
        for part in parts:
            if part in self._torn:
                raise StorageError(f"the last write of partition {part} failed: write it again")


def _error(kind: FaultKind, operation: Operation, part: int) -> StorageError:
    code = _ERRNO.get(kind)
    where = operation if part < 0 else f"{operation} of partition {part}"
    cause = "injected failure" if code is None else f"{os.strerror(code)} (injected)"
    error = StorageError(f"{where} failed: {cause}")
    error.errno = code
    return error


class SlowStore(WrappedStore):
    """Passes on to `store`, but moves no more than a given number of bytes a second.

    Args:
        store: the store that does the work; its own time counts.
        bytes_per_s: speed of reads and writes.
        latency_s: seconds added to every call.
        sleep: what waits; tests may pass their own.
    """

    def __init__(
        self,
        store: PartitionStore,
        bytes_per_s: float,
        *,
        latency_s: float = 0.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(store)
        if not bytes_per_s > 0 or latency_s < 0:
            raise ValueError(f"bytes_per_s is {bytes_per_s}, latency_s {latency_s}; allowed: > 0 and ≥ 0")
        self._bytes_per_s = bytes_per_s
        self._latency_s = latency_s
        self._sleep = sleep

    def read_into(self, part: int, embeddings: Float32, state: Float32) -> int:
        """As `PartitionStore.read_into`, slowly."""
        started = time.perf_counter()
        size = self.store.read_into(part, embeddings, state)
        self._wait(started, size)
        return size

    def write(self, part: int, embeddings: Float32, state: Float32) -> int:
        """As `PartitionStore.write`, slowly."""
        started = time.perf_counter()
        size = self.store.write(part, embeddings, state)
        self._wait(started, size)
        return size

    def commit(self, checkpoint: Checkpoint) -> None:
        """As `PartitionStore.commit`, slowly."""
        started = time.perf_counter()
        self.store.commit(checkpoint)
        self._wait(started, sum(np.asarray(array).nbytes for array in checkpoint.arrays.values()))

    def _wait(self, started: float, size: int) -> None:
        due = started + self._latency_s + size / self._bytes_per_s
        rest = due - time.perf_counter()
        if rest > 0:
            self._sleep(rest)
