"""Numbers of names by first appearance (floor 4, Numba): an open-addressing hash table that grows in place.

A slot is empty, 0, or holds half of its name's hash above its number + 1. Where a name belongs follows from
that half, so that a larger table is filled from a smaller one without the names. Importing needs Numba.
"""

from __future__ import annotations

import numpy as np

from marius_py.compiling import helper, inlined, kernel
from marius_py.prefetch import ROWS_AHEAD, ask_for

_EMPTY = np.uint64(0)
_BYTE = np.uint64(8)
_NUMBER = np.uint64(0xFFFFFFFF)
_FIRST, _SECOND = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)
_FOLD = np.uint64(33)


@inlined
def _mixed(word):
    """64 bits that depend on all bits of a word (the finalizer of MurmurHash3, Appleby, 2011)."""
    word ^= word >> _FOLD
    word *= _FIRST
    word ^= word >> _FOLD
    word *= _SECOND
    return word ^ (word >> _FOLD)


@inlined
def _word(data, at):
    """Eight bytes as a number; one load where the processor can."""
    word = np.uint64(data[at])
    word |= np.uint64(data[at + 1]) << np.uint64(8)
    word |= np.uint64(data[at + 2]) << np.uint64(16)
    word |= np.uint64(data[at + 3]) << np.uint64(24)
    word |= np.uint64(data[at + 4]) << np.uint64(32)
    word |= np.uint64(data[at + 5]) << np.uint64(40)
    word |= np.uint64(data[at + 6]) << np.uint64(48)
    return word | (np.uint64(data[at + 7]) << np.uint64(56))


@kernel()
def move(old: np.ndarray, new: np.ndarray, shift: int) -> None:
    """Fill an empty table from a smaller one.

    Args:
        old: (m,) uint64 slots.
        new: (2^b,) uint64 zeros, more than are taken in `old`.
        shift: 64 - b.
    """
    mask, down = len(new) - 1, np.uint64(shift)
    for i in range(len(old)):
        slot = old[i]
        if slot != _EMPTY:
            place = np.int64(slot >> down)
            while new[place] != _EMPTY:
                place = (place + 1) & mask
            new[place] = slot


@kernel()
def number_integers(
    values: np.ndarray, slots: np.ndarray, shift: int, names: np.ndarray, count: int, numbers: np.ndarray
) -> int:
    """Number integers; those that are new get the next numbers.

    Args:
        values: (n,) int64.
        slots: (2^b,) uint64, of which n more than are taken are empty.
        shift: 64 - b.
        names: (count + n or more,) int64 by number, the first `count` known; new ones are added.
        count: names known so far.
        numbers: (n,) int32, filled.

    Returns:
        Names known now.
    """
    mask, down = len(slots) - 1, np.uint64(shift)
    ahead, far = ROWS_AHEAD, 2 * ROWS_AHEAD
    for i in range(len(values)):
        # Memory is what this waits for: a slot is asked for, then the name that it shows, ahead.
        if i + far < len(values):
            ask_for(slots, np.int64(_mixed(np.uint64(values[i + far])) >> down))
        if i + ahead < len(values):
            slot = slots[np.int64(_mixed(np.uint64(values[i + ahead])) >> down)]
            ask_for(names, max(0, np.int64(slot & _NUMBER) - 1))
        hashed = _mixed(np.uint64(values[i])) & ~_NUMBER
        place = np.int64(hashed >> down)
        while True:
            slot = slots[place]
            if slot == _EMPTY:
                names[count] = values[i]
                numbers[i] = count
                count += 1
                slots[place] = hashed | np.uint64(count)
                break
            if slot & ~_NUMBER == hashed:
                number = np.int64(slot & _NUMBER) - 1
                if names[number] == values[i]:
                    numbers[i] = number
                    break
            place = (place + 1) & mask
    return count


@helper
def _hash(data, offsets, hashes):
    """Write the half of each text's hash that a slot holds, (n,) uint64."""
    for i in range(len(hashes)):
        at, stop = offsets[i], offsets[i + 1]
        hashed = np.uint64(stop - at)
        while at + 8 <= stop:
            hashed = _mixed(hashed ^ _word(data, at))
            at += 8
        rest = _EMPTY
        while at < stop:
            rest = (rest << _BYTE) | np.uint64(data[at])
            at += 1
        hashes[i] = _mixed(hashed ^ rest) & ~_NUMBER


@inlined
def _ask_ahead(i, hashes, down, slots, ends, known):
    """Ask memory for the slots, beginnings and texts of those that come: numbering waits for these."""
    if i + 3 * ROWS_AHEAD < len(hashes):
        ask_for(slots, np.int64(hashes[i + 3 * ROWS_AHEAD] >> down))
    if i + 2 * ROWS_AHEAD < len(hashes):
        ask_for(ends, np.int64(slots[np.int64(hashes[i + 2 * ROWS_AHEAD] >> down)] & _NUMBER))
    if i + ROWS_AHEAD < len(hashes):
        number = np.int64(slots[np.int64(hashes[i + ROWS_AHEAD] >> down)] & _NUMBER)
        ask_for(known, ends[max(0, number - 1)])


@inlined
def _is_same(known, ends, number, data, start, stop):
    """Whether a text is the known one of a number."""
    first = ends[number]
    same = ends[number + 1] - first == stop - start
    if same:
        for j in range(stop - start):
            if known[first + j] != data[start + j]:
                same = False
                break
    return same


@kernel()
def number_texts(
    data: np.ndarray,
    offsets: np.ndarray,
    slots: np.ndarray,
    shift: int,
    known: np.ndarray,
    ends: np.ndarray,
    count: int,
    numbers: np.ndarray,
) -> int:
    """Number texts; those that are new get the next numbers.

    Args:
        data: uint8 bytes of the texts.
        offsets: (n + 1,) int64; text i is data[offsets[i] : offsets[i + 1]].
        slots: (2^b,) uint64, of which n more than are taken are empty.
        shift: 64 - b.
        known: uint8 bytes of the known texts, with room for those of `data`; new ones are added.
        ends: (count + n + 1 or more,) int64 offsets into `known`, the first `count` + 1 known.
        count: texts known so far.
        numbers: (n,) int32, filled.

    Returns:
        Texts known now.
    """
    mask, down = len(slots) - 1, np.uint64(shift)
    hashes = np.empty(len(numbers), np.uint64)
    _hash(data, offsets, hashes)
    for i in range(len(numbers)):
        _ask_ahead(i, hashes, down, slots, ends, known)
        start, stop = offsets[i], offsets[i + 1]
        place = np.int64(hashes[i] >> down)
        while True:
            slot = slots[place]
            if slot == _EMPTY:
                end = ends[count]
                for j in range(stop - start):
                    known[end + j] = data[start + j]
                numbers[i] = count
                count += 1
                ends[count] = end + stop - start
                slots[place] = hashes[i] | np.uint64(count)
                break
            number = np.int64(slot & _NUMBER) - 1
            if slot & ~_NUMBER == hashes[i] and _is_same(known, ends, number, data, start, stop):
                numbers[i] = number
                break
            place = (place + 1) & mask
    return count
