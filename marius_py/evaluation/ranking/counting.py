"""Counts better and equal candidates (floor 4): queries, a block of rows and known pairs in, counts out.

Fast scores decide clear cases. What lies in the band around the true score is decided by exact scores, so
the counts do not depend on how the work was cut.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from marius_py.evaluation.ranking.known import KnownAnswers
from marius_py.evaluation.ranking.norms import norm_bound
from marius_py.evaluation.ranking.scorer import ModelScorer, Scorer, in_float64, room_for, scored
from marius_py.evaluation.ranking.tiles import LANE_BYTES, greater, greater_equal, where

_LANE_ROWS = 255
_SPARSE_PAIRS = 8192
"""Pairs in the band of one tile up to which each gets an exact score of its own."""
_MAX_ANSWERS = 512
COMPILED_SCORES = 1 << 28
"""Scores from which they are compared by compiled code, whose loading takes .5 s."""


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
    """Some candidates of a block.

    Attributes:
        start: place of the first one in the block.
        rows: (K, D) float32 on the scorer's device.
        odd: (K,) bool, rows that hold an infinity, which no norm can bound; None if there are none.
    """

    start: int
    rows: Tensor
    odd: Tensor | None

    @cached_property
    def distinct(self) -> tuple[Tensor, Tensor]:
        """Distinct rows (m, D), and each row's place among them (K,); found once, when ties abound."""
        return _distinct_rows(self.rows)


class CandidateBlock:
    """A block of candidate rows, cut into tiles that stay in a cache while they are compared.

    Args:
        rows: (n, D) float32 on the scorer's device.
        start: index of the first candidate, a multiple of `tile`.
        tile: candidates a tile.
    """

    def __init__(self, rows: Tensor, start: int, tile: int) -> None:
        self.rows = rows
        self.first_tile = start // tile
        self.largest, odd = norm_bound(rows)
        self.tiles = [
            Tile(i, rows[i : i + tile], None if odd is None else odd[i : i + tile])
            for i in range(0, rows.shape[0], tile)
        ]


class _Group:
    """At most `_MAX_ANSWERS` answers that are compared together, with the bounds of their scores.

    Args:
        scorer: gives the bounds.
        questions: queries and true scores.
        span: answers of the queries compared.
        places: (n,) answers of the group, by place in the span.
        first: first query of the tile row.
        height: queries of the tile row.
        largest: largest norm of the candidates.
    """

    def __init__(
        self,
        scorer: Scorer,
        questions: Questions,
        span: slice,
        places: Tensor,
        first: int,
        height: int,
        largest: float,
    ) -> None:
        device = scorer.device
        queries = questions.query_of[span][places]
        identity = bool(torch.equal(queries - first, torch.arange(height, device=queries.device)))
        self.places = places.to(device)
        self.queries = queries.to(device)
        self.rows = self.queries - first
        self.picked = None if identity else self.rows
        self.true = questions.true[span][self.places]
        self.norms = questions.norms[self.queries]
        low, high = scorer.band(self.true, self.norms, largest, torch.float32)
        # A score that float32 rounds (to 0, to an infinity) is equal to none of its fast scores.
        self.certain = (low == high) & (low.float() == low)
        self.any_certain = bool(self.certain.any())
        self.low, self.high = _outward(low, high, self.certain)
        self.unbounded = torch.isinf(self.low)
        self.any_unbounded = bool(self.unbounded.any())

    @cached_property
    def arrays(self) -> Any:
        """Its answers as compiled code takes them, and room for a number of each."""
        from marius_py.evaluation.ranking.numba_counts import Answers

        parts = (self.rows, self.places, self.low, self.high, self.certain)
        return Answers(*(part.numpy() for part in parts)), np.empty(len(self.rows), dtype=np.int64)


def _groups(
    scorer: Scorer, questions: Questions, span: slice, first: int, last: int, largest: float
) -> list[_Group]:
    """Answers of queries [first, last): the first of each query together, which spares copies of scores."""
    query_of = questions.query_of[span]
    if not query_of.numel():
        return []
    is_first = torch.ones_like(query_of, dtype=torch.bool)
    is_first[1:] = query_of[1:] != query_of[:-1]
    place = torch.arange(query_of.numel(), device=query_of.device)
    parts = [place[is_first], *_split(place[~is_first], _MAX_ANSWERS)]
    return [_Group(scorer, questions, span, part, first, last - first, largest) for part in parts]


class Counter:
    """Counts for the answers of queries [first, last) in one block of candidates. Used once, by one thread.

    Args:
        scorer: scores rows.
        questions: queries and true scores.
        first: first query.
        last: one past the last query.
        block: the candidates.
        compiled: let compiled code compare scores on the CPU.

    Attributes:
        num_nan: scores of candidates that a comparison of a user's own made NaN.
    """

    def __init__(
        self,
        scorer: Scorer,
        questions: Questions,
        first: int,
        last: int,
        block: CandidateBlock,
        *,
        compiled: bool,
    ) -> None:
        self._scorer = scorer
        self._questions = questions
        self._first, self._last = first, last
        self._block = block
        bounds = questions.query_of.new_tensor([first, last])
        self._span = slice(*torch.searchsorted(questions.query_of, bounds).tolist())
        self._true = questions.true[self._span]
        self._query_of = questions.query_of[self._span].to(scorer.device)
        self._groups = _groups(scorer, questions, self._span, first, last, block.largest)
        self._better = torch.zeros(self._true.numel(), dtype=torch.int64, device=scorer.device)
        self._equal = torch.zeros_like(self._better)
        self._compiled = compiled and scorer.device.type == "cpu"
        self._pending: list[tuple[Tensor, Tensor]] = []
        self._num_pending = 0
        self._is_watched = isinstance(scorer, ModelScorer) and not scorer.is_known
        self._room = room_for(scorer, (last - first) * max(len(tile.rows) for tile in block.tiles))
        self.num_nan = 0

    def count(self, known: KnownAnswers) -> tuple[slice, NDArray[np.int64]]:
        """Places of these queries' answers, and better and equal candidates of each (2, t).

        Args:
            known: pairs to leave out.
        """
        queries = self._questions.rows[self._first : self._last]
        left_out_score = torch.tensor(-math.inf, dtype=queries.dtype, device=queries.device)
        for number, tile in enumerate(self._block.tiles):
            pairs = known.in_tile(self._first, self._last, self._block.first_tile + number)
            left_out = (self._on_device(pairs[0]), self._on_device(pairs[1]))
            scores = scored(self._scorer, queries, tile.rows, self._room)
            scores.index_put_(left_out, left_out_score)
            if self._is_watched:
                self.num_nan += int(torch.isnan(scores).sum())
            for group in self._groups:
                self._compare(group, scores, tile, left_out)
        self._settle()
        return self._span, torch.stack((self._better, self._equal)).cpu().numpy()

    def _on_device(self, values: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(values).to(self._scorer.device)

    def _compare(self, group: _Group, scores: Tensor, tile: Tile, left_out: tuple[Tensor, Tensor]) -> None:
        """Count the clear cases of one tile; note or settle the others."""
        if self._compiled and tile.odd is None and not group.any_unbounded and scores.is_contiguous():
            self._compare_compiled(group, scores, tile, left_out)
            return
        above, within = self._masks(group, scores, tile, left_out)
        num_above = _row_counts(above)
        num_inside = _row_counts(within).sub_(num_above)
        self._better[group.places] += num_above
        # Fast scores of candidates that no bound holds for are never exact.
        certain = group.certain if tile.odd is None else torch.zeros_like(group.certain)
        if group.any_certain:
            self._equal[group.places[certain]] += num_inside[certain]
            num_inside[certain] = 0
        num_pairs = int(num_inside.sum())
        if not num_pairs:
            return
        if num_pairs > _SPARSE_PAIRS:
            inside = torch.logical_xor(within, above, out=within)
            inside[certain] = False
            self._settle_many(group, inside, num_pairs, tile)
            return
        # Few answers have a pair in the band: only their rows are searched.
        rows = num_inside.nonzero().squeeze(1)
        answer, column = where(torch.logical_xor(within[rows], above[rows]))
        self._note(group.places[rows[answer]], column + tile.start)

    def _compare_compiled(
        self, group: _Group, scores: Tensor, tile: Tile, left_out: tuple[Tensor, Tensor]
    ) -> None:
        """As `_compare`, in one pass over the scores, and a second over rows with some in the band."""
        from marius_py.evaluation.ranking import numba_counts

        answers, num_inside = group.arrays
        better, equal = self._better.numpy(), self._equal.numpy()
        num_pairs = numba_counts.count(scores.numpy(), answers, num_inside, better, equal)
        if num_pairs > _SPARSE_PAIRS:
            above, within = self._masks(group, scores, tile, left_out)
            inside = torch.logical_xor(within, above, out=within)
            inside[group.certain] = False
            self._settle_many(group, inside, num_pairs, tile)
        elif num_pairs:
            place, column = np.empty((2, num_pairs), dtype=np.int64)
            numba_counts.collect(scores.numpy(), answers, num_inside, place, column)
            self._note(torch.from_numpy(place), torch.from_numpy(column).add_(tile.start))

    def _note(self, places: Tensor, candidates: Tensor) -> None:
        """Let exact scores decide pairs of places of answers (n,) and of candidates (n,), soon."""
        self._pending.append((places, candidates))
        self._num_pending += len(places)
        if self._num_pending > _SPARSE_PAIRS:
            self._settle()

    @staticmethod
    def _masks(
        group: _Group, scores: Tensor, tile: Tile, left_out: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Which candidates are above the band of each answer (n, K), and which above or inside."""
        if group.picked is not None:
            scores = scores.index_select(0, group.picked)
        above, within = greater(scores, group.high), greater_equal(scores, group.low)
        if tile.odd is not None or group.any_unbounded:
            _open(above, within, group, tile, left_out)
        return above, within

    def _settle(self) -> None:
        """Exact scores of the pairs noted so far."""
        if not self._pending:
            return
        places, candidates = (torch.cat(parts) for parts in zip(*self._pending, strict=True))
        self._pending, self._num_pending = [], 0
        queries = self._questions.rows[self._query_of[places]]
        exact = self._scorer.exact(queries, self._block.rows[candidates])
        true = self._true[places]
        self._better.index_add_(0, places, (exact > true).long())
        self._equal.index_add_(0, places, (exact == true).long())

    def _settle_many(self, group: _Group, inside: Tensor, num_pairs: int, tile: Tile) -> None:
        """Decide many pairs `inside` (n, K) of a group and a tile at once."""
        more, same = self._decided(group, inside, num_pairs, tile)
        self._better[group.places] += more
        self._equal[group.places] += same

    def _decided(self, group: _Group, inside: Tensor, num_pairs: int, tile: Tile) -> tuple[Tensor, Tensor]:
        """Better and equal (n,) among them.

        Either rows are equal (a constant model), or scores lie closer together than float32 can tell.
        """
        rows, row_of = tile.distinct
        queries, query_of = _distinct_rows(self._questions.rows[group.queries])
        if rows.shape[0] * queries.shape[0] * 4 <= num_pairs:
            scores = self._exact_table(queries, rows)[query_of][:, row_of]
            true = group.true.unsqueeze(1)
            return ((scores > true) & inside).sum(1), ((scores == true) & inside).sum(1)
        return self._settle_in_float64(group, inside, tile)

    def _exact_table(self, queries: Tensor, rows: Tensor) -> Tensor:
        """Exact scores (n, m) of all pairs of few rows."""
        count, width = queries.shape[0], rows.shape[0]
        left = torch.arange(count, device=rows.device).repeat_interleave(width)
        right = torch.arange(width, device=rows.device).repeat(count)
        parts = [
            self._scorer.exact(queries[i], rows[j]) for i, j in zip(_split(left), _split(right), strict=True)
        ]
        return torch.cat(parts).reshape(count, width)

    def _settle_in_float64(self, group: _Group, inside: Tensor, tile: Tile) -> tuple[Tensor, Tensor]:
        """The fast form once more in float64, then exact scores for what remains."""
        above = torch.zeros_like(inside)
        remaining = inside
        scores = in_float64(self._scorer.scores, self._questions.rows[group.queries], tile.rows)
        if scores is not None:
            low, high = self._scorer.band(group.true, group.norms, self._block.largest, torch.float64)
            open_pairs = torch.isinf(low).unsqueeze(1)
            if tile.odd is not None:
                open_pairs = open_pairs | tile.odd.unsqueeze(0)
            above = (scores > high.unsqueeze(1)) & inside & ~open_pairs
            remaining = (((scores >= low.unsqueeze(1)) & ~above) | open_pairs) & inside
        more, same = above.sum(1), torch.zeros_like(group.places)
        answer, column = where(remaining)
        for part, place in zip(_split(answer), _split(column), strict=True):
            exact = self._scorer.exact(self._questions.rows[group.queries[part]], tile.rows[place])
            more.index_add_(0, part, (exact > group.true[part]).long())
            same.index_add_(0, part, (exact == group.true[part]).long())
        return more, same


def _open(above: Tensor, within: Tensor, group: _Group, tile: Tile, left_out: tuple[Tensor, Tensor]) -> None:
    """Put all that no bound holds for inside the band: unbounded answers, infinite candidates."""
    if tile.odd is not None:
        above[:, tile.odd] = False
        within[:, tile.odd] = True
    above[group.unbounded] = False
    within[group.unbounded] = True
    known = torch.zeros(int(group.rows.max()) + 1, above.shape[1], dtype=torch.bool, device=above.device)
    keep = left_out[0] < known.shape[0]
    known[left_out[0][keep], left_out[1][keep]] = True
    within &= ~known[group.rows]


def _outward(low: Tensor, high: Tensor, certain: Tensor) -> tuple[Tensor, Tensor]:
    """Bounds (T,) in float32, rounded outward unless they are exact scores."""
    low32, high32 = low.float(), high.float()
    infinity = low32.new_tensor(math.inf)
    return (
        torch.where(certain, low32, torch.nextafter(low32, -infinity)),
        torch.where(certain, high32, torch.nextafter(high32, infinity)),
    )


def _row_counts(mask: Tensor) -> Tensor:
    """Number of True (T,) int64 in each row of (T, K)."""
    if mask.device.type != "cpu" or mask.shape[1] % LANE_BYTES or mask.shape[1] > LANE_BYTES * _LANE_ROWS:
        return mask.sum(1)
    # Eight flags are added at a time as the bytes of one word; a byte holds 255 of them at most.
    lanes = mask.view(torch.int64).sum(1)
    return lanes.unsqueeze(1).view(torch.uint8).sum(1)


def _split(values: Tensor, size: int = _SPARSE_PAIRS) -> list[Tensor]:
    """Consecutive parts of `values` (n,) with at most `size` of them."""
    return [values[i : i + size] for i in range(0, values.numel(), size)]


def _distinct_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Distinct rows (m, D) and for each of the n rows its place among them (n,), compared bit by bit."""
    flat = rows.cpu().numpy()
    raw = np.ascontiguousarray(flat).view(np.dtype((np.void, flat.shape[1] * flat.itemsize))).reshape(-1)
    _, first, place = np.unique(raw, return_index=True, return_inverse=True)
    picked = torch.from_numpy(first).to(rows.device)
    return rows[picked], torch.from_numpy(place.reshape(-1)).to(rows.device)
