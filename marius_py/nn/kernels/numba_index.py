"""The index of known edges (floor 1, Numba): edges in, answers by question out, and turned round.

What `nn.known_index` makes; `numba_known` searches it. Importing this module needs Numba.
"""

from __future__ import annotations

import numpy as np

from marius_py.compiling import inlined, kernel

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_ONE = np.uint64(1)
_WORD = 6
_DIGIT = 11
"""Bits of a digit that is sorted by: 2,048 places that are written to stay in a core's first cache."""


@kernel()
def sift(numbers: np.ndarray, shift: int, sieve: np.ndarray) -> None:
    """Set the bits of numbers (n,) int64 in a sieve, 1 << (58 - shift) words of uint64."""
    for number in numbers:
        place = np.uint64(number) * _GOLDEN >> np.uint64(shift)
        sieve[place >> np.uint64(_WORD)] |= _ONE << (place & np.uint64(63))


@inlined
def _passes(sieve: np.ndarray, shift: int, number: int) -> np.int64:
    """1 if `sift` has set a number's bit, as it has for a few others, or the sieve is of length 0; else 0."""
    if len(sieve) == 0:
        return np.int64(1)
    place = np.uint64(number) * _GOLDEN >> np.uint64(shift)
    return np.int64(sieve[place >> np.uint64(_WORD)] >> (place & np.uint64(63)) & _ONE)


@kernel()
def pack(
    edges: np.ndarray,
    known: int,
    answering: int,
    num_relations: int,
    bits: int,
    shift: int,
    sieve: np.ndarray,
    answer_shift: int,
    answer_sieve: np.ndarray,
    begin: int,
    stop: int,
) -> np.ndarray:
    """Questions and answers as one number each: (node * relations + relation) << bits | answer.

    Args:
        edges: (E, 3) integers. known, answering: columns of the known end and of the one that answers.
        num_relations, bits: bounds of relations and answers, such that 63 bits hold a pair.
        shift, sieve: leave out questions that `sift` has not set, but for a few; of length 0: none.
        answer_shift, answer_sieve: likewise answers.
        begin, stop: leave out edges whose known end does not lie in [begin, stop).

    Returns:
        (E,) int64, or fewer, in the order of the edges.
    """
    packed = np.empty(len(edges), np.int64)
    count = np.int64(0)
    for i in range(len(edges)):
        question = np.int64(edges[i, known]) * num_relations + edges[i, 1]
        packed[count] = question << bits | edges[i, answering]
        # Without branches, which would be guessed wrong.
        is_inside = np.int64(begin <= edges[i, known]) & np.int64(edges[i, known] < stop)
        is_wanted = _passes(answer_sieve, answer_shift, edges[i, answering])
        count += is_inside & is_wanted & _passes(sieve, shift, question)
    return packed[:count]


@kernel()
def ordered(packed: np.ndarray, bits: int) -> np.ndarray:
    """The numbers (E,) int64 in ascending order, `bits` bits each; what is given is overwritten.

    By radix, from the lowest digit on. 50,000 numbers of 42 bits on an EPYC of family 25: 10 ns each, 40 by
    NumPy's sort. PyTorch's stable sort is by radix, too, but its threads wait by spinning: 80 ns of the
    processor each, beside batches that are computed.
    """
    passes = (bits + _DIGIT - 1) // _DIGIT
    ends, mask = np.zeros((passes, 1 << _DIGIT), np.int64), (1 << _DIGIT) - 1
    for i in range(len(packed)):
        for digit in range(passes):
            ends[digit, packed[i] >> (digit * _DIGIT) & mask] += 1
    here, there = packed, np.empty_like(packed)
    for digit in range(passes):
        place = np.int64(0)
        for value in range(1 << _DIGIT):
            count = ends[digit, value]
            ends[digit, value] = place
            place += count
        for i in range(len(here)):
            mine = here[i] >> (digit * _DIGIT) & mask
            there[ends[digit, mine]] = here[i]
            ends[digit, mine] += 1
        here, there = there, here
    return here


@kernel()
def split(packed: np.ndarray, bits: int, answers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Questions of ascending pairs, question << bits | answer: what `nn.known_index.group_answers` returns.

    Args:
        packed: (E,) int64, not negative, E below 2³¹. bits: of the answers.
        answers: (E,) integers, written.

    Returns:
        Keys (J,) int64 and starts (J + 1,) int32.
    """
    low_bits = (1 << bits) - 1
    count, before = 0, np.int64(-1)
    for i in range(len(packed)):
        count += packed[i] >> bits != before
        before = packed[i] >> bits
    keys, starts = np.empty(count, np.int64), np.empty(count + 1, np.int32)
    last, before = np.int64(-1), np.int64(-1)
    for i in range(len(packed)):  # without a branch: half of all edges begin a question, in no order
        answers[i] = packed[i] & low_bits
        key = packed[i] >> bits
        last += key != before
        before = key
        keys[last] = key
        starts[last + 1] = i + 1
    starts[0] = 0
    return keys, starts


@kernel()
def directory(keys: np.ndarray, shift: int) -> np.ndarray:
    """Where to begin a search among ascending keys (J,) int64, J at least 1 and below 2³¹.

    Returns:
        (n + 1,) int32: keys whose (key - keys[0]) >> shift is b are keys[first[b]:first[b + 1]].
    """
    lowest = keys[0]
    first = np.zeros(((keys[-1] - lowest) >> shift) + 2, np.int32)
    for key in keys:
        first[((key - lowest) >> shift) + 1] += 1
    for bucket in range(1, len(first)):
        first[bucket] += first[bucket - 1]
    return first


@kernel()
def turn_round(starts: np.ndarray, answers: np.ndarray, low: int, span: int) -> tuple[np.ndarray, np.ndarray]:
    """The questions of each answer: starts (span + 1,) int32 by node - low, and places (E,) int32, ascending.

    Args:
        starts, answers: as of `split`; answers lie in [low, low + span).
    """
    node_starts, places = np.zeros(span + 1, np.int32), np.empty(len(answers), np.int32)
    for node in answers:
        node_starts[node - low + 1] += 1
    for node in range(span):
        node_starts[node + 1] += node_starts[node]
    following = node_starts.copy()
    for j in range(len(starts) - 1):
        for i in range(starts[j], starts[j + 1]):
            node = answers[i] - low
            places[following[node]] = j
            following[node] += 1
    return node_starts, places
