"""Full filtered ranking: the oracles, brute force in float64, and independence of how the work is cut."""

import logging
import tracemalloc
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_py.errors import ConfigError
from marius_py.evaluation import evaluator as evaluator_module
from marius_py.evaluation.evaluator import Evaluator
from marius_py.evaluation.ranking import counting, ranker
from marius_py.evaluation.ranking.scorer import ModelScorer
from marius_py.evaluation.ranking.trained import TrainedModel
from marius_py.nn.decoders import RESCAL, ComplEx, DistMult, Dot, RotatE, TransE
from marius_py.streams import Purpose, stream
from tests.evaluation.ranking.helpers import (
    ArrayEdges,
    ArrayReader,
    CountScorer,
    DistanceModel,
    DotModel,
    brute_force,
    count_rows,
    read_graph,
)
from tests.every_second import every_second

HAND_TRAIN = [(0, 0, 1), (2, 0, 3)]
HAND_VALID = [(0, 0, 2)]
HAND_TEST = [(0, 0, 3), (4, 0, 1)]


class HandModel:
    """Scores by table: tails for A and E, heads for D and B."""

    similarity = "dot"
    device = torch.device("cpu")
    tables = {  # noqa: RUF012
        ("tail", 0): [1, 9, 7, 5, 5],
        ("tail", 4): [0, 3, 3, 2, 1],
        ("head", 3): [4, 4, 8, 4, 2],
        ("head", 1): [6, 5, 1, 2, 2],
    }

    def queries(self, anchors, relations, side):
        rows = [self.tables.get((side, a), [0] * 5) for a in anchors.argmax(1).tolist()]
        return torch.tensor(rows, dtype=torch.float32)

    def compare(self, query, candidates):
        return query @ candidates.transpose(1, 2)


@pytest.fixture
def hand():
    edges = ArrayEdges(5, HAND_TRAIN, HAND_VALID, HAND_TEST)
    return Evaluator(HandModel(), ArrayReader(np.eye(5)), edges, 5, 1)


def test_oracle_by_hand(hand):
    metrics = hand.evaluate("test")
    np.testing.assert_array_equal(metrics.ranks, [[2, 1.5], [2.5, 1.5]])
    np.testing.assert_array_equal(metrics.counts.candidates, [[4, 3], [4, 5]])
    np.testing.assert_array_equal(metrics.counts.better + 1, [[1, 1], [2, 1]])
    np.testing.assert_array_equal(metrics.counts.better + metrics.counts.equal, [[3, 2], [3, 2]])
    figures = metrics.both
    assert figures.optimistic_mrr == pytest.approx(0.875, abs=5e-7)
    assert figures.mrr == pytest.approx(0.558333, abs=5e-7)
    assert figures.pessimistic_mrr == pytest.approx(0.416667, abs=5e-7)
    assert figures.mean_rank == pytest.approx(1.875, abs=5e-7)
    assert figures.amr == pytest.approx(0.75, abs=5e-7)
    assert figures.amri == pytest.approx(0.416667, abs=5e-7)
    assert figures.hits[1] == 0
    assert metrics.head.count == metrics.tail.count == 2
    assert metrics.protocol == "filtered, all entities, realistic ties"


def test_result_has_the_contracts_keys(hand):
    result = hand.evaluate("test").to_json(details=True)
    for part in (result, result["head"], result["tail"]):
        assert {"mrr", "hits@1", "hits@3", "hits@10", "mean_rank", "count"} <= part.keys()
    assert result["protocol"] == "filtered, all entities, realistic ties"


def count_oracle(folder, **options):
    num_nodes, num_relations, splits = read_graph(folder)
    reader = ArrayReader(count_rows(splits["train"], num_nodes, num_relations))
    edges = ArrayEdges(num_nodes, **splits)
    return Evaluator(CountScorer(num_relations), reader, edges, num_nodes, num_relations).evaluate(
        "test", **options
    )


def test_count_oracle_on_umls(data_dir):
    assert count_oracle(data_dir / "umls").mrr == pytest.approx(0.661202, abs=5e-7)


def test_count_oracle_on_wn18rr(data_dir):
    metrics = count_oracle(data_dir / "WN18RR", details=True)
    assert metrics.mrr == pytest.approx(0.025565, abs=5e-7)
    assert [metrics.categories[c].count // 2 for c in ("1-1", "1-N", "N-1", "N-N")] == [42, 475, 1487, 1130]


def test_count_oracle_on_fb15k_237(data_dir):
    metrics = count_oracle(data_dir / "FB15k-237", details=True)
    figures = metrics.both
    assert figures.mrr == pytest.approx(0.233419, abs=5e-7)
    assert figures.mean_rank == pytest.approx(1394.928, abs=5e-4)
    assert figures.hits[10] == pytest.approx(0.354148, abs=5e-7)
    assert figures.amri == pytest.approx(0.805108, abs=5e-7)
    assert figures.optimistic_mrr == pytest.approx(0.259736, abs=5e-7)
    assert figures.pessimistic_mrr == pytest.approx(0.230494, abs=5e-7)
    counts = [metrics.categories[c].count // 2 for c in ("1-1", "1-N", "N-1", "N-N")]
    assert counts == [192, 1293, 4508, 14473]
    assert sum(part.count for part in metrics.relations.values()) == figures.count == 40932


def random_graph(rng, num_nodes, num_relations, num_edges):
    edges = np.stack(
        (
            rng.integers(num_nodes, size=num_edges),
            rng.integers(num_relations, size=num_edges),
            rng.integers(num_nodes, size=num_edges),
        ),
        axis=1,
    )
    return np.array_split(rng.permutation(np.unique(edges, axis=0)), 3)


def float64_scores(kind, rows, relations):
    rows, relations = rows.astype(np.float64), relations.astype(np.float64)

    def scores(h, r, t, side):
        anchor = rows[h] if side == "tail" else rows[t]
        if kind == "dot":
            # The product of two float32 numbers is rounded to float32 by the model. No product of matrices,
            # since some BLAS sum equal rows in different orders.
            return (rows * (anchor * relations[r]).astype(np.float32).astype(np.float64)).sum(1)
        query = (anchor + relations[r] * (1 if side == "tail" else -1)).astype(np.float32).astype(np.float64)
        difference = np.abs(query - rows)
        return -difference.sum(1) if kind == "l1" else -np.sqrt((difference**2).sum(1))

    return scores


def make_model(kind, relations):
    return DotModel(relations) if kind == "dot" else DistanceModel(relations, 1 if kind == "l1" else 2)


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    kind=st.sampled_from(["dot", "l1", "l2"]),
    num_nodes=st.integers(2, 60),
    values=st.sampled_from(["normal", "integers", "duplicates"]),
    compiled=st.booleans(),
    tile=st.sampled_from([(512, 1536), (4, 8), (64, 8), (1, 16)]),  # the last ones cut blocks into parts
)
def test_equals_brute_force(seed, kind, num_nodes, values, compiled, tile):
    rng = np.random.default_rng(seed)
    train, valid, test = random_graph(rng, num_nodes, 3, 90)
    if values == "integers":
        rows, relations = rng.integers(-2, 3, (num_nodes, 6)), rng.integers(-2, 3, (3, 6))
    else:
        rows, relations = rng.normal(size=(num_nodes, 6)), rng.normal(size=(3, 6))
    if values == "duplicates":
        rows = rows[rng.integers(num_nodes, size=num_nodes) // 3]
    rows, relations = rows.astype(np.float32), relations.astype(np.float32)
    if not len(test):
        return
    edges = ArrayEdges(num_nodes, train, valid, test)
    evaluator = Evaluator(make_model(kind, relations), ArrayReader(rows), edges, num_nodes, 3)
    with (
        patch.object(ranker, "COMPILED_SCORES", 0 if compiled else 1 << 62),
        patch.object(ranker, "_CPU_TILE", tile),
    ):
        metrics = evaluator.evaluate("test")
    expected = brute_force(float64_scores(kind, rows, relations), (train, valid, test), test)
    counts = metrics.counts
    np.testing.assert_array_equal(counts.candidates, expected[2])
    np.testing.assert_array_equal(counts.better, expected[0])
    np.testing.assert_array_equal(counts.equal, expected[1])


@pytest.mark.parametrize("mode", ["full", "sampled"])
def test_bfloat16_ranks_as_exactly_as_float32_but_rounded_rows(mode):
    rng = np.random.default_rng(3)
    num_nodes, dim = 300, 40
    rows = rng.normal(size=(num_nodes, dim)).astype(np.float32)
    relations = rng.normal(size=(2, dim)).astype(np.float32)
    splits = random_graph(rng, num_nodes, 2, 600)
    edges = ArrayEdges(num_nodes, *splits)

    def evaluator(precision, **more):
        model = make_model("dot", relations)
        return Evaluator(model, ArrayReader(rows), edges, num_nodes, 2, precision=precision, **more)

    def short(values):
        return torch.from_numpy(values.astype(np.float32)).bfloat16().double().numpy()

    def scores(h, r, t, side):
        return short(rows) @ short((rows[h] if side == "tail" else rows[t]) * relations[r])

    before = torch.get_float32_matmul_precision()
    metrics = evaluator("bfloat16").evaluate("test", mode)
    assert torch.get_float32_matmul_precision() == before
    assert metrics.protocol.endswith("bfloat16 products")
    small = evaluator("bfloat16", memory_bytes=1 << 20).evaluate("test", mode)
    np.testing.assert_array_equal(metrics.counts.better, small.counts.better)
    if mode == "full":
        expected = brute_force(scores, splits, splits[2])
        np.testing.assert_array_equal(metrics.counts.better, expected[0])
        np.testing.assert_array_equal(metrics.counts.equal, expected[1])
    plain = evaluator("float32").evaluate("test", mode)
    assert not np.array_equal(plain.counts.better, metrics.counts.better)
    assert metrics.mrr == pytest.approx(plain.mrr, rel=0.05)


def test_bfloat16_is_for_dot_products():
    edges = ArrayEdges(3, [(0, 0, 1)])
    model = make_model("l2", np.zeros((1, 4), np.float32))
    with pytest.raises(ConfigError, match="dot products"):
        Evaluator(model, ArrayReader(np.zeros((3, 4))), edges, 3, 1, precision="bfloat16")
    with pytest.raises(ConfigError, match="allowed: float32, bfloat16"):
        Evaluator(model, ArrayReader(np.zeros((3, 4))), edges, 3, 1, precision="half")


@pytest.mark.parametrize(
    ("kind", "spread", "compiled"),
    every_second(["dot", "l1", "l2"], [0.0, 1e-6, 1.0], [False, True]),
)
def test_ranks_do_not_depend_on_blocks_and_threads(kind, spread, compiled, monkeypatch):
    from marius_py.evaluation.ranking import ranker

    monkeypatch.setattr(ranker, "COMPILED_SCORES", 0 if compiled else 1 << 62)
    rng = np.random.default_rng(7)
    num_nodes, dim = 700, 24
    base = rng.normal(size=(1, dim))
    rows = (base + spread * rng.normal(size=(num_nodes, dim))).astype(np.float32)
    rows[100:300] = rows[300:500]
    relations = rng.normal(size=(4, dim)).astype(np.float32)
    train, valid, test = random_graph(rng, num_nodes, 4, 900)
    edges = ArrayEdges(num_nodes, train, valid, test)

    def counts(memory, tile, threads):
        monkeypatch.setattr(ranker, "_CPU_TILE", tile)
        torch.set_num_threads(threads)
        try:
            evaluator = Evaluator(
                make_model(kind, relations), ArrayReader(rows), edges, num_nodes, 4, memory_bytes=memory
            )
            return evaluator.evaluate("test").counts
        finally:
            torch.set_num_threads(1)

    reference = counts(256 << 20, (256, 1024), 1)
    for memory, tile, threads in ((1 << 20, (64, 128), 1), (1 << 20, (17, 40), 3), (8 << 20, (5, 699), 2)):
        other = counts(memory, tile, threads)
        for name in ("better", "equal", "candidates"):
            np.testing.assert_array_equal(getattr(other, name), getattr(reference, name))
    if spread == 0:
        np.testing.assert_array_equal(reference.better, 0)
        np.testing.assert_array_equal(reference.equal, reference.candidates)


@pytest.mark.parametrize("compiled", [False, True])
def test_nan_and_infinite_rows(compiled, monkeypatch):
    monkeypatch.setattr(ranker, "COMPILED_SCORES", 0 if compiled else 1 << 62)
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(40, 4)).astype(np.float32)
    rows[5] = np.nan
    rows[6] = np.inf
    rows[7, 2] = -np.inf
    rows[8] = 3e38
    relations = np.ones((2, 4), np.float32)
    train, valid, test = random_graph(rng, 40, 2, 240)
    edges = ArrayEdges(40, train, valid, test)
    metrics = Evaluator(DotModel(relations), ArrayReader(rows), edges, 40, 2).evaluate("test")

    def scores(h, r, t, side):
        with np.errstate(all="ignore"):
            query = (rows[h] if side == "tail" else rows[t]).astype(np.float64)
            products = rows.astype(np.float64) * query
            # the order of the package: halves are added
            return (products[:, 0] + products[:, 2]) + (products[:, 1] + products[:, 3])

    expected = brute_force(scores, (train, valid, test), test)
    np.testing.assert_array_equal(metrics.counts.better, expected[0])
    np.testing.assert_array_equal(metrics.counts.equal, expected[1])
    broken = (test[:, [0, 2]] == 5).any(1)
    assert broken.any()
    np.testing.assert_array_equal(metrics.ranks[broken], metrics.counts.candidates[broken])


@pytest.mark.parametrize("what", ["huge", "tiny"])
@pytest.mark.parametrize("compiled", [False, True])
def test_scores_that_float32_cannot_hold_beside_ordinary_blocks(what, compiled, monkeypatch):
    """A bound that is exact in float64 and becomes an infinity or 0 in float32 decides nothing."""
    monkeypatch.setattr(ranker, "COMPILED_SCORES", 0 if compiled else 1 << 62)
    rng = np.random.default_rng(0)
    count, dim = 3000, 64
    rows = rng.normal(size=(count, dim)) if what == "huge" else np.zeros((count, dim))
    rows[0], rows[1] = (1e10, -1e30) if what == "huge" else (1e-24, 1e-24)  # scores −6.4e41 and 6.4e-47
    rows = rows.astype(np.float32)
    test = np.array([[0, 0, 1]])
    train = np.array([[0, 0, other] for other in range(5, 400)])
    edges = ArrayEdges(count, train, None, test)
    model = DotModel(np.ones((1, dim)))

    def scores(h, r, t, side):
        return rows.astype(np.float64) @ rows[h if side == "tail" else t].astype(np.float64)

    expected = brute_force(scores, (train, test), test)
    for memory in (256 << 20, 1 << 20):  # one block, and several, most of them without the large rows
        found = Evaluator(model, ArrayReader(rows), edges, count, 1, memory_bytes=memory).evaluate("test")
        np.testing.assert_array_equal(found.counts.better, expected[0])
        np.testing.assert_array_equal(found.counts.equal, expected[1])


class Weighed(DotModel):
    """A decoder with a float32 parameter of its own, which scores float32 rows only."""

    def __init__(self, relations):
        super().__init__(relations)
        self.weights = torch.ones(self.relations.shape[1], 1)

    def compare(self, query, candidates):
        return ((query.unsqueeze(2) * candidates.unsqueeze(1)) @ self.weights).squeeze(-1)


@pytest.mark.parametrize("kind", [DotModel, Weighed])
def test_scores_nearer_than_float32_tells_are_counted_exactly(kind, monkeypatch):
    """Many pairs in the band at once, of rows that are all different: the same counts as pair by pair."""
    rng = np.random.default_rng(0)
    rows = np.float32(1) + rng.integers(0, 9, (300, 8)).astype(np.float32) * np.float32(2.0**-23)
    test = np.concatenate(random_graph(rng, 300, 1, 200))
    edges = ArrayEdges(300, test[:1], None, test)
    evaluator = Evaluator(kind(np.ones((1, 8))), ArrayReader(rows), edges, 300, 1)
    found = evaluator.evaluate("test").counts
    monkeypatch.setattr(counting, "_SPARSE_PAIRS", 1 << 60)
    expected = evaluator.evaluate("test").counts
    np.testing.assert_array_equal(found.better, expected.better)
    np.testing.assert_array_equal(found.equal, expected.equal)
    assert expected.equal.min() >= 1
    assert len(np.unique(expected.better)) > 20


@pytest.mark.parametrize(
    "decoder",
    [Dot(4), DistMult(4), ComplEx(4), RESCAL(4), TransE(4, "l2"), TransE(4, "l1"), RotatE(4)],
    ids=lambda one: type(one).__name__,
)
def test_infinite_scores_rank_like_any_number(decoder):
    """Also where only the answer's row holds an infinity: all bounds of its score are then that infinity."""
    rng = np.random.default_rng(4)
    rows = rng.normal(size=(40, 4)).astype(np.float32)
    rows[[5, 6, 7], [0, 1, 2]] = np.inf
    rows[[8, 9], [1, 3]] = -np.inf
    relations = rng.normal(size=(2, decoder.relation_dim)).astype(np.float32)
    model = TrainedModel(decoder, torch.from_numpy(relations), reciprocal=False)
    train, valid, test = random_graph(rng, 40, 2, 240)
    counts = (
        Evaluator(model, ArrayReader(rows), ArrayEdges(40, train, valid, test), 40, 2, dim=4)
        .evaluate("test")
        .counts
    )
    exact = ModelScorer(model, 4).exact

    def scores(h, r, t, side):
        anchor = torch.from_numpy(rows[[h if side == "tail" else t]])
        query = model.queries(anchor, torch.tensor([r]), side)
        return exact(query.expand(40, -1), torch.from_numpy(rows)).numpy()

    better, equal = brute_force(scores, (train, valid, test), test)[:2]
    np.testing.assert_array_equal(counts.better, better)
    np.testing.assert_array_equal(counts.equal, equal)


@pytest.mark.parametrize("count", [6, 2000])  # 2000: more pairs than are settled one by one
def test_an_infinite_row_is_no_tie_of_a_query_of_zeros(count):
    """0 · ∞ is NaN, which is equal to nothing; all other candidates score 0, as the answer does."""
    rows = np.random.default_rng(0).normal(size=(count, 2)).astype(np.float32)
    rows[4], rows[2, 0] = 0, np.inf
    edges = ArrayEdges(count, [(0, 0, 1)], None, np.repeat([(4, 0, 0)], 300, 0))
    counts = Evaluator(DotModel(np.ones((1, 2))), ArrayReader(rows), edges, count, 1).evaluate("test").counts
    np.testing.assert_array_equal(counts.better[:, 1], 0)
    np.testing.assert_array_equal(counts.equal[:, 1], count - 1)


def test_a_model_of_nan_ranks_everything_last():
    train, valid, test = random_graph(np.random.default_rng(0), 30, 2, 90)
    edges = ArrayEdges(30, train, valid, test)
    reader = ArrayReader(np.full((30, 4), np.nan))
    metrics = Evaluator(DotModel(np.ones((2, 4))), reader, edges, 30, 2).evaluate("test")
    np.testing.assert_array_equal(metrics.ranks, metrics.counts.candidates)


class OddModel(DotModel):
    """Scores that are NaN for candidates whose first coordinate is below 1."""

    similarity = None

    def compare(self, query, candidates):
        return super().compare(query, candidates) + candidates[:, None, :, 0].sub(1).sqrt()


@pytest.mark.parametrize(
    ("odd", "answers", "others"),
    [([3], 0, 3), ([1], 2, 1), ([], 0, 0)],  # three questions; known answers do not compete
)
def test_scores_that_are_nan_are_counted_and_said(odd, answers, others, caplog):
    caplog.set_level(logging.WARNING)
    rows = np.ones((5, 4), np.float32)
    rows[odd, 0] = 0
    edges = ArrayEdges(5, [(0, 0, 4)], None, [(0, 0, 1), (2, 0, 1)])
    metrics = Evaluator(OddModel(np.ones((1, 4))), ArrayReader(rows), edges, 5, 1).evaluate("test")
    assert metrics.both.count == 4
    said = f"test: scores of {answers} of 4 true answers and of {others} other candidates are NaN; "
    assert [text.startswith(said) for text in caplog.messages] == ([True] if odd else [])


@pytest.mark.parametrize("memory_bytes", [1 << 20, 1 << 30])  # several passes over the candidates, and one
def test_candidates_that_are_not_finite_are_said(memory_bytes, caplog):
    caplog.set_level(logging.WARNING)
    rng = np.random.default_rng(7)
    rows = rng.normal(size=(3000, 32)).astype(np.float32)
    rows[5], rows[6, 1], rows[7, 2] = np.nan, np.inf, -np.inf
    test = np.stack([rng.integers(8, 3000, 3000), np.zeros(3000, int), rng.integers(8, 3000, 3000)], 1)
    model, reader = DotModel(np.ones((1, 32))), ArrayReader(rows)
    Evaluator(
        model, reader, ArrayEdges(3000, test[:1], None, test), 3000, 1, memory_bytes=memory_bytes
    ).evaluate()
    assert caplog.messages == [
        "test: 3 of 3000 candidates have embeddings that are not finite: one with an infinity may rank "
        "before all answers, one with a NaN ranks behind them"
    ]


def test_rows_are_read_in_blocks_and_the_budget_is_kept():
    rng = np.random.default_rng(1)
    num_nodes, dim = 20_000, 32
    reader = ArrayReader(rng.normal(size=(num_nodes, dim)))
    test = np.stack(
        (rng.integers(num_nodes, size=3000), np.zeros(3000, int), rng.integers(num_nodes, size=3000)), 1
    )
    edges = ArrayEdges(num_nodes, test[:10], None, test)
    seen = []
    evaluator = Evaluator(DotModel(np.ones((1, dim))), reader, edges, num_nodes, 1, memory_bytes=1 << 20)
    evaluator.evaluate("test", max_edges=2000, progress=lambda done, total: seen.append((done, total)))
    assert reader.largest * dim * 4 <= 1 << 18
    assert len(seen) > 1
    assert seen[-1] == (2000, 2000)


def test_a_sample_of_edges_is_read_in_blocks():
    train = np.random.default_rng(1).integers(50, size=(20_000, 3))
    train[:, 1] = 0

    class Blocks(ArrayEdges):
        def read(self, split, bucket=None):
            raise AssertionError("the whole split was read")

        def read_range(self, split, start, stop):
            assert stop - start <= 2048
            return super().read_range(split, start, stop)

    edges = Blocks(50, train)
    evaluator = Evaluator(
        DotModel(np.ones((1, 4))), ArrayReader(np.eye(50, 4)), edges, 50, 1, memory_bytes=1 << 20, seed=5
    )
    for count in (1, 20, 9000):
        picked = stream(5, Purpose.EVALUATE, 1).choice(len(train), count, replace=False)
        found = evaluator.evaluate("train", max_edges=count).edges
        np.testing.assert_array_equal(found, train[np.sort(picked)])


def test_given_edges_are_matched_in_blocks():
    num_nodes = 100
    given = np.random.default_rng(0).integers(num_nodes, size=(200_000, 3))
    given[:, 1] = 0
    edges = ArrayEdges(num_nodes, given[:1])
    reader = ArrayReader(np.random.default_rng(1).normal(size=(num_nodes, 4)))
    small, large = (
        Evaluator(DotModel(np.ones((1, 4))), reader, edges, num_nodes, 1, memory_bytes=memory)
        for memory in (1 << 20, 1 << 28)
    )
    tracemalloc.start()
    found = small.evaluate(edges=given, max_edges=10)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 6 << 20  # as of a split's edges; the table that sorts them out has 4 MiB of it
    assert found == large.evaluate(edges=given, max_edges=10)


def test_a_filter_larger_than_the_budget_shrinks_the_blocks():
    """A hub: 20,000 known heads of one (relation, tail), far more than a budget of 1 MiB holds."""
    num_nodes = 30_000
    heads = np.arange(20_000)
    train = np.stack((heads, np.zeros_like(heads), np.full_like(heads, 29_999)), 1)
    test = np.array([(25_000, 0, 29_999), (25_001, 0, 29_999), (25_002, 0, 1)])
    rows = np.random.default_rng(0).normal(size=(num_nodes, 4)).astype(np.float32)
    edges = ArrayEdges(num_nodes, train, None, test)
    small = Evaluator(DotModel(np.ones((1, 4))), ArrayReader(rows), edges, num_nodes, 1, memory_bytes=1 << 20)
    large = Evaluator(DotModel(np.ones((1, 4))), ArrayReader(rows), edges, num_nodes, 1)
    a, b = small.evaluate("test").counts, large.evaluate("test").counts
    np.testing.assert_array_equal(a.better, b.better)
    np.testing.assert_array_equal(a.candidates, b.candidates)
    assert a.candidates[0, 0] == num_nodes - 20_002 + 1


def test_sampled_ranking_says_so():
    rng = np.random.default_rng(2)
    train, valid, test = random_graph(rng, 500, 2, 3000)
    edges = ArrayEdges(500, train, valid, test)
    rows = rng.normal(size=(500, 8)).astype(np.float32)
    evaluator = Evaluator(DotModel(np.ones((2, 8))), ArrayReader(rows), edges, 500, 2)
    sampled = evaluator.evaluate("test", "sampled", num_uniform=20, num_by_degree=20)
    assert sampled.to_json()["protocol"].startswith("sampled: 20 uniform + 20 by degree")
    assert sampled.counts.candidates.max() <= 41
    assert sampled.mrr > evaluator.evaluate("test").mrr
    again = evaluator.evaluate("test", "sampled", num_uniform=20, num_by_degree=20)
    np.testing.assert_array_equal(sampled.ranks, again.ranks)
    everything = evaluator.evaluate("test", "sampled", num_uniform=500, num_by_degree=0)
    np.testing.assert_array_equal(everything.ranks, evaluator.evaluate("test").ranks)


def test_a_sample_larger_than_the_budget_streams_by():
    num_nodes, dim = 40_000, 128
    rng = np.random.default_rng(1)
    test = rng.integers(num_nodes, size=(20, 3))
    test[:, 1] = 0
    edges = ArrayEdges(num_nodes, test, None, test)
    reader = ArrayReader(rng.standard_normal((num_nodes, dim), dtype=np.float32))

    def sampled(memory):
        evaluator = Evaluator(
            DotModel(np.ones((1, dim))), reader, edges, num_nodes, 1, dim=dim, memory_bytes=memory
        )
        return evaluator.evaluate("test", "sampled", num_uniform=30_000, num_by_degree=100)

    whole = sampled(1 << 28)
    tracemalloc.start()
    small = sampled(4 << 20)  # of rows there are 15 MiB
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20  # the table that sorts edges out has 4 MiB whatever the budget
    assert small == whole
    np.testing.assert_array_equal(small.ranks, whole.ranks)


class CountedEdges(ArrayEdges):
    """Counts its reads."""

    reads = 0

    def read_range(self, split, start, stop):
        self.reads += 1
        return super().read_range(split, start, stop)


@pytest.fixture
def counted():
    rng = np.random.default_rng(2)
    edges = CountedEdges(500, *random_graph(rng, 500, 2, 3000))
    rows = rng.normal(size=(500, 8)).astype(np.float32)
    return edges, Evaluator(DotModel(np.ones((2, 8))), ArrayReader(rows), edges, 500, 2)


@pytest.mark.parametrize("num", [500, 10**12])
def test_a_sample_of_more_than_there_are_is_all_nodes(counted, num):
    _, evaluator = counted
    sampled = evaluator.evaluate("test", "sampled", num_uniform=num, num_by_degree=num)
    full = evaluator.evaluate("test")
    assert sampled.both == full.both
    assert sampled.protocol.startswith(f"sampled: {num} uniform + {num} by degree (500 distinct)")
    np.testing.assert_array_equal(sampled.ranks, full.ranks)
    np.testing.assert_array_equal(sampled.counts.candidates, full.counts.candidates)


@pytest.mark.parametrize("num_uniform", [0, 20])
@pytest.mark.parametrize("gap", [0, 10, 1024])
def test_draws_by_degree_are_read_together(counted, num_uniform, gap, monkeypatch):
    """The sample is the one that a read for each draw gives."""
    edges, evaluator = counted
    monkeypatch.setattr(evaluator_module, "_GAP_EDGES", gap)
    train = edges.read("train")
    rng = stream(0, Purpose.EVALUATE, 0)
    expected = set(rng.choice(500, num_uniform, replace=False).tolist())
    positions = np.sort(rng.integers(len(train), size=300))
    ends = rng.integers(2, size=300) * 2
    expected |= {int(train[place, end]) for place, end in zip(positions, ends, strict=True)}
    assert evaluator._sample(num_uniform, 300).tolist() == sorted(expected)
    assert edges.reads <= (300 if gap == 0 else 200 if gap == 10 else 3)


def test_many_draws_by_degree_are_read_in_parts(counted, monkeypatch):
    edges, evaluator = counted
    ends = np.unique(edges.read("train")[:, ::2])
    monkeypatch.setattr(evaluator_module, "_DRAWS", 1000)
    found = evaluator._sample(1, 100_000)
    assert set(ends.tolist()) <= set(found.tolist())
    assert len(found) <= len(ends) + 1
    assert edges.reads <= 300


def test_given_edges_are_filtered_too():
    edges = ArrayEdges(5, HAND_TRAIN, HAND_VALID, None)
    evaluator = Evaluator(HandModel(), ArrayReader(np.eye(5)), edges, 5, 1)
    metrics = evaluator.evaluate(edges=np.array(HAND_TEST))
    assert metrics.mrr == pytest.approx(0.558333, abs=5e-7)
    for same in (HAND_TEST, np.array(HAND_TEST, np.uint64), np.array(HAND_TEST, ">i4")):
        assert evaluator.evaluate(edges=same) == metrics
    for bad in (np.array(HAND_TEST, float), [(0, 1)], [("a", "b", "c")]):
        with pytest.raises(ConfigError, match=r"edges have .* expected \(E, 3\) integers"):
            evaluator.evaluate(edges=bad)


def test_repeated_edges_leave_the_category():
    edges = ArrayEdges(5, HAND_TRAIN * 2, None, HAND_TEST)
    metrics = Evaluator(HandModel(), ArrayReader(np.eye(5)), edges, 5, 1).evaluate("test", details=True)
    assert metrics.category_of == {0: "1-1"}


def test_degree_bands(hand):
    class Degrees:
        def degrees(self, start, stop):
            return np.array([1, 1, 1, 5, 0])[start:stop]

    bands = hand.evaluate("test", details=True, degrees=Degrees()).bands
    assert {bound: part.count for bound, part in bands.items()} == {0: 1, 1: 2, 4: 1}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"split": "tests"}, "split is 'tests'"),
        ({"split": "train", "mode": "fast"}, "mode is 'fast'"),
        ({"max_edges": 0}, "max_edges is 0"),
        ({"mode": "sampled", "num_uniform": 0, "num_by_degree": 0}, "at least 1 together"),
        ({"edges": np.zeros((3, 2), int)}, r"expected \(E, 3\)"),
        ({"edges": np.array([[0, 0, 7]])}, "tail ids of the edges span 7 to 7"),
        ({"edges": np.zeros((0, 3), int)}, "no test edges"),
    ],
)
def test_bad_arguments(hand, arguments, message):
    with pytest.raises(ConfigError, match=message):
        hand.evaluate(**arguments)


def test_bad_settings():
    edges = ArrayEdges(5, HAND_TRAIN, None, HAND_TEST)
    with pytest.raises(ConfigError, match=r"^ks is "):
        Evaluator(HandModel(), ArrayReader(np.eye(5)), edges, 5, 1, ks=(0,))
    with pytest.raises(ConfigError, match="1 MiB"):
        Evaluator(HandModel(), ArrayReader(np.eye(5)), edges, 5, 1, memory_bytes=10).evaluate()


def test_errors_of_the_model_come_through():
    class Broken(DotModel):
        def compare(self, query, candidates):
            raise ValueError("broken decoder")

    edges = ArrayEdges(5, HAND_TRAIN, None, HAND_TEST)
    with pytest.raises(ValueError, match="broken decoder"):
        Evaluator(Broken(np.ones((1, 5))), ArrayReader(np.eye(5)), edges, 5, 1).evaluate()


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["dot", "l1", "l2"])
def test_ranks_on_cuda_equal_those_on_the_cpu(kind):
    rng = np.random.default_rng(11)
    num_nodes = 9000
    rows = rng.normal(size=(num_nodes, 16)).astype(np.float32)
    rows[:500] = rows[500:1000]
    relations = rng.normal(size=(3, 16)).astype(np.float32)
    train, valid, test = random_graph(rng, num_nodes, 3, 3000)
    edges = ArrayEdges(num_nodes, train, valid, test)
    model = make_model(kind, relations)
    reference = Evaluator(model, ArrayReader(rows), edges, num_nodes, 3).evaluate().counts
    model.device = torch.device("cuda")
    model.relations = model.relations.cuda()
    found = Evaluator(model, ArrayReader(rows), edges, num_nodes, 3).evaluate().counts
    np.testing.assert_array_equal(found.better, reference.better)
    np.testing.assert_array_equal(found.equal, reference.equal)
