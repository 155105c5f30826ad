"""Asking memory for a row before it is needed (floor 1, Numba).

Rows that lie far apart come one after the other, each at the latency of memory, unless they are asked for
ahead. Importing this module needs Numba.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from marius_py.nn.kernels.compiling import inlined

ROWS_AHEAD = 8
"""Rows between the one at work and the one asked for."""
LINE = 16
"""Floats of a line of the cache."""


@intrinsic
def ask_for(typing_context, table, place):
    """Ask for the line that holds the float at `place` of a C-contiguous table; nothing else happens."""

    def generate(context, builder, signature, arguments):
        made = context.make_array(signature.args[0])(context, builder, arguments[0])
        address = builder.bitcast(builder.gep(made.data, [arguments[1]]), ir.IntType(8).as_pointer())
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [address.type, number, number, number])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch")
        builder.call(function, [address, number(0), number(3), number(1)])  # to be read, all caches, data
        return context.get_dummy_value()

    return types.void(table, place), generate


@inlined
def ask_for_row(table: np.ndarray, index: np.ndarray, number: int) -> None:
    """Ask for the row of a table that comes `ROWS_AHEAD` after `number` in an index, if one does."""
    if number + ROWS_AHEAD < len(index):
        width = table.shape[1]
        first = index[number + ROWS_AHEAD] * width
        for column in range(0, width, LINE):
            ask_for(table, first + column)
