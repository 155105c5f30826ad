"""Rows as the matrix units of a device read them fastest (floor 1, Triton): padded, converted, turned.

Rows of DIM floats become rows of the next power of two, their number a multiple of `ROWS`, with zeros
between: the loops over them then need no masks, and copy from memory to the multiprocessors ahead of the
products. A product sums over neighbours in memory of both its factors, unless they are 16 bits wide; factors
of 32 bits that are summed over rows are therefore there a second time, columns in the place of rows.

In: tensors on a CUDA device, or on the CPU under Triton's interpreter. Importing this module needs Triton.
"""

# No postponed annotations: Triton reads `tl.constexpr` from them.

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = 128
"""Padded operands have a multiple of so many rows; no block of a loop over them is longer."""


@triton.jit
def _operand_kernel(
    values,
    plain,
    turned,
    num_rows,
    padded,
    DIM: tl.constexpr,
    TURNED: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
):
    chunk = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    column = tl.arange(0, BLOCK_DIM)
    there = (row < num_rows)[:, None] & (column < DIM)[None, :]
    value = tl.load(values + (chunk * num_rows + row)[:, None] * DIM + column[None, :], mask=there, other=0.0)
    tl.store(plain + (chunk * padded + row)[:, None] * BLOCK_DIM + column[None, :], value)
    if TURNED:
        place = chunk * BLOCK_DIM * padded + column[:, None] * padded + row[None, :]
        tl.store(turned + place, tl.trans(value))


def operand(values: Tensor, dtype: torch.dtype, *, turned: bool) -> tuple[Tensor, Tensor]:
    """Rows (C, n, D) float32 as (C, n′, D′) of `dtype`, and as (C, D′, n′) if they are to be turned as well.

    n′ is the next multiple of `ROWS`, D′ the next power of two, 16 at least; zeros stand where there is no
    value. Without `turned` the second tensor is the first.
    """
    chunks, count, dim = values.shape
    padded, width = triton.cdiv(count, ROWS) * ROWS, max(16, triton.next_power_of_2(dim))
    plain = values.new_empty((chunks, padded, width), dtype=dtype)
    other = values.new_empty((chunks, width, padded), dtype=dtype) if turned else plain
    block = min(ROWS, 8192 // width)
    _operand_kernel[(padded // block, chunks)](
        values, plain, other, count, padded, DIM=dim, TURNED=turned, BLOCK_ROWS=block, BLOCK_DIM=width
    )
    return plain, other
