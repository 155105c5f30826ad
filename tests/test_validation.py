"""Validation at little cost: which plan a graph gets, that it stays, that its figures say what they are."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from marius_py import cli
from marius_py.assembly.build import train
from marius_py.config import EvaluateConfig, TrainConfig, load_config
from marius_py.errors import ConfigError
from marius_py.evaluating import evaluate
from marius_py.generate import planted_graph
from marius_py.planning.ranking import LEAST_EDGES
from marius_py.prepare import prepare
from marius_py.tracking.trackers import Trackers
from marius_py.validation import (
    CHEAP_SCORES,
    ValidationPlan,
    chance_of,
    changed_settings,
    decline_of,
    plan_validation,
)

FB15K_237 = (14_541, 272_115, 17_535)
FREEBASE = (86_000_000, 304_000_000, 17_000_000)


def _graph(nodes: int, train_edges: int, valid: int) -> Any:
    return SimpleNamespace(num_nodes=nodes, num_edges={"train": train_edges, "valid": valid})


def _plan(
    counts: tuple[int, int, int], *words: str, committed: dict[str, Any] | None = None
) -> ValidationPlan:
    return plan_validation(load_config(["graph=g", *words]), _graph(*counts), committed or {})


def test_a_small_graph_is_validated_in_full() -> None:
    assert _plan(FB15K_237) == ValidationPlan("full", None, 1000)
    assert _plan((40_559, 86_835, 3_034)).mode == "full"
    assert _plan(FB15K_237, "training.valid_every=1", "evaluation.valid.share=0.5").mode == "full"


def test_a_large_graph_gets_a_sample_of_edges_for_its_share_of_the_work() -> None:
    plan = _plan(FREEBASE)
    assert plan.mode == "edges"
    assert plan.max_edges is not None
    scores = 2 * plan.max_edges * FREEBASE[0]
    assert 0.09 < scores / (5 * FREEBASE[1] * 1000 * 4) <= 0.1
    half = _plan(FREEBASE, "evaluation.valid.share=0.05")
    assert half.max_edges == pytest.approx(plan.max_edges / 2, abs=1)
    sides = _plan(FREEBASE, "negatives.count_head=1000", "negatives.count_tail=2000")
    assert sides.max_edges == pytest.approx(plan.max_edges * 3, abs=3)
    assert _plan((10**6, 1000, 10**6), "negatives=all") == ValidationPlan("edges", 2000, 1000)


def test_candidates_are_sampled_only_where_few_edges_cost_too_much() -> None:
    plan = _plan(FREEBASE, "negatives.count=10", "training.valid_every=1")
    assert plan == ValidationPlan("candidates", 1_216_000, 1000)  # a tenth of 304e6 · 20 · 4 scores
    assert _plan((1_073_741, 1, 10_000)) == ValidationPlan("edges", LEAST_EDGES, 1000)
    assert _plan((1_076_000, 1, 10_000)).mode == "candidates"  # affords 498


def test_what_is_asked_for_is_done() -> None:
    assert _plan(FREEBASE, "evaluation.valid.mode=full") == ValidationPlan("full", None, 1000)
    assert _plan(FB15K_237, "evaluation.valid.max_edges=700") == ValidationPlan("edges", 700, 1000)
    assert _plan(FB15K_237, "evaluation.valid.max_edges=7") == ValidationPlan("edges", 7, 1000)
    for number in (FB15K_237[2], 99_999):
        assert _plan(FB15K_237, f"evaluation.valid.max_edges={number}").mode == "full"
    assert _plan(FB15K_237, "evaluation.valid.mode=candidates", "evaluation.candidates=50") == ValidationPlan(
        "candidates", None, 50
    )
    assert _plan(FREEBASE, "evaluation.valid.mode=candidates") == ValidationPlan("candidates", None, 1000)
    assert _plan(FB15K_237, "evaluation=sampled") == ValidationPlan("candidates", None, 1000)
    for mode in ("auto", "candidates"):
        words = ("evaluation=sampled", f"evaluation.valid.mode={mode}", "evaluation.valid.max_edges=700")
        assert _plan(FB15K_237, *words) == ValidationPlan("candidates", 700, 1000)
    assert _plan(FB15K_237, "evaluation=sampled", "evaluation.valid.mode=full").mode == "full"
    assert _plan(FB15K_237, "evaluation.valid.mode=edges").mode == "full"
    assert _plan(FREEBASE, "negatives=all").mode == "full"  # beside such a training anything is cheap
    edges = _plan((CHEAP_SCORES, 1, 10_000), "evaluation.valid.mode=edges")
    assert edges == ValidationPlan("edges", LEAST_EDGES, 1000)


def test_a_plan_says_what_it_ranks() -> None:
    full = ValidationPlan("full", None, 9)
    edges, candidates = ValidationPlan("edges", 40, 9), ValidationPlan("candidates", 40, 9)
    assert full.describe(100) == "all 100 edges against all nodes"
    assert edges.describe(100) == "sampled: 40 of 100 edges against all nodes"
    assert edges.describe(30) == "sampled: 30 of 30 edges against all nodes"
    assert candidates.describe(100) == "sampled: 40 of 100 edges against 9 sampled nodes"
    assert [plan.sampled for plan in (full, edges, candidates)] == [False, True, True]
    assert [plan.arguments()["mode"] for plan in (full, edges, candidates)] == ["full", "full", "sampled"]


def test_a_run_goes_on_with_the_plan_that_it_began_with(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "marius_py")
    begun = ValidationPlan("edges", 321, 1000)
    committed = {"validation": begun.to_meta(), "history": [{"valid": {"mrr": 0.5}}, {"valid": None}]}
    assert _plan(FB15K_237, "evaluation.valid.max_edges=321", committed=committed) == begun
    assert "as it began" not in caplog.text
    assert _plan(FB15K_237, committed=committed) == begun
    assert "as it began, so that its figures can be compared: sampled: 321 of 17535 edges" in caplog.text
    no_figure = {**committed, "history": [{"valid": None}]}
    assert _plan(FB15K_237, committed=no_figure) == ValidationPlan("full", None, 1000)
    before_plans = {"history": [{"valid": {"mrr": 0.5}}]}
    assert _plan(FREEBASE, committed=before_plans) == ValidationPlan("full", None, 1000)
    assert _plan(FREEBASE, "evaluation=sampled", committed=before_plans).mode == "candidates"


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("validation")
    rng = np.random.default_rng(0)
    head, relation = rng.integers(0, 80, 900), rng.integers(0, 3, 900)
    tail = (head * (relation + 2) + rng.integers(0, 3, 900)) % 80
    lines = [f"n{h}\tr{r}\tn{t}\n" for h, r, t in zip(head, relation, tail, strict=True)]
    (folder / "e.tsv").write_text("".join(lines))
    prepare(folder / "e.tsv", folder / "graph", split=(0.6, 0.3, 0.1), partitions=2, header=False)
    return folder / "graph"


def _config(graph: Path, output: Path, *words: str) -> TrainConfig:
    small = ("model.dim=8", "negatives.count=16", "training.batch_size=128", "pipeline.mode=inline")
    more = ("training.valid_every=1", "pipeline.compute_threads=1", "device=cpu")
    return load_config([f"graph={graph}", f"output={output}", *small, *more, *words])


def test_sampled_figures_say_so_and_the_gap_is_measured(graph: Path, tmp_path: Path, capsys: Any) -> None:
    run = tmp_path / "run"
    words = ["evaluation.valid.max_edges=40", "training.epochs=2"]
    result = train(_config(graph, run, *words))
    history = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for line in history:
        assert line["valid"]["sampled"]
        assert line["valid"]["protocol"].startswith("sampled: 40 of ")
        assert line["valid"]["count"] == 80
    full, gap = result["valid"], result["valid"]["gap"]
    assert not full["sampled"]
    assert full["count"] > 80
    assert gap["sampled"]["mrr"] == history[-1]["valid"]["mrr"]
    assert gap["difference"]["mrr"] == pytest.approx(gap["sampled"]["mrr"] - full["mrr"])
    assert not result["test"]["sampled"]
    assert json.loads((run / "result.json").read_text())["valid"] == full

    # Another k of Hits@k is ranked for, in the sample too; it may be asked for when all epochs are done.
    other = train(_config(graph, run, "resume=true", *words, "evaluation.ks=[1,7]"))["valid"]
    sampled, difference = other["gap"]["sampled"], other["gap"]["difference"]
    assert other["hits@7"] + difference["hits@7"] == pytest.approx(sampled["hits@7"])
    assert sampled["mrr"] == gap["sampled"]["mrr"]

    # Resumed, it is still measured by the same edges.
    others = ("evaluation.valid.mode=full", "evaluation.valid.max_edges=null")
    before = (run / "config.yaml").read_bytes()
    with pytest.raises(
        ConfigError,
        match=r"valid.mode \(the run has auto, now full\); .*max_edges \(the.*, now null\)",
    ):
        train(_config(graph, run, "resume=true", "training.epochs=3", *others))
    assert (run / "config.yaml").read_bytes() == before
    train(_config(graph, run, "resume=true", "training.epochs=3", *words[:1]))
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["valid"]["protocol"] == history[0]["valid"]["protocol"]
    capsys.readouterr()
    repeated = evaluate_again(run, 40)
    assert repeated == pytest.approx(last["valid"]["mrr"])


def test_so_many_edges_are_ranked_after_training(graph: Path, tmp_path: Path) -> None:
    sample = ("evaluation.valid.max_edges=40", "training.epochs=1")
    result = train(_config(graph, tmp_path / "run", *sample, "evaluation.max_edges=50"))
    for split, count in (("test", 90), ("valid", 270)):
        assert result[split]["protocol"].startswith(f"sampled: 50 of {count} {split} edges (seed 0)")
        assert result[split]["count"] == 100
    assert result["valid"]["gap"]["sampled"]["protocol"].startswith("sampled: 40 of 270")
    same = EvaluateConfig(run=str(tmp_path / "run"), max_edges=50, device="cpu", compute_threads=1)
    assert evaluate(same)["mrr"] == result["test"]["mrr"]

    # No more edges than between epochs say nothing more of them, unless they meet more nodes.
    resumed = (*sample, "resume=true", "evaluation.max_edges=40")
    assert "valid" not in train(_config(graph, tmp_path / "run", *resumed))
    nodes = ("training.epochs=1", "evaluation.valid.mode=candidates", "evaluation.candidates=9")
    found = train(_config(graph, tmp_path / "nodes", *nodes, "evaluation.max_edges=40"))
    assert found["valid"]["protocol"].startswith("sampled: 40 of 270 valid edges (seed 0), filtered, all")
    assert "9 " in found["valid"]["gap"]["sampled"]["protocol"]

    # Of the best epoch, too.
    best = (*sample, "checkpoint.best=true", "evaluation.max_edges=7")
    assert train(_config(graph, tmp_path / "best", *best))["best"]["test"]["count"] == 14


def test_a_run_that_ranks_longer_than_it_trains_is_told(
    graph: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("marius_py.planning.ranking.LONG_SCORES", 1 << 10)
    words = ("training.epochs=1", "training.valid_every=0", "negatives.count=1", "training.batch_size=10")
    train(_config(graph, tmp_path / "all", *words))
    assert "ranking 90 test edges after training takes about 3.3 times as long" in caplog.text
    caplog.clear()
    train(_config(graph, tmp_path / "some", *words, "evaluation.max_edges=20"))
    assert "ranking" not in caplog.text


def test_a_run_without_a_validation_takes_other_settings_for_it(graph: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    sampled = ("evaluation.valid.mode=candidates", "evaluation.candidates=4")
    train(_config(graph, run, "training.epochs=1", *sampled, "training.valid_every=0"))
    train(_config(graph, run, "resume=true", "training.epochs=2", "evaluation.valid.mode=full"))
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["valid"]["protocol"].startswith("filtered, all entities")


@pytest.mark.parametrize(("mode", "changed"), [("edges", []), ("candidates", ["evaluation.candidates"])])
def test_settings_of_the_plan_that_cannot_change(mode: str, changed: list[str]) -> None:
    old = {"candidates": 4, "valid": {"mode": mode, "share": 0.1, "max_edges": None, "gap": True}}
    new = {"candidates": 5, "valid": {"mode": mode, "share": 0.2, "max_edges": None, "gap": False}}
    committed = {"config": {"evaluation": old}, "validation": {"mode": mode}, "history": [{"valid": {}}]}
    assert changed_settings(committed, {"evaluation": new}) == []
    committed["history"] = [{"valid": {"mrr": 0.5}}, {"valid": None}]
    found = changed_settings(committed, {"evaluation": new})
    assert [line.split(" ")[0] for line in found] == ["evaluation.valid.share", *changed]
    before_plans = {"history": committed["history"], "config": {"evaluation": {"candidates": 4}}}
    assert changed_settings(before_plans, {"evaluation": new}) == []


def evaluate_again(run: Path, max_edges: int) -> float:
    """The same sample, drawn once more by the command's own code."""
    config = EvaluateConfig(run=str(run), split="valid", max_edges=max_edges, device="cpu", compute_threads=1)
    return float(evaluate(config)["mrr"])


def test_sampled_candidates_are_the_same_in_any_number_of_partitions(graph: Path, tmp_path: Path) -> None:
    words = ["evaluation=sampled", "evaluation.candidates=20", "training.epochs=1"]
    for partitions in (2, 5):
        run = tmp_path / str(partitions)
        found = train(_config(graph, run, *words, f"storage.partitions={partitions}"))
        last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["valid"]
        for split, metrics in (("test", found["test"]), ("valid", last)):
            config = EvaluateConfig(
                run=str(run), split=split, mode="sampled", candidates=20, device="cpu", compute_threads=1
            )
            assert evaluate(config)["mrr"] == metrics["mrr"], (partitions, split)


def test_the_command_prints_the_gap(graph: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [f"graph={graph}", f"output={tmp_path / 'run'}", "model.dim=4", "negatives.count=4", "device=cpu"]
    words += ["training.epochs=1", "training.valid_every=1", "evaluation.valid.max_edges=20"]
    assert cli.train([*words, "pipeline.mode=inline", "pipeline.compute_threads=1"]) == 0
    out = capsys.readouterr().out
    assert "the sample's MRR was off by" in out
    assert "sampled: 20 of" in out


def test_trackers_hear_of_samples_under_another_name() -> None:
    class Recorder:
        def __init__(self) -> None:
            self.seen: list[dict[str, float]] = []

        def log(self, epoch: int, values: dict[str, float]) -> None:
            self.seen.append(values)

        def finish(self, epoch: int, values: dict[str, float], *, success: bool) -> None:
            assert (epoch, success) == (2, True)
            self.seen.append(values)

    recorder = Recorder()
    trackers = Trackers([recorder])  # type: ignore[list-item]
    trackers.log({"epoch": 0, "valid": {"mrr": 0.5, "sampled": True}})
    trackers.log({"epoch": 1, "valid": {"mrr": 0.25, "sampled": False}})
    trackers.finish({"test": {"mrr": 0.75, "sampled": True}})
    assert recorder.seen == [{"valid_sampled/mrr": 0.5}, {"valid/mrr": 0.25}, {"test_sampled/mrr": 0.75}]


@pytest.mark.parametrize(
    ("validations", "said"),
    [
        ([], False),
        ([(5, 0.2)], False),
        ([(5, 0.2), (10, 0.181)], False),
        ([(5, 0.2), (10, 0.179)], True),
        ([(5, 0.1), (10, 0.2), (15, 0.179)], True),
        ([(5, 0.2), (10, 0.1), (15, 0.3)], False),
    ],
)
def test_a_run_that_forgot_what_it_knew_is_told(validations: list[tuple[int, float]], said: bool) -> None:
    message = decline_of(validations)
    assert (message is not None) == said
    if message is not None:
        assert f"(0.2000) and is 0.1790 after epoch {validations[-1][0]}, as" in message
        assert f"after epoch {max(validations, key=lambda one: one[1])[0]} " in message


def _metrics(ranks: np.ndarray, candidates: int) -> dict[str, Any]:
    expected = (candidates + 1) / 2
    return {
        "mrr": float(np.mean(1 / ranks)),
        "mean_rank": float(np.mean(ranks)),
        "amr": float(np.mean(ranks)) / expected,
        "amri": 1 - (float(np.mean(ranks)) - 1) / (expected - 1) if candidates > 1 else None,
        "count": len(ranks),
    }


@pytest.mark.parametrize("candidates", [2, 10, 30, 1_000, 86_000_000])
def test_a_run_that_ranks_by_chance_is_told(candidates: int) -> None:
    history = [{"loss": 6.9078}, {"loss": 5.0}, {"loss": 2.25}]
    ranks = np.random.default_rng(0).integers(1, candidates + 1, 20_000)
    message = chance_of(_metrics(ranks, candidates), history)
    assert message is not None
    assert "was 6.908 in the first epoch and 2.250 in the last" in message
    by_chance = float(message.split(", and ")[1].split(" ")[0])
    assert by_chance == pytest.approx(np.mean(1 / np.arange(1, min(candidates, 10**6) + 1)), abs=0.02)


def test_one_epoch_is_not_compared_with_itself() -> None:
    ranks = np.random.default_rng(0).integers(1, 1_001, 20_000)
    message = chance_of(_metrics(ranks, 1_000), [{"loss": 6.9078}])
    assert message is not None
    assert "loss" not in message
    assert "more training.epochs" in message


def test_a_loss_that_has_risen_asks_for_a_lower_rate() -> None:
    ranks = np.random.default_rng(0).integers(1, 1_001, 20_000)
    for first, last, rate in ((12.43, 2.1e33, "lower"), (-2.0, -1.0, "lower"), (6.9, 7.0, "higher")):
        message = chance_of(_metrics(ranks, 1_000), [{"loss": first}, {"loss": last}])
        assert message is not None
        assert re.findall(r"a (\w+) optimizer\.lr", message) == [rate]


def test_one_that_has_learnt_something_is_not() -> None:
    rng = np.random.default_rng(0)
    half = rng.integers(1, 1_501, 300)  # knows in which half of 3,000 the answer lies
    found = np.where(rng.random(2_000) < 0.02, 1, rng.integers(1, 10**6, 2_000))  # knows one of fifty answers
    most = rng.integers(1, 961, 20_000)  # knows some of the wrong answers
    hardly = np.where(rng.random(2_000) < 0.01, 1, rng.integers(1, 1_001, 2_000))
    few = rng.integers(1, 1_001, 99)
    only = np.ones(500, int)
    for ranks, candidates in (
        (half, 3_000), (found, 10**6), (most, 1_000), (hardly, 1_000), (few, 1_000), (only, 1)
    ):  # fmt: skip
        assert chance_of(_metrics(ranks, candidates), [{"loss": 1.0}]) is None
    old = _metrics(rng.integers(1, 1_001, 2_000), 1_000)
    del old["amri"]  # as lines of older versions
    assert chance_of(old, [{"loss": 1.0}]) is None


@pytest.mark.parametrize("rate", [1e-6, 0.1])
def test_one_is_told_after_training(rate: float, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    graph = planted_graph(tmp_path / "graph", num_nodes=500, num_relations=4, num_edges=8_000)
    words = (f"optimizer.lr={rate}", "training.epochs=3", "training.valid_every=0", "model.dim=16")
    result = train(load_config([f"graph={graph.path}", f"output={tmp_path / 'run'}", *words]))
    told = "the run has learnt nothing" in caplog.text
    assert told == (rate < 1e-3), result["test"]["mrr"]
