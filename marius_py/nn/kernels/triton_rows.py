"""Rows of a table copied to where a batch reads them (floor 1, Triton).

PyTorch's own gather reaches a third of the rate of memory with rows of some hundred bytes that lie apart.

In: tensors on a CUDA device, or on the CPU under Triton's interpreter. Importing this module needs Triton;
`marius_py.nn.cuda_kernels` is what imports it, and only then.
"""

# No postponed annotations: Triton reads `tl.constexpr` from them.

import triton
import triton.language as tl
from torch import Tensor

_BLOCK_FLOATS = 2048


@triton.jit
def _take_kernel(
    table,
    index,
    out,
    num_rows,
    DIM: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
):
    number = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    column = tl.arange(0, BLOCK_DIM)
    inside = (number < num_rows)[:, None] & (column < DIM)[None, :]
    row = tl.load(index + number, mask=number < num_rows, other=0)
    values = tl.load(table + row[:, None] * DIM + column[None, :], mask=inside, other=0.0)
    tl.store(out + number[:, None].to(tl.int64) * DIM + column[None, :], values, mask=inside)


def take(table: Tensor, index: Tensor) -> Tensor:
    """As `table.index_select(0, index)` of a contiguous float32 table (N, D) and int64 index (n,)."""
    dim = table.shape[1]
    out = table.new_empty(len(index), dim)
    if out.numel() == 0:
        return out
    block_dim = triton.next_power_of_2(dim)
    block_rows = max(1, _BLOCK_FLOATS // block_dim)
    _take_kernel[(triton.cdiv(len(index), block_rows),)](
        table, index, out, len(index), DIM=dim, BLOCK_ROWS=block_rows, BLOCK_DIM=block_dim
    )
    return out
