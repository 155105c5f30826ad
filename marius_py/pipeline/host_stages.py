"""What happens to a batch that the CPU computes (floor 3): EdgeBatch → Batch → gradients → Done.

gather      copies the rows out of the buffer
compute     scores, loss, gradients; relations are updated in place
scatter     the optimizer's step of the rows in the buffer itself, ends the lease

Memory is what a small batch waits for. So the state of the rows is not copied out and back, and the step is
taken in blocks that pass through the cache once. All stages of a batch must run in one thread, since what
they hand on lies in scratch of that thread, but a team of others may help it with each. Several threads may
take a batch each. They gather in the order of batches, and scatter in the order in which they are ready, one
at a time.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import torch

from marius_py.buffer import PartitionBuffer
from marius_py.data.edge_batch import EdgeBatch
from marius_py.nn.batch import Batch
from marius_py.nn.gradients import Gradients
from marius_py.nn.kernels.workspace import Workspace
from marius_py.nn.model import LinkPredictionModel
from marius_py.pipeline.runner import Stage
from marius_py.pipeline.stages import Done, corruptions, diverged
from marius_py.team import Teams
from marius_py.types import Position


@dataclass(frozen=True, slots=True)
class _Gathered:
    ids: EdgeBatch
    batch: Batch

    @property
    def here(self) -> Position:
        """Of the batch."""
        return self.ids.here


@dataclass(frozen=True, slots=True)
class _Computed:
    ids: EdgeBatch
    rate: float
    gradients: Gradients

    @property
    def here(self) -> Position:
        """Of the batch."""
        return self.ids.here


def host_stages(
    buffer: PartitionBuffer,
    model: LinkPredictionModel,
    on_done: Callable[[Done], None],
    rate: Callable[[int], float],
    teams: Teams,
) -> list[Stage]:
    """Gather, compute and scatter over one buffer and model in RAM, for the runners of the host.

    Args:
        buffer: where rows come from and changes go.
        model: computes them, on the CPU.
        on_done: told of every batch, in the order of batches, as soon as all before it are done as well.
        rate: number of edges → factor of the learning rate, asked once a batch, in the order of batches.
        teams: of threads that share in the work on one batch.
    """
    local = threading.local()
    entered: deque[EdgeBatch] = deque()
    done: dict[Position, Done] = {}

    def gather(ids: EdgeBatch) -> _Gathered:
        entered.append(ids)
        index = torch.from_numpy(ids.index)
        if not hasattr(local, "workspace"):
            local.workspace = Workspace(torch.device("cpu"))
        rows = local.workspace.take("rows", len(index), model.dim)
        teams.mine().share(len(index), lambda part: buffer.gather_rows(index[part], rows[part]), "gather")
        batch = Batch(
            rows=rows,
            head=torch.from_numpy(ids.head),
            relation=torch.from_numpy(ids.relation),
            tail=torch.from_numpy(ids.tail),
            negatives=corruptions(ids),
            seed=ids.seed,
            rate=rate(ids.num_edges),
        )
        return _Gathered(ids, batch)

    def compute(gathered: _Gathered) -> _Computed:
        gradients = model.gradients(gathered.batch, teams.mine())
        return _Computed(gathered.ids, float(gathered.batch.rate), gradients)

    def scatter(computed: _Computed) -> None:
        ids, gradients = computed.ids, computed.gradients
        loss = float(gradients.loss)
        if not (math.isfinite(loss) and math.isfinite(float(gradients.relations.sum()))):
            raise diverged(ids, loss, gradients.rows)

        index, rows = torch.from_numpy(ids.index), gradients.rows

        def step(part: slice) -> None:
            # Not finite if one of them is not, at the price of reading them once while they lie in cache: a
            # user's decoder may have such gradients of a finite loss, and they must not reach a commit.
            if not math.isfinite(float(rows[part].sum())):
                raise diverged(ids, loss, rows)
            buffer.update(model.optimizer, index[part], rows[part], computed.rate)

        teams.mine().share(len(index), step, "scatter")
        ids.lease.release()
        done[ids.position] = Done(ids.position, ids.num_edges, loss)
        while entered and entered[0].position in done:
            on_done(done.pop(entered.popleft().position))

    return [Stage("gather", gather), Stage("compute", compute, in_caller=True), Stage("scatter", scatter)]
