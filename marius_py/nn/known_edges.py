"""Known edges among negatives (floor 1): edges and shared negatives in, positions to drop out; numpy only.

A drawn negative may be a true answer; training against it teaches a falsehood. `KnownEdges` indexes the
edges at hand, those of a step, and finds the negatives that make one of them.
"""

from __future__ import annotations

import numpy as np

from marius_py.nn.known_index import Answers, concatenate_ranges, group_answers, index_type
from marius_py.nn.known_search import NegativeLookup, find_answers
from marius_py.types import SIDES, Side


def _anchor_and_answer(edges: np.ndarray, side: Side) -> tuple[np.ndarray, np.ndarray]:
    return (edges[:, 0], edges[:, 2]) if side == "tail" else (edges[:, 2], edges[:, 0])


class KnownEdges:
    """Index of known edges by (head, relation) and by (tail, relation).

    Args:
        edges: (E, 3) integers, head, relation, tail.
    """

    def __init__(self, edges: np.ndarray) -> None:
        self._num_relations = int(edges[:, 1].max(initial=0)) + 1
        self._index: dict[Side, Answers] = {}
        for side in SIDES:
            anchor, answer = _anchor_and_answer(edges, side)
            key = anchor.astype(np.int64)
            key *= self._num_relations
            key += edges[:, 1]
            self._index[side] = group_answers(key, answer)

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
        lookup = NegativeLookup(negatives)
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
        asked, column = find_answers(index, place[question], chunk[asking[question]], lookup)
        # Back from questions to the edges that ask them.
        asked = question[asked]
        position, hit = concatenate_ranges(first[asked], askers[asked])
        kind = index_type(len(edges) * lookup.count)
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
    edge, column = NegativeLookup(negatives).find(answers, chunk)
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
