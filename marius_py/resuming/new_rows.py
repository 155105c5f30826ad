"""Initial rows of new nodes (floor 5): an old run and the extended graph in, rows by new id out."""

from __future__ import annotations

import logging
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from marius_py.errors import ConfigError, MariusError
from marius_py.graph import Graph
from marius_py.nn.decoders import ClosedFormDecoder
from marius_py.nn.decoders.base import name_of
from marius_py.nn.micro_batches import is_out_of_memory
from marius_py.nn.model import LinkPredictionModel
from marius_py.prepare.extend import IdShift
from marius_py.run import Run
from marius_py.storage.edge_writer import edge_dtype
from marius_py.streams import Purpose, stream
from marius_py.types import SIDES, Side

logger = logging.getLogger(__name__)

Init = Literal["neighbors", "random"]
_BLOCK_EDGES = 1 << 18
_ASKED_BYTES = 24
"""Of an edge between a new and an old node, as it is held: three int32, and sorting."""
_SAMPLE_RANGES, _RANGE_EDGES = 64, 64
"""Train edges of the old graph whose scores are looked at: so many ranges of so many."""
_PRIOR_EDGES = 10
"""Edges of the mean score that count with those of each question: of a rare one there are few or none."""


class _Asked(NamedTuple):
    """Edges of new nodes with old ones, (n,) each: what is asked for the new node, and of which old one.

    Attributes:
        place: of the new node among those at hand. anchor: old id of the old node.
        question: relation · 2 + number in `SIDES` of the side on which the new node stands.
    """

    place: NDArray[np.integer]
    anchor: NDArray[np.integer]
    question: NDArray[np.integer]


class _Means(NamedTuple):
    """Of m new nodes: sums (m, D) of answers, sums (m,) of their anchors' lengths and of what trained answers
    score, and how many they are."""

    sums: NDArray[np.float64]
    lengths: NDArray[np.float64]
    scores: NDArray[np.float64]
    counts: NDArray[np.int64]


class NewRows:
    """Initial rows of new nodes, made for a bounded range of them at a time, in ascending order."""

    def __init__(
        self,
        old: Run,
        model: LinkPredictionModel,
        graph: Graph,
        shift: IdShift,
        seed: int,
        init: Init,
        memory_bytes: int,
    ) -> None:
        self._old = old
        self._model = model
        self._graph = graph
        self._shift = shift
        self._seed = seed
        self._init = init
        self._memory_bytes = memory_bytes
        self._ask_relations = model.decoder.relation_dim > 0
        self._sum_bytes = 8 * old.dim + 16
        self._size = max(1, memory_bytes // 2 // self._sum_bytes)
        self._first = self._last = 0
        self._ready = np.empty((0, old.dim), np.float32)

    def rows(self, start: int, stop: int) -> NDArray[np.float32]:
        """Rows (m, D) of the new nodes among new ids start..stop, ascending."""
        low, high = np.searchsorted(self._shift.new, (start, stop)).tolist()
        parts = []
        while low < high:
            if not self._first <= low < self._last:
                self._first, self._last = low, min(low + self._size, len(self._shift.new))
                self._ready = self._make(self._first, self._last)
            until = min(high, self._last)
            parts.append(self._ready[low - self._first : until - self._first])
            low = until
        return np.concatenate(parts)

    def _make(self, first: int, last: int) -> NDArray[np.float32]:
        """Rows of the new nodes first … last among the new ones."""
        rows = np.empty((last - first, self._old.dim), np.float32)
        # As of the nodes after the old ones: an id of the new graph was another node's in the old one, whose
        # row began with the draw that would come again.
        self._model.init_nodes(rows, self._old.num_nodes + first, self._seed)
        if self._init == "neighbors":
            self._from_neighbors(self._shift.new[first:last], rows)
        return rows

    def _from_neighbors(self, ids: NDArray[np.int64], rows: NDArray[np.float32]) -> None:
        """Replace the rows of nodes that `_asked` finds an edge of with an old node."""
        size = len(ids)
        means = _Means(np.zeros(rows.shape), np.zeros(size), np.zeros(size), np.zeros(size, np.int64))
        room = max(1, (self._memory_bytes - len(ids) * self._sum_bytes) // _ASKED_BYTES)
        asked: list[_Asked] = []
        with self._graph.edges() as store:
            for edges in store.blocks("train", min(_BLOCK_EDGES, room)):
                found = self._asked(edges.astype(np.int64), ids)
                if sum(len(one.place) for one in (*asked, found)) > room:
                    self._answer(asked, means)
                asked.append(found)
        self._answer(asked, means)
        known = means.counts > 0
        mean = means.sums[known] / means.counts[known, None]
        norm = np.linalg.norm(mean, axis=1)
        usable = (norm > 0) & np.isfinite(norm)
        places = np.flatnonzero(known)[usable]
        mean, norm, counts = mean[usable], norm[usable], means.counts[places]
        length = means.lengths[places] / counts
        score = means.scores[places] / counts
        # The mean score of a row of length 1 in this direction is the norm.
        length = np.where(score > 0, np.minimum(length, score / norm), length)
        rows[places] = mean * (length / norm)[:, None]
        logger.info("new nodes initialised from neighbours: %d of %d", len(places), len(ids))

    def _asked(self, edges: NDArray[np.int64], ids: NDArray[np.int64]) -> _Asked:
        """The edges (E, 3) between the new nodes `ids` and old nodes, by a known relation if it has a row."""
        relation = edges[:, 1] if self._ask_relations else np.zeros_like(edges[:, 1])  # else all are alike
        found = []
        for side, column in enumerate((0, 2)):
            place = np.searchsorted(ids, edges[:, column])
            place[place == len(ids)] = 0
            anchor = edges[:, 2 - column]
            chosen = ids[place] == edges[:, column]
            chosen &= (relation < self._old.graph.num_relations) & ~self._shift.is_new(anchor)
            columns = place[chosen], self._back(anchor[chosen]), relation[chosen] * len(SIDES) + side
            limits = len(ids), self._old.num_nodes, self._graph.num_relations * len(SIDES)
            found.append([one.astype(edge_dtype(limit)) for one, limit in zip(columns, limits, strict=True)])
        return _Asked(*map(np.concatenate, zip(*found, strict=True)))

    def _answer(self, asked: list[_Asked], means: _Means) -> None:
        """Add all answers to the sums by ascending anchor: the table is read once. Empties `asked`."""
        if not asked:
            return
        place, anchor, question = (np.concatenate(one) for one in zip(*asked, strict=True))
        asked.clear()
        order = np.argsort(anchor, kind="stable")
        for start in range(0, len(order), self._old.block_rows):
            block = order[start : start + self._old.block_rows]
            known = self._old.embeddings(anchor[block])
            lengths = np.linalg.norm(known.astype(np.float64), axis=1)
            relation, number = np.divmod(question[block].astype(np.int64), len(SIDES))
            for index, side in enumerate(SIDES):
                chosen = np.flatnonzero(number == index)
                if not len(chosen):
                    continue
                answers = queries_of(self._old, known[chosen], relation[chosen], side)
                at = place[block[chosen]]
                np.add.at(means.sums, at, answers.astype(np.float64))
                np.add.at(means.lengths, at, lengths[chosen])
                np.add.at(means.scores, at, self._scores[relation[chosen], index])
                np.add.at(means.counts, at, 1)

    @cached_property
    def _scores(self) -> NDArray[np.float64]:
        """What trained answers score on average, by relation and side (R, 2), of a sample of the old graph's
        train edges; 0 where that is not known, or scores are no products."""
        decoder = self._old.model.decoder
        total = np.zeros((self._old.graph.num_relations, len(SIDES)))
        if not isinstance(decoder, ClosedFormDecoder) or decoder.similarity != "dot":
            return total
        edges = self._sample()
        relation = edges[:, 1] if self._ask_relations else np.zeros_like(edges[:, 1])
        ends = self._old.embeddings(edges[:, 0]), self._old.embeddings(edges[:, 2])
        count = np.zeros_like(total)
        for index, side in enumerate(SIDES):
            asked = queries_of(self._old, ends[1 - index], relation, side).astype(np.float64)
            score = (asked * ends[index]).sum(axis=1)
            finite = np.isfinite(score)
            np.add.at(total[:, index], relation[finite], score[finite])
            np.add.at(count[:, index], relation[finite], 1)
        overall = total.sum(axis=0) / np.maximum(count.sum(axis=0), 1)
        mean: NDArray[np.float64] = (total + _PRIOR_EDGES * overall) / (count + _PRIOR_EDGES)
        return mean

    def _sample(self) -> NDArray[np.int64]:
        """Some train edges (n, 3) of the old graph, from all over them."""
        with self._old.graph.edges() as store:
            count = store.num_edges("train")
            rng = stream(self._seed, Purpose.INIT_NODES, self._old.num_nodes, 1)
            starts = np.unique(rng.integers(0, count, _SAMPLE_RANGES)) if count else np.empty(0, np.int64)
            found = [
                store.read_range("train", start, min(start + _RANGE_EDGES, count))
                for start in starts.tolist()
            ]
        return np.concatenate([np.empty((0, 3), np.int64), *found])

    def _back(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Old ids of old nodes."""
        moved: NDArray[np.int64] = ids - np.searchsorted(self._shift.new, ids)
        return moved


def queries_of(run: Run, rows: NDArray[np.float32], relations: NDArray[np.int64], side: Side) -> NDArray[Any]:
    """Queries (n, D) of known rows (n, D) by relations (n,); ConfigError: a user's decoder fails."""
    try:
        with torch.no_grad():
            asked = run.model.queries(torch.from_numpy(rows), torch.from_numpy(relations), side)
            return asked.cpu().numpy()
    except MariusError:
        raise
    except (Exception, SystemExit) as error:
        if is_out_of_memory(error):
            raise
        raise ConfigError(
            f"{name_of(run.model.decoder)}: query of nodes {rows.shape}, side {side!r}, fails: "
            f"{type(error).__name__}: {error}; init=random asks for none"
        ) from error
