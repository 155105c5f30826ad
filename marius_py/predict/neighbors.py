"""Nearest neighbours of nodes (floor 4): names or ids in, the k most similar nodes out, exactly."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch

from marius_py.errors import ConfigError
from marius_py.evaluation.evaluator import DEFAULT_MEMORY_BYTES
from marius_py.evaluation.ranking.candidates import Ids
from marius_py.evaluation.ranking.known import KnownAnswers
from marius_py.predict.chosen import Competitors, EveryNode, competitors
from marius_py.predict.completion import check_k, check_memory, node_blocks, own_pairs
from marius_py.predict.finite import not_finite, only_numbers
from marius_py.predict.index import NeighborIndex
from marius_py.predict.metric import Metric, check_metric, scorer_of
from marius_py.predict.queries import names_of
from marius_py.predict.topk import TILE_CANDIDATES, TopK, top_k
from marius_py.run_files.given_names import Name, is_name, name_texts
from marius_py.run_files.reader import RunReader, check_open
from marius_py.types import Progress

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Neighbor:
    """One neighbour of a node.

    Attributes:
        node: the node's name.
        neighbor: the neighbour's name.
        rank: from 1.
        score: cosine or dot product (higher is nearer), or euclidean distance (lower is nearer).
    """

    node: str
    neighbor: str
    rank: int
    score: float


def neighbors(
    run: RunReader,
    nodes: Name | Iterable[Name],
    *,
    k: int = 10,
    metric: Metric = "cosine",
    among: Iterable[Name] | None = None,
    index: NeighborIndex | None = None,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    progress: Progress | None = None,
) -> list[Neighbor]:
    """The k nearest nodes of each of `nodes`, itself left out; exact without an index.

    Args:
        run: an open run.
        nodes: name or names.
        k: neighbours a node.
        metric: "cosine", "dot" or "l2".
        among: names of the nodes that may be neighbours; None: all. Not with an index.
        index: what `open_index` gave for this run and metric; the answer is then approximate.
        memory_bytes: bound of the working memory, at least 16 MiB.
        progress: called with (nodes done, N) in each pass.

    Raises:
        ConfigError: an unknown name or metric, an index of another metric, run or commit, or one beside
        `among`, or a wrong k or bound. StorageError: reading failed.
    """
    check_open(run)
    names = name_texts([nodes] if is_name(nodes) else nodes, "nodes")
    ids = run.node_ids(names)
    source = competitors(run, among)
    if index is None:
        best = find_neighbors(run, ids, k, metric, source, memory_bytes=memory_bytes, progress=progress)
    elif not isinstance(index, NeighborIndex):
        raise ConfigError(
            f"index is {index!r} ({type(index).__name__}); allowed: what open_index returns, or None"
        )
    elif among is not None:
        raise ConfigError("among is of exact search: leave out the index, or among")
    elif index.metric != metric:
        raise ConfigError(f"metric is {metric!r}, but the index {index.path} is for {index.metric!r}")
    else:
        best = index.neighbors(run, ids, k)
    answers = names_of(run, best.ids)
    odd = not_finite(run, ids)
    if odd.any():
        logger.warning(
            "%r%s: the embedding is not finite, and so no node is near it",
            names[int(odd.argmax())],
            f" and {int(odd.sum()) - 1} more" if odd.sum() > 1 else "",
        )
    sign = -1.0 if metric == "l2" else 1.0
    return [
        Neighbor(name, answers[node], rank + 1, sign * float(value))
        for name, row, values in zip(names, best.ids.tolist(), best.scores.tolist(), strict=True)
        for rank, (node, value) in enumerate(zip(row, values, strict=True))
        if node >= 0
    ]


def find_neighbors(
    run: RunReader,
    nodes: Ids,
    k: int,
    metric: Metric = "cosine",
    source: Competitors | None = None,
    *,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    progress: Progress | None = None,
) -> TopK:
    """The k nodes most similar to each node, itself left out.

    Args:
        run: an open run.
        nodes: (Q,) node ids.
        k: how many; at most as many are given as there are other nodes in `source`.
        metric: "cosine" (of a zero row: 0) and "dot": higher is nearer; "l2": minus the euclidean distance.
        source: the nodes that may be near; None: all.
        memory_bytes: bound of the working memory.
        progress: called with (nodes done, N) in each pass.

    Returns:
        Ids (Q, k), and scores (Q, k) as `metric` says.
    """
    check_memory(memory_bytes)
    check_metric(metric)
    source = source or EveryNode(run)
    k = min(check_k(k), source.size, max(run.num_nodes - 1, 1))
    scorer = scorer_of(metric, run)
    size = max(1, memory_bytes // 4 // (12 * run.dim + 64 * k))
    ids = np.empty((nodes.size, k), dtype=np.int64)
    scores = np.empty((nodes.size, k))
    for start in range(0, nodes.size, size):
        part = nodes[start : start + size]
        rows = torch.from_numpy(only_numbers(run.embeddings(part))[0]).to(run.model.device)
        itself = KnownAnswers(own_pairs(source, part), part.size, source.size, TILE_CANDIDATES)
        blocks = node_blocks(run, source, memory_bytes, progress)
        found = top_k(scorer, scorer.queries(rows, rows, "tail"), blocks, k, known=itself)
        ids[start : start + size], scores[start : start + size] = source.nodes(found.ids), found.scores
    return TopK(ids, scores, None)
