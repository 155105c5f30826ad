"""The way of batches through a run (floor 4): leased edges in, rows updated in the buffer.

Which stages a batch passes follows from where the buffer lies and what computes: all in RAM, rows sent to a
device, or everything there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

import torch

from marius_py.buffer import PartitionBuffer
from marius_py.buffer.device import DeviceBuffer
from marius_py.buffer.transfer import transfer_to
from marius_py.data.batch_settings import BatchSettings
from marius_py.data.batches import BatchSource
from marius_py.data.drawing import BatchDrawing
from marius_py.data.drawn_batch import DrawnBatch
from marius_py.data.edge_batch import EdgeBatch
from marius_py.data.leased_edges import LeasedEdges
from marius_py.memory import MemoryMeter, array_bytes
from marius_py.nn.cuda_gradients import contrasted_by
from marius_py.nn.decoders.base import ClosedFormDecoder
from marius_py.nn.fused_compiled import loops_know
from marius_py.nn.fused_contrast import find_closed_form
from marius_py.nn.known_answers import AnswerTables
from marius_py.nn.model import LinkPredictionModel
from marius_py.nn.negatives import NegativeSampler
from marius_py.nn.product_choice import rounds_factors
from marius_py.nn.product_units import product_units, rounds_products
from marius_py.pipeline.device_stages import DeviceStages
from marius_py.pipeline.device_work import DeviceWork
from marius_py.pipeline.execution import Execution
from marius_py.pipeline.host_stages import host_stages
from marius_py.pipeline.recordings import Recordings
from marius_py.pipeline.runner import Stage, stage_of
from marius_py.pipeline.stages import Done, training_stages
from marius_py.pipeline.trace import Trace
from marius_py.pipeline.watchdog import Watchdog
from marius_py.team import Teams
from marius_py.types import Position

log = logging.getLogger(__name__)

_MOST_RECORDINGS = 8


class BatchPath:
    """Takes batches through their stages, over one buffer and one model.

    Args:
        buffer: where rows are and change.
        model: computes gradients.
        source: where the edges come from; asked for what it holds.
        sampler: draws negatives.
        batches: seed, and what negatives and edges count.
        execution: which threads the stages have.
        device: where batches are computed.
        trace: notes when each stage works and waits.
        watchdog: told what each thread does.
        memory: told what edges, batches and workspaces hold.
    """

    def __init__(
        self,
        buffer: PartitionBuffer,
        model: LinkPredictionModel,
        source: BatchSource,
        sampler: NegativeSampler,
        batches: BatchSettings,
        execution: Execution,
        *,
        device: torch.device,
        trace: Trace,
        watchdog: Watchdog,
        memory: MemoryMeter,
    ) -> None:
        self._buffer, self._model, self._source = buffer, model, source
        self._execution, self._device = execution, device
        self._trace, self._watchdog, self._memory = trace, watchdog, memory
        self._weigh = batches.weigh
        self._drawing = BatchDrawing(buffer, sampler, batches)
        self._device_work: DeviceWork | None = None
        self._recordings = Recordings(may=lambda: model.is_recordable, keep=True, most=_MOST_RECORDINGS)
        self._transfer = buffer.transfer if isinstance(buffer, DeviceBuffer) else transfer_to(device)
        self._bytes: dict[Position, int] = {}

    def announce(self) -> None:
        """Say in the log what computes batches."""
        self._execution.announce()
        _announce_kernels(self._model)
        _announce_products(self._execution, self._model)

    def run(
        self, leased: Iterable[LeasedEdges], on_done: Callable[[Done], None], rate: Callable[[int], float]
    ) -> None:
        """Take all of `leased` through the stages.

        Args:
            leased: the batches, in order.
            on_done: told of every batch, in order, once its update is in the buffer.
            rate: edges of a batch → its factor of the learning rate, asked in order.

        Raises:
            PipelineError, MariusError, StalledError: a stage failed.
        """

        def freed(done: Done) -> None:
            self._weigh_parts(done.position)
            on_done(done)

        with self._execution.teams(self._trace) as teams:
            stages, finish = self._stages(freed, rate, teams)
            self._execution.run(leased, stages, self._trace, self._buffer.abort, self._watchdog, teams)
            with stage_of("compute", self._watchdog):
                finish()

    def close(self) -> None:
        """Give back what the device holds for batches: scratch and recordings. No batch may come after."""
        self._device_work = None
        self._recordings.close()

    def _stages(
        self, on_done: Callable[[Done], None], rate: Callable[[int], float], teams: Teams
    ) -> tuple[list[Stage], Callable[[], None]]:
        """The stages of a batch, as buffer and device need them, and what ends them after the last one."""
        finish: Callable[[], None] = _nothing
        if isinstance(self._buffer, DeviceBuffer):
            if self._device_work is None:
                self._device_work = DeviceWork(self._buffer, self._model, weigh=self._weigh)
            on_device = DeviceStages(self._buffer, self._device_work, on_done, rate, self._trace)
            stages, finish = on_device.stages(), on_device.finish
        elif self._device.type == "cpu":
            stages = host_stages(self._buffer, self._model, on_done, rate, teams)
        else:
            stages = training_stages(
                self._buffer, self._model, self._transfer, self._recordings, on_done, rate
            )
        return [Stage("draw", self._draw, ahead=True), *stages], finish

    def _draw(self, leased: LeasedEdges) -> EdgeBatch | DrawnBatch:
        """Draw a batch; note what it holds until done: ids, and on the host its rows and their gradients."""
        batch = self._drawing.draw(leased)
        size = array_bytes(batch)
        if isinstance(batch, EdgeBatch):
            size += len(batch.index) * 2 * 4 * self._model.dim
        self._bytes[batch.position] = size
        self._memory.add("batches", size)
        return batch

    def _weigh_parts(self, done: Position) -> None:
        """Note what a batch frees now that it is done, and what the other parts hold."""
        self._memory.add("batches", -self._bytes.pop(done, 0))
        self._memory.put("workspaces", self._model.workspace_bytes)
        for name, size in self._source.held_bytes.items():
            self._memory.put(name, size)


def finds_known_on_device(
    model: LinkPredictionModel, batches: BatchSettings, num_nodes: int, *, device_buffer: bool
) -> bool:
    """Whether the device itself finds known edges among the negatives.

    So where it has the buffer and kernels that need no list of them, and edges have numbers of 64 bits.
    """
    return (
        batches.mask_known
        and device_buffer
        and model.kernels is not None
        and not model.kernels.waits
        and _contrasts(model) == model.kernels.name
        and AnswerTables.fit(num_nodes, model.num_relations)
    )


def _contrasts(model: LinkPredictionModel) -> str:
    """Name of the kernels that contrast batches on a device with their negatives."""
    assert model.kernels is not None
    form = find_closed_form(model.decoder, model.loss, model.device.type) if model.fused else None
    return contrasted_by(model.kernels, form)


def _announce_kernels(model: LinkPredictionModel) -> None:
    """Say in the log which kernels contrast batches on a device with their negatives."""
    if model.kernels is None:
        return
    name = _contrasts(model)
    why = ""
    if name != model.kernels.name:
        why = ": decoder, loss, model.dim or the device are none that Triton's take"
    if name == "PyTorch":
        why += "; their products are float32, whatever pipeline.precision says"
    log.info("negatives on %s are contrasted by %s kernels%s", model.device.type, name, why)


def _announce_products(execution: Execution, model: LinkPredictionModel) -> None:
    """Say in the log what becomes of the wish for products of bfloat16 on this processor."""
    if not execution.on_host or execution.precision != "bfloat16":
        return
    similarity = model.decoder.similarity if isinstance(model.decoder, ClosedFormDecoder) else None
    with product_units("bfloat16"):
        in_loops = _compared_in_loops(model)
        is_heeded = rounds_products() or (in_loops == "dot" and rounds_factors())
    if similarity in ("l1", "moduli") or in_loops == "l2":
        log.info(
            "pipeline.precision=bfloat16: compiled loops compute distances in float32; rounding hides them"
        )
        return
    if is_heeded:
        log.info("products of scores are those of bfloat16, summed in float32")
    else:
        log.warning(
            "pipeline.precision=bfloat16: this processor has no units for it that these products use, or "
            "another run asks for float32 beside this one; products of scores are those of float32"
        )


def _compared_in_loops(model: LinkPredictionModel) -> str | None:
    """The similarity by which compiled loops contrast batches; None if PyTorch's operations do."""
    form = find_closed_form(model.decoder, model.loss, model.device.type) if model.fused else None
    if form is None or not model.compiled or not loops_know(form, drops_relations=model.relation_dropout > 0):
        return None
    return form.decoder.similarity


def _nothing() -> None:
    """Nothing is left to be done."""
