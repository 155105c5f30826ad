"""The k best are those of a brute force in float64, whatever the tiles, ties and left-out pairs."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_py.evaluation.ranking.known import KnownAnswers
from marius_py.evaluation.ranking.scorer import ModelScorer
from marius_py.nn.product_units import product_precision, product_units
from marius_py.predict import topk
from marius_py.predict.completion import cut
from marius_py.predict.topk import Softmax, top_k
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
    weights = np.exp(0.7 * scores)
    shares = np.take_along_axis(weights, np.where(taken, found.ids, 0), axis=1) * taken
    total = np.where(taken.any(1), weights.sum(1), 1)[:, None]
    np.testing.assert_allclose(found.probabilities, shares / total, rtol=1e-12)


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


@pytest.mark.parametrize("scale", [1, 1e25], ids=["ordinary", "beyond float32"])
@pytest.mark.parametrize("temperature", [1, 1e-4, 1e-5])
@pytest.mark.parametrize("model", MODELS)
def test_probabilities_are_exact_at_any_temperature(model, temperature, scale):
    """Candidates so close that a rounding to float32, divided by T, would change their shares."""
    make, reference = MODELS[model]
    rng = np.random.default_rng(1)
    queries = rng.normal(size=(5, 6)).astype(np.float32)
    rows = queries[rng.integers(0, 5, size=300)] + (1e-4 * rng.normal(size=(300, 6))).astype(np.float32)
    queries, rows = queries * np.float32(scale), rows * np.float32(scale)
    scores = reference(queries.astype(np.float64), rows.astype(np.float64))
    weights = np.exp((scores - scores.max(1, keepdims=True)) / temperature)
    expected = np.sort(weights / weights.sum(1, keepdims=True), axis=1)[:, ::-1]
    for k in (1, 4, 300):
        found = top_k(
            ModelScorer(make(), 6), torch.from_numpy(queries), blocks(rows, 4096), k, beta=1 / temperature
        ).probabilities
        if scale == 1:
            np.testing.assert_allclose(found, expected[:, :k], rtol=1e-6, atol=1e-12)
        assert (found >= 0).all()
        assert (found <= 1).all()
        assert (found.sum(1) <= 1 + 1e-12).all()
    np.testing.assert_allclose(found.sum(1), 1, rtol=1e-12)


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("beta", [1e308, np.inf])
@pytest.mark.parametrize("model", MODELS)
def test_the_best_answers_share_everything_where_the_inverse_of_a_temperature_overflows(model, beta):
    rng = np.random.default_rng(1)
    queries, rows = (rng.normal(size=(n, 6)).astype(np.float32) for n in (5, 300))
    known = KnownAnswers(np.arange(300, 330), 5, 300, topk.TILE_CANDIDATES)
    found = top_k(
        ModelScorer(MODELS[model][0](), 6),
        torch.from_numpy(queries),
        blocks(rows, 4096),
        300,
        known=known,
        beta=beta,
    )
    np.testing.assert_array_equal(found.probabilities, np.eye(1, 300).repeat(5, axis=0))
    equal = np.ones((4, 6), np.float32)
    found = top_k(
        ModelScorer(MODELS[model][0](), 6), torch.from_numpy(queries), blocks(equal, 4096), 6, beta=beta
    )
    np.testing.assert_array_equal(found.probabilities, np.repeat([[0.25] * 4 + [0.0] * 2], 5, axis=0))


def test_probabilities_of_a_decoder_that_computes_in_float32_only():
    class Weighted(DotModel):
        similarity = "other"

        def compare(self, query, candidates):
            return torch.bmm(query @ torch.eye(6), candidates.transpose(1, 2))

    model = Weighted(np.ones((1, 6)))
    rng = np.random.default_rng(2)
    queries, rows = (torch.from_numpy(rng.normal(size=(n, 6)).astype(np.float32)) for n in (3, 50))
    with pytest.raises(RuntimeError):
        model.compare(queries[None].double(), rows[None].double())
    found = top_k(ModelScorer(model, 6), queries, blocks(rows.numpy(), 4096), 4, beta=1.0)
    expected = torch.softmax(queries @ rows.T, dim=1).sort(1, descending=True)[0][:, :4]
    np.testing.assert_allclose(found.probabilities, expected, rtol=1e-5)
    found = top_k(ModelScorer(model, 6), queries, blocks(rows.numpy(), 4096), 4, beta=np.inf)
    np.testing.assert_array_equal(found.probabilities, [[1, 0, 0, 0]] * 3)


def test_rows_that_are_not_finite():
    rows = np.ones((20, 6), np.float32)
    rows[3], rows[7, 0], rows[9] = np.nan, np.inf, 2
    found = top_k(
        ModelScorer(DotModel(np.ones((1, 6))), 6), torch.ones(1, 6), blocks(rows, 4096), 25, beta=1.0
    )
    assert found.ids[0, :3].tolist() == [7, 9, 0]
    assert 3 not in found.ids[0]
    assert (found.ids[0, 19:] == -1).all()
    assert found.probabilities[0].tolist() == [1.0] + [0.0] * 24


@pytest.mark.parametrize("beta", [None, 1e-40])
@pytest.mark.parametrize("power", [0, 2])
def test_finite_rows_whose_fast_scores_overflow(power, beta):
    """inf − inf is NaN in float32 and a number in float64."""
    model = DistanceModel(np.zeros((1, 2)), 2) if power else DotModel(np.ones((1, 2)))
    rows = np.array([[1e20, 1e20], [1e20, -1e20], [2e20, 2e20], [1, 1]], np.float32)
    found = top_k(ModelScorer(model, 2), torch.from_numpy(rows[:1]), blocks(rows, 4096), 9, beta=beta)
    wide = rows.astype(np.float64)
    scores = -np.linalg.norm(wide - wide[0], axis=1) if power else wide @ wide[0]
    order = np.lexsort((np.arange(4), -scores))
    assert found.ids[0].tolist() == [*order.tolist(), *[-1] * 5]
    np.testing.assert_allclose(found.scores[0, :4], scores[order], rtol=1e-14)


def test_a_thread_that_rounds_products_does_not_reach_scores():
    """A run that trains in bfloat16 beside a prediction, and ends between scores and their bands."""
    seen = []

    class Watching(DotModel):
        def compare(self, query, candidates):
            seen.append(product_precision("cpu"))
            return super().compare(query, candidates)

    rows = np.random.default_rng(0).normal(size=(20, 6)).astype(np.float32)
    with product_units("bfloat16"):
        assert product_precision("cpu") == "bf16"
        top_k(ModelScorer(Watching(np.ones((1, 6))), 6), torch.from_numpy(rows[:3]), blocks(rows, 4096), 4)
        assert product_precision("cpu") == "bf16"
    assert set(seen) == {"ieee"}


def test_sums_do_not_overflow():
    softmax = Softmax(3, 1.0)
    softmax.add(0, torch.tensor([[1e4, 1e4], [-1e4, float("nan")], [-float("inf"), float("nan")]]))
    softmax.add(0, torch.tensor([[1e4, 0.0], [-1e4, -float("inf")]]))
    softmax.add(2, torch.tensor([[-float("inf"), float("nan")]]))
    found = softmax.of(np.array([[1e4, 0.0], [-1e4, -np.inf], [-np.inf, -np.inf]]))
    np.testing.assert_allclose(found, [[1 / 3, 0], [1 / 2, 0], [0, 0]])


def test_a_query_of_more_known_answers_than_fit_has_a_pass_of_its_own():
    known = np.array([3, 10_000_000, 10_000_000, 0, 1])
    assert list(cut(known, 10, 8, 16 << 20)) == [(0, 1), (1, 2), (2, 3), (3, 5)]
