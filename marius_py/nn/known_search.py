"""Negatives among known answers (floor 1): questions and negatives in, pairs of both out; numpy only.

Four ways to the same pairs, of which the cheapest is taken: the answers of a question looked up among the
negatives of its chunk, those negatives searched among the answers or looked up in the question's table, or
the questions that each negative answers.
"""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise

import numpy as np

from marius_py.nn.known_index import SearchedAnswers, Tables, concatenate_ranges, index_type

_FILTER_MASK = (1 << 16) - 1
_LONG_PIECE = 24
"""Mean length from which pieces are copied one by one faster than value by value."""
_MOST_PLACES = 1 << 20
"""Entries of the largest table, chunks times nodes, that is made instead of searching."""
_PIECE_COST = 16
"""Answers that are looked at in the time that it takes to begin with a question."""
_COST = 0.6
"""Answers of negatives that are looked at in the time of one answer of a question."""
_MANY_ANSWERS = 64
"""Answers for each negative from which searching them is faster than looking at all of them."""


class NegativeLookup:
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
        position, hit = concatenate_ranges(self._starts[place], self._occurs[place])
        return owner[hit], self._column[position]


def find_false_negatives(
    index: SearchedAnswers, question: np.ndarray, answer: np.ndarray, negatives: np.ndarray
) -> np.ndarray:
    """Where a negative is a known answer of an edge's question, or repeats the edge's own answer.

    Args:
        index: answers by question.
        question: (B,) int64 what each edge asks.
        answer: (B,) int64 each edge's own answer.
        negatives: (C, K) int64 node ids; C divides B.

    Returns:
        (M,) int64 positions in the flattened (C, P, K), ascending and distinct.
    """
    lookup = NegativeLookup(negatives)
    chunk = np.arange(len(question)) // (len(question) // len(negatives))
    owner, column = lookup.find(answer, chunk)
    repeated = owner * lookup.count + column
    if len(index.keys) == 0:
        return np.sort(repeated)
    # Edges of a chunk that ask the same question share its answers, or hubs would be searched repeatedly.
    order, first = _group_by(chunk, question)
    asking = order[first]
    askers = np.diff(first, append=len(order))
    place = np.minimum(np.searchsorted(index.keys, question[asking]), len(index.keys) - 1)
    is_known = np.flatnonzero(index.keys[place] == question[asking])
    asked, column = find_answers(index, place[is_known], chunk[asking[is_known]], lookup)
    # Back from questions to the edges that ask them.
    asked = is_known[asked]
    position, hit = concatenate_ranges(first[asked], askers[asked])
    kind = index_type(len(question) * lookup.count)
    known = (order * lookup.count).astype(kind)[position]
    known += column.astype(kind, copy=False)[hit]
    dropped = np.concatenate((known, repeated.astype(kind)))
    dropped.sort()  # np.unique hashes, which takes ten times as long
    dropped = dropped[np.concatenate(([True], dropped[1:] != dropped[:-1]))[: len(dropped)]]
    return dropped.astype(np.int64, copy=False)


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


def find_answers(
    index: SearchedAnswers, place: np.ndarray, chunk: np.ndarray, negatives: NegativeLookup
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
    if len(index.tables.places):
        # The negatives of a hub's question are looked up one by one in its table, not its answers in theirs.
        row = np.searchsorted(index.tables.places, place)
        row[row == len(index.tables.places)] = 0
        dense = (index.tables.places[row] == place) & (lengths > negatives.count)
        if dense.any():
            hubs, others = np.flatnonzero(dense), np.flatnonzero(~dense)
            asked, column = _look_up(index.tables, row[hubs], negatives.nodes[chunk[hubs]])
            found = _find_listed(index, place[others], chunk[others], lengths[others], negatives)
            return np.concatenate((hubs[asked], others[found[0]])), np.concatenate((column, found[1]))
    return _find_listed(index, place, chunk, lengths, negatives)


def _look_up(tables: Tables, row: np.ndarray, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which of the nodes (Q, K) answer the questions of the tables' rows (Q,): question and column."""
    span = tables.answers.shape[1]
    column = np.clip(nodes - tables.low, 0, span - 1)
    answers = np.take(tables.answers.ravel(), column + row[:, None] * span)
    answers &= column == nodes - tables.low
    asked, position = np.nonzero(answers)
    return asked, position


def _find_listed(
    index: SearchedAnswers,
    place: np.ndarray,
    chunk: np.ndarray,
    lengths: np.ndarray,
    negatives: NegativeLookup,
) -> tuple[np.ndarray, np.ndarray]:
    """As `find_answers`, from lists alone; `lengths` are those of the questions' answers."""
    most = _COST * (int(lengths.sum()) + _PIECE_COST * len(place))
    found_by_node = _look_from_negatives(index, place, chunk, negatives.nodes, most)
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
    index: SearchedAnswers, place: np.ndarray, chunk: np.ndarray, nodes: np.ndarray, most: float
) -> tuple[np.ndarray, np.ndarray] | None:
    """As `find_answers`, by what each negative answers; None if that is more than `most` questions.

    Negatives drawn evenly are seldom hubs, while edges of hubs are many.
    """
    by_node = index.turned.by_node
    if by_node is None:
        return None
    row = np.clip(nodes.ravel() - by_node.low, 0, len(by_node.starts) - 2)
    start = by_node.starts[row]
    lengths = by_node.starts[row + 1] - start
    lengths[row != nodes.ravel() - by_node.low] = 0
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    if total > most:
        return None
    position, owner = concatenate_ranges(start, lengths)
    answered = by_node.places[position]
    bounds = np.searchsorted(chunk, np.arange(len(nodes) + 1)).tolist()
    offsets = [0, *ends.reshape(nodes.shape)[:, -1].tolist()]
    question = np.zeros(total, np.int32)
    for number, (first, last) in enumerate(pairwise(offsets)):
        mine = slice(bounds[number], bounds[number + 1])
        with index.asked.lend() as asked:
            asked[place[mine]] = np.arange(mine.start + 1, mine.stop + 1, dtype=np.int32)
            np.take(asked, answered[first:last], out=question[first:last], mode="clip")
            asked[place[mine]] = 0
    hit = np.flatnonzero(question)
    return question[hit] - 1, owner[hit] % nodes.shape[1]


def _look_through(
    index: SearchedAnswers, place: np.ndarray, chunk: np.ndarray, negatives: NegativeLookup
) -> tuple[np.ndarray, np.ndarray]:
    """As `find_answers`, for questions whose answers are looked at one by one.

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
    begins = np.searchsorted(likely, ends - (stop - start))  # fewer to search than the other way round
    asked = np.repeat(np.arange(len(place)), np.diff(begins, append=len(likely)))
    found, column = negatives.match(index.answers[likely - ends[asked] + stop[asked]], chunk[asked])
    return asked[found], column


def _pieces(values: np.ndarray, start: np.ndarray, stop: np.ndarray) -> np.ndarray:
    """The pieces values[start:stop], each at least one long, one after another."""
    lengths = stop - start
    if int(lengths.sum()) < _LONG_PIECE * len(lengths):
        return np.take(values, concatenate_ranges(start, lengths)[0])
    return np.concatenate([values[low:high] for low, high in zip(start.tolist(), stop.tolist(), strict=True)])
