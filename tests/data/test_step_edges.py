"""Blocks and batches cover a step's edges exactly once, evenly, and distinct indices invert."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marius_py.data.distinct import DistinctIndex
from marius_py.data.step_edges import batch_bounds, split_step
from marius_py.nn.negatives import chunks_of


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
    blocks = split_step(4, spans, block_edges)
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
        if num_edges > batch and num_edges % chunks == 0:
            assert max(sizes) - min(sizes) <= len(sizes) * chunks


@pytest.mark.parametrize("num_edges", [9_397, 37_589, 20_011, 5_003, 10_007])
def test_no_batch_of_a_step_falls_into_few_chunks(num_edges: int) -> None:
    """Primes: a last batch without divisors would be one chunk, its edges sharing the same few negatives."""
    bounds = batch_bounds(num_edges, 10_000, 10)
    sizes = [stop - start for start, stop in bounds]
    assert [chunks_of(size, 10) for size in sizes[:-1]] == [10] * (len(sizes) - 1)
    assert 8 <= chunks_of(sizes[-1], 10) <= 11
    assert min(sizes) >= 0.7 * max(sizes)
    assert max(sizes) <= 10_000


@given(st.lists(st.integers(0, 40), max_size=100), st.booleans())
def test_distinct_index_inverts(values: list[int], ascending: bool) -> None:
    array = np.array(values, dtype=np.int64)
    distinct = DistinctIndex(41, ascending=ascending)
    for _ in range(2):
        unique, local = distinct(array)
        assert sorted(unique.tolist()) == sorted(set(values))
        assert not ascending or unique.tolist() == sorted(set(values))
        assert unique[local].tolist() == values
