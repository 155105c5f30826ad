from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from marius_py.evaluation.ranking.norms import norm_bound

FLOAT32 = np.finfo(np.float32)


def true_norms(rows: np.ndarray) -> np.ndarray:
    return np.sqrt((rows.astype(np.float64) ** 2).sum(axis=1))


@settings(max_examples=200)
@given(
    arrays.arrays(
        np.float32,
        arrays.array_shapes(min_dims=2, max_dims=2, max_side=40),
        elements=st.floats(width=32, allow_nan=True, allow_infinity=True),
    )
)
def test_no_finite_norm_exceeds_the_bound_and_infinities_are_told(rows: np.ndarray) -> None:
    bound, odd = norm_bound(torch.from_numpy(rows))
    is_nan = np.isnan(rows).any(axis=1)
    is_infinite = np.isinf(rows).any(axis=1) & ~is_nan
    finite = true_norms(rows[~is_nan & ~is_infinite])
    assert (finite <= bound).all()
    assert np.isfinite(bound)
    assert (np.zeros(len(rows), bool) if odd is None else odd.numpy()).tolist() == is_infinite.tolist()


@pytest.mark.parametrize("dim", [1, 64, 100, 1000, 100_000])
@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1.0, 1e15])
def test_the_bound_is_close(dim: int, scale: float) -> None:
    rows = (np.random.default_rng(dim).normal(size=(7, dim)) * scale).astype(np.float32)
    longest = true_norms(rows).max()
    bound, odd = norm_bound(torch.from_numpy(rows))
    lost = np.sqrt(dim * float(FLOAT32.tiny))
    assert longest <= bound <= (longest + lost) * (1 + dim * 2.0**-23)
    assert odd is None


def test_squares_that_overflow_or_vanish_are_taken_in_float64() -> None:
    large = np.full((3, 50), FLOAT32.max, dtype=np.float32)
    assert norm_bound(torch.from_numpy(large))[0] == pytest.approx(true_norms(large).max(), rel=1e-9)
    small = np.full((3, 50), FLOAT32.smallest_subnormal, dtype=np.float32)
    assert true_norms(small).max() <= norm_bound(torch.from_numpy(small))[0] < 1e-17


def test_strided_rows_and_none_at_all() -> None:
    rows = torch.randn(20, 30, generator=torch.Generator().manual_seed(0))
    part = rows[::3, 5:9]
    bound, _ = norm_bound(part)
    assert true_norms(part.numpy()).max() == pytest.approx(bound, rel=1e-5)
    assert norm_bound(rows[:0]) == (pytest.approx(0, abs=1e-17), None)
