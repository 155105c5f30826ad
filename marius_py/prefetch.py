"""Asking memory for a row before it is needed (floor 0, Numba).

Rows that lie far apart come one after the other, each at the latency of memory, unless they are asked for
ahead. Importing this module needs Numba.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

ROWS_AHEAD = 8
"""Rows between the one at work and the one asked for."""
LINE = 16
"""Floats of a line of the cache."""


def _prefetch(builder: ir.IRBuilder, pointer: ir.Value) -> None:
    """Emit the instruction for the line that holds what a pointer shows."""
    address = builder.bitcast(pointer, ir.IntType(8).as_pointer())
    number = ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [address.type, number, number, number])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch")
    builder.call(function, [address, number(0), number(3), number(1)])  # to be read, all caches, data


@intrinsic
def ask_for(typing_context, table, place):
    """Ask for the line that holds the float at `place` of a C-contiguous table; nothing else happens."""

    def generate(context, builder, signature, arguments):
        made = context.make_array(signature.args[0])(context, builder, arguments[0])
        _prefetch(builder, builder.gep(made.data, [arguments[1]]))
        return context.get_dummy_value()

    return types.void(table, place), generate


@intrinsic
def ask_for_row(typing_context, table, row):
    """Ask for a row of a C-contiguous table (N, D), line by line; nothing else happens.

    No function that is written out where it is called: each of its arrays would be counted as a reference
    there, which takes as long as what asking saves.
    """

    def generate(context, builder, signature, arguments):
        made = context.make_array(signature.args[0])(context, builder, arguments[0])
        _, width = cgutils.unpack_tuple(builder, made.shape)
        first = builder.gep(made.data, [builder.mul(arguments[1], width)])
        size = width.type
        with cgutils.for_range_slice(builder, size(0), width, size(LINE), intp=size) as (column, _):
            _prefetch(builder, builder.gep(first, [column]))
        return context.get_dummy_value()

    return types.void(table, types.int64), generate
