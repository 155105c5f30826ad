"""The compiled steps that make an index of known edges equal what NumPy does."""

from __future__ import annotations

import numpy as np
import pytest

from marius_py.nn.kernels.host import compiled_index


@pytest.mark.parametrize("count", [0, 1, 2, 5000])
@pytest.mark.parametrize("bits", [1, 11, 12, 40, 62])
def test_numbers_in_order(count: int, bits: int) -> None:
    known = compiled_index()
    assert known is not None
    numbers = np.random.default_rng(bits).integers(0, 1 << bits, count)
    np.testing.assert_array_equal(known.ordered(numbers.copy(), bits), np.sort(numbers))


@pytest.mark.parametrize("asking", [0, 1, 700])
def test_a_sieve_keeps_all_that_is_asked_and_little_else(asking: int) -> None:
    known = compiled_index()
    assert known is not None
    rng = np.random.default_rng(asking)
    edges = np.stack([rng.integers(0, size, 30_000) for size in (2**30, 7, 2**30)], 1)
    asked = edges[rng.permutation(len(edges))[:asking]]
    words = 1 << (32 * asking >> 6).bit_length()
    sieve, shift = np.zeros(words, np.uint64), 58 - (32 * asking >> 6).bit_length()
    known.sift(asked, 0, 7, shift, sieve)
    kept = known.pack(edges, 0, 2, 7, 30, shift, sieve, 0, 2**30)
    numbers = (edges[:, 0] * 7 + edges[:, 1]) << 30 | edges[:, 2]
    wanted = np.isin(edges[:, 0] * 7 + edges[:, 1], asked[:, 0] * 7 + asked[:, 1])
    assert np.isin(numbers[wanted], kept).all()
    assert np.isin(kept, numbers).all()
    assert len(kept) - wanted.sum() <= 0.05 * len(edges)
    begin, stop = 2**28, 2**29
    part = known.pack(edges, 0, 2, 7, 30, shift, sieve, begin, stop)
    anchors = (kept >> 30) // 7
    np.testing.assert_array_equal(part, kept[(anchors >= begin) & (anchors < stop)])
