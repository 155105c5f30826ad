"""Known edges by question (floor 1): keys and answers in, answers grouped in three forms out; numpy only.

A question is a known end and a relation, its answers the nodes at the other end. How negatives are found
among them depends on how many there are of either, so the index holds them as lists and turned round, and,
where `known_search` finds them, their low bits and, for hubs, tables.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from marius_py.pool import Pool

_SPARSE_IDS = 8
"""Ids for each edge up to which a table over all ids is worth its memory."""
_HUB = 256
"""Answers of a question from which a table may pay."""
_DENSE = 16
"""Ids for each answer up to which a question gets a table of all ids, as large as its other arrays."""


@dataclass(frozen=True, slots=True)
class Answers:
    """Answers grouped by question: those of question `keys[i]` are answers[starts[i]:starts[i + 1]]."""

    keys: np.ndarray
    starts: np.ndarray
    answers: np.ndarray
    asked: Pool[np.ndarray]
    """Scratch of searches, an int32 for each question, zeros in between."""
    by_node: Questions | None

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        arrays = (self.keys, self.starts, self.answers, *self.asked.free)
        own = sum(array.nbytes for array in arrays)
        return own + (0 if self.by_node is None else self.by_node.nbytes)


@dataclass(frozen=True, slots=True)
class SearchedAnswers(Answers):
    """Answers with what `known_search` looks at first."""

    low_bits: np.ndarray
    """Of the answers, uint16, in a quarter of the memory."""
    tables: Tables

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return super(SearchedAnswers, self).nbytes + self.low_bits.nbytes + self.tables.nbytes


@dataclass(frozen=True, slots=True)
class Questions:
    """The same the other way round: node low + i answers the questions places[starts[i]:starts[i + 1]]."""

    low: int
    starts: np.ndarray
    places: np.ndarray
    """int32, positions of the questions among `keys`."""

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for array in (self.starts, self.places))


@dataclass(frozen=True, slots=True)
class Tables:
    """Questions that a good part of all nodes answer: whether node low + i answers question places[j]."""

    low: int
    places: np.ndarray
    """Positions of the questions among `keys`, ascending."""
    answers: np.ndarray
    """(len(places), span) bool."""

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return self.places.nbytes + self.answers.nbytes


def concatenate_ranges(starts: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All positions of the ranges [start, start + length), in order, and the range each belongs to."""
    total = int(lengths.sum())
    kind = index_type(max(int(starts.max(initial=0)), 0) + total)
    before = np.cumsum(lengths) - lengths
    position = np.repeat((starts - before).astype(kind), lengths)
    position += np.arange(total, dtype=kind)
    return position, np.repeat(np.arange(len(lengths), dtype=kind), lengths)


def index_type(largest: int) -> type[np.int32 | np.int64]:
    """Half the memory where it does: making arrays of this size is what takes the time."""
    return np.int32 if largest < 1 << 31 else np.int64


def group_answers(key: np.ndarray, answer: np.ndarray) -> Answers:
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
    by_node = _turn_round(starts, answer)
    count = len(starts)
    asked = Pool(lambda: np.zeros(count, np.int32))
    return Answers(key[starts], np.append(starts, len(key)), answer, asked, by_node)


def with_tables(index: Answers) -> SearchedAnswers:
    """The same answers, made ready for `known_search`."""
    low_bits, tables = index.answers.astype(np.uint16), _tabulate(index.starts[:-1], index.answers)
    return SearchedAnswers(
        index.keys, index.starts, index.answers, index.asked, index.by_node, low_bits, tables
    )


def _tabulate(starts: np.ndarray, answer: np.ndarray) -> Tables:
    """Tables of the questions that many nodes answer, and at least one in `_DENSE` of the ids."""
    lengths = np.diff(starts, append=len(answer))
    hubs = np.flatnonzero(lengths >= _HUB)
    if len(hubs) == 0:
        return Tables(0, hubs, np.zeros((0, 0), np.bool_))
    low = int(answer.min())
    span = int(answer.max()) - low + 1
    places = hubs[lengths[hubs] * _DENSE >= span]
    answers = np.zeros((len(places), span), np.bool_)
    for row, place in zip(answers, places.tolist(), strict=True):
        row[answer[starts[place] : starts[place] + lengths[place]] - low] = True
    return Tables(low, places, answers)


def _turn_round(starts: np.ndarray, answer: np.ndarray) -> Questions | None:
    """Questions by answer; None where ids lie so far apart that a table of all would be large."""
    if len(answer) == 0 or len(starts) >= 1 << 31:
        return None
    low = int(answer.min())
    span = int(answer.max()) - low + 1
    if span > _SPARSE_IDS * len(answer) or span >= 1 << 31:
        return None
    pairs = (answer - low) << 32
    pairs |= np.repeat(np.arange(len(starts)), np.diff(starts, append=len(answer)))
    pairs.sort()
    lengths = np.bincount(pairs >> 32, minlength=span)
    node_starts = np.concatenate(([0], np.cumsum(lengths)))
    return Questions(low, node_starts, pairs.astype(np.int32))
