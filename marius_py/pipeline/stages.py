"""What happens to a batch that a device computes, its rows in RAM (floor 3): EdgeBatch → gradients → Done.

gather      copies the rows out of the buffer into pinned memory, begins to copy them to the device
compute     scores, loss, gradients; relations are updated in place
fetch       copies the gradients to the host
scatter     takes the optimizer's step of the rows in the buffer, ends the lease

The state of the rows never travels: bus and memory are what a fast device waits for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from marius_py.buffer import PartitionBuffer
from marius_py.buffer.transfer import Arrival, Transfer
from marius_py.data.drawn_batch import DrawnBatch
from marius_py.data.edge_batch import EdgeBatch, GroupWeights, Ids
from marius_py.data.recurring import padded_positions, padded_rows
from marius_py.errors import DivergedError
from marius_py.nn.batch import Batch, Corruption, Importance
from marius_py.nn.gradients import Gradients
from marius_py.nn.model import LinkPredictionModel
from marius_py.pipeline.recordings import Recordings
from marius_py.pipeline.runner import Stage
from marius_py.types import Position, Side

_IDS_ALIGNED = 2
"""Ids in 16 bytes."""


@dataclass(frozen=True, slots=True)
class Gathered:
    """A batch on its way to the device, with the ids it came from and its factor of the learning rate."""

    ids: EdgeBatch
    rate: float
    batch: Batch
    arrival: Arrival

    @property
    def here(self) -> Position:
        """Of the batch."""
        return self.ids.here


@dataclass(frozen=True, slots=True)
class Computed:
    """Gradients (U, D) and their `figures` on the device, their ids, the mark of when they are there."""

    ids: EdgeBatch
    rate: float
    gradients: Tensor
    figures: Tensor
    done: Any

    @property
    def here(self) -> Position:
        """Of the batch."""
        return self.ids.here


@dataclass(frozen=True, slots=True)
class Fetched:
    """Gradients (U, D) of a batch's rows and their `figures`, in the host's memory."""

    ids: EdgeBatch
    rate: float
    gradients: Tensor
    figures: list[float]

    @property
    def here(self) -> Position:
        """Of the batch."""
        return self.ids.here


@dataclass(frozen=True, slots=True)
class Done:
    """A batch whose update is in the buffer. `loss` is the mean an edge."""

    position: Position
    num_edges: int
    loss: float


def training_stages(
    buffer: PartitionBuffer,
    model: LinkPredictionModel,
    transfer: Transfer,
    recordings: Recordings,
    on_done: Callable[[Done], None],
    rate: Callable[[int], float],
) -> list[Stage]:
    """Gather, compute, fetch and scatter over one buffer and model.

    Args:
        buffer: where rows come from and changes go.
        model: computes them.
        transfer: to and from where it computes; the same for all of a run, so that its streams and what the
            allocator keeps for them are.
        recordings: of computing batches, which keep what they return: gradients are fetched while the next
            batch is computed, in the same scratch memory.
        on_done: told of every batch, in the last stage's thread.
        rate: number of edges → factor of the learning rate, asked once a batch, in the order of batches.
    """

    def gather(ids: EdgeBatch) -> Gathered:
        number, factor = len(ids.index), rate(ids.num_edges)
        here = transfer.host((padded_rows(number), model.dim), torch.float32)
        buffer.gather_rows(torch.from_numpy(ids.index), here[:number])
        here.numpy()[number:] = 0
        batch = Batch(
            rows=here,
            head=torch.from_numpy(ids.head),
            relation=torch.from_numpy(ids.relation),
            tail=torch.from_numpy(ids.tail),
            negatives=corruptions(replace(ids, dropped=_recurring(ids.dropped))),
            seed=ids.seed,
            rate=torch.tensor(factor, dtype=torch.float32, device="cpu"),
        )
        there = batch.with_tensors(_moved(batch.tensors(), transfer))
        return Gathered(ids, factor, there, transfer.sent())

    def compute(gathered: Gathered) -> Computed:
        transfer.wait(gathered.arrival)
        batch = gathered.batch

        def work(given: Sequence[Tensor]) -> list[Tensor]:
            found = model.gradients(batch.with_tensors(given))
            return [found.rows, figures(found)]

        with torch.no_grad():
            rows, known = recordings.do(work, batch.tensors(), model.optimizer.lr)  # of the relations' step
        mine = rows[: len(gathered.ids.index)]
        return Computed(gathered.ids, gathered.rate, mine, known, transfer.computed())

    def fetch(computed: Computed) -> Fetched:
        rows, known = transfer.fetch((computed.gradients, computed.figures), computed.done)
        return Fetched(computed.ids, computed.rate, rows, known.tolist())

    def scatter(fetched: Fetched) -> None:
        ids, (loss, total) = fetched.ids, fetched.figures
        if not (math.isfinite(loss) and math.isfinite(total)):
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


def _recurring(dropped: dict[Side, Ids]) -> dict[Side, Ids]:
    return {side: padded_positions(positions) for side, positions in dropped.items()}


def _moved(tensors: Sequence[Tensor], transfer: Transfer) -> list[Tensor]:
    """The tensors on their way to the device, those of int64 together: a copy costs more than its bytes.

    Each of those lies at a multiple of 16 bytes, as tensors of their own do: kernels are compiled for it. Of
    the others, those that are one in memory, as the weights of both sides' negatives are, are copied once.
    """
    ids = [one for one in tensors if one.dtype == torch.int64]
    ends = list(accumulate(one.numel() + one.numel() % _IDS_ALIGNED for one in ids))
    packed = transfer.host((ends[-1] if ends else 0,), torch.int64)
    written = packed.numpy()  # torch's own threads would spin beside the pipeline's when they are done
    places = [slice(begin, begin + one.numel()) for begin, one in zip([0, *ends], ids, strict=False)]
    for place, one in zip(places, ids, strict=True):
        written[place] = one.reshape(-1).numpy()
    there, next_place = transfer.move(packed), iter(places)
    others: dict[tuple[int, int, torch.dtype], Tensor] = {}

    def moved(one: Tensor) -> Tensor:
        if one.dtype == torch.int64:
            return there[next(next_place)].view(one.shape)
        memory = one.data_ptr(), one.numel(), one.dtype
        if memory not in others:
            others[memory] = transfer.move(one)
        return others[memory].view(one.shape)

    return [moved(one) for one in tensors]


def corruptions(ids: EdgeBatch) -> dict[Side, Corruption]:
    """The negatives of each side of a batch, in the host's memory."""
    negatives: dict[Side, Corruption] = {}
    for side, nodes in ids.negatives.items():
        dropped, edge_weight = ids.dropped.get(side), ids.edge_weight.get(side)
        negatives[side] = Corruption(
            torch.from_numpy(nodes),
            importance=_importance(ids.importance.get(side)),
            dropped=None if dropped is None else torch.from_numpy(dropped),
            edge_weight=None if edge_weight is None else torch.from_numpy(edge_weight),
        )
    return negatives


def _importance(weights: GroupWeights | None) -> Importance | None:
    if weights is None:
        return None
    return Importance(torch.from_numpy(weights.group), torch.from_numpy(weights.weight))


def figures(found: Gradients, *others: Tensor) -> Tensor:
    """What the host wants to know of a batch, without waiting for the device that computes it.

    The loss does not tell all: a user's decoder may have gradients that are not finite of a loss that is, of
    nodes or of relations alone, and they must not reach a commit.

    Args:
        found: of the batch.
        others: further tensors ().

    Returns:
        (2 + len(others),) float64: the loss, the sum of all gradients, which is not finite if one of them is
        not, and the others.
    """
    total = found.rows.sum() + found.relations.sum()
    return torch.stack([one.double() for one in (found.loss, total, *others)])


def diverged(ids: EdgeBatch | DrawnBatch, loss: float, gradients: Tensor | None = None) -> DivergedError:
    """The error that a batch's loss, or the gradients (U, D) of its rows, are not finite.

    Args:
        ids: of the batch. loss: of it.
        gradients: named by the error where they are at hand.
    """
    largest = ""
    if gradients is not None:
        norms = gradients.norm(dim=1)
        largest_first = norms.nan_to_num(nan=float("inf")).topk(min(3, len(norms))).indices
        values = norms[largest_first].tolist()
        largest = f"; largest row gradients {', '.join(f'{value:.3g}' for value in values)}"
    epoch, step, batch = (number + 1 for number in ids.here)
    what = f"the loss became {loss}"
    if math.isfinite(loss):
        what = f"gradients became infinite or NaN at a loss of {loss:.4g}"
    message = (
        f"{what} in epoch {epoch}, step {step}, batch {batch} ({ids.num_edges} edges{largest}); "
        "the last commit is intact. Lower optimizer.lr, or change the initialization"
    )
    return DivergedError(message, stage="compute")


def beyond_repair(error: DivergedError) -> DivergedError:
    """What `error` says of the first batch after a commit: a lower rate may come too late for the rows."""
    message = (
        f"{error}. It is the first batch since that commit, whose rows may have grown too large already: if "
        "a lower rate ends here again, begin anew in another output, or go on from an earlier snapshot "
        "(checkpoint.keep, checkpoint.best)"
    )
    return DivergedError(message, stage=error.stage)
