"""What makes two nodes near each other (floor 4): a metric's name in, a scorer of rows with rows out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

import torch
from torch import Tensor

from marius_py.errors import ConfigError
from marius_py.evaluation.ranking.scorer import ModelScorer, ordered_sum
from marius_py.nn.kernels.distance import pairwise_l2
from marius_py.types import Side

if TYPE_CHECKING:
    from marius_py.run_files.reader import RunReader

Metric = Literal["cosine", "dot", "l2"]
METRICS: tuple[Metric, ...] = get_args(Metric)


def check_metric(metric: str) -> None:
    """Raises ConfigError unless `metric` is one of METRICS."""
    if metric not in METRICS:
        raise ConfigError(f"metric is {metric!r}; allowed: {', '.join(METRICS)}")


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
