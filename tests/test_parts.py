"""The parts of a run: how many partitions fit in memory, and where that is limited."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from marius_py import parts
from marius_py.config import load_config
from marius_py.data.step_edges import BLOCK_EDGES
from marius_py.partitioning import Partitioning
from marius_py.parts import automatic_capacity, edges_of, epoch_work
from marius_py.prepare import prepare
from marius_py.storage.protocols import NodeTable


@pytest.mark.parametrize(
    ("slots", "partitions", "expected"), [(8, 8, 8), (7.9, 8, 6), (4, 8, 3), (1, 8, 2), (0, 8, 2), (0, 1, 1)]
)
def test_as_many_partitions_as_fit_with_a_spare_one(
    slots: float, partitions: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the memory that the relations leave holds so many slots."""
    table = NodeTable(Partitioning(10_000, partitions), dim=4, state_dim=4)
    size, relations = int(2 * slots * table.slot_bytes), 5 * table.slot_bytes
    monkeypatch.setattr(parts, "available_memory", lambda device: size)
    assert automatic_capacity(table, 0) == automatic_capacity(table, relations, "cuda") == expected
    monkeypatch.setattr(parts, "available_memory", lambda device: size + 3 * relations)
    assert automatic_capacity(table, relations) == expected


@pytest.mark.parametrize(("excess", "known"), [(0, BLOCK_EDGES), (4, 0)])
def test_an_index_of_known_edges_that_is_not_made_costs_nothing(excess: int, known: int) -> None:
    table = NodeTable(Partitioning(10_000, 8), dim=4, state_dim=4)
    num_edges = 4 * BLOCK_EDGES + excess
    assert epoch_work(load_config(["device=cpu"]), table, 4, num_edges).known_edges == known
    unmasked = load_config(["device=cpu", "negatives.mask_known=false"])
    assert epoch_work(unmasked, table, 4, num_edges).known_edges == 0


def test_edges_are_said_to_be_sorted_where_they_are(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("marius_py"), "propagate", True)
    (tmp_path / "e.tsv").write_text("".join(f"{i}\tr\t{i + 1}\n" for i in range(20)))
    graph = prepare(tmp_path / "e.tsv", tmp_path / "graph", partitions=2, header=False)
    for said in (True, False):
        caplog.clear()
        with caplog.at_level(logging.INFO, "marius_py"):
            edges_of(graph, Partitioning(graph.num_nodes, 4), tmp_path / "run").close()
        assert ("sorting the edges into the buckets of 4 partitions" in caplog.text) == said
