"""What happens to a batch (floor 3): EdgeBatch → Batch → Update → Done, one function a stage.

gather      copies the rows out of the buffer (and pins and copies them to the device)
compute     scores, loss, gradients, optimizer; relations are updated in place
scatter     (copies to the host and) adds the deltas to the buffer, ends the lease
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from marius_py.buffer import PartitionBuffer
from marius_py.data.edge_batch import EdgeBatch, SlotWeights
from marius_py.errors import PipelineError
from marius_py.nn.batch import Batch, Corruption, Importance, Update
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
    """An update on the device, with the ids it belongs to and the mark of when it is there."""

    ids: EdgeBatch
    update: Update
    done: Any


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
        rows, state = buffer.gather(torch.from_numpy(ids.index), transfer.host)
        batch = Batch(
            rows=to_device(rows),
            state=to_device(state),
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
        update = model.step(gathered.batch)
        return Computed(gathered.ids, update, transfer.computed())

    def scatter(computed: Computed) -> None:
        ids = computed.ids
        given = computed.update
        update = Update(*transfer.fetch((given.d_rows, given.d_state, given.loss), computed.done))
        loss = float(update.loss)
        if loss != loss or loss in (float("inf"), float("-inf")):
            raise diverged(ids, loss, changes=update.d_rows)
        buffer.scatter_add(torch.from_numpy(ids.index), update.d_rows, update.d_state)
        ids.lease.release()
        on_done(Done(ids.position, ids.num_edges, loss))

    return [Stage("gather", gather), Stage("compute", compute, in_caller=True), Stage("scatter", scatter)]


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


def diverged(ids: EdgeBatch, loss: float, **rows: Tensor) -> PipelineError:
    """The error that a batch's loss is not finite; `rows`: the changes= or gradients= (U, D) of its rows."""
    ((what, values),) = rows.items()
    norms = values.norm(dim=1).nan_to_num(nan=float("inf"))
    largest = ", ".join(f"{value:.3g}" for value in norms.topk(min(3, len(norms))).values.tolist())
    epoch, step, batch = ids.position
    message = (
        f"the loss became {loss} in epoch {epoch}, step {step}, batch {batch} ({ids.num_edges} edges; "
        f"largest row {what} {largest}); the last commit is intact. "
        "Lower optimizer.lr, or change the initialization"
    )
    return PipelineError(message, stage="compute")
