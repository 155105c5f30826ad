"""Queries and their known answers (floor 4): edges in, distinct queries and the filter's pairs out.

Edges that share a known end, a relation and a side ask the same question: it is scored once, and all its
true answers are compared with that one row of scores. The filter belongs to the question too, so both are
found by sorted keys and never by a loop over edges.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from marius_py.ranking.candidates import CandidateSource, Ids
from marius_py.storage.protocols import Edges
from marius_py.types import Side

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_SIEVE_BITS = 22

QUERY_SIDES: tuple[Side, Side] = ("tail", "head")
"""Order of the sides among a block's queries."""


@dataclass(frozen=True, slots=True)
class QueryBlock:
    """Both sides of B edges as U distinct queries and T = 2B answers, answers in the order of queries.

    Attributes:
        keys: (U,) ascending (side · N + anchor) · R + relation.
        anchors: (U,) known node of each query.
        relations: (U,) relation of each query.
        num_tails: queries [0, num_tails) rank tails, the rest rank heads.
        query_of: (T,) ascending query of each answer.
        answers: (T,) true node of each answer.
        order: (T,) answer t belongs to item order[t] of the tails of all edges, then the heads of all edges.
    """

    keys: Ids
    anchors: Ids
    relations: Ids
    num_tails: int
    query_of: Ids
    answers: Ids
    order: Ids

    def side_slice(self, side: Side) -> slice:
        """Queries of one side."""
        return slice(0, self.num_tails) if side == "tail" else slice(self.num_tails, self.keys.size)


def side_keys(edges: Edges, side: Side, num_nodes: int, num_relations: int) -> Ids:
    """Key (E,) of the query that asks for `side` of each edge (E, 3)."""
    column, offset = (0, 0) if side == "tail" else (2, num_nodes)
    keys = edges[:, column].astype(np.int64)
    keys += offset
    keys *= num_relations
    keys += edges[:, 1]
    return keys


def group_queries(edges: Edges, num_nodes: int, num_relations: int) -> QueryBlock:
    """Distinct queries of the tails and heads of edges (B, 3)."""
    relations = max(num_relations, 1)
    keys = np.concatenate([side_keys(edges, side, num_nodes, relations) for side in QUERY_SIDES])
    answers = np.concatenate((edges[:, 2], edges[:, 0])).astype(np.int64)
    distinct, query_of = np.unique(keys, return_inverse=True)
    order = np.argsort(query_of, kind="stable")
    node, relation = np.divmod(distinct, relations)
    num_tails = int(np.searchsorted(node, num_nodes))
    node[num_tails:] -= num_nodes
    return QueryBlock(
        keys=distinct,
        anchors=node,
        relations=relation,
        num_tails=num_tails,
        query_of=query_of.reshape(-1)[order].astype(np.int64),
        answers=answers[order],
        order=order,
    )


class KnownAnswers:
    """Pairs (query, candidate) that are known to be true, ready to be taken out tile by tile.

    Args:
        queries: (n,) query of each pair.
        candidates: (n,) candidate index of each pair; no pair twice.
        num_queries: U.
        tile: candidates a tile.
    """

    def __init__(self, queries: Ids, candidates: Ids, num_queries: int, tile: int) -> None:
        self.per_query = np.bincount(queries, minlength=num_queries)
        self._num_queries = num_queries
        place = candidates // tile * num_queries + queries
        order = np.argsort(place)
        self._place = place[order]
        self._queries = queries[order]
        self._column = candidates[order] % tile

    def in_tile(self, first: int, last: int, tile: int) -> tuple[Ids, Ids]:
        """Pairs of queries [first, last) in one tile: query − first (n,), place in the tile (n,)."""
        base = tile * self._num_queries
        start, stop = np.searchsorted(self._place, (base + first, base + last))
        return self._queries[start:stop] - first, self._column[start:stop]


def find_known(
    block: QueryBlock,
    source: CandidateSource,
    edges: Iterable[Edges],
    num_nodes: int,
    num_relations: int,
    tile: int,
    max_pairs: int | None,
) -> KnownAnswers | None:
    """Known answers of a block's queries among the candidates, by one pass over blocks of edges.

    Args:
        block: the queries.
        source: the candidates.
        edges: blocks (E, 3) of all edges known to be true; an edge may come twice.
        num_nodes: N.
        num_relations: R.
        tile: candidates a tile.
        max_pairs: give up above so many pairs; None never gives up.

    Returns:
        The known answers, or None if there were more than `max_pairs`.
    """
    relations = max(num_relations, 1)
    sieve = np.zeros(1 << _SIEVE_BITS, dtype=np.bool_)
    sieve[_bucket_of(block.keys)] = True
    pairs: list[NDArray[np.int64]] = []
    total = 0
    for part in edges:
        for side in QUERY_SIDES:
            keys = side_keys(part, side, num_nodes, relations)
            # Most edges answer no query of the block: a table of bits sorts them out before the search.
            maybe = np.flatnonzero(sieve[_bucket_of(keys)])
            keys = keys[maybe]
            query = np.searchsorted(block.keys, keys)
            query[query == block.keys.size] = 0
            candidate = source.index(part[maybe, 2 if side == "tail" else 0].astype(np.int64))
            match = (block.keys[query] == keys) & (candidate >= 0)
            pairs.append(query[match] * source.size + candidate[match])
            total += pairs[-1].size
        if max_pairs is not None and total > max_pairs:
            return None
    distinct = np.unique(np.concatenate(pairs)) if pairs else np.empty(0, dtype=np.int64)
    query, candidate = np.divmod(distinct, max(source.size, 1))
    return KnownAnswers(query, candidate, block.keys.size, tile)


def _bucket_of(keys: Ids) -> NDArray[np.uint64]:
    """Multiplicative hash of keys into 2²² buckets."""
    return (keys.view(np.uint64) * _MULTIPLIER) >> np.uint64(64 - _SIEVE_BITS)
