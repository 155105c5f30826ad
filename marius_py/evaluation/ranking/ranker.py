"""Ranks edges (floor 4): edges, a scorer and candidates in, better and equal counts out.

(A) one look at the rows of known ends and true answers, (B) one look at the edges for known answers, (C) one
pass over all candidates, which counts. Memory follows from a budget, not from the number of nodes or edges.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from marius_py.buffer.numbers import NotFinite
from marius_py.errors import ConfigError
from marius_py.evaluation.ranking.candidates import CandidateSource, Ids, NodeReader, gather_rows
from marius_py.evaluation.ranking.counting import COMPILED_SCORES, CandidateBlock, Counter, Questions
from marius_py.evaluation.ranking.known import (
    QUERY_SIDES,
    KnownAnswers,
    KnownFinder,
    QueryBlock,
    group_queries,
)
from marius_py.evaluation.ranking.scorer import Scorer
from marius_py.evaluation.ranking.tiles import ENOUGH, EVEN, tile_workers
from marius_py.nn.kernels.host import numba_works
from marius_py.storage.protocols import Edges
from marius_py.workers import Workers

MIN_MEMORY_BYTES = 1 << 20
_PAIR_BYTES = 48
"""Bytes a known pair needs at the peak, while it is brought into the order of tiles."""
_ROWS_PER_QUERY = 3
"""Rows held for a query at the peak: its own, its anchor's, one of an answer."""
_TRUE_SCORES = 2048
_CPU_TILE = (512, 1536)
"""Queries and candidates compared at a time: 3 MiB of scores stay in a cache, and what else a tile asks for
takes little beside them."""
_CUDA_TILE = (4096, 8192)


@dataclass(frozen=True, slots=True)
class Counts:
    """What ranks follow from, for E edges; column 0 ranks the head, column 1 the tail.

    Attributes:
        better: (E, 2) int64 candidates with a strictly better score.
        equal: (E, 2) int64 candidates with the same score, the true one included.
        candidates: (E, 2) int64 candidates after filtering, the true one included; 0: not ranked.
    """

    better: NDArray[np.int64]
    equal: NDArray[np.int64]
    candidates: NDArray[np.int64]

    @property
    def ranks(self) -> NDArray[np.float64]:
        """Realistic ranks (E, 2): the mean of the optimistic and the pessimistic one; NaN: not ranked."""
        return np.where(self.ranked, self.better + (self.equal + 1) / 2, np.nan)

    @property
    def ranked(self) -> NDArray[np.bool_]:
        """Which ends (E, 2) were ranked."""
        return self.candidates > 0

    def of(self, edges: slice | NDArray[np.bool_] | NDArray[np.integer]) -> Counts:
        """Counts of some of the edges: a range, a mask (E,) or numbers (n,)."""
        return Counts(self.better[edges], self.equal[edges], self.candidates[edges])

    @staticmethod
    def empty(num_edges: int) -> Counts:
        """Counts of `num_edges` edges, all zero, to be filled."""
        shape = (num_edges, 2)
        return Counts(np.zeros(shape, np.int64), np.zeros(shape, np.int64), np.zeros(shape, np.int64))

    def fill(self, order: Ids, better: Ids, equal: Ids, candidates: Ids) -> None:
        """Set the counts (t,) of items `order` (t,): the tails of all edges, then their heads."""
        edge, is_head = order % len(self.better), order >= len(self.better)
        column = np.where(is_head, 0, 1)
        self.better[edge, column] = better
        self.equal[edge, column] = equal
        self.candidates[edge, column] = candidates


class Ranker:
    """Ranks edges among candidates in bounded memory.

    Args:
        scorer: scores queries and candidates.
        reader: the node table, for the rows of known ends.
        answer_reader: for the rows of true answers, as `source` has them; None: `reader`.
        source: the candidates.
        num_nodes: N.
        num_relations: R.
        dim: embedding width D.
        known_edges: gives a fresh iterator over blocks (E, 3) of all edges known to be true, the ranked ones
            among them.
        num_known: how many these are.
        memory_bytes: budget for rows, filter and candidate blocks, at least 1 MiB.

    Attributes:
        nan_answers: scores of true answers that were NaN, which rank last.
        nan_candidates: those of other candidates, which count as worse than any answer; they are counted for
            a comparison of a user's own.
        odd_candidates: candidates whose rows hold a NaN or an infinity.

    Raises:
        ConfigError: the budget is too small.
    """

    def __init__(
        self,
        scorer: Scorer,
        reader: NodeReader,
        source: CandidateSource,
        *,
        num_nodes: int,
        num_relations: int,
        dim: int,
        known_edges: Callable[[], Iterable[Edges]],
        num_known: int,
        memory_bytes: int,
        answer_reader: NodeReader | None = None,
    ) -> None:
        if memory_bytes < MIN_MEMORY_BYTES:
            raise ConfigError(
                f"evaluation memory is {memory_bytes} bytes; allowed: {MIN_MEMORY_BYTES} (1 MiB) or more"
            )
        self._scorer = scorer
        self._reader = reader
        self._answer_reader = answer_reader or reader
        self._source = source
        self._num_nodes = num_nodes
        self._num_relations = num_relations
        self._dim = dim
        self._num_known = num_known
        self.nan_answers = self.nan_candidates = self.odd_candidates = 0
        self._finder = KnownFinder(source, known_edges, num_nodes, num_relations)
        # A half for the queries, an eighth for each of two candidate blocks, a quarter for the filter.
        row_bytes = 4 * dim
        self._max_queries = max(1, memory_bytes // 2 // (_ROWS_PER_QUERY * row_bytes))
        height, width = _CUDA_TILE if scorer.device.type == "cuda" else _CPU_TILE
        fitting = memory_bytes // 8 // row_bytes
        self._tile = (height, min(width, max(8, fitting // 8 * 8)))
        self._block_rows = max(1, fitting // self._tile[1]) * self._tile[1]
        self._max_pairs = memory_bytes // 4 // _PAIR_BYTES

    def rank(
        self,
        edges: Edges,
        progress: Callable[[int, int], None] | None = None,
        asked: NDArray[np.bool_] | None = None,
    ) -> Counts:
        """Rank the ends of edges (E, 3), which must be among the known ones.

        Args:
            edges: head, relation and tail ids.
            progress: called with (edges done, E) after each block of queries; a block's share of the answers
                counts as its share of the edges.
            asked: (E, 2) bool, which heads (column 0) and tails (1) to rank; None: all.

        Returns:
            Counts of the E edges, in order.
        """
        queries = group_queries(edges, self._num_nodes, self._num_relations, asked)
        counts = Counts.empty(len(edges))
        with torch.no_grad(), tile_workers(self._scorer.device) as pool:
            for block in self._blocks(queries):
                self._rank_block(block, pool, counts)
                if progress is not None:
                    done = int(np.searchsorted(queries.keys, block.keys[-1], side="right"))
                    answered = int(np.searchsorted(queries.query_of, done))
                    progress(answered * len(edges) // queries.answers.size, len(edges))
        return counts

    def _blocks(self, queries: QueryBlock) -> Iterator[QueryBlock]:
        """Cut the queries so that rows and known answers of each block fit into the budget.

        A query lies in one block with all its answers, so the known answers of a hub are found once.
        """
        total = queries.keys.size
        pairs = np.zeros(total + 1, dtype=np.int64)
        if self._num_known * len(QUERY_SIDES) > self._max_pairs:
            np.cumsum(self._finder.count(queries), out=pairs[1:])
        first = 0
        while first < total:
            last = int(np.searchsorted(pairs, pairs[first] + self._max_pairs, side="right")) - 1
            last = min(max(last, first + 1), first + self._max_queries, total)
            yield queries.part(first, last)
            first = last

    def _rank_block(self, block: QueryBlock, pool: Workers, counts: Counts) -> None:
        known = self._finder.find(block, self._tile[1])
        questions, defined = self._ask(block)
        candidates = self._source.size - known.per_query[block.query_of] + 1
        # A true score that is NaN ranks last: all others count as better.
        better, equal = candidates - 1, np.ones_like(candidates)
        self.nan_answers += candidates.size - defined.size
        if defined.size:
            # Its known answers, the true one among them, are left out; the true one is equal to itself.
            counted = np.zeros((2, defined.size), dtype=np.int64)
            self._count(questions, known, pool, counted)
            better[defined] = counted[0]
            equal[defined] += counted[1]
        counts.fill(block.order, better, equal, candidates)

    def _ask(self, block: QueryBlock) -> tuple[Questions, Ids]:
        """Queries of a block with the answers whose score is not NaN, and these answers' places (t,)."""
        device = self._scorer.device
        ids, place = np.unique(block.anchors, return_inverse=True)
        anchors, relations = torch.from_numpy(place.reshape(-1)), torch.from_numpy(block.relations)
        rows = self._gather(self._reader, ids)
        parts = []
        for side in QUERY_SIDES:
            span = block.side_slice(side)
            parts.append(
                self._scorer.queries(rows[anchors[span]].to(device), relations[span].to(device), side)
            )
        queries = torch.cat(parts)
        del rows, parts
        query_of = torch.from_numpy(block.query_of)
        true = self._true_scores(queries, query_of, block.answers)
        defined = torch.nonzero(~torch.isnan(true)).squeeze(1).cpu()
        norms = torch.linalg.vector_norm(queries, dim=1, dtype=torch.float64)
        questions = Questions(queries, norms, query_of[defined], true[defined.to(device)])
        return questions, defined.numpy()

    def _true_scores(self, queries: Tensor, query_of: Tensor, answers: Ids) -> Tensor:
        """Exact scores (T,) of the answers; rows of as many different answers at a time as fit."""
        device = self._scorer.device
        true = torch.empty(answers.size, dtype=torch.float64, device=device)
        order = np.argsort(answers, kind="stable")
        ids, place = np.unique(answers[order], return_inverse=True)
        for first in range(0, ids.size, self._max_queries):
            rows = self._gather(self._answer_reader, ids[first : first + self._max_queries])
            start, stop = np.searchsorted(place.reshape(-1), (first, first + self._max_queries))
            for begin in range(start, stop, _TRUE_SCORES):
                end = min(begin + _TRUE_SCORES, stop)
                chosen = torch.from_numpy(order[begin:end])
                candidates = rows[torch.from_numpy(place[begin:end] - first)].to(device)
                asked = queries[query_of[chosen].to(device)]
                true[chosen.to(device)] = self._scorer.exact(asked, candidates)
        return true

    def _gather(self, reader: NodeReader, ids: Ids) -> Tensor:
        return torch.from_numpy(gather_rows(reader, ids, self._num_nodes, self._dim, self._block_rows))

    def _count(
        self,
        questions: Questions,
        known: KnownAnswers,
        pool: Workers,
        counted: NDArray[np.int64],
    ) -> None:
        """Add better and equal candidates to `counted` (2, t) in one pass over blocks of candidates."""
        num_queries, width = questions.rows.shape[0], self._tile[1]
        height, num_parts = _works(num_queries, self._tile[0], pool.most)
        compiled = num_queries * self._source.size >= COMPILED_SCORES and numba_works()
        odd = NotFinite()

        def work(first: int, block: CandidateBlock) -> tuple[Counter, slice, NDArray[np.int64]]:
            with torch.no_grad():
                last = min(first + height, num_queries)
                counter = Counter(self._scorer, questions, first, last, block, compiled=compiled)
                return counter, *counter.count(known)

        def collect() -> None:
            for future in running:
                counter, span, more = future.result()
                counted[:, span] += more
                self.nan_candidates += counter.num_nan

        running: list[Future[tuple[Counter, slice, NDArray[np.int64]]]] = []
        for start, rows in self._source.blocks(self._block_rows):
            odd.see(rows, start)
            on_device = torch.from_numpy(rows).to(self._scorer.device, non_blocking=True)
            part_rows = math.ceil(len(rows) / width / num_parts) * width
            parts = [
                CandidateBlock(on_device[offset : offset + part_rows], start + offset, width)
                for offset in range(0, len(rows), part_rows)
            ]
            collect()
            running = [
                pool.submit(work, first, part) for part in parts for first in range(0, num_queries, height)
            ]
        collect()
        self.odd_candidates = odd.count  # each pass sees all


def _works(num_queries: int, most: int, workers: int) -> tuple[int, int]:
    """Queries of a work, at most so many, and parts of a block of candidates that give all workers as much.

    >>> _works(40_000, 512, 2), _works(600, 512, 2), _works(40, 512, 2), _works(1_000, 512, 16)
    ((512, 1), (304, 1), (48, 2), (512, 8))
    """
    num_spans = math.ceil(num_queries / most)
    if num_spans >= ENOUGH * workers:
        return most, 1
    height = min(most, math.ceil(num_queries / num_spans / EVEN) * EVEN)
    return height, math.lcm(num_spans, workers) // num_spans
