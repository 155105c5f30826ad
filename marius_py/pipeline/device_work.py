"""What a device does with a batch whose ids have arrived (floor 3): locate, gather, gradients, step.

Some seventy launches, each of which costs the host more than it does a fast device. Where nothing of them
depends on the batch but the numbers that it brings, they are recorded once for each shape of batch, as a CUDA
graph, and replayed by one call.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from marius_py.data.drawn_batch import DrawnBatch, LocalBatch, Locator
from marius_py.device_buffer import DeviceBuffer
from marius_py.nn.batch import Batch
from marius_py.nn.cuda_kernels import TorchKernels
from marius_py.nn.model import LinkPredictionModel
from marius_py.nn.optimizers import Adagrad, AdagradRow

log = logging.getLogger(__name__)

WARM_UPS = 2
"""Batches of a shape that are computed before one is recorded: they compile kernels, make scratch memory."""
MOST_RECORDED = 8
"""Shapes of batches that are recorded at most: each keeps its intermediate results in the device's memory."""

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Recorded:
    """A recorded batch: replaying `graph` computes `known` from what lies in `packed`."""

    graph: Any
    packed: Tensor
    known: Tensor


class DeviceWork:
    """Computes batches on one buffer on a device and one model, in one thread.

    Args:
        buffer: where rows are and change.
        model: computes gradients; on the buffer's device.
        weigh: let negatives count so that together they stand for all nodes.
    """

    def __init__(self, buffer: DeviceBuffer, model: LinkPredictionModel, *, weigh: bool) -> None:
        self._buffer, self._model = buffer, model
        self._kernels = model.kernels or TorchKernels()
        padded = not self._kernels.waits and type(model.optimizer) in (Adagrad, AdagradRow)
        device = buffer.transfer.device
        self._locate = Locator(buffer, device, weigh=weigh, padded=padded)
        same_for_all = model.node_dropout == 0 and model.relation_dropout == 0
        self._records = padded and model.never_waits and same_for_all and device.type == "cuda"
        self._recorded: dict[Shape, _Recorded] = {}
        self._seen: Counter[Shape] = Counter()
        self._pool: Any = None

    def __call__(self, drawn: DrawnBatch, packed: Tensor) -> Tensor:
        """Ask the device to compute a batch, given what it was packed to as one (n,) uint8 tensor there.

        Returns:
            (2,) float64: the mean loss an edge, and 1 if a node's partition is not in the buffer. The next
            batch may overwrite it.
        """
        recorded = self._recording(drawn, packed)
        if recorded is None:
            return self._compute(drawn, packed)
        recorded.packed.copy_(packed)
        recorded.graph.replay()
        return recorded.known

    def _recording(self, drawn: DrawnBatch, packed: Tensor) -> _Recorded | None:
        """The recording of batches of this shape; None: there is none yet, or cannot be."""
        if not self._records or drawn.dropped:
            return None
        shape = (drawn.num_edges, *(size for nodes in drawn.negatives.values() for size in nodes.shape))
        if shape not in self._recorded:
            self._seen[shape] += 1
            if self._seen[shape] <= WARM_UPS or len(self._recorded) >= MOST_RECORDED:
                return None
            self._record(shape, drawn, packed)
        return self._recorded.get(shape)

    def _record(self, shape: Shape, drawn: DrawnBatch, packed: Tensor) -> None:
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        make_graph: Any = torch.cuda.CUDAGraph
        graph, mine = make_graph(), packed.clone()
        try:
            # Other threads go on copying meanwhile, which the default mode forbids.
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                known = self._compute(drawn, mine)
        except RuntimeError as error:  # nothing has been computed: the batch goes the other way
            self._records = False
            log.warning("batches are launched one by one, since they cannot be recorded: %s", error)
            return
        self._recorded[shape] = _Recorded(graph, mine, known)

    def _compute(self, drawn: DrawnBatch, packed: Tensor) -> Tensor:
        with torch.no_grad():
            local = self._locate(drawn, packed)
            gradients = self._model.gradients(self._batch(drawn, local))
            self._buffer.step(
                self._kernels,
                self._model.optimizer,
                local.index,
                gradients.rows,
                count=local.count,
                rate=local.rate,
            )
            return torch.stack((gradients.loss.double(), local.lost.double()))

    def _batch(self, drawn: DrawnBatch, local: LocalBatch) -> Batch:
        rows = self._buffer.rows(local.index)
        return Batch(
            rows=rows,
            state=rows.new_empty(len(rows), 0),
            head=local.head,
            relation=local.relation,
            tail=local.tail,
            negatives=local.negatives,
            seed=drawn.seed,
            rate=local.rate,
        )
