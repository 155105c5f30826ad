"""What happens to a batch where the buffer is on a device (floor 3): DrawnBatch → Sent → Done.

send        packs the ids into pinned memory and begins to copy them to the device
compute     has the device locate them in the buffer, gather, compute gradients and step (`DeviceWork`)

Nothing waits for the device: what the host wants to know of a batch, its loss and whether its gradients are
finite, is read when it is there, some batches later; `finish` waits for the rest, so that none is committed
unread. The device works in the order of batches, so every batch sees the one before: no batch is ever stale,
whatever `max_in_flight` is.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from marius_py.buffer.device import DeviceBuffer
from marius_py.buffer.transfer import Arrival, Late
from marius_py.data.drawn_batch import DrawnBatch
from marius_py.errors import ScheduleError
from marius_py.pipeline.device_work import DeviceWork
from marius_py.pipeline.runner import Stage
from marius_py.pipeline.stages import Done, diverged
from marius_py.pipeline.trace import ON_DEVICE, Trace
from marius_py.types import Position

MOST_UNREAD = 64
"""Batches that the host may run ahead of the device: enough to never let it idle, few enough to stop soon."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A batch whose ids are on their way to the device."""

    drawn: DrawnBatch
    packed: Tensor
    arrival: Arrival

    @property
    def here(self) -> Position:
        """Of the batch."""
        return self.drawn.here


class DeviceStages:
    """The stages over one buffer on a device.

    Args:
        buffer: where rows are and change.
        work: what the device does with a batch.
        on_done: told of every batch in order, once its loss is there, in the computing thread.
        rate: number of edges → factor of the learning rate, asked once a batch, in the order of batches.
        trace: told how long the host waited for the device.
    """

    def __init__(
        self,
        buffer: DeviceBuffer,
        work: DeviceWork,
        on_done: Callable[[Done], None],
        rate: Callable[[int], float],
        trace: Trace,
    ) -> None:
        self._buffer, self._work, self._trace = buffer, work, trace
        self._transfer = buffer.transfer
        self._on_done, self._rate = on_done, rate
        self._unread: deque[tuple[DrawnBatch, Late]] = deque()

    def stages(self) -> list[Stage]:
        """In order."""
        return [Stage("send", self._send), Stage("compute", self._compute, in_caller=True)]

    def finish(self) -> None:
        """Wait for the device and report the batches that are left; once the pipeline is empty."""
        self._report(most=0)

    def _send(self, drawn: DrawnBatch) -> Sent:
        packed = drawn.pack(self._rate(drawn.num_edges), self._bytes)
        return Sent(drawn, self._transfer.move(packed), self._transfer.sent())

    def _bytes(self, size: int) -> Tensor:
        return self._transfer.host((size,), torch.uint8)

    def _compute(self, sent: Sent) -> None:
        drawn = sent.drawn
        self._transfer.wait(sent.arrival)
        known = self._work(drawn, sent.packed)
        self._buffer.mark()
        drawn.lease.release()
        self._unread.append((drawn, self._transfer.late(known)))
        self._report(most=MOST_UNREAD)

    def _report(self, most: int) -> None:
        """Report what has become known; wait only while more than `most` batches are not."""
        while self._unread and (len(self._unread) > most or self._unread[0][1].is_there()):
            drawn, late = self._unread.popleft()
            asked = time.perf_counter()
            loss, total, lost = late.read()
            self._trace.tell(ON_DEVICE, asked)
            if lost:
                raise ScheduleError("a batch uses nodes whose partition is not in the buffer on the device")
            if not (math.isfinite(loss) and math.isfinite(total)):
                raise diverged(drawn, loss)
            self._on_done(Done(drawn.position, drawn.num_edges, loss))
