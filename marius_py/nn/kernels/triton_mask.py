"""Pairs that do not count as a mask of bits, both ways round, and which blocks have any (floor 1, Triton).

Few blocks have one, and only they need to be looked at: then a word of 32 bits is read for 32 pairs.

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

_AT_A_TIME = 256
"""Positions that a program takes."""


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
def clear(row, column, is_one, ways, shape, blocks):
    """Clear the bits of rows, numbered over all chunks, and columns both ways round; flag their blocks.

    `ways` are the words and flags of rows and of columns, `shape` the mask's rows and columns, `blocks` rows
    and columns of the first way's blocks, columns and rows of the second's.
    """
    words_of_rows, flags_of_rows, words_of_columns, flags_of_columns = ways
    num_rows, num_columns = shape
    row = row.to(tl.int64)  # all chunks together may have more words than 32 bits count
    chunk = row // num_rows
    inside = row - chunk * num_rows

    word = row * tl.cdiv(num_columns, 32) + column // 32
    tl.atomic_and(words_of_rows + word, ~(1 << (column % 32).to(tl.int32)), mask=is_one, sem="relaxed")
    word = (chunk * num_columns + column) * tl.cdiv(num_rows, 32) + inside // 32
    tl.atomic_and(words_of_columns + word, ~(1 << (inside % 32).to(tl.int32)), mask=is_one, sem="relaxed")

    block = chunk * tl.cdiv(num_rows, blocks[0]) + inside // blocks[0]
    block = block * tl.cdiv(num_columns, blocks[1]) + column // blocks[1]
    tl.store(flags_of_rows + block, 1, mask=is_one)
    block = chunk * tl.cdiv(num_columns, blocks[2]) + column // blocks[2]
    block = block * tl.cdiv(num_rows, blocks[3]) + inside // blocks[3]
    tl.store(flags_of_columns + block, 1, mask=is_one)


@triton.jit
def _leave_out_kernel(
    positions,
    words_of_rows,
    flags_of_rows,
    words_of_columns,
    flags_of_columns,
    num_positions,
    num_rows,
    num_columns,
    OWN_ROWS: tl.constexpr,
    OTHER_COLUMNS: tl.constexpr,
    OWN_COLUMNS: tl.constexpr,
    OTHER_ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    number = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_one = number < num_positions
    position = tl.load(positions + number, mask=is_one, other=0)
    row = position // num_columns  # of all chunks
    ways = (words_of_rows, flags_of_rows, words_of_columns, flags_of_columns)
    blocks = (OWN_ROWS, OTHER_COLUMNS, OWN_COLUMNS, OTHER_ROWS)
    clear(row, position - row * num_columns, is_one, ways, (num_rows, num_columns), blocks)


def all_count(
    like: Tensor, shape: tuple[int, int, int], of_rows: tuple[int, int], of_columns: tuple[int, int]
) -> tuple[Way, Way]:
    """What `leave_out` returns before anything is left out; `like` is a tensor on the same device."""
    chunks, num_rows, num_columns = shape

    def way(own: int, other: int, block: tuple[int, int]) -> Way:
        words = like.new_full((chunks, own, triton.cdiv(other, WORD)), -1, dtype=torch.int32)
        blocks = triton.cdiv(own, block[0]), triton.cdiv(other, block[1])
        return Way(words, like.new_zeros((chunks, *blocks), dtype=torch.int32))

    return way(num_rows, num_columns, of_rows), way(num_columns, num_rows, of_columns)


def leave_out(
    positions: Tensor, shape: tuple[int, int, int], of_rows: tuple[int, int], of_columns: tuple[int, int]
) -> tuple[Way, Way]:
    """A mask as a kernel that goes over columns for blocks of rows reads it, and one that does the opposite.

    The mask itself, a byte a pair, is never made: few of its bits are zero.

    Args:
        positions: (M,) int64, where the flattened mask is zero, in any order, some perhaps twice.
        shape: (C, n, m) of the mask.
        of_rows: rows and columns of a block of the first. of_columns: columns and rows of the second's.
            Powers of 2.

    Returns:
        The rows' words (C, n, ⌈m / 32⌉) and flags, and the columns' (C, m, ⌈n / 32⌉). Bits beyond the mask
        are set.
    """
    found = all_count(positions, shape, of_rows, of_columns)
    if len(positions):
        _leave_out_kernel[(triton.cdiv(len(positions), _AT_A_TIME),)](
            positions,
            *found[0],
            *found[1],
            len(positions),
            *shape[1:],
            OWN_ROWS=of_rows[0],
            OTHER_COLUMNS=of_rows[1],
            OWN_COLUMNS=of_columns[0],
            OTHER_ROWS=of_columns[1],
            BLOCK=_AT_A_TIME,
        )
    return found
