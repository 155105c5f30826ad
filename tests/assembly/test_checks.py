"""A run that has no room is refused before it is begun; where that shows later, it can be resumed."""

from __future__ import annotations

import errno
import json
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from marius_py import machine, parts
from marius_py.assembly import build, checks
from marius_py.assembly.build import train
from marius_py.assembly.checks import check_memory, check_room
from marius_py.assembly.own_parts import _check_scores, check_decoder
from marius_py.buffer import PartitionBuffer
from marius_py.buffer.numbers import check_numbers
from marius_py.config import EvaluateConfig, TrainConfig, load_config, make_components
from marius_py.data.batch_settings import check_answers
from marius_py.errors import ConfigError, DivergedError, InterruptedRunError
from marius_py.evaluating import evaluate
from marius_py.evaluation.ranking.scorer import ModelScorer
from marius_py.evaluation.ranking.trained import TrainedModel
from marius_py.graph import Graph
from marius_py.nn.initializers import XavierNormal
from marius_py.nn.registry import DECODERS
from marius_py.partitioning import Partitioning
from marius_py.prepare import prepare
from marius_py.storage.hdf5_nodes import open_node_store
from marius_py.storage.protocols import NodeTable
from marius_py.training.trainer import Trainer
from marius_py.types import SIDES
from tests.assembly import own_parts

SMALL = ("device=cpu", "model.dim=4", "training.epochs=1", "training.valid_every=0", "negatives.count=4")
SMALL += ("pipeline.mode=inline", "pipeline.compute_threads=1")


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    folder = tmp_path_factory.mktemp("graph")
    (folder / "e.tsv").write_text("".join(f"a{i % 40}\tr\ta{(i * i + 1) % 40}\n" for i in range(100)))
    return prepare(folder / "e.tsv", folder / "graph", header=False, partitions=20)


def test_an_order_that_is_not_known_is_refused_before_a_run_is_begun(graph: Graph, tmp_path: Path) -> None:
    words = [f"graph={graph.path}", f"output={tmp_path / 'run'}", *SMALL, "ordering.name=optimal"]
    message = r"ordering\.name=optimal .* up to 16, and not for 20 with storage\.capacity=4"
    with pytest.raises(ConfigError, match=message):
        train(load_config([*words, "storage.capacity=4"]))
    assert not (tmp_path / "run").exists()
    train(load_config([*words, "storage.capacity=20"]))  # nothing is swapped


def test_an_order_that_is_not_known_changes_no_run(graph: Graph, tmp_path: Path) -> None:
    output = f"output={tmp_path / 'run'}"
    train(load_config([f"graph={graph.path}", output, *SMALL, "storage.capacity=4"]))
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match=r"ordering\.name=optimal"):
        train(load_config([output, "resume=true", "training.epochs=2", "ordering.name=optimal"]))
    after = {path.name: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert after == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["storage.capacity=9"], r"storage\.capacity=9 .* at most storage\.partitions=8"),
        (["storage.partitions=20", "storage.capacity=4", "ordering.name=optimal"], r"ordering\.name=optimal"),
        (["storage.capacity=1"], r"storage\.capacity=1 .* from 2 to storage\.partitions=8"),
    ],
)
def test_the_demo_graph_of_a_buffer_that_cannot_be_is_not_made(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "planted_graph", None)
    with pytest.raises(ConfigError, match=message):
        train(load_config([f"output={tmp_path / 'run'}", "device=cpu", *words]))
    assert not (tmp_path / "run").exists()


def test_a_buffer_that_memory_does_not_hold_is_refused_before_a_run_is_begun(
    graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: Any, **named: Any) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(checks.mmap, "mmap", refuse)
    for capacity, told in ((4, "6 slots .* is 4; set a smaller one, more"), (2, "3 slots .* is 2; set more")):
        words = [f"graph={graph.path}", f"output={tmp_path / 'run'}", f"storage.capacity={capacity}"]
        with pytest.raises(ConfigError, match=f"the buffer needs .* {told} storage\\.partitions"):
            train(load_config([*words, *SMALL]))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["model.dim=1000000000000"], r"model\.dim=1000000000000 makes rows of 10+ floats: .* set a smaller"),
        (["negatives.count=1000000000000"], r"a batch needs .* memory has .* negatives\.count \(it is 10+\)"),
        (["negatives.count=20000000"], r"a batch needs 1\.2 GiB, .* negatives\.count \(it is 20+\)"),
        (["training.batch_size=1000000000000"], r"a batch needs .* training\.batch_size \(10{12}\)"),
        (["model.dim=1000000"], r"the buffer needs .* \(this machine has 1\.0 GiB free\)"),
    ],
)
def test_what_memory_does_not_hold_is_refused_before_a_run_is_begun(
    words: list[str], message: str, graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "memory_with_swap", lambda device: 1 << 30)
    with pytest.raises(ConfigError, match=message):
        train(load_config([f"graph={graph.path}", f"output={tmp_path / 'run'}", *SMALL, *words]))
    assert not (tmp_path / "run").exists()


def test_wide_rows_of_the_packages_own_classes_are_not_made_before_the_buffer_is_refused(
    graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "memory_with_swap", lambda device: 1 << 30)
    monkeypatch.setattr(XavierNormal, "fill", None)
    with pytest.raises(ConfigError, match="the buffer needs"):
        train(
            load_config([f"graph={graph.path}", f"output={tmp_path / 'run'}", *SMALL, "model.dim=10000000"])
        )
    with pytest.raises(ConfigError, match="init_rows of rows"):
        build.check(load_config([*SMALL, "model.dim=100"]))


def test_a_buffer_that_memory_does_not_hold_is_refused_before_relations_are_made(
    graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "memory_with_swap", lambda device: 1 << 20)
    monkeypatch.setattr(build, "make_model", None)
    for words in (["storage.capacity=4"], []):
        given = [f"graph={graph.path}", f"output={tmp_path / 'run'}", *SMALL, "model.dim=10000", *words]
        with pytest.raises(ConfigError, match="the buffer needs"):
            train(load_config(given))
    assert not (tmp_path / "run").exists()


def test_relations_that_memory_does_not_hold_are_refused(
    graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "memory_with_swap", lambda device: 2 * 2 * 4 * 4 - 1)
    message = r"2 rows of relations with 4 floats .* need 64 B, and 63 B .* smaller model\.dim \(it is 4\)"
    with pytest.raises(ConfigError, match=message):
        train(load_config([f"graph={graph.path}", f"output={tmp_path / 'run'}", *SMALL]))
    assert not (tmp_path / "run").exists()


def test_swap_counts_as_memory_of_this_machine_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    table = NodeTable(Partitioning(8000, 8), 16, 16)
    monkeypatch.setattr(machine, "available_memory", lambda device: 6 * table.slot_bytes)
    monkeypatch.setattr(machine, "_meminfo", lambda name: {"SwapFree": table.slot_bytes}[name])
    check_memory(table, 5, "cpu")
    for device, slots in (("cpu", 6), ("cuda", 5)):
        with pytest.raises(ConfigError, match=f"storage.capacity is {slots}"):
            check_memory(table, slots, device)


def test_a_devices_memory_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    table = NodeTable(Partitioning(8000, 8), 16, 16)
    monkeypatch.setattr(checks, "memory_with_swap", lambda device: 6 * table.slot_bytes)
    check_memory(table, 4, "cuda")
    with pytest.raises(
        ConfigError, match=r"7 slots of .*the device has .* KiB free\): storage\.capacity is 5"
    ):
        check_memory(table, 5, "cuda")
    check_memory(NodeTable(Partitioning(8000, 8), 16, 0), 8, "cpu")


@pytest.mark.parametrize("partitions", [20, 4])
def test_more_known_edges_than_are_held_are_told_where_they_can_be_counted(
    partitions: int, graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "check_answers", partial(check_answers, limit=graph.num_edges["train"] - 1))
    table = NodeTable(Partitioning(graph.num_nodes, partitions), 4, 4)
    config = load_config(["graph=g", "negatives=k_vs_all"])
    with pytest.raises(ConfigError, match=r"negatives\.per_question=true .* set a smaller storage\.capacity"):
        check_room(config, graph, table, partitions)
    check_room(load_config(["graph=g"]), graph, table, partitions)
    check_room(config, graph, table, 2)


def test_a_run_whose_memory_proves_short_goes_on_with_less(
    graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allocate = PartitionBuffer._allocate

    def scarce(self: Any, table: NodeTable, num_slots: int) -> None:
        if num_slots > 5:
            raise MemoryError("no memory")
        allocate(self, table, num_slots)

    monkeypatch.setattr(PartitionBuffer, "_allocate", scarce)
    output = f"output={tmp_path / 'run'}"
    with pytest.raises(ConfigError, match=r"storage\.capacity is 4; set a smaller one"):
        train(load_config([f"graph={graph.path}", output, *SMALL, "storage.capacity=4"]))
    result = train(load_config([output, "resume=true", "storage.capacity=3"]))
    assert np.isfinite(result["train"]["loss"])


def test_a_precision_that_the_decoder_cannot_be_ranked_in_is_refused(graph: Graph, tmp_path: Path) -> None:
    words = [f"graph={graph.path}", f"output={tmp_path / 'run'}", *SMALL, "evaluation.precision=bfloat16"]
    message = r"evaluation\.precision=bfloat16 .*model\.decoder=transe needs evaluation\.precision=float32"
    with pytest.raises(ConfigError, match=message):
        train(load_config([*words, "model.decoder=transe"]))
    assert not (tmp_path / "run").exists()
    build.check(load_config([*words, "model.decoder=complex"]))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("model.decoder=transe", "loss=logistic"), True),
        (("model.decoder=rotate", "loss=logistic"), True),
        (("model.decoder=rotate", "loss=logistic", "loss.margin=3"), False),
        (("model.decoder=complex", "loss=logistic"), False),
        (("model.decoder=transe",), False),
    ],
)
def test_a_logistic_loss_of_distances_is_told_of_its_margin(
    words: tuple[str, ...], said: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    build.check(load_config([*SMALL, *words]))
    assert ("loss.margin of 2 to 4" in caplog.text) == said


@pytest.mark.parametrize(
    ("warmup", "said"),
    [
        (0.5, None),
        (1, "rises to the end"),
        (4, "comes to 0.25 of optimizer.lr"),
        (1e18, "comes to 0.001 of optimizer.lr"),
    ],
)
def test_a_rate_that_rises_to_the_end_is_told(
    warmup: float, said: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    build.check(load_config([*SMALL, f"optimizer.schedule.warmup={warmup}"]))
    assert caplog.text.count("optimizer.schedule.warmup") == (said is not None)
    assert said is None or said in caplog.text


@pytest.mark.parametrize(
    ("words", "allowed"),
    [
        (["negatives.sampler=uniform", "negatives.degree_fraction=0.9"], False),
        (["negatives=all", "negatives.count_tail=7"], False),
        (["negatives=all", "negatives.count=500", "negatives.chunks=2"], False),
        (["negatives=k_vs_all", "negatives.count=500", "negatives.chunks=1"], True),
        (["negatives.sampler=uniform", "negatives.count_tail=7"], True),
        (["negatives.degree_fraction=0.9"], True),
    ],
)
def test_settings_that_mean_nothing_to_the_sampler_are_refused(words: list[str], allowed: bool) -> None:
    config = load_config([*SMALL, *words])
    if allowed:
        make_components(config)
    else:
        key = words[-1].split("=")[0].replace(".", r"\.")
        with pytest.raises(ConfigError, match=f"{key}.*means nothing to negatives.sampler="):
            make_components(config)


def test_an_epoch_that_began_in_chunks_ends_under_a_sampler_without_any(graph: Graph, tmp_path: Path) -> None:
    words = [f"graph={graph.path}", f"output={tmp_path / 'run'}", *SMALL, "training.batch_size=16"]
    words += ["negatives.chunks=4", "storage.capacity=10", "checkpoint.every_steps=1"]

    class Stop(build.Watcher):
        def on_start(self, trainer: Trainer, num_edges: int, epochs_done: int) -> None:
            self.trainer = trainer

        def on_progress(self, edges: int) -> None:
            self.trainer.interrupt()

    with pytest.raises(InterruptedRunError):
        train(load_config(words), Stop())
    resumed = [f"output={tmp_path / 'run'}", "resume=true", "negatives=all", "pipeline.trace=true"]
    result = train(load_config([*resumed, "training.epochs=2"]))
    assert result["train"]["epochs"] == 2
    events = json.loads((tmp_path / "run" / "trace.json").read_text())["traceEvents"]
    begun = {n: [one["ts"] for one in events if one["args"].get("epoch") == n] for n in (1, 2)}
    assert 0 <= min(begun[1]) <= max(begun[1]) < min(begun[2])  # of both trainers, in one timeline


def test_triton_kernels_are_refused_where_a_run_would_train_without_them(
    graph: Graph, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    config = load_config([f"graph={graph.path}", f"output={run}", *SMALL])
    asked = replace(config, pipeline=replace(config.pipeline, kernels="triton"))
    refusal = r"pipeline\.kernels=triton needs a CUDA device, .* set pipeline\.kernels=auto"
    with pytest.raises(ConfigError, match=refusal):
        train(asked)
    assert not run.exists()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "training_device", lambda config: torch.device("cpu"))
        train(asked)  # as on a machine with a device
    before = (run / "config.yaml").read_bytes()
    assert b"triton" in before
    assert evaluate(EvaluateConfig(run=str(run), split="train", device="cpu", compute_threads=1))
    with pytest.raises(ConfigError, match=refusal):
        train(load_config([f"output={run}", "resume=true", "training.epochs=2"]))
    assert (run / "config.yaml").read_bytes() == before


def test_a_run_that_came_and_went_before_the_folder_was_claimed_is_not_touched(
    graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config([f"graph={graph.path}", f"output={tmp_path / 'run'}", *SMALL, "storage.capacity=4"])
    real = build.resolve_auto

    def slow(given: TrainConfig, folder: Path) -> TrainConfig:
        monkeypatch.setattr(build, "resolve_auto", real)
        train(config)  # another process's, while this one measures the machine
        return real(given, folder)

    monkeypatch.setattr(build, "resolve_auto", slow)
    with pytest.raises(ConfigError, match=r"is not empty \(it holds checkpoint\)"):
        train(config)
    assert (tmp_path / "run" / "config.yaml").is_file()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Parameter", r"has parameters of its own \(weight, shape \(6,\)\), which nothing trains or stores"),
        ("Linear", r"has parameters of its own \(layers\.first\.0\.0\.(weight|bias), "),
        ("Module", r"has parameters of its own \(first\.(weight|bias), "),
        ("Random", "another one each time it is made: scale differs"),
        ("RandomArray", r"another one each time it is made: scale\.0 differs"),
        ("InFloat64", r"compare of .* gives torch\.float64 .* must be torch\.float32 of shape \(2, 3, 5\)"),
        ("Transposed", r"compare of .* gives .*shape \(2, 5, 3\); it must be .* of shape \(2, 3, 5\)"),
        ("Narrow", r"query of .* gives torch\.float32 of shape \(6, 5\); it must be .* of shape \(6, 6\)"),
        ("NoTensor", "compare of .* gives None"),
        ("Failing", "compare of .* fails: ValueError: dim must be 512"),
        ("Leaving", "query of .* fails: SystemExit: 0"),
        ("HalfRelations", r"relation_dim is 1\.5"),
        ("DetachedNodes", r"query of .* of shape \(6, 6\) without a gradient for the nodes: "),
        ("DetachedAnswers", r"compare of .* of shape \(2, 3, 5\) without a gradient for the candidates: "),
        ("Sparse", r"query of .* gives torch\.sparse_coo of torch\.float32 of shape \(6, 6\); it must be "),
        ("AnArray", r"query of .* gives a NumPy array, float32 of shape \(6, 6\); it must be "),
        ("TwoLines", r"compare of .* fails: ValueError: one line,\\nand another"),
        ("Noisy", "query gives something else for one edge alone than for the same edge among others: "),
        ("Centered", "query gives something else for one edge alone than for the same edge among others"),
        ("Probabilities", "compare gives something else for one edge alone than for the same edge among"),
        ("FailingRows", r"init_rows of rows \(6, 6\) fails: ValueError: no rows today"),
        ("FailingRelations", r"init_relations of rows \(6, 6\) fails: ValueError: no relations today"),
    ],
)
def test_a_decoder_that_no_run_can_keep_or_score_with_is_refused_before_data_is_opened(
    name: str, message: str, tmp_path: Path
) -> None:
    target = f"tests.assembly.own_parts.{name}"
    words = [f"output={tmp_path / 'run'}", "graph=nowhere", *SMALL, f"model.decoder={target}", "model.dim=6"]
    with pytest.raises(ConfigError, match=rf"model\.decoder={target}:? .*{message}"):
        train(load_config(words))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("LaterInFloat64", r"compare of queries .* gives torch\.float64 of shape"),
        ("LaterWhole", r"query of nodes \(90, 4\) and relations \(90, 4\), .* gives torch\.int64 of shape"),
        ("LaterNarrow", r"compare of queries .* gives torch\.float32 of shape \(1, 90, 1\); it"),
    ],
)
def test_a_decoder_that_its_trial_does_not_find_out_ends_the_run(
    name: str, message: str, graph: Graph, tmp_path: Path
) -> None:
    """Its scores would be taken as they are, or spread over negatives that they are not of."""
    target = f"tests.assembly.own_parts.{name}"
    words = [f"graph={graph.path}", f"output={tmp_path / 'run'}", *SMALL, "negatives.chunks=1"]
    wanted = rf"model\.decoder={target}: {message}.* must be torch\.float32 of shape"
    with pytest.raises(ConfigError, match=wanted):
        train(load_config([*words, f"model.decoder={target}"]))


@pytest.mark.parametrize("name", ["LaterInFloat64", "LaterWhole", "LaterNarrow"])
def test_no_run_is_ranked_by_what_is_no_score(name: str) -> None:
    decoder = getattr(own_parts, name)(4)
    scorer = ModelScorer(TrainedModel(decoder, torch.ones(1, 4), reciprocal=False), 4)
    rows = torch.ones(20, 4)
    with pytest.raises(ConfigError, match=rf"model\.decoder=.*{name}: .* gives torch\..*; it must be"):
        scorer.scores(scorer.queries(rows, torch.zeros(20, dtype=torch.int64), "tail"), rows)


def test_a_loss_without_weights_is_refused_only_where_negatives_are_weighed(
    graph: Graph, tmp_path: Path
) -> None:
    loss = "loss=tests.assembly.own_parts.WithoutWeights"
    words = [f"graph={graph.path}", f"output={tmp_path / 'run'}", *SMALL, loss]
    message = r"WithoutWeights: the loss .* weighted fails: NotImplementedError: .*; with 4 of 20 partitions"
    with pytest.raises(ConfigError, match=message):
        train(load_config([*words, "storage.capacity=4"]))
    assert not (tmp_path / "run" / "checkpoint").exists()
    assert train(load_config([*words, "storage.capacity=4", "negatives.weigh=false"]))["train"]["epochs"] == 1
    assert train(load_config([*words, "storage.capacity=20", f"output={tmp_path / 'whole'}"]))


def test_a_loss_is_tried_with_no_more_negatives_than_any_memory_holds(
    graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    def note(self: Any, positive: Any, negative: Any, keep: Any = None) -> Any:
        tried.append(negative.shape[1])
        return (negative - positive[:, None]).relu().mean()

    monkeypatch.setattr(own_parts.Hinge, "__call__", note)
    for count, expected in ((7, 7), (10**9, 1 << 20)):
        words = [f"graph={graph.path}", *SMALL, f"negatives.count={count}"]
        build.check(load_config([*words, "loss=tests.assembly.own_parts.Hinge"]))
        assert set(tried) == {expected}
        tried.clear()


@pytest.mark.parametrize("name", ["Plain", "Fixed", "WritesToWhatItGets"])
@pytest.mark.parametrize("mode", [torch.inference_mode, lambda: torch.autocast("cpu", dtype=torch.bfloat16)])
def test_a_decoder_of_a_users_own_passes(name: str, mode: Any) -> None:
    config = load_config([*SMALL, f"model.decoder=tests.assembly.own_parts.{name}"])
    with mode():
        check_decoder(config, make_components(config), torch.device("cpu"))


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("dim", [2, 4])
def test_the_packages_decoders_pass(name: str, dim: int) -> None:
    config = load_config([*SMALL, f"model.decoder={name}", f"model.dim={dim}"])
    components = make_components(config)
    check_decoder(config, components, torch.device("cpu"))
    _check_scores(components.decoder, XavierNormal(), name, torch.device("cpu"), SIDES)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Stateful", r"state_dim\(4\) is 1\.5"),
        ("FailingWidth", r"state_dim\(4\) fails: KeyError: 'width'"),
        ("FailingState", r"init_state of rows \(2, 1\) fails: ValueError: no state today"),
        ("HalfState", r"init_state of rows \(2, 2\) leaves some NaN or not written"),
    ],
)
def test_an_optimizer_that_cannot_keep_its_state_is_refused(name: str, message: str, tmp_path: Path) -> None:
    words = [f"output={tmp_path / 'run'}", *SMALL, f"optimizer.name=tests.assembly.own_parts.{name}"]
    with pytest.raises(ConfigError, match=rf"optimizer\.name=.*{name}: {message}"):
        train(load_config([*words, "optimizer.lr=0.1"]))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("key", "name", "message"),
    [
        (
            "optimizer.name",
            "RowsAlone",
            r"delta of rows \(3, 4\) gives torch\.float32 of shape \(3, 4\); it must be",
        ),
        (
            "optimizer.name",
            "NarrowState",
            r"gives .* and torch\.float32 of shape \(3, 2\); .* \(3, 1\) for the state",
        ),
        ("optimizer.name", "FailingStep", r"delta of rows \(3, 4\) fails: ValueError: no step today"),
        (
            "loss",
            "EachEdge",
            r"the loss of scores .* gives torch\.float32 of shape \(8,\); it must be one float",
        ),
        ("loss", "OneNumber", r"the loss of scores .* gives 1\.0; it must be"),
        (
            "loss",
            "Detached",
            r"gives torch\.float32 of shape \(\) without a gradient; it must be .* differentiable",
        ),
        ("loss", "WithoutMasks", r"the loss of scores .* with a mask fails: ValueError: no masks today"),
        ("model.init", "FailingInit", r"init_rows of rows \(3, 4\) fails: ValueError: no values today"),
        (
            "model.init",
            "InfiniteInit",
            r"init_rows of rows \(3, 4\) leaves some infinite, NaN or not written",
        ),
        (
            "model.init",
            "ReturnedInit",
            r"init_rows of rows \(3, 4\) leaves some infinite, NaN or not written",
        ),
        (
            "loss",
            "OwnWeights",
            r"the loss of scores .*, weighted gives torch\.float32 of shape \(8,\); it must",
        ),
        ("loss", "NoWeights", r"the loss of scores .*, weighted fails: TypeError"),
        ("optimizer.name", "NoStateOfAdagrad", r"delta of rows \(3, 4\) gives .* and None; it must be two"),
        ("optimizer.name", "WideAdagrad", r"delta of rows \(3, 4\) fails: "),
        ("optimizer.name", "InPlaceState", r"delta of rows \(3, 4\) changes the state in place, "),
        ("loss", "NewLeaf", r"gives torch\.float32 of shape \(\) without a gradient; it must be"),
    ],
)
def test_parts_of_ones_own_are_tried_before_a_run_is_begun(
    key: str, name: str, message: str, graph: Graph, tmp_path: Path
) -> None:
    target = f"{key}=tests.assembly.own_parts.{name}"
    with pytest.raises(ConfigError, match=f"^{re.escape(target)}: .*{message}"):
        train(load_config([f"graph={graph.path}", f"output={tmp_path / 'run'}", *SMALL, target]))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "word",
    [
        *(f"optimizer.name=tests.assembly.own_parts.{name}" for name in ("Steps", "Locked", "OwnStep")),
        *(f"loss=tests.assembly.own_parts.{name}" for name in ("Hinge", "InFloat64Hinge", "ByPlace")),
        "loss=tests.assembly.own_parts.WithoutMasks negatives.mask_known=false",
    ],
)
def test_parts_of_ones_own_that_training_can_do_with_train(word: str, graph: Graph, tmp_path: Path) -> None:
    words = [f"graph={graph.path}", f"output={tmp_path / 'run'}", *SMALL, "optimizer.lr=0.1", *word.split()]
    assert np.isfinite(train(load_config([*words, "storage.capacity=20"]))["train"]["loss"])


def test_what_is_tried_is_not_what_the_run_begins_with(graph: Graph, tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = [f"graph={graph.path}", f"output={run}", *SMALL, "model.init=tests.assembly.own_parts.Table"]
    words += ["model.decoder=dot", "optimizer.lr=1e-30", "storage.partitions=1"]
    train(load_config(words))
    with open_node_store(run / "checkpoint") as store:
        rows = np.empty((store.table.slot_rows, 4), np.float32)
        store.read_into(0, rows, np.empty((store.table.slot_rows, store.table.state_dim), np.float32))
    np.testing.assert_allclose(rows[: graph.num_nodes, 0], np.arange(graph.num_nodes) / 1000, atol=1e-6)


@pytest.mark.parametrize(
    "word",
    [
        "optimizer.lr=1e39",
        "optimizer.lr=1e-46",
        "optimizer.eps=1e39",
        "optimizer.initial=1e39",
        "optimizer=adam optimizer.eps=1e-46",
        "model.decoder=rotate model.decoder.phase_scale=1e-300",
        "model.decoder=complex model.decoder.popularity=1e300",
        "loss=logistic loss.margin=1e39",
        "loss=margin loss.adversarial_temperature=1e39",
        "loss=softmax loss.negative_weight=1e39",
    ],
)
def test_numbers_that_rows_and_scores_cannot_hold_are_refused(word: str) -> None:
    key, value = word.split(" ")[-1].split("=")
    with pytest.raises(
        ConfigError, match=rf"{re.escape(key)} is {re.escape(repr(float(value)))}; .* of float32"
    ):
        build.check(load_config([*SMALL, *word.split(" "), "model.init=normal"]))


@pytest.mark.parametrize("value", [1e39, 1e30, 1000001.0])
@pytest.mark.parametrize(("init", "name"), [("normal", "scale"), ("xavier_normal", "gain")])
def test_initial_rows_whose_scores_no_number_holds_are_refused(init: str, name: str, value: float) -> None:
    key = f"model.init.{name}"
    with pytest.raises(ConfigError, match=rf"{key} is {re.escape(repr(value))}; .* from 0 to 1,000,000"):
        build.check(load_config([*SMALL, f"model.init={init}", f"{key}={value}"]))
    build.check(load_config([*SMALL, f"model.init={init}", f"{key}=1e6"]))


@pytest.mark.parametrize("mode", ["inline", "threaded"])
def test_rows_that_are_no_numbers_are_not_committed(mode: str, graph: Graph, tmp_path: Path) -> None:
    """Though the losses and gradients that they were made of were finite."""
    run = tmp_path / "run"
    words = [
        f"graph={graph.path}",
        f"output={run}",
        *SMALL,
        "storage.capacity=20",
        "training.batch_size=1000",
    ]
    words += [f"pipeline.mode={mode}", "optimizer.name=tests.assembly.own_parts.NoNumbers"]
    with pytest.raises(DivergedError, match=r"^rows of .*the last commit is intact\. Lower optimizer\.lr"):
        train(load_config(words))
    with open_node_store(run / "checkpoint") as store:
        rows, state = (
            np.empty((store.table.slot_rows, 4), np.float32),
            np.empty((store.table.slot_rows, 1), np.float32),
        )
        for part in range(store.table.partitioning.num_partitions):
            store.read_into(part, rows, state)
            assert np.isfinite(rows[: store.table.partitioning.size(part)]).all()


def test_rows_that_were_no_numbers_before_do_not_end_a_run() -> None:
    """Those of an imported model that no edge uses."""
    rows = np.zeros((4, 4), np.float32)
    rows[1] = np.nan
    check_numbers(rows, "rows", lambda: rows.copy())
    for before in (np.zeros((4, 4), np.float32), None):
        with pytest.raises(DivergedError, match=r"^rows became infinite or NaN"):
            check_numbers(rows, "rows", lambda: before)  # noqa: B023


def test_a_commit_of_rows_that_have_grown_too_large_is_told(graph: Graph, tmp_path: Path) -> None:
    words = [f"graph={graph.path}", f"output={tmp_path / 'run'}", *SMALL, "optimizer.name=sgd"]
    words += ["optimizer.lr=1e10", "training.batch_size=1000", "storage.capacity=20", "training.epochs=9"]
    with pytest.raises(
        DivergedError, match=r"in epoch [2-9], .* first batch since that commit, .* begin anew"
    ):
        train(load_config(words))


@pytest.mark.parametrize("rounds", [1, 2])
def test_what_fills_batches_is_named(rounds: int, graph: Graph, tmp_path: Path, caplog: Any) -> None:
    words = ["storage.partitions=30", "storage.capacity=4", f"ordering.rounds={rounds}", "training.epochs=1"]
    train(load_config([f"graph={graph.path}", f"output={tmp_path / 'run'}", *SMALL, *words]))
    told = next(one for one in caplog.messages if "fill them" in one)
    assert ("; fewer ordering.rounds (2), fewer storage.partitions (30) or" in told) == (rounds == 2), told
