"""The k best candidates of every query, exactly, in one pass over the table (floor 4).

In: query rows, a scorer, blocks of candidate rows. Out: ids and float64 scores, and on request their
probabilities. Fast scores only sort out what surely is not among the best; all that may be is scored
again by `Scorer.exact`, so the result does not depend on how the work was cut. Ties go to the smaller id.

A softmax multiplies the rounding of a score by 1/T. Therefore its fast scores are computed in float64, and
the exact ones of the best take their places, so that each probability is a share of a sum that holds it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from marius_py.arrays import distinct
from marius_py.evaluation.ranking.candidates import Float32, Ids
from marius_py.evaluation.ranking.known import KnownAnswers
from marius_py.evaluation.ranking.norms import norm_bound
from marius_py.evaluation.ranking.scorer import Scorer, in_float64, room_for, scored
from marius_py.evaluation.ranking.tiles import ENOUGH, EVEN, finish, not_less, tile_workers, where
from marius_py.nn.product_units import product_units

Float64 = NDArray[np.float64]

TILE_QUERIES = 256
TILE_CANDIDATES = 4096
_FEW = 128
"""Queries that are not parted: what each tile asks of the interpreter takes as long as their products."""
_PAIRS = 1 << 14
"""Pairs that are scored exactly at a time."""


@dataclass(frozen=True, slots=True)
class TopK:
    """The best candidates of Q queries, best first.

    Attributes:
        ids: (Q, k) int64 candidates; −1 where a query has fewer than k.
        scores: (Q, k) float64; −inf where a query has fewer than k.
        probabilities: (Q, k) float64, softmax of β·score over all candidates that were not left out; 0 where
            a query has fewer than k. None unless asked for.
        undefined: (Q,) bool, whether the score of a candidate with a finite row was NaN; None where that was
            not noted.
    """

    ids: Ids
    scores: Float64
    probabilities: Float64 | None
    undefined: NDArray[np.bool_] | None = None


def top_k(
    scorer: Scorer,
    queries: Tensor,
    blocks: Iterable[tuple[int, Float32]],
    k: int,
    *,
    known: KnownAnswers | None = None,
    beta: float | None = None,
) -> TopK:
    """Find the k best candidates of every query.

    Args:
        scorer: scores rows.
        queries: (Q, W) float32 on the scorer's device.
        blocks: (first id, rows (n, D)) ascending; every first id a multiple of `TILE_CANDIDATES`.
        k: how many, at least 1.
        known: pairs to leave out, cut into tiles of `TILE_CANDIDATES`.
        beta: inverse temperature of the softmax; None: no probabilities are wanted.

    Returns:
        At most k candidates a query. A candidate whose score is NaN or −inf is never among them.
    """
    best = Best(queries.shape[0], k)
    norms = torch.linalg.vector_norm(queries, dim=1, dtype=torch.float64)
    softmax = None if beta is None else Softmax(queries.shape[0], beta)
    dtype = torch.float32 if softmax is None else torch.float64

    def work(first: int, last: int, tiles: list[_Tile]) -> None:
        room = room_for(scorer, (last - first) * TILE_CANDIDATES) if dtype is torch.float32 else None
        with torch.no_grad():
            for tile in tiles:
                scores, left_out = tile_scores(
                    scorer, queries[first:last], tile.rows, first, tile.number, known, dtype, room
                )
                tile.update(best, scores, left_out, queries, norms, first, last, exact=softmax is not None)
                if softmax is not None:
                    softmax.add(first, scores)

    # Each query belongs to one worker at a time. Scores and their bands are of one precision, whatever other
    # threads of this process compute meanwhile.
    with product_units("float32"), tile_workers(scorer.device) as pool:
        height = _height(queries.shape[0], pool.most)
        spans = [
            (first, min(first + height, queries.shape[0])) for first in range(0, queries.shape[0], height)
        ]
        running: list[Future[None]] = []
        for start, rows in blocks:
            block = torch.from_numpy(rows).to(scorer.device)
            tiles = [
                _Tile(scorer, block[offset : offset + TILE_CANDIDATES], start + offset)
                for offset in range(0, block.shape[0], TILE_CANDIDATES)
            ]
            finish(running)
            running = [pool.submit(work, first, last, tiles) for first, last in spans]
        finish(running)
    shares = None if softmax is None else softmax.of(best.scores)
    return TopK(best.ids, best.scores, shares, best.undefined)


def _height(num_queries: int, workers: int) -> int:
    """Queries of a work, at most `TILE_QUERIES`, that give every worker as many as any, if not too few.

    >>> _height(10_000, 2), _height(600, 2), _height(300, 2), _height(40, 2), _height(0, 2)
    (256, 160, 160, 48, 16)
    """
    number = max(1, math.ceil(num_queries / TILE_QUERIES))
    if number >= ENOUGH * workers:
        return TILE_QUERIES
    number = min(math.ceil(number / workers) * workers, max(1, math.ceil(num_queries / _FEW)))
    return min(TILE_QUERIES, max(1, math.ceil(num_queries / number / EVEN)) * EVEN)


def tile_scores(
    scorer: Scorer,
    queries: Tensor,
    tile: Tensor,
    first: int,
    number: int,
    known: KnownAnswers | None,
    dtype: torch.dtype = torch.float32,
    room: Tensor | None = None,
) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
    """Fast scores of one tile, −inf at pairs to leave out.

    Args:
        scorer: scores rows.
        queries: (q, W) queries `first` to first + q.
        tile: (n, D) candidate rows.
        first: number of the first query.
        number: number of the tile of `TILE_CANDIDATES`.
        known: pairs to leave out.
        dtype: float32 or float64, to compute in; a decoder with float32 parameters of its own computes in
            float32 anyhow.
        room: where to write float32 scores, as `room_for` has it; None: to new memory.

    Returns:
        Scores (q, n), and the places (query − first, column) that were left out.
    """
    scores = in_float64(scorer.scores, queries, tile) if dtype is torch.float64 else None
    if scores is None:
        scores = scored(scorer, queries, tile, room)
    if known is None:
        return scores, None
    rows, columns = known.in_tile(first, first + queries.shape[0], number)
    left_out = (torch.from_numpy(rows).to(scores.device), torch.from_numpy(columns).to(scores.device))
    scores.index_put_(left_out, scores.new_tensor(-math.inf))
    return scores, left_out


class Softmax:
    """Σ exp(β·(score − best score)) by query, added up tile by tile; its terms are at most 1.

    Args:
        num_queries: Q.
        beta: inverse temperature; infinite where the best answers share everything.
    """

    def __init__(self, num_queries: int, beta: float) -> None:
        # Of T below 6e-309 the inverse is infinite, and 0·∞ no number; the best answers share all by then.
        self._beta = min(beta, sys.float_info.max)
        self._best = np.full(num_queries, np.finfo(np.float64).min)
        self._sum = np.zeros(num_queries)

    def add(self, first: int, scores: Tensor) -> None:
        """Add a tile's scores (q, n) of the queries from `first`; NaN adds nothing."""
        scores = torch.nan_to_num(scores.double(), nan=-math.inf, neginf=-math.inf)
        span = slice(first, first + scores.shape[0])
        best = np.maximum(self._best[span], scores.amax(1).cpu().numpy())
        terms = (scores - torch.from_numpy(best).to(scores.device).unsqueeze(1)).mul_(self._beta).exp_()
        self._sum[span] = self._sum[span] * self._term(self._best[span], best) + terms.sum(1).cpu().numpy()
        self._best[span] = best

    def of(self, scores: Float64) -> Float64:
        """Probabilities (Q, k) of scores (Q, k) that were added."""
        terms = self._term(np.nan_to_num(scores, neginf=-math.inf), self._best[:, None])
        # The best score itself adds 1; less is the sum of a query without any answer.
        return terms / np.maximum(self._sum, 1)[:, None]

    def _term(self, scores: Float64, best: Float64) -> Float64:
        with np.errstate(over="ignore"):
            terms: Float64 = np.exp(self._beta * (scores - best))
        return terms


class Best:
    """The best so far: (Q, k) scores, descending, and ids; (Q,) whether a finite row's score was NaN."""

    def __init__(self, num_queries: int, k: int) -> None:
        self.scores = np.full((num_queries, k), -math.inf)
        self.ids = np.full((num_queries, k), -1, dtype=np.int64)
        self.undefined = np.zeros(num_queries, dtype=np.bool_)

    def merge(self, query: Ids, ids: Ids, scores: Float64) -> None:
        """Take in pairs (n,) that are not among the best yet."""
        usable = scores > -math.inf  # false for NaN too
        query, ids, scores = query[usable], ids[usable], scores[usable]
        if not query.size:
            return
        rows = distinct(query)
        k = self.ids.shape[1]
        all_query = np.concatenate((np.repeat(rows, k), query))
        all_ids = np.concatenate((self.ids[rows].reshape(-1), ids))
        all_scores = np.concatenate((self.scores[rows].reshape(-1), scores))
        order = np.lexsort((all_ids, -all_scores, all_query))
        starts, counts = np.unique(all_query[order], return_index=True, return_counts=True)[1:]
        rank = np.arange(order.size) - np.repeat(starts, counts)
        kept = order[rank < k]
        self.ids[rows] = all_ids[kept].reshape(-1, k)
        self.scores[rows] = all_scores[kept].reshape(-1, k)


class _Tile:
    """Candidate rows of one tile, searched for entries of the best."""

    def __init__(self, scorer: Scorer, rows: Tensor, start: int) -> None:
        self._scorer = scorer
        self.rows = rows
        self._start = start
        self.number = start // TILE_CANDIDATES
        # No norm bounds a row of `_odd`: it is always scored exactly.
        self._largest, self._odd = norm_bound(rows)

    def update(
        self,
        best: Best,
        scores: Tensor,
        left_out: tuple[Tensor, Tensor] | None,
        queries: Tensor,
        norms: Tensor,
        first: int,
        last: int,
        *,
        exact: bool,
    ) -> None:
        """Bring the best of queries [first, last) up to date with this tile's fast scores (q, n).

        With `exact`, exact scores take the places of the fast ones that could not decide.
        """
        k = best.ids.shape[1]
        worst = torch.from_numpy(best.scores[first:last, -1].copy()).to(scores.device)
        if bool(torch.isinf(worst).any()) and scores.shape[1] > k:
            worst = torch.maximum(worst, self._first_bound(scores, queries[first:last], k))
        low = self._scorer.band(worst, norms[first:last], self._largest, scores.dtype)[0]
        bound = torch.nextafter(low.to(scores.dtype), scores.new_tensor(-math.inf))
        maybe = not_less(scores, bound)  # NaN where finite rows overflow: their exact score may be a number
        if self._odd is not None:
            maybe[:, self._odd] = True
        if left_out is not None:
            maybe[left_out] = False
        row, column = (part.cpu() for part in where(maybe))
        # Most pairs of a tile that ties throughout cannot enter: chunks keep their memory bounded.
        for begin in range(0, row.numel(), _PAIRS):
            part, place = row[begin : begin + _PAIRS], column[begin : begin + _PAIRS]
            found = self._exact(queries, part + first, place)
            if exact:
                scores[part.to(scores.device), place.to(scores.device)] = torch.from_numpy(found).to(scores)
            numbers = (part + first).numpy()
            nan = np.isnan(found)
            if nan.any():  # of a row without numbers it says nothing
                nan[nan] = torch.isfinite(self.rows[place[nan].to(self.rows.device)]).all(1).cpu().numpy()
                best.undefined[numbers[nan]] = True
            # Ids ascend from tile to tile, so an equal score that comes later loses the tie.
            enters = found > best.scores[numbers, -1]
            best.merge(numbers[enters], place.numpy()[enters] + self._start, found[enters])

    def _first_bound(self, scores: Tensor, queries: Tensor, k: int) -> Tensor:
        """Exact score (q,) float64 that at least k candidates of this tile reach; −inf if there is none."""
        fast, place = torch.topk(torch.nan_to_num(scores, nan=-math.inf), k, dim=1)
        row = torch.arange(fast.shape[0]).repeat_interleave(k)
        column = place.reshape(-1).cpu()
        parts = [
            self._exact(queries, row[i : i + _PAIRS], column[i : i + _PAIRS])
            for i in range(0, row.numel(), _PAIRS)
        ]
        exact = torch.from_numpy(np.concatenate(parts)).to(fast.device).reshape(-1, k)
        # Pairs that are left out stand at −inf among the fast scores; their exact ones are finite.
        exact = torch.where(torch.isneginf(fast), fast.double(), exact)
        return torch.nan_to_num(exact, nan=-math.inf, posinf=math.inf, neginf=-math.inf).amin(1)

    def _exact(self, queries: Tensor, query: Tensor, column: Tensor) -> Float64:
        device = queries.device
        found: Float64 = (
            self._scorer.exact(queries[query.to(device)], self.rows[column.to(device)]).cpu().numpy()
        )
        return found
