"""The compiled steps that make an index of known edges equal what NumPy does."""

from __future__ import annotations

import numpy as np
import pytest

from marius_py.nn.kernels.host import compiled_index
from marius_py.nn.known_index import _sieve_of


@pytest.mark.parametrize("count", [0, 1, 2, 5000])
@pytest.mark.parametrize("bits", [1, 11, 12, 40, 62])
def test_numbers_in_order(count: int, bits: int) -> None:
    known = compiled_index()
    assert known is not None
    numbers = np.random.default_rng(bits).integers(0, 1 << bits, count)
    np.testing.assert_array_equal(known.ordered(numbers.copy(), bits), np.sort(numbers))


@pytest.mark.parametrize("drawn", [None, 0, 700])
@pytest.mark.parametrize("asking", [None, 0, 1, 700])
def test_a_sieve_keeps_all_that_is_asked_and_drawn_and_little_else(
    asking: int | None, drawn: int | None
) -> None:
    known = compiled_index()
    assert known is not None
    rng = np.random.default_rng(7)
    edges = np.stack([rng.integers(0, size, 30_000) for size in (2**30, 7, 2**30)], 1)
    questions, answers = edges[:, 0] * 7 + edges[:, 1], edges[:, 2]

    def some(numbers: np.ndarray, count: int | None) -> np.ndarray | None:
        return None if count is None else rng.permutation(numbers)[:count]

    asked, wanted_answers = some(questions, asking), some(answers, drawn)
    sieves = (*_sieve_of(asked, known), *_sieve_of(wanted_answers, known))
    kept = known.pack(edges, 0, 2, 7, 30, *sieves, 0, 2**30)
    numbers = questions << 30 | answers
    wanted = np.ones(len(edges), np.bool_)
    for all_of_them, chosen in ((questions, asked), (answers, wanted_answers)):
        if chosen is not None:
            wanted &= np.isin(all_of_them, chosen)
    assert np.isin(numbers[wanted], kept).all()
    assert np.isin(kept, numbers).all()
    assert len(kept) - wanted.sum() <= 0.05 * len(edges)
    begin, stop = 2**28, 2**29
    part = known.pack(edges, 0, 2, 7, 30, *sieves, begin, stop)
    anchors = (kept >> 30) // 7
    np.testing.assert_array_equal(part, kept[(anchors >= begin) & (anchors < stop)])
