"""Known edges among negatives (floor 1, Numba): what `nn.known_search` finds, chunk by chunk in one pass.

Each chunk's edges ask questions, a known end and a relation each, of which many are the same. Either the
answers of each question are looked up among the chunk's negatives, or the questions that each negative
answers among those asked, whichever looks at fewer. Importing this module needs Numba.
"""

from __future__ import annotations

import numpy as np

from marius_py.compiling import helper, inlined, kernel
from marius_py.prefetch import ROWS_AHEAD, ask_for

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_ONE = np.uint64(1)
_LOW_BITS = 16
_WORD = 6
_SEARCH = 16
"""Answers for each negative from which the negatives are searched among the answers."""
_SHORT = 8
"""Keys that are looked at one after the other."""
_ROOM = 64
"""Positions found for each edge that there is room for at first: what is not written takes no memory."""
PAIR_COST = 2
"""Answers that are looked up in the time of one question that a negative answers."""


@helper
def _grown(array, used, more):
    """The array, or a longer copy, with room for `more` after the first `used`."""
    if used + more <= len(array):
        return array
    longer = np.empty(2 * len(array) + more, array.dtype)
    for i in range(used):  # slices take seconds to compile
        longer[i] = array[i]
    return longer


@helper
def _find_places(keys, lowest, shift, first, starts, questions, places):
    """Write where each question stands among ascending keys, or -1: places (P,). See `known_index.Directory`.

    Memory is what a search waits for, so all places to begin at are looked up before the first search.
    """
    buckets = len(first) - 1
    for p in range(len(questions)):
        bucket = (questions[p] - lowest) >> shift
        places[p] = first[bucket] if 0 <= bucket < buckets else -1
    for p in range(len(questions)):
        if p + ROWS_AHEAD < len(questions):
            ask_for(keys, max(0, places[p + ROWS_AHEAD]))
        place = places[p]
        if place < 0:
            continue
        stop = np.int64(first[((questions[p] - lowest) >> shift) + 1])
        while stop - place > _SHORT:
            middle = (place + stop) >> 1
            if keys[middle] <= questions[p]:
                place = middle
            else:
                stop = middle
        while place < stop and keys[place] < questions[p]:
            place += 1
        places[p] = -1
        if place < stop and keys[place] == questions[p]:
            places[p] = place
            ask_for(starts, place)


@helper
def _first_not_below(values, low, stop, value):
    """First place in ascending values[low:stop] that is not below `value`."""
    while low < stop:
        middle = (low + stop) >> 1
        if values[middle] < value:
            low = middle + 1
        else:
            stop = middle
    return low


@helper
def _slot(slots, shift, nodes, node):
    """Slot of a node in a hash table of places in `nodes`: its own, or the free one that it would get."""
    slot = np.int64((np.uint64(node) * _GOLDEN) >> shift)
    while slots[slot] >= 0 and nodes[slots[slot]] != node:
        slot = (slot + 1) & (len(slots) - 1)
    return slot


@inlined
def _enter(sieve, number):
    """Note that the sieve holds a node or place; `_may_hold` is then true, as it is for some others."""
    low = number & ((1 << _LOW_BITS) - 1)
    sieve[low >> _WORD] |= _ONE << np.uint64(low & ((1 << _WORD) - 1))


@inlined
def _may_hold(sieve, number):
    low = number & ((1 << _LOW_BITS) - 1)
    return (sieve[low >> _WORD] >> np.uint64(low & ((1 << _WORD) - 1))) & _ONE


@helper
def _enter_negatives(sieve, slots, shift, nodes):
    """Fill the sieve of low bits and the table of first columns with a chunk's negatives (K,), ascending."""
    sieve.fill(np.uint64(0))
    slots.fill(np.int32(-1))
    for k in range(len(nodes)):
        if k > 0 and nodes[k] == nodes[k - 1]:
            continue
        slots[_slot(slots, shift, nodes, nodes[k])] = k
        _enter(sieve, nodes[k])


@helper
def _ask(keys, lowest, key_shift, first, starts, question, numbers, shift, places, question_of):
    """Number a chunk's distinct questions: places (Q,) of them, and question_of (P,) edges, or -1.

    `numbers` becomes a hash table of them by place. Returns Q.
    """
    _find_places(keys, lowest, key_shift, first, starts, question, question_of)
    numbers.fill(np.int32(-1))
    count = 0
    for p in range(len(question)):
        if question_of[p] < 0:
            continue
        slot = _slot(numbers, shift, places, question_of[p])
        if numbers[slot] < 0:
            numbers[slot] = count
            places[count] = question_of[p]
            count += 1
        question_of[p] = numbers[slot]
    return count


@helper
def _look_up_answers(sieve, slots, shift, nodes, starts, answers, places, num_asked, ends, columns):
    """Write which negatives are answers of each question: columns (M,), those of q before ends[q + 1].

    Returns columns, which may have grown.
    """
    count = len(nodes)
    found = 0
    ends[0] = 0
    for q in range(num_asked):
        low, stop = starts[places[q]], starts[places[q] + 1]
        if found + count > len(columns):
            columns = _grown(columns, found, count)
        if stop - low < _SEARCH * count:
            for i in range(np.uint64(low), np.uint64(stop)):
                if not _may_hold(sieve, answers[i]) or (i > low and answers[i] == answers[i - _ONE]):
                    continue
                k = np.int64(slots[_slot(slots, shift, nodes, answers[i])])
                while 0 <= k < count and nodes[k] == answers[i]:
                    columns[found] = k
                    found += 1
                    k += 1
        else:
            for k in range(count):
                low = _first_not_below(answers, low, stop, nodes[k])
                if low < stop and answers[low] == nodes[k]:
                    columns[found] = k
                    found += 1
        ends[q + 1] = found
    return columns


@helper
def _num_pairs(low, starts, nodes):
    """How many questions the nodes answer in all."""
    total = 0
    for node in nodes:
        if low <= node < low + len(starts) - 1:
            total += starts[node - low + 1] - starts[node - low]
    return total


@helper
def _pairs_asked(low, starts, places, sieve, numbers, shift, asked, nodes, pairs):
    """Write (question + 1) << 32 | column for each question that is asked and a negative answers.

    `sieve` is scratch: most of the questions that a negative answers are turned away by their low bits.
    Returns pairs, which may have grown, and how many there are.
    """
    sieve.fill(np.uint64(0))
    for place in asked:
        _enter(sieve, place)
    count = 0
    for k in range(len(nodes)):
        if k + ROWS_AHEAD < len(nodes) and 0 <= nodes[k + ROWS_AHEAD] - low < len(starts) - 1:
            ask_for(places, starts[nodes[k + ROWS_AHEAD] - low])
        node = nodes[k] - low
        if not 0 <= node < len(starts) - 1:
            continue
        if count + starts[node + 1] - starts[node] > len(pairs):
            pairs = _grown(pairs, count, starts[node + 1] - starts[node])
        for i in range(np.uint64(starts[node]), np.uint64(starts[node + 1])):
            if not _may_hold(sieve, places[i]):
                continue
            question = np.int64(numbers[_slot(numbers, shift, asked, places[i])]) + 1
            pairs[count] = question << 32 | k
            count += question > 0 and (i == starts[node] or places[i] != places[i - _ONE])
    return pairs, count


@helper
def _look_up_questions(low, starts, places, sieve, numbers, shift, asked, nodes, pairs, ends, columns):
    """As `_look_up_answers`, by what each negative answers; `pairs` is scratch, returned with columns.

    `asked` are the places that `numbers` has.
    """
    pairs, count = _pairs_asked(low, starts, places, sieve, numbers, shift, asked, nodes, pairs)
    ends.fill(0)
    for i in range(count):
        ends[pairs[i] >> 32] += 1
    for q in range(1, len(ends)):
        ends[q] += ends[q - 1]
    columns = _grown(columns, 0, count)
    for i in range(count - 1, -1, -1):  # backwards, so that ends become begins and columns ascend
        question = pairs[i] >> 32
        ends[question] -= 1
        columns[ends[question]] = pairs[i] & 0xFFFFFFFF
    for q in range(len(ends) - 1):
        ends[q] = ends[q + 1]
    ends[len(ends) - 1] = count
    return pairs, columns


@helper
def _write(sieve, slots, shift, nodes, first, question_of, ends, columns, answer, out, written):
    """Append the positions of a chunk's edges, of which `first` is the first; returns both.

    Each edge's are those of its question and of all negatives like its own answer.
    """
    count = len(nodes)
    for p in range(len(question_of)):
        i = stop = 0
        if question_of[p] >= 0:
            i, stop = ends[question_of[p]], ends[question_of[p] + 1]
        if written + stop - i + count > len(out):
            out = _grown(out, written, stop - i + count)
        base = (first + p) * count
        own = -1
        if _may_hold(sieve, answer[first + p]):
            own = np.int64(slots[_slot(slots, shift, nodes, answer[first + p])])
        if own >= 0:
            while i < stop and columns[i] < own:
                out[written] = base + columns[i]
                written += 1
                i += 1
            same = own
            while same < count and nodes[same] == nodes[own]:
                out[written] = base + same
                written += 1
                same += 1
            if i < stop and columns[i] == own:
                i += same - own
        for j in range(i, stop):
            out[written + j - i] = base + columns[j]
        written += stop - i
    return out, written


@kernel(takes_long=True)
def false_negatives(
    keys: np.ndarray,
    lowest: int,
    key_shift: int,
    first: np.ndarray,
    starts: np.ndarray,
    answers: np.ndarray,
    low: int,
    node_starts: np.ndarray,
    node_places: np.ndarray,
    question: np.ndarray,
    answer: np.ndarray,
    negatives: np.ndarray,
) -> tuple[np.ndarray, int]:
    """Where a negative is a known answer of an edge's question, or repeats the edge's own answer.

    Args:
        keys: (J,) int64 ascending questions.
        lowest, key_shift, first: their `known_index.Directory`.
        starts: (J + 1,) integers; answers[starts[j]:starts[j + 1]] are those of question j, ascending,
            some of them perhaps twice.
        answers: node ids.
        low, node_starts, node_places: the same turned round: node low + i answers the questions
            node_places[node_starts[i]:node_starts[i + 1]], int32 places among `keys`; of length 1 if unknown.
        question: (B,) int64 what each edge asks.
        answer: (B,) int64 each edge's own answer.
        negatives: (C, K) int64 node ids, ascending in each row; C divides B.

    Returns:
        (M,) int64 positions in the flattened (C, P, K), ascending and distinct; how many answers were looked
        at.
    """
    chunks, count = negatives.shape
    edges = len(question) // chunks
    bits = 2
    while 1 << bits < 4 * count:
        bits += 1
    shift = np.uint64(64 - bits)
    slots = np.empty(1 << bits, np.int32)
    bits = 1
    while 1 << bits < 4 * edges:
        bits += 1
    numbers, number_shift = np.empty(1 << bits, np.int32), np.uint64(64 - bits)
    sieve = np.empty(1 << (_LOW_BITS - _WORD), np.uint64)
    asked_sieve = np.empty_like(sieve)
    places, question_of = np.empty(edges, np.int64), np.empty(edges, np.int64)
    columns, pairs = np.empty(4 * count, np.int32), np.empty(4 * count, np.int64)
    out, written = np.empty(_ROOM * len(question) + count, np.int64), 0
    looked_at = 0
    for c in range(chunks):
        nodes, begin = negatives[c], c * edges
        _enter_negatives(sieve, slots, shift, nodes)
        asking = question[begin : begin + edges]
        num_asked = _ask(
            keys, lowest, key_shift, first, starts, asking, numbers, number_shift, places, question_of
        )
        cost = 0
        for place in places[:num_asked]:
            ask_for(answers, starts[place])
            cost += min(starts[place + 1] - starts[place], _SEARCH * count)
        ends = np.empty(num_asked + 1, np.int64)  # ends[q + 1]: where the columns of question q end
        if len(node_starts) > 1 and PAIR_COST * _num_pairs(low, node_starts, nodes) < cost:
            pairs, columns = _look_up_questions(
                low,
                node_starts,
                node_places,
                asked_sieve,
                numbers,
                number_shift,
                places[:num_asked],
                nodes,
                pairs,
                ends,
                columns,
            )
        else:
            looked_at += cost
            columns = _look_up_answers(
                sieve, slots, shift, nodes, starts, answers, places, num_asked, ends, columns
            )
        out, written = _write(
            sieve, slots, shift, nodes, begin, question_of, ends, columns, answer, out, written
        )
    return out[:written], looked_at
