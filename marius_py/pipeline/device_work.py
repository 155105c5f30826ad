"""What a device does with a batch whose ids have arrived (floor 3): locate, gather, gradients, step.

Where nothing of it depends on the batch but the numbers that it brings, it is recorded once for each shape of
batch and replayed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from marius_py.buffer.device import DeviceBuffer
from marius_py.data.drawn_batch import DrawnBatch, LocalBatch, Locator
from marius_py.data.resident_edges import EdgesAtHand
from marius_py.nn.batch import Batch
from marius_py.nn.cuda_kernels import TorchKernels
from marius_py.nn.known_answers import AnswerTables
from marius_py.nn.model import LinkPredictionModel
from marius_py.nn.optimizers import Adagrad, AdagradRow
from marius_py.pipeline.recordings import Recordings
from marius_py.pipeline.stages import figures
from marius_py.types import SIDES


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
        num_nodes = buffer.store.table.partitioning.num_nodes
        self._tables = AnswerTables(num_nodes, model.num_relations, device)
        self._held: EdgesAtHand | None = None
        self._locate = Locator(buffer, device, weigh=weigh, padded=padded)
        self._recordings = Recordings(
            may=lambda: padded and model.is_recordable,
            keep=False,
            most=64,  # of a megabyte or so
        )

    def __call__(self, drawn: DrawnBatch, packed: Tensor) -> Tensor:
        """Ask the device to compute a batch, given what it was packed to as one (n,) uint8 tensor there.

        Returns:
            (3,) float64: the batch's `figures`, and 1 if a node's partition is not in the buffer. The next
            batch may overwrite it.
        """
        if drawn.known is not None and drawn.known is not self._held:
            self._tables.hold(drawn.known.edges)
            self._held = drawn.known
        dropped = {side: len(positions) for side, positions in drawn.dropped.items()}
        # A recording reads the tables where they were when it was made, and has the learning rate of then.
        tables = None if drawn.known is None else self._tables.size
        shapes = ((drawn.negatives[side].shape, dropped.get(side)) for side in SIDES)
        key = (drawn.num_edges, self._model.optimizer.lr, tables, *shapes)
        (known,) = self._recordings.do(lambda given: [self._compute(drawn, given[0])], [packed], key)
        return known

    def _compute(self, drawn: DrawnBatch, packed: Tensor) -> Tensor:
        with torch.no_grad():
            local = self._locate(drawn, packed, self._tables)
            gradients = self._model.gradients(self._batch(drawn, local))
            known = figures(gradients, local.lost)
            self._buffer.step(
                self._kernels,
                self._model.optimizer,
                local.index,
                gradients.rows,
                count=local.count,
                rate=local.rate,
            )
            return known

    def _batch(self, drawn: DrawnBatch, local: LocalBatch) -> Batch:
        rows = self._buffer.rows(self._kernels, local.index)
        return Batch(
            rows=rows,
            head=local.head,
            relation=local.relation,
            tail=local.tail,
            negatives=local.negatives,
            seed=drawn.seed,
            rate=local.rate,
        )
