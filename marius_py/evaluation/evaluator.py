"""Evaluates link prediction (floor 4): a model, a row reader and edges in, `Metrics` out.

Embeddings stay where they are: the reader is asked for blocks of rows and for the rows of a block of queries,
so a table on disk is never held whole.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from marius_py.arrays import distinct
from marius_py.errors import ConfigError
from marius_py.evaluation.metrics import (
    CATEGORIES,
    DEFAULT_KS,
    PROTOCOL,
    SAMPLED,
    Metrics,
    by_category,
    by_degree,
    by_relation,
    categorize,
    check_ks,
    side_figures,
)
from marius_py.evaluation.ranking.candidates import (
    AllNodes,
    CandidateSource,
    ChosenNodes,
    Ids,
    NodeReader,
    SampledNodes,
    gather_rows,
    position_in,
)
from marius_py.evaluation.ranking.known import edge_blocks, edges_at_once
from marius_py.evaluation.ranking.precision import RoundedReader
from marius_py.evaluation.ranking.ranker import Counts, Ranker
from marius_py.evaluation.ranking.scorer import ModelScorer, RankedModel, Scorer
from marius_py.evaluation.relation_counts import count_multiplicity
from marius_py.nn.product_units import HostPrecision, product_units
from marius_py.pipeline.execution import torch_threads
from marius_py.storage.protocols import Edges, EdgeStore
from marius_py.streams import Purpose, stream
from marius_py.types import SPLITS, Progress

logger = logging.getLogger(__name__)

Mode = Literal["full", "sampled"]
DEFAULT_MEMORY_BYTES = 256 << 20
_DRAWS = 1 << 20
"""Nodes that are drawn by degree at a time."""

_GAP_EDGES = 1024
"""Reading so many edges more costs about what another read does."""


class DegreeReader(Protocol):
    """Train degrees of nodes."""

    def degrees(self, start: int, stop: int) -> NDArray[np.int64]:
        """Number of train edges (stop − start,) that touch each node id start ≤ id < stop."""
        ...


class Evaluator:
    """Ranks the edges of a split against all nodes, or against a sample.

    Args:
        model: `queries` and `compare` (see `ranking.RankedModel`), or a `ranking.Scorer`.
        reader: node rows.
        edges: the graph's edges; its splits train, valid and test are the filter.
        num_nodes: N, the union over all splits.
        num_relations: R.
        dim: embedding width D; asked of the reader (one row) if None.
        memory_bytes: budget for rows, candidate blocks and filter; not for the model or the ranked edges.
        ks: of Hits@k.
        precision: "bfloat16" rounds queries and candidates (`ranking.precision`) and says so.
        seed: of the sampled edges, and of the sampled candidates in mode "sampled".

    Raises:
        ConfigError: a value is out of range.
    """

    def __init__(
        self,
        model: RankedModel | Scorer,
        reader: NodeReader,
        edges: EdgeStore,
        num_nodes: int,
        num_relations: int,
        *,
        dim: int | None = None,
        memory_bytes: int = DEFAULT_MEMORY_BYTES,
        ks: Sequence[int] = DEFAULT_KS,
        seed: int = 0,
        precision: HostPrecision = "float32",
    ) -> None:
        if num_nodes < 1:
            raise ConfigError(f"the graph has {num_nodes} nodes; there is nothing to rank")
        self._reader = reader
        self._edges = edges
        self._num_nodes = num_nodes
        self._num_relations = num_relations
        self._dim = dim if dim is not None else int(reader.read_rows(0, 1).shape[1])
        self._memory_bytes = memory_bytes
        self._ks = check_ks(ks)
        self._seed = seed
        self._precision = precision
        self._scorer: Scorer = (
            model if hasattr(model, "exact") else ModelScorer(model, self._dim, precision)  # type: ignore[assignment]
        )
        self._candidate_reader = RoundedReader(reader) if precision == "bfloat16" else reader
        self._category: NDArray[np.int64] | None = None

    def evaluate(
        self,
        split: str = "test",
        mode: Mode = "full",
        *,
        edges: Edges | None = None,
        among: Ids | None = None,
        max_edges: int | None = None,
        num_uniform: int = 500,
        num_by_degree: int = 500,
        details: bool = False,
        degrees: DegreeReader | None = None,
        progress: Progress | None = None,
    ) -> Metrics:
        """Rank the head and the tail of every edge of a split.

        Args:
            split: "train", "valid" or "test".
            mode: "full" ranks against all nodes; "sampled" against a sample, and says so in the protocol.
            edges: (E, 3) edges to rank instead of a split; they are filtered like known edges.
            among: (n,) ids of the nodes among which answers are ranked, in mode "full"; None: all. An answer
                that is none of them is left out of all figures.
            max_edges: rank a random subset of at most so many edges, and say so in the protocol. All
                candidates still compete, so that every figure is an unbiased estimate.
            num_uniform: sampled mode: nodes drawn uniformly; all of them where there are no more.
            num_by_degree: sampled mode: nodes drawn in proportion to their train degree, with repetition.
            details: also figures by category, by relation and, given `degrees`, by degree of the answer.
            degrees: train degrees (a prepared graph), for the figures by degree band.
            progress: called with (edges done, edges in all) after each block.

        Raises:
            ConfigError: no such split or mode, no edges to rank, or none with an end among the given nodes.
        """
        started = time.perf_counter()
        if edges is not None:
            edges = self._checked(edges)
        chosen = self._choose(split, edges, max_edges)
        of, what = (split, split) if edges is None else ("given", "given edges")
        if among is not None:
            among = self._checked_among(among, mode)
        source, protocol = self._candidates(mode, num_uniform, num_by_degree, among)
        asked = None if among is None else self._asked(chosen, among, of)
        available = self._edges.num_edges(split) if edges is None else len(edges)
        if len(chosen) < available:
            part = f"{len(chosen)} of {available} {of} edges (seed {self._seed})"
            protocol = f"{SAMPLED}: {part}, {protocol.removeprefix(SAMPLED + ': ')}"
        ranker = Ranker(
            self._scorer,
            self._reader,
            source,
            num_nodes=self._num_nodes,
            num_relations=self._num_relations,
            dim=self._dim,
            known_edges=lambda: self._known(edges),
            num_known=sum(map(self._edges.num_edges, SPLITS)) + (0 if edges is None else len(edges)),
            memory_bytes=self._memory_bytes,
            answer_reader=self._candidate_reader,
        )
        with product_units(self._precision), torch_threads(torch.get_num_threads()):
            counts = ranker.rank(chosen, progress, asked)
        if ranker.nan_answers or ranker.nan_candidates:
            logger.warning(
                "%s: scores of %d of %d true answers and of %d other candidates are NaN; such an answer "
                "ranks last, such a candidate behind every answer, so the figures say little: look for "
                "roots, logarithms and divisions in model.decoder, and for embeddings that are not finite",
                what,
                ranker.nan_answers,
                counts.ranked.sum(),
                ranker.nan_candidates,
            )
        if ranker.odd_candidates:
            logger.warning(
                "%s: %d of %d candidates have embeddings that are not finite: one with an infinity may rank "
                "before all answers, one with a NaN ranks behind them",
                what,
                ranker.odd_candidates,
                source.size,
            )
        both, head, tail = side_figures(counts, self._ks)
        extra = self._details(counts, chosen, degrees) if details else {}
        metrics = Metrics(
            both,
            head,
            tail,
            protocol,
            edges=chosen,
            counts=counts,
            seconds=time.perf_counter() - started,
            among=None if among is None else among.size,
            **extra,
        )
        logger.info("%s: %s, %.1f s", what, metrics, metrics.seconds)
        return metrics

    def _choose(self, split: str, edges: Edges | None, max_edges: int | None) -> Edges:
        if split not in SPLITS:
            raise ConfigError(f"split is {split!r}; allowed: {', '.join(SPLITS)}")
        if max_edges is not None and max_edges < 1:
            raise ConfigError(f"max_edges is {max_edges}; allowed: 1 or more, or none for all")
        count = self._edges.num_edges(split) if edges is None else len(edges)
        if not count:
            raise ConfigError(
                f"there are no {split} edges to rank; choose another split, or prepare the graph with one"
            )
        if max_edges is None or max_edges >= count:
            return self._edges.read(split) if edges is None else edges
        picked = np.sort(stream(self._seed, Purpose.EVALUATE, 1).choice(count, max_edges, replace=False))
        return self._read_at(split, picked) if edges is None else edges[picked]

    def _read_at(self, split: str, positions: Ids) -> Edges:
        """Edges (n, 3) of a split at ascending positions (n,); those of a block that lie near in one read."""
        parts: list[NDArray[Any]] = []
        block = positions // edges_at_once(self._memory_bytes)
        is_far = (np.diff(block) > 0) | (np.diff(positions) > _GAP_EDGES)
        for part in np.split(positions, np.flatnonzero(is_far) + 1):
            low, high = int(part[0]), int(part[-1]) + 1
            parts.append(self._edges.read_range(split, low, high)[part - low])
        return np.concatenate(parts)

    def _checked(self, given: ArrayLike) -> Edges:
        """Edges to rank as an array of ids; ConfigError for anything else."""
        edges: Edges = np.asarray(given)
        if edges.ndim and not len(edges):
            return np.empty((0, 3), dtype=np.int64)
        if edges.ndim != 2 or edges.shape[1] != 3 or edges.dtype.kind not in "iu":
            raise ConfigError(
                f"edges have shape {edges.shape} and type {edges.dtype}; expected (E, 3) integers: head, "
                "relation, tail ids"
            )
        for column, limit, what in (
            (0, self._num_nodes, "head"),
            (1, self._num_relations, "relation"),
            (2, self._num_nodes, "tail"),
        ):
            low, high = int(edges[:, column].min()), int(edges[:, column].max())
            if low < 0 or high >= max(limit, 1):
                raise ConfigError(f"{what} ids of the edges span {low} to {high}; allowed: 0 to {limit - 1}")
        return edges.astype(np.int64) if edges.dtype == np.uint64 else edges

    def _checked_among(self, given: ArrayLike, mode: Mode) -> Ids:
        """Nodes to rank among as ascending, distinct ids; ConfigError for anything else."""
        if mode != "full":
            raise ConfigError(f"mode is {mode!r} beside among; allowed: full")
        ids = np.asarray(given)
        if ids.ndim != 1 or not ids.size or ids.dtype.kind not in "iu":
            raise ConfigError(
                f"among has shape {ids.shape} and type {ids.dtype}; expected (n,) integers: ids of nodes, "
                "at least one"
            )
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= self._num_nodes:
            raise ConfigError(f"node ids of among span {low} to {high}; allowed: 0 to {self._num_nodes - 1}")
        return distinct(ids.astype(np.int64))

    def _asked(self, edges: Edges, among: Ids, of: str) -> NDArray[np.bool_]:
        """Which heads and tails (E, 2) are among the given nodes; ConfigError if none is."""
        asked = position_in(among, edges[:, ::2].astype(np.int64)) >= 0
        heads, tails = asked.sum(axis=0).tolist()
        if not heads + tails:
            raise none_among(len(edges), of, among.size)
        logger.info(
            "of %d %s edges, %d heads and %d tails are none of the %d nodes to rank among: they are left out",
            len(edges),
            of,
            len(edges) - heads,
            len(edges) - tails,
            among.size,
        )
        return asked

    def _candidates(
        self, mode: Mode, num_uniform: int, num_by_degree: int, among: Ids | None
    ) -> tuple[CandidateSource, str]:
        if among is not None and among.size < self._num_nodes:
            protocol = f"filtered, among {among.size} of {self._num_nodes} entities, realistic ties"
            return ChosenNodes(self._candidate_reader, among, self._dim), protocol + self._suffix()
        if mode == "full":
            return AllNodes(self._candidate_reader, self._num_nodes), PROTOCOL + self._suffix()
        if mode != "sampled":
            raise ConfigError(f"mode is {mode!r}; allowed: full, sampled")
        if num_uniform < 0 or num_by_degree < 0 or num_uniform + num_by_degree < 1:
            raise ConfigError(
                f"sampled ranking with {num_uniform} uniform and {num_by_degree} degree-weighted candidates; "
                "allowed: 0 or more each, at least 1 together"
            )
        ids = self._sample(num_uniform, num_by_degree)
        protocol = (
            f"{SAMPLED}: {num_uniform} uniform + {num_by_degree} by degree ({ids.size} distinct) candidates, "
            "filtered, realistic ties" + self._suffix()
        )
        if ids.size == self._num_nodes:
            logger.info("all %d nodes are in the sample: its figures are those of mode=full", ids.size)
            return AllNodes(self._candidate_reader, self._num_nodes), protocol
        if ids.size * 4 * self._dim > self._memory_bytes // 4:  # what two blocks of candidates may take
            return ChosenNodes(self._candidate_reader, ids, self._dim), protocol
        rows = gather_rows(self._candidate_reader, ids, self._num_nodes, self._dim, self._block_rows())
        return SampledNodes(ids, rows), protocol

    def _suffix(self) -> str:
        return "" if self._precision == "float32" else f", {self._precision} products"

    def _sample(self, num_uniform: int, num_by_degree: int) -> Ids:
        """Distinct node ids, ascending; an end of a random train edge is a node drawn by degree."""
        if num_uniform >= self._num_nodes:  # drawn without repetition, these are all
            return np.arange(self._num_nodes)
        rng = stream(self._seed, Purpose.EVALUATE, 0)
        ids = np.sort(rng.choice(self._num_nodes, num_uniform, replace=False)).astype(np.int64)
        num_train = self._edges.num_edges("train")
        for done in range(0, num_by_degree if num_train else 0, _DRAWS):
            if ids.size == self._num_nodes:
                break
            count = min(num_by_degree - done, _DRAWS)
            edges = self._read_at("train", np.sort(rng.integers(num_train, size=count)))
            ends = edges[np.arange(count), rng.integers(2, size=count) * 2]
            ids = np.union1d(ids, ends.astype(np.int64))
        return ids

    def _block_rows(self) -> int:
        return max(1, self._memory_bytes // 8 // (4 * self._dim))

    def _known(self, extra: Edges | None) -> Iterator[Edges]:
        yield from edge_blocks(self._edges, SPLITS, self._memory_bytes)
        if extra is not None:
            step = edges_at_once(self._memory_bytes)
            yield from (extra[start : start + step] for start in range(0, len(extra), step))

    def _details(self, counts: Counts, edges: Edges, degrees: DegreeReader | None) -> dict[str, Any]:
        if self._category is None:
            tails, heads = count_multiplicity(
                edge_blocks(self._edges, ("train",), self._memory_bytes),
                self._edges.num_edges("train"),
                self._num_nodes,
                self._num_relations,
                self._memory_bytes // 2,
            )
            self._category = categorize(tails, heads)
        extra: dict[str, Any] = {
            "categories": by_category(counts, edges[:, 1], self._category, self._ks),
            "relations": by_relation(counts, edges[:, 1], self._ks),
            "category_of": {
                relation: CATEGORIES[category] if category >= 0 else ""
                for relation, category in enumerate(self._category.tolist())
            },
        }
        if degrees is not None:
            of_ends = degrees_of(edges[:, ::2], degrees, self._num_nodes, self._memory_bytes)
            extra["bands"] = by_degree(counts, of_ends, self._ks)
        return extra


def degrees_of(
    nodes: NDArray[np.integer],
    degrees: DegreeReader,
    num_nodes: int,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
) -> NDArray[np.int64]:
    """Train degrees of node ids of any shape, read in blocks of an eighth of the budget."""
    ids, inverse = np.unique(nodes, return_inverse=True)
    found = np.empty(ids.size, dtype=np.int64)
    step = max(1024, memory_bytes // 8 // 8)
    for start in range(0, num_nodes, step):
        stop = min(start + step, num_nodes)
        first, last = np.searchsorted(ids, (start, stop))
        if first < last:
            found[first:last] = degrees.degrees(start, stop)[ids[first:last] - start]
    return found[inverse].reshape(nodes.shape)


def none_among(num_edges: int, of: str, num_nodes: int) -> ConfigError:
    """The error for so many edges of a split, or "given", without an end among so many nodes."""
    return ConfigError(
        f"among: no head and no tail of {num_edges} {of} edges is one of the {num_nodes} nodes to rank "
        "among, so there is nothing to rank; name the nodes that are answers, such as all items"
    )
