"""Ranks among chosen nodes: a loop over them, any decoder, any blocks; and all nodes chosen are all nodes."""

from __future__ import annotations

import csv
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from marius_py.errors import ConfigError
from marius_py.evaluation.evaluator import Evaluator
from marius_py.evaluation.metrics import Metrics
from marius_py.evaluation.ranking import ranker as ranker_module
from marius_py.evaluation.ranking.scorer import ModelScorer
from marius_py.evaluation.ranking.trained import TrainedModel
from marius_py.nn.decoders import RESCAL, ComplEx, Decoder, DistMult, Dot, RotatE, TransE
from tests.evaluation.ranking.helpers import ArrayEdges, ArrayReader, brute_force

N, R, D = 40, 3, 4
CHOSEN = np.array([33, 2, 17, 5, 38, 21, 2, 9, 11, 30, 0, 39, 14])  # one twice, in no order
SMALL_BLOCKS = 8 * 4 * D * 8
"""Memory for blocks of 8 candidates."""

DECODERS = [Dot(D), DistMult(D), ComplEx(D), RESCAL(D), TransE(D, "l2"), TransE(D, "l1"), RotatE(D)]


class Seen(ArrayReader):
    """Remembers which rows were read."""

    def __init__(self, rows: Any) -> None:
        super().__init__(rows)
        self.seen: set[int] = set()

    def read_rows(self, start: int, stop: int) -> Any:
        self.seen |= set(range(start, stop))
        return super().read_rows(start, stop)


def _splits(seed: int) -> list[np.ndarray]:
    """Train, valid and test edges, the first of them repeated."""
    rng = np.random.default_rng(seed)
    edges = np.stack([rng.integers(size, size=400) for size in (N, R, N)], axis=1)
    train, valid, test = np.array_split(rng.permutation(np.unique(edges, axis=0)), 3)
    return [np.concatenate((train, train[:50])), valid, test]


def _make(
    decoder: Decoder, reciprocal: bool = False, memory_bytes: int = 1 << 28, seed: int = 0, **more: Any
) -> tuple[Evaluator, TrainedModel, np.ndarray, list[np.ndarray]]:
    """An evaluator of rows of small whole numbers, of which many scores are equal."""
    rng = np.random.default_rng(seed)
    rows = rng.integers(-1, 2, (N, D)).astype(np.float32)
    relations = rng.integers(-1, 2, (R * (1 + reciprocal), decoder.relation_dim)).astype(np.float32)
    model, splits = TrainedModel(decoder, torch.from_numpy(relations), reciprocal), _splits(seed)
    edges = ArrayEdges(N, *splits)
    evaluator = Evaluator(model, ArrayReader(rows), edges, N, R, dim=D, memory_bytes=memory_bytes, **more)
    return evaluator, model, rows, splits


@pytest.mark.parametrize("memory_bytes", [SMALL_BLOCKS, 1 << 28], ids=["blocks", "memory"])
@pytest.mark.parametrize("reciprocal", [False, True], ids=["plain", "reciprocal"])
@pytest.mark.parametrize("decoder", DECODERS, ids=lambda one: type(one).__name__)
def test_ranks_are_those_of_a_loop_over_the_chosen_nodes(
    decoder: Decoder, reciprocal: bool, memory_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranker_module, "MIN_MEMORY_BYTES", 0)
    evaluator, model, rows, splits = _make(decoder, reciprocal, memory_bytes)
    found = evaluator.evaluate("test", among=CHOSEN)
    exact = ModelScorer(model, D).exact

    def scores(h: int, r: int, t: int, side: Any) -> np.ndarray:
        anchor = torch.from_numpy(rows[[h if side == "tail" else t]])
        query = model.queries(anchor, torch.tensor([r]), side)
        return exact(query.expand(N, -1), torch.from_numpy(rows)).numpy()

    better, equal, candidates = brute_force(scores, splits, splits[2], set(CHOSEN.tolist()))
    np.testing.assert_array_equal(found.counts.better, better)
    np.testing.assert_array_equal(found.counts.equal, equal)
    np.testing.assert_array_equal(found.counts.candidates, candidates)
    ranks = (better + (equal + 1) / 2)[candidates > 0]
    assert found.mrr == pytest.approx((1 / ranks).mean(), rel=1e-12)
    assert found.both.count == len(ranks) == found.head.count + found.tail.count
    assert found.left_out == {
        "head": int((candidates[:, 0] == 0).sum()),
        "tail": int((candidates[:, 1] == 0).sum()),
    }
    assert candidates.max() == len(set(CHOSEN.tolist()))
    assert len(np.unique(equal)) > 2


@pytest.mark.parametrize("max_edges", [None, 30])
@pytest.mark.parametrize("reciprocal", [False, True])
def test_all_nodes_chosen_are_all_nodes(reciprocal: bool, max_edges: int | None) -> None:
    evaluator, *_ = _make(ComplEx(D), reciprocal)
    plain = evaluator.evaluate("test", details=True, max_edges=max_edges)
    chosen = evaluator.evaluate("test", details=True, max_edges=max_edges, among=np.arange(N)[::-1])
    assert chosen.counts.ranked.all()
    np.testing.assert_array_equal(chosen.counts.better, plain.counts.better)
    np.testing.assert_array_equal(chosen.counts.equal, plain.counts.equal)
    written = {**chosen.to_json(details=True), "seconds": plain.seconds}
    assert written.pop("among") == {"nodes": N, "left_out": {"head": 0, "tail": 0}}
    assert written == plain.to_json(details=True)


def test_figures_of_groups_and_files_agree(tmp_path: Path) -> None:
    class Degrees:
        def degrees(self, start: int, stop: int) -> Any:
            return np.arange(start, stop) // 3

    evaluator, _, _, splits = _make(DistMult(D))
    edges = splits[2][splits[2][:, 1] < 2]
    # Of relation 2 neither end is chosen.
    others = np.setdiff1d(np.arange(N), CHOSEN)
    more = np.array([(others[0], 2, others[1]), (others[2], 2, others[3])])
    found = evaluator.evaluate(
        edges=np.concatenate((edges, more)), among=CHOSEN, details=True, degrees=Degrees()
    )
    assert found.protocol == "filtered, among 12 of 40 entities, realistic ties"
    assert not found.sampled
    assert sorted(found.relations) == [0, 1]
    for groups in (found.categories, found.relations, found.bands):
        parts = [part for part in groups.values() if part.count]
        assert sum(part.count for part in parts) == found.both.count
        mean = sum(part.mrr * part.count for part in parts) / found.both.count
        assert mean == pytest.approx(found.mrr, rel=1e-12)
        for side in ("head", "tail"):
            assert sum(getattr(part, side).count for part in parts) == getattr(found, side).count
    found.write_ranks(tmp_path / "ranks.csv")
    with (tmp_path / "ranks.csv").open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert len(rows) == found.both.count
    assert {int(row[row["side"]]) for row in rows} <= set(CHOSEN.tolist())
    assert np.mean([1 / float(row["rank"]) for row in rows]) == pytest.approx(found.mrr, rel=1e-12)
    assert {int(row["candidates"]) for row in rows} <= set(range(1, 13))
    assert np.isnan(found.ranks).sum() == sum(found.left_out.values())


def _items(**more: Any) -> tuple[Evaluator, Seen]:
    """Nodes 0 to 999 like nodes 1000 to 1099."""
    rng = np.random.default_rng(0)
    edges = np.stack((rng.integers(1000, size=60), np.zeros(60, int), rng.integers(1000, 1100, size=60)), 1)
    reader = Seen(rng.normal(size=(4000, 64)))
    model = TrainedModel(DistMult(64), torch.ones(1, 64), reciprocal=False)
    store = ArrayEdges(4000, edges[:20], None, edges[20:])
    return Evaluator(model, reader, store, 4000, 1, dim=64, **more), reader


def test_a_side_without_ranks_has_no_figures(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    told: list[tuple[int, int]] = []
    evaluator, _ = _items()
    found = evaluator.evaluate(
        among=np.arange(1000, 1100), progress=lambda done, total: told.append((done, total))
    )
    result = found.to_json()
    assert result["head"]["count"] == 0
    assert result["head"]["mrr"] is result["head"]["hits@10"] is None
    assert result["tail"] == {name: result[name] for name in result["tail"]}
    assert result["among"] == {"nodes": 100, "left_out": {"head": 40, "tail": 0}}
    said = "of 40 test edges, 40 heads and 0 tails are none of the 100 nodes to rank among: they are left out"
    assert said in caplog.messages
    assert told[-1] == (40, 40)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_rows_of_other_nodes_are_not_read(precision: Any) -> None:
    evaluator, reader = _items(memory_bytes=1 << 20, precision=precision)
    among = np.array([*range(1000, 1100), 3500])
    found = evaluator.evaluate(among=among)
    assert not reader.seen & set(range(1600, 3500))
    assert 3500 in reader.seen
    assert found.protocol.startswith("filtered, among 101 of 4000 entities, realistic ties")
    assert found.protocol.endswith("bfloat16 products") == (precision == "bfloat16")


def test_a_sample_of_edges_says_so() -> None:
    evaluator, _ = _items()
    found = evaluator.evaluate(among=range(1000, 1100), max_edges=10)
    assert found.protocol.startswith("sampled: 10 of 40 test edges (seed 0), filtered, among 100 of 4000 ent")
    assert found.left_out == {"head": 10, "tail": 0}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"among": [4, 5], "mode": "sampled"}, "mode is 'sampled' beside among; allowed: full"),
        ({"among": []}, "among has shape"),
        ({"among": [0.5]}, r"among has shape \(1,\) and type float64; expected \(n,\) integers"),
        ({"among": [[1]]}, r"among has shape \(1, 1\)"),
        ({"among": [-1, 4000]}, "node ids of among span -1 to 4000; allowed: 0 to 3999"),
        ({"among": [3999]}, "no head and no tail of 40 test edges is one of the 1 nodes to rank among"),
        ({"among": [3999], "edges": [(0, 0, 1)]}, "no head and no tail of 1 given edges"),
    ],
)
def test_what_cannot_be_ranked_among_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _items()[0].evaluate(**arguments)


def test_metrics_without_counts_have_left_nothing_out() -> None:
    figures = _items()[0].evaluate().both
    assert Metrics(figures, figures, figures, "filtered").left_out == {"head": 0, "tail": 0}
