"""Known edges among negatives (floor 1): edges and shared negatives in, positions to drop out; numpy only.

A drawn negative may be a true answer; training against it teaches a falsehood. `KnownEdges` indexes the
edges at hand, those of a step, and finds the negatives that make one of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from marius_py.types import SIDES, Side

_FILTER_MASK = (1 << 16) - 1
_LONG_PIECE = 24
"""Mean length from which pieces are copied one by one faster than value by value."""
_MANY_ANSWERS = 64
"""Answers for each negative from which searching them is faster than looking at all of them."""


@dataclass(frozen=True, slots=True)
class _Answers:
    """Answers grouped by question: those of question `keys[i]` are answers[starts[i]:starts[i + 1]]."""

    keys: np.ndarray
    starts: np.ndarray
    answers: np.ndarray
    low_bits: np.ndarray
    """Of the answers, uint16: what the search looks at first, in a quarter of the memory."""


def _anchor_and_answer(edges: np.ndarray, side: Side) -> tuple[np.ndarray, np.ndarray]:
    return (edges[:, 0], edges[:, 2]) if side == "tail" else (edges[:, 2], edges[:, 0])


def _concatenate_ranges(starts: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All positions of the ranges [start, start + length), in order, and the range each belongs to."""
    owner = np.repeat(np.arange(len(lengths)), lengths)
    before = np.cumsum(lengths) - lengths
    return np.arange(len(owner)) + (starts - before)[owner], owner


def _group(key: np.ndarray, answer: np.ndarray) -> _Answers:
    """Sort answers by question and, among those of one question, by id; `key` may be overwritten."""
    bits = int(answer.max(initial=0)).bit_length()
    if int(key.max(initial=0)) < 1 << (62 - bits):
        # One sort of plain integers is several times faster than a sort by two keys.
        key <<= bits
        key |= answer
        key.sort()
        answer = key & ((1 << bits) - 1)
        key >>= bits
    else:
        order = np.lexsort((answer, key))
        key, answer = key[order], answer[order].astype(np.int64)
    starts = (
        np.flatnonzero(np.concatenate(([True], key[1:] != key[:-1]))) if len(key) else np.zeros(0, np.int64)
    )
    return _Answers(key[starts], np.append(starts, len(key)), answer, answer.astype(np.uint16))


class KnownEdges:
    """Index of known edges by (head, relation) and by (tail, relation).

    Args:
        edges: (E, 3) integers, head, relation, tail.
    """

    def __init__(self, edges: np.ndarray) -> None:
        self._num_relations = int(edges[:, 1].max(initial=0)) + 1
        self._index: dict[Side, _Answers] = {}
        for side in SIDES:
            anchor, answer = _anchor_and_answer(edges, side)
            key = anchor.astype(np.int64)
            key *= self._num_relations
            key += edges[:, 1]
            self._index[side] = _group(key, answer)

    @property
    def nbytes(self) -> int:
        """Bytes of the index."""
        return sum(
            array.nbytes
            for answers in self._index.values()
            for array in (answers.keys, answers.starts, answers.answers, answers.low_bits)
        )

    def false_negatives(self, edges: np.ndarray, negatives: np.ndarray, side: Side) -> np.ndarray:
        """Where a negative makes a known edge or repeats the edge's own answer.

        Args:
            edges: (B, 3) int64 head, relation, tail of a batch.
            negatives: (C, K) int64 node ids that replace the `side` end of the chunk's edges.
            side: the corrupted end.

        Returns:
            (M,) int64 positions in the flattened (C, P, K), ascending and distinct.
        """
        index = self._index[side]
        anchor, _ = _anchor_and_answer(edges, side)
        repeated = own_answers(edges, negatives, side)
        num_keys = len(index.keys)
        if num_keys == 0:
            return repeated
        chunk = np.arange(len(edges)) // (len(edges) // len(negatives))
        key = anchor * self._num_relations + edges[:, 1]
        place = np.minimum(np.searchsorted(index.keys, key), num_keys - 1)
        asks = np.flatnonzero((index.keys[place] == key) & (edges[:, 1] < self._num_relations))
        # Edges of a chunk that ask the same question share its answers, or hubs would be searched repeatedly.
        question, question_of = np.unique(chunk[asks] * num_keys + place[asks], return_inverse=True)
        question_chunk, place = np.divmod(question, num_keys)
        asked, column = _find_answers(index, place, question_chunk, negatives)
        # Back from questions to the edges that ask them.
        order = np.argsort(question_of, kind="stable")
        askers = np.bincount(question_of, minlength=len(question))
        first = np.cumsum(askers) - askers
        position, hit = _concatenate_ranges(first[asked], askers[asked])
        known: np.ndarray = asks[order[position]] * negatives.shape[1] + column[hit]
        dropped = np.concatenate((known, repeated))
        dropped.sort()  # np.unique hashes, which takes ten times as long
        dropped = dropped[np.concatenate(([True], dropped[1:] != dropped[:-1]))[: len(dropped)]]
        return dropped


def own_answers(edges: np.ndarray, negatives: np.ndarray, side: Side) -> np.ndarray:
    """As `KnownEdges.false_negatives` with nothing known but the edges themselves.

    Args:
        edges: (B, 3) int64 head, relation, tail.
        negatives: (C, K) int64 node ids.
        side: the corrupted end.

    Returns:
        (M,) int64 positions in the flattened (C, P, K), ascending and distinct.
    """
    answers = _anchor_and_answer(edges, side)[1]
    chunk = np.arange(len(answers)) // (len(answers) // len(negatives))
    edge, column = _find(answers, chunk, negatives)
    return np.sort(edge * negatives.shape[1] + column)


def _find(nodes: np.ndarray, chunk: np.ndarray, negatives: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All (i, k) with negatives[chunk[i], k] == nodes[i], as two (M,) int64 arrays.

    Most nodes are no negative of their chunk. A small table of low bits (node ids are random in order) turns
    most of them away before the search.
    """
    likely = np.flatnonzero(_low_bits_of(negatives)[chunk, nodes & _FILTER_MASK])
    owner, column = _match(nodes[likely], chunk[likely], negatives)
    return likely[owner], column


def _find_answers(
    index: _Answers, place: np.ndarray, chunk: np.ndarray, negatives: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """All answers of questions that are negatives of their chunk.

    Args:
        index: answers by question.
        place: (Q,) positions of the questions in the index.
        chunk: (Q,) ascending chunks that ask them.
        negatives: (C, K) int64 node ids.

    Returns:
        Two (M,) int64 arrays: the question, and the column of the negative that answers it.
    """
    many = index.starts[place + 1] - index.starts[place] > _MANY_ANSWERS * negatives.shape[1]
    few = np.flatnonzero(~many)
    asked, column = _look_through(index, place[few], chunk[few], negatives)
    found = [(few[asked], column)]
    # The answers of a question are in order: each negative of its chunk is searched among them.
    for question in np.flatnonzero(many).tolist():
        answers = index.answers[index.starts[place[question]] : index.starts[place[question] + 1]]
        wanted = negatives[chunk[question]]
        first = np.minimum(np.searchsorted(answers, wanted), len(answers) - 1)
        column = np.flatnonzero(answers[first] == wanted)
        found.append((np.full(len(column), question), column))
    asked, column = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return asked, column


def _look_through(
    index: _Answers, place: np.ndarray, chunk: np.ndarray, negatives: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """As `_find_answers`, for questions whose answers are looked at one by one.

    Hardly any answer is a negative: all that is made for each is a copy of its low bits and whether a
    negative has the same.
    """
    start, stop = index.starts[place], index.starts[place + 1]
    ends = np.cumsum(stop - start)
    if len(ends) == 0 or ends[-1] == 0:
        none = np.zeros(0, np.int64)
        return none, none
    low = _pieces(index.low_bits, start, stop)
    passes = np.empty(len(low), np.bool_)
    bounds = np.searchsorted(chunk, np.arange(len(negatives) + 1))
    offsets = np.concatenate(([0], ends))[bounds].tolist()
    for present, first, last in zip(_low_bits_of(negatives), offsets[:-1], offsets[1:], strict=True):
        np.take(present, low[first:last], out=passes[first:last], mode="clip")
    likely = np.flatnonzero(passes)
    asked = np.searchsorted(ends, likely, side="right")
    found, column = _match(index.answers[likely - ends[asked] + stop[asked]], chunk[asked], negatives)
    return asked[found], column


def _pieces(values: np.ndarray, start: np.ndarray, stop: np.ndarray) -> np.ndarray:
    """The pieces values[start:stop], each at least one long, one after another."""
    lengths = stop - start
    if int(lengths.sum()) < _LONG_PIECE * len(lengths):
        return np.take(values, _concatenate_ranges(start, lengths)[0])
    return np.concatenate([values[low:high] for low, high in zip(start.tolist(), stop.tolist(), strict=True)])


def _low_bits_of(negatives: np.ndarray) -> np.ndarray:
    """Which low bits a chunk's negatives have: (C, 2^16) bool."""
    present = np.zeros((len(negatives), _FILTER_MASK + 1), np.bool_)
    present[np.arange(len(negatives))[:, None], negatives & _FILTER_MASK] = True
    return present


def _match(nodes: np.ndarray, chunk: np.ndarray, negatives: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All (i, k) with negatives[chunk[i], k] == nodes[i], as two (M,) int64 arrays, by search."""
    if len(nodes) == 0:
        return nodes, nodes
    span = int(max(negatives.max(), nodes.max())) + 1
    order = np.argsort(negatives, axis=1, kind="stable")
    offsets = np.arange(len(negatives))[:, None] * span
    sorted_ids = (np.take_along_axis(negatives, order, 1) + offsets).ravel()
    wanted = nodes + chunk * span
    first = np.minimum(np.searchsorted(sorted_ids, wanted, side="left"), len(sorted_ids) - 1)
    # How often an id occurs is asked where it was found: a second search would take as long as the first.
    starts = np.flatnonzero(np.concatenate(([True], sorted_ids[1:] != sorted_ids[:-1])))
    occurs = np.zeros(len(sorted_ids), np.int64)
    occurs[starts] = np.diff(starts, append=len(sorted_ids))
    position, owner = _concatenate_ranges(first, np.where(sorted_ids[first] == wanted, occurs[first], 0))
    return owner, order.ravel()[position]
