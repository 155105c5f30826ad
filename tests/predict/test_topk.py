"""The k best are those of a brute force in float64, whatever the tiles, ties and left-out pairs."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_py.evaluation.ranking.known import KnownAnswers
from marius_py.evaluation.ranking.scorer import ModelScorer
from marius_py.predict import topk
from marius_py.predict.topk import LogSum, top_k
from tests.evaluation.ranking.helpers import DistanceModel, DotModel


def blocks(rows, size):
    for start in range(0, len(rows), size):
        yield start, rows[start : start + size]


def brute_force(scores, k):
    """Ids and scores (Q, k) of (Q, N) float64 scores, ties to the smaller id; −inf and NaN are no answers."""
    scores = np.where(np.isnan(scores), -np.inf, scores)
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    best = np.take_along_axis(scores, order, axis=1)
    ids = np.where(best > -np.inf, order, -1)
    return np.pad(ids, ((0, 0), (0, k - ids.shape[1])), constant_values=-1)


MODELS = {
    "dot": (lambda: DotModel(np.ones((1, 6))), lambda q, c: q @ c.T),
    "l2": (
        lambda: DistanceModel(np.zeros((1, 6)), 2),
        lambda q, c: -np.sqrt(((q[:, None] - c[None]) ** 2).sum(-1)),
    ),
    "l1": (lambda: DistanceModel(np.zeros((1, 6)), 1), lambda q, c: -np.abs(q[:, None] - c[None]).sum(-1)),
}


@pytest.mark.parametrize("model", MODELS)
@settings(max_examples=25)
@given(
    seed=st.integers(0, 10_000),
    num_nodes=st.integers(1, 90),
    k=st.integers(1, 12),
    grid=st.booleans(),
    masked=st.booleans(),
)
def test_equals_brute_force(model, seed, num_nodes, k, grid, masked):
    make, reference = MODELS[model]
    rng = np.random.default_rng(seed)
    if grid:  # few values: ties abound
        queries, rows = (rng.integers(-1, 2, size=(n, 6)).astype(np.float32) for n in (7, num_nodes))
    else:
        queries, rows = (rng.normal(size=(n, 6)).astype(np.float32) for n in (7, num_nodes))
    scores = reference(queries.astype(np.float64), rows.astype(np.float64))
    tile, known = 8, None
    if masked:
        out = rng.random((7, num_nodes)) < 0.4
        scores[out] = -np.inf
        known = KnownAnswers(np.flatnonzero(out).astype(np.int64), 7, num_nodes, tile)
    scorer = ModelScorer(make(), 6)
    if grid and model == "l2":  # equal squares must be equal distances in the reference as in the scorer
        scores = np.round(scores, 12)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(topk, "TILE_CANDIDATES", tile)
        patch.setattr(topk, "TILE_QUERIES", 3)
        patch.setattr(topk, "_PAIRS", 5)
        found = top_k(scorer, torch.from_numpy(queries), blocks(rows, 16), k, known=known, beta=0.7)
    np.testing.assert_array_equal(found.ids, brute_force(scores, k))
    taken = found.ids >= 0
    expected = np.take_along_axis(scores, np.where(taken, found.ids, 0), axis=1)
    np.testing.assert_allclose(found.scores[taken], expected[taken], rtol=1e-12, atol=1e-12)
    with np.errstate(divide="ignore"):
        total = np.log(np.exp(0.7 * scores).sum(1))
    np.testing.assert_allclose(found.log_total, total, rtol=1e-5, atol=1e-5)


def test_close_scores_are_told_apart():
    """Scores that float32 cannot order come in the order of float64."""
    rng = np.random.default_rng(0)
    rows = np.full((5000, 6), 1000.0, np.float32)
    rows[:, 0] += rng.integers(0, 3, size=5000).astype(np.float32) * np.float32(6.1e-5)
    queries = rng.normal(size=(3, 6)).astype(np.float32)
    scores = queries.astype(np.float64) @ rows.astype(np.float64).T
    found = top_k(ModelScorer(DotModel(np.ones((1, 6))), 6), torch.from_numpy(queries), blocks(rows, 4096), 9)
    exact = -np.sort(-scores, axis=1)[:, :9]
    np.testing.assert_allclose(found.scores, exact, rtol=1e-14)


def test_rows_that_are_not_finite():
    rows = np.ones((20, 6), np.float32)
    rows[3], rows[7, 0], rows[9] = np.nan, np.inf, 2
    found = top_k(
        ModelScorer(DotModel(np.ones((1, 6))), 6), torch.ones(1, 6), blocks(rows, 4096), 25, beta=1.0
    )
    assert found.ids[0, :3].tolist() == [7, 9, 0]
    assert 3 not in found.ids[0]
    assert (found.ids[0, 19:] == -1).all()


def test_sums_do_not_overflow():
    total = LogSum(2, 1.0)
    total.add(0, torch.tensor([[1e4, 1e4], [-1e4, float("nan")]]))
    total.add(0, torch.tensor([[1e4, 0.0], [-1e4, -float("inf")]]))
    np.testing.assert_allclose(total.result(), [1e4 + np.log(3), -1e4 + np.log(2)])
