"""Nearest neighbours of nodes (floor 4): ids in, the k most similar nodes out, exact by streaming."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from marius_py.errors import ConfigError
from marius_py.evaluation.evaluator import DEFAULT_MEMORY_BYTES
from marius_py.evaluation.ranking.candidates import Ids
from marius_py.evaluation.ranking.known import KnownAnswers
from marius_py.evaluation.ranking.scorer import ModelScorer, ordered_sum
from marius_py.nn.kernels.distance import pairwise_l2
from marius_py.predict.completion import (
    check_k,
    check_memory,
    node_blocks,
)
from marius_py.predict.topk import TILE_CANDIDATES, TopK, top_k
from marius_py.types import Progress, Side

if TYPE_CHECKING:
    from marius_py.run_files.reader import RunReader

Metric = Literal["cosine", "dot", "l2"]
METRICS: tuple[Metric, ...] = get_args(Metric)


def find_neighbors(
    run: RunReader,
    nodes: Ids,
    k: int,
    metric: Metric = "cosine",
    *,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    progress: Progress | None = None,
) -> TopK:
    """The k nodes most similar to each node, itself left out.

    Args:
        run: an open run.
        nodes: (Q,) node ids.
        k: how many; at most N − 1 are given.
        metric: "cosine" (of a zero row: 0) and "dot": higher is nearer; "l2": minus the euclidean distance.
        memory_bytes: bound of the working memory.
        progress: called with (nodes done, N) in each pass.

    Returns:
        Ids (Q, k), and scores (Q, k) as `metric` says.
    """
    check_memory(memory_bytes)
    if metric not in METRICS:
        raise ConfigError(f"metric is {metric!r}; allowed: {', '.join(METRICS)}")
    k = min(check_k(k), max(run.num_nodes - 1, 1))
    scorer = scorer_of(metric, run)
    size = max(1, memory_bytes // 4 // (12 * run.dim + 64 * k))
    ids = np.empty((nodes.size, k), dtype=np.int64)
    scores = np.empty((nodes.size, k))
    for start in range(0, nodes.size, size):
        part = nodes[start : start + size]
        rows = torch.from_numpy(run.embeddings(part)).to(run.model.device)
        pairs = np.arange(part.size) * run.num_nodes + part
        itself = KnownAnswers(pairs, part.size, run.num_nodes, TILE_CANDIDATES)
        blocks = node_blocks(run, memory_bytes, progress)
        found = top_k(scorer, scorer.queries(rows, rows, "tail"), blocks, k, known=itself)
        ids[start : start + size], scores[start : start + size] = found.ids, found.scores
    return TopK(ids, scores, None)


def scorer_of(metric: Metric, run: RunReader) -> ModelScorer:
    """Scores a metric of rows (n, D) with rows (n, D), on the run's device; higher is nearer."""
    device = run.model.device
    if metric == "cosine":
        return _CosineScorer(device, run.dim)
    return ModelScorer(_Rows("dot" if metric == "dot" else "l2", device), run.dim)


class _Rows:
    """A model whose queries are node rows."""

    def __init__(self, similarity: Literal["dot", "l2"], device: torch.device) -> None:
        self.similarity = similarity
        self._device = device

    @property
    def device(self) -> torch.device:
        return self._device

    def queries(self, anchors: Tensor, relations: Tensor, side: Side) -> Tensor:
        return anchors

    def compare(self, query: Tensor, candidates: Tensor) -> Tensor:
        if self.similarity == "dot":
            return torch.bmm(query, candidates.transpose(1, 2))
        return -pairwise_l2(query, candidates)


class _CosineScorer(ModelScorer):
    """Cosine of the angle between rows; 0 if one of them is zero."""

    def __init__(self, device: torch.device, dim: int) -> None:
        super().__init__(_Rows("dot", device), dim)

    def scores(self, queries: Tensor, candidates: Tensor) -> Tensor:
        return super().scores(_unit(queries), _unit(candidates))

    def exact(self, queries: Tensor, candidates: Tensor) -> Tensor:
        query, candidate = queries.double(), candidates.double()
        product = ordered_sum(query * candidate)
        squares = ordered_sum(query.square()), ordered_sum(candidate.square())
        length = (squares[0] * squares[1]).sqrt()
        return torch.where(length == 0, torch.zeros_like(product), product / length).clamp(-1, 1)

    def band(
        self, true: Tensor, query_norm: Tensor, candidate_norm: float, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """As for the dot product of unit rows; dividing by the length adds a few roundings."""
        return super().band(true, torch.full_like(query_norm, 2.0), 2.0, dtype)


def _unit(rows: Tensor) -> Tensor:
    length = torch.linalg.vector_norm(rows, dim=-1, keepdim=True, dtype=torch.float64)
    unit: Tensor = rows / length.clamp_min(1e-300)
    return unit.to(rows.dtype)
