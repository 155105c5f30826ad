"""Turn tables of 32-bit words (floor 1, Numba): rows become columns, a tile of 16 by 16 at a time.

The compiler does not find the exchanges between registers that this takes; spelt out, a tile costs a few of
them instead of 256 words one by one. Importing this module needs Numba.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from marius_py.compiling import helper
from marius_py.nn.kernels.workspace import REGISTER

_WORD = 4  # bytes


@intrinsic
def _turn_tile(typing_context, source, source_step, target, target_step):
    """Write 16 rows of 16 words at an address as columns to another; steps from row to row are in bytes."""

    def generate(context, builder, signature, arguments):
        source, source_step, target, target_step = arguments
        vector = ir.VectorType(ir.IntType(32), REGISTER)

        def place(base, step, row):
            offset = builder.mul(step, ir.Constant(step.type, row))
            return builder.inttoptr(builder.add(base, offset), vector.as_pointer())

        rows = [builder.load(place(source, source_step, i), align=_WORD) for i in range(REGISTER)]
        # Rows that are `apart` from each other exchange halves of groups of twice as many words.
        apart = REGISTER // 2
        while apart:
            low = [i if i & apart == 0 else i - apart + REGISTER for i in range(REGISTER)]
            high = [i + apart if i & apart == 0 else i + REGISTER for i in range(REGISTER)]
            for i in range(REGISTER):
                if i & apart == 0:
                    pair = rows[i], rows[i + apart]
                    for to, mask in ((i, low), (i + apart, high)):
                        rows[to] = builder.shuffle_vector(
                            *pair, ir.Constant(ir.VectorType(ir.IntType(32), REGISTER), mask)
                        )
            apart //= 2
        for i in range(REGISTER):
            builder.store(rows[i], place(target, target_step, i), align=_WORD)
        return context.get_dummy_value()

    return types.void(types.uintp, types.uintp, types.uintp, types.uintp), generate


@helper
def turn(words, rows, columns, turned):
    """Write the first rows and columns of a table as columns and rows, both up to whole tiles.

    Args:
        words: (R, C), turned: (C, R or more) of 32-bit numbers, 2-d, C-contiguous, with whole tiles for
            `rows` and `columns` each. What lies beyond these in the last tiles is turned too.
    """
    step, turned_step = words.shape[1] * _WORD, turned.shape[1] * _WORD
    for low in range(0, rows, REGISTER):
        source, target = words.ctypes.data + low * step, turned.ctypes.data + low * _WORD
        for first in range(0, columns, REGISTER):
            _turn_tile(source + first * _WORD, step, target + first * turned_step, turned_step)
