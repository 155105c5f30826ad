"""The best relations by a fast pass are those by scoring all of them, and most are not scored exactly."""

from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from marius_py.evaluation.ranking.trained import TrainedModel
from marius_py.nn.decoders import RESCAL, ComplEx, DistMult, Dot, TransE
from marius_py.predict import complete_relations, relations
from tests.evaluation.ranking.helpers import ArrayEdges
from tests.every_second import every_second

NODES, RELATIONS, DIM = 20, 6000, 8


def make_run(decoder, *, reciprocal=False, values="normal"):
    """The part of an open run that completion uses, with 6,000 relations."""
    rng = np.random.default_rng(3)
    shapes = (NODES, DIM), (RELATIONS * (1 + reciprocal), decoder.relation_dim)
    if values == "ties":
        rows, rel = (rng.integers(-1, 2, size=shape) for shape in shapes)
    else:
        rows, rel = (rng.normal(size=shape) for shape in shapes)
    if values == "close":  # scores that float32 cannot order
        rel = 1000 + 6.1e-5 * np.round(rel)
    rows, rel = rows.astype(np.float32), rel.astype(np.float32)
    if values == "odd":
        rows[3], rows[4, 0], rows[5], rows[6] = np.nan, np.inf, 1e30, 1e-30
        rel[7], rel[8, 2], rel[9], rel[10], rel[11] = np.nan, -np.inf, 1e30, 3e38, 0
    train = np.stack([rng.integers(limit, size=3000) for limit in (NODES, RELATIONS, NODES)], axis=1)

    @contextmanager
    def edges():
        yield ArrayEdges(NODES, train)

    return SimpleNamespace(
        num_nodes=NODES,
        dim=DIM,
        graph=SimpleNamespace(num_relations=RELATIONS, edges=edges),
        model=TrainedModel(decoder, torch.from_numpy(rel), reciprocal),
        embeddings=lambda ids: rows[ids],
    )


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    ("decoder", "reciprocal", "values"),
    every_second([ComplEx(DIM), DistMult(DIM)], [False, True], ["normal", "ties", "close", "odd"]),
)
def test_equals_the_exact_scores_of_all(decoder, reciprocal, values, monkeypatch):
    run = make_run(decoder, reciprocal=reciprocal, values=values)
    heads, tails = np.random.default_rng(1).integers(NODES, size=(2, 40))
    heads[:8], tails[8:16] = 3 + np.arange(8) // 2, 3 + np.arange(8) // 2
    for filter_known in (False, True):
        fast = complete_relations(run, heads, tails, 5, filter_known=filter_known, memory_bytes=16 << 20)
        with monkeypatch.context() as patch:
            patch.setattr(relations, "_is_product", lambda decoder: False)
            slow = complete_relations(run, heads, tails, 5, filter_known=filter_known)
        np.testing.assert_array_equal(fast.ids, slow.ids)
        np.testing.assert_array_equal(fast.scores, slow.scores)


def test_few_relations_are_scored_exactly(monkeypatch):
    scored = []
    exact = relations._RelationScorer.exact

    def counted(self, queries, candidates):
        scored.append(len(candidates))
        return exact(self, queries, candidates)

    def score_nothing(*arguments, **named):
        raise AssertionError("all relations were scored one by one")

    monkeypatch.setattr(relations._RelationScorer, "exact", counted)
    monkeypatch.setattr(relations, "score_edges", score_nothing)
    heads, tails = np.random.default_rng(1).integers(NODES, size=(2, 40))
    complete_relations(make_run(ComplEx(DIM)), heads, tails, 5)
    assert 40 * 5 <= sum(scored) < 40 * 50


class Shifted(DistMult):
    """A subclass whose query is no product."""

    def query(self, node, relation, side):
        return node * relation + 1


@pytest.mark.parametrize(
    "decoder", [RESCAL(DIM), Dot(DIM), TransE(DIM, "l2"), Shifted(DIM)], ids=lambda one: type(one).__name__
)
def test_other_decoders_are_scored_by_their_own_methods(decoder):
    run = make_run(decoder)
    found = complete_relations(run, np.array([2]), np.array([9]), 3)
    rows = torch.from_numpy(run.embeddings(np.array([2, 9])))
    with torch.no_grad():
        query = decoder.query(rows[:1].expand(RELATIONS, -1), run.model.relations, "tail")
        scores = decoder.score(query, rows[1:].expand(RELATIONS, -1)).numpy()
    np.testing.assert_allclose(found.scores[0], np.sort(scores)[:-4:-1], rtol=1e-5)
