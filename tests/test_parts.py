"""The parts of a run: how many partitions fit in memory, and where that is limited."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from marius_py import parts
from marius_py.config import load_config
from marius_py.data.step_edges import BLOCK_EDGES
from marius_py.partitioning import Partitioning
from marius_py.parts import automatic_capacity, edges_of, epoch_work, make_trainer_settings
from marius_py.prepare import prepare
from marius_py.storage.protocols import NodeTable


@pytest.mark.parametrize(
    ("slots", "partitions", "expected"), [(8, 8, 8), (7.9, 8, 5), (4, 8, 3), (1, 8, 2), (0, 8, 2), (0, 1, 1)]
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


def test_partitions_that_do_not_fit_are_not_said_to(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("marius_py"), "propagate", True)
    table = NodeTable(Partitioning(10_000, 8), dim=4, state_dim=4)
    monkeypatch.setattr(parts, "available_memory", lambda device: 5 * table.slot_bytes)
    assert automatic_capacity(table, 0) == 2
    assert {one.levelno for one in caplog.records} == {logging.WARNING}
    assert "not even 2 of 8 partitions fit in" in caplog.text
    caplog.clear()
    monkeypatch.setattr(parts, "available_memory", lambda device: 6 * table.slot_bytes)
    with caplog.at_level(logging.INFO, "marius_py"):
        assert automatic_capacity(table, 0) == 2
    assert {one.levelno for one in caplog.records} == {logging.INFO}
    assert "2 of 8 partitions fit in" in caplog.text


@pytest.mark.parametrize(("excess", "known"), [(0, BLOCK_EDGES), (4, 0)])
def test_an_index_of_known_edges_that_is_not_made_costs_nothing(excess: int, known: int) -> None:
    table = NodeTable(Partitioning(10_000, 8), dim=4, state_dim=4)
    num_edges = 4 * BLOCK_EDGES + excess
    assert epoch_work(load_config(["device=cpu"]), table, 4, num_edges).known_edges == known
    unmasked = load_config(["device=cpu", "negatives.mask_known=false"])
    assert epoch_work(unmasked, table, 4, num_edges).known_edges == 0


@pytest.mark.parametrize(
    ("words", "gib", "expected"),
    [
        ((), 16, (8, 2)),
        (("pipeline.max_in_flight=3",), 16, (3, 5)),
        (("pipeline.compute_threads=6",), 16, (6, 3)),  # of which there are threads for one
        (("pipeline.compute_workers=4",), 16, (4, 4)),
        (("pipeline.max_in_flight=3", "pipeline.compute_workers=2"), 16, (3, 6)),
        (("negatives=all",), 16, (2, 1)),  # 80 GB of scores
        ((), 4, (5, 1)),
        ((), 1, (2, 1)),
    ],
)
def test_what_is_in_flight_follows_from_cores_sizes_and_memory(
    words: tuple[str, ...], gib: float, expected: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A million nodes of dim 64 with their state are half a GiB; a batch of 10,000 takes 91 MB."""
    table = NodeTable(Partitioning(1_000_000, 8), dim=64, state_dim=64)
    monkeypatch.setattr(parts, "available_cores", lambda: 16)
    monkeypatch.setattr(parts, "available_memory", lambda device: int(gib * 2**30))
    config = load_config(["device=cpu", "training.batch_size=10000", "negatives.count=1000", *words])
    settings = make_trainer_settings(config, table, 8, 10_000_000)
    assert (settings.max_in_flight, settings.members) == expected


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
