"""The defaults on graphs never seen: whatever the shape, a run ends, learns and beats counting."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from marius_py import cli
from marius_py.assembly.build import train
from marius_py.config import load_config
from marius_py.evaluation.evaluator import Evaluator
from marius_py.graph import open_graph
from tests.evaluation.ranking.helpers import ArrayReader, CountScorer, count_rows

Triples = tuple[np.ndarray, np.ndarray | None, np.ndarray]
CLUSTERS = 10


def _planted(nodes: int, edges: int, relation: int = 0, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Heads and tails: a head's cluster decides its tails' cluster, where some are more popular."""
    rng = np.random.default_rng([seed, relation])
    heads = rng.integers(nodes, size=edges)
    size = nodes // CLUSTERS
    tails = (heads + 1 + relation) % CLUSTERS + CLUSTERS * (size * rng.random(edges) ** 3).astype(np.int64)
    return heads, tails


def _sparse() -> Triples:
    heads, tails = _planted(2000, 1200)
    return heads, np.zeros(1200, np.int64), tails


def _without_relations() -> Triples:
    heads, tails = _planted(500, 4000)
    return heads, None, tails


def _tiny() -> Triples:
    heads, tails = _planted(100, 300)
    return heads, heads % 3, tails


def _uneven() -> Triples:
    parts = [
        (*_planted(400, count, relation), relation) for relation, count in enumerate((5000, 500, 50, 5, 1))
    ]
    relations = np.concatenate([np.full(len(heads), relation) for heads, _, relation in parts])
    return np.concatenate([one[0] for one in parts]), relations, np.concatenate([one[1] for one in parts])


def _hub() -> Triples:
    heads, tails = _planted(500, 3000)
    return heads, heads % 2, np.where(np.random.default_rng(1).random(3000) < 0.3, 7, tails)


def _bipartite() -> Triples:
    heads, tails = _planted(300, 3000)
    return heads, None, tails + 300


def _repeated() -> Triples:
    heads, tails = _planted(200, 1500)
    loops = np.arange(40)
    heads, tails = np.concatenate((heads, heads[:700], loops)), np.concatenate((tails, tails[:700], loops))
    return heads, heads % 2, tails


GRAPHS = {
    "sparse": _sparse,
    "without_relations": _without_relations,
    "tiny": _tiny,
    "uneven": _uneven,
    "hub": _hub,
    "bipartite": _bipartite,
    "repeated": _repeated,
}
LEARNABLE = ("without_relations", "uneven", "bipartite", "repeated")
"""Graphs with enough edges for their rule to show within a few epochs."""


def _prepare(folder: Path, triples: Triples) -> Path:
    heads, relations, tails = triples
    rows = zip(heads, heads if relations is None else relations, tails, strict=True)
    middle = "" if relations is None else "\tr{1}"
    lines = [("n{0}" + middle + "\tn{2}\n").format(*row) for row in rows]
    (folder / "edges.tsv").write_text("".join(lines))
    assert cli.prepare([f"input.train={folder / 'edges.tsv'}", f"output={folder / 'graph'}"]) == 0
    return folder / "graph"


def _by_degree(path: Path) -> Any:
    """Metrics of the scorer that counts train edges: (·, r, t) for tails, (h, r, ·) for heads."""
    graph = open_graph(path)
    with graph.edges() as edges:
        rows = count_rows(edges.read("train"), graph.num_nodes, graph.num_relations)
        scorer = CountScorer(graph.num_relations)
        evaluator = Evaluator(scorer, ArrayReader(rows), edges, graph.num_nodes, graph.num_relations)
        return evaluator.evaluate("test")


@pytest.mark.parametrize("name", GRAPHS)
def test_defaults_on_a_graph_never_seen(name: str, tmp_path: Path) -> None:
    path = _prepare(tmp_path, GRAPHS[name]())
    words = [f"graph={path}", f"output={tmp_path / 'run'}", "training.epochs=4", "device=cpu"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = train(load_config([*words, "training.valid_every=2", "pipeline.compute_threads=1"]))
    history = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in history]
    assert all(math.isfinite(loss) for loss in losses)
    assert losses[-1] < losses[0]
    test = result["test"]
    assert test["count"] == 2 * open_graph(path).num_edges["test"] > 0
    assert 0 < test["pessimistic_mrr"] <= test["mrr"] <= test["optimistic_mrr"] <= 1
    assert test["optimistic_mrr"] - test["pessimistic_mrr"] < 0.05, "a model that tells nothing apart"
    if name in LEARNABLE:
        assert test["amri"] > 0.2
        assert test["mrr"] > _by_degree(path).mrr


def test_a_graph_of_three_edges(tmp_path: Path) -> None:
    path = _prepare(tmp_path, (np.array([0, 1, 2]), None, np.array([1, 2, 0])))
    words = [f"graph={path}", f"output={tmp_path / 'run'}", "training.epochs=2", "pipeline.compute_threads=1"]
    assert cli.train([*words, "device=cpu"]) == 0
    assert cli.evaluate([f"run={tmp_path / 'run'}", "split=train", "details=true", "compute_threads=1"]) == 0
