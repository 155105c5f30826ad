"""Counts better and equal candidates in one tile (floor 4): rows in, counts out.

Fast scores decide clear cases. What lies in the band around the true score is decided by exact scores, so
the counts do not depend on how the work was cut.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from marius_py.ranking.candidates import Ids
from marius_py.ranking.scorer import Scorer

_LANE_BYTES = 8
_LANE_ROWS = 255
_SPARSE_PAIRS = 8192
_MAX_ANSWERS = 512


@dataclass(frozen=True, slots=True)
class Questions:
    """Distinct queries and the exact scores of their true answers, on the scorer's device.

    Attributes:
        rows: (U, W) float32 queries.
        norms: (U,) float64 euclidean norms of the queries.
        query_of: (T,) int64 on the CPU, ascending: query of each answer.
        true: (T,) float64 exact scores of the answers; not NaN.
    """

    rows: Tensor
    norms: Tensor
    query_of: Tensor
    true: Tensor


@dataclass(frozen=True)
class Tile:
    """Candidates of one tile.

    Attributes:
        rows: (K, D) float32 on the scorer's device.
        largest: largest finite norm among the rows.
        odd: (K,) bool, rows that hold an infinity, which no norm can bound; None if there are none.
    """

    rows: Tensor
    largest: float
    odd: Tensor | None

    @cached_property
    def distinct(self) -> tuple[Tensor, Tensor]:
        """Distinct rows (m, D), and each row's place among them (K,); found once, when ties abound."""
        return _distinct_rows(self.rows)


def make_tile(rows: Tensor) -> Tile:
    """Tile of candidate rows (K, D)."""
    norms = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    finite = torch.isfinite(norms)
    largest = float(norms[finite].max()) if bool(finite.any()) else 0.0
    # A NaN row scores NaN everywhere: it is neither better nor equal, in the fast form already.
    odd = torch.isinf(norms)
    return Tile(rows, largest * (1 + 1e-12), odd if bool(odd.any()) else None)


def count_tile(
    scorer: Scorer, questions: Questions, first: int, last: int, tile: Tile, known: tuple[Ids, Ids]
) -> NDArray[np.int64]:
    """Better and equal candidates of a tile for all answers of queries [first, last).

    Args:
        scorer: scores rows.
        questions: queries and true scores.
        first: first query.
        last: one past the last query.
        tile: the candidates.
        known: query − first (n,) and column (n,) of pairs to leave out.

    Returns:
        (2, t) better and equal candidates of the answers of these queries, in order.
    """
    start, stop = torch.searchsorted(questions.query_of, torch.tensor([first, last])).tolist()
    device = scorer.device
    scores = scorer.scores(questions.rows[first:last], tile.rows)
    left_out = (torch.from_numpy(known[0]).to(device), torch.from_numpy(known[1]).to(device))
    scores.index_put_(left_out, scores.new_tensor(-math.inf))
    counted = np.empty((2, stop - start), dtype=np.int64)
    for begin in range(start, stop, _MAX_ANSWERS):
        end = min(begin + _MAX_ANSWERS, stop)
        part = _Answers(scorer, questions, first, begin, end, scores, left_out, tile)
        counted[:, begin - start : end - start] = part.count()
    return counted


class _Answers:
    """At most `_MAX_ANSWERS` answers against one tile."""

    def __init__(
        self,
        scorer: Scorer,
        questions: Questions,
        first: int,
        begin: int,
        end: int,
        scores: Tensor,
        left_out: tuple[Tensor, Tensor],
        tile: Tile,
    ) -> None:
        self._scorer = scorer
        self._tile = tile
        self._left_out = left_out
        self._questions = questions
        self._query = questions.query_of[begin:end].to(scorer.device)
        self._row = self._query - first
        self._true = questions.true[begin:end]
        self._norm = questions.norms[self._query]
        one_each = end - begin == scores.shape[0] and int(self._row[-1]) + 1 == end - begin
        self._scores = scores if one_each else scores.index_select(0, self._row)

    def count(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Better (t,) and equal (t,)."""
        low, high = self._scorer.band(self._true, self._norm, self._tile.largest, torch.float32)
        certain = low == high
        low32, high32 = _outward(low, high, certain)
        above = _greater(self._scores, high32)
        within = _greater_equal(self._scores, low32)
        if self._tile.odd is not None or bool(torch.isinf(low).any()):
            self._open(above, within, low)
        num_above, num_within = _row_counts(above), _row_counts(within)
        better, equal = num_above.clone(), num_within - num_above
        unsure = torch.nonzero((equal > 0) & ~certain).squeeze(1)
        if unsure.numel():
            inside = within[unsure] & ~above[unsure]
            more, same = self._resolve(unsure, inside, int(equal[unsure].sum()))
            better[unsure] += more
            equal[unsure] = same
        return better.cpu().numpy(), equal.cpu().numpy()

    def _open(self, above: Tensor, within: Tensor, low: Tensor) -> None:
        """Put all that no bound holds for inside the band: unbounded answers, infinite candidates."""
        unbounded = torch.isinf(low)
        if self._tile.odd is not None:
            above[:, self._tile.odd] = False
            within[:, self._tile.odd] = True
        above[unbounded] = False
        within[unbounded] = True
        known = torch.zeros(int(self._row.max()) + 1, above.shape[1], dtype=torch.bool, device=above.device)
        keep = self._left_out[0] < known.shape[0]
        known[self._left_out[0][keep], self._left_out[1][keep]] = True
        within &= ~known[self._row]

    def _resolve(self, unsure: Tensor, inside: Tensor, num_pairs: int) -> tuple[Tensor, Tensor]:
        """Better and equal (n,) among the pairs `inside` (n, K) of answers `unsure` (n,)."""
        if num_pairs <= _SPARSE_PAIRS:
            return self._resolve_pairs(unsure, inside)
        # Many pairs: equal rows (a constant model), or scores closer together than float32 can tell.
        rows, row_of = self._tile.distinct
        queries, query_of = _distinct_rows(self._questions.rows[self._query[unsure]])
        if rows.shape[0] * queries.shape[0] * 4 <= num_pairs:
            return self._resolve_distinct(unsure, inside, rows, row_of, queries, query_of)
        return self._resolve_double(unsure, inside)

    def _resolve_pairs(self, unsure: Tensor, inside: Tensor) -> tuple[Tensor, Tensor]:
        """One exact score a pair."""
        answer, column = torch.nonzero(inside, as_tuple=True)
        true = self._true[unsure]
        more = torch.zeros(unsure.numel(), dtype=torch.int64, device=true.device)
        same = torch.zeros_like(more)
        for start in range(0, answer.numel(), _SPARSE_PAIRS):
            part, place = answer[start : start + _SPARSE_PAIRS], column[start : start + _SPARSE_PAIRS]
            queries = self._questions.rows[self._query[unsure[part]]]
            exact = self._scorer.exact(queries, self._tile.rows[place])
            more.index_add_(0, part, (exact > true[part]).long())
            same.index_add_(0, part, (exact == true[part]).long())
        return more, same

    def _resolve_distinct(
        self, unsure: Tensor, inside: Tensor, rows: Tensor, row_of: Tensor, queries: Tensor, query_of: Tensor
    ) -> tuple[Tensor, Tensor]:
        """One exact score a pair of different rows."""
        num_queries, num_rows = queries.shape[0], rows.shape[0]
        left = torch.arange(num_queries, device=rows.device).repeat_interleave(num_rows)
        right = torch.arange(num_rows, device=rows.device).repeat(num_queries)
        step = _SPARSE_PAIRS
        exact = torch.cat(
            [
                self._scorer.exact(queries[left[i : i + step]], rows[right[i : i + step]])
                for i in range(0, left.numel(), step)
            ]
        )
        scores = exact.reshape(num_queries, num_rows)[query_of][:, row_of]
        true = self._true[unsure].unsqueeze(1)
        return ((scores > true) & inside).sum(1), ((scores == true) & inside).sum(1)

    def _resolve_double(self, unsure: Tensor, inside: Tensor) -> tuple[Tensor, Tensor]:
        """The fast form once more in float64, then exact scores for what remains."""
        true, query = self._true[unsure], self._query[unsure]
        try:
            scores = self._scorer.scores(self._questions.rows[query].double(), self._tile.rows.double())
        except RuntimeError:  # a decoder with float32 parameters of its own
            return self._resolve_pairs(unsure, inside)
        low, high = self._scorer.band(true, self._norm[unsure], self._tile.largest, torch.float64)
        open_row = torch.isinf(low).unsqueeze(1)
        if self._tile.odd is not None:
            open_row = open_row | self._tile.odd.unsqueeze(0)
        above = (scores > high.unsqueeze(1)) & inside & ~open_row
        remaining = (((scores >= low.unsqueeze(1)) & ~above) | open_row) & inside
        more, same = self._resolve_pairs(unsure, remaining)
        return more + above.sum(1), same


def _outward(low: Tensor, high: Tensor, certain: Tensor) -> tuple[Tensor, Tensor]:
    """Bounds (T,) in float32, rounded outward unless they are exact scores."""
    low32, high32 = low.float(), high.float()
    infinity = low32.new_tensor(math.inf)
    return (
        torch.where(certain, low32, torch.nextafter(low32, -infinity)),
        torch.where(certain, high32, torch.nextafter(high32, infinity)),
    )


def _greater(scores: Tensor, bound: Tensor) -> Tensor:
    """scores (T, K) > bound (T,), bool; numpy's comparison is several times faster than torch's on a CPU."""
    if scores.device.type != "cpu":
        return scores > bound.unsqueeze(1)
    with np.errstate(invalid="ignore"):
        return torch.from_numpy(np.greater(scores.numpy(), bound.numpy()[:, None]))


def _greater_equal(scores: Tensor, bound: Tensor) -> Tensor:
    """scores (T, K) ≥ bound (T,), bool."""
    if scores.device.type != "cpu":
        return scores >= bound.unsqueeze(1)
    with np.errstate(invalid="ignore"):
        return torch.from_numpy(np.greater_equal(scores.numpy(), bound.numpy()[:, None]))


def _row_counts(mask: Tensor) -> Tensor:
    """Number of True (T,) int64 in each row of (T, K)."""
    if mask.device.type != "cpu" or mask.shape[1] % _LANE_BYTES or mask.shape[1] > _LANE_BYTES * _LANE_ROWS:
        return mask.sum(1)
    # Eight flags are added at a time as the bytes of one word; a byte holds 255 of them at most.
    lanes = mask.view(torch.int64).sum(1)
    return lanes.unsqueeze(1).view(torch.uint8).sum(1)


def _distinct_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Distinct rows (m, D) and for each of the n rows its place among them (n,), compared bit by bit."""
    flat = rows.cpu().numpy()
    raw = np.ascontiguousarray(flat).view(np.dtype((np.void, flat.shape[1] * flat.itemsize))).reshape(-1)
    _, first, place = np.unique(raw, return_index=True, return_inverse=True)
    picked = torch.from_numpy(first).to(rows.device)
    return rows[picked], torch.from_numpy(place.reshape(-1)).to(rows.device)
