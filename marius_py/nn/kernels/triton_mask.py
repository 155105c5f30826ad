"""A mask of pairs as bits, both ways round, and which blocks of it have any zero (floor 1, Triton).

Few blocks have one, and only they need to be looked at: then a word of 32 bits is read where 32 bytes were.

In: tensors on a CUDA device, or on the CPU under Triton's interpreter. Importing this module needs Triton.
"""

# No postponed annotations: Triton reads `tl.constexpr` from them.

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

WORD = 32
"""Bits of a word; blocks have a multiple of so many columns, or a divisor of it."""


class Way(NamedTuple):
    """A mask as one kernel goes over it.

    Attributes:
        words: (C, own, ⌈other / 32⌉) int32, bit i of word w that of the other's number 32 w + i.
        flags: (C, blocks of own, blocks of other) int32, nonzero where a block has a zero.
    """

    words: Tensor
    flags: Tensor


@triton.jit
def is_set(words, own, other, is_own, num_words, OTHER: tl.constexpr):
    """Bits (own, other) of a block whose first `other` is a multiple of `OTHER`, their number."""
    bit = other & 31
    first = tl.min(other, 0) // 32
    word = tl.load(words + own * num_words + first, mask=is_own, other=0)[:, None]
    for more in tl.static_range(1, (OTHER + 31) // 32):
        here = tl.minimum(first + more, num_words - 1)  # a block may end beyond the last word
        following = tl.load(words + own * num_words + here, mask=is_own, other=0)[:, None]
        word = tl.where((other // 32 == here)[None, :], following, word)
    return ((word >> bit[None, :]) & 1) != 0


@triton.jit
def _store_flags(
    is_zero,
    flags,
    chunk,
    row,
    column,
    num_rows,
    num_columns,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
    ROWS_FIRST: tl.constexpr,
):
    """Write whether there is one in each of the parts, ROWS by COLUMNS, of a block of both grids."""
    DOWN: tl.constexpr = BLOCK_ROWS // ROWS
    ACROSS: tl.constexpr = BLOCK_COLUMNS // COLUMNS
    found = tl.max(tl.max(tl.reshape(is_zero, [DOWN, ROWS, ACROSS, COLUMNS]), 3), 1)
    down = (row * DOWN + tl.arange(0, DOWN))[:, None]
    across = (column * ACROSS + tl.arange(0, ACROSS))[None, :]
    height, width = tl.cdiv(num_rows, ROWS), tl.cdiv(num_columns, COLUMNS)
    place = down * width + across if ROWS_FIRST else across * height + down
    tl.store(flags + chunk * height * width + place, found, mask=(down < height) & (across < width))


@triton.jit
def _pack_kernel(
    mask,
    words_of_rows,
    flags_of_rows,
    words_of_columns,
    flags_of_columns,
    num_rows,
    num_columns,
    OWN_ROWS: tl.constexpr,
    OTHER_COLUMNS: tl.constexpr,
    OWN_COLUMNS: tl.constexpr,
    OTHER_ROWS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
):
    chunk = tl.program_id(1).to(tl.int64)
    blocks = tl.cdiv(num_columns, BLOCK_COLUMNS)
    row, column = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    rows = row * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    columns = column * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS)
    inside = (rows < num_rows)[:, None] & (columns < num_columns)[None, :]
    place = chunk * num_rows * num_columns + rows[:, None] * num_columns + columns[None, :]
    is_one = (tl.load(mask + place, mask=inside, other=1) != 0).to(tl.int32)

    DOWN: tl.constexpr = BLOCK_ROWS // 32
    ACROSS: tl.constexpr = BLOCK_COLUMNS // 32
    bit = tl.arange(0, 32)
    word = column * ACROSS + tl.arange(0, ACROSS)
    words = tl.sum(tl.reshape(is_one, [BLOCK_ROWS, ACROSS, 32]) << bit[None, None, :], 2)
    width = tl.cdiv(num_columns, 32)
    there = (rows < num_rows)[:, None] & (word < width)[None, :]
    tl.store(words_of_rows + (chunk * num_rows + rows)[:, None] * width + word[None, :], words, mask=there)
    word = row * DOWN + tl.arange(0, DOWN)
    words = tl.sum(tl.reshape(is_one, [DOWN, 32, BLOCK_COLUMNS]) << bit[None, :, None], 1)
    width = tl.cdiv(num_rows, 32)
    there = (word < width)[:, None] & (columns < num_columns)[None, :]
    place = (chunk * num_columns + columns)[None, :] * width + word[:, None]
    tl.store(words_of_columns + place, words, mask=there)

    _store_flags(
        1 - is_one, flags_of_rows, chunk, row, column, num_rows, num_columns,
        OWN_ROWS, OTHER_COLUMNS, BLOCK_ROWS, BLOCK_COLUMNS, True,
    )  # fmt: skip
    _store_flags(
        1 - is_one, flags_of_columns, chunk, row, column, num_rows, num_columns,
        OTHER_ROWS, OWN_COLUMNS, BLOCK_ROWS, BLOCK_COLUMNS, False,
    )  # fmt: skip


def pack(mask: Tensor, of_rows: tuple[int, int], of_columns: tuple[int, int]) -> tuple[Way, Way]:
    """A mask as a kernel that goes over columns for blocks of rows reads it, and one that does the opposite.

    Args:
        mask: (C, n, m) int8, contiguous.
        of_rows: rows and columns of a block of the first. of_columns: columns and rows of the second's.
            Powers of 2.

    Returns:
        The rows' words (C, n, ⌈m / 32⌉) and flags, and the columns' (C, m, ⌈n / 32⌉). Bits beyond the mask
        are set.
    """
    chunks, num_rows, num_columns = mask.shape

    def way(own: int, other: int, block: tuple[int, int]) -> Way:
        blocks = triton.cdiv(own, block[0]), triton.cdiv(other, block[1])
        shapes = (chunks, own, triton.cdiv(other, WORD)), (chunks, *blocks)
        return Way(*(mask.new_empty(shape, dtype=torch.int32) for shape in shapes))

    found = way(num_rows, num_columns, of_rows), way(num_columns, num_rows, of_columns)
    rows, columns = max(WORD, of_rows[0], of_columns[1]), max(WORD, of_rows[1], of_columns[0])
    _pack_kernel[(triton.cdiv(num_rows, rows) * triton.cdiv(num_columns, columns), chunks)](
        mask,
        *found[0],
        *found[1],
        num_rows,
        num_columns,
        OWN_ROWS=of_rows[0],
        OTHER_COLUMNS=of_rows[1],
        OWN_COLUMNS=of_columns[0],
        OTHER_ROWS=of_columns[1],
        BLOCK_ROWS=rows,
        BLOCK_COLUMNS=columns,
    )
    return found
