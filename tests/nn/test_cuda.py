"""The same numbers on a CUDA device, the kernels compiled, the buffer in the device's memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from marius_py.buffer.transfer import transfer_to
from marius_py.nn import (
    N3,
    RESCAL,
    SGD,
    Adagrad,
    AdagradRow,
    Adam,
    Batch,
    ComplEx,
    Corruption,
    Dot,
    LinkPredictionModel,
    LogisticLoss,
    Loss,
    MarginLoss,
    RotatE,
    SoftmaxLoss,
    SparseOptimizer,
    TransE,
    known_answers,
)
from marius_py.nn.cuda_kernels import Precision, TritonKernels, torch_adagrad, torch_contrast
from marius_py.nn.decoders import Decoder
from marius_py.nn.schedules import CosineRate
from marius_py.pipeline import recordings
from marius_py.pipeline.device_stages import DeviceStages
from marius_py.storage.protocols import Float32
from marius_py.training.settings import TrainerSettings
from tests.nn.batches import NUM_RELATIONS, random_batch, step
from tests.training.test_trainer import DIM, INLINE, PARTITIONS, RELATIONS, THREADED, WEIGHTS, Setup

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def moved(batch: Batch) -> Batch:
    names = ("rows", "head", "relation", "tail")
    negatives = {
        side: Corruption(c.nodes.cuda(), dropped=None if c.dropped is None else c.dropped.cuda())
        for side, c in batch.negatives.items()
    }
    return replace(batch, negatives=negatives, **{name: getattr(batch, name).cuda() for name in names})


def model(
    decoder: Decoder, device: str, *, dropout: bool, fused: bool, kernels: str = "auto", **options: Any
) -> LinkPredictionModel:
    return LinkPredictionModel(
        decoder,
        options.pop("loss", None) or SoftmaxLoss(),
        SGD(1.0),
        num_relations=NUM_RELATIONS,
        reciprocal=True,
        node_dropout=0.3 * dropout,
        relation_dropout=0.2 * dropout,
        device=device,
        fused=fused,
        kernels=kernels,
        **options,
    )


@pytest.mark.parametrize("kernels", ["torch", "triton"])
@pytest.mark.parametrize("loss", [SoftmaxLoss(), LogisticLoss(1.0)], ids=["softmax", "logistic"])
@pytest.mark.parametrize("decoder", [ComplEx(8), ComplEx(100), TransE(8)], ids=["complex", "wide", "transe"])
def test_equal_to_the_cpu(decoder: Decoder, loss: Loss, kernels: str) -> None:
    batch = random_batch(decoder.dim, drop=True, chunk_edges=40, count=70, nodes=200)
    here = step(model(decoder, "cpu", dropout=False, fused=True, loss=loss), batch)
    on_device = model(decoder, "cuda", dropout=False, fused=True, kernels=kernels, loss=loss)
    there = step(on_device, moved(batch))
    assert there.d_rows.is_cuda
    torch.testing.assert_close(there.d_rows.cpu(), here.d_rows, rtol=1e-3, atol=1e-5)
    assert float(there.loss) == pytest.approx(float(here.loss), rel=1e-4)


@pytest.mark.parametrize("kernels", ["torch", "triton"])
@pytest.mark.parametrize("decoder", [ComplEx(8), TransE(8)], ids=lambda d: type(d).__name__)
def test_closed_form_equals_autograd(decoder: Decoder, kernels: str) -> None:
    batch = moved(random_batch(8, drop=True))
    fast = step(model(decoder, "cuda", dropout=True, fused=True, kernels=kernels), batch)
    plain = step(model(decoder, "cuda", dropout=True, fused=False), batch)
    torch.testing.assert_close(fast.d_rows, plain.d_rows, rtol=1e-3, atol=1e-5)


def test_state_arrays_are_host_copies() -> None:
    ours = LinkPredictionModel(ComplEx(8), SoftmaxLoss(), Adagrad(0.1), num_relations=3, device="cuda")
    ours.gradients(moved(random_batch(8)))
    arrays = ours.state_arrays()
    other = LinkPredictionModel(ComplEx(8), SoftmaxLoss(), Adagrad(0.1), num_relations=3, device="cuda")
    other.load_state_arrays(arrays)
    np.testing.assert_array_equal(other.state_arrays()["relations"], arrays["relations"])


# ---------------------------------------------------------------------- kernels


@pytest.mark.parametrize("full", [False, True], ids=["plain", "masked and weighted"])
@pytest.mark.parametrize("rare", [False, True], ids=["", "a few left out"])
@pytest.mark.parametrize("softmax", [True, False], ids=["softmax", "logistic"])
@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 1e-4), ("tf32", 3e-3), ("bfloat16", 3e-2)])
@pytest.mark.parametrize("dim", [16, 100, 128, 200])
def test_contrast_kernel(
    dim: int, precision: Precision, tolerance: float, softmax: bool, full: bool, rare: bool
) -> None:
    rng = torch.Generator("cuda").manual_seed(dim)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=rng, device="cuda")

    chunks, edges, nodes, groups = 3, 517, 1000, 5
    given: dict[str, Any] = {
        "queries": random(chunks, edges, dim) * 0.3,
        "candidates": random(chunks, nodes, dim) * 0.3,
        "positive": random(chunks, edges),
        "dropped": (
            (random(chunks, edges, nodes) < (-4 if rare else -1)).view(-1).nonzero().view(-1)
            if full or rare
            else None
        ),
        "group": torch.randint(0, groups, (chunks, nodes), device="cuda") if full else None,
        "weight": random(chunks, edges, groups).abs() + 0.3 if full else None,
        "edge_weight": random(chunks, edges).relu() if full else None,
    }
    wanted = torch_contrast(
        **{
            name: one if one is None or not one.is_floating_point() else one.double()
            for name, one in given.items()
        },
        softmax=softmax,
        shift=0.3,
        scale=0.1,
    )
    found = TritonKernels(precision).contrast(**given, softmax=softmax, shift=0.3, scale=0.1)
    for ours, reference in zip(found, wanted, strict=True):
        assert bool(torch.isfinite(ours).all())
        assert float((ours - reference).norm() / reference.norm()) < tolerance


def test_rows_and_penalties_by_kernels() -> None:
    rng = torch.Generator("cuda").manual_seed(1)
    table, sums = (torch.randn(5000, 100, generator=rng, device="cuda") for _ in range(2))
    index = torch.randint(0, 5000, (3000,), generator=rng, device="cuda")
    factors = (torch.arange(5000, device="cuda") % 3).float()
    assert torch.equal(TritonKernels().take(table, index), table[index])
    for is_complex in (True, False):
        wanted = sums + N3(1.0).gradient(table, is_complex) * factors.unsqueeze(1)
        found = sums.clone()
        TritonKernels().add_n3(table, factors, found, is_complex=is_complex)
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("by_row", [False, True])
def test_adagrad_kernel(by_row: bool) -> None:
    rng = torch.Generator("cuda").manual_seed(0)
    rows = torch.randn(5000, 100, generator=rng, device="cuda")
    state = torch.rand(5000, 1 if by_row else 100, generator=rng, device="cuda")
    index = torch.randperm(5000, generator=rng, device="cuda")[:3000]
    gradients = torch.randn(3000, 100, generator=rng, device="cuda")
    options: dict[str, Any] = {
        "count": torch.tensor(2500, device="cuda"),
        "lr": 0.1,
        "eps": 1e-10,
        "rate": 0.5,
    }
    ours = [rows.clone(), state.clone()]
    plain = [rows.clone(), state.clone()]
    TritonKernels().adagrad(*ours, index, gradients, **options)
    torch_adagrad(*plain, index, gradients, **options)
    for one, other in zip(ours, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


# ---------------------------------------------------------------------- copies


def test_partitions_travel_there_and_back() -> None:
    transfer = transfer_to(torch.device("cuda"))
    host, slots = transfer.staging((1024, 6)), transfer.slots((3, 1024, 6))
    assert slots.is_cuda
    host[...] = np.arange(host.size, dtype=np.float32).reshape(host.shape)
    before = host.copy()
    transfer.load([(host, slots[1])])
    host[...] = 0
    slots[1].mul_(2)
    transfer.computed()
    transfer.save([(host, slots[1])])
    np.testing.assert_array_equal(host, before * 2)
    assert not slots[0].any()
    transfer.close()


def test_batches_travel_beside_what_is_computed() -> None:
    transfer = transfer_to(torch.device("cuda"))
    for number in range(20):
        host = transfer.host((1 << 20,), torch.float32).fill_(number)
        there = transfer.move(host)
        transfer.wait(transfer.sent())
        total = there.mul(2).sum().view(1)
        late = transfer.late(total)
        (back,) = transfer.fetch([there], transfer.computed())
        assert back.is_pinned()
        assert torch.equal(back, torch.full((1 << 20,), float(number)))
        assert late.read() == [2 * number * (1 << 20)]
        assert late.is_there()


# ---------------------------------------------------------------------- training


def trained(
    device: str,
    settings: TrainerSettings,
    *,
    mask_known: bool = True,
    batch_edges: int = 64,
    edges: int = 3000,
    decoder: Decoder | None = None,
    loss: Loss | None = None,
    optimizer: SparseOptimizer | None = None,
    weights: Float32 | None = None,
    **options: Any,
) -> Setup:
    """A run of one epoch: 6 partitions, 3 of them resident."""
    run = Setup(
        settings,
        model=LinkPredictionModel(
            decoder or ComplEx(DIM),
            loss or SoftmaxLoss(),
            optimizer or Adagrad(0.1),
            num_relations=RELATIONS,
            seed=5,
            device=device,
            **options,
        ),
        mask_known=mask_known,
        batch_edges=batch_edges,
        edges=edges,
        weights=weights,
        device=torch.device(device),
    )
    run.train(1)
    return run


def assert_near(found: Setup, wanted: Setup) -> None:
    """Adagrad starts with signs: a gradient near 0 may turn a coordinate, so compare tables as wholes."""
    difference = np.linalg.norm(found.table() - wanted.table())
    assert difference < 0.02 * np.linalg.norm(wanted.table())


@pytest.mark.parametrize("kernels", ["torch", "triton"])
@pytest.mark.parametrize(
    "settings",
    [INLINE, THREADED, replace(INLINE, device_buffer=True), replace(THREADED, device_buffer=True)],
    ids=["ram", "ram threaded", "device", "device threaded"],
)
def test_trained_as_on_the_cpu(settings: TrainerSettings, kernels: str) -> None:
    here, there = trained("cpu", INLINE, edges=1500), trained("cuda", settings, kernels=kernels, edges=1500)
    assert_near(there, here)
    losses = [run.trainer.state.history[0]["loss"] for run in (here, there)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)


@pytest.mark.parametrize("settings", [INLINE, replace(INLINE, device_buffer=True)], ids=["ram", "device"])
@pytest.mark.parametrize(
    "made",
    [
        {"decoder": Dot(DIM)},
        {"decoder": TransE(DIM)},
        {"decoder": RotatE(DIM)},
        {"decoder": RESCAL(DIM)},
        {"loss": MarginLoss(1.0)},
        {"loss": LogisticLoss(1.0)},
        {"loss": SoftmaxLoss(smoothing=0.1)},
        {"optimizer": AdagradRow(0.1), "decoder": TransE(DIM)},
        {"optimizer": Adam(0.01)},
        {"optimizer": SGD(1.0)},
        {"weights": WEIGHTS[:1000]},
        {"weights": WEIGHTS[:1000], "loss": LogisticLoss(1.0)},
    ],
    ids=lambda made: "-".join(type(one).__name__ for one in made.values()),
)
def test_what_is_computed_in_other_ways_is_trained_as_on_the_cpu(
    made: dict[str, Any], settings: TrainerSettings
) -> None:
    here = trained("cpu", INLINE, edges=1000, **made)
    there = trained("cuda", settings, kernels="triton", edges=1000, **made)
    assert_near(there, here)
    losses = [run.trainer.state.history[0]["loss"] for run in (here, there)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("weights", [None, WEIGHTS[:512]], ids=["", "weights"])
def test_a_batch_never_waits_for_the_device(weights: Float32 | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recordings, "WARM_UPS", 10**9)  # recording waits, once a shape
    # The I/O thread waits for its copies, and the mode is every thread's: nothing is swapped.
    settings = replace(INLINE, device_buffer=True, capacity=PARTITIONS)
    options: dict[str, Any] = {"kernels": "triton", "batch_edges": 256, "edges": 512, "weights": weights}
    whole = trained("cuda", settings, **options)  # compiles the kernels
    real = DeviceStages._compute

    def strict(self: DeviceStages, sent: Any) -> None:
        torch.cuda.set_sync_debug_mode("error")
        try:
            real(self, sent)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(DeviceStages, "_compute", strict)
    assert_near(trained("cuda", settings, **options), whole)


@pytest.mark.parametrize("device_buffer", [False, True], ids=["ram", "device"])
@pytest.mark.parametrize("masked", [False, True], ids=["", "masked"])
@pytest.mark.parametrize("clip", [None, 0.01])
def test_recorded_batches_are_those_launched_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    clip: float | None,
    masked: bool,
    device_buffer: bool,
) -> None:
    replayed = []
    settings = replace(THREADED, device_buffer=device_buffer, rate=CosineRate(2))
    options: dict[str, Any] = {"kernels": "triton", "clip_norm": clip, "regularizers": (N3(0.01),)}
    # With rows in RAM shapes differ by the rows of a batch, too: of fewer edges few would be replayed.
    options |= {"mask_known": masked, "edges": 1500 if device_buffer else 3000}
    real = torch.cuda.CUDAGraph.replay
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", lambda self: (replayed.append(1), real(self))[1])
    monkeypatch.setattr(recordings, "WARM_UPS", 2)
    recorded = trained("cuda", settings, **options)
    assert len(replayed) > 10
    assert "cannot be recorded" not in caplog.text
    before = len(replayed)
    monkeypatch.setattr(recordings, "WARM_UPS", 10**9)
    launched = trained("cuda", settings, **options)
    assert len(replayed) == before
    assert_near(recorded, launched)
    losses = [run.trainer.state.history[0]["loss"] for run in (recorded, launched)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def test_recordings_read_known_edges_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables of other edges, in the same place or in a larger one, and what was recorded before."""
    monkeypatch.setattr(known_answers, "_LEAST", 4)
    sizes: list[int] = []
    real = known_answers.AnswerTables.hold
    monkeypatch.setattr(
        known_answers.AnswerTables,
        "hold",
        lambda self, edges: (real(self, edges), sizes.append(self.size))[0],
    )
    settings = replace(INLINE, device_buffer=True)
    monkeypatch.setattr(recordings, "WARM_UPS", 1)
    recorded = trained("cuda", settings, kernels="triton")
    assert len(set(sizes)) > 1, "larger tables"
    assert len(set(sizes)) < len(sizes), "tables in the place of others"
    monkeypatch.setattr(recordings, "WARM_UPS", 10**9)
    assert_near(recorded, trained("cuda", settings, kernels="triton"))
