"""Rows of a batch's nodes and which of them are distinct (floor 1, Numba): what NumPy finds in many passes.

In: node ids, where partitions begin and where they lie. Out: rows of the buffer; their distinct values in
ascending order, without sorting. Importing this module needs Numba.
"""

from __future__ import annotations

import numpy as np

from marius_py.compiling import kernel

_ONE = np.uint64(1)
_WORD, _WITHIN = np.uint64(6), np.uint64(63)
_DE_BRUIJN, _TOP = np.uint64(0x03F79D71B4CB0A89), np.uint64(58)
_LOWEST = np.empty(64, np.int64)
"""Top bits of a power of 2 times the De Bruijn number → its exponent (Leiserson, Prokop, Randall, 1998)."""
for _bit in range(64):
    _LOWEST[((0x03F79D71B4CB0A89 << _bit) & (2**64 - 1)) >> 58] = _bit


@kernel()
def rows_of(nodes: np.ndarray, starts: np.ndarray, first_rows: np.ndarray, rows: np.ndarray) -> bool:
    """Find the buffer rows of nodes.

    Args:
        nodes: (n,) int64 ids.
        starts: (p + 1,) int64 first id of each partition, then N.
        first_rows: (p,) int64 buffer row of each partition's first node, below 0 where it is not resident.
        rows: (n,) int64, filled.

    Returns:
        Whether all are resident; if not, `rows` says nothing.
    """
    num_partitions = len(starts) - 1
    density = num_partitions / starts[num_partitions]
    resident = True
    for i in range(len(nodes)):
        node = nodes[i]
        part = int(node * density)
        if part >= num_partitions:
            part = num_partitions - 1
        while node < starts[part]:
            part -= 1
        while node >= starts[part + 1]:
            part += 1
        first = first_rows[part]
        resident &= first >= 0
        rows[i] = first + (node - starts[part])
    return resident


@kernel()
def distinct(
    values: np.ndarray, bits: np.ndarray, place: np.ndarray, found: np.ndarray, local: np.ndarray
) -> int:
    """Find the distinct values and where each value is among them.

    Args:
        values: (n,) int64 in [0, N).
        bits: (⌈N / 64⌉,) uint64 zeros, which they are again afterwards.
        place: (N,) int32 scratch.
        found: (n,) int64; its beginning is filled with the distinct values, ascending.
        local: (n,) int64, filled with indices into `found`.

    Returns:
        The number of distinct values.
    """
    for i in range(len(values)):
        value = np.uint64(values[i])
        bits[value >> _WORD] |= _ONE << (value & _WITHIN)
    count = 0
    for number in range(len(bits)):
        word = bits[number]
        while word != 0:
            lowest = word & (~word + _ONE)
            value = 64 * number + _LOWEST[np.int64((lowest * _DE_BRUIJN) >> _TOP)]
            found[count] = value
            place[value] = count
            count += 1
            word ^= lowest
        bits[number] = 0
    for i in range(len(values)):
        local[i] = place[values[i]]
    return count
