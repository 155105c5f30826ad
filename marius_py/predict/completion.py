"""Completes edges by id (floor 4): anchors, relations and sides in, the k best nodes out.

Exact over all entities: the embeddings stream by in blocks, once for each block of queries, so memory follows
from a budget and not from the number of nodes or queries.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from marius_py.buffer.numbers import NotFinite
from marius_py.errors import ConfigError
from marius_py.evaluation.evaluator import DEFAULT_MEMORY_BYTES
from marius_py.evaluation.ranking.candidates import Float32, Ids
from marius_py.evaluation.ranking.known import KnownAnswers, KnownFinder, QueryBlock, edge_blocks
from marius_py.evaluation.ranking.scorer import ModelScorer
from marius_py.predict.chosen import Competitors, EveryNode
from marius_py.predict.finite import odd_relations, only_numbers, tell_left_out
from marius_py.predict.topk import TILE_CANDIDATES, Float64, TopK, top_k
from marius_py.storage.protocols import Edges, EdgeStore
from marius_py.types import SPLITS, Progress, Side
from marius_py.whole import MAX_INT64, is_whole

if TYPE_CHECKING:
    from marius_py.run_files.reader import RunReader

MIN_MEMORY_BYTES = 16 << 20

_PAIR_BYTES = 48
_ENTRY_BYTES = 64
"""Bytes an entry of the best needs at the peak, when candidates are merged."""


def check_k(k: int) -> int:
    """Refuse a k below 1 with a ConfigError."""
    if not is_whole(k, 1):
        raise ConfigError(f"k is {k!r}; allowed: a whole number, 1 or more")
    return int(k)


def check_memory(memory_bytes: int) -> int:
    """Refuse a budget that is no number, below 16 MiB or of 2^63 bytes or more with a ConfigError."""
    if not is_whole(memory_bytes, 0):
        raise ConfigError(f"memory is {memory_bytes!r}; allowed: a whole number of bytes, 16 MiB or more")
    if memory_bytes < MIN_MEMORY_BYTES:
        raise ConfigError(f"memory is {memory_bytes} bytes; allowed: {MIN_MEMORY_BYTES} (16 MiB) or more")
    if memory_bytes > MAX_INT64:  # a number that may have more digits than Python prints
        raise ConfigError(f"memory is 2^63 bytes or more; allowed: {MIN_MEMORY_BYTES} (16 MiB) to 2^63 - 1")
    return memory_bytes


def query_keys(anchors: Ids, relations: Ids, is_head: NDArray[np.bool_], run: RunReader) -> Ids:
    """Keys (Q,) of queries: (side · N + anchor) · R + relation, tails asked for first."""
    nodes = anchors + is_head * np.int64(run.num_nodes)
    keys: Ids = nodes * max(run.graph.num_relations, 1) + relations
    return keys


def query_rows(run: RunReader, scorer: ModelScorer, block: QueryBlock) -> torch.Tensor:
    """Query rows (U, W) of a block, on the scorer's device; of a node or relation that is not finite NaN."""
    parts, odd = [], odd_relations(run)
    for side in ("tail", "head"):
        span = block.side_slice(side)
        if span.stop > span.start:
            anchors = torch.from_numpy(only_numbers(run.embeddings(block.anchors[span]))[0])
            relations = torch.from_numpy(block.relations[span])
            inverse = run.graph.num_relations if run.model.reciprocal and side == "head" else 0
            anchors[odd[inverse + relations]] = math.nan
            parts.append(scorer.queries(anchors.to(scorer.device), relations.to(scorer.device), side))
    return torch.cat(parts)


def node_blocks(
    run: RunReader, source: Competitors, memory_bytes: int, progress: Progress | None = None
) -> Iterator[tuple[int, Float32]]:
    """Rows of all that compete, in blocks of whole tiles: an eighth of the budget each, or else one tile.

    Rows that are not finite are NaN throughout; the first pass over a run's rows warns of them at its end.
    """
    odd = NotFinite()
    block_rows = max(1, memory_bytes // 8 // (4 * run.dim * TILE_CANDIDATES)) * TILE_CANDIDATES
    for start, rows in source.blocks(block_rows):
        yield start, only_numbers(rows, odd, start)[0]
        if progress is not None:
            progress(start + len(rows), source.size)
    if odd.count:
        first = int(source.nodes(np.array([odd.first]))[0])
        tell_left_out(run, "nodes", odd.count, source.size, run.node_names(first, first + 1)[0])


def known_finder(run: RunReader, source: Competitors, edges: EdgeStore, memory_bytes: int) -> KnownFinder:
    """Finds those of `source` that complete a query to an edge of any split."""
    return KnownFinder(
        source,
        lambda: edge_blocks(edges, SPLITS, memory_bytes),
        run.num_nodes,
        run.graph.num_relations,
    )


def complete_nodes(
    run: RunReader,
    anchors: Ids,
    relations: Ids,
    is_head: NDArray[np.bool_],
    k: int,
    *,
    source: Competitors | None = None,
    filter_known: bool = False,
    allow_self: bool = True,
    beta: float | None = None,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    progress: Progress | None = None,
) -> TopK:
    """The k best nodes for each query.

    Args:
        run: an open run.
        anchors: (Q,) known ends.
        relations: (Q,) relation ids.
        is_head: (Q,) True where heads are asked for, False for tails.
        k: how many; at most as many as compete are given.
        source: the nodes that compete; None: all.
        filter_known: leave out nodes that make an edge of any split.
        allow_self: whether a query's own node may be an answer.
        beta: inverse temperature of the softmax; None: no probabilities.
        memory_bytes: bound of the working memory.
        progress: called with (nodes done, nodes in all passes).

    Returns:
        Ids, scores and probabilities in the order of the queries.
    """
    check_memory(memory_bytes)
    source = source or EveryNode(run)
    k = min(check_k(k), source.size)
    keys, inverse = np.unique(query_keys(anchors, relations, is_head, run), return_inverse=True)
    found = TopK(
        np.full((keys.size, k), -1, np.int64),
        np.full((keys.size, k), -math.inf),
        None if beta is None else np.empty((keys.size, k)),
        undefined := np.zeros(keys.size, np.bool_),
    )
    scorer = ModelScorer(run.model, run.dim)
    whole = QueryBlock.of(keys, run.num_nodes, run.graph.num_relations)
    with run.graph.edges() as edges:
        finder = known_finder(run, source, edges, memory_bytes) if filter_known else None
        num_known = np.zeros(keys.size, np.int64) if finder is None else finder.count(whole)
        for start, stop in cut(num_known, k, run.dim, memory_bytes):
            block = whole.part(start, stop)
            known = left_out(source, block, finder, allow_self=allow_self)
            passed = _pass_progress(progress, start, keys.size, stop - start, source.size)
            blocks = node_blocks(run, source, memory_bytes, passed)
            part = top_k(scorer, query_rows(run, scorer, block), blocks, k, known=known, beta=beta)
            found.ids[start:stop], found.scores[start:stop] = source.nodes(part.ids), part.scores
            undefined[start:stop] = part.undefined
            if found.probabilities is not None and part.probabilities is not None:
                found.probabilities[start:stop] = part.probabilities
    order = inverse.reshape(-1)
    shares = None if found.probabilities is None else found.probabilities[order]
    return TopK(found.ids[order], found.scores[order], shares, undefined[order])


def left_out(
    source: Competitors, block: QueryBlock, finder: KnownFinder | None, *, allow_self: bool
) -> KnownAnswers | None:
    """Who of `source` does not compete for the queries of a block: known answers, own nodes; None: all do."""
    if allow_self:
        return None if finder is None else finder.find(block, TILE_CANDIDATES)
    pairs = own_pairs(source, block.anchors)
    if finder is not None:
        pairs = np.concatenate((pairs, finder.pairs(block)))
    return KnownAnswers(pairs, block.keys.size, source.size, TILE_CANDIDATES)


def own_pairs(source: Competitors, nodes: Ids) -> Ids:
    """Pairs (n,) of each query and its own node, where that is of `source`: query · source.size + place."""
    places = source.index(nodes)
    (asks,) = np.nonzero(places >= 0)
    pairs: Ids = asks * np.int64(source.size) + places[asks]
    return pairs


def has_self(run: RunReader) -> bool:
    """Whether an edge from a node to itself may be true: by the relations or self-loops of the graph."""
    loops = run.graph.report.get("self_loops", {})
    return run.graph.has_relations or any(loops.values())


def cut(num_known: Ids, k: int, width: int, memory_bytes: int) -> Iterator[tuple[int, int]]:
    """Ranges of queries whose rows, best and known answers fit into half of the budget.

    Args:
        num_known: (Q,) known answers of each query.
        k: answers a query.
        width: floats a query's row.
        memory_bytes: bound of the working memory.
    """
    most = max(1, memory_bytes // 4 // (12 * width + _ENTRY_BYTES * k))
    before = np.concatenate(([0], np.cumsum(num_known)))
    start = 0
    while start < num_known.size:
        fits = (
            int(np.searchsorted(before, before[start] + memory_bytes // 4 // _PAIR_BYTES, side="right")) - 1
        )
        stop = min(start + most, max(fits, start + 1), num_known.size)
        yield start, stop
        start = stop


def _pass_progress(
    progress: Progress | None, start: int, num_queries: int, size: int, compete: int
) -> Progress | None:
    """Progress of one pass as a share of all queries."""
    if progress is None:
        return None

    def report(done: int, total: int) -> None:
        progress(start * compete + done * size, num_queries * compete)

    return report


def score_edges(
    run: RunReader, edges: Edges, *, side: Side = "tail", memory_bytes: int = DEFAULT_MEMORY_BYTES
) -> Float64:
    """Scores (E,) float64 of edges (E, 3) of ids, as ranking computes them.

    Args:
        run: an open run.
        edges: (E, 3) head, relation, tail ids.
        side: the end that the query asks for; it matters only in a run with reciprocal relations, where
            "head" scores by the inverse relation.
        memory_bytes: bound of the working memory.
    """
    check_memory(memory_bytes)
    scorer = ModelScorer(run.model, run.dim)
    found = np.empty(len(edges))
    step = max(1, memory_bytes // 4 // (32 * run.dim))
    anchor, answer = (0, 2) if side == "tail" else (2, 0)
    for start in range(0, len(edges), step):
        part = edges[start : start + step].astype(np.int64)
        nodes, place = np.unique(part[:, [anchor, answer]], return_inverse=True)
        rows = torch.from_numpy(run.embeddings(nodes)).to(scorer.device)
        ends = torch.from_numpy(place.reshape(-1, 2)).to(scorer.device)
        with torch.no_grad():
            relations = torch.from_numpy(part[:, 1].copy()).to(scorer.device)
            queries = scorer.queries(rows[ends[:, 0]], relations, side)
            found[start : start + len(part)] = scorer.exact(queries, rows[ends[:, 1]]).cpu().numpy()
    return found
