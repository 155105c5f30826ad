"""Known edges in tables: the negatives that the index of the host finds, whatever was held before."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from marius_py.nn.batch import Corruption, mask_without
from marius_py.nn.known_answers import _END, AnswerTables, KnownAnswers
from marius_py.nn.known_edges import KnownEdges
from marius_py.types import SIDES, Side

NODES, RELATIONS = 60, 3
CPU = torch.device("cpu")


def make_edges(count: int, seed: int = 0) -> np.ndarray:
    """Edges of few nodes, some of them twice, half of them with one hub at an end."""
    rng = np.random.default_rng(seed)
    edges = np.stack([rng.integers(0, size, count) for size in (NODES, RELATIONS, NODES)], 1)
    edges[: count // 4, 0] = edges[count // 4 : count // 2, 2] = NODES - 1
    return edges.astype(np.int32)


def draw(seed: int, chunks: int = 3, count: int = 20) -> np.ndarray:
    """Negatives that ascend in each chunk, some of them twice."""
    return np.sort(np.random.default_rng(seed).integers(0, NODES, (chunks, count)), 1)


def asked(tables: AnswerTables, batch: np.ndarray, negatives: np.ndarray, side: Side) -> KnownAnswers:
    head, relation, tail = torch.from_numpy(batch.astype(np.int64)).unbind(1)
    return tables.answers(side, head if side == "tail" else tail, relation, torch.from_numpy(negatives))


def wanted_mask(edges: np.ndarray, batch: np.ndarray, negatives: np.ndarray, side: Side) -> torch.Tensor:
    found = KnownEdges(edges, compiled=False).false_negatives(batch.astype(np.int64), negatives, side)
    shape = (len(negatives), len(batch) // len(negatives), negatives.shape[1])
    return mask_without(torch.from_numpy(found), shape)


@pytest.mark.parametrize("pairs", [1, 100, 1 << 22])
@pytest.mark.parametrize("side", SIDES)
def test_found_as_by_the_index_of_the_host(side: Side, pairs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marius_py.nn.known_answers._PAIRS", pairs)
    edges, tables = make_edges(800), AnswerTables(NODES, RELATIONS, CPU)
    tables.hold(edges)
    for seed in range(5):
        batch = np.random.default_rng(seed).permutation(edges)[:36]
        negatives = draw(seed)
        mask = asked(tables, batch, negatives, side).mask()
        assert 0 < int((~mask).sum()) < mask.numel()
        assert torch.equal(mask, wanted_mask(edges, batch, negatives, side))


def test_what_was_held_before_is_gone_and_tables_stay_where_they_are() -> None:
    tables = AnswerTables(NODES, RELATIONS, CPU)
    places: dict[Side, Any] = {}
    for number, count in enumerate((900, 40, 0, 1024, 1000)):
        edges = make_edges(count, seed=number)
        tables.hold(edges)
        assert tables.size == 1024
        negatives = draw(number)
        batch = make_edges(30, seed=99)
        for side in SIDES:
            found = asked(tables, batch, negatives, side)
            # The index of the host leaves out a batch's own answers in any case.
            own = wanted_mask(batch[:0], batch, negatives, side)
            assert torch.equal(found.mask() & own, wanted_mask(edges, batch, negatives, side))
            assert places.setdefault(side, found.table.data_ptr()) == found.table.data_ptr()
    tables.hold(make_edges(5000))
    assert tables.size == 5120


def test_the_first_edges_need_not_be_any() -> None:
    tables = AnswerTables(NODES, RELATIONS, CPU)
    assert tables.size == 0
    tables.hold(make_edges(0))
    assert tables.size == 1024
    assert asked(tables, make_edges(30), draw(0), "head").mask().all()


def test_a_part_finds_what_the_whole_does_there() -> None:
    edges, tables = make_edges(800), AnswerTables(NODES, RELATIONS, CPU)
    tables.hold(edges)
    known = asked(tables, edges[:36], draw(1), "tail")
    corruption = Corruption(torch.zeros(3, 20, dtype=torch.int64), known=known)
    whole = corruption.mask(36)
    assert whole is not None
    for chunks, inside in (
        (slice(0, 1), slice(0, 12)),
        (slice(1, 3), slice(0, 12)),
        (slice(2, 3), slice(3, 8)),
    ):
        part = corruption.part(chunks, inside, 12)
        number = (chunks.stop - chunks.start) * (inside.stop - inside.start)
        mask = part.mask(number)
        assert mask is not None
        assert torch.equal(mask, whole[chunks, inside])


def test_no_number_of_an_edge_is_beyond_64_bits() -> None:
    assert AnswerTables.fit(1, 1)
    for num_nodes in (3_037_000_498, 10_000_000, 1000, 7):
        most = (_END - 1) // num_nodes // num_nodes
        most = next(some for some in range(most + 1, 0, -1) if AnswerTables.fit(num_nodes, some))
        assert not AnswerTables.fit(num_nodes, most + 1)
        tables = AnswerTables(num_nodes, most, CPU)
        last = np.array([[num_nodes - 1, most - 1, num_nodes - 1]])
        tables.hold(np.repeat(last, 1024, axis=0))  # no room is left over
        negatives = np.array([[num_nodes - 2, num_nodes - 1]])
        for side in SIDES:
            found = asked(tables, last, negatives, side)
            assert found.mask().tolist() == [[[True, False]]]
            begin, end = found.bounds()
            assert [begin.item(), end.item()] == [0, 1024]


def test_bounds_are_those_of_a_questions_answers() -> None:
    edges, tables = make_edges(300), AnswerTables(NODES, RELATIONS, CPU)
    tables.hold(edges)
    for side, (known, answering) in zip(SIDES, ((2, 0), (0, 2)), strict=True):
        found = asked(tables, edges[:30], draw(0), side)
        begin, end = found.bounds()
        for number, edge in enumerate(edges[:30]):
            same = (edges[:, known] == edge[known]) & (edges[:, 1] == edge[1])
            answers = found.table[begin[number] : end[number]] - found.first[number]
            assert answers.tolist() == sorted(edges[same, answering].tolist())


def test_a_mask_is_of_the_negatives_that_are_given() -> None:
    edges, tables = make_edges(800), AnswerTables(NODES, RELATIONS, CPU)
    tables.hold(edges)
    found = asked(tables, edges[:36], draw(1), "head")
    other = torch.from_numpy(draw(2))
    assert torch.equal(replace(found, nodes=other).mask(), wanted_mask(edges, edges[:36], draw(2), "head"))
