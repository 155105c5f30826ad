"""What happens to a batch (floor 3): EdgeBatch → Batch → Update → Done, one function a stage.

gather      copies the rows out of the buffer into pinned memory, begins to copy them to the device
compute     scores, loss, gradients; relations are updated in place
fetch       copies the gradients to the host
scatter     takes the optimizer's step of the rows in the buffer, ends the lease

The state of the rows never travels: bus and memory are what a fast device waits for.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from marius_py.buffer import PartitionBuffer
from marius_py.data.edge_batch import EdgeBatch, SlotWeights
from marius_py.errors import PipelineError
from marius_py.nn.batch import Batch, Corruption, Importance
from marius_py.nn.gradients import Gradients
from marius_py.nn.model import LinkPredictionModel
from marius_py.pipeline.runner import Stage
from marius_py.transfer import Arrival, transfer_to
from marius_py.types import Position, Side


@dataclass(frozen=True, slots=True)
class Gathered:
    """A batch on its way to the device, with the ids it came from."""

    ids: EdgeBatch
    batch: Batch
    arrival: Arrival


@dataclass(frozen=True, slots=True)
class Computed:
    """Gradients on the device, with the ids they belong to and the mark of when they are there."""

    ids: EdgeBatch
    rate: float
    gradients: Gradients
    done: Any


@dataclass(frozen=True, slots=True)
class Fetched:
    """Gradients (U, D) of a batch's rows and its loss, in the host's memory."""

    ids: EdgeBatch
    rate: float
    gradients: Tensor
    loss: float


@dataclass(frozen=True, slots=True)
class Done:
    """A batch whose update is in the buffer. `loss` is the mean an edge."""

    position: Position
    num_edges: int
    loss: float


def training_stages(
    buffer: PartitionBuffer,
    model: LinkPredictionModel,
    device: torch.device,
    on_done: Callable[[Done], None],
    rate: Callable[[int], float] = lambda edges: 1.0,
) -> list[Stage]:
    """Gather, compute and scatter over one buffer and model.

    Args:
        buffer: where rows come from and changes go.
        model: computes them.
        device: where it computes.
        on_done: told of every batch, in the last stage's thread.
        rate: number of edges → factor of the learning rate, asked once a batch, in the order of batches.
    """
    transfer = transfer_to(device)
    to_device = transfer.move

    def gather(ids: EdgeBatch) -> Gathered:
        here = transfer.host((len(ids.index), model.dim), torch.float32)
        rows = to_device(buffer.gather_rows(torch.from_numpy(ids.index), here))
        batch = Batch(
            rows=rows,
            state=rows[:, :0],
            head=to_device(torch.from_numpy(ids.head)),
            relation=to_device(torch.from_numpy(ids.relation)),
            tail=to_device(torch.from_numpy(ids.tail)),
            negatives=corruptions(ids, to_device),
            seed=ids.seed,
            rate=rate(ids.num_edges),
        )
        return Gathered(ids, batch, transfer.sent())

    def compute(gathered: Gathered) -> Computed:
        transfer.wait(gathered.arrival)
        gradients = model.gradients(gathered.batch)
        return Computed(gathered.ids, float(gathered.batch.rate), gradients, transfer.computed())

    def fetch(computed: Computed) -> Fetched:
        gradients = computed.gradients
        rows, loss = transfer.fetch((gradients.rows, gradients.loss), computed.done)
        return Fetched(computed.ids, computed.rate, rows, float(loss))

    def scatter(fetched: Fetched) -> None:
        ids, loss = fetched.ids, fetched.loss
        if not math.isfinite(loss):
            raise diverged(ids, loss, fetched.gradients)
        buffer.update(model.optimizer, torch.from_numpy(ids.index), fetched.gradients, fetched.rate)
        ids.lease.release()
        on_done(Done(ids.position, ids.num_edges, loss))

    return [
        Stage("gather", gather),
        Stage("compute", compute, in_caller=True),
        Stage("fetch", fetch),
        Stage("scatter", scatter),
    ]


def corruptions(ids: EdgeBatch, move: Callable[[Tensor], Tensor]) -> dict[Side, Corruption]:
    """The negatives of each side of a batch, whose tensors went through `move`."""
    negatives: dict[Side, Corruption] = {}
    for side, nodes in ids.negatives.items():
        dropped = ids.dropped.get(side)
        negatives[side] = Corruption(
            move(torch.from_numpy(nodes)),
            importance=_importance(ids.importance.get(side), move),
            dropped=None if dropped is None else move(torch.from_numpy(dropped)),
        )
    return negatives


def _importance(weights: SlotWeights | None, move: Callable[[Tensor], Tensor]) -> Importance | None:
    if weights is None:
        return None
    return Importance(move(torch.from_numpy(weights.slot)), move(torch.from_numpy(weights.weight)))


def diverged(ids: EdgeBatch, loss: float, gradients: Tensor) -> PipelineError:
    """The error that a batch's loss is not finite, given the gradients (U, D) of its rows."""
    norms = gradients.norm(dim=1).nan_to_num(nan=float("inf"))
    largest = ", ".join(f"{value:.3g}" for value in norms.topk(min(3, len(norms))).values.tolist())
    epoch, step, batch = ids.position
    message = (
        f"the loss became {loss} in epoch {epoch}, step {step}, batch {batch} ({ids.num_edges} edges; "
        f"largest row gradients {largest}); the last commit is intact. "
        "Lower optimizer.lr, or change the initialization"
    )
    return PipelineError(message, stage="compute")
