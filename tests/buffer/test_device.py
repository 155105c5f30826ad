"""The buffer on a device, the device being the CPU: equal to the buffer in RAM bit for bit."""

from __future__ import annotations

import gc
import time
import weakref
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from marius_py.buffer import PartitionBuffer
from marius_py.buffer.device import DeviceBuffer
from marius_py.buffer.swap import IOThread
from marius_py.buffer.transfer import CudaTransfer, Late, Transfer
from marius_py.data.batch_settings import BatchSettings
from marius_py.data.drawing import BatchDrawing
from marius_py.data.drawn_batch import DrawnBatch, Locator
from marius_py.data.importance import group_shares, group_weights, resident_groups
from marius_py.data.resident_edges import EdgesAtHand
from marius_py.errors import ConfigError, InterruptedRunError, PipelineError, ScheduleError, StorageError
from marius_py.nn.batch import Batch
from marius_py.nn.cuda_kernels import TorchKernels
from marius_py.nn.decoders import ComplEx, Decoder, TransE
from marius_py.nn.gradients import Gradients
from marius_py.nn.kernels import host
from marius_py.nn.known_answers import AnswerTables
from marius_py.nn.losses import SoftmaxLoss
from marius_py.nn.model import LinkPredictionModel
from marius_py.nn.negatives import AllNegatives, UniformNegatives
from marius_py.nn.optimizers import SGD, Adagrad, AdagradRow, Adam, SparseOptimizer
from marius_py.partitioning import Partitioning
from marius_py.pipeline import device_stages, stages
from marius_py.pipeline.execution import Execution
from marius_py.pipeline.recordings import Recordings
from marius_py.pipeline.runner import run_threaded
from marius_py.pipeline.stages import training_stages
from marius_py.storage.memory import MemoryPartitionStore
from marius_py.storage.protocols import NodeTable
from marius_py.testing import Fault, FaultyStore, SlowStore
from marius_py.training import trainer
from marius_py.training.batch_path import finds_known_on_device
from marius_py.training.trainer import TrainerSettings
from marius_py.types import SIDES, Position, Side
from tests.every_second import every_second
from tests.training.test_trainer import DIM, EDGES, INLINE, PARTITIONS, RELATIONS, THREADED, Setup

ON_DEVICE = replace(INLINE, device_buffer=True)


@pytest.fixture(autouse=True)
def _same_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways by PyTorch's operations, with negatives in one order: results are equal to the last bit."""
    monkeypatch.setattr(host, "numba_works", lambda: False)
    monkeypatch.setattr(
        BatchDrawing, "_sorts", property(lambda self: True, lambda self, sorts: None), raising=False
    )


def make_model(optimizer: SparseOptimizer | None = None, **options: Any) -> LinkPredictionModel:
    return LinkPredictionModel(
        options.pop("decoder", None) or ComplEx(DIM),
        SoftmaxLoss(),
        optimizer or Adagrad(lr=0.2),
        num_relations=RELATIONS,
        reciprocal=True,
        node_dropout=0.2,
        seed=5,
        **options,
    )


@pytest.mark.parametrize("capacity", [3, PARTITIONS])
@pytest.mark.parametrize("masked", [False, True])
def test_equal_to_the_buffer_in_ram(capacity: int, masked: bool) -> None:
    runs = [
        Setup(replace(settings, capacity=capacity), mask_known=masked, weigh=masked)
        for settings in (INLINE, ON_DEVICE)
    ]
    histories = [run.train(2) for run in runs]
    runs[0].assert_equals(runs[1])
    for key in ("loss", "edges", "loads", "bytes_read", "bytes_written"):
        assert [line[key] for line in histories[0]] == [line[key] for line in histories[1]]


@pytest.mark.parametrize(
    ("options", "capacity"),
    every_second([{}, {"spread": True}, {"block_edges": 170}, {"sampler": AllNegatives()}], [3, PARTITIONS]),
)
def test_equal_where_the_device_finds_known_edges(
    options: dict[str, Any], capacity: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = []
    real = AnswerTables.hold
    monkeypatch.setattr(
        AnswerTables, "hold", lambda self, edges: (held.append(len(edges)), real(self, edges))
    )
    runs = []
    for on_device in (False, True):
        monkeypatch.setattr(trainer, "finds_known_on_device", lambda *_, is_there=on_device, **__: is_there)
        runs.append(Setup(replace(ON_DEVICE, capacity=capacity), mask_known=True, **options))
        assert not held
        losses = [line["loss"] for line in runs[-1].train(2)]
        assert runs[-1].trainer.memory.peaks["known edges"] > 0
    assert held
    assert capacity < PARTITIONS or "block_edges" in options or held == [EDGES]  # once for both epochs
    runs[0].assert_equals(runs[1])
    assert losses == [line["loss"] for line in runs[0].trainer.state.history]


def test_known_edges_are_found_where_kernels_need_no_list_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    pytest.importorskip("triton", reason="Triton is not installed (extra marius_py[kernels])")
    settings = BatchSettings(64, 4, 0, mask_known=True)

    def finds(num_nodes: int = 300, *, device_buffer: bool = True, **given: Any) -> bool:
        batches = replace(settings, **{key: given.pop(key) for key in ("mask_known",) if key in given})
        model = make_model(**{"kernels": "triton"} | given)
        return finds_known_on_device(model, batches, num_nodes, device_buffer=device_buffer)

    assert finds()
    assert not finds(mask_known=False)
    assert not finds(device_buffer=False)
    assert not finds(kernels="auto")  # on the cpu: none at all
    assert not finds(kernels="torch")
    assert not finds(decoder=TransE(DIM))
    assert not finds(decoder=ComplEx(300))
    assert not finds(fused=False)
    assert not finds(2_000_000_000)


def test_equal_whatever_torchs_defaults_are() -> None:
    runs = [Setup(replace(ON_DEVICE, capacity=3), weigh=True) for _ in range(2)]
    runs[0].train(1)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            runs[1].train(1)
    finally:
        torch.set_default_dtype(before)
    runs[0].assert_equals(runs[1])


@pytest.mark.parametrize(
    "optimizer", [SGD(0.1), AdagradRow(0.1), Adam(0.01)], ids=lambda one: type(one).__name__
)
def test_equal_with_every_optimizer(optimizer: SparseOptimizer) -> None:
    runs = [Setup(settings, model=make_model(optimizer)) for settings in (INLINE, ON_DEVICE)]
    for run in runs:
        run.train(1)
    runs[0].assert_equals(runs[1])


def test_equal_in_threads_however_many_batches_are_in_flight() -> None:
    inline, threaded = Setup(ON_DEVICE), Setup(replace(THREADED, max_in_flight=5, device_buffer=True))
    for run in (inline, threaded):
        run.train(2)
    inline.assert_equals(threaded)


def test_equal_with_all_nodes_as_negatives_and_without_a_closed_form() -> None:
    for options in ({"sampler": AllNegatives()}, {"model": TransE(DIM)}):
        runs = []
        for settings in (INLINE, ON_DEVICE):
            given: dict[str, Any] = dict(options)
            if "model" in given:
                given["model"] = make_model(decoder=given["model"], fused=False)
            runs.append(Setup(settings, **given))
            runs[-1].train(1)
        runs[0].assert_equals(runs[1])


@pytest.mark.parametrize("device_buffer", [False, True], ids=["ram", "device"])
def test_batches_without_known_edges_are_alike(device_buffer: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """How many negatives are left out differs from batch to batch; what could be recorded does not."""
    done: Counter[Any] = Counter()
    number_dropped = set()
    real_do, real_negatives = Recordings.do, BatchDrawing._negatives

    def do(self: Recordings, work: Any, given: Any, key: Any = None) -> Any:
        done[key, tuple(one.shape for one in given)] += 1
        return real_do(self, work, given, key)

    def negatives(self: BatchDrawing, *given: Any) -> Any:
        drawn, dropped = real_negatives(self, *given)
        number_dropped.add(tuple(map(len, dropped.values())))
        return drawn, dropped

    monkeypatch.setattr(Recordings, "do", do)
    monkeypatch.setattr(BatchDrawing, "_negatives", negatives)
    run = Setup(
        replace(INLINE, capacity=1, device_buffer=device_buffer),
        p=1,
        mask_known=True,
        sampler=UniformNegatives(200, 4),
    )
    if not device_buffer:
        _by_way_of_a_device(run, monkeypatch)
    run.train(4)
    assert len(number_dropped) > 10
    assert done.most_common(1)[0][1] > 0.8 * done.total()


@pytest.mark.parametrize("device_buffer", [False, True], ids=["ram", "device"])
def test_a_recording_is_of_one_learning_rate(device_buffer: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program may change that of an optimizer of its own while it trains."""
    keys: dict[float, set[Any]] = defaultdict(set)
    real_do = Recordings.do

    def do(self: Recordings, work: Any, given: Any, key: Any = None) -> Any:
        keys[run.model.optimizer.lr].add((key, tuple(one.shape for one in given)))
        return real_do(self, work, given, key)

    def change(edges: int) -> None:
        run.model.optimizer.lr /= 2

    monkeypatch.setattr(Recordings, "do", do)
    run = Setup(replace(INLINE, capacity=1, device_buffer=device_buffer), p=1, on_progress=change)
    if not device_buffer:
        _by_way_of_a_device(run, monkeypatch)
    run.train(1)
    assert len(keys) > 3
    assert not any(one & other for one, other in combinations(keys.values(), 2))


def _by_way_of_a_device(run: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a trainer take the stages of some device that is not the CPU, over copies that cost nothing."""
    monkeypatch.setattr(run.trainer._path, "_device", torch.device("meta"))


def test_kernels_that_never_wait_take_padded_batches() -> None:
    pytest.importorskip("triton", reason="Triton is not installed (extra marius_py[kernels])")
    runs = []
    for kernels, settings in (("torch", INLINE), ("triton", ON_DEVICE)):
        model = make_model(kernels=kernels)
        runs.append(Setup(settings, model=model, mask_known=True, weigh=True, edges=150))
        runs[-1].train(1)
    np.testing.assert_allclose(runs[1].table(), runs[0].table(), rtol=1e-3, atol=1e-4)
    assert runs[1].trainer.state.history[0]["loss"] == pytest.approx(
        runs[0].trainer.state.history[0]["loss"], rel=1e-4
    )


@pytest.mark.parametrize("settings", [INLINE, THREADED])
def test_the_way_over_a_bus_equals_the_way_without(
    settings: TrainerSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, sent = Setup(INLINE, mask_known=True), Setup(settings, mask_known=True)
    plain.train(1)
    _by_way_of_a_device(sent, monkeypatch)
    sent.train(1)
    plain.assert_equals(sent)


@pytest.mark.parametrize("stop_after", [7, 48])
def test_interrupted_and_resumed_equals_uninterrupted(stop_after: int) -> None:
    whole = Setup(ON_DEVICE)
    whole.train(2)
    done = 0

    def count(edges: int) -> None:
        nonlocal done
        done += 1
        if done == stop_after:
            first.trainer.interrupt()

    first = Setup(ON_DEVICE, on_progress=count)
    with pytest.raises(InterruptedRunError, match="the state is committed"):
        first.train(2)
    second = Setup(ON_DEVICE, store=first.store)
    second.train(2)
    whole.assert_equals(second)


def test_a_slow_store_changes_nothing() -> None:
    table = NodeTable(Partitioning(300, PARTITIONS), DIM, DIM)
    slow = Setup(
        replace(THREADED, device_buffer=True),
        store=SlowStore(MemoryPartitionStore(table), bytes_per_s=50e6),
    )
    plain = Setup(ON_DEVICE)
    for run in (slow, plain):
        run.train(1)
    np.testing.assert_array_equal(slow.table(), plain.table())


@pytest.mark.parametrize("settings", [ON_DEVICE, replace(THREADED, device_buffer=True)])
def test_a_failed_write_stops_the_run(settings: TrainerSettings) -> None:
    table = NodeTable(Partitioning(300, PARTITIONS), DIM, DIM)
    store = FaultyStore(MemoryPartitionStore(table), [Fault(PARTITIONS + 2, "fail", "write")])
    with pytest.raises(StorageError):
        Setup(settings, store=store).train(1)


class Diverging(LinkPredictionModel):
    """Its third batch has a loss of NaN."""

    batches = 0

    def gradients(self, batch: Batch) -> Gradients:
        found = super().gradients(batch)
        self.batches += 1
        return replace(found, loss=found.loss * float("nan")) if self.batches == 3 else found


def test_a_loss_that_is_not_finite_names_its_batch() -> None:
    model = Diverging(ComplEx(DIM), SoftmaxLoss(), Adagrad(0.2), num_relations=RELATIONS, seed=5)
    with pytest.raises(PipelineError, match="loss became nan in epoch 1, step 1, batch 3 "):
        Setup(ON_DEVICE, model=model).train(1)


class Rooted(Decoder):
    """The negative distance, as a user writes it: where two rows are equal, 0 with a gradient of NaN."""

    def query(self, node: torch.Tensor, relation: torch.Tensor, side: Side) -> torch.Tensor:
        return node + 0 * relation[:, :1]

    def compare(self, query: torch.Tensor, candidates: torch.Tensor) -> torch.Tensor:
        return -(query.unsqueeze(2) - candidates.unsqueeze(1)).square().sum(-1).sqrt()


@pytest.mark.parametrize("way", ["host", "bus", "device"])
def test_gradients_that_are_not_finite_reach_no_commit(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last batch's, on each way: what comes after it, a commit, must not be."""
    model = LinkPredictionModel(Rooted(DIM), SoftmaxLoss(), Adagrad(0.05), num_relations=RELATIONS, seed=5)
    run = Setup(
        replace(INLINE, capacity=1, device_buffer=way == "device"),
        p=1,
        model=model,
        weigh=False,
        sampler=UniformNegatives(300, 1),
        batch_edges=EDGES,
        chunks=1,
    )
    if way == "bus":
        _by_way_of_a_device(run, monkeypatch)
    message = (
        r"infinite or NaN at a loss of 11\.\d+ in epoch 1, step 1, batch 1 \(1500 edges.*commit is intact"
    )
    with pytest.raises(PipelineError, match=message):
        run.train(1)
    assert run.store.meta["position"] == [0, 0, 0]
    assert np.isfinite(run.table()).all()


class Broken:
    """A stream of a device that has failed."""

    def synchronize(self) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")


def test_closing_after_an_error_does_not_hide_it() -> None:
    transfer = CudaTransfer.__new__(CudaTransfer)
    transfer._inward = transfer._outward = transfer._partitions = Broken()
    transfer._pinned = {}

    def fail() -> None:
        try:
            raise ValueError("what happened first")
        finally:
            transfer.close()

    with pytest.raises(ValueError, match="what happened first"):
        fail()
    with pytest.raises(RuntimeError, match="illegal memory access"):
        transfer.close()


class Lagging(Transfer):
    """What is computed becomes known only when it is waited for, as on a device that is far behind."""

    class Late(Late):
        def is_there(self) -> bool:
            return False

        def read(self) -> list[float]:
            time.sleep(0.002)
            return super().read()

    def late(self, value: torch.Tensor) -> Late:
        return Lagging.Late(value.clone())


def test_losses_that_are_late_are_counted_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_stages, "MOST_UNREAD", 3)
    monkeypatch.setattr("marius_py.training.trainer.transfer_to", Lagging)
    late = Setup(ON_DEVICE)
    history = late.train(2)
    plain = Setup(INLINE)
    assert [line["loss"] for line in history] == [line["loss"] for line in plain.train(2)]
    late.assert_equals(plain)
    for line in history:
        assert 0.002 < line["wait_device_s"] < line["seconds"]


@pytest.fixture
def buffer() -> Any:
    table = NodeTable(Partitioning(301, 7), 4, 0)
    store = MemoryPartitionStore(table)
    io = IOThread()
    made = DeviceBuffer(store, 4, io, Transfer(torch.device("cpu")))
    made.fill_store(lambda start, rows, state: rows.fill(start))
    made.begin([1, 3, 4, 6])
    yield made
    io.shutdown()
    made.close()


def drawn_batch(
    buffer: DeviceBuffer, seed: int = 0, parts: tuple[int, ...] = (1, 3, 4, 6), dtype: Any = np.int32
) -> DrawnBatch:
    rng = np.random.default_rng(seed)
    partitioning = buffer.store.table.partitioning
    nodes = np.concatenate(
        [np.arange(partitioning.start(part), partitioning.start(part + 1)) for part in parts]
    )
    edges = rng.choice(nodes, (12, 3)).astype(dtype)
    edges[:, 1] = rng.integers(0, 5, 12)
    return DrawnBatch(
        here=Position(0, 0, 0),
        position=Position(0, 0, 1),
        edges=edges,
        negatives={"head": rng.choice(nodes, (2, 9)), "tail": rng.choice(nodes, (2, 5))},
        dropped={"tail": np.array([3, 17], np.int64)},
        first_row=buffer.first_rows(),
        seed=1,
        lease=buffer.lease([1, 3]),
    )


def located(buffer: DeviceBuffer, drawn: DrawnBatch, *, padded: bool, weigh: bool = True) -> Any:
    packed = drawn.pack(0.25, lambda size: torch.empty(size, dtype=torch.uint8))
    return Locator(buffer, torch.device("cpu"), weigh=weigh, padded=padded)(drawn, packed)


def test_located_as_on_the_host(buffer: DeviceBuffer) -> None:
    for seed in range(20):
        drawn = drawn_batch(buffer, seed, dtype=(np.int32, np.int64)[seed % 2])
        nodes = [drawn.edges[:, 0], drawn.edges[:, 2], *(drawn.negatives[side].ravel() for side in SIDES)]
        rows = buffer.index(np.concatenate(nodes), buffer.first_rows())
        last = {row: place for place, row in enumerate(rows.tolist())}
        index = np.array(sorted(last, key=last.__getitem__))  # in the order of their last occurrence
        local = np.array([index.tolist().index(row) for row in rows])
        plain, padded = (located(buffer, drawn, padded=padded) for padded in (False, True))
        np.testing.assert_array_equal(plain.index.numpy(), index)
        assert plain.count is None
        assert int(padded.count) == len(index)
        np.testing.assert_array_equal(padded.index[: len(index)].numpy(), index)
        assert not padded.index[len(index) :].any()
        part, _ = buffer.store.table.partitioning.locate(np.concatenate(nodes))
        group = resident_groups(buffer.first_rows())[part]
        assert set(group.tolist()) <= set(range(4))
        shares = group_shares(7, 4)
        assert shares is not None
        weights = group_weights(group[:12], group[12:24], shares, 4)
        for found in (plain, padded):
            assert not found.lost
            sides = [found.negatives[side] for side in SIDES]
            places = [found.head, found.tail, *(side.nodes.flatten() for side in sides)]
            np.testing.assert_array_equal(torch.cat(places).numpy(), local)
            np.testing.assert_array_equal(found.relation.numpy(), drawn.edges[:, 1])
            assert float(found.rate) == 0.25
            groups = torch.cat([side.importance.group.flatten() for side in sides])
            np.testing.assert_array_equal(groups.numpy(), group[24:])
            np.testing.assert_array_equal(sides[0].importance.weight.reshape(12, -1).numpy(), weights)
            assert sides[0].dropped is None
            assert sides[1].dropped.tolist() == [3, 17]


def test_weights_of_edges_are_sent_along(buffer: DeviceBuffer) -> None:
    for dtype in (np.int32, np.int64):
        plain = drawn_batch(buffer, dtype=dtype)
        weight = np.linspace(0, 3, plain.num_edges, dtype=np.float32)
        found, without = (
            located(buffer, drawn, padded=True) for drawn in (replace(plain, weight=weight), plain)
        )
        np.testing.assert_array_equal(found.index.numpy(), without.index.numpy())
        np.testing.assert_array_equal(found.relation.numpy(), without.relation.numpy())
        for side in SIDES:
            np.testing.assert_array_equal(found.negatives[side].edge_weight.numpy(), weight)
            assert without.negatives[side].edge_weight is None


def test_what_finds_known_edges_asks_for_the_ends_that_are_known(buffer: DeviceBuffer) -> None:
    drawn = drawn_batch(buffer)
    tables = AnswerTables(301, 5, torch.device("cpu"))
    tables.hold(drawn.edges)
    packed = drawn.pack(0.25, lambda size: torch.empty(size, dtype=torch.uint8))
    locate = Locator(buffer, torch.device("cpu"), weigh=False, padded=True)
    assert locate(drawn, packed, tables).negatives["head"].known is None
    drawn = replace(drawn, dropped={}, known=EdgesAtHand(drawn.edges))
    packed = drawn.pack(0.25, lambda size: torch.empty(size, dtype=torch.uint8))
    found = locate(drawn, packed, tables)
    for side, known in (("head", 2), ("tail", 0)):
        asked = found.negatives[side].known
        question = drawn.edges[:, known].astype(np.int64) * 5 + drawn.edges[:, 1]
        np.testing.assert_array_equal(asked.first.numpy(), question * 301)
        np.testing.assert_array_equal(asked.nodes.numpy(), drawn.negatives[side])
        assert found.negatives[side].dropped is None
    assert locate(drawn, packed).negatives["tail"].known is None


def test_nothing_to_weigh_where_everything_is_resident(buffer: DeviceBuffer) -> None:
    assert located(buffer, drawn_batch(buffer), padded=True, weigh=False).negatives["head"].importance is None


def test_a_node_that_is_not_resident_is_noticed(buffer: DeviceBuffer) -> None:
    found = located(buffer, drawn_batch(buffer, parts=(1, 2)), padded=True)
    assert bool(found.lost)
    assert int(found.index.max()) < buffer.num_rows


def test_lost_nodes_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DeviceBuffer, "first_rows", lambda self: np.full(PARTITIONS, -1, np.int64))
    with pytest.raises(ScheduleError, match="whose partition is not in the buffer"):
        Setup(ON_DEVICE).train(1)


def test_memory_is_counted_and_freed(buffer: DeviceBuffer) -> None:
    assert buffer.bytes == 6 * 1024 * 4 * 4
    assert buffer.rows(TorchKernels(), torch.tensor([0])).shape == (1, 4)
    buffer.close()
    assert buffer.bytes == 0


def test_negatives_of_a_trainer_need_no_sampler_of_their_own() -> None:
    assert Setup(ON_DEVICE, sampler=UniformNegatives(7, 2, count_head=3)).train(1)[0]["loss"] > 0


@pytest.mark.parametrize("optimizer", [SGD(0.1), Adagrad(0.1), AdagradRow(0.1), Adam(0.1)])
def test_rows_are_read_and_changed_the_same_by_several_threads(optimizer: SparseOptimizer) -> None:
    rng = torch.Generator().manual_seed(0)
    index = torch.randperm(16384, generator=rng)[:9000]
    gradients = torch.randn(9000, 4, generator=rng)
    found = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        store = MemoryPartitionStore(NodeTable(Partitioning(16000, 1), 4, optimizer.state_dim(4)))
        io = IOThread()
        with PartitionBuffer(store, 1, io) as buffer:
            for _ in range(2):
                buffer.update(optimizer, index, gradients, 0.5)
            found.append(buffer.gather_rows(torch.arange(16384), torch.empty(16384, 4)))
        io.shutdown()
    torch.set_num_threads(1)
    assert torch.equal(*found)
    changed = found[0].abs().sum(1) > 0
    assert set(changed.nonzero().flatten().tolist()) == set(index.tolist())


@pytest.mark.parametrize("optimizer", [SGD(0.1), Adagrad(0.1)])
@pytest.mark.parametrize("on_device", [False, True])
def test_a_closed_buffer_has_no_rows_to_be_written_to(optimizer: SparseOptimizer, on_device: bool) -> None:
    """Compiled loops would write wherever an index leads."""
    store = MemoryPartitionStore(NodeTable(Partitioning(16000, 1), 4, optimizer.state_dim(4)))
    cpu, index, gradients = torch.device("cpu"), torch.arange(9), torch.ones(9, 4)
    buffer = (
        DeviceBuffer(store, 1, IOThread(), Transfer(cpu))
        if on_device
        else PartitionBuffer(store, 1, IOThread())
    )
    buffer.close()
    calls: list[Callable[[], Any]] = [
        lambda: buffer.update(optimizer, index, gradients, 1.0),
        lambda: buffer.gather_rows(index, torch.empty(9, 4)),
    ]
    if isinstance(buffer, DeviceBuffer):
        device, plain = buffer, TorchKernels()
        calls = [
            lambda: device.step(plain, optimizer, index, gradients, count=None, rate=1.0),
            lambda: device.rows(plain, index),
        ]
    for call in calls:
        with pytest.raises(StorageError, match="closed while a batch was under way"):
            call()


@pytest.mark.parametrize("settings", [INLINE, THREADED], ids=["inline", "threaded"])
def test_the_way_of_a_batch_to_a_device_and_back_changes_nothing(
    settings: TrainerSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(settings, max_in_flight=1)
    plain = Setup(settings, model=make_model(), mask_known=True)
    plain.train(2)
    taken = []
    recordings = Recordings(may=lambda: False, keep=True, most=0)

    def by_device(buffer: Any, model: Any, on_done: Any, rate: Any, team=None) -> Any:
        taken.append(1)
        return training_stages(buffer, model, Transfer(torch.device("cpu")), recordings, on_done, rate)

    monkeypatch.setattr("marius_py.training.batch_path.host_stages", by_device)
    there = Setup(settings, model=make_model(), mask_known=True)
    there.train(2)
    assert taken
    there.assert_equals(plain)


class Packed(Transfer):
    """Notes what is sent."""

    def move(self, tensor: torch.Tensor) -> torch.Tensor:
        moved = tensor.clone()
        self.sent_at = {**getattr(self, "sent_at", {}), tensor.dtype: moved.data_ptr()}
        return moved


def test_ids_that_are_sent_together_are_aligned_as_tensors_of_their_own() -> None:
    """Triton compiles a kernel anew for an address of another alignment, which cannot be recorded."""
    transfer = Packed(torch.device("cpu"))
    given = [torch.arange(5), torch.ones(3), torch.arange(6).view(2, 3), torch.arange(0), torch.arange(7, 8)]
    moved = stages._moved(given, transfer)
    assert all(torch.equal(*pair) for pair in zip(moved, given, strict=True))
    base = transfer.sent_at[torch.int64]
    offsets = [one.data_ptr() - base for one in moved if one.dtype == torch.int64 and one.numel()]
    assert offsets == [0, 48, 96]
    assert all(torch.equal(*pair) for pair in zip(stages._moved([], transfer), [], strict=True))


def test_weights_of_both_sides_are_sent_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: Counter[torch.dtype] = Counter()
    move = Transfer.move

    def counted(self: Transfer, tensor: torch.Tensor) -> torch.Tensor:
        sent[tensor.dtype] += 1
        return move(self, tensor)

    monkeypatch.setattr(Transfer, "move", counted)
    run = Setup(INLINE, sampler=UniformNegatives(20, 4))
    _by_way_of_a_device(run, monkeypatch)
    run.train(1)
    assert sent[torch.float32] == 3 * sent[torch.int64]  # rows, rate, weights


def test_weights_are_made_once_a_batch(buffer: DeviceBuffer, monkeypatch: pytest.MonkeyPatch) -> None:
    made, weights = [], Locator._weights
    monkeypatch.setattr(Locator, "_weights", lambda *given: (made.append(1), weights(*given))[1])
    found = located(buffer, drawn_batch(buffer), padded=True).negatives
    assert torch.equal(*(found[side].importance.weight for side in SIDES))
    assert len(made) == 1


@pytest.mark.parametrize("device_buffer", [False, True], ids=["ram", "device"])
def test_nothing_stays_on_the_device_once_a_run_is_over(
    device_buffer: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the trainer lives on, in a cycle with what its callbacks refer to."""
    made, init, closed = [], Locator.__init__, []

    def noted(self: Locator, *given: Any, **options: Any) -> None:
        init(self, *given, **options)
        made.append(weakref.ref(self._last))

    monkeypatch.setattr(Locator, "__init__", noted)
    monkeypatch.setattr(Recordings, "close", lambda self: closed.append(self))
    run = Setup(replace(INLINE, device_buffer=device_buffer))
    gc.disable()
    try:
        run.train(1)
        assert [last() for last in made] == [None] * device_buffer
    finally:
        gc.enable()
    assert closed == [run.trainer._path._recordings]


def test_a_run_makes_its_streams_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the allocator keeps, it keeps for a stream; streams are few and given out in turn."""
    made = []

    def transfer_to(device: torch.device) -> Transfer:
        made.append(device)
        return Transfer(torch.device("cpu"))

    monkeypatch.setattr("marius_py.training.batch_path.transfer_to", transfer_to)
    run = Setup(INLINE, model=make_model())
    _by_way_of_a_device(run, monkeypatch)
    run.train(3)
    assert len(made) == 1


class LateFetch(Transfer):
    """As a device: what has been computed is copied out while the next batch is computed."""

    def fetch(self, tensors: Sequence[torch.Tensor], computed: Any) -> list[torch.Tensor]:
        time.sleep(0.002)
        return [tensor.clone() for tensor in tensors]


def test_gradients_on_their_way_to_the_host_are_not_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    computed: deque[torch.Tensor] = deque()
    checked = []
    recordings = Recordings(may=lambda: False, keep=True, most=0)
    real_gradients, real_update = LinkPredictionModel.gradients, PartitionBuffer.update

    def by_device(buffer: Any, model: Any, on_done: Any, rate: Any, team: Any = None) -> Any:
        return training_stages(buffer, model, LateFetch(torch.device("cpu")), recordings, on_done, rate)

    def run(self: Any, source: Any, stages: Any, trace: Any, on_error: Any, watchdog: Any, team: Any) -> None:
        run_threaded(source, stages, trace, max_in_flight=2, on_error=on_error, watchdog=watchdog)

    def gradients(self: Any, batch: Batch) -> Gradients:
        found = real_gradients(self, batch)
        computed.append(found.rows.clone())
        return found

    def update(self: Any, optimizer: Any, index: Any, found: Any, rate: float) -> None:
        checked.append(torch.equal(computed.popleft()[: len(index)], found))
        real_update(self, optimizer, index, found, rate)

    monkeypatch.setattr("marius_py.training.batch_path.host_stages", by_device)
    monkeypatch.setattr(Execution, "run", run)
    monkeypatch.setattr(LinkPredictionModel, "gradients", gradients)
    monkeypatch.setattr(PartitionBuffer, "update", update)
    Setup(replace(THREADED, max_in_flight=2), model=make_model()).train(1)
    assert len(checked) > 20
    assert all(checked)


def test_slots_that_do_not_fit_in_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    store: Any = SimpleNamespace(table=NodeTable(Partitioning(1 << 42, 8), 64, 64))
    message = r"needs 1280\.0 TiB, 5 slots of 256\.0 TiB.*storage\.capacity is 4; set a smaller one"
    with pytest.raises(ConfigError, match=message) as caught:
        PartitionBuffer(store, 4, IOThread())
    assert isinstance(caught.value.__cause__, OSError)

    def fail(error: Exception) -> Any:
        def slots(shape: Sequence[int]) -> torch.Tensor:
            raise error

        return slots

    store = MemoryPartitionStore(NodeTable(Partitioning(100, 8), 64, 64))
    transfer = Transfer(torch.device("cpu"))
    monkeypatch.setattr(transfer, "slots", fail(torch.OutOfMemoryError("CUDA out of memory")))
    with pytest.raises(ConfigError, match=r"CUDA out of memory.*storage\.capacity is 8"):
        DeviceBuffer(store, 8, IOThread(), transfer)
    monkeypatch.setattr(transfer, "slots", fail(RuntimeError("no such device")))
    with pytest.raises(RuntimeError, match="no such device"):
        DeviceBuffer(store, 8, IOThread(), transfer)
