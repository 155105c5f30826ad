"""The parts of a run: how many partitions fit in memory, and where that is limited."""

from __future__ import annotations

import pytest

from marius_py import parts
from marius_py.config import load_config
from marius_py.data.step_edges import BLOCK_EDGES
from marius_py.partitioning import Partitioning
from marius_py.parts import automatic_capacity, epoch_work
from marius_py.storage.protocols import NodeTable


@pytest.mark.parametrize(
    ("slots", "partitions", "expected"), [(8, 8, 8), (7.9, 8, 6), (4, 8, 3), (1, 8, 2), (0, 8, 2), (0, 1, 1)]
)
def test_as_many_partitions_as_fit_with_a_spare_one(
    slots: float, partitions: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the memory holds so many slots."""
    table = NodeTable(Partitioning(10_000, partitions), dim=4, state_dim=4)
    size = int(2 * slots * table.slot_bytes)
    monkeypatch.setattr(parts, "available_memory", lambda device: size)
    assert automatic_capacity(table) == expected


@pytest.mark.parametrize(("excess", "known"), [(0, BLOCK_EDGES), (4, 0)])
def test_an_index_of_known_edges_that_is_not_made_costs_nothing(excess: int, known: int) -> None:
    table = NodeTable(Partitioning(10_000, 8), dim=4, state_dim=4)
    num_edges = 4 * BLOCK_EDGES + excess
    assert epoch_work(load_config(["device=cpu"]), table, 4, num_edges).known_edges == known
    unmasked = load_config(["device=cpu", "negatives.mask_known=false"])
    assert epoch_work(unmasked, table, 4, num_edges).known_edges == 0
