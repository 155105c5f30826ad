"""What ranking takes beside training (floor 5): settings and a graph's counts in, numbers of scores out.

Training compares an edge with some hundred negatives, ranking with every node. Where a graph has many edges
and many nodes, ranking its test edges can take longer than training did, by days.
"""

from __future__ import annotations

from marius_py.config import TrainConfig
from marius_py.graph import Graph
from marius_py.types import SIDES

TRAINING_COST = 4
"""A score costs about so many times as much in training, with its gradients, as in ranking."""

LONG_SCORES = 1 << 38
"""Scores that are worth a word of warning: some ten minutes of two cores."""

LEAST_EDGES = 500
"""Edges of a sample at least: the standard error of their MRR is about .01."""


def training_scores(config: TrainConfig, graph: Graph, epochs: int) -> int:
    """Scores that take as long to rank as `epochs` take to train."""
    negatives = config.negatives
    if negatives.sampler.target == "all":
        count = len(SIDES) * graph.num_nodes
    else:
        count = (negatives.count_head or negatives.count) + (negatives.count_tail or negatives.count)
    return epochs * graph.num_edges["train"] * count * TRAINING_COST


def ranking_scores(config: TrainConfig, graph: Graph, edges: int) -> int:
    """Scores of ranking so many edges after training."""
    settings = config.evaluation
    candidates = graph.num_nodes
    if settings.mode == "sampled":
        candidates = min(candidates, settings.candidates)
    return len(SIDES) * edges * candidates


def asked_for(config: TrainConfig, edges: int) -> int:
    """How many of so many edges are ranked after training."""
    most = config.evaluation.max_edges
    return edges if most is None else min(edges, most)


def ranking_advice(config: TrainConfig, graph: Graph, *, gap: bool) -> str | None:
    """What to say of a run that takes longer to rank than to train; None: it does not, or not for minutes.

    Args:
        config: settings of the run.
        graph: its graph.
        gap: whether the validation edges are ranked after training, too.
    """
    counts = {"test": graph.num_edges.get("test", 0), "valid": graph.num_edges.get("valid", 0) if gap else 0}
    ranked = {split: asked_for(config, count) for split, count in counts.items() if count}
    scores = ranking_scores(config, graph, sum(ranked.values()))
    training = training_scores(config, graph, config.training.epochs)
    affordable = max(training, LONG_SCORES)
    if scores <= affordable:
        return None
    enough = max(LEAST_EDGES, affordable // ranking_scores(config, graph, len(ranked)))
    ratio = scores / max(training, 1)
    digit = 10 ** (len(str(enough)) - 1)
    edges = " and ".join(f"{count} {split} edges" for split, count in ranked.items())
    return (
        f"ranking {edges} after training takes about {ratio:.{int(ratio < 10)}f} times as long as the "
        f"training: evaluation.max_edges={enough // digit * digit} ranks a random sample, an unbiased "
        "estimate. What is trained is committed before, so that ranking can be interrupted, and left to "
        "marius-evaluate"
    )
