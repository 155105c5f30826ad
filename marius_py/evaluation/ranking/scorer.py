"""Scores with a bound on their rounding (floor 4): query and candidate rows in, scores and bands out.

A matrix product rounds differently with its shape, so two equal candidates may come out unequal, and a rank
would depend on block sizes. Therefore a score has two forms. `scores` is fast and rounded anyhow; `exact`
depends on nothing but the two rows. `band` says around a true score where the fast form cannot decide.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, Protocol

import torch
from torch import Tensor

from marius_py.errors import ConfigError
from marius_py.evaluation.ranking.precision import PRECISIONS, rounded
from marius_py.nn.decoders.base import ClosedFormDecoder, Decoder, declared_similarity, written_together
from marius_py.nn.micro_batches import is_out_of_memory
from marius_py.nn.product_units import HostPrecision, product_precision
from marius_py.types import Side

ROUNDOFF = {torch.float32: 2.0**-24, torch.float64: 2.0**-53}
"""Unit roundoff of a dtype: the relative error of one correctly rounded operation."""

_TINY = 2.0**-126
"""Smallest normal float32; products below it may be flushed to zero."""

OVERFLOW = 1e37
"""Magnitudes above this may overflow float32 on the way; the fast scores then bound nothing."""

_PRODUCT_ROUNDOFF = {"ieee": 2.0**-24, "tf32": 2.0**-11, "bf16": 2.0**-8}
"""Roundoff of a float32 matrix product whose factors PyTorch may round to so much."""

_BROADCAST_FLOATS = {"cpu": 1 << 23, "cuda": 1 << 28}
"""Queries times candidates times dim that a decoder whose comparison is unknown is asked for at once."""

_PAIR_FLOATS = 1 << 19
_QUERY_ROWS = 256
_PAIR_ROWS = 256


class RankedModel(Protocol):
    """What ranking needs of a model; `nn.model.LinkPredictionModel` is one."""

    @property
    def device(self) -> torch.device:
        """Device on which queries and candidates are compared."""
        ...

    def queries(self, anchors: Tensor, relations: Tensor, side: Side) -> Tensor:
        """Queries (Q, D) of known nodes' rows (Q, D) and relation ids (Q,); `side` is the ranked end."""
        ...

    def compare(self, query: Tensor, candidates: Tensor) -> Tensor:
        """Scores (C, P, K) of queries (C, P, D) with candidate rows (C, K, D); higher is better."""
        ...


class Scorer(Protocol):
    """Scores queries against candidates fast, and single pairs exactly. Called from several threads."""

    @property
    def device(self) -> torch.device:
        """Device of all tensors."""
        ...

    def queries(self, anchors: Tensor, relations: Tensor, side: Side) -> Tensor:
        """Queries (Q, W) float32 of rows (Q, D) and relation ids (Q,); rows are independent."""
        ...

    def scores(self, queries: Tensor, candidates: Tensor) -> Tensor:
        """Scores (U, K) of queries (U, W) with candidates (K, D), in the dtype of the arguments."""
        ...

    def exact(self, queries: Tensor, candidates: Tensor) -> Tensor:
        """Scores (n,) float64 of pairs of rows (n, W) and (n, D), a function of the two rows alone."""
        ...

    def band(
        self, true: Tensor, query_norm: Tensor, candidate_norm: float, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """Interval of fast scores that may be equal to the true score.

        Args:
            true: (T,) float64 exact scores of the true answers.
            query_norm: (T,) float64 euclidean norms of their queries.
            candidate_norm: largest norm of the candidates compared.
            dtype: in which `scores` computes, float32 or float64.

        Returns:
            low, high (T,) float64. A fast score above `high` belongs to a better candidate, one below `low`
            to a worse one. low == high promises that fast scores are exact; an infinite interval that
            nothing is known.
        """
        ...


class ModelScorer:
    """`Scorer` of a link prediction model.

    Bounds follow the decoder's `similarity`: "dot" by the classic bound of a sum of D products, "l2" by that
    of the expanded squares. Any other decoder gets a bound that holds for sums of D terms of the size of
    ‖query‖·‖candidate‖, √D·(‖query‖ + ‖candidate‖) or (‖query‖ + ‖candidate‖)².

    Args:
        model: queries and compares rows; its rows must not depend on each other.
        dim: embedding width D.
        precision: "bfloat16" rounds queries; candidates must then come rounded (`precision.RoundedReader`).

    Raises:
        ConfigError: bfloat16 for a decoder whose scores are no dot products.
    """

    def __init__(self, model: RankedModel, dim: int, precision: HostPrecision = "float32") -> None:
        self._model = model
        self._dim = dim
        self._precision = precision
        decoder = getattr(model, "decoder", model)
        similarity = similarity_of(decoder)
        self.is_known = similarity is not None
        """Its comparison is one of the package's: scores of finite rows are NaN only where they overflow."""
        self._similarity: Literal["dot", "l2", "other"] = "other"
        if similarity == "dot":
            self._similarity = "dot"
        elif similarity == "l2":
            self._similarity = "l2"
        is_plain = isinstance(decoder, Decoder) and type(self).scores is ModelScorer.scores
        self.takes_room = self._similarity == "dot" and is_plain
        """Whether `scores_into` may be asked: its comparison is the package's own, and of dot products."""
        self._narrow = False
        """The decoder is known to take float32 alone."""
        if precision not in PRECISIONS:
            raise ConfigError(f"precision is {precision!r}; allowed: {', '.join(PRECISIONS)}")
        if precision == "bfloat16" and self._similarity != "dot":
            raise ConfigError(
                f"precision=bfloat16 is for decoders whose scores are dot products (dot, distmult, complex, "
                f"rescal); {type(decoder).__name__} needs precision=float32"
            )

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        return torch.device(self._model.device)

    def queries(self, anchors: Tensor, relations: Tensor, side: Side) -> Tensor:
        """Queries (Q, D), computed in chunks of one padded shape, so that they do not depend on Q."""
        parts = []
        for start in range(0, anchors.shape[0], _QUERY_ROWS):
            rows = _pad(anchors[start : start + _QUERY_ROWS], _QUERY_ROWS)
            ids = _pad(relations[start : start + _QUERY_ROWS], _QUERY_ROWS)
            asked = self._model.queries(rows, ids, side)[: anchors.shape[0] - start]
            parts.append(rounded(asked) if self._precision == "bfloat16" else asked)
        return torch.cat(parts) if parts else anchors.new_empty((0, self._dim))

    def scores(self, queries: Tensor, candidates: Tensor) -> Tensor:
        """Scores (U, K) by the model's own comparison, in memory of their own: callers write into them."""
        if self.is_known:
            return self._compare(queries, candidates)
        # Another's comparison may give a view of one column for all, or of rows, or broadcast over dim.
        scores = queries.new_empty((queries.shape[0], candidates.shape[0]))
        most = _BROADCAST_FLOATS.get(queries.device.type, _BROADCAST_FLOATS["cuda"])
        step = max(1, most // max(1, candidates.shape[0] * self._dim))
        for start in range(0, queries.shape[0], step):
            scores[start : start + step] = self._compare(queries[start : start + step], candidates)
        return scores

    def scores_into(self, queries: Tensor, candidates: Tensor, room: Tensor) -> Tensor:
        """As `scores` of float32 rows, written into `room` (n,), which is long enough."""
        shape = queries.shape[0], candidates.shape[0]
        return torch.mm(queries, candidates.t(), out=room[: shape[0] * shape[1]].view(shape))

    def _compare(self, queries: Tensor, candidates: Tensor) -> Tensor:
        return self._model.compare(queries.unsqueeze(0), candidates.unsqueeze(0)).squeeze(0)

    def exact(self, queries: Tensor, candidates: Tensor) -> Tensor:
        """Scores (n,) float64: products or differences in float64, summed in one fixed order."""
        step = max(1, _PAIR_FLOATS // self._dim) if self._similarity != "other" else _PAIR_ROWS
        parts = [
            self._exact(queries[start : start + step], candidates[start : start + step])
            for start in range(0, queries.shape[0], step)
        ]
        return torch.cat(parts) if parts else queries.new_empty(0, dtype=torch.float64)

    def _exact(self, queries: Tensor, candidates: Tensor) -> Tensor:
        if self._similarity == "dot":
            return ordered_sum(queries.double() * candidates.double())
        if self._similarity == "l2":
            return -ordered_sum((queries.double() - candidates.double()).square_()).sqrt_()
        count = queries.shape[0]
        query, candidate = _pad(queries, _PAIR_ROWS).unsqueeze(1), _pad(candidates, _PAIR_ROWS).unsqueeze(1)
        scores = None if self._narrow else in_float64(self._model.compare, query, candidate)
        if scores is None:
            self._narrow = True
            scores = self._model.compare(query, candidate)
        return scores.reshape(-1)[:count].double()

    def band(
        self, true: Tensor, query_norm: Tensor, candidate_norm: float, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """Bounds of Higham's γ_D kind: D roundings of terms no larger than the norms allow."""
        dim = self._dim
        roundoff = ROUNDOFF[dtype]
        if self._precision == "bfloat16":
            roundoff *= 2  # products of rounded rows are exact; units for them need not round sums to nearest
        elif dtype is torch.float32:
            roundoff = max(roundoff, _PRODUCT_ROUNDOFF[product_precision(self.device.type)])
        product = query_norm * candidate_norm
        total = query_norm + candidate_norm
        if self._similarity == "dot":
            slack = torch.where(product > 0, (dim + 8) * roundoff * product + dim * _TINY, product)
            low, high, scale = true - slack, true + slack, product
        elif self._similarity == "l2":
            # |computed² − distance²| ≤ slack; the floor under the square root adds 1e-12.
            square, scale = true.square(), total.square()
            slack = 2 * (dim + 16) * roundoff * scale + 2e-12
            low = -(square + slack).sqrt() * (1 + 8 * roundoff)
            high = -(square - slack).clamp_min(0).sqrt() * (1 - 8 * roundoff)
        else:
            scale = product + math.sqrt(dim) * total + total.square() + true.abs()
            slack = 4 * (dim + 16) * roundoff * scale
            # A term may be the root of a square that was flushed to zero.
            slack = torch.where(scale > 0, slack + dim * math.sqrt(_TINY), slack)
            low, high = true - slack, true + slack
        # Written so that a NaN scale counts as unbounded too. Nothing lies around an infinite score.
        bounded = (scale < OVERFLOW) & torch.isfinite(true)
        return low.masked_fill(~bounded, -math.inf), high.masked_fill(~bounded, math.inf)


def room_for(scorer: Scorer, number: int) -> Tensor | None:
    """Memory for so many float32 scores of a tile after the other; None where `scored` has no use for it."""
    if isinstance(scorer, ModelScorer) and scorer.takes_room and scorer.device.type == "cpu":
        return torch.empty(number, dtype=torch.float32, device=scorer.device)
    return None


def scored(scorer: Scorer, queries: Tensor, candidates: Tensor, room: Tensor | None) -> Tensor:
    """Fast scores (Q, n) of a tile, to be written into, in `room` if there is some: those before are gone."""
    if room is not None and isinstance(scorer, ModelScorer):
        return scorer.scores_into(queries, candidates, room)
    return scorer.scores(queries, candidates)


def in_float64(
    compare: Callable[[Tensor, Tensor], Tensor], queries: Tensor, candidates: Tensor
) -> Tensor | None:
    """Scores of rows as float64; None where a decoder has float32 parameters of its own and cannot mix them.

    Raises:
        RuntimeError: memory ran out.
    """
    try:
        return compare(queries.double(), candidates.double())
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        return None


def similarity_of(decoder: object) -> str | None:
    """What a decoder's `compare` computes, by its `similarity`; None if that cannot be relied on.

    A subclass that overrides `compare` inherits a `similarity` that speaks of its parent's: relying on it
    would rank true answers by one function and candidates by another.
    """
    if not isinstance(decoder, Decoder):
        similarity: str | None = getattr(decoder, "similarity", None)
        return similarity
    if not isinstance(decoder, ClosedFormDecoder):
        return None  # what it calls so is its own
    return declared_similarity(decoder) if written_together(decoder, "compare", "query_into") else None


def ordered_sum(terms: Tensor) -> Tensor:
    """Sum (n, D) over D by halving, in place: the order of additions follows from D alone; returns (n,)."""
    width = terms.shape[1]
    while width > 1:
        half = (width + 1) // 2
        terms[:, : width - half] += terms[:, half:width]
        width = half
    return terms[:, 0]


def _pad(rows: Tensor, count: int) -> Tensor:
    """Repeat the last row until there are `count` rows."""
    missing = count - rows.shape[0]
    if missing <= 0:
        return rows
    return torch.cat((rows, rows[-1:].expand(missing, *rows.shape[1:])))
