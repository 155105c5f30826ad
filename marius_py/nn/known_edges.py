"""Known edges among negatives (floor 1): edges and shared negatives in, positions to drop out; numpy only.

A drawn negative may be a true answer; training against it teaches a falsehood. `KnownEdges` indexes the
edges at hand, those of a step, and finds the negatives that make one of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from marius_py.types import SIDES, Side

_FILTER_MASK = (1 << 16) - 1
_LONG_PIECE = 24
"""Mean length from which pieces are copied one by one faster than value by value."""
_MOST_PLACES = 1 << 20
"""Entries of the largest table, chunks times nodes, that is made instead of searching."""
_SPARSE_IDS = 8
"""Ids for each edge up to which a table over all ids is worth its memory."""
_PIECE_COST = 16
"""Answers that are looked at in the time that it takes to begin with a question."""
_COST = 0.6
"""Answers of negatives that are looked at in the time of one answer of a question."""
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
    by_node: _Questions | None

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        own = sum(array.nbytes for array in (self.keys, self.starts, self.answers, self.low_bits))
        return own + (0 if self.by_node is None else self.by_node.nbytes)


@dataclass(frozen=True, slots=True)
class _Questions:
    """The same the other way round: node low + i answers the questions places[starts[i]:starts[i + 1]]."""

    low: int
    starts: np.ndarray
    places: np.ndarray
    """int32, positions of the questions among `keys`."""
    asked: np.ndarray
    """Scratch of a search, an int32 for each question, zeros in between."""

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for array in (self.starts, self.places, self.asked))


def _anchor_and_answer(edges: np.ndarray, side: Side) -> tuple[np.ndarray, np.ndarray]:
    return (edges[:, 0], edges[:, 2]) if side == "tail" else (edges[:, 2], edges[:, 0])


def _concatenate_ranges(starts: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All positions of the ranges [start, start + length), in order, and the range each belongs to."""
    total = int(lengths.sum())
    kind = _index_type(max(int(starts.max(initial=0)), 0) + total)
    before = np.cumsum(lengths) - lengths
    position = np.repeat((starts - before).astype(kind), lengths)
    position += np.arange(total, dtype=kind)
    return position, np.repeat(np.arange(len(lengths), dtype=kind), lengths)


def _index_type(largest: int) -> type[np.int32 | np.int64]:
    """Half the memory where it does: making arrays of this size is what takes the time."""
    return np.int32 if largest < 1 << 31 else np.int64


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
    by_node = _turn_round(starts, answer)
    return _Answers(key[starts], np.append(starts, len(key)), answer, answer.astype(np.uint16), by_node)


def _turn_round(starts: np.ndarray, answer: np.ndarray) -> _Questions | None:
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
    return _Questions(low, node_starts, pairs.astype(np.int32), np.zeros(len(starts), np.int32))


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
        return sum(answers.nbytes for answers in self._index.values())

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
        anchor, answer = _anchor_and_answer(edges, side)
        lookup = _Negatives(negatives)
        chunk = np.arange(len(edges)) // (len(edges) // len(negatives))
        owner, column = lookup.find(answer, chunk)
        repeated = owner * lookup.count + column
        if len(index.keys) == 0:
            return np.sort(repeated)
        # Edges of a chunk that ask the same question share its answers, or hubs would be searched repeatedly.
        key = np.where(edges[:, 1] < self._num_relations, anchor * self._num_relations + edges[:, 1], -1)
        order, first = _group_by(chunk, key)
        asking = order[first]
        askers = np.diff(first, append=len(order))
        place = np.minimum(np.searchsorted(index.keys, key[asking]), len(index.keys) - 1)
        question = np.flatnonzero(index.keys[place] == key[asking])
        asked, column = _find_answers(index, place[question], chunk[asking[question]], lookup)
        # Back from questions to the edges that ask them.
        asked = question[asked]
        position, hit = _concatenate_ranges(first[asked], askers[asked])
        kind = _index_type(len(edges) * lookup.count)
        known = (order * lookup.count).astype(kind)[position]
        known += column.astype(kind, copy=False)[hit]
        dropped = np.concatenate((known, repeated.astype(kind)))
        dropped.sort()  # np.unique hashes, which takes ten times as long
        dropped = dropped[np.concatenate(([True], dropped[1:] != dropped[:-1]))[: len(dropped)]]
        return dropped.astype(np.int64, copy=False)


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
    edge, column = _Negatives(negatives).find(answers, chunk)
    return np.sort(edge * negatives.shape[1] + column)


def _group_by(chunk: np.ndarray, key: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Edges in the order of (chunk, key), and where in that order each distinct pair begins."""
    low, num_chunks = int(key.min(initial=0)), int(chunk.max(initial=0)) + 1
    span = int(key.max(initial=0)) - low + 1
    if num_chunks * span < 1 << (62 - len(key).bit_length()):
        # One sort of plain integers is several times faster than np.unique with its inverse.
        bits = len(key).bit_length()
        packed = ((chunk * span + (key - low)) << bits) | np.arange(len(key))
        packed.sort()
        order, pair = packed & ((1 << bits) - 1), packed >> bits
        first = np.concatenate(([True], pair[1:] != pair[:-1]))
    else:
        order = np.lexsort((key, chunk))
        key, chunk = key[order], chunk[order]
        first = np.concatenate(([True], (key[1:] != key[:-1]) | (chunk[1:] != chunk[:-1])))
    return order, np.flatnonzero(first[: len(order)])


class _Negatives:
    """Negatives of a batch, made ready for looking up nodes among those of a chunk.

    Args:
        nodes: (C, K) int64 node ids.
    """

    def __init__(self, nodes: np.ndarray) -> None:
        self.nodes = nodes
        self.count = nodes.shape[1]
        self._low = int(nodes.min(initial=0))
        self._span = int(nodes.max(initial=0)) - self._low + 1
        offsets = np.arange(len(nodes))[:, None] * self._span - self._low
        if (nodes[:, 1:] >= nodes[:, :-1]).all():
            self._column = np.tile(np.arange(self.count), len(nodes))
            ids = (nodes + offsets).ravel()
        else:
            order = np.argsort(nodes, axis=1, kind="stable")
            self._column = order.ravel()
            ids = (np.take_along_axis(nodes, order, 1) + offsets).ravel()
        self._starts = np.flatnonzero(np.concatenate(([True], ids[1:] != ids[:-1]))[: len(ids)])
        self._occurs = np.diff(self._starts, append=len(ids))
        self._ids = ids[self._starts]
        self._place: np.ndarray | None = None
        if len(nodes) * self._span <= _MOST_PLACES:
            self._place = np.zeros(len(nodes) * self._span, np.int32)
            self._place[self._ids] = np.arange(1, len(self._ids) + 1, dtype=np.int32)

    @cached_property
    def low_bits(self) -> np.ndarray:
        """Which low bits a chunk's negatives have: (C, 2^16) bool."""
        present = np.zeros((len(self.nodes), _FILTER_MASK + 1), np.bool_)
        present[np.arange(len(self.nodes))[:, None], self.nodes & _FILTER_MASK] = True
        return present

    def find(self, nodes: np.ndarray, chunk: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """All (i, k) with negatives[chunk[i], k] == nodes[i], as two (M,) int64 arrays.

        Most nodes are no negative of their chunk. Where a table of all nodes would be large, a small one of
        low bits (node ids are random in order) turns most of them away before the search.
        """
        if self._place is not None:
            return self.match(nodes, chunk)
        likely = np.flatnonzero(self.low_bits[chunk, nodes & _FILTER_MASK])
        owner, column = self.match(nodes[likely], chunk[likely])
        return likely[owner], column

    def match(self, nodes: np.ndarray, chunk: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """As `find`, without asking low bits first."""
        if len(nodes) == 0 or len(self._ids) == 0:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        if int(nodes.min()) < self._low or int(nodes.max()) >= self._low + self._span:
            inside = np.flatnonzero((nodes >= self._low) & (nodes < self._low + self._span))
            owner, column = self.match(nodes[inside], chunk[inside])
            return inside[owner], column
        wanted = chunk * self._span
        wanted += nodes
        wanted -= self._low
        if self._place is not None:
            place = self._place[wanted]
            owner = np.flatnonzero(place)
            place = place[owner] - 1
        else:
            place = np.minimum(np.searchsorted(self._ids, wanted), len(self._ids) - 1)
            owner = np.flatnonzero(self._ids[place] == wanted)
            place = place[owner]
        position, hit = _concatenate_ranges(self._starts[place], self._occurs[place])
        return owner[hit], self._column[position]


def _find_answers(
    index: _Answers, place: np.ndarray, chunk: np.ndarray, negatives: _Negatives
) -> tuple[np.ndarray, np.ndarray]:
    """All answers of questions that are negatives of their chunk.

    Args:
        index: answers by question.
        place: (Q,) positions of the questions in the index.
        chunk: (Q,) ascending chunks that ask them.
        negatives: the batch's.

    Returns:
        Two (M,) int64 arrays: the question, and the column of the negative that answers it.
    """
    lengths = index.starts[place + 1] - index.starts[place]
    if index.by_node is not None:
        most = _COST * (int(lengths.sum()) + _PIECE_COST * len(place))
        found_by_node = _look_from_negatives(index.by_node, place, chunk, negatives.nodes, most)
        if found_by_node is not None:
            return found_by_node
    many = lengths > _MANY_ANSWERS * negatives.count
    few = np.flatnonzero(~many)
    asked, column = _look_through(index, place[few], chunk[few], negatives)
    found = [(few[asked], column)]
    # The answers of a question are in order: each negative of its chunk is searched among them.
    for question in np.flatnonzero(many).tolist():
        answers = index.answers[index.starts[place[question]] : index.starts[place[question] + 1]]
        wanted = negatives.nodes[chunk[question]]
        first = np.minimum(np.searchsorted(answers, wanted), len(answers) - 1)
        column = np.flatnonzero(answers[first] == wanted)
        found.append((np.full(len(column), question), column))
    asked, column = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return asked, column


def _look_from_negatives(
    index: _Questions, place: np.ndarray, chunk: np.ndarray, nodes: np.ndarray, most: float
) -> tuple[np.ndarray, np.ndarray] | None:
    """As `_find_answers`, by what each negative answers; None if that is more than `most` questions.

    Negatives drawn evenly are seldom hubs, while edges of hubs are many.
    """
    row = np.clip(nodes.ravel() - index.low, 0, len(index.starts) - 2)
    start = index.starts[row]
    lengths = index.starts[row + 1] - start
    lengths[row != nodes.ravel() - index.low] = 0
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    if total > most:
        return None
    position, owner = _concatenate_ranges(start, lengths)
    answered = index.places[position]
    bounds = np.searchsorted(chunk, np.arange(len(nodes) + 1)).tolist()
    offsets = [0, *ends.reshape(nodes.shape)[:, -1].tolist()]
    question = np.zeros(total, np.int32)
    for number, (first, last) in enumerate(pairwise(offsets)):
        mine = slice(bounds[number], bounds[number + 1])
        index.asked[place[mine]] = np.arange(mine.start + 1, mine.stop + 1, dtype=np.int32)
        np.take(index.asked, answered[first:last], out=question[first:last], mode="clip")
        index.asked[place[mine]] = 0
    hit = np.flatnonzero(question)
    return question[hit] - 1, owner[hit] % nodes.shape[1]


def _look_through(
    index: _Answers, place: np.ndarray, chunk: np.ndarray, negatives: _Negatives
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
    bounds = np.searchsorted(chunk, np.arange(len(negatives.nodes) + 1))
    offsets = np.concatenate(([0], ends))[bounds].tolist()
    for present, first, last in zip(negatives.low_bits, offsets[:-1], offsets[1:], strict=True):
        np.take(present, low[first:last], out=passes[first:last], mode="clip")
    likely = np.flatnonzero(passes)
    asked = np.searchsorted(ends, likely, side="right")
    found, column = negatives.match(index.answers[likely - ends[asked] + stop[asked]], chunk[asked])
    return asked[found], column


def _pieces(values: np.ndarray, start: np.ndarray, stop: np.ndarray) -> np.ndarray:
    """The pieces values[start:stop], each at least one long, one after another."""
    lengths = stop - start
    if int(lengths.sum()) < _LONG_PIECE * len(lengths):
        return np.take(values, _concatenate_ranges(start, lengths)[0])
    return np.concatenate([values[low:high] for low, high in zip(start.tolist(), stop.tolist(), strict=True)])
