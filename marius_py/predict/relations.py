"""Completes edges by their relation (floor 4): pairs of nodes by id in, the k best relations out.

Where a decoder multiplies coordinate by coordinate, head and tail make one vector, and its products with the
relations sort out what surely is not among the best. Elsewhere every relation is scored exactly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from marius_py.evaluation.evaluator import DEFAULT_MEMORY_BYTES
from marius_py.evaluation.ranking.candidates import Ids
from marius_py.evaluation.ranking.known import KnownAnswers, edge_blocks
from marius_py.evaluation.ranking.scorer import OVERFLOW, ModelScorer, similarity_of
from marius_py.evaluation.ranking.trained import TrainedModel
from marius_py.nn.decoders.base import Decoder, written_together
from marius_py.predict.completion import (
    check_k,
    check_memory,
    cut,
    score_edges,
)
from marius_py.predict.finite import not_finite, odd_relations, only_numbers
from marius_py.predict.topk import TILE_CANDIDATES, Softmax, TopK, top_k
from marius_py.types import SPLITS

if TYPE_CHECKING:
    from marius_py.run_files.reader import RunReader

_RELATION_BYTES = 64
"""Bytes a relation of a query needs at the peak where all are scored: ids of edges, scores, their order."""
_UNDERFLOW = 2.0**-120
"""More than what a coordinate's product loses below the smallest normal float32."""


def complete_relations(
    run: RunReader,
    heads: Ids,
    tails: Ids,
    k: int,
    *,
    filter_known: bool = False,
    beta: float | None = None,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
) -> TopK:
    """The k best relations for each pair of nodes; arguments and result as for `complete_nodes`."""
    check_memory(memory_bytes)
    num_relations = max(run.graph.num_relations, 1)
    k = min(check_k(k), num_relations)
    pairs, inverse = np.unique(heads * np.int64(run.num_nodes) + tails, return_inverse=True)
    if filter_known:
        known = _known_relations(run, pairs, memory_bytes)
    else:
        known = _Known(np.zeros(pairs.size + 1, np.int64), np.empty(0, np.int64))
    # A softmax needs every score as it is, and so do as many answers as there are relations.
    if beta is None and k < num_relations and _is_product(run.model.decoder):
        found = _search(run, pairs, k, known, memory_bytes)
    else:
        found = _score_all(run, pairs, k, known, beta, memory_bytes)
    order = inverse.reshape(-1)
    shares = None if found.probabilities is None else found.probabilities[order]
    undefined = None if found.undefined is None else found.undefined[order]
    return TopK(found.ids[order], found.scores[order], shares, undefined)


@dataclass(frozen=True, slots=True)
class _Known:
    """Relations (n,) that stand between pairs; those of pair i from starts[i] to starts[i + 1]."""

    starts: Ids
    relations: Ids

    def of(self, pair: int) -> Ids:
        return self.relations[self.starts[pair] : self.starts[pair + 1]]


def _known_relations(run: RunReader, asked: Ids, memory_bytes: int) -> _Known:
    """Edges of all splits between pairs (Q,), ascending head · N + tail."""
    places, relations = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
    with run.graph.edges() as edges:
        for part in edge_blocks(edges, SPLITS, memory_bytes):
            pair = part[:, 0].astype(np.int64) * run.num_nodes + part[:, 2]
            place = np.minimum(np.searchsorted(asked, pair), asked.size - 1)
            hit = asked[place] == pair
            places.append(place[hit])
            relations.append(part[hit, 1].astype(np.int64))
    place = np.concatenate(places)
    order = np.argsort(place, kind="stable")
    starts = np.searchsorted(place[order], np.arange(asked.size + 1))
    return _Known(starts, np.concatenate(relations)[order])


def _score_all(
    run: RunReader, pairs: Ids, k: int, known: _Known, beta: float | None, memory_bytes: int
) -> TopK:
    """The best of pairs (Q,), head · N + tail, by the exact scores of all relations."""
    num_relations = max(run.graph.num_relations, 1)
    ids, best = np.empty((pairs.size, k), dtype=np.int64), np.empty((pairs.size, k))
    undefined = np.zeros(pairs.size, np.bool_)
    softmax = None if beta is None else Softmax(pairs.size, beta)
    relations = np.arange(num_relations)
    odd = odd_relations(run)[:num_relations].numpy()
    step = max(1, memory_bytes // 4 // (_RELATION_BYTES * num_relations))
    for start in range(0, pairs.size, step):
        span = slice(start, start + step)
        heads, tails = np.divmod(pairs[span], run.num_nodes)
        edges = np.empty((heads.size * num_relations, 3), dtype=np.int64)
        edges[:, 0] = np.repeat(heads, num_relations)
        edges[:, 1] = np.tile(relations, heads.size)
        edges[:, 2] = np.repeat(tails, num_relations)
        scores = score_edges(run, edges, memory_bytes=memory_bytes).reshape(heads.size, num_relations)
        del edges
        scores[not_finite(run, heads) | not_finite(run, tails)] = -math.inf
        scores[:, odd] = -math.inf
        for row in range(heads.size):
            scores[row, known.of(start + row)] = -math.inf
        is_nan = np.isnan(scores)
        undefined[span] = is_nan.any(1)
        scores[is_nan] = -math.inf
        order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        best[span] = np.take_along_axis(scores, order, axis=1)
        ids[span] = np.where(best[span] > -math.inf, order, -1)
        if softmax is not None:
            softmax.add(start, torch.from_numpy(scores))
    return TopK(ids, best, None if softmax is None else softmax.of(best), undefined)


def _is_product(decoder: Decoder) -> bool:
    """Whether head and tail make one vector whose product with the relation's row is the score."""
    return (
        similarity_of(decoder) == "dot"
        and getattr(decoder, "product", None) in ("real", "complex")
        and written_together(decoder, "product", "query")
    )


def _search(run: RunReader, pairs: Ids, k: int, known: _Known, memory_bytes: int) -> TopK:
    """The best of pairs (Q,), head · N + tail, by a fast pass over the relations."""
    scorer = _RelationScorer(run.model, run.dim)
    rows = only_numbers(run.model.relations[: run.graph.num_relations].cpu().numpy())[0]
    ids, best = np.empty((pairs.size, k), dtype=np.int64), np.empty((pairs.size, k))
    for start, stop in cut(np.diff(known.starts), k, 2 * run.dim, memory_bytes):
        ends = np.divmod(pairs[start:stop], run.num_nodes)
        pair_rows = only_numbers(np.concatenate([run.embeddings(nodes) for nodes in ends], axis=1))[0]
        counts = np.diff(known.starts[start : stop + 1])
        relations = known.relations[known.starts[start] : known.starts[stop]]
        left_out = KnownAnswers(
            np.repeat(np.arange(counts.size), counts) * len(rows) + relations,
            counts.size,
            len(rows),
            TILE_CANDIDATES,
        )
        queries = torch.from_numpy(pair_rows).to(scorer.device)
        found = top_k(scorer, queries, [(0, rows)], k, known=left_out)
        ids[start:stop], best[start:stop] = found.ids, found.scores
    return TopK(ids, best, None)


class _RelationScorer(ModelScorer):
    """Compares pairs of nodes, head and tail in one row (Q, 2D), with relation rows (K, D)."""

    def __init__(self, model: TrainedModel, dim: int) -> None:
        super().__init__(model, dim)
        self._decoder = model.decoder

    def scores(self, queries: Tensor, candidates: Tensor) -> Tensor:
        """Scores (U, K): with conjugates for heads, tail ∘ head is the vector that meets the relation."""
        head, tail = queries.chunk(2, 1)
        scores = self._decoder.query(tail, head, "head") @ candidates.T
        # A sum of infinities says nothing: such a pair is scored exactly.
        return scores.nan_to_num_(nan=math.inf, posinf=math.inf, neginf=-math.inf)

    def exact(self, queries: Tensor, candidates: Tensor) -> Tensor:
        """Scores (n,) float64 of the tails' queries, as `score_edges` computes them."""
        head, tail = queries.chunk(2, 1)
        edges = ModelScorer(TrainedModel(self._decoder, candidates, reciprocal=False), self._dim)
        numbers = torch.arange(candidates.shape[0], device=candidates.device)
        return super().exact(edges.queries(head, numbers, "tail"), tail)

    def band(
        self, true: Tensor, query_norm: Tensor, candidate_norm: float, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """Bounds of a sum of D products, twice as wide: head ∘ tail and head ∘ relation are rounded too.

        ‖head ∘ tail‖ ≤ ‖head‖·‖tail‖ ≤ ‖query‖² / 2.
        """
        product = query_norm.square()
        low, high = super().band(true, product, candidate_norm, torch.float32)
        lost = _UNDERFLOW * self._dim * (query_norm + candidate_norm)
        unbounded = ~(product < OVERFLOW)
        return (low - lost).masked_fill(unbounded, -math.inf), (high + lost).masked_fill(unbounded, math.inf)
