"""Memory that the disk can read into without a copy (floor 1, numpy only).

In: a shape. Out: a numpy array on page-aligned memory, whose pages are already there and, where the kernel
gives them, huge. Physically contiguous pages are what O_DIRECT's speed depends on.
"""

from __future__ import annotations

import contextlib
import math
import mmap
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

PAGE = 4096
"""Alignment in bytes of buffers, file offsets and lengths of direct I/O."""

_HUGE_PAGE = 2 * 1024 * 1024


def allocate(shape: int | tuple[int, ...], dtype: DTypeLike = np.float32) -> NDArray[Any]:
    """Allocate zeros in `shape` on anonymous private memory, touched, fit for O_DIRECT.

    The memory belongs to the array: it is unmapped when the last view of it is gone. It is not meant for
    small or short-lived arrays, since every call costs a system call and the pages' first touch.

    Args:
        shape: shape of the array; a side of 0 is allowed.
        dtype: element type without objects.

    Returns:
        C-contiguous zeros; the first byte lies on a 4096-byte boundary (2 MiB from 2 MiB of size on), and
        whole pages follow, so a transfer may be rounded up to 4096 bytes.
    """
    sides = (shape,) if isinstance(shape, int) else tuple(shape)
    element = np.dtype(dtype)
    count = math.prod(sides)
    size = -(-count * element.itemsize // PAGE) * PAGE
    if size == 0:
        return np.zeros(sides, element)
    alignment = _HUGE_PAGE if size >= _HUGE_PAGE else PAGE
    memory = mmap.mmap(-1, size + alignment, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        # A kernel without huge pages answers EINVAL: smaller pages then, slower but right.
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    pages = np.frombuffer(memory, np.uint8)
    skip = -pages.ctypes.data % alignment
    pages = pages[skip : skip + size]
    pages[::PAGE] = 0  # the first touch of every page, now and not in the middle of a read
    return pages[: count * element.itemsize].view(element).reshape(sides)


def is_aligned(array: NDArray[Any]) -> bool:
    """Whether `array` starts on a 4096-byte boundary, as a direct transfer needs."""
    return array.ctypes.data % PAGE == 0
