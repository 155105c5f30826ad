"""Ranks a block of edges (floor 4): edges, a scorer and candidates in, better and equal counts out.

(A) one look at the rows of known ends and true answers, (B) one look at the edges for known answers, (C) one
pass over all candidates, which counts. Memory follows from a budget, not from the number of nodes or edges.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from marius_py.errors import ConfigError
from marius_py.ranking.candidates import CandidateSource, Ids, NodeReader, gather_rows
from marius_py.ranking.counting import Questions, Tile, count_tile, make_tile
from marius_py.ranking.known import QUERY_SIDES, KnownAnswers, QueryBlock, find_known, group_queries
from marius_py.ranking.scorer import Scorer
from marius_py.storage.protocols import Edges

logger = logging.getLogger(__name__)

MIN_MEMORY_BYTES = 1 << 20
_PAIR_BYTES = 48
"""Bytes a known pair needs at the peak: found, sorted, cut into tiles."""
_ROWS_PER_EDGE = 5
"""Rows held for an edge at the peak: two queries and three gathered rows."""
_CPU_TILE = (256, 1024)
_CUDA_TILE = (4096, 8192)


@dataclass(frozen=True, slots=True)
class Counts:
    """What ranks follow from, for E edges; column 0 ranks the head, column 1 the tail.

    Attributes:
        better: (E, 2) int64 candidates with a strictly better score.
        equal: (E, 2) int64 candidates with the same score, the true one included.
        candidates: (E, 2) int64 candidates after filtering, the true one included.
    """

    better: NDArray[np.int64]
    equal: NDArray[np.int64]
    candidates: NDArray[np.int64]

    @staticmethod
    def concatenate(parts: list[Counts]) -> Counts:
        """Counts of the edges of all parts, in order."""
        if not parts:
            none = np.zeros((0, 2), dtype=np.int64)
            return Counts(none, none, none)
        return Counts(
            np.concatenate([part.better for part in parts]),
            np.concatenate([part.equal for part in parts]),
            np.concatenate([part.candidates for part in parts]),
        )


class Ranker:
    """Ranks edges among candidates in bounded memory.

    Args:
        scorer: scores queries and candidates.
        reader: the node table, for the rows of known ends and true answers.
        source: the candidates.
        num_nodes: N.
        num_relations: R.
        dim: embedding width D.
        known_edges: gives a fresh iterator over blocks (E, 3) of all edges known to be true.
        memory_bytes: budget for rows, filter and candidate blocks, at least 1 MiB.

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
        memory_bytes: int,
    ) -> None:
        if memory_bytes < MIN_MEMORY_BYTES:
            raise ConfigError(
                f"evaluation memory is {memory_bytes} bytes; allowed: {MIN_MEMORY_BYTES} (1 MiB) or more"
            )
        self._scorer = scorer
        self._reader = reader
        self._source = source
        self._num_nodes = num_nodes
        self._num_relations = num_relations
        self._dim = dim
        self._known_edges = known_edges
        self._tile = _CUDA_TILE if scorer.device.type == "cuda" else _CPU_TILE
        row_bytes = 4 * dim
        # A half for the queries, an eighth for each of two candidate blocks, a quarter for the filter.
        self.block_edges = max(1, memory_bytes // 2 // (_ROWS_PER_EDGE * row_bytes))
        tiles = memory_bytes // 8 // (row_bytes * self._tile[1])
        self.block_rows = max(1, tiles) * self._tile[1]
        self._max_pairs = memory_bytes // 4 // _PAIR_BYTES

    def rank(self, num_edges: int, read: Callable[[int, int], Edges]) -> Iterator[tuple[int, Counts]]:
        """Rank edges block by block.

        Args:
            num_edges: how many edges to rank.
            read: gives edges (stop − start, 3) by position; they count as known.

        Yields:
            (number of edges done so far, counts of the block's edges), in order.
        """
        start, size = 0, self.block_edges
        with torch.no_grad(), _workers(self._scorer.device) as pool:
            while start < num_edges:
                part = read(start, min(start + size, num_edges))
                block = group_queries(part, self._num_nodes, self._num_relations)
                known = self._find_known(block, len(part))
                if known is None:
                    size = max(1, len(part) // 2)
                    logger.debug("known answers exceed the memory budget; ranking %d edges at a time", size)
                    continue
                start += len(part)
                yield start, self._rank_block(block, known, pool)

    def _find_known(self, block: QueryBlock, num_edges: int) -> KnownAnswers | None:
        return find_known(
            block,
            self._source,
            self._known_edges(),
            self._num_nodes,
            self._num_relations,
            self._tile[1],
            self._max_pairs if num_edges > 1 else None,
        )

    def _rank_block(self, block: QueryBlock, known: KnownAnswers, pool: ThreadPoolExecutor) -> Counts:
        questions, defined = self._ask(block)
        candidates = self._source.size - known.per_query[block.query_of] + 1
        # A true score that is NaN ranks last: all others count as better.
        better, equal = candidates - 1, np.ones_like(candidates)
        if defined.size:
            # Its known answers, the true one among them, are left out; the true one is equal to itself.
            better[defined] = 0
            counted = np.zeros((2, defined.size), dtype=np.int64)
            self._count(questions, known, pool, counted)
            better[defined] += counted[0]
            equal[defined] += counted[1]
        num_edges = candidates.size // 2
        result = []
        for values in (better, equal, candidates):
            in_order = np.empty_like(values)
            in_order[block.order] = values
            result.append(np.stack((in_order[num_edges:], in_order[:num_edges]), axis=1))
        return Counts(*result)

    def _ask(self, block: QueryBlock) -> tuple[Questions, Ids]:
        """Queries of a block with the answers whose score is not NaN, and these answers' places (t,)."""
        device = self._scorer.device
        ids = np.unique(np.concatenate((block.anchors, block.answers)))
        rows = torch.from_numpy(gather_rows(self._reader, ids, self._num_nodes, self._dim, self.block_rows))
        relations = torch.from_numpy(block.relations)
        anchors = torch.from_numpy(np.searchsorted(ids, block.anchors))
        parts = []
        for side in QUERY_SIDES:
            span = block.side_slice(side)
            parts.append(
                self._scorer.queries(rows[anchors[span]].to(device), relations[span].to(device), side)
            )
        queries = torch.cat(parts)
        query_of = torch.from_numpy(block.query_of)
        places = torch.from_numpy(np.searchsorted(ids, block.answers))
        step = _CPU_TILE[0] * 8
        true = torch.cat(
            [
                self._scorer.exact(
                    queries[query_of[i : i + step].to(device)], rows[places[i : i + step]].to(device)
                )
                for i in range(0, places.numel(), step)
            ]
        )
        defined = torch.nonzero(~torch.isnan(true)).squeeze(1).cpu()
        norms = torch.linalg.vector_norm(queries, dim=1, dtype=torch.float64)
        questions = Questions(queries, norms, query_of[defined], true[defined.to(device)])
        return questions, defined.numpy()

    def _count(
        self,
        questions: Questions,
        known: KnownAnswers,
        pool: ThreadPoolExecutor,
        counted: NDArray[np.int64],
    ) -> None:
        """Add better and equal candidates to `counted` (2, t) in one pass; workers add to disjoint slices."""
        height, width = self._tile
        num_queries = questions.rows.shape[0]
        edges_of = np.searchsorted(questions.query_of.numpy(), np.arange(0, num_queries + height, height))

        def work(tile_row: int, first_tile: int, tiles: list[Tile]) -> None:
            first, last = tile_row * height, min((tile_row + 1) * height, num_queries)
            span = slice(edges_of[tile_row], edges_of[tile_row + 1])
            with torch.no_grad():
                for offset, tile in enumerate(tiles):
                    pairs = known.in_tile(first, last, first_tile + offset)
                    counted[:, span] += count_tile(self._scorer, questions, first, last, tile, pairs)

        running: list[Future[None]] = []
        for start, rows in self._source.blocks(self.block_rows):
            block = torch.from_numpy(rows).to(self._scorer.device, non_blocking=True)
            tiles = [make_tile(block[i : i + width]) for i in range(0, block.shape[0], width)]
            _finish(running)
            running = [
                pool.submit(work, tile_row, start // width, tiles)
                for tile_row in range(-(-num_queries // height))
            ]
        _finish(running)


def _finish(running: list[Future[None]]) -> None:
    """Wait for all; raise the first error."""
    for future in running:
        future.result()


@contextmanager
def _workers(device: torch.device) -> Iterator[ThreadPoolExecutor]:
    """Threads that count tiles, each with one torch thread; the caller reads the next block meanwhile.

    Whole tiles in parallel need no barrier after each operation, which on a busy machine costs more than the
    operation. On an accelerator there is one, to queue its kernels.
    """
    threads = torch.get_num_threads()
    count = 1 if device.type == "cuda" else threads
    pool = ThreadPoolExecutor(
        count, thread_name_prefix="rank", initializer=torch.set_num_threads, initargs=(1,)
    )
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        torch.set_num_threads(threads)
