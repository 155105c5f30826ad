"""Figures from counts, compared with definitions spelled out one rank at a time."""

import csv
import json
import math
import pickle
import tempfile
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marius_py.errors import ConfigError, StorageError
from marius_py.evaluation.metrics import (
    Figures,
    Metrics,
    by_degree,
    by_relation,
    categorize,
    check_ks,
    figures,
    figures_with_sides,
    side_figures,
)
from marius_py.evaluation.ranking.ranker import Counts
from marius_py.evaluation.relation_counts import count_multiplicity

COUNT = st.tuples(st.integers(0, 30), st.integers(1, 5), st.integers(0, 20))


def make_counts(triples):
    """Counts of (better, equal, others) for an even number of ranks, two an edge."""
    values = np.array([(b, q, b + q + o) for b, q, o in triples], dtype=np.int64).reshape(-1, 2, 3)
    return Counts(values[..., 0], values[..., 1], values[..., 2])


@given(st.lists(st.tuples(COUNT, COUNT), min_size=1, max_size=20))
def test_figures_follow_the_definitions(edges):
    triples = [triple for edge in edges for triple in edge]
    counts = make_counts(triples)
    both, head, tail = side_figures(counts, (1, 2, 10))
    for found, chosen in ((both, triples), (head, triples[0::2]), (tail, triples[1::2])):
        ranks = [((b + 1) + (b + q)) / 2 for b, q, _ in chosen]
        sizes = [b + q + o for b, q, o in chosen]
        mean = sum(ranks) / len(ranks)
        expected = sum((n + 1) / 2 for n in sizes) / len(sizes)
        assert found.count == len(chosen)
        assert found.mrr == pytest.approx(sum(1 / r for r in ranks) / len(ranks))
        assert found.mean_rank == pytest.approx(mean)
        assert found.amr == pytest.approx(mean / expected)
        for k in (1, 2, 10):
            assert found.hits[k] == pytest.approx(sum(r <= k for r in ranks) / len(ranks))
        if expected > 1:
            assert found.amri == pytest.approx(1 - (mean - 1) / (expected - 1))
        else:
            assert math.isnan(found.amri)
        assert found.pessimistic_mrr == pytest.approx(sum(1 / (b + q) for b, q, _ in chosen) / len(chosen))
        assert found.optimistic_mrr == pytest.approx(sum(1 / (b + 1) for b, _, _ in chosen) / len(chosen))


def test_undefined_figures_are_null_in_json():
    empty = figures(Counts.empty(0))
    assert isinstance(empty, Figures)
    content = json.loads(json.dumps(empty.to_json(), allow_nan=False))
    assert content["mrr"] is None
    assert content["count"] == 0


def test_figures_that_are_no_numbers_are_equal():
    empty, some = Counts.empty(0), make_counts([(0, 1, 0), (3, 1, 2)])
    both, head, tail = side_figures(some, (1, 3))
    assert math.isnan(head.amri)
    found = Metrics(both, head, tail, "filtered", {"1-1": figures_with_sides(empty)}, {0: both})
    again = pickle.loads(pickle.dumps(found))
    assert again == found
    assert replace(again, categories={}) != found
    assert replace(again, categories={"1-1": figures_with_sides(empty, (1, 2))}) != found
    assert replace(again, relations={0: replace(both, amri=math.nan)}) != found
    assert replace(again, relations={0: replace(both, head=figures(empty))}) != found
    assert replace(again, head=replace(head, mrr=0.5)) != found
    assert both != both.to_json()


def test_ks():
    assert check_ks([10, 1, 1]) == (1, 10)
    assert check_ks(np.array([64, 1, 3])) == (1, 3, 64)
    for bad in ([], [0], [1.5], [True]):
        with pytest.raises(ConfigError, match=r"^ks is "):
            check_ks(bad)


def test_by_relation_splits_the_ranks():
    counts = make_counts([(0, 1, 3), (1, 1, 0), (4, 1, 0), (9, 1, 1), (2, 2, 2), (0, 1, 0)])
    parts = by_relation(counts, np.array([7, 2, 7]))
    assert {relation: part.count for relation, part in parts.items()} == {2: 2, 7: 4}
    assert parts[2].mrr == pytest.approx((1 / 5 + 1 / 10) / 2)


def test_degree_bands_double():
    counts = make_counts([(0, 1, 3)] * 8)
    degrees = np.array([[0, 1], [2, 3], [4, 7], [8, 1 << 40]])
    parts = by_degree(counts, degrees)
    assert {bound: part.count for bound, part in parts.items()} == {0: 1, 1: 1, 2: 2, 4: 2, 8: 1, 1 << 40: 1}


def test_degree_bands_have_sides():
    counts = make_counts([(0, 1, 3), (1, 1, 3), (3, 1, 3), (7, 1, 9)])
    parts = {bound: part.to_json() for bound, part in by_degree(counts, np.array([[1, 2], [3, 1]])).items()}
    for bound, head, tail in ((1, 0, 3), (2, 2, 1)):
        rows = counts.better.ravel()
        assert parts[bound]["head"]["mrr"] == 1 / (rows[head] + 1)
        assert parts[bound]["tail"]["mrr"] == 1 / (rows[tail] + 1)
        assert parts[bound]["mrr"] == pytest.approx((1 / (rows[head] + 1) + 1 / (rows[tail] + 1)) / 2)
    alone = by_degree(counts, np.array([[1, 2], [1, 2]]))[2].to_json()
    assert (alone["head"]["count"], alone["head"]["mrr"], alone["tail"]["count"]) == (0, None, 2)


def test_categories():
    nan = math.nan
    tails, heads = np.array([1, 2, 1, 2, 1.5, 1.49, nan]), np.array([1, 1, 2, 2, 1.49, 1.5, nan])
    np.testing.assert_array_equal(categorize(tails, heads), [0, 1, 2, 3, 1, 2, -1])


@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 2), st.integers(0, 6))),
    st.sampled_from([1, 100, 1 << 30]),
)
def test_multiplicity_in_one_pass(edges, memory_bytes):
    array = np.array(edges, dtype=np.int32).reshape(-1, 3)
    blocks = [array[i : i + 4] for i in range(0, len(array), 4)]
    tails, heads = count_multiplicity(iter(blocks), len(array), 7, 3, memory_bytes=memory_bytes)
    for relation in range(3):
        mine = {edge for edge in edges if edge[1] == relation}
        if not mine:
            assert math.isnan(tails[relation])
            assert math.isnan(heads[relation])
            continue
        assert tails[relation] == pytest.approx(len(mine) / len({h for h, _, _ in mine}))
        assert heads[relation] == pytest.approx(len(mine) / len({t for _, _, t in mine}))


def test_multiplicity_within_the_memory():
    rng = np.random.default_rng(0)
    edges = rng.integers(20_000, size=(400_000, 3), dtype=np.int32)
    edges[:, 1] %= 5
    edges[:1000] = edges[1000:2000]
    blocks = [edges[i : i + 4096] for i in range(0, len(edges), 4096)]
    whole = count_multiplicity(blocks, len(edges), 20_000, 5, 1 << 30)
    tracemalloc.start()
    small = count_multiplicity(blocks, len(edges), 20_000, 5, 1 << 21)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 21
    np.testing.assert_array_equal(small, whole)
    once = np.unique(edges, axis=0)
    for found, column in zip(whole, (0, 2), strict=True):
        pairs = np.unique(once[:, [column, 1]], axis=0)
        expected = np.bincount(once[:, 1]) / np.bincount(pairs[:, 1])
        np.testing.assert_allclose(found, expected, rtol=1e-12)  # no two edges have one hash


def test_a_full_disk_is_named(monkeypatch):
    def refuse(*arguments, **named):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    edges = np.zeros((1000, 3), np.int32)
    with pytest.raises(StorageError, match=f"details=true.*{tempfile.gettempdir()}"):
        count_multiplicity([edges], len(edges), 1, 1, 1024)


@pytest.mark.parametrize(
    ("protocol", "sampled"), [("filtered, all entities", "false"), ("sampled: 5 + 5 candidates", "true")]
)
def test_ranks_as_csv(tmp_path, protocol, sampled):
    counts = make_counts([(0, 2, 3), (1, 1, 0)])
    both, head, tail = side_figures(counts, (1,))
    metrics = Metrics(both, head, tail, protocol, edges=np.array([[3, 0, 4]]), counts=counts)
    target = tmp_path / "ranks.csv"
    metrics.write_ranks(target)
    with target.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert [(row["side"], float(row["rank"])) for row in rows] == [("head", 1.5), ("tail", 2.0)]
    assert rows[0]["head"] == "3"
    assert rows[0]["tail"] == "4"
    assert (rows[0]["optimistic_rank"], rows[0]["pessimistic_rank"], rows[0]["candidates"]) == ("1", "2", "5")
    assert [row["sampled"] for row in rows] == [sampled] * 2
    with pytest.raises(ConfigError, match="exists"):
        metrics.write_ranks(target)
    metrics.write_ranks(target, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["ranks.csv"]
