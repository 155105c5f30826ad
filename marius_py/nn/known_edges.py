"""Known edges among negatives (floor 1): edges and shared negatives in, positions to drop out; numpy only.

A drawn negative may be a true answer; training against it teaches a falsehood. `KnownEdges` indexes the
edges at hand, those of a step, and finds the negatives that make one of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from marius_py.nn.kernels.host import compiled_index, compiled_known
from marius_py.nn.known_index import (
    Answers,
    Questions,
    SearchedAnswers,
    ends,
    group_answers,
    question_of,
    with_tables,
)
from marius_py.nn.known_search import NegativeLookup, find_false_negatives
from marius_py.types import SIDES, Side

_LEAST_EDGES = 1 << 14
"""Edges at hand from which a compiled search pays."""


class IdBounds(NamedTuple):
    """Where ids of edges lie.

    Attributes:
        nodes: first and last that are possible.
        num_relations: more than any relation.
    """

    nodes: tuple[int, int]
    num_relations: int


class KnownEdges:
    """Index of known edges by (head, relation) and by (tail, relation).

    Several threads may search it at once.

    Args:
        edges: (E, 3) integers, head, relation, tail.
        compiled: search with a loop compiled with Numba if there are many.
        asking: (B, 3) edges that will be asked for, if only some will: nobody else may be.
        within: bounds of the ids, if they are known; looking them up takes a quarter of the time.
        threads: that share in making the index.
        share: of all nodes, those that the edges lie between, above 0.
        drawn: corrupted side → (n,) int64 ids, if all negatives will be among these: then nothing else may be
            asked, nor what questions weigh.
    """

    def __init__(
        self,
        edges: np.ndarray,
        compiled: bool = True,
        asking: np.ndarray | None = None,
        within: IdBounds | None = None,
        threads: int = 1,
        share: float = 1.0,
        drawn: Mapping[Side, np.ndarray] | None = None,
    ) -> None:
        self._num_relations = int(edges[:, 1].max(initial=0)) + 1 if within is None else within.num_relations
        nodes = None if within is None else within.nodes
        self._asking = asking
        self._is_partial = drawn is not None
        self._share = share
        self._mean_answers: dict[Side, float] = {}
        self._compiled = compiled_known() if compiled and len(edges) >= _LEAST_EDGES else None
        making = None if self._compiled is None else compiled_index()
        self._index: dict[Side, Answers] = {}
        self._searched: dict[Side, SearchedAnswers] = {}
        for side in SIDES:
            self._index[side] = group_answers(
                edges, side, self._num_relations, making, asking, nodes, threads, (drawn or {}).get(side)
            )
            if self._compiled is None:
                self._searched[side] = with_tables(self._index[side])

    @property
    def nbytes(self) -> int:
        """Bytes of the index."""
        held = sum(answers.nbytes for answers in (self._searched or self._index).values())
        for side, searched in self._searched.items():
            counted = self._index[side]
            if counted.answers is not searched.answers:  # they have repeats; all else is the same
                held += counted.starts.nbytes + counted.answers.nbytes
        return held

    def false_negatives(self, edges: np.ndarray, negatives: np.ndarray, side: Side) -> np.ndarray:
        """Where a negative makes a known edge or repeats the edge's own answer.

        Args:
            edges: (B, 3) int64 head, relation, tail of a batch.
            negatives: (C, K) int64 node ids that replace the `side` end of the chunk's edges.
            side: the corrupted end.

        Returns:
            (M,) int64 positions in the flattened (C, P, K), ascending and distinct.
        """
        known, answering = ends(side)
        answer = edges[:, answering]
        question = question_of(edges[:, known], edges[:, 1], self._num_relations)
        question[edges[:, 1] >= self._num_relations] = -1
        if self._compiled is None:
            return find_false_negatives(self._searched[side], question, answer, negatives)
        index = self._index[side]
        if (negatives[:, 1:] >= negatives[:, :-1]).all():
            return self._find(index, question, answer, negatives)
        order = np.argsort(negatives, axis=1, kind="stable")
        found = self._find(index, question, answer, np.take_along_axis(negatives, order, 1))
        edge, column = np.divmod(found, negatives.shape[1])
        chunk = edge // (len(edges) // len(negatives))
        return np.sort(edge * negatives.shape[1] + order[chunk, column])

    def question_weights(self, edges: np.ndarray, side: Side) -> np.ndarray:
        """What each edge counts if all questions count alike, however many known edges answer them.

        One by the answers of its question, times their mean: 1 on average over the edges indexed, or over
        those that ask. Where the edges at hand lie between a share of the nodes only, answers elsewhere are
        estimated: each other answer to the question of an edge at hand is among them with that probability.
        The edges of a question with few answers mostly meet no other one, so that it counts too much, up to
        1 / share times.

        Args:
            edges: (B, 3) int64 head, relation, tail of a batch, known edges among them.
            side: the end that is asked for.

        Returns:
            (B,) float32.
        """
        assert not self._is_partial, "an index for drawn nodes lacks other answers"
        if side not in self._mean_answers:
            self._mean_answers[side] = self._mean(side)
        answers = _estimated(self._num_answers(edges, side), self._share)
        weights: np.ndarray = self._mean_answers[side] / answers
        return weights.astype(np.float32)

    def _mean(self, side: Side) -> float:
        """Mean number of answers of a question; an index of some questions holds rather large ones."""
        index = self._index[side]
        if len(index.keys) == 0:
            return 1.0
        if self._asking is not None:
            return 1 / float(np.mean(1 / _estimated(self._num_answers(self._asking, side), self._share)))
        answers = np.diff(index.starts)
        return len(index.answers) / float(np.sum(answers / _estimated(answers, self._share)))

    def _num_answers(self, edges: np.ndarray, side: Side) -> np.ndarray:
        """Known answers (B,) int64 of the questions of edges (B, 3); 1 where none is known."""
        index, (known, _) = self._index[side], ends(side)
        if len(index.keys) == 0:
            return np.ones(len(edges), np.int64)
        question = question_of(edges[:, known], edges[:, 1], self._num_relations)
        place = np.minimum(np.searchsorted(index.keys, question), len(index.keys) - 1)
        counts = index.starts[place + 1] - index.starts[place]
        is_known = (index.keys[place] == question) & (edges[:, 1] < self._num_relations)
        return np.where(is_known, counts, 1)

    def _find(
        self, index: Answers, question: np.ndarray, answer: np.ndarray, negatives: np.ndarray
    ) -> np.ndarray:
        """As `find_false_negatives`, compiled; negatives ascend in each row."""
        assert self._compiled is not None
        assert index.directory is not None
        by_node = index.turned.by_node or Questions(0, np.zeros(1, np.int32), np.zeros(0, np.int32))
        arrays = (np.ascontiguousarray(one, np.int64) for one in (question, answer, negatives))
        found: np.ndarray
        found, looked_at = self._compiled.false_negatives(
            index.keys,
            index.directory.lowest,
            index.directory.shift,
            index.directory.first,
            index.starts,
            index.answers,
            by_node.low,
            by_node.starts,
            by_node.places,
            *arrays,
        )
        index.turned.pay(looked_at, self._compiled.PAIR_COST * negatives.size)
        return found


def _estimated(answers: np.ndarray, share: float) -> np.ndarray:
    """Answers that questions have in the whole graph, given those at hand, the asking edge's own included."""
    return 1 + (answers - 1) / share


def own_answers(edges: np.ndarray, negatives: np.ndarray, side: Side) -> np.ndarray:
    """As `KnownEdges.false_negatives` with nothing known but the edges themselves.

    Args:
        edges: (B, 3) int64 head, relation, tail.
        negatives: (C, K) int64 node ids.
        side: the corrupted end.

    Returns:
        (M,) int64 positions in the flattened (C, P, K), ascending and distinct.
    """
    answers = edges[:, ends(side)[1]]
    chunk = np.arange(len(answers)) // (len(answers) // len(negatives))
    edge, column = NegativeLookup(negatives).find(answers, chunk)
    return np.sort(edge * negatives.shape[1] + column)
