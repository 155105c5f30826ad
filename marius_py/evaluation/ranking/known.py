"""Queries and their known answers (floor 4): edges in, distinct queries and the filter's pairs out.

Edges that share a known end, a relation and a side ask the same question: it is scored once, and all its
true answers are compared with that one row of scores. The filter belongs to the question too, so both are
found by sorted keys and never by a loop over edges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from marius_py.evaluation.ranking.candidates import CandidateSource, Ids
from marius_py.storage.protocols import Edges, EdgeStore
from marius_py.types import Side

_EDGE_BYTES = 64
"""Bytes an edge needs while it is matched: three ids, two keys, hashes."""

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_SIEVE_BITS = 22

_NONE: Ids = np.empty(0, dtype=np.int64)

QUERY_SIDES: tuple[Side, Side] = ("tail", "head")
"""Order of the sides among a block's queries."""


@dataclass(frozen=True, slots=True)
class QueryBlock:
    """U distinct queries, ascending by key, and their T answers, in the order of queries.

    Attributes:
        keys: (U,) ascending (side · N + anchor) · R + relation.
        anchors: (U,) known node of each query.
        relations: (U,) relation of each query.
        num_tails: queries [0, num_tails) rank tails, the rest rank heads.
        query_of: (T,) ascending query of each answer.
        answers: (T,) true node of each answer.
        order: (T,) item of each answer: the tails of edges 0 … E − 1, then their heads.
    """

    keys: Ids
    anchors: Ids
    relations: Ids
    num_tails: int
    query_of: Ids
    answers: Ids
    order: Ids

    @classmethod
    def of(
        cls,
        keys: Ids,
        num_nodes: int,
        num_relations: int,
        query_of: Ids = _NONE,
        answers: Ids = _NONE,
        order: Ids = _NONE,
    ) -> QueryBlock:
        """The queries of ascending distinct keys (U,), in a graph of N nodes and R relations."""
        anchors, relations = np.divmod(keys, max(num_relations, 1))
        num_tails = int(np.searchsorted(anchors, num_nodes))
        anchors[num_tails:] -= num_nodes
        return cls(keys, anchors, relations, num_tails, query_of, answers, order)

    def side_slice(self, side: Side) -> slice:
        """Queries of one side."""
        return slice(0, self.num_tails) if side == "tail" else slice(self.num_tails, self.keys.size)

    def part(self, first: int, last: int) -> QueryBlock:
        """Queries [first, last) with their answers."""
        start, stop = np.searchsorted(self.query_of, (first, last))
        return QueryBlock(
            self.keys[first:last],
            self.anchors[first:last],
            self.relations[first:last],
            min(max(self.num_tails - first, 0), last - first),
            self.query_of[start:stop] - first,
            self.answers[start:stop],
            self.order[start:stop],
        )


def side_keys(edges: Edges, side: Side, num_nodes: int, num_relations: int) -> Ids:
    """Key (E,) of the query that asks for `side` of each edge (E, 3)."""
    column, offset = (0, 0) if side == "tail" else (2, num_nodes)
    keys = edges[:, column].astype(np.int64)
    keys += offset
    keys *= num_relations
    keys += edges[:, 1]
    return keys


def group_queries(
    edges: Edges, num_nodes: int, num_relations: int, asked: NDArray[np.bool_] | None = None
) -> QueryBlock:
    """Distinct queries of the tails and heads of edges (E, 3).

    Args:
        edges: head, relation and tail ids.
        num_nodes: N.
        num_relations: R.
        asked: (E, 2) bool, which heads (column 0) and tails (1) to ask for; None: all.
    """
    relations = max(num_relations, 1)
    keys = np.concatenate([side_keys(edges, side, num_nodes, relations) for side in QUERY_SIDES])
    answers = np.concatenate((edges[:, 2], edges[:, 0])).astype(np.int64)
    items = None if asked is None else np.flatnonzero(np.concatenate((asked[:, 1], asked[:, 0])))
    if items is not None:
        keys, answers = keys[items], answers[items]
    distinct, query_of = np.unique(keys, return_inverse=True)
    order = np.argsort(query_of, kind="stable")
    of_answer = query_of.reshape(-1)[order].astype(np.int64)
    answers = answers[order]
    if items is not None:
        order = items[order]
    return QueryBlock.of(distinct, num_nodes, num_relations, of_answer, answers, order)


class KnownAnswers:
    """Pairs (query, candidate) that are known to be true, ready to be taken out tile by tile.

    Args:
        pairs: (n,) query · num_candidates + candidate, each pair any number of times; used up.
        num_queries: U.
        num_candidates: candidates before filtering.
        tile: candidates a tile.
    """

    def __init__(self, pairs: Ids, num_queries: int, num_candidates: int, tile: int) -> None:
        query, candidate = np.divmod(pairs, max(num_candidates, 1))
        number, column = np.divmod(candidate, tile)
        # One number says tile, query, column, in this order: sorted, a tile's pairs are a slice.
        place = (number * num_queries + query) * tile + column
        del query, candidate, number, column
        place.sort()
        keep = np.ones(place.size, dtype=np.bool_)
        np.not_equal(place[1:], place[:-1], out=keep[1:])
        self._place = place[keep]
        self._num_queries = num_queries
        self._tile = tile
        self.per_query = np.bincount(self._place // tile % max(num_queries, 1), minlength=num_queries)

    def in_tile(self, first: int, last: int, number: int) -> tuple[Ids, Ids]:
        """Pairs of queries [first, last) in one tile: query − first (n,), place in the tile (n,)."""
        low = (number * self._num_queries + first) * self._tile
        start, stop = np.searchsorted(self._place, (low, low + (last - first) * self._tile))
        query, column = np.divmod(self._place[start:stop] - low, self._tile)
        return query, column


class KnownFinder:
    """Matches edges with queries, one pass over the edges at a time.

    Args:
        source: the candidates.
        edges: gives a fresh iterator over blocks (E, 3) of all known edges; an edge may come twice.
        num_nodes: N.
        num_relations: R.
    """

    def __init__(
        self,
        source: CandidateSource,
        edges: Callable[[], Iterable[Edges]],
        num_nodes: int,
        num_relations: int,
    ) -> None:
        self._source = source
        self._edges = edges
        self._num_nodes = num_nodes
        self._num_relations = max(num_relations, 1)

    def count(self, block: QueryBlock) -> Ids:
        """Known answers (U,) of each query among the candidates, repeated edges counted each time."""
        counts = np.zeros(block.keys.size, dtype=np.int64)
        for query, _ in self._matches(block):
            counts += np.bincount(query, minlength=block.keys.size)
        return counts

    def find(self, block: QueryBlock, tile: int) -> KnownAnswers:
        """Known answers of a block's queries, for tiles of `tile` candidates."""
        return KnownAnswers(self.pairs(block), block.keys.size, self._source.size, tile)

    def pairs(self, block: QueryBlock) -> Ids:
        """Known answers (n,) of a block: query · num_candidates + candidate, each any number of times."""
        size = self._source.size
        parts = [query * size + candidate for query, candidate in self._matches(block)]
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)

    def _matches(self, block: QueryBlock) -> Iterator[tuple[Ids, Ids]]:
        """(query (n,), candidate index (n,)) of the edges that answer a query."""
        # Most edges may answer no query of the block: a table of flags sorts them out before the search.
        sieve = np.zeros(1 << _SIEVE_BITS, dtype=np.bool_)
        sieve[_bucket_of(block.keys)] = True
        for edges in self._edges():
            for side in QUERY_SIDES:
                keys = side_keys(edges, side, self._num_nodes, self._num_relations)
                maybe = np.flatnonzero(sieve[_bucket_of(keys)])
                keys = keys[maybe]
                query = np.searchsorted(block.keys, keys)
                query[query == block.keys.size] = 0
                candidate = self._source.index(edges[maybe, 2 if side == "tail" else 0].astype(np.int64))
                match = (block.keys[query] == keys) & (candidate >= 0)
                yield query[match], candidate[match]


def _bucket_of(keys: Ids) -> NDArray[np.uint64]:
    """Multiplicative hash of keys into 2²² buckets."""
    return (keys.view(np.uint64) * _MULTIPLIER) >> np.uint64(64 - _SIEVE_BITS)


def edges_at_once(memory_bytes: int) -> int:
    """Edges of a block that takes an eighth of the budget while it is matched."""
    return max(1024, memory_bytes // 8 // _EDGE_BYTES)


def edge_blocks(edges: EdgeStore, splits: Sequence[str], memory_bytes: int) -> Iterator[Edges]:
    """The edges of splits in blocks (n, 3), an eighth of the budget each."""
    step = edges_at_once(memory_bytes)
    for split in splits:
        count = edges.num_edges(split)
        for start in range(0, count, step):
            yield edges.read_range(split, start, min(start + step, count))
