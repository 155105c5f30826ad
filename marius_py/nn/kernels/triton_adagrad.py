"""Adagrad on rows of a table in one pass (floor 1, Triton): gather, step and scatter without temporaries.

In: a table with its state, and gradients of some of its rows, on a CUDA device, or on the CPU under Triton's
interpreter. Out: the table and the state, changed in place. Importing this module needs Triton;
`marius_py.nn.cuda_kernels` is what imports it, and only then.
"""

# No postponed annotations: Triton reads `tl.constexpr` from them.

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK_FLOATS = 2048


@triton.jit
def _adagrad_kernel(
    rows,
    state,
    index,
    gradients,
    count,
    num_rows,
    stride,
    rate,
    lr,
    eps,
    DIM: tl.constexpr,
    HAS_COUNT: tl.constexpr,
    HAS_RATE: tl.constexpr,
    BY_ROW: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
):
    number = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    limit = num_rows
    if HAS_COUNT:
        limit = tl.load(count).to(tl.int32)
    factor = tl.load(rate) if HAS_RATE else rate
    is_row = number < limit
    row = tl.load(index + number, mask=is_row, other=0)
    of_row = gradients + number[:, None].to(tl.int64) * stride
    if BY_ROW:
        squares = tl.zeros([BLOCK_ROWS], tl.float32)
        for first in range(0, DIM, BLOCK_DIM):
            column = first + tl.arange(0, BLOCK_DIM)[None, :]
            gradient = tl.load(of_row + column, mask=is_row[:, None] & (column < DIM), other=0.0)
            squares += tl.sum(gradient * gradient, 1)
        total = tl.load(state + row, mask=is_row, other=0.0) + squares / DIM
        tl.store(state + row, total, mask=is_row)
    for first in range(0, DIM, BLOCK_DIM):
        column = first + tl.arange(0, BLOCK_DIM)[None, :]
        inside = is_row[:, None] & (column < DIM)
        place = row[:, None] * DIM + column
        gradient = tl.load(of_row + column, mask=inside, other=0.0)
        value = tl.load(rows + place, mask=inside, other=0.0)
        if BY_ROW:
            root = (tl.sqrt_rn(total) + eps)[:, None]
        else:
            totals = tl.load(state + place, mask=inside, other=0.0) + gradient * gradient
            tl.store(state + place, totals, mask=inside)
            root = tl.sqrt_rn(totals) + eps
        step = tl.div_rn(gradient, tl.broadcast_to(root, gradient.shape)) * -lr * factor
        tl.store(rows + place, value + step, mask=inside)


def adagrad(
    rows: Tensor,
    state: Tensor,
    index: Tensor,
    gradients: Tensor,
    *,
    count: Tensor | None,
    lr: float,
    eps: float,
    rate: float | Tensor,
) -> None:
    """As `marius_py.nn.cuda_kernels.torch_adagrad`, of the same arguments, in one launch.

    All but the gradients are contiguous; those may be columns of something wider.
    """
    num_rows, dim = gradients.shape
    if num_rows == 0 or dim == 0:
        return
    if gradients.stride(1) != 1:
        gradients = gradients.contiguous()
    by_row = state.shape[1] != dim or dim == 1
    block_dim = min(triton.next_power_of_2(dim), _BLOCK_FLOATS)
    block_rows = _BLOCK_FLOATS // block_dim
    _adagrad_kernel[(triton.cdiv(num_rows, block_rows),)](
        rows,
        state,
        index,
        gradients,
        index if count is None else count,
        num_rows,
        gradients.stride(0),
        rate if isinstance(rate, Tensor) else float(rate),
        float(lr),
        max(float(eps), torch.finfo(torch.float32).tiny),
        DIM=dim,
        HAS_COUNT=count is not None,
        HAS_RATE=isinstance(rate, Tensor),
        BY_ROW=by_row,
        BLOCK_ROWS=block_rows,
        BLOCK_DIM=block_dim,
    )
