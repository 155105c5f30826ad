"""Scratch objects lent to one user at a time."""

from __future__ import annotations

from itertools import count

import pytest

from marius_py.pool import Pool


def test_each_borrower_has_one_of_its_own() -> None:
    pool = Pool(count(1).__next__)
    with pool.lend() as first:
        assert pool.free == ()
        with pool.lend() as second:
            assert (first, second) == (1, 2)
        assert pool.free == (2,)
        with pool.lend() as again:
            assert again == 2
    assert sorted(pool.free) == [1, 2]


def test_what_an_error_may_have_spoilt_is_not_lent_again() -> None:
    pool = Pool(count(1).__next__)
    with pytest.raises(ValueError, match="spoilt"), pool.lend():
        raise ValueError("spoilt")
    assert pool.free == ()
    with pool.lend() as fresh:
        assert fresh == 2
