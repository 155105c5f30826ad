"""Memory for direct transfers."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_py.storage.aligned import PAGE, allocate, is_aligned


@given(
    shape=st.lists(st.integers(0, 40), min_size=0, max_size=3).map(tuple),
    dtype=st.sampled_from([np.float32, np.float16, np.int64, np.uint8]),
)
@settings(max_examples=60)
def test_any_shape_and_dtype(shape: tuple[int, ...], dtype: type) -> None:
    array = allocate(shape, dtype)
    assert array.shape == shape
    assert array.dtype == dtype
    assert array.flags.c_contiguous
    assert array.flags.writeable
    assert (array == 0).all()
    assert array.size == 0 or is_aligned(array)


@pytest.mark.parametrize("size", [1 << 19, (1 << 19) + 3, 1 << 21])
def test_large_arrays_lie_on_huge_pages(size: int) -> None:
    array = allocate(size)
    assert array.ctypes.data % (2 << 20) == 0
    array[-1] = 5
    assert array.sum() == 5


def test_views_keep_the_memory() -> None:
    array = allocate((1000, 1000))
    array[:] = np.arange(1000)
    view = array[10:20].T
    del array
    gc.collect()
    np.testing.assert_array_equal(view[:, 0], np.arange(1000))
    stack = allocate((3, 1024, 5))
    assert all(is_aligned(slot) for slot in stack)
    assert not is_aligned(stack[0, 1:])
    assert PAGE == 4096
