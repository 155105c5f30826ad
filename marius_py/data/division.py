"""How an epoch's edges are divided among its steps, and these into blocks (floor 2).

In: a schedule and the edges of each bucket. Out: blocks in the order in which they are trained, from any
position on. It follows from seed, epoch and schedule alone, so that a resumed epoch goes on where it stood.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from marius_py.data.batch_settings import BatchSettings
from marius_py.data.plan import EpochSpans, spread_spans, whole_spans
from marius_py.data.step_edges import EdgeBlock, batch_bounds, split_step
from marius_py.streams import Purpose, stream
from marius_py.types import Position, Schedule

PlacedBlock = tuple[EdgeBlock, int, int]
"""A block, its first batch's number within the step, and how many of its batches are done."""


@dataclass(frozen=True, slots=True, eq=False)
class Division:
    """An epoch, its schedule, and which part of every bucket runs in which step."""

    epoch: int
    schedule: Schedule
    spans: EpochSpans

    def is_of(self, epoch: int, schedule: Schedule) -> bool:
        """Whether it divides this epoch of this schedule."""
        return self.epoch == epoch and self.schedule == schedule

    def blocks(self, start: Position, settings: BatchSettings) -> Iterator[PlacedBlock]:
        """Blocks from `start` on, each cut when its turn comes; a step without edges has an empty one."""
        for number in range(start.step, len(self.schedule.steps)):
            first = 0
            for block in split_step(number, self.spans[number], settings.block_edges):
                bounds = batch_bounds(block.num_edges, settings.batch_size, settings.chunks)
                skip = max(0, start.batch - first) if number == start.step else 0
                if skip < len(bounds) or block.last:
                    yield block, first, min(skip, len(bounds))
                first += len(bounds)


def divide(schedule: Schedule, epoch: int, counts: NDArray[np.int64], settings: BatchSettings) -> Division:
    """Divide an epoch.

    Args:
        schedule: its steps.
        epoch: 0-based.
        counts: (p, p) train edges a bucket.
        settings: whether buckets are spread over steps, and the size of batches.
    """
    if not settings.spread:
        return Division(epoch, schedule, whole_spans(schedule, counts))
    spans = spread_spans(
        schedule,
        counts,
        stream(settings.seed, Purpose.SHUFFLE, epoch),
        batch_size=settings.batch_size,
        chunks=settings.chunks,
        compiled=settings.compiled,
    )
    return Division(epoch, schedule, spans)
