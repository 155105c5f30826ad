"""Fits the temperature that turns scores into probabilities (floor 4): known edges in, one number out.

The probability of an answer is a softmax over all nodes, exp(score / T) / Σ exp(score' / T). T = 1 is what a
run with softmax loss was trained for against its negatives, which are far fewer than all nodes; a run with
another loss has no such scale at all. One T > 0, fitted to the validation edges by maximum likelihood
(temperature scaling; Guo et al., 2017), repairs that and leaves the order of answers as it is.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass

import numpy as np
import torch

from marius_py.errors import ConfigError
from marius_py.evaluation.evaluator import DEFAULT_MEMORY_BYTES
from marius_py.evaluation.metrics import check_whole
from marius_py.evaluation.ranking.candidates import Ids
from marius_py.evaluation.ranking.known import KnownAnswers, QueryBlock
from marius_py.evaluation.ranking.scorer import ModelScorer
from marius_py.given import check_flags
from marius_py.predict.chosen import EveryNode
from marius_py.predict.completion import (
    check_memory,
    has_self,
    known_finder,
    left_out,
    node_blocks,
    query_keys,
    query_rows,
    score_edges,
)
from marius_py.predict.topk import TILE_CANDIDATES, TILE_QUERIES, Float64, tile_scores
from marius_py.run_files.reader import RunReader, check_open
from marius_py.streams import Purpose, stream
from marius_py.types import SIDES, Progress

logger = logging.getLogger(__name__)

_MAX_EDGES = 500
_MIN_EDGES = 100
_MAX_PAIRS = 1 << 28
"""Scores in a pass: a larger graph is fitted to fewer edges, though not to so few that chance decides."""
_MAX_STEPS = 20
_RANGE = (math.log(1e-4), math.log(1e4))
"""Of log(1/T): beyond lie the fits that have no optimum, to which the log loss falls ever more slowly."""
_AT_BOUND = 1e-2
"""How near to a bound log(1/T) has come where it was on its way beyond: halving the way takes it so far."""
_NO_LOSS = 1e-9
"""Log loss below which it is nothing, for every edge's answer has a probability of 1."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """A fitted temperature.

    Attributes:
        temperature: T > 0, to divide scores by.
        log_loss: mean −log probability of the answers it was fitted to, in nats.
        log_loss_before: the same with T = 1.
        num_edges: edges it was fitted to, each asked for its head and its tail.
    """

    temperature: float
    log_loss: float
    log_loss_before: float
    num_edges: int


def fit_temperature(
    run: RunReader,
    *,
    split: str = "valid",
    filter_known: bool = False,
    allow_self: bool | None = None,
    seed: int = 0,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    progress: Progress | None = None,
) -> Calibration:
    """Find the temperature under which a sample of a split's edges is most probable.

    The log loss is convex in 1/T: Newton steps in log(1/T), each a pass over the nodes, kept in a bracket.

    Args:
        run: an open run.
        split: whose edges; they should be unknown to training.
        filter_known, allow_self: as they will be used, see `predict`: what is not offered is not in the
            softmax, and edges from a node to itself are no answers where that is not.
        seed: of the sample of at most 500 edges; fewer where 2²⁸ scores would be exceeded, but 100.
        memory_bytes: bound of the working memory.
        progress: called with (nodes done, N) in each pass.

    Returns:
        The temperature, and how well it suits the edges.

    Raises:
        ConfigError: no such split, or it has no edges, or their scores are not finite, memory is too small,
        or the seed is no whole number from 0. StorageError: reading failed.
    """
    check_open(run)
    check_flags(filter_known=filter_known)
    if allow_self is not None:
        check_flags(allow_self=allow_self)
    check_memory(memory_bytes)
    check_whole("seed", seed)
    allow_self = has_self(run) if allow_self is None else allow_self
    edges = _sample(run, split, allow_self, seed)
    task = _make_task(run, edges, filter_known, allow_self, memory_bytes, progress)
    low, high = _RANGE
    theta, before = 0.0, math.nan
    loss = math.nan
    for step in range(_MAX_STEPS):
        loss, slope, curvature = task.at(math.exp(theta))
        if step == 0:
            before = loss
        if not math.isfinite(loss):
            raise ConfigError(
                f"the scores of the {split} edges are not finite: the run in {run.path} diverged, or its "
                "decoder makes them so"
            )
        if slope == 0:  # an optimum, or scores that are all alike and suit any T: then 1
            break
        if slope > 0:
            high = theta
        else:
            low = theta
        newton = theta - slope / curvature if curvature > 0 else math.inf
        following = newton if low < newton < high else (low + high) / 2
        if abs(following - theta) < 1e-3:
            break
        theta = following
    logger.info(
        "temperature %.4g fitted to %d %s edges: log loss %.3f, was %.3f",
        math.exp(-theta), task.num_edges, split, loss, before,
    )  # fmt: skip
    _warn_without_optimum(theta, loss, split)
    return Calibration(math.exp(-theta), loss, before, task.num_edges)


def _warn_without_optimum(theta: float, loss: float, split: str) -> None:
    """Say so where the log loss falls as far as T may go, or to nothing: then no T is the best one."""
    low, high = _RANGE
    if theta < low + _AT_BOUND:
        logger.warning(
            "no temperature up to %.0f is large enough: the %s edges score hardly higher than other answers, "
            "and the more equal the probabilities of all answers are, the better they fit",
            math.exp(-low),
            split,
        )
    elif theta > high - _AT_BOUND or loss < _NO_LOSS:
        logger.warning(
            "no temperature is small enough: the %s edges score highest of all answers, and the nearer to 1 "
            "the probability of a best answer is, the better it fits",
            split,
        )


def _sample(run: RunReader, split: str, allow_self: bool, seed: int) -> Ids:
    """Edges (n, 3) of a split to fit to."""
    with run.graph.edges() as store:
        count = store.num_edges(split)
        wanted = min(_MAX_EDGES, count, max(_MIN_EDGES, _MAX_PAIRS // (2 * run.num_nodes)))
        positions = np.sort(stream(seed, Purpose.EVALUATE, 2).choice(count, wanted, replace=False))
        parts = [store.read_range(split, i, i + 1) for i in positions.tolist()]
    edges = np.concatenate(parts or [np.empty((0, 3), np.int64)]).astype(np.int64)
    if not allow_self:
        edges = edges[edges[:, 0] != edges[:, 2]]
    if not len(edges):
        raise ConfigError(f"there are no {split} edges to fit; give temperature=1 to take scores as they are")
    return edges


def _make_task(
    run: RunReader,
    edges: Ids,
    filter_known: bool,
    allow_self: bool,
    memory_bytes: int,
    progress: Progress | None,
) -> _Task:
    anchors = np.concatenate((edges[:, 2], edges[:, 0]))
    is_head = np.repeat([True, False], len(edges))
    relations = np.tile(edges[:, 1], 2)
    keys, query_of = np.unique(query_keys(anchors, relations, is_head, run), return_inverse=True)
    block = QueryBlock.of(keys, run.num_nodes, run.graph.num_relations)
    every = EveryNode(run)
    with run.graph.edges() as store:
        finder = known_finder(run, every, store, memory_bytes) if filter_known else None
        known = left_out(every, block, finder, allow_self=allow_self)
    scorer = ModelScorer(run.model, run.dim)
    true = np.concatenate([score_edges(run, edges, side=side, memory_bytes=memory_bytes) for side in SIDES])
    rows = query_rows(run, scorer, block)
    place = query_of.reshape(-1)
    return _Task(run, scorer, rows, place, true, known, filter_known, memory_bytes, progress)


@dataclass(frozen=True, slots=True)
class _Task:
    """Answers with their queries: the log loss and its derivatives at any inverse temperature."""

    run: RunReader
    scorer: ModelScorer
    rows: torch.Tensor
    query_of: Ids
    true: Float64
    known: KnownAnswers | None
    answers_are_known: bool
    memory_bytes: int
    progress: Progress | None

    @property
    def num_edges(self) -> int:
        return len(self.true) // 2

    def at(self, beta: float) -> tuple[float, float, float]:
        """Mean log loss, and its first and second derivative with respect to log β."""
        sums = _Moments(self.rows.shape[0], beta)
        with torch.no_grad():
            for start, rows in node_blocks(self.run, EveryNode(self.run), self.memory_bytes, self.progress):
                block = torch.from_numpy(rows).to(self.scorer.device)
                for offset in range(0, block.shape[0], TILE_CANDIDATES):
                    tile = block[offset : offset + TILE_CANDIDATES]
                    number = (start + offset) // TILE_CANDIDATES
                    for first in range(0, self.rows.shape[0], TILE_QUERIES):
                        part = self.rows[first : first + TILE_QUERIES]
                        scores = tile_scores(
                            self.scorer, part, tile, first, number, self.known, torch.float64
                        )[0]
                        sums.add(first, scores)
        with np.errstate(over="ignore", invalid="ignore"):  # of scores that are not finite no loss is
            return self._averaged(beta, sums)

    def _averaged(self, beta: float, sums: _Moments) -> tuple[float, float, float]:
        """What `at` gives, of the moments of all queries."""
        total, mean, square = (values[self.query_of] for values in (sums.log_total, sums.mean, sums.square))
        if self.answers_are_known:
            # The answer itself is a known edge and was left out with the others: put it back.
            both = np.logaddexp(total, beta * self.true)
            share = np.exp(beta * self.true - both)
            mean = (1 - share) * mean + share * self.true
            square = (1 - share) * square + share * self.true**2
            total = both
        loss = float(np.mean(total - beta * self.true))
        slope = float(np.mean(beta * (mean - self.true)))
        return loss, slope, float(np.mean(beta**2 * (square - mean**2))) + slope


class _Moments:
    """log Σ exp(βs), and mean and mean square of s under that softmax, by query."""

    def __init__(self, num_queries: int, beta: float) -> None:
        self._beta = beta
        self.log_total = np.full(num_queries, -math.inf)
        self.mean = np.zeros(num_queries)
        self.square = np.zeros(num_queries)

    def add(self, first: int, scores: torch.Tensor) -> None:
        """Add a tile (q, n) of the queries from `first`."""
        scores = torch.nan_to_num(scores, nan=-math.inf, posinf=math.inf, neginf=-math.inf)
        weight = scores * self._beta
        part = torch.logsumexp(weight, dim=1, keepdim=True)
        weight = torch.nan_to_num(torch.softmax(weight, dim=1))  # adds up to 1 where scores are large, too
        scores = scores.masked_fill(torch.isneginf(scores), 0)
        weighted = weight * scores
        span = slice(first, first + len(scores))
        total = np.logaddexp(self.log_total[span], part.squeeze(1).double().cpu().numpy())
        with np.errstate(invalid="ignore"):
            old = np.nan_to_num(np.exp(self.log_total[span] - total))
        for values, tile in ((self.mean, weighted.sum(1)), (self.square, (weighted * scores).sum(1))):
            values[span] = old * values[span] + (1 - old) * tile.double().cpu().numpy()
        self.log_total[span] = total
