"""What ranking takes beside training: when a run is told, and what it is told to set."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from marius_py.config import load_config
from marius_py.planning.ranking import (
    LEAST_EDGES,
    LONG_SCORES,
    asked_for,
    ranking_advice,
    ranking_scores,
    training_scores,
)

FREEBASE = (86_000_000, 304_000_000, 17_000_000)
"""Nodes, train edges, and edges of each of the other splits."""


def _graph(nodes: int, train_edges: int, others: int) -> Any:
    return SimpleNamespace(num_nodes=nodes, num_edges={"train": train_edges, "valid": others, "test": others})


def _advice(counts: tuple[int, int, int], *words: str, gap: bool = True) -> str | None:
    return ranking_advice(load_config(["graph=g", *words]), _graph(*counts), gap=gap)


def test_an_edge_is_compared_with_negatives_when_trained_and_with_nodes_when_ranked() -> None:
    graph = _graph(1000, 70, 9)
    config = load_config(["negatives.count=10"])
    assert training_scores(config, graph, 3) == 3 * 70 * 20 * 4
    assert (
        training_scores(load_config(["negatives.count=10", "negatives.count_tail=5"]), graph, 1)
        == 70 * 15 * 4
    )
    assert training_scores(load_config(["negatives=all"]), graph, 1) == 70 * 2000 * 4
    assert ranking_scores(config, graph, 9) == 9 * 2 * 1000
    sampled = load_config(["evaluation=sampled", "evaluation.candidates=30"])
    assert ranking_scores(sampled, graph, 9) == 9 * 2 * 30
    many = load_config(["evaluation=sampled", "evaluation.candidates=3000"])
    assert ranking_scores(many, graph, 9) == 9 * 2 * 1000
    assert [asked_for(load_config([f"evaluation.max_edges={most}"]), 9) for most in (8, 9, 10)] == [8, 9, 9]
    assert asked_for(config, 9) == 9


@pytest.mark.parametrize(
    "counts", [(14_541, 272_115, 20_466), (396_636, 6_273_367, 30_000), (135, 5_216, 661), (10, 3, 0)]
)
def test_usual_graphs_are_ranked_without_a_word(counts: tuple[int, int, int]) -> None:
    assert _advice(counts, "training.epochs=1") is None


@pytest.mark.parametrize("gap", [True, False])
@pytest.mark.parametrize("epochs", [1, 30])
@pytest.mark.parametrize("counts", [FREEBASE, (10_000_000, 45_000_000, 2_500_000), (10**9, 1000, 10**6)])
def test_what_is_advised_is_a_number_with_which_nothing_is_advised(
    counts: tuple[int, int, int], epochs: int, gap: bool
) -> None:
    words = (f"training.epochs={epochs}", "negatives.count=100")
    advice = _advice(counts, *words, gap=gap)
    assert advice is not None
    assert f"{counts[2]} test edges" in advice
    assert (f"{counts[2]} valid edges" in advice) == gap
    number = int(re.search(r"evaluation.max_edges=(\d+) ", advice)[1])  # type: ignore[index]
    assert number >= LEAST_EDGES
    if number > LEAST_EDGES:
        assert _advice(counts, *words, f"evaluation.max_edges={number}", gap=gap) is None
        assert _advice(counts, *words, f"evaluation.max_edges={3 * number}", gap=gap) is not None


def test_a_run_is_told_where_ranking_takes_minutes_and_longer_than_training() -> None:
    edges = LONG_SCORES // (2 * 2**20)
    words = ("training.epochs=10", "negatives.count=500")
    assert _advice((2**20, 1000, edges), *words, gap=False) is None
    told = _advice((2**20, 1000, edges + 1), *words, gap=False)
    assert told is not None
    assert f"takes about {(LONG_SCORES + 2**21) / (10 * 1000 * 1000 * 4):.0f} times as long" in told
    assert _advice((2**20, 10_000_000, edges + 1), *words, gap=False) is None


def test_a_graph_without_train_edges_divides_nothing_by_them() -> None:
    assert "3 test edges" in str(_advice((10**12, 0, 3), gap=False))
