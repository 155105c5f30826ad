"""Gradients of penalties, added to those of rows in one pass (floor 1, Triton).

By single operations the nuclear 3-norm of complex rows takes nine passes over memory.

In: tensors on a CUDA device, or on the CPU under Triton's interpreter. Importing this module needs Triton;
`marius_py.nn.cuda_kernels` is what imports it, and only then.
"""

# No postponed annotations: Triton reads `tl.constexpr` from them.

import triton
import triton.language as tl
from torch import Tensor

_BLOCK_FLOATS = 1024


@triton.jit
def _n3_kernel(
    rows,
    factors,
    sums,
    num_rows,
    HALF: tl.constexpr,
    COMPLEX: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
):
    WIDTH: tl.constexpr = 2 * HALF if COMPLEX else HALF
    row = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    factor = 3 * tl.load(factors + row, mask=row < num_rows, other=0.0)[:, None]
    for first in range(0, HALF, BLOCK_HALF):
        column = first + tl.arange(0, BLOCK_HALF)[None, :]
        inside = (factor != 0) & (column < HALF)  # rows that occur as negatives only have no penalty
        place = row.to(tl.int64)[:, None] * WIDTH + column
        value = tl.load(rows + place, mask=inside, other=0.0)
        if COMPLEX:
            value_im = tl.load(rows + place + HALF, mask=inside, other=0.0)
            modulus = tl.sqrt_rn(value * value + value_im * value_im)
            total_im = tl.load(sums + place + HALF, mask=inside, other=0.0)
            tl.store(sums + place + HALF, total_im + value_im * modulus * factor, mask=inside)
        else:
            modulus = tl.abs(value)
        total = tl.load(sums + place, mask=inside, other=0.0)
        tl.store(sums + place, total + value * modulus * factor, mask=inside)


def add_n3(rows: Tensor, factors: Tensor, sums: Tensor, *, is_complex: bool) -> None:
    """Add 3 |x| x of rows, times their factors, to sums, in place. See `nn.regularizers.N3`.

    Args:
        rows: (U, D), complex ones with their real parts first. factors: (U,). sums: (U, D). All contiguous.
        is_complex: whether |x| is the modulus of a complex number.
    """
    num_rows, dim = rows.shape
    half = dim // 2 if is_complex else dim
    if num_rows == 0 or half == 0:
        return
    block_half = min(triton.next_power_of_2(half), _BLOCK_FLOATS)
    block_rows = _BLOCK_FLOATS // block_half
    _n3_kernel[(triton.cdiv(num_rows, block_rows),)](
        rows,
        factors,
        sums,
        num_rows,
        HALF=half,
        COMPLEX=is_complex,
        BLOCK_ROWS=block_rows,
        BLOCK_HALF=block_half,
    )
