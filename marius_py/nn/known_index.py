"""Known edges by question (floor 1): keys and answers in, answers grouped in three forms out; numpy only.

A question is a known end and a relation, its answers the nodes at the other end. How negatives are found
among them depends on how many there are of either, so the index holds them as lists and, where that pays,
turned round, and, where `known_search` finds them, their low bits and, for hubs, tables.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType

import numpy as np

from marius_py.pool import Pool
from marius_py.types import Side
from marius_py.workers import Workers

_SPARSE_IDS = 2
"""Ids for each edge up to which a table over all ids is worth its memory."""
_TURNING_COST = 4
"""Answers that a search looks at in the time that it takes to turn one round."""
_SIEVE = 32
"""Bits for each number: one that is not among them meets a bit that is set in some 2 to 3 %."""
_KEYS_A_BUCKET = 2
"""Questions for each entry of a directory, at least; at most twice as many, were they spread evenly."""
_LEAST_SHARE = 1 << 18
"""Edges from which a thread more pays for reading all of them."""
_SAMPLED = 256
"""Known ends of each share by which shares are made alike."""
_HUB = 256
"""Answers of a question from which a table may pay."""
_DENSE = 16
"""Ids for each answer up to which a question gets a table of all ids, as large as its other arrays."""


@dataclass(frozen=True, slots=True)
class Directory:
    """Where a compiled search for a key begins: those in bucket b, which is (key - lowest) >> shift, are
    keys[first[b]:first[b + 1]]. Without, it would wait for memory at every step of a binary search.
    """

    lowest: int
    shift: int
    first: np.ndarray
    """int32; of length 1 if there are no keys."""

    @classmethod
    def of(cls, keys: np.ndarray, compiled: ModuleType) -> Directory:
        """That of ascending keys (J,) int64, of `_KEYS_A_BUCKET` keys a bucket, were they spread evenly."""
        if not len(keys):
            return cls(0, 0, np.zeros(1, np.int32))
        lowest, span = int(keys[0]), int(keys[-1]) - int(keys[0])
        shift = (span // max(1, len(keys) // _KEYS_A_BUCKET)).bit_length()
        return cls(lowest, shift, compiled.directory(keys, shift))


@dataclass(frozen=True, slots=True)
class Answers:
    """Answers grouped by question: those of question `keys[i]` are answers[starts[i]:starts[i + 1]]."""

    keys: np.ndarray
    starts: np.ndarray
    answers: np.ndarray
    turned: TurnedRound
    directory: Directory | None
    """Of the keys, where compiled loops search them."""

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        arrays = [self.keys, self.starts, self.answers]
        if self.directory is not None:
            arrays.append(self.directory.first)
        own = sum(array.nbytes for array in arrays)
        by_node = self.turned.by_node
        return own + (0 if by_node is None else by_node.nbytes)


@dataclass(frozen=True, slots=True)
class SearchedAnswers(Answers):
    """Answers with what `known_search` looks at first."""

    low_bits: np.ndarray
    """Of the answers, uint16, in a quarter of the memory."""
    tables: Tables
    asked: Pool[np.ndarray]
    """Scratch of searches, an int32 for each question, zeros in between."""

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        scratch = sum(array.nbytes for array in self.asked.free)
        return super(SearchedAnswers, self).nbytes + self.low_bits.nbytes + self.tables.nbytes + scratch


@dataclass(frozen=True, slots=True)
class Questions:
    """The same the other way round: node low + i answers the questions places[starts[i]:starts[i + 1]]."""

    low: int
    starts: np.ndarray
    """int32."""
    places: np.ndarray
    """int32, positions of the questions among `keys`."""

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for array in (self.starts, self.places))


class TurnedRound:
    """Answers by node, made once searching without them has cost as much as making them. Thread-safe.

    Partitions come and go, and an index with them: where questions have few answers, or batches are few,
    turning it round would never pay. So at most twice as much is spent as if that had been known before.

    Args:
        starts, answers: of the `Answers`.
        low, span: answers lie in [low, low + span).
        compiled: as for `group_answers`.
    """

    def __init__(
        self, starts: np.ndarray, answers: np.ndarray, low: int, span: int, compiled: ModuleType | None
    ) -> None:
        self._starts, self._answers = starts, answers
        self._low, self._span = low, span
        self._turn_round = _turn_round if compiled is None else compiled.turn_round
        # Where ids lie far apart, a table of all would be large.
        self._possible = 0 < span <= _SPARSE_IDS * len(answers) and len(answers) < 1 << 31
        self._owed = 0.0
        self._lock = threading.Lock()
        self.by_node: Questions | None = None

    def make(self) -> None:
        """Make them now, if they are not too large."""
        if self._possible and self.by_node is None:
            turned = self._turn_round(self._starts, self._answers, self._low, self._span)
            self.by_node = Questions(self._low, *turned)

    def pay(self, answers: int, nodes: int) -> None:
        """Note a search without them: `answers` were looked at, where what `nodes` answer would have done."""
        if not self._possible or self.by_node is not None or not self._lock.acquire(blocking=False):
            return
        try:
            self._owed += max(0.0, answers - nodes * len(self._answers) / self._span)
            if self._owed >= _TURNING_COST * len(self._answers):
                self.make()
        finally:
            self._lock.release()


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


def group_answers(
    edges: np.ndarray,
    side: Side,
    num_relations: int,
    compiled: ModuleType | None = None,
    asking: np.ndarray | None = None,
    nodes: tuple[int, int] | None = None,
    threads: int = 1,
    drawn: np.ndarray | None = None,
) -> Answers:
    """Sort answers by question and, among those of one question, by id.

    Args:
        edges: (E, 3) integers, head, relation, tail.
        side: the end that answers.
        num_relations: more than any relation of `edges`.
        compiled: `kernels.numba_index`, if its loops are to be used.
        asking: (B, 3) edges that will ask: most or all of what none of them asks for is left out.
        nodes: no id of a node lies below the first or above the second; None: this is looked up.
        threads: that share in the work of compiled loops.
        drawn: (n,) ids of which negatives will be: most or all of the other answers are left out.
    """
    known, answering = ends(side)
    if drawn is not None and compiled is None:
        edges = edges[np.isin(edges[:, answering], drawn)]
    if asking is not None and compiled is None:
        edges = edges[np.isin(edges[:, known], asking[:, known])]
    anchor, answer = edges[:, known], edges[:, answering]
    if nodes is not None:
        (low, high), last = nodes, nodes[1]
    else:
        low, high = (int(answer.min()), int(answer.max())) if len(answer) else (0, -1)
        last = int(anchor.max(initial=0))
    bits = max(high, 0).bit_length()
    questions = (last + 1) * num_relations
    if questions < 1 << (62 - bits) and len(edges) < 1 << 31:
        # One sort of plain integers is several times faster than a sort by two keys.
        if compiled is None:
            packed = question_of(anchor, edges[:, 1], num_relations) << bits | answer
            packed.sort()
            keys, starts, answers = _split(packed, bits)
        else:
            asked = None if asking is None else question_of(asking[:, known], asking[:, 1], num_relations)
            sieves = (*_sieve_of(asked, compiled), *_sieve_of(drawn, compiled))

            def group(begin: int, stop: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
                packed = compiled.pack(edges, known, answering, num_relations, bits, *sieves, begin, stop)
                packed = compiled.ordered(packed, bits + questions.bit_length())
                answers = np.empty(len(packed), index_type(high + 1))
                return *compiled.split(packed, bits, answers), answers

            keys, starts, answers = _by_shares(group, _shares_of(anchor, last + 1, threads))
    else:
        key = question_of(anchor, edges[:, 1], num_relations)
        order = np.lexsort((answer, key))
        keys, starts = _first_of_each(key[order])
        answers = answer[order].astype(np.int64)
    turned = TurnedRound(starts, answers, low, high - low + 1, compiled)
    directory = None if compiled is None else Directory.of(keys, compiled)
    return Answers(keys, starts, answers, turned, directory)


def _shares_of(anchor: np.ndarray, end: int, threads: int) -> list[int]:
    """Ids (n + 1,) from 0 to `end` with as many known ends between each two, one share a thread that pays."""
    shares = max(1, min(threads, len(anchor) // _LEAST_SHARE))
    sample = np.sort(anchor[:: max(1, len(anchor) // (_SAMPLED * shares))])
    inner = [int(sample[len(sample) * share // shares]) for share in range(1, shares)]
    return [0, *inner, end]


def _by_shares(
    group: Callable[[int, int], tuple[np.ndarray, np.ndarray, np.ndarray]], bounds: Sequence[int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What `group` makes of the known ends between bounds, by a thread for each share, put together."""
    if len(bounds) == 2:
        return group(*bounds)
    with Workers(len(bounds) - 1, "marius-index") as pool:
        keys, starts, answers = (
            list(arrays) for arrays in zip(*pool.map(group, bounds[:-1], bounds[1:]), strict=True)
        )
    before = 0
    for number, (mine, theirs) in enumerate(zip(starts, answers, strict=True)):
        starts[number] = mine[:-1] + before
        before += len(theirs)
    starts.append(np.array([before], np.int32))
    return _joined(keys), _joined(starts), _joined(answers)


def _joined(arrays: list[np.ndarray]) -> np.ndarray:
    """One array of all, which are let go: the others of an index are still to be joined."""
    whole = np.concatenate(arrays)
    arrays.clear()
    return whole


def _sieve_of(numbers: np.ndarray | None, compiled: ModuleType) -> tuple[int, np.ndarray]:
    """What `kernels.numba_index.pack` tells numbers (n,) int64 by; None: it takes all."""
    if numbers is None:
        return 0, np.zeros(0, np.uint64)
    shift = 58 - (_SIEVE * len(numbers) >> 6).bit_length()
    sieve = np.zeros(1 << (58 - shift), np.uint64)
    compiled.sift(numbers, shift, sieve)
    return shift, sieve


def ends(side: Side) -> tuple[int, int]:
    """Columns of edges: of the known end, and of the one that answers, which stands at `side`."""
    return (0, 2) if side == "tail" else (2, 0)


def question_of(anchor: np.ndarray, relation: np.ndarray, num_relations: int) -> np.ndarray:
    """(E,) int64 a number for each known end and relation, all of them distinct."""
    key: np.ndarray = anchor.astype(np.int64)
    key *= num_relations
    key += relation
    return key


def _first_of_each(key: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct ones of ascending keys, and where each begins, with their number at the end."""
    if not len(key):
        return key, np.zeros(1, np.int64)
    starts = np.flatnonzero(np.concatenate(([True], key[1:] != key[:-1])))
    return key[starts], np.append(starts, len(key))


def _split(packed: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """As `kernels.numba_index.split`."""
    return *_first_of_each(packed >> bits), packed & ((1 << bits) - 1)


def with_tables(index: Answers) -> SearchedAnswers:
    """The distinct answers, made ready for `known_search`, which would find repeated ones again and again."""
    index = _without_repeats(index)
    low_bits, tables = index.answers.astype(np.uint16), _tabulate(index.starts[:-1], index.answers)
    index.turned.make()
    return SearchedAnswers(
        index.keys,
        index.starts,
        index.answers,
        index.turned,
        index.directory,
        low_bits,
        tables,
        Pool(lambda: np.zeros(len(index.keys), np.int32)),
    )


def _without_repeats(index: Answers) -> Answers:
    """Each answer of a question once: the index itself where that is so."""
    starts, answers = index.starts, index.answers
    is_new = np.ones(len(answers) + 1, np.bool_)
    np.not_equal(answers[1:], answers[:-1], out=is_new[1:-1])
    is_new[starts] = True
    if is_new.all():
        return index
    starts = np.concatenate(([0], np.cumsum(is_new)))[starts]
    answers = answers[is_new[:-1]]
    low = int(answers.min())
    turned = TurnedRound(starts, answers, low, int(answers.max()) - low + 1, None)
    return Answers(index.keys, starts, answers, turned, index.directory)


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


def _turn_round(starts: np.ndarray, answer: np.ndarray, low: int, span: int) -> tuple[np.ndarray, np.ndarray]:
    """As `kernels.numba_index.turn_round`."""
    pairs = (answer - low) << 32
    pairs |= np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    pairs.sort()
    lengths = np.bincount(pairs >> 32, minlength=span)
    return np.concatenate(([0], np.cumsum(lengths))).astype(np.int32), pairs.astype(np.int32)
