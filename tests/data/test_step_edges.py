"""Blocks and batches cover a step's edges exactly once, evenly, and distinct indices invert."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marius_py.data.distinct import DistinctIndex
from marius_py.data.step_edges import EdgeBlock, batch_bounds, read_block, shuffled, split_step
from marius_py.nn.kernels.host import compiled_distinct
from marius_py.nn.negatives import chunks_of
from marius_py.partitioning import Partitioning
from marius_py.storage.memory import MemoryEdgeStore
from marius_py.streams import Purpose, stream


@given(
    counts=st.lists(st.integers(0, 50), min_size=9, max_size=9),
    chosen=st.sets(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1),
    block_edges=st.integers(1, 60),
)
def test_blocks_cover_the_buckets_of_a_step_once(
    counts: list[int], chosen: set[tuple[int, int]], block_edges: int
) -> None:
    table = np.array(counts, dtype=np.int64).reshape(3, 3)
    offsets = np.concatenate([[0], np.cumsum(table.ravel())])
    expected = sorted(
        position for h, t in chosen for position in range(offsets[3 * h + t], offsets[3 * h + t + 1])
    )
    spans = [(int(offsets[3 * h + t]), int(offsets[3 * h + t + 1])) for h, t in sorted(chosen)]
    blocks = split_step(4, np.array(spans), block_edges)
    seen = sorted(p for block in blocks for start, stop in block.ranges for p in range(start, stop))
    assert seen == expected
    assert [block.last for block in blocks] == [False] * (len(blocks) - 1) + [True]
    assert max(block.num_edges for block in blocks) <= block_edges + len(chosen)


@given(st.integers(0, 5000), st.integers(1, 700), st.integers(1, 20))
def test_batches_cover_a_block_and_are_nearly_equal(num_edges: int, batch: int, chunks: int) -> None:
    batch = max(batch, chunks) // chunks * chunks
    bounds = batch_bounds(num_edges, batch, chunks)
    assert [e for start, stop in bounds for e in range(start, stop)] == list(range(num_edges))
    sizes = [stop - start for start, stop in bounds]
    assert all(size <= batch for size in sizes)
    assert all(size % chunks == 0 for size in sizes[:-1])
    if sizes:
        assert sizes[-1] > 0
        assert len(sizes) <= -(-num_edges // batch) + 1
        even = sizes[max(0, num_edges // batch - 3) :]
        assert all(size == batch for size in sizes[: len(sizes) - len(even)])
        if num_edges > batch and num_edges % chunks == 0:
            assert max(even) - min(even) <= len(even) * chunks


@pytest.mark.parametrize("num_edges", [9_397, 37_589, 20_011, 5_003, 10_007, 90_001, 99_991])
def test_no_batch_of_a_step_falls_into_few_chunks(num_edges: int) -> None:
    """Primes: a last batch without divisors would be one chunk, its edges sharing the same few negatives."""
    bounds = batch_bounds(num_edges, 10_000, 10)
    sizes = [stop - start for start, stop in bounds]
    assert [chunks_of(size, 10) for size in sizes[:-1]] == [10] * (len(sizes) - 1)
    assert 8 <= chunks_of(sizes[-1], 10) <= 11
    assert min(sizes) >= 0.7 * max(sizes)
    assert max(sizes) <= 10_000


def test_large_blocks_of_different_sizes_have_batches_of_one_shape() -> None:
    sizes = [
        stop - start for edges in (1_234_567, 2_345_679) for start, stop in batch_bounds(edges, 10_000, 10)
    ]
    assert sizes.count(10_000) >= len(sizes) - 8


@given(st.lists(st.integers(0, 200), max_size=100), st.booleans())
def test_distinct_index_inverts(values: list[int], compiled: bool) -> None:
    array = np.array(values, dtype=np.int64)
    distinct = DistinctIndex(201, compiled=compiled)
    for _ in range(2):
        unique, local = distinct(array)
        assert unique.tolist() == sorted(set(values))
        assert unique[local].tolist() == values


def test_edges_are_shuffled_alike_by_any_number_of_threads() -> None:
    edges = np.arange(3 * 300_000, dtype=np.int32).reshape(-1, 3)
    orders = [shuffled(edges, stream(1, Purpose.SHUFFLE, 2), threads) for threads in (1, 3)]
    np.testing.assert_array_equal(*orders)
    np.testing.assert_array_equal(np.sort(orders[0][:, 0]), edges[:, 0])
    np.testing.assert_array_equal(orders[0], orders[0][:, :1] + np.arange(3))
    other = shuffled(edges, stream(2, Purpose.SHUFFLE, 2))
    assert (other[:, 0] == orders[0][:, 0]).mean() < 1e-3


def test_the_order_of_a_block_follows_from_seed_epoch_step_and_number() -> None:
    """The same block again is in the same order; another seed, epoch, step or block is in another one."""
    none = np.zeros(500, np.int64)
    store = MemoryEdgeStore(Partitioning(500, 1), np.stack([none, none, np.arange(500)], 1))
    ranges = np.array([[300, 500], [0, 200]])

    def order(seed: int = 1, epoch: int = 2, step: int = 3, number: int = 4) -> tuple[int, ...]:
        block = EdgeBlock(step, ranges, number, last=True)
        return tuple(read_block(partial(store.read_range, "train"), block, seed, epoch)[:, 2].tolist())

    first = order()
    assert sorted(first) == [*range(200), *range(300, 500)]
    assert order() == first
    assert len({first, order(seed=0), order(epoch=0), order(step=0), order(number=0)}) == 5


@pytest.mark.parametrize("count", [3000, 300_000])
def test_every_place_of_a_shuffled_block_holds_edges_from_all_over(count: int) -> None:
    edges = np.repeat(np.arange(count, dtype=np.int32)[:, None], 3, axis=1)
    place = shuffled(edges, stream(1, Purpose.SHUFFLE, 3))[:, 0] * 20 // count
    where = np.arange(count) * 20 // count
    table = np.zeros((20, 20))
    np.add.at(table, (where, place), 1)
    expected = count / 400
    # χ² of 361 degrees of freedom: its mean is 361, its standard deviation 27.
    assert ((table - expected) ** 2 / expected).sum() < 361 + 5 * 27
    assert abs(np.corrcoef(place[1:], place[:-1])[0, 1]) < 5 / count**0.5


def test_few_edges_or_none_are_shuffled_too() -> None:
    for count in (0, 1, 2):
        edges = np.arange(3 * count, dtype=np.int64).reshape(-1, 3)
        found = shuffled(edges, stream(1, Purpose.SHUFFLE, 4))
        assert found.dtype == np.int64
        np.testing.assert_array_equal(np.sort(found, axis=0), edges)


@given(st.integers(1, 400), st.integers(1, 60), st.data())
def test_rows_are_found_as_without_compiled_loops(nodes: int, parts: int, data: st.DataObject) -> None:
    partitioning = Partitioning(nodes, min(parts, nodes))
    starts = partitioning.starts()
    first_rows = np.array(data.draw(st.permutations(range(partitioning.num_partitions))), np.int64) * 1000
    ids = np.arange(nodes)
    rows = np.empty_like(ids)
    kernels = compiled_distinct()
    assert kernels is not None
    assert kernels.rows_of(ids, starts, first_rows, rows)
    part, row = partitioning.locate(ids)
    np.testing.assert_array_equal(rows, first_rows[part] + row)
    first_rows[part[-1]] = -1
    assert not kernels.rows_of(ids, starts, first_rows, rows)
