"""What is left of an epoch, from any position on, is the end of the whole of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from marius_py.data.batch_settings import BatchSettings
from marius_py.data.division import Division, divide
from marius_py.data.plan import EpochSpans, spread_spans, whole_spans
from marius_py.data.step_edges import batch_bounds
from marius_py.ordering import build_schedule
from marius_py.streams import Purpose, stream
from marius_py.types import Position

SCHEDULE = build_schedule(6, 3, order="random", seed=1, policy="eager")
COUNTS = np.random.default_rng(0).integers(0, 60, (6, 6))
SETTINGS = BatchSettings(20, 5, 3, spread=True, block_edges=70, compiled=False)
NONE = np.zeros_like(COUNTS)


def batches(division: Division, start: Position, settings: BatchSettings) -> Iterator[tuple[object, ...]]:
    """Step and number of each batch, and which one of which block it is."""
    for block, first, skip in division.blocks(start, settings):
        bounds = batch_bounds(block.num_edges, settings.batch_size, settings.chunks)
        assert skip < len(bounds) or (block.last and skip == len(bounds))
        for number in range(skip, len(bounds)):
            yield block.step, first + number, block.order, number


@pytest.mark.parametrize("spread", [True, False])
@pytest.mark.parametrize("block_edges", [70, 10**6])
def test_the_rest_from_any_batch_on_is_the_same(spread: bool, block_edges: int) -> None:
    settings = replace(SETTINGS, spread=spread, block_edges=block_edges)
    division = divide(SCHEDULE, 1, COUNTS, settings)
    whole = list(batches(division, Position(1, 0, 0), settings))
    for place, (step, number, *_) in enumerate(whole):
        assert list(batches(division, Position(1, step, number), settings)) == whole[place:]
    for step in range(len(SCHEDULE.steps)):
        numbers = [batch[1] for batch in whole if batch[0] == step]
        assert numbers == list(range(len(numbers)))
        at_its_end = Position(1, step, len(numbers))
        assert next(division.blocks(at_its_end, settings))[0].step == step  # one, though nothing is left
        assert list(batches(division, at_its_end, settings)) == [one for one in whole if one[0] > step]


def test_steps_without_edges_have_a_block() -> None:
    blocks = list(divide(SCHEDULE, 0, NONE, SETTINGS).blocks(Position(0, 2, 0), SETTINGS))
    assert [block.step for block, _, _ in blocks] == list(range(2, len(SCHEDULE.steps)))


def test_an_epoch_is_divided_as_the_settings_say() -> None:
    def all_of(spans: EpochSpans) -> list[list[list[int]]]:
        return [spans[step].tolist() for step in range(len(SCHEDULE.steps))]

    for epoch in (1, 2):
        expected = spread_spans(SCHEDULE, COUNTS, stream(3, Purpose.SHUFFLE, epoch), batch_size=20, chunks=5)
        assert all_of(divide(SCHEDULE, epoch, COUNTS, SETTINGS).spans) == all_of(expected)
    whole = divide(SCHEDULE, 1, COUNTS, replace(SETTINGS, spread=False))
    assert all_of(whole.spans) == all_of(whole_spans(SCHEDULE, COUNTS))
