"""Call a matrix product from compiled loops (floor 1, Numba), by its address and on C-contiguous arrays.

BLAS's, which transposes factors, or oneDNN's, which does not. Factors are float32, or bfloat16 held as
uint16, as the product at the address takes them.

Importing this module needs Numba.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from marius_py.compiling import helper

_PLAIN, _TRANSPOSED = ord("N"), ord("T")
_ONE = np.float32(1)


@intrinsic
def _call(typing_context, address, transpose, sizes, alpha, arrays, steps, beta):
    """gemm(transposeᵢ, …, sizesᵢ, …, alpha, array₀, step₀, array₁, step₁, beta, array₂, step₂).

    Whole numbers are handed over in 64 bits: where the function reads 32, it finds the lower half.
    """

    def generate(context, builder, signature, arguments):
        address, transpose, sizes, alpha, arrays, steps, beta = arguments
        pointer = ir.IntType(8).as_pointer()

        def place(value):
            return builder.bitcast(cgutils.alloca_once_value(builder, value), pointer)

        letters = [
            place(builder.trunc(one, ir.IntType(8))) for one in cgutils.unpack_tuple(builder, transpose)
        ]
        m, n, k = (place(one) for one in cgutils.unpack_tuple(builder, sizes))
        a, b, c = (builder.inttoptr(one, pointer) for one in cgutils.unpack_tuple(builder, arrays))
        step_a, step_b, step_c = (place(one) for one in cgutils.unpack_tuple(builder, steps))
        given = [*letters, m, n, k, place(alpha), a, step_a, b, step_b, place(beta), c, step_c]
        kind = ir.FunctionType(ir.VoidType(), [pointer] * len(given))
        builder.call(builder.inttoptr(address, kind.as_pointer()), given)
        return context.get_dummy_value()

    of = types.UniTuple
    three = of(types.int64, 3)
    return types.void(
        types.int64, of(types.int64, 2), three, types.float32, of(types.uintp, 3), three, types.float32
    ), generate


@helper
def multiply(gemm, transpose_left, transpose_right, sizes, left, right, kept, out):
    """out = left · right + kept · out, summed in float32.

    Args:
        gemm: address of the function, of the type of `left` and `right`; `out` is float32.
        transpose_left, transpose_right: whether the array holds the factor transposed.
        sizes: (m, n, k) of factors (m, k) and (k, n).
        left, right, out: their first rows and columns count; 2-d, C-contiguous.
        kept: float32; where it is 0, what `out` holds does not matter.
    """
    m, n, k = sizes
    # The function counts by columns: it is asked for the transposed product of the transposed factors.
    _call(
        gemm,
        (_TRANSPOSED if transpose_right else _PLAIN, _TRANSPOSED if transpose_left else _PLAIN),
        (n, m, k),
        _ONE,
        (right.ctypes.data, left.ctypes.data, out.ctypes.data),
        (right.shape[1], left.shape[1], out.shape[1]),
        kept,
    )


@intrinsic
def _call_rows(typing_context, address, sizes, steps, is_added, arrays, is_paired):
    """gemm(sizesᵢ, …, stepsᵢ, …, is_added, arrayᵢ, …, is_paired): all by value."""

    def generate(context, builder, signature, arguments):
        address, sizes, steps, is_added, arrays, is_paired = arguments
        whole, pointer = ir.IntType(64), ir.IntType(8).as_pointer()
        numbers = [*cgutils.unpack_tuple(builder, sizes), *cgutils.unpack_tuple(builder, steps)]
        places = [builder.inttoptr(one, pointer) for one in cgutils.unpack_tuple(builder, arrays)]
        given = [*numbers, builder.zext(is_added, whole), *places, builder.zext(is_paired, whole)]
        kind = ir.FunctionType(ir.VoidType(), [one.type for one in given])
        builder.call(builder.inttoptr(address, kind.as_pointer()), given)
        return context.get_dummy_value()

    three = types.UniTuple(types.int64, 3)
    return types.void(
        types.int64, three, three, types.boolean, types.UniTuple(types.uintp, 3), types.boolean
    ), generate


@helper
def multiply_rows(gemm, sizes, left, right, is_added, out, first=0):
    """out = left · right, or that added to out, summed in float32, by oneDNN's product of blocks.

    Args:
        gemm: address of the function, of the type of `left`; `out` is float32.
        sizes: (m, n, k) of factors (m, k) and (k, n); k is even if they are bfloat16.
        left, right, out: their first rows and columns count; 2-d, C-contiguous. Rows of a `right` of bfloat16
            come in pairs: (k/2, n) of 32-bit words that hold both rows' numbers.
        first: what k begins at, even if factors are bfloat16.
    """
    left_skipped = first * left.itemsize
    right_skipped = first * left.itemsize // 4 * right.shape[1] * 4
    _call_rows(
        gemm,
        sizes,
        (left.shape[1], right.shape[1], out.shape[1]),
        is_added,
        (left.ctypes.data + left_skipped, right.ctypes.data + right_skipped, out.ctypes.data),
        left.itemsize == 2,
    )
