"""Negatives that answer their edge's question, cleared in a mask of bits (floor 1, Triton).

Most questions have few answers: a program takes some edges and searches a few answers of each among the
negatives of its chunk at once, in the cache after the first. Those with more answers have a program each, in
a second launch, whose other programs end at once: in one program each would wait for those before it. Where
answers are many, the negatives are searched among them.

In: tensors on a CUDA device, or on the CPU under Triton's interpreter. Importing this module needs Triton.
"""

# No postponed annotations: Triton reads `tl.constexpr` from them.

import triton
import triton.language as tl

from marius_py.nn.kernels.triton_mask import Way, all_count, clear
from marius_py.nn.known_answers import KnownAnswers

_EDGES, _FEW = 16, 8
"""Edges of a program, and answers of each that it looks at together."""
_SHORT = 32
"""Answers of a question that are looked at so, at most."""
_MANY = 128
"""Answers or negatives that are looked at together where an edge comes alone."""
_SHARE = 4
"""Answers for each negative up to which they are searched among the negatives."""


@triton.jit
def _first_not_below(values, low, high, wanted):
    """First places in [low, high) of ascending values that are not below what is wanted, or `high`."""
    while tl.max(high - low) > 0:
        middle = low + (high - low) // 2
        is_open = low < high
        is_below = tl.load(values + middle, mask=is_open, other=0) < wanted
        low = tl.where(is_open & is_below, middle + 1, low)
        high = tl.where(is_open & (is_below == 0), middle, high)
    return low


@triton.jit
def _clear_found(row, nodes, answer, is_one, ways, shape, blocks):
    """Clear the negatives of rows that are these answers; `nodes` is where those of each answer begin."""
    num_columns = shape[1]
    column = _first_not_below(
        nodes, tl.zeros(answer.shape, tl.int32), tl.where(is_one, num_columns, 0), answer
    )
    is_found = is_one & (column < num_columns)
    is_found = is_found & (tl.load(nodes + column, mask=is_found, other=-1) == answer)
    while tl.max(is_found.to(tl.int32)) > 0:  # a node may have been drawn several times
        clear(row, column, is_found, ways, shape, blocks)
        column += 1
        is_found = is_found & (column < num_columns)
        is_found = is_found & (tl.load(nodes + column, mask=is_found, other=-1) == answer)


@triton.jit
def _leave_out_few_kernel(
    table,
    begins,
    ends,
    firsts,
    nodes,
    words_of_rows,
    flags_of_rows,
    words_of_columns,
    flags_of_columns,
    num_edges,
    num_rows,
    num_columns,
    OWN_ROWS: tl.constexpr,
    OTHER_COLUMNS: tl.constexpr,
    OWN_COLUMNS: tl.constexpr,
    OTHER_ROWS: tl.constexpr,
    EDGES: tl.constexpr,
    FEW: tl.constexpr,
    SHORT: tl.constexpr,
):
    ways = (words_of_rows, flags_of_rows, words_of_columns, flags_of_columns)
    shape = (num_rows, num_columns)
    blocks = (OWN_ROWS, OTHER_COLUMNS, OWN_COLUMNS, OTHER_ROWS)
    row = tl.program_id(0) * EDGES + tl.arange(0, EDGES)  # of all chunks
    is_row = row < num_edges
    begin = tl.load(begins + row, mask=is_row, other=0)
    count = (tl.load(ends + row, mask=is_row, other=0) - begin).to(tl.int32)
    first = tl.load(firsts + row, mask=is_row, other=0)
    own_nodes = nodes + (row // num_rows).to(tl.int64) * num_columns
    own_nodes = own_nodes[:, None] + tl.zeros([EDGES, FEW], tl.int32)
    few = tl.where(count <= SHORT, count, 0)
    for number in range(0, tl.max(few), FEW):
        place = number + tl.arange(0, FEW)
        is_one = place[None, :] < few[:, None]
        answer = tl.load(table + begin[:, None] + place[None, :], mask=is_one, other=0) - first[:, None]
        _clear_found(row[:, None], own_nodes, answer, is_one, ways, shape, blocks)


@triton.jit
def _leave_out_many_kernel(
    table,
    begins,
    ends,
    firsts,
    nodes,
    words_of_rows,
    flags_of_rows,
    words_of_columns,
    flags_of_columns,
    num_rows,
    num_columns,
    most_answers,
    OWN_ROWS: tl.constexpr,
    OTHER_COLUMNS: tl.constexpr,
    OWN_COLUMNS: tl.constexpr,
    OTHER_ROWS: tl.constexpr,
    SHORT: tl.constexpr,
    MANY: tl.constexpr,
):
    row = tl.program_id(0)  # of all chunks
    begin = tl.load(begins + row)
    count = (tl.load(ends + row) - begin).to(tl.int32)
    if count > SHORT:
        ways = (words_of_rows, flags_of_rows, words_of_columns, flags_of_columns)
        shape = (num_rows, num_columns)
        blocks = (OWN_ROWS, OTHER_COLUMNS, OWN_COLUMNS, OTHER_ROWS)
        lane = tl.arange(0, MANY)
        first = tl.load(firsts + row)
        own_nodes = nodes + (row // num_rows).to(tl.int64) * num_columns
        if count <= most_answers:
            of_each = own_nodes + tl.zeros([MANY], tl.int32)
            for ahead in range(0, count, MANY):
                is_one = ahead + lane < count
                answer = tl.load(table + begin + ahead + lane, mask=is_one, other=0) - first
                _clear_found(row, of_each, answer, is_one, ways, shape, blocks)
        else:
            for ahead in range(0, num_columns, MANY):
                column = ahead + lane
                is_one = column < num_columns
                wanted = first + tl.load(own_nodes + column, mask=is_one, other=0)
                place = _first_not_below(
                    table + begin, tl.zeros([MANY], tl.int32), tl.where(is_one, count, 0), wanted
                )
                is_found = is_one & (place < count)
                value = tl.load(table + begin + place, mask=is_found, other=-1)
                clear(row, column, is_found & (value == wanted), ways, shape, blocks)


def leave_out_known(
    known: KnownAnswers, of_rows: tuple[int, int], of_columns: tuple[int, int]
) -> tuple[Way, Way]:
    """As `triton_mask.leave_out` of the positions that `known` stands for, whose list is never made.

    Args:
        known: edges and negatives of a batch's side, all contiguous.
        of_rows, of_columns: as there.
    """
    chunks, num_columns = known.nodes.shape
    num_edges = len(known.first)
    num_rows = num_edges // chunks
    begins, ends = known.bounds()
    found = all_count(known.first, (chunks, num_rows, num_columns), of_rows, of_columns)
    given = (known.table, begins, ends, known.first, known.nodes, *found[0], *found[1])
    blocks = {
        "OWN_ROWS": of_rows[0],
        "OTHER_COLUMNS": of_rows[1],
        "OWN_COLUMNS": of_columns[0],
        "OTHER_ROWS": of_columns[1],
    }
    _leave_out_few_kernel[(triton.cdiv(num_edges, _EDGES),)](
        *given,
        num_edges,
        num_rows,
        num_columns,
        **blocks,
        EDGES=_EDGES,
        FEW=_FEW,
        SHORT=_SHORT,
        num_warps=1,
    )
    _leave_out_many_kernel[(num_edges,)](
        *given,
        num_rows,
        num_columns,
        _SHARE * num_columns,
        **blocks,
        SHORT=_SHORT,
        MANY=_MANY,
        num_warps=1,
    )
    return found
