"""Training over memory stores: equal runs where the design promises equality, resume, faults, interrupts."""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from marius_py.buffer.swap import IOThread
from marius_py.data.batch_settings import BatchSettings
from marius_py.data.plan import spread_spans
from marius_py.errors import ConfigError, InterruptedRunError, PipelineError, StorageError
from marius_py.nn.batch import Batch
from marius_py.nn.decoders import RESCAL, ComplEx, Decoder, DistMult, TransE
from marius_py.nn.gradients import Gradients
from marius_py.nn.initializers import Normal
from marius_py.nn.known_edges import KnownEdges
from marius_py.nn.losses import LogisticLoss, Loss, SoftmaxLoss
from marius_py.nn.model import LinkPredictionModel
from marius_py.nn.negatives import AllNegatives, NegativeSampler, UniformNegatives
from marius_py.nn.optimizers import Adagrad
from marius_py.nn.schedules import CosineRate, LinearRate, PlateauRate, RateSchedule
from marius_py.ordering import build_schedule
from marius_py.partitioning import Partitioning
from marius_py.pipeline.stages import figures
from marius_py.storage.memory import MemoryEdgeStore, MemoryPartitionStore
from marius_py.storage.protocols import Float32, NodeTable
from marius_py.storage.weighted import weighted_rows, weights_of
from marius_py.team import Team
from marius_py.training.commits import CommitRhythm
from marius_py.training.settings import TrainerSettings
from marius_py.training.trainer import Trainer
from marius_py.types import Schedule, Side
from tests.every_second import every_second

NODES, RELATIONS, EDGES, DIM, PARTITIONS = 300, 4, 1500, 16, 6


def make_edges(
    p: int = PARTITIONS, seed: int = 0, count: int = EDGES, weights: Float32 | None = None
) -> MemoryEdgeStore:
    rng = np.random.default_rng(seed)
    head = rng.integers(0, NODES, count)
    relation = rng.integers(0, RELATIONS, count)
    tail = (head * (relation + 2) + rng.integers(0, 3, count)) % NODES
    edges = np.stack([head, relation, tail], axis=1)
    if weights is not None:
        edges = weighted_rows(edges, weights)
    return MemoryEdgeStore(Partitioning(NODES, p), edges)


def make_model(decoder: Decoder | None = None, dropout: float = 0.2) -> LinkPredictionModel:
    return LinkPredictionModel(
        decoder or ComplEx(DIM),
        SoftmaxLoss(),
        Adagrad(lr=0.2),
        num_relations=RELATIONS,
        reciprocal=True,
        node_dropout=dropout,
        seed=5,
    )


def ordering(p: int, c: int) -> Callable[[int, tuple[int, ...] | None], Schedule]:
    return lambda epoch, start: build_schedule(p, c, order="beta", seed=epoch, start=start)


class Setup:
    """A trainer and the store it trains, with everything that a test may want to vary."""

    def __init__(
        self,
        settings: TrainerSettings,
        *,
        p: int = PARTITIONS,
        store: Any = None,
        model: LinkPredictionModel | None = None,
        mask_known: bool = False,
        per_question: bool = False,
        spread: bool = False,
        block_edges: int = 10**6,
        sampler: NegativeSampler | None = None,
        weigh: bool = True,
        batch_edges: int = 64,
        chunks: int = 4,
        edges: int = EDGES,
        weights: Float32 | None = None,
        **options: Any,
    ) -> None:
        self.model = model or make_model()
        table = NodeTable(Partitioning(NODES, p), self.model.dim, self.model.node_state_dim)
        self.store = store or MemoryPartitionStore(table)
        self.trainer = Trainer(
            self.model,
            self.store,
            make_edges(p, count=edges, weights=weights),
            ordering(p, settings.capacity),
            sampler or UniformNegatives(20, 4),
            BatchSettings(
                batch_edges,
                chunks,
                11,
                mask_known,
                spread,
                block_edges,
                weigh,
                per_question=per_question,
                mean_weight=None if weights is None else float(weights.mean()),
            ),
            settings,
            **options,
        )

    def train(self, epochs: int) -> list[dict[str, Any]]:
        return self.trainer.train(epochs)

    def table(self) -> Float32:
        return self.stored(0)

    def state(self) -> Float32:
        return self.stored(1)

    def stored(self, tensor: int) -> Float32:
        """Of every node its embedding (0) or its state (1)."""
        table = self.store.table
        rows = np.empty((table.slot_rows, table.dim), np.float32)
        state = np.empty((table.slot_rows, table.state_dim), np.float32)
        found = []
        for part in range(table.partitioning.num_partitions):
            self.store.read_into(part, rows, state)
            found.append((rows, state)[tensor][: table.partitioning.size(part)].copy())
        return np.concatenate(found)

    def assert_equals(self, other: Setup) -> None:
        np.testing.assert_array_equal(self.table(), other.table())
        np.testing.assert_array_equal(self.state(), other.state())
        for name, value in self.model.state_arrays().items():
            np.testing.assert_array_equal(value, other.model.state_arrays()[name])


INLINE = TrainerSettings(3, "inline")
THREADED = TrainerSettings(3, "threaded", max_in_flight=1)


def test_threaded_with_one_batch_in_flight_equals_inline_bit_for_bit() -> None:
    runs = [Setup(INLINE), Setup(THREADED)]
    histories = [run.train(3) for run in runs]
    runs[0].assert_equals(runs[1])
    assert [line["loss"] for line in histories[0]] == [line["loss"] for line in histories[1]]


@pytest.mark.parametrize(
    "settings",
    [
        {"mask_known": True, "block_edges": 170},
        *[
            pytest.param(own, marks=pytest.mark.slow)
            for own in ({}, {"mask_known": True}, {"block_edges": 170})
        ],
    ],
)
def test_threads_that_share_in_a_batch_make_the_same_run_each_time(settings: dict[str, Any]) -> None:
    """Whoever is first: what is added up comes in the order of parts."""
    torch.set_num_threads(3)
    try:
        runs = [Setup(replace(THREADED, compute_workers=3), **settings) for _ in range(2)]
        runs += [Setup(replace(THREADED, mode="inline", compute_workers=3), **settings)]
        losses = [[line["loss"] for line in run.train(2)] for run in runs]
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(1)
    for run in runs[1:]:
        runs[0].assert_equals(run)
    assert losses[0] == losses[1] == losses[2]
    alone = [line["loss"] for line in Setup(THREADED, **settings).train(2)]
    assert losses[0] == pytest.approx(alone, rel=1e-4)


def test_how_many_threads_share_in_a_batch_is_not_torchs_to_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another run of the process, in another thread, changes torch's number meanwhile."""
    sizes: set[int] = set()
    settings = replace(THREADED, threads=3)
    model = make_model()
    gradients = model.gradients
    model.gradients = lambda batch, team: (sizes.add(team.size), gradients(batch, team))[1]  # type: ignore[method-assign]
    setup = Setup(settings, model=model)
    torch.set_num_threads(1)
    setup.train(1)
    assert sizes == {3}


@pytest.mark.parametrize("negatives", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_in_which_slots_partitions_lie_changes_nothing(negatives: int) -> None:
    """A resumed run fills its buffer anew, and must compute what the unbroken one does, to the bit."""
    runs = [Setup(INLINE, sampler=UniformNegatives(negatives, 4), batch_edges=16) for _ in range(2)]
    runs[1].trainer._buffer._free.reverse()
    for run in runs:
        run.train(2)
    runs[0].assert_equals(runs[1])


def test_same_seed_gives_the_same_run_twice_and_learns() -> None:
    first, second = Setup(INLINE, mask_known=True), Setup(INLINE, mask_known=True)
    history = first.train(6)
    second.train(6)
    first.assert_equals(second)
    assert history[-1]["loss"] < 0.8 * history[0]["loss"]


@pytest.mark.parametrize(
    ("decoder", "loss", "per_question", "used"),
    [
        (ComplEx(DIM), SoftmaxLoss(), False, "Triton (bfloat16) kernels"),
        (ComplEx(DIM), LogisticLoss(1.0), False, "Triton (bfloat16) kernels"),
        (ComplEx(DIM), SoftmaxLoss(), True, "Triton (bfloat16) kernels"),
        (ComplEx(DIM), SoftmaxLoss(smoothing=0.1), False, "PyTorch kernels: decoder, loss"),
        (ComplEx(DIM), LogisticLoss(1.0, 0.5), False, "PyTorch kernels: decoder, loss"),
        (TransE(DIM), SoftmaxLoss(), False, "PyTorch kernels: decoder, loss"),
        (DistMult(300), SoftmaxLoss(), False, "PyTorch kernels: decoder, loss, model.dim"),
    ],
    ids=lambda one: type(one).__name__ if isinstance(one, (Decoder, Loss)) else str(one)[:7],
)
def test_the_log_names_the_kernels_that_are_used(
    decoder: Decoder, loss: Loss, per_question: bool, used: str, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("triton", reason="Triton is not installed (extra marius_py[kernels])")
    caplog.set_level("INFO")
    options: dict[str, Any] = {"kernels": "triton", "precision": "bfloat16", "num_relations": RELATIONS}
    Setup(
        INLINE, model=LinkPredictionModel(decoder, loss, Adagrad(0.1), **options), per_question=per_question
    )
    (line,) = [record.message for record in caplog.records if "contrasted" in record.message]
    assert line.startswith(f"negatives on cpu are contrasted by {used}")
    assert ("their products are float32, whatever pipeline.precision" in line) == used.startswith("PyTorch")


def test_several_workers_share_the_threads_and_learn() -> None:
    threads: set[int] = set()
    model = make_model()
    gradients = model.gradients
    model.gradients = lambda *words: (threads.add(torch.get_num_threads()), gradients(*words))[1]  # type: ignore[method-assign]
    torch.set_num_threads(2)
    try:
        workers = Setup(replace(THREADED, max_in_flight=4), model=model).train(6)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert threads == {1}
    assert workers[-1]["loss"] < 0.95 * workers[0]["loss"]


def test_threads_left_over_share_in_the_batches_of_each_worker(caplog: pytest.LogCaptureFixture) -> None:
    """Each has a team of its own, and torch no threads beside them."""
    caplog.set_level("INFO")
    found: set[tuple[str, Team, int, int]] = set()
    model = make_model()
    gradients = model.gradients
    together = threading.Barrier(2)

    def noted(batch: Batch, team: Team) -> Gradients:
        me = threading.current_thread().name
        if me not in {one[0] for one in found}:
            together.wait(60)  # else one worker might take all batches
        found.add((me, team, team.size, torch.get_num_threads()))
        return gradients(batch, team)

    model.gradients = noted  # type: ignore[method-assign]
    settings = replace(THREADED, max_in_flight=2, threads=7, members=5)
    torch.set_num_threads(7)
    try:
        history = Setup(settings, model=model, batch_edges=64).train(1)
        assert torch.get_num_threads() == 7
    finally:
        torch.set_num_threads(1)
    assert {(size, threads) for _, _, size, threads in found} == {(3, 1)}
    assert len({name for name, *_ in found}) == 2
    assert len({team for _, team, *_ in found}) == 2
    assert [record.message for record in caplog.records][:1] == ["batches: 2 at once, threads of each: 3"]
    one = Setup(THREADED, batch_edges=64).train(1)
    assert history[0]["loss"] == pytest.approx(one[0]["loss"], rel=0.1)


def test_the_log_says_whether_a_processor_multiplies_bfloat16(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO")
    for rounds, loops_round, words in (
        (True, False, "those of bfloat16"),
        (False, True, "those of bfloat16"),
        (False, False, "has no units for it"),
    ):
        monkeypatch.setattr("marius_py.nn.product_units._rounds", lambda precision, rounds=rounds: rounds)
        monkeypatch.setattr("marius_py.training.batch_path.rounds_factors", lambda found=loops_round: found)
        caplog.clear()
        Setup(replace(INLINE, precision="bfloat16"))
        level = "INFO" if rounds or loops_round else "WARNING"
        (line,) = caplog.records
        assert line.levelname == level
        assert words in line.message
    caplog.clear()
    monkeypatch.setattr("marius_py.training.batch_path.rounds_factors", lambda: True)
    uncompiled = make_model()
    uncompiled.compiled = False
    Setup(replace(INLINE, precision="bfloat16"), model=uncompiled)
    assert "has no units for it" in caplog.text  # PyTorch has none, and loops do not compute these
    for norm, dropout in (("l2", 0.0), ("l2", 0.2), ("l1", 0.0), ("l1", 0.2)):
        caplog.clear()
        Setup(replace(INLINE, precision="bfloat16"), model=make_model(TransE(DIM, norm), dropout=dropout))
        assert "compute distances in float32" in caplog.text
    caplog.clear()
    matrices = make_model(RESCAL(DIM))
    matrices.relation_dropout = 0.2
    Setup(replace(INLINE, precision="bfloat16"), model=matrices)
    assert "has no units for it" in caplog.text  # loops make no queries of matrices after dropout
    caplog.clear()
    Setup(INLINE)
    Setup(replace(INLINE, precision="bfloat16"), quiet=True)  # as a plan measures
    assert not caplog.records


@pytest.mark.parametrize("settings", [INLINE, THREADED], ids=["inline", "threaded"])
def test_bfloat16_is_for_the_products_alone(settings: TrainerSettings) -> None:
    rounded = Setup(replace(settings, precision="bfloat16")).train(4)
    assert torch.get_float32_matmul_precision() == "highest"
    assert rounded[-1]["loss"] == pytest.approx(Setup(settings).train(4)[-1]["loss"], rel=0.1)


@pytest.mark.parametrize("block_edges", [10**6, 170])
def test_every_edge_is_trained_once_an_epoch_in_each_mode(block_edges: int) -> None:
    several = replace(THREADED, max_in_flight=7), replace(THREADED, max_in_flight=3, compute_workers=3)
    for settings in (INLINE, *several, TrainerSettings(PARTITIONS, "inline")):
        history = Setup(settings, block_edges=block_edges).train(2)
        assert [line["edges"] for line in history] == [EDGES, EDGES]
        assert all(np.isfinite(line["loss"]) for line in history)


def test_an_epoch_after_the_first_loads_only_what_it_swaps() -> None:
    history = Setup(INLINE).train(3)
    schedule = build_schedule(PARTITIONS, 3, order="beta", seed=0)
    assert [line["loads"] for line in history] == [schedule.loads, schedule.swaps, schedule.swaps]


@pytest.mark.parametrize("settings", [INLINE, THREADED], ids=["inline", "threaded"])
@pytest.mark.parametrize("swaps", [1, 3])
def test_what_commits_inside_an_epoch_move_belongs_to_it(settings: TrainerSettings, swaps: int) -> None:
    setup = Setup(replace(settings, commits=CommitRhythm(swaps=swaps)))
    written, write = [], setup.store.write
    setup.store.write = lambda *words: written.append(write(*words)) or written[-1]
    history = setup.train(3)
    schedule = build_schedule(PARTITIONS, 3, order="beta", seed=0)
    assert [line["loads"] for line in history] == [schedule.loads, schedule.swaps, schedule.swaps]
    assert sum(line["bytes_written"] for line in history) == sum(written[PARTITIONS:])  # the first initialise
    assert len(written) > PARTITIONS + 3 * (schedule.swaps + 3)


@pytest.mark.parametrize("mask_known", [False, True])
@pytest.mark.parametrize("settings", [INLINE, THREADED, TrainerSettings(PARTITIONS, "threaded")])
def test_bytes_of_edges_belong_to_the_epoch_that_they_are_for(
    settings: TrainerSettings, mask_known: bool
) -> None:
    """Whenever they are read; with commits inside it no fewer, and none twice where they stay in memory."""
    of_rows = 2 * 4 * DIM * NODES // PARTITIONS
    found = []
    for commits in (CommitRhythm(), CommitRhythm(swaps=1)):
        setup = Setup(replace(settings, commits=commits), mask_known=mask_known, edges=1000)
        found.append([line["bytes_read"] - line["loads"] * of_rows for line in setup.train(3)])
    for plain, divided in zip(*found, strict=True):
        assert divided == plain if mask_known else divided >= plain
    if not mask_known:
        assert len(set(found[0])) == 1
        assert found[0][0] == 1000 * 12
    assert found[0][0] >= 1000 * 12


@pytest.mark.parametrize("settings", [INLINE, THREADED, TrainerSettings(PARTITIONS, "threaded")])
def test_the_next_epoch_is_begun_while_one_ends(settings: TrainerSettings) -> None:
    """Its schedule is made once, before the epoch at hand is done; none is made after the last one."""
    asked: list[tuple[int, int, str]] = []
    setup = Setup(settings, on_epoch=lambda line: done.append(line))
    done: list[dict[str, Any]] = []
    make = ordering(PARTITIONS, settings.capacity)

    def counting(epoch: int, start: tuple[int, ...] | None) -> Schedule:
        asked.append((epoch, len(done), threading.current_thread().name))
        return make(epoch, start)

    setup.trainer._ordering = lru_cache(maxsize=1)(counting)
    setup.train(3)
    assert [(epoch, before) for epoch, before, _ in asked] == [(0, 0), (1, 0), (2, 1)]
    assert [name for *_, name in asked[1:]] == ["marius-io"] * 2
    assert setup.trainer._source._begun is None


@pytest.mark.parametrize("capacity", [3, PARTITIONS])
def test_commits_in_an_epochs_last_block_keep_what_the_next_one_begins_with(
    capacity: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit after every batch: same results, every division made once, every edge read ahead once."""
    made: list[int] = []

    def counting(*arguments: Any, **options: Any) -> Any:
        made.append(1)
        return spread_spans(*arguments, **options)

    whole = Setup(TrainerSettings(capacity, "inline"), spread=True)
    whole.train(3)
    monkeypatch.setattr("marius_py.data.division.spread_spans", counting)
    often = replace(TrainerSettings(capacity, "inline"), commits=CommitRhythm(seconds=1e-9))
    divided = Setup(often, spread=True)
    history = divided.train(3)
    assert len(made) == 3
    assert [line["edges"] for line in history] == [EDGES] * 3
    np.testing.assert_array_equal(divided.table(), whole.table())


def test_patience_lets_go_of_what_the_next_epoch_would_have_begun_with() -> None:
    settings = replace(TrainerSettings(3, "threaded"), patience=1)
    setup = Setup(settings, validate=lambda epoch: {"mrr": 1 / (1 + epoch)})
    assert len(setup.train(50)) == 2
    assert setup.trainer._source._begun is None


def test_everything_in_memory_reads_each_partition_once() -> None:
    history = Setup(TrainerSettings(PARTITIONS, "threaded")).train(3)
    assert [line["loads"] for line in history] == [PARTITIONS, 0, 0]


@pytest.mark.parametrize("stop_after", [1, 7, 23, 48])
def test_interrupted_and_resumed_equals_uninterrupted(stop_after: int) -> None:
    whole = Setup(INLINE)
    whole_history = whole.train(3)
    seen = 0

    def count(edges: int) -> None:
        nonlocal seen
        seen += 1
        if seen == stop_after:
            first.trainer.interrupt()

    first = Setup(INLINE, on_progress=count)
    with pytest.raises(InterruptedRunError, match="resume=true"):
        first.train(3)
    second = Setup(INLINE, store=first.store)
    history = second.train(3)
    second.assert_equals(whole)
    assert [line["loss"] for line in history] == pytest.approx([line["loss"] for line in whole_history])
    assert [line["edges"] for line in history] == [EDGES] * 3


def test_commits_inside_an_epoch_change_nothing_and_bound_the_lost_work() -> None:
    whole = Setup(INLINE)
    whole.train(2)
    often = Setup(replace(INLINE, commits=CommitRhythm(swaps=1)))
    commits: list[list[int]] = []
    commit = often.store.commit

    def recording(checkpoint: Any) -> None:
        commits.append(list(checkpoint.meta["position"]))
        commit(checkpoint)

    often.store.commit = recording
    often.train(2)
    often.assert_equals(whole)
    steps = len(build_schedule(PARTITIONS, 3, order="beta", seed=0).steps)
    assert len(commits) >= 2 * (steps - 2)
    assert commits == sorted(commits)


def test_a_trainer_that_goes_on_inside_an_epoch_says_how_many_of_its_edges_are_done() -> None:
    done: list[int] = []
    first = Setup(INLINE, on_progress=lambda edges: (done.append(edges), first.trainer.interrupt()))
    assert first.trainer.edges_done == 0
    with pytest.raises(InterruptedRunError, match="interrupted in epoch 1"):
        first.train(1)
    then = Setup(INLINE, store=first.store)
    assert then.trainer.edges_done == sum(done) > 0
    then.train(1)
    assert then.trainer.edges_done == 0


def test_an_epoch_is_not_continued_by_another_division_of_its_edges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Edges would run twice, and others not at all, where a version cuts steps in another way."""
    first = Setup(INLINE, on_progress=lambda edges: first.trainer.interrupt())
    with pytest.raises(InterruptedRunError, match="interrupted in epoch 1"):
        first.train(1)
    monkeypatch.setattr("marius_py.training.trainer.DIVISION", 0)
    with pytest.raises(ConfigError, match=r"has begun with another schedule .* the version of the package"):
        Setup(INLINE, store=first.store).train(1)
    monkeypatch.undo()
    monkeypatch.setattr("marius_py.storage.memory.MemoryEdgeStore.train_order", lambda edges: "another")
    with pytest.raises(
        ConfigError, match=r"or the graph was prepared anew and has its edges in another order"
    ):
        Setup(INLINE, store=first.store).train(1)
    monkeypatch.undo()
    Setup(INLINE, store=first.store).train(1)


def test_commits_inside_an_epoch_do_not_make_its_division_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def counting(*arguments: Any, **options: Any) -> Any:
        made.append(len(commits))
        return spread_spans(*arguments, **options)

    monkeypatch.setattr("marius_py.data.division.spread_spans", counting)
    run = Setup(replace(INLINE, commits=CommitRhythm(swaps=1)), spread=True)
    commits: list[Any] = []
    commit = run.store.commit
    run.store.commit = lambda checkpoint: (commits.append(checkpoint), commit(checkpoint))
    run.train(2)
    assert len(made) == 2
    assert len(commits) > 6


def test_rolled_back_to_a_commit_inside_an_epoch_ends_the_same() -> None:
    """What a killed process leaves is the last commit; going on from there ends as if nothing happened."""
    whole = Setup(INLINE)
    whole.train(2)

    class KilledError(Exception):
        pass

    seen = 0

    def kill(edges: int) -> None:
        nonlocal seen
        seen += 1
        if seen == 40:
            raise KilledError

    first = Setup(replace(INLINE, commits=CommitRhythm(swaps=2)), on_progress=kill)
    with pytest.raises(PipelineError):
        first.train(2)
    first.store.rollback()
    assert first.store.checkpoint().meta["position"][1] > 0 or first.store.checkpoint().meta["position"][0]
    second = Setup(INLINE, store=first.store)
    second.train(2)
    second.assert_equals(whole)


class ExplodingDecoder(ComplEx):
    """Fails at its n-th query."""

    def __init__(self, dim: int, calls: int) -> None:
        super().__init__(dim)
        self.left = calls

    def query(self, node: torch.Tensor, relation: torch.Tensor, side: Any) -> torch.Tensor:
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("my decoder broke")
        return super().query(node, relation, side)


@pytest.mark.parametrize("mode", ["inline", "threaded"])
def test_an_exception_in_a_users_decoder_ends_the_run_once_and_names_the_stage(mode: str) -> None:
    run = Setup(TrainerSettings(3, mode), model=make_model(ExplodingDecoder(DIM, 30)))
    before = threading.active_count()
    with pytest.raises(PipelineError, match="stage 'compute' failed: RuntimeError: my decoder broke"):
        run.train(2)
    assert threading.active_count() == before


class FailingStore(MemoryPartitionStore):
    """Fails at its n-th read or write."""

    def __init__(self, table: NodeTable, operation: str, call: int) -> None:
        super().__init__(table)
        self.operation = operation
        self.left = call

    def _count(self, operation: str) -> None:
        if operation == self.operation:
            self.left -= 1
            if self.left < 0:
                raise StorageError(28, f"{operation} failed: no space left on device")

    def read_into(self, part: int, embeddings: Float32, state: Float32) -> int:
        self._count("read")
        return super().read_into(part, embeddings, state)

    def write(self, part: int, embeddings: Float32, state: Float32) -> int:
        self._count("write")
        return super().write(part, embeddings, state)


@pytest.mark.parametrize(
    ("call", "operation", "mode"), every_second(range(0, 16, 3), ["read", "write"], ["inline", "threaded"])
)
def test_a_failing_disk_stops_the_run_and_the_commit_survives(mode: str, operation: str, call: int) -> None:
    table = NodeTable(Partitioning(NODES, PARTITIONS), DIM, DIM)
    store = FailingStore(table, operation, call)
    before = threading.active_count()
    with pytest.raises(StorageError, match=f"{operation} failed: no space left"):
        Setup(TrainerSettings(3, mode, max_in_flight=1), store=store, edges=1000).train(2)
    assert threading.active_count() == before
    store.rollback()
    store.left = 10**9
    again, whole = Setup(INLINE, store=store, edges=1000), Setup(INLINE, edges=1000)
    again.train(2)
    whole.train(2)
    again.assert_equals(whole)


def test_nan_loss_stops_with_the_position_and_keeps_the_commit() -> None:
    run = Setup(INLINE)
    run.train(1)
    committed = run.table()

    class NanLoss(SoftmaxLoss):
        def __call__(self, *args: Any, **kwargs: Any) -> torch.Tensor:
            return super().__call__(*args, **kwargs) * float("nan")

    model = make_model()
    model.loss = NanLoss()
    model.fused = False
    broken = Setup(INLINE, store=run.store, model=model)
    with pytest.raises(PipelineError, match=r"loss became nan in epoch 2, step 1, batch 1 "):
        broken.train(2)
    run.store.rollback()
    np.testing.assert_array_equal(run.table(), committed)


def test_a_spread_epoch_trains_every_edge_once_and_resumes_in_its_middle() -> None:
    whole = Setup(INLINE, spread=True)
    history = whole.train(2)
    assert [line["edges"] for line in history] == [EDGES, EDGES]
    seen = 0

    def count(edges: int) -> None:
        nonlocal seen
        seen += 1
        if seen == 17:
            first.trainer.interrupt()

    first = Setup(INLINE, spread=True, on_progress=count)
    with pytest.raises(InterruptedRunError):
        first.train(2)
    second = Setup(INLINE, spread=True, store=first.store)
    second.train(2)
    second.assert_equals(whole)


# ---------------------------------------------------------------------- rates and patience


def by_epoch(values: list[float]) -> Callable[[int], dict[str, Any]]:
    return lambda epochs: {"mrr": values[epochs - 1]}


@pytest.mark.parametrize("rate", [LinearRate(3, 0.5), CosineRate(3, 0.3), PlateauRate(3, patience=0)])
def test_a_resumed_run_has_the_rates_of_an_uninterrupted_one(rate: RateSchedule) -> None:
    validate = by_epoch([0.3, 0.2, 0.1])
    whole = Setup(replace(INLINE, rate=rate), validate=validate)
    history = whole.train(3)
    rates = [line["rate"] for line in history]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] > rates[-1]

    seen = 0

    def stop(edges: int) -> None:
        nonlocal seen
        seen += edges
        if seen > EDGES * 1.4:
            first.trainer.interrupt()

    first = Setup(replace(THREADED, rate=rate), validate=validate, on_progress=stop)
    with pytest.raises(InterruptedRunError):
        first.train(3)
    second = Setup(replace(THREADED, rate=rate), store=first.store, validate=validate)
    assert [line["rate"] for line in second.train(3)] == rates
    second.assert_equals(whole)


def test_a_rate_of_its_own_changes_the_run() -> None:
    plain, scheduled = Setup(INLINE), Setup(replace(INLINE, rate=LinearRate(1)))
    plain.train(1)
    scheduled.train(1)
    assert np.abs(plain.table() - scheduled.table()).max() > 1e-3


def test_training_ends_when_patience_runs_out() -> None:
    values = [0.1, 0.3, 0.2, 0.3, 0.1, 0.9]
    run = Setup(replace(INLINE, patience=2), validate=by_epoch(values))
    history = run.train(6)
    assert [line["valid"]["mrr"] for line in history] == values[:4]
    assert [line["best_epoch"] for line in history] == [1, 2, 2, 2]
    again = Setup(replace(INLINE, patience=2), store=run.store, validate=by_epoch(values))
    assert again.train(6) == history
    patient = Setup(replace(INLINE, patience=4), store=run.store, validate=by_epoch(values))
    assert [line["best_epoch"] for line in patient.train(6)][4:] == [2, 6]


def test_epochs_without_validation_cost_no_patience() -> None:
    validations = {2: 0.5, 4: 0.4}
    run = Setup(
        replace(INLINE, patience=1),
        validate=lambda epochs: {"mrr": validations[epochs]} if epochs in validations else None,
    )
    assert len(run.train(9)) == 4


class _Steep(torch.autograd.Function):
    """Leaves scores as they are and breaks their gradients."""

    @staticmethod
    def forward(ctx: Any, scores: torch.Tensor) -> torch.Tensor:
        return scores.clone()

    @staticmethod
    def backward(ctx: Any, *gradient: torch.Tensor) -> torch.Tensor:
        return gradient[0] * float("inf")


class _SteepRelations(DistMult):
    """Gradients of relations that are no numbers, of scores and gradients of nodes that are some."""

    def query(self, node: torch.Tensor, relation: torch.Tensor, side: Side) -> torch.Tensor:
        return super().query(node, _Steep.apply(relation), side)


@pytest.mark.parametrize("settings", [INLINE, THREADED], ids=["inline", "threaded"])
def test_relations_that_are_no_numbers_reach_no_commit(settings: TrainerSettings) -> None:
    run = Setup(INLINE)
    run.train(1)
    model = make_model()
    model.decoder = _SteepRelations(model.dim)
    with pytest.raises(PipelineError, match=r"gradients became infinite or NaN .* in epoch 2"):
        Setup(settings, store=run.store, model=model).train(2)


@pytest.mark.parametrize("part", ["rows", "relations", "loss"])
def test_figures_of_a_batch_tell_what_is_no_number(part: str) -> None:
    parts = {"rows": torch.ones(2, 3), "relations": torch.ones(1, 3), "loss": torch.tensor(1.0)}
    assert figures(Gradients(**parts)).tolist() == [1, 9]
    parts[part].view(-1)[0] = torch.nan
    assert not figures(Gradients(**parts)).isfinite().all()


@pytest.mark.parametrize("settings", [INLINE, THREADED], ids=["inline", "threaded"])
def test_gradients_that_are_no_numbers_reach_no_commit(settings: TrainerSettings) -> None:
    class SteepLoss(SoftmaxLoss):
        def __call__(self, positive: torch.Tensor, *others: Any) -> torch.Tensor:
            return super().__call__(_Steep.apply(positive), *others)

    run = Setup(INLINE)
    run.train(1)
    committed = run.table()
    model = make_model()
    model.loss = SteepLoss()
    broken = Setup(settings, store=run.store, model=model)
    with pytest.raises(PipelineError, match=r"gradients became infinite or NaN at a loss of \d.* in epoch 2"):
        broken.train(2)
    run.store.rollback()
    np.testing.assert_array_equal(run.table(), committed)


def test_rows_that_begin_far_too_large() -> None:
    """Negatives score 80 to 88 above true edges, which weights outlast and their products do not."""
    for seed in range(3):
        model = LinkPredictionModel(
            DistMult(128),
            SoftmaxLoss(),
            Adagrad(0.1),
            num_relations=RELATIONS,
            initializer=Normal(1.2),
            seed=seed,
        )
        run = Setup(replace(INLINE, capacity=PARTITIONS), model=model)
        losses = [line["loss"] for line in run.train(2)]
        assert losses[1] < losses[0]
        assert np.isfinite(run.table()).all()


@pytest.mark.parametrize("mask_known", [False, True])
def test_a_question_counts_once_however_many_edges_answer_it(mask_known: bool) -> None:
    batches: list[Batch] = []
    model = make_model()
    gradients = model.gradients
    model.gradients = lambda batch, team: (batches.append(batch), gradients(batch, team))[1]  # type: ignore[method-assign]
    settings = replace(INLINE, capacity=PARTITIONS)
    run = Setup(settings, model=model, mask_known=mask_known, per_question=True)
    losses = [line["loss"] for line in run.train(3)]
    assert losses[-1] < losses[0]
    edges = make_edges(PARTITIONS).read_range("train", 0, make_edges(PARTITIONS).num_edges("train"))
    totals = {"head": 0.0, "tail": 0.0}
    for batch in batches:
        for side, one in batch.negatives.items():
            assert one.edge_weight is not None
            totals[side] += float(one.edge_weight.double().sum())
            assert (one.dropped is not None) == mask_known
    for side, known in (("tail", [0, 1]), ("head", [2, 1])):
        assert totals[side] == pytest.approx(3 * len(edges))
        counts = np.unique(edges[:, known], axis=0, return_counts=True)[1]
        weights = torch.cat([batch.negatives[side].edge_weight for batch in batches]).double()
        expected = len(edges) / len(counts) / np.sort(np.repeat(counts, counts))[::-1]
        np.testing.assert_allclose(weights.sort().values[::3], expected, rtol=1e-6)


WEIGHTS = np.random.default_rng(5).exponential(3, EDGES).astype(np.float32)


def batches_of(settings: TrainerSettings, **options: Any) -> list[Batch]:
    """The batches of three epochs, which teach."""
    found: list[Batch] = []
    model = make_model()
    gradients = model.gradients
    model.gradients = lambda batch, team: (found.append(batch), gradients(batch, team))[1]  # type: ignore[method-assign]
    losses = [line["loss"] for line in Setup(settings, model=model, **options).train(3)]
    assert losses[-1] < losses[0]
    return found


@pytest.mark.parametrize("per_question", [False, True])
@pytest.mark.parametrize("settings", [INLINE, replace(THREADED, capacity=PARTITIONS)])
def test_an_edge_counts_by_its_weight(settings: TrainerSettings, per_question: bool) -> None:
    total = 0.0
    weighed = batches_of(settings, weights=WEIGHTS, per_question=per_question)
    for batch, plain in zip(weighed, batches_of(settings, per_question=per_question), strict=True):
        for side, one in batch.negatives.items():
            alike = plain.negatives[side].edge_weight
            assert (alike is not None) == per_question
            assert one.edge_weight is not None
            own = one.edge_weight if alike is None else one.edge_weight / alike
            total += float(own.double().sum())
    assert total == pytest.approx(2 * 3 * EDGES, rel=1e-5)


@pytest.mark.parametrize("mask_known", [False, True])
def test_weights_count_alike_where_the_buffer_is_on_a_device(mask_known: bool) -> None:
    options: dict[str, Any] = {"weights": WEIGHTS, "mask_known": mask_known}
    runs = [
        Setup(replace(INLINE, device_buffer=on_device), model=make_model(dropout=0.0), **options)
        for on_device in (False, True)
    ]
    losses = [[line["loss"] for line in run.train(2)] for run in runs]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    np.testing.assert_allclose(runs[0].table(), runs[1].table(), rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("device_buffer", [False, True])
def test_edges_of_no_weight_teach_nothing(device_buffer: bool) -> None:
    """Only the ends of the one that has some change, and its negatives."""
    weights = np.zeros(EDGES, dtype=np.float32)
    weights[7] = 5
    settings = replace(INLINE, device_buffer=device_buffer)
    run = Setup(settings, model=make_model(dropout=0.0), weights=weights)
    run.train(1)
    rows = make_edges(weights=weights).read("train", weights=True)
    ((head, _, tail, _),) = rows[weights_of(rows) > 0].tolist()
    changed = set(np.flatnonzero((run.state() != 0).any(axis=1)).tolist())
    assert {head, tail} <= changed
    assert len(changed) <= 2 + 2 * 20


def test_answers_outside_the_buffer_are_reckoned_with(monkeypatch: pytest.MonkeyPatch) -> None:
    shares, weights = set(), KnownEdges.question_weights

    def noted(self: KnownEdges, edges: Any, side: Any) -> Any:
        shares.add(self._share)
        return weights(self, edges, side)

    monkeypatch.setattr(KnownEdges, "question_weights", noted)
    Setup(INLINE, per_question=True).train(1)
    assert shares == {0.5}  # three partitions of six
    Setup(replace(INLINE, capacity=PARTITIONS), per_question=True).train(1)
    assert shares == {0.5, 1.0}
    shares.clear()
    monkeypatch.setattr("marius_py.data.batches.HELD_EDGES", EDGES)  # few, of which all are indexed
    Setup(INLINE, per_question=True).train(1)
    assert shares == {1.0}


def test_questions_are_not_weighed_on_a_device() -> None:
    with pytest.raises(ConfigError, match="buffer there, in RAM"):
        Setup(replace(INLINE, device_buffer=True), per_question=True)


def test_answers_are_not_counted_among_more_edges_than_are_held() -> None:
    message = r"negatives\.per_question=true .* at most 1499; with storage\.capacity=6 .* may be 1500"
    settings = replace(INLINE, capacity=PARTITIONS)
    with pytest.raises(ConfigError, match=message):
        Setup(settings, per_question=True, block_edges=EDGES - 1)
    Setup(settings, per_question=True, block_edges=EDGES)
    Setup(settings, mask_known=True, block_edges=EDGES - 1)


def test_a_spread_epoch_makes_no_other_division(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("marius_py.data.division.whole_spans")
    assert Setup(INLINE, spread=True).train(1)[0]["edges"] == EDGES


@pytest.mark.parametrize("when", ["validate", "on_boundary"])
def test_an_interrupt_after_the_last_batch_is_not_forgotten(when: str) -> None:
    whole = Setup(INLINE)
    whole.train(2)

    def interrupt(*epochs: int) -> dict[str, Any] | None:
        if run.trainer.state.position.epoch == 2:
            run.trainer.interrupt()
        return {"mrr": 0.5} if epochs else None

    run = Setup(INLINE, **{when: interrupt})
    with pytest.raises(InterruptedRunError, match=r"interrupted after epoch 2; .*resume=true"):
        run.train(2)
    resumed = Setup(INLINE, store=run.store)
    assert len(resumed.train(2)) == 2
    resumed.assert_equals(whole)


@pytest.mark.parametrize("ends_in", ["validate", "on_boundary"])
def test_each_epoch_is_told_once_wherever_a_run_ends(ends_in: str) -> None:
    told: list[int] = []

    def end(*epochs: int) -> dict[str, Any]:
        if len(run.trainer.state.history) == 2:
            raise OSError("gone")
        return {"mrr": 0.5}

    named = {"validate": lambda epochs: {"mrr": 0.5}, "on_epoch": lambda line: told.append(line["epoch"])}
    run = Setup(INLINE, **{**named, ends_in: end})
    with pytest.raises(PipelineError, match="gone"):
        run.train(3)
    Setup(INLINE, store=run.store, **named).train(3)
    Setup(INLINE, store=run.store, **named).train(3)
    assert told == [0, 1, 2]


@pytest.mark.parametrize("settings", [INLINE, THREADED], ids=["inline", "threaded"])
@pytest.mark.parametrize(
    ("fails_in", "calls"), [("validate", 2), ("on_epoch", 2), ("on_boundary", 2), ("on_progress", 25)]
)
def test_a_run_whose_callback_fails_is_gone_on_with(
    settings: TrainerSettings, fails_in: str, calls: int
) -> None:
    """Whatever the next epoch began with is let go of, no thread stays, and the rest is as if unbroken."""
    options: dict[str, Any] = {"mask_known": True, "spread": True, "edges": 1000}
    whole = Setup(settings, **options)
    whole.train(3)
    left = [calls]

    def fail(*_: object) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise ValueError("broken")

    run = Setup(settings, **options, **{fails_in: fail})
    with pytest.raises((ValueError, PipelineError), match="broken"):
        run.train(3)
    assert run.trainer._source._begun is None
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("marius-")]
    run.store.rollback()  # as a store on disk that is opened anew
    resumed = Setup(settings, store=run.store, **options)
    resumed.train(3)
    resumed.assert_equals(whole)


def test_without_an_io_thread_the_run_ends_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name == "marius-io":
            raise RuntimeError("can't start new thread")
        plain(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    setup = Setup(replace(INLINE, trace=tmp_path / "trace.json"))
    with pytest.raises(PipelineError, match=r"'marius-io' cannot be started: .* processes or memory apply"):
        setup.train(1)
    assert (tmp_path / "trace.json").exists()


def test_an_interrupt_while_the_disk_is_waited_for_frees_the_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    shutdown = IOThread.shutdown

    def interrupted(io: IOThread) -> None:
        shutdown(io)
        raise KeyboardInterrupt

    monkeypatch.setattr(IOThread, "shutdown", interrupted)
    run = Setup(INLINE)
    with pytest.raises(KeyboardInterrupt):
        run.train(1)
    assert run.trainer._buffer.bytes == 0


@pytest.mark.parametrize("settings", [INLINE, THREADED, replace(THREADED, max_in_flight=3)])
def test_a_trace_has_every_stage_swap_read_write_and_batch(settings: TrainerSettings, tmp_path: Path) -> None:
    run = Setup(replace(settings, trace=tmp_path / "trace.json"), validate=lambda epochs: {"mrr": 0.5})
    history = run.train(2)
    spans = defaultdict[str, list[dict[str, Any]]](list)
    for event in json.loads((tmp_path / "trace.json").read_text())["traceEvents"]:
        spans[event["name"]].append(event)
    loads = sum(line["loads"] for line in history)
    first = ordering(PARTITIONS, 3)(0, None)
    steps = [
        {"epoch": epoch + 1, "step": step + 1}
        for epoch, schedule in enumerate((first, ordering(PARTITIONS, 3)(1, first.final)))
        for step in range(len(schedule.steps))
    ]
    assert len(spans["read"]) == loads
    assert {event["args"]["partition"] for event in spans["read"]} == set(range(PARTITIONS))
    assert len(spans["swap"]) == len(steps) - 2
    assert all(len(event["args"]["admit"]) == len(event["args"]["evict"]) == 1 for event in spans["swap"])
    assert [event["args"] for event in spans["read edges"]] == steps
    for name in ("read", "write", "read edges"):
        assert {event["tid"] for event in spans[name]} == {"marius-io"}
    assert {event["args"]["partition"] for event in spans["write"]} == set(range(PARTITIONS))
    for stage in ("draw", "gather", "compute", "scatter"):
        places = [tuple(event["args"].values()) for event in spans[stage]]
        assert len(set(places)) == len(places)
        begun = [{"epoch": epoch, "step": step} for epoch, step, batch in sorted(places) if batch == 1]
        assert begun == steps
    assert len(spans["validate"]) == 2


def test_a_trace_that_cannot_be_written_hides_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = replace(INLINE, trace=tmp_path / "none" / "trace.json")
    with pytest.raises(StorageError, match=r"none/trace\.json"):
        Setup(settings).train(1)
    run = Setup(settings, on_progress=lambda edges: run.trainer.interrupt())
    with pytest.raises(InterruptedRunError):
        run.train(1)
    assert "the trace is not written: " in caplog.text


@pytest.mark.parametrize("mask_known", [False, True])
def test_all_residents_as_negatives(mask_known: bool) -> None:
    """Every resident node is a candidate, and an edge's own answer is never its own negative."""
    batches: list[Batch] = []
    model = make_model()
    gradients = model.gradients
    model.gradients = lambda batch, team: (batches.append(batch), gradients(batch, team))[1]  # type: ignore[method-assign]
    run = Setup(INLINE, model=model, sampler=AllNegatives(), mask_known=mask_known)
    losses = [line["loss"] for line in run.train(3)]
    assert losses[-1] < losses[0]
    for batch in batches:
        for side, own in (("head", batch.head), ("tail", batch.tail)):
            one = batch.negatives[side]  # type: ignore[index]
            assert one.nodes.shape == (1, NODES * INLINE.capacity // PARTITIONS)
            assert one.nodes.unique().numel() == one.nodes.numel()
            keep = one.mask(len(own))
            assert keep is not None
            mine = one.nodes == own[:, None]
            assert mine.sum(1).eq(1).all()
            assert not keep[0][mine].any()
            assert mask_known or keep[0][~mine].all()
