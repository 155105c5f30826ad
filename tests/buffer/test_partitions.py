"""The buffer's swaps: what is read and written when, and that no row is lost or stale."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from marius_py.buffer import PartitionBuffer
from marius_py.buffer.partitions import Lease
from marius_py.buffer.swap import IOThread
from marius_py.ordering import build_schedule
from marius_py.partitioning import Partitioning
from marius_py.storage.memory import MemoryPartitionStore
from marius_py.storage.protocols import SMALL_SLOT, NodeTable
from marius_py.types import Step

NODES = 60


@contextmanager
def buffer_of(p: int, c: int) -> Iterator[tuple[PartitionBuffer, IOThread]]:
    """A buffer over nodes whose rows hold their number."""

    def fill(start: int, rows: np.ndarray, state: np.ndarray) -> None:
        rows[:] = np.arange(start, start + len(rows), dtype=np.float32)[:, None]

    io = IOThread()
    buffer = PartitionBuffer(MemoryPartitionStore(NodeTable(Partitioning(NODES, p), 2, 0)), c, io)
    buffer.fill_store(fill)
    try:
        yield buffer, io
    finally:
        buffer.abort()
        io.shutdown()
        buffer.close()


def test_slots_are_spare_where_they_are_small_and_partitions_on_disk() -> None:
    small, large = NodeTable(Partitioning(NODES, 8), 2, 2), NodeTable(Partitioning(10**7, 8), 100, 100)
    assert small.slot_bytes <= SMALL_SLOT < large.slot_bytes
    assert [small.num_slots(c) for c in (2, 3, 4, 6, 7, 8)] == [3, 4, 6, 8, 8, 8]
    assert [large.num_slots(c) for c in (2, 3, 4, 6, 7, 8)] == [3, 4, 5, 7, 8, 8]


def test_the_next_partition_is_read_while_batches_hold_the_one_that_left() -> None:
    first, second, third = build_schedule(8, 4, order="beta", seed=0).steps[:3]
    assert set(third.admit).isdisjoint(second.evict)
    with buffer_of(8, 4) as (buffer, io):
        buffer.begin(first.resident)
        lease = buffer.lease(first.resident)
        buffer.prefetch_for(second)
        buffer.enter(second, third)
        loads = io.submit(lambda: buffer.loads)  # edges of the next step are queued here
        buffer.write_back()
        assert loads.result(5) == 6
        written = io.submit(lambda: buffer.bytes_written)
        assert not written.done()
        lease.release()
        written.result(5)
        buffer.enter(third)
        assert buffer.resident == tuple(sorted(third.resident))


@pytest.mark.parametrize("seed", range(12))
def test_rows_are_whole_whatever_is_swapped(seed: int) -> None:
    rng = np.random.default_rng(seed)
    p = int(rng.integers(3, 10))
    c = int(rng.integers(min(p - 1, 4 - seed % 3), p))
    partitioning = Partitioning(NODES, p)
    expected = np.arange(NODES, dtype=np.float32)
    with buffer_of(p, c) as (buffer, _):
        steps = _random_steps(rng, p, c)
        buffer.begin(steps[0].resident)
        buffer.prefetch_for(steps[1])
        for step, upcoming in zip(steps, [*steps[1:], None], strict=True):
            if step is not steps[0]:
                buffer.enter(step, upcoming)
            lease = buffer.lease(step.resident)
            buffer.write_back()
            leave = upcoming.evict if upcoming else ()
            first = buffer.first_rows()
            for part in step.resident:
                nodes = np.arange(partitioning.start(part), partitioning.start(part + 1))
                rows = torch.from_numpy(buffer.index(nodes, first))
                np.testing.assert_array_equal(buffer._flat_embeddings[rows, 1].numpy(), expected[nodes])
                expected[nodes] += 1
                if part not in leave:
                    buffer._flat_embeddings[rows] += 1
            # What leaves is changed by a batch that ends when the next step has begun.
            late = [torch.arange(first[part], first[part] + partitioning.size(part)) for part in leave]
            threading.Timer(float(rng.uniform(0, 0.004)), _end, (buffer, late, lease)).start()
        buffer.flush()
        for part in range(p):
            size, start = partitioning.size(part), partitioning.start(part)
            rows, state = np.empty((1024, 2), np.float32), np.empty((1024, 0), np.float32)
            buffer.store.read_into(part, rows, state)
            np.testing.assert_array_equal(rows[:size, 0], expected[start : start + size])


def _random_steps(rng: np.random.Generator, p: int, c: int) -> list[Step]:
    """Steps that swap one or two partitions, often back what was swapped just now."""
    resident = set(rng.choice(p, c, replace=False).tolist())
    steps = [Step(tuple(sorted(resident)), (), (), ())]
    for _ in range(20):
        last = steps[-1]
        if last.admit and rng.random() < 0.3:
            evict, admit = last.admit, last.evict
        else:
            count = int(rng.integers(1, min(2, c, p - c) + 1))
            evict = tuple(rng.choice(sorted(resident), count, replace=False).tolist())
            admit = tuple(rng.choice(sorted(set(range(p)) - resident), count, replace=False).tolist())
        resident = resident - set(evict) | set(admit)
        steps.append(Step(tuple(sorted(resident)), admit, evict, ()))
    return steps


def _end(buffer: PartitionBuffer, rows: list[torch.Tensor], lease: Lease) -> None:
    for index in rows:
        buffer._flat_embeddings[index] += 1
    lease.release()
