"""What happens to a batch where the buffer is on a device (floor 3): DrawnBatch → Sent → Done.

send        packs the ids into pinned memory and begins to copy them to the device
compute     locates them in the buffer, gathers, computes gradients, steps over the rows where they lie

Nothing waits for the device: what the host wants to know of a batch, its loss, is read when it is there, some
batches later. The device works in the order of batches, so every batch sees the one before: no batch is ever
stale, whatever `max_in_flight` is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from marius_py.data.drawn_batch import DrawnBatch, LocalBatch, Locator
from marius_py.device_buffer import DeviceBuffer
from marius_py.errors import PipelineError, ScheduleError
from marius_py.nn.batch import Batch
from marius_py.nn.cuda_kernels import TorchKernels
from marius_py.nn.model import LinkPredictionModel
from marius_py.nn.optimizers import Adagrad, AdagradRow
from marius_py.pipeline.runner import Stage
from marius_py.pipeline.stages import Done
from marius_py.transfer import Arrival, Late

MOST_UNREAD = 64
"""Batches that the host may run ahead of the device: enough to never let it idle, few enough to stop soon."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A batch whose ids are on their way to the device."""

    drawn: DrawnBatch
    packed: Tensor
    arrival: Arrival


class DeviceStages:
    """The stages over one buffer on a device and one model.

    Args:
        buffer: where rows are and change.
        model: computes gradients; on the buffer's device.
        on_done: told of every batch in order, once its loss is there, in the computing thread.
        rate: number of edges → factor of the learning rate, asked once a batch, in the order of batches.
        weigh: let negatives count so that together they stand for all nodes.
    """

    def __init__(
        self,
        buffer: DeviceBuffer,
        model: LinkPredictionModel,
        on_done: Callable[[Done], None],
        rate: Callable[[int], float],
        *,
        weigh: bool,
    ) -> None:
        self._buffer, self._model = buffer, model
        self._transfer = buffer.transfer
        self._on_done, self._rate = on_done, rate
        self._kernels = model.kernels or TorchKernels()
        padded = not self._kernels.waits and type(model.optimizer) in (Adagrad, AdagradRow)
        self._locate = Locator(buffer, self._transfer.device, weigh=weigh, padded=padded)
        self._unread: deque[tuple[DrawnBatch, Late]] = deque()

    def stages(self) -> list[Stage]:
        """In order."""
        return [Stage("send", self._send), Stage("compute", self._compute, in_caller=True)]

    def finish(self) -> None:
        """Wait for the device and report the batches that are left; once the pipeline is empty."""
        self._report(most=0)

    def _send(self, drawn: DrawnBatch) -> Sent:
        parts = drawn.parts()
        host = self._transfer.host((sum(len(part) for part in parts),), torch.int64)
        np.concatenate(parts, out=host.numpy())
        packed = self._transfer.move(host)
        return Sent(drawn, packed, self._transfer.sent())

    def _compute(self, sent: Sent) -> None:
        drawn = sent.drawn
        self._transfer.wait(sent.arrival)
        with torch.no_grad():
            local = self._locate(drawn, sent.packed)
            factor = self._rate(drawn.num_edges)
            gradients = self._model.gradients(self._batch(drawn, local, factor))
            self._buffer.step(
                self._kernels,
                self._model.optimizer,
                local.index,
                gradients.rows,
                count=local.count,
                rate=factor,
            )
            known = torch.stack((gradients.loss.double(), local.lost.double()))
        self._buffer.mark()
        drawn.lease.release()
        self._unread.append((drawn, self._transfer.late(known)))
        self._report(most=MOST_UNREAD)

    def _batch(self, drawn: DrawnBatch, local: LocalBatch, rate: float) -> Batch:
        rows = self._buffer.rows(local.index)
        return Batch(
            rows=rows,
            state=rows.new_empty(len(rows), 0),
            head=local.head,
            relation=local.relation,
            tail=local.tail,
            negatives=local.negatives,
            seed=drawn.seed,
            rate=rate,
        )

    def _report(self, most: int) -> None:
        """Report what has become known; wait only while more than `most` batches are not."""
        while self._unread and (len(self._unread) > most or self._unread[0][1].is_there()):
            drawn, late = self._unread.popleft()
            loss, lost = late.read()
            if lost:
                raise ScheduleError("a batch uses nodes whose partition is not in the buffer on the device")
            if loss != loss or loss in (float("inf"), float("-inf")):
                raise PipelineError(self._diverged(drawn, loss), stage="compute")
            self._on_done(Done(drawn.position, drawn.num_edges, loss))

    def _diverged(self, drawn: DrawnBatch, loss: float) -> str:
        epoch, step, batch = drawn.position
        return (
            f"the loss became {loss} in epoch {epoch}, step {step}, batch {batch} ({drawn.num_edges} edges); "
            "the last commit is intact. Lower optimizer.lr, or change the initialization"
        )
