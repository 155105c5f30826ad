"""How validation edges are ranked during training (floor 5): settings and a graph's counts in, a plan out.

A validation should cost little beside the training between two of them. Where ranking all validation edges
against all nodes would cost more, a fixed sample of the *edges* is ranked against all nodes: each figure is
an unbiased estimate of the full one. A sample of the *candidates* is cheaper still, but flatters (on a
Freebase graph .81 for a full MRR of .4), so it is taken only where even a few hundred edges cost too much.

The plan follows from counts, not from measured time, and travels with the commits: whoever resumes a run goes
on with it, so that the figures that decide on stopping and on the best epoch are always of one kind.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from marius_py.config import TrainConfig
from marius_py.graph import Graph
from marius_py.planning.ranking import LEAST_EDGES, training_scores
from marius_py.readable import as_given
from marius_py.run_files.names import CONFIG_META
from marius_py.run_state import best_of
from marius_py.types import SIDES

log = logging.getLogger(__name__)

VALIDATION_META = "validation"
"""Key of the plan in a commit."""

CHEAP_SCORES = 1 << 30
"""Scores of a validation that is cheap whatever the training costs: some seconds of one core."""

DECLINE = 0.1
"""Share of the best validation MRR that a run may lose until its end before that is said."""

LUCK = 1.5
"""Up to so many times the MRR of ranks by chance may be luck, if the mean rank is no better either."""

LEAST_QUESTIONS = 100
"""Ranks from which one can tell."""

RISE = 0.1
"""Share of the first epoch's loss by which the last one's is higher where rows have gone astray."""


@dataclass(frozen=True, slots=True)
class ValidationPlan:
    """What is ranked in a validation.

    Attributes:
        mode: "full": all edges against all nodes; "edges": a sample of the edges against all nodes;
            "candidates": against a sample of the nodes.
        max_edges: edges of the sample; None: all.
        candidates: nodes of the sample in mode "candidates".
    """

    mode: Literal["full", "edges", "candidates"]
    max_edges: int | None
    candidates: int

    @property
    def sampled(self) -> bool:
        """Whether its figures are estimates, which must say so."""
        return self.mode != "full"

    def arguments(self) -> dict[str, Any]:
        """Of `results.rank_split`."""
        return {
            "mode": "sampled" if self.mode == "candidates" else "full",
            "max_edges": self.max_edges,
            "candidates": self.candidates,
        }

    def to_meta(self) -> dict[str, Any]:
        """JSON-serialisable form."""
        return asdict(self)

    def describe(self, num_valid: int) -> str:
        """One line about a graph of `num_valid` validation edges."""
        edges = num_valid if self.max_edges is None else min(num_valid, self.max_edges)
        if self.mode == "full":
            return f"all {num_valid} edges against all nodes"
        against = "all nodes" if self.mode == "edges" else f"{self.candidates} sampled nodes"
        return f"sampled: {edges} of {num_valid} edges against {against}"


def plan_validation(config: TrainConfig, graph: Graph, committed: Mapping[str, Any]) -> ValidationPlan:
    """The plan of a run: the one it has validated by, or one from the settings and the graph's counts.

    Args:
        config: settings of the run.
        graph: its graph.
        committed: metadata of the last commit, empty for a new run.
    """
    wanted = _choose(config, graph)
    begun = _begun(config, committed)
    if begun is None:
        return wanted
    number = graph.num_edges.get("valid", 0)
    if begun.describe(number) != wanted.describe(number):
        log.info(
            "validation goes on as it began, so that its figures can be compared: %s", begun.describe(number)
        )
    return begun


def changed_settings(committed: Mapping[str, Any], settings: Mapping[str, Any]) -> list[str]:
    """Settings of the plan that differ from those of a run that has validated, and so cannot change.

    Args:
        committed: metadata of the last commit.
        settings: those of the run that goes on, as they are committed.

    Returns:
        One line each: the key, the run's value and the one asked for.
    """
    if not _has_validated(committed):
        return []
    old, new = (one.get("evaluation", {}) for one in (committed.get(CONFIG_META, {}), settings))
    pairs = {
        f"evaluation.valid.{name}": (old["valid"][name], new["valid"][name])
        for name in ("mode", "share", "max_edges")
        if name in old.get("valid", {}) and name in new.get("valid", {})
    }
    if committed.get(VALIDATION_META, {}).get("mode") == "candidates":
        pairs["evaluation.candidates"] = (old.get("candidates"), new.get("candidates"))
    return [
        f"{key} (the run has {as_given(was)}, now {as_given(now)})"
        for key, (was, now) in pairs.items()
        if was != now
    ]


def _begun(config: TrainConfig, committed: Mapping[str, Any]) -> ValidationPlan | None:
    """The plan that a run has validated by; None if it has not yet."""
    if not _has_validated(committed):
        return None
    if VALIDATION_META in committed:
        return ValidationPlan(**committed[VALIDATION_META])
    # Commits from before there were plans ranked all validation edges, as the test edges.
    settings = config.evaluation
    return ValidationPlan("full" if settings.mode == "full" else "candidates", None, settings.candidates)


def _has_validated(committed: Mapping[str, Any]) -> bool:
    return any(line.get("valid") for line in committed.get("history", ()))


def _choose(config: TrainConfig, graph: Graph) -> ValidationPlan:
    settings, valid = config.evaluation, config.evaluation.valid
    num_valid = graph.num_edges.get("valid", 0)
    if settings.mode == "sampled" and valid.mode == "auto":
        return ValidationPlan("candidates", valid.max_edges, settings.candidates)
    if valid.mode == "full":
        return ValidationPlan("full", None, settings.candidates)
    affordable = _affordable_scores(config, graph)
    if valid.mode == "auto":
        edges = valid.max_edges or affordable // (len(SIDES) * max(graph.num_nodes, 1))
        if edges >= num_valid:
            return ValidationPlan("full", None, settings.candidates)
        if edges >= LEAST_EDGES or valid.max_edges is not None:
            return ValidationPlan("edges", edges, settings.candidates)
    scores = graph.num_nodes if valid.mode == "edges" else settings.candidates
    edges = valid.max_edges or max(LEAST_EDGES, affordable // (len(SIDES) * max(scores, 1)))
    mode: Literal["edges", "candidates"] = "edges" if valid.mode == "edges" else "candidates"
    if mode == "edges" and edges >= num_valid:
        return ValidationPlan("full", None, settings.candidates)
    return ValidationPlan(mode, None if edges >= num_valid else edges, settings.candidates)


def _affordable_scores(config: TrainConfig, graph: Graph) -> int:
    """Scores that a validation may compute: its share of what training computes between two of them.

    Reading the node table once is left out of it: beside the training of even one edge a node it is nothing.
    """
    between = training_scores(config, graph, max(config.training.valid_every, 1))
    return max(CHEAP_SCORES, int(config.evaluation.valid.share * between))


def gap_of(sampled: Mapping[str, Any], full: Mapping[str, Any]) -> dict[str, Any]:
    """How far the sampled figures of a commit are from the full ones: "mrr" and "hits@k", sampled − full."""
    names = [name for name in full if name == "mrr" or name.startswith("hits@")]
    return {
        "sampled": {name: sampled[name] for name in names} | {"protocol": sampled["protocol"]},
        "difference": {name: sampled[name] - full[name] for name in names},
    }


def decline_of(validations: Sequence[tuple[int, float]]) -> str | None:
    """What to say of a run whose last validation is far below its best; None: it is not.

    Args:
        validations: (epochs done, MRR) of each, in order.
    """
    best = best_of(validations)
    if best is None:
        return None
    (epoch, highest), (at, last) = best, validations[-1]
    if last >= highest * (1 - DECLINE):
        return None
    return (
        f"validation MRR was best after epoch {epoch} ({highest:.4f}) and is {last:.4f} after epoch {at}, "
        "as of a model that learns the training edges by heart: try fewer training.epochs or a larger "
        "training.regularizer.n3, or keep and test the best epoch with checkpoint.best=true"
    )


def chance_of(metrics: Mapping[str, Any], history: Sequence[Mapping[str, Any]]) -> str | None:
    """What to say of a run that ranks hardly better than by chance; None: it does better, or none can tell.

    By chance a rank is uniform over the n candidates of its question: the mean rank is (n + 1) / 2, of which
    a mean of m ranks is off by a share of about 1 / √(3 m), and the MRR is (1 + 1/2 + … + 1/n) / n. `amr` is
    the share of the mean rank in that by chance, and so says how many candidates there are without known
    answers.

    Args:
        metrics: of edges that were not trained, of any protocol.
        history: lines of the epochs, at least one.
    """
    count, amri = metrics["count"], metrics.get("amri")  # lines of older versions have none
    if count < LEAST_QUESTIONS or amri is None or amri > 2 / math.sqrt(3 * count):
        return None
    candidates = 2 * metrics["mean_rank"] / metrics["amr"] - 1
    chance = (math.log(candidates) + 0.5772 + 0.5 / candidates) / candidates
    if metrics["mrr"] > LUCK * chance:
        return None
    said = (
        f"MRR is {metrics['mrr']:.4f}, and {chance:.4f} if nodes are ranked by chance: the run has learnt "
        "nothing that holds for other edges than those it trained"
    )
    if len(history) == 1:
        return (
            f"{said}: try a higher optimizer.lr or more training.epochs, or see whether the graph has a "
            "pattern at all"
        )
    first, last = (float(line["loss"]) for line in (history[0], history[-1]))
    if last - first > RISE * abs(first):
        return (
            f"{said}. Its loss has risen from {first:.6g} in the first epoch to {last:.6g} in the last: "
            "begin anew with a lower optimizer.lr"
        )
    return (
        f"{said}. Its loss was {first:.3f} in the first epoch and {last:.3f} in the last: if it has hardly "
        "fallen, try a higher optimizer.lr or more training.epochs; if it has, the model learns edges by "
        "heart: try a larger training.regularizer.n3, or see whether the graph has a pattern at all"
    )
