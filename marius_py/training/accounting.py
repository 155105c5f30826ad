"""What an epoch has cost so far (floor 4): counters of its parts in, sums of its line of metrics out."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from marius_py.buffer import PartitionBuffer
from marius_py.data.batches import BatchSource
from marius_py.pipeline.trace import IN_FLIGHT, ON_DEVICE, Trace, overlap_s
from marius_py.run_state import RunState


@dataclass(slots=True)
class Trained:
    """Edges of a segment, and the sum of their losses."""

    edges: int = 0
    loss: float = 0.0

    def add(self, edges: int, loss: float) -> None:
        """Count a batch of so many edges with this mean loss."""
        self.edges += edges
        self.loss += loss * edges


_MOVED = ("bytes_read", "bytes_written", "loads")
"""Counters of the I/O thread, which works on between segments."""


class Accounting:
    """Adds what each segment of an epoch moved, waited and computed to the epoch's sums.

    What the I/O thread moves between two segments counts in the second one.

    Args:
        buffer: counts loads and bytes, and notes when it waited for a read.
        source: counts bytes of edges.
        trace: notes when nothing was computed.
        threaded: whether stages run beside each other, so that a wait need not cost anything.
    """

    def __init__(self, buffer: PartitionBuffer, source: BatchSource, trace: Trace, *, threaded: bool) -> None:
        self._buffer = buffer
        self._source = source
        self._trace = trace
        self._threaded = threaded
        self._wait_disk_s = 0.0
        self._moved: dict[str, float] = {}

    @contextmanager
    def segment(self, state: RunState) -> Iterator[Trained]:
        """Count a part of the epoch under way: what is trained in the block goes into what is yielded."""
        before, started, trained = self._counters() | self._moved, time.perf_counter(), Trained()
        yield trained
        self._note_waits()
        seconds = time.perf_counter() - started
        current, after = state.current, self._counters()
        self._moved = {name: after[name] for name in _MOVED}
        grown = {name: value - before[name] for name, value in after.items()}
        state.current = replace(
            current,
            loss=current.loss + trained.loss,
            edges=current.edges + trained.edges,
            seconds=current.seconds + seconds,
            bytes_read=current.bytes_read + int(grown["bytes_read"]),
            bytes_written=current.bytes_written + int(grown["bytes_written"]),
            loads=current.loads + int(grown["loads"]),
            wait_disk_s=current.wait_disk_s + grown["wait_disk_s"],
            wait_device_s=current.wait_device_s + grown["wait_device_s"],
            cpu_s=current.cpu_s + grown["cpu_s"],
        )

    def _counters(self) -> dict[str, float]:
        buffer = self._buffer
        return {
            "bytes_read": buffer.bytes_read + self._source.edge_bytes_read,
            "bytes_written": buffer.bytes_written,
            "loads": buffer.loads,
            "wait_disk_s": self._wait_disk_s,
            "wait_device_s": self._trace.seconds[IN_FLIGHT] + self._trace.seconds[ON_DEVICE],
            "cpu_s": time.process_time(),
        }

    def _note_waits(self) -> None:
        """Add the seconds in which nothing was computed because a read was waited for.

        A reading ahead that waits for batches in flight (their leases hold the slot) costs nothing and is
        not counted: only what coincides with the compute stage being idle is.
        """
        waits, idle = self._buffer.waits, self._trace.idle
        self._wait_disk_s += overlap_s(waits, idle if self._threaded else waits)
        waits.clear()
        idle.clear()
