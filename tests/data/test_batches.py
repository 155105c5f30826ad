"""What an epoch begins with is read while the one before it ends."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from marius_py.buffer import PartitionBuffer
from marius_py.buffer.swap import IOThread
from marius_py.data.batch_settings import BatchSettings
from marius_py.data.batches import BatchSource
from marius_py.data.drawn_ahead import draw_both
from marius_py.nn.known_edges import KnownEdges
from marius_py.nn.negatives import UniformNegatives
from marius_py.ordering import build_schedule
from marius_py.partitioning import Partitioning
from marius_py.storage.memory import MemoryEdgeStore, MemoryPartitionStore
from marius_py.storage.protocols import NodeTable
from marius_py.storage.weighted import weighted_rows
from marius_py.types import Position, Schedule

NODES, EDGES = 60, 900


class CountingEdges(MemoryEdgeStore):
    """Counts the edges that are read."""

    read_edges = 0

    def read(self, split, bucket=None, *, weights=False):  # type: ignore[no-untyped-def]
        found = super().read(split, bucket, weights=weights)
        self.read_edges += len(found)
        return found

    def read_range(self, split, start, stop, *, weights=False):  # type: ignore[no-untyped-def]
        self.read_edges += stop - start
        return super().read_range(split, start, stop, weights=weights)


class Walk:
    """A source over a small graph, and the batches that its epochs have."""

    def __init__(
        self,
        p: int,
        c: int,
        io: IOThread,
        mask_known: bool,
        block_edges: int,
        mean_weight: float | None = None,
    ) -> None:
        rng = np.random.default_rng(0)
        edges = np.stack([rng.integers(0, size, EDGES) for size in (NODES, 3, NODES)], 1)
        if mean_weight is not None:
            edges = weighted_rows(edges, np.arange(EDGES, dtype=np.float32))
        partitioning = Partitioning(NODES, p)
        store = MemoryPartitionStore(NodeTable(partitioning, 2, 0))
        self.io = io
        self.edges = CountingEdges(partitioning, edges)
        self.buffer = PartitionBuffer(store, c, io)
        self.buffer.fill_store(lambda start, rows, state: rows.fill(0))
        settings = BatchSettings(
            50, 2, 0, mask_known, True, block_edges, compiled=False, mean_weight=mean_weight
        )
        sampler = UniformNegatives(1, 2)
        self.source = BatchSource(self.buffer, self.edges, io, settings, sampler)
        self._p, self._c = p, c

    def schedule(self, epoch: int, start: tuple[int, ...] | None = None) -> Schedule:
        return build_schedule(self._p, self._c, order="beta", seed=epoch, start=start)

    def epoch(
        self, epoch: int, schedule: Schedule, then: Callable[[], Schedule] | None
    ) -> list[tuple[Position, list[list[int]]]]:
        """Positions and edges of its batches."""
        found = []
        for leased in self.source.run(schedule, Position(epoch, 0, 0), lambda position: False, then):
            found.append((leased.here, leased.edges.tolist()))
            leased.lease.release()
        return found


@contextmanager
def walk(
    p: int = 4,
    c: int = 2,
    *,
    mask_known: bool = False,
    block_edges: int = 10**6,
    mean_weight: float | None = None,
) -> Iterator[Walk]:
    io = IOThread()
    made = Walk(p, c, io, mask_known, block_edges, mean_weight)
    try:
        yield made
    finally:
        io.shutdown()
        made.buffer.close()


@pytest.fixture(autouse=True)
def many_edges(monkeypatch: pytest.MonkeyPatch) -> None:
    """No edges are so few that they are held in memory."""
    monkeypatch.setattr("marius_py.data.batches.HELD_EDGES", 0)


@pytest.mark.parametrize("start", [Position(0, 0, 0), Position(0, 0, 3)])
@pytest.mark.parametrize(("p", "c", "block_edges"), [(5, 3, 10**6), (4, 4, 10**6), (5, 3, 70)])
def test_an_index_finds_all_that_a_batch_draws(p: int, c: int, block_edges: int, start: Position) -> None:
    """Of a block's batches, each with the negatives that its position gives it, whichever it begins with."""
    with walk(p, c, mask_known=True, block_edges=block_edges) as made:
        parts = made.edges.partitioning
        edges = made.edges.read("train")
        ends = np.stack([parts.locate(edges[:, column])[0] for column in (0, 2)], 1)
        smaller, all_found = 0, 0
        order = made.source.run(made.schedule(0), start, lambda position: False)
        for leased in order:
            resident = np.flatnonzero(leased.first_row >= 0)
            between = edges[np.isin(ends, resident).all(axis=1)]
            known = KnownEdges(between if len(between) <= block_edges else leased.edges, compiled=False)
            assert isinstance(leased.known, KnownEdges)
            smaller += leased.known.nbytes < known.nbytes
            both = draw_both(UniformNegatives(1, 2), 0, leased.edges, leased.nodes, leased.here)
            for side, negatives in both.items():
                batch = leased.edges.astype(np.int64)
                expected = known.false_negatives(batch, negatives, side)
                found = leased.known.false_negatives(batch, negatives, side)
                if len(between) <= block_edges:
                    np.testing.assert_array_equal(found, expected)
                assert set(expected) <= set(found)
                all_found += len(found)
            leased.lease.release()
        assert all_found
        assert (smaller > 0) == (p > c)


@pytest.mark.parametrize("held", [0, EDGES])
@pytest.mark.parametrize("mask_known", [False, True])
@pytest.mark.parametrize(("p", "c", "block_edges"), [(4, 4, 10**6), (5, 3, 10**6), (5, 3, 70)])
def test_weights_come_with_their_edges(
    p: int, c: int, block_edges: int, mask_known: bool, held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each edge once an epoch with its weight, by the mean; all else as without weights."""
    monkeypatch.setattr("marius_py.data.batches.HELD_EDGES", held)
    options: dict[str, Any] = {"mask_known": mask_known, "block_edges": block_edges}
    with walk(p, c, mean_weight=2.0, **options) as made, walk(p, c, **options) as plain:
        expected = sorted(map(tuple, made.edges.read("train", weights=True).tolist()))
        found = []
        batches = [
            one.source.run(one.schedule(0), Position(0, 0, 0), lambda _: False) for one in (made, plain)
        ]
        for leased, alike in zip(*batches, strict=True):
            assert leased.weight is not None
            assert alike.weight is None
            np.testing.assert_array_equal(leased.edges, alike.edges)
            assert leased.edges.flags.c_contiguous
            found += weighted_rows(leased.edges, leased.weight * 2).tolist()
            if mask_known:
                both = draw_both(UniformNegatives(1, 2), 0, leased.edges, leased.nodes, leased.here)
                for side, negatives in both.items():
                    drops = [
                        one.known.false_negatives(one.edges.astype(np.int64), negatives, side)  # type: ignore[union-attr]
                        for one in (leased, alike)
                    ]
                    np.testing.assert_array_equal(*drops)
            leased.lease.release()
            alike.lease.release()
        assert sorted(map(tuple, found)) == expected


@pytest.mark.parametrize("mask_known", [False, True])
@pytest.mark.parametrize(("p", "c", "block_edges"), [(4, 2, 10**6), (4, 4, 10**6), (4, 4, 170), (5, 3, 70)])
def test_epochs_are_the_same_read_ahead_or_not(p: int, c: int, block_edges: int, mask_known: bool) -> None:
    found: list[list[object]] = []
    for ahead in (False, True):
        with walk(p, c, mask_known=mask_known, block_edges=block_edges) as made:
            found.append([])
            schedule = made.schedule(0)
            for epoch in range(3):
                following = made.schedule(epoch + 1, schedule.final)
                batches = made.epoch(epoch, schedule, (lambda one=following: one) if ahead else None)
                assert sum(len(edges) for _, edges in batches) == EDGES
                made.io.drain()
                found[-1].append((batches, made.source.edge_bytes_read))
                schedule = made.schedule(epoch + 1, schedule.final)
    assert found[0] == found[1]


@pytest.mark.parametrize("c", [2, 4])
def test_the_next_epoch_is_begun_before_its_turn(c: int) -> None:
    with walk(4, c) as made:
        schedule = made.schedule(0)
        following = made.schedule(1, schedule.final)
        made.epoch(0, schedule, lambda: following)
        made.io.drain()
        before = made.edges.read_edges
        assert before > EDGES
        made.epoch(1, made.schedule(1, schedule.final), None)
        assert made.edges.read_edges == 2 * EDGES  # nothing was read twice


def test_what_was_read_for_another_epoch_is_not_used() -> None:
    with walk() as made:
        schedule = made.schedule(0)
        made.epoch(0, schedule, lambda: made.schedule(7, schedule.final))
        batches = made.epoch(1, made.schedule(1, schedule.final), None)
        read = made.source.edge_bytes_read
    with walk() as other:
        other.epoch(0, other.schedule(0), None)
        assert other.epoch(1, other.schedule(1, schedule.final), None) == batches
        assert other.source.edge_bytes_read < read  # what was read in vain counts


def test_a_schedule_that_cannot_be_made_is_no_failure_of_the_epoch_before(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail() -> Schedule:
        raise ValueError("no such order")

    with walk() as made, caplog.at_level(logging.DEBUG, "marius_py"):
        schedule = made.schedule(0)
        assert sum(len(edges) for _, edges in made.epoch(0, schedule, fail)) == EDGES
        made.io.drain()
        assert "epoch 2: its first edges are not read ahead" in caplog.text
        assert sum(len(edges) for _, edges in made.epoch(1, made.schedule(1), None)) == EDGES


@pytest.mark.parametrize("mask_known", [False, True])
@pytest.mark.parametrize(("p", "c", "block_edges"), [(4, 2, 10**6), (4, 4, 170), (5, 3, 70)])
def test_few_edges_are_read_once_and_make_the_same_batches(
    p: int, c: int, block_edges: int, mask_known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for most in (EDGES - 1, EDGES):
        monkeypatch.setattr("marius_py.data.batches.HELD_EDGES", most)
        with walk(p, c, mask_known=mask_known, block_edges=block_edges) as made:
            schedule, batches, read = made.schedule(0), [], []
            for epoch in range(3):
                following = made.schedule(epoch + 1, schedule.final)
                batches.append(made.epoch(epoch, schedule, lambda one=following: one))  # type: ignore[misc]
                made.io.drain()
                read.append(made.source.edge_bytes_read)
                schedule = following
            held = sum(made.source.held_bytes.values())
            made.source.close()
            assert not any(made.source.held_bytes.values())
            found.append((batches, read, held))
    (batches, read, _), (the_same, once, held) = found
    assert the_same == batches
    assert once == [EDGES * 12] * 3
    assert read[2] > read[1] > read[0] or (mask_known and p == c)
    assert held >= EDGES * 12
