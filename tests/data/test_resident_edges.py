"""Known edges between residents: the same negatives are left out whatever the index holds."""

from __future__ import annotations

import logging
from itertools import combinations

import numpy as np
import pytest

from marius_py.data.resident_edges import ResidentEdges, most_between
from marius_py.data.train_edges import TrainEdges
from marius_py.nn.known_edges import KnownEdges
from marius_py.partitioning import Partitioning
from marius_py.storage.memory import MemoryEdgeStore
from marius_py.types import SIDES, Bucket

NODES, PARTS = 400, 4


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("share", [0.0, 0.01, 0.2, 0.5, 1.0])
def test_an_index_for_few_edges_finds_what_one_of_all_finds(share: float, compiled: bool) -> None:
    rng = np.random.default_rng(0)
    edges = np.stack([rng.integers(0, size, 40_000) for size in (NODES, 3, NODES)], 1)
    store = MemoryEdgeStore(Partitioning(NODES, PARTS), edges)
    known = ResidentEdges(TrainEdges(store, 0), limit=len(edges), compiled=compiled)
    resident = (0, 1, 3)
    loaded = known.load(resident)
    assert loaded is not None
    assert len(loaded) > 1 << 14  # enough for the compiled search
    own = loaded[rng.permutation(len(loaded))[: int(share * len(loaded))]]
    found = known.index(resident, loaded, own)
    whole = KnownEdges(loaded, compiled)
    # Compiled, questions that none asks are left out, else nodes: of 400 a few edges ask for all.
    assert (found.nbytes < whole.nbytes) == (share < (0.5 if compiled else 0.2))
    asked = own[:200]
    negatives = np.sort(rng.choice(NODES, (4, 30)), axis=1)
    for side in SIDES if len(asked) else ():
        expected = whole.false_negatives(asked, negatives, side)
        assert len(expected)
        np.testing.assert_array_equal(found.false_negatives(asked, negatives, side), expected)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("few", [False, True])
@pytest.mark.parametrize("too_many", [False, True])
def test_an_index_for_what_is_drawn_finds_what_one_of_all_finds(
    too_many: bool, few: bool, compiled: bool
) -> None:
    rng = np.random.default_rng(0)
    edges = np.stack([rng.integers(0, size, 60_000) for size in (NODES, 3, NODES)], 1)
    store = MemoryEdgeStore(Partitioning(NODES, PARTS), edges)
    known = ResidentEdges(TrainEdges(store, 0), limit=100 if too_many else len(edges), compiled=compiled)
    resident = (0, 1, 3)
    loaded = known.load(resident)
    assert (loaded is None) == too_many
    assert not known.serves_again(resident, loaded)
    whole = edges[:20_000] if loaded is None else loaded
    own = whole[: len(whole) // (5 if few else 1)]
    if loaded is None:
        whole = own
    negatives = {side: np.sort(rng.choice(NODES, (4, 9)), axis=1) for side in SIDES}
    drawn = {side: ids.ravel() for side, ids in negatives.items()}
    found = known.index(resident, loaded, own, drawn)
    all_of_them = known.index(resident, loaded, own)
    assert found.nbytes < all_of_them.nbytes / 2
    for side in SIDES:
        expected = KnownEdges(whole, compiled).false_negatives(own[:200], negatives[side], side)
        assert len(expected)
        for index in (found, all_of_them):
            positions = index.false_negatives(own[:200], negatives[side], side)
            np.testing.assert_array_equal(positions, expected)


def test_an_index_serves_again_where_all_partitions_stay() -> None:
    edges = np.zeros((100, 3), np.int32)
    store = MemoryEdgeStore(Partitioning(NODES, PARTS), edges)
    known = ResidentEdges(TrainEdges(store, 0), limit=100)
    everything = tuple(range(PARTS))
    assert known.serves_again(everything, known.load(everything))
    assert not known.serves_again((0, 1), known.load((0, 1)))
    assert not ResidentEdges(TrainEdges(store, 0), limit=99).serves_again(everything, None)
    held = ResidentEdges(TrainEdges(store, 100), limit=100)
    assert held.serves_again((0, 1), held.load((0, 1)))


def test_an_index_of_all_serves_until_a_partition_comes() -> None:
    rng = np.random.default_rng(0)
    edges = np.stack([rng.integers(0, size, 2000) for size in (NODES, 3, NODES)], 1)
    store = MemoryEdgeStore(Partitioning(NODES, PARTS), edges)
    known = ResidentEdges(TrainEdges(store, 0), limit=len(edges))
    loaded = known.load((0, 1))
    assert loaded is not None
    first = known.index((0, 1), loaded, loaded)
    assert known.index((0, 1), loaded, loaded[: len(loaded) // 2]) is first
    assert known.index((0, 1), loaded, loaded[:5]) is not first
    other = known.load((1, 2))
    assert other is not None
    assert known.index((1, 2), other, other) is not first


@pytest.mark.parametrize("compiled", [False, True])
def test_few_edges_are_indexed_once(compiled: bool) -> None:
    rng = np.random.default_rng(0)
    edges = np.stack([rng.integers(0, size, 20_000) for size in (NODES, 3, NODES)], 1)
    store = MemoryEdgeStore(Partitioning(NODES, PARTS), edges)
    held = TrainEdges(store, len(edges))
    known, whole = ResidentEdges(held, len(edges), compiled), KnownEdges(edges, compiled)
    found = None
    for first, second in combinations(range(PARTS), 2):
        nodes = np.concatenate([np.arange(100 * part, 100 * part + 100) for part in (first, second)])
        negatives = np.sort(rng.choice(nodes, (4, 30)), axis=1)
        loaded = known.load((first, second))
        own = known.rows(*np.cumsum(store.bucket_counts().ravel())[[first * PARTS, first * PARTS + 1]])
        asked = own[: len(own) // 4 * 4]
        index = known.index((first, second), loaded, own)
        assert found is None or index is found
        found = index
        for side in SIDES:
            expected = whole.false_negatives(asked, negatives, side)
            assert len(expected)
            np.testing.assert_array_equal(index.false_negatives(asked, negatives, side), expected)
            np.testing.assert_array_equal(
                index.question_weights(asked, side), whole.question_weights(asked, side)
            )
    if compiled:
        assert known.nbytes == whole.nbytes  # edges are held once, by what reads them
    known.clear()
    assert known.nbytes == 0


def test_few_edges_are_not_all_taken_where_a_device_finds_them_or_they_exceed_the_limit() -> None:
    rng = np.random.default_rng(0)
    edges = np.stack([rng.integers(0, size, 2000) for size in (NODES, 3, NODES)], 1)
    store = MemoryEdgeStore(Partitioning(NODES, PARTS), edges)
    between = int(store.bucket_counts()[:2, :2].sum())
    for limit, on_device in ((len(edges), True), (between, False)):
        known = ResidentEdges(TrainEdges(store, len(edges)), limit, on_device=on_device)
        loaded = known.load((0, 1))
        assert loaded is not None
        assert len(loaded) == between
        assert (known.load((0, 1, 2)) is None) == (limit == between)


def test_edges_for_a_device_are_the_same_object_as_long_as_they_are_the_same() -> None:
    rng = np.random.default_rng(0)
    edges = np.stack([rng.integers(0, size, 4000) for size in (NODES, 3, NODES)], 1)
    store = MemoryEdgeStore(Partitioning(NODES, PARTS), edges)
    known = ResidentEdges(TrainEdges(store, 0), limit=int(store.bucket_counts()[:3, :3].sum()))
    loaded = known.load((0, 1))
    assert loaded is not None
    first = known.at_hand((0, 1), loaded, loaded)
    assert first.edges is loaded
    before = known.nbytes
    again = known.load((0, 1))
    assert known.at_hand((0, 1), again, loaded[:5]) is first  # however few the block's own are
    assert known.nbytes == before >= loaded.nbytes
    other = known.load((1, 2))
    assert other is not None
    second = known.at_hand((1, 2), other, other)
    assert second.edges is other
    assert known.load((0, 1, 2, 3)) is None
    blocks = [known.at_hand((0, 1, 2, 3), None, edges[start : start + 9]) for start in (0, 9)]
    assert blocks[0] is not blocks[1]
    np.testing.assert_array_equal(blocks[1].edges, edges[9:18])
    third = known.at_hand((1, 2), known.load((1, 2)), other)
    assert third is not second
    np.testing.assert_array_equal(third.edges, other)
    known.clear()
    assert known.nbytes == 0


def test_no_index_outlives_the_edges_it_was_made_of() -> None:
    """All edges after few, after others and after too many: each time what is found is what is true."""
    rng = np.random.default_rng(0)
    edges = np.stack([rng.integers(0, size, 4000) for size in (NODES, 3, NODES)], 1)
    store = MemoryEdgeStore(Partitioning(NODES, PARTS), edges)
    counts = store.bucket_counts()
    limit = max(int(counts[np.ix_(parts, parts)].sum()) for parts in ([0, 1], [1, 2]))
    known = ResidentEdges(TrainEdges(store, 0), limit=limit)
    negatives = np.arange(NODES)[None]
    for resident, few in (
        ((0, 1), False),
        ((1, 2), False),
        ((1, 2), True),
        ((1, 2), False),
        ((0, 1, 2), False),
        ((1, 2), False),
    ):
        loaded = known.load(resident)
        assert (loaded is None) == (len(resident) > 2)
        whole = edges[:50] if loaded is None else loaded
        own = whole[:5] if few else whole
        found = known.index(resident, loaded, own)
        for side in SIDES:
            expected = KnownEdges(whole).false_negatives(own[:50], negatives, side)
            np.testing.assert_array_equal(found.false_negatives(own[:50], negatives, side), expected)


def test_a_swap_reads_the_new_buckets_that_hold_edges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many partitions most buckets are empty, and each costs time however small."""
    rng = np.random.default_rng(0)
    parts, count = 40, 300
    edges = np.stack([rng.integers(0, size, count) for size in (NODES, 3, NODES)], 1)
    store = MemoryEdgeStore(Partitioning(NODES, parts), edges)
    counts = store.bucket_counts()
    held = TrainEdges(store, 0)
    known = ResidentEdges(held, limit=count)
    asked: list[tuple[int, int]] = []
    bucket = held.bucket
    monkeypatch.setattr(held, "bucket", lambda one: asked.append(tuple(one)) or bucket(one))
    before: tuple[int, ...] = ()
    for resident in ((*range(10),), (*range(1, 11),), (20, *range(1, 10))):
        asked.clear()
        loaded = known.load(resident)
        pairs = [(head, tail) for head in resident for tail in resident]
        new = [pair for pair in pairs if counts[pair] and not set(pair) <= set(before)]
        assert sorted(asked) == sorted(new)
        expected = np.concatenate([store.read("train", Bucket(*pair)) for pair in pairs])
        np.testing.assert_array_equal(loaded, expected)
        before = resident
    empty = known.load((next(part for part in range(parts) if not counts[part, part]),))
    assert empty is not None
    assert empty.shape == (0, 3)


def test_what_is_held_is_known_without_asking_every_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked after every batch, and there may be as many buckets as batches."""
    rng = np.random.default_rng(0)
    edges = np.stack([rng.integers(0, size, 2000) for size in (NODES, 3, NODES)], 1)
    store = MemoryEdgeStore(Partitioning(NODES, PARTS), edges)
    known = ResidentEdges(TrainEdges(store, 0), limit=len(edges))
    for resident in ((0, 1), (1, 3), (0, 1, 2, 3)):
        loaded = known.load(resident)
        assert loaded is not None
        index = known.index(resident, loaded, loaded)
        monkeypatch.setattr(known, "_buckets", None)
        assert known.nbytes == loaded.nbytes + index.nbytes
        monkeypatch.undo()


def test_too_many_edges_are_told_once_and_only_the_blocks_own_are_held(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("marius_py"), "propagate", True)
    rng = np.random.default_rng(0)
    edges = np.stack([rng.integers(0, size, 2000) for size in (NODES, 3, NODES)], 1)
    store = MemoryEdgeStore(Partitioning(NODES, PARTS), edges)
    counts = store.bucket_counts()
    small, large = (sum(int(counts[i, j]) for i in parts for j in parts) for parts in ((2,), (0, 1)))
    known = ResidentEdges(TrainEdges(store, 0), limit=small)
    few = known.load((2,))
    assert few is not None
    held = known.index((2,), few, few).nbytes
    assert not caplog.messages
    for _ in range(2):
        assert known.load((0, 1)) is None
        own = few[:5]
        index = known.index((0, 1), None, own)
        assert len(index.false_negatives(own, np.arange(NODES)[None], "tail"))
        assert known.nbytes == index.nbytes < held
    (message,) = caplog.messages
    for word in (
        f"{large} known edges",
        f"at most {small} are held",
        "negatives.mask_known",
        "storage.capacity",
    ):
        assert word in message


def test_no_partitions_have_more_edges_between_them_than_the_most() -> None:
    rng = np.random.default_rng(0)
    for capacity in range(1, 7):
        counts = rng.integers(0, 100, (6, 6))
        between = [
            int(counts[np.ix_(parts, parts)].sum()) for parts in map(list, combinations(range(6), capacity))
        ]
        assert most_between(counts, capacity) >= max(between)
    assert most_between(counts, 6) == counts.sum()


def test_held_edges_are_those_of_the_file() -> None:
    """Ranges of one bucket and of neighbours, with an empty one between; what is not held is an error."""
    rng = np.random.default_rng(0)
    edges = np.stack([rng.integers(0, size, 3000) for size in (NODES, 3, NODES)], 1)
    edges = edges[(edges[:, 0] // 100 != 1) | (edges[:, 2] // 100 != 2)]  # bucket (1, 2) is empty
    store = MemoryEdgeStore(Partitioning(NODES, PARTS), edges)
    counts = store.bucket_counts()
    starts = np.concatenate([[0], np.cumsum(counts.ravel())])
    known = ResidentEdges(TrainEdges(store, 0), limit=len(edges))
    known.load((1, 2, 3))
    first, end = int(starts[5]), int(starts[8])  # buckets (1, 1) to (1, 3)
    for start, stop in ((first, end), (first + 3, first + 9), (end - 4, end), (int(starts[7]) - 2, end - 1)):
        np.testing.assert_array_equal(known.rows(start, stop), store.read_range("train", start, stop))
    with pytest.raises(KeyError):
        known.rows(0, 5)
