"""The Triton kernels, run by Triton's interpreter where there is no GPU, against PyTorch in float64."""

from __future__ import annotations

import itertools
import logging
import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_py.errors import ConfigError
from marius_py.nn import SGD, Dot, LinkPredictionModel, SoftmaxLoss, cuda_kernels
from marius_py.nn.cuda_kernels import TorchKernels, choose_kernels, torch_adagrad, torch_contrast
from marius_py.nn.kernels.triton_blocks import Block, Blocks
from marius_py.nn.known_answers import AnswerTables, KnownAnswers
from marius_py.nn.regularizers import N3

pytest.importorskip("triton", reason="Triton is not installed (extra marius_py[kernels])")
if torch.cuda.is_available():
    pytest.skip("a GPU is there: tests/nn/test_cuda.py runs the compiled kernels", allow_module_level=True)

triton_contrast = pytest.importorskip("marius_py.nn.kernels.triton_contrast")
triton_adagrad = pytest.importorskip("marius_py.nn.kernels.triton_adagrad")
triton_known = pytest.importorskip("marius_py.nn.kernels.triton_known")
triton_mask = pytest.importorskip("marius_py.nn.kernels.triton_mask")
MOST_SPILLED = triton_contrast.MOST_SPILLED
triton_operands = pytest.importorskip("marius_py.nn.kernels.triton_operands")
triton_rows = pytest.importorskip("marius_py.nn.kernels.triton_rows")
triton_penalties = pytest.importorskip("marius_py.nn.kernels.triton_penalties")

SMALL = Blocks(Block(16, 16, stages=1), Block(16, 16, stages=1), programs=1)
GROUPS = 3


def positions(keep: torch.Tensor) -> torch.Tensor:
    """Where a mask is False, the last place twice, as the trainer pads them."""
    found = (~keep).view(-1).nonzero().view(-1)
    return torch.cat((found, found[-1:]))


def arguments(
    chunks: int,
    edges: int,
    nodes: int,
    dim: int,
    *,
    drop: bool = False,
    weigh: bool = False,
    weigh_edges: bool = False,
    scale: float = 0.3,
    seed: int = 0,
) -> dict[str, Any]:
    rng = torch.Generator().manual_seed(seed)
    return {
        "queries": torch.randn(chunks, edges, dim, generator=rng) * scale,
        "candidates": torch.randn(chunks, nodes, dim, generator=rng) * scale,
        "positive": torch.randn(chunks, edges, generator=rng),
        "dropped": positions(torch.rand(chunks, edges, nodes, generator=rng) < 0.6) if drop else None,
        "group": torch.randint(0, GROUPS, (chunks, nodes), generator=rng) if weigh else None,
        "weight": torch.rand(chunks, edges, GROUPS, generator=rng) + 0.3 if weigh else None,
        "edge_weight": torch.rand(chunks, edges, generator=rng).sub(0.2).relu() if weigh_edges else None,
    }


def by_autograd(given: dict[str, Any], softmax: bool, shift: float, scale: float) -> list[torch.Tensor]:
    """The definition, written down once more, in float64."""
    names = ("positive", "queries", "candidates")
    leaves = {name: given[name].double().requires_grad_() for name in names}
    scores = leaves["queries"] @ leaves["candidates"].transpose(1, 2)
    counts = torch.ones_like(scores).detach()
    if given["dropped"] is not None:
        counts.view(-1)[given["dropped"]] = 0
    if given["weight"] is not None:
        at = given["group"].unsqueeze(1).expand(-1, scores.shape[1], -1)
        counts = counts * torch.gather(given["weight"].double(), 2, at)
    positive = leaves["positive"]
    if softmax:
        losses = torch.log1p((counts * torch.exp(scores + shift - positive.unsqueeze(2))).sum(2))
    else:
        softplus = torch.nn.functional.softplus
        each = (counts * softplus(scores + shift)).sum(2)
        losses = softplus(-positive - shift) + each / counts.sum(2).clamp_min(1e-30)
    counted = losses if given["edge_weight"] is None else losses * given["edge_weight"].double()
    gradients = torch.autograd.grad(counted.sum() * scale, [leaves[name] for name in names])
    return [losses.detach(), *gradients]


def assert_close(found: Any, wanted: list[torch.Tensor], tolerance: float, absolute: float = 1e-12) -> None:
    for ours, reference in zip(found, wanted, strict=True):
        assert ours.shape == reference.shape
        error = float((ours.double() - reference).norm())
        assert error <= tolerance * float(reference.norm()) + absolute


@pytest.mark.parametrize("softmax", [True, False], ids=["softmax", "logistic"])
@pytest.mark.parametrize("path", ["torch", "triton"])
def test_contrast_equals_autograd(path: str, softmax: bool) -> None:
    for drop, weigh, weigh_edges in itertools.product((False, True), repeat=3):
        shift = 0.7 if drop else 0.0
        given = arguments(2, 37, 45, 100, drop=drop, weigh=weigh, weigh_edges=weigh_edges)
        wanted = by_autograd(given, softmax, shift, 0.5)
        if path == "torch":
            found = torch_contrast(**given, softmax=softmax, shift=shift, scale=0.5)
        else:
            found = triton_contrast.contrast(
                **given, softmax=softmax, shift=shift, scale=0.5, precision="ieee", blocks=SMALL
            )
        assert_close(found, wanted, 1e-6)


@pytest.mark.parametrize("path", ["torch", "triton"])
def test_an_average_over_weights_that_add_up_to_little(path: str) -> None:
    given = arguments(2, 17, 1, 16, drop=True, weigh=True)
    given["weight"] *= 0.1
    if path == "torch":
        found = torch_contrast(**given, softmax=False, shift=0.0, scale=1.0)
    else:
        found = triton_contrast.contrast(
            **given, softmax=False, shift=0.0, scale=1.0, precision="ieee", blocks=SMALL
        )
    assert_close(found, by_autograd(given, False, 0.0, 1.0), 1e-5)


@settings(max_examples=12)
@given(
    chunks=st.integers(1, 3),
    edges=st.integers(1, 40),
    nodes=st.integers(1, 40),
    dim=st.integers(1, 40),
    programs=st.sampled_from([1, 8]),
    drop=st.booleans(),
)
def test_any_shape(chunks: int, edges: int, nodes: int, dim: int, programs: int, drop: bool) -> None:
    given = arguments(chunks, edges, nodes, dim, drop=drop)
    blocks = replace(SMALL, programs=programs)
    found = triton_contrast.contrast(
        **given, softmax=True, shift=0.0, scale=1.0, precision="ieee", blocks=blocks
    )
    # Gradients of a few edges may add up to nearly nothing.
    assert_close(found, by_autograd(given, True, 0.0, 1.0), 1e-5, absolute=1e-6)


@pytest.mark.parametrize("softmax", [True, False], ids=["softmax", "logistic"])
@pytest.mark.parametrize("weigh", [False, True], ids=["", "weighted"])
def test_the_few_candidates_that_do_not_count_are_found_where_they_are(softmax: bool, weigh: bool) -> None:
    given = arguments(2, 69, 75, 20, weigh=weigh)
    keep = torch.ones(2, 69, 75, dtype=torch.bool)
    left_out = [(0, 0, 0), (0, 15, 32), (0, 16, 31), (1, 31, 74), (1, 68, 0), (1, 68, 74)]
    for place in left_out:
        keep[place] = False
        given["queries"][place[:2]] = 3 * given["candidates"][place[0], place[2]]  # it would be seen
    given["dropped"] = positions(keep)
    blocks = Blocks(Block(16, 32, stages=1), Block(16, 64, stages=1), programs=8)
    found = triton_contrast.contrast(
        **given, softmax=softmax, shift=0.0, scale=1.0, precision="ieee", blocks=blocks
    )
    assert_close(found, by_autograd(given, softmax, 0.0, 1.0), 1e-6)


@pytest.mark.parametrize("shape", [(2, 69, 75), (1, 1, 1), (3, 64, 32), (1, 5, 200)])
def test_what_is_left_out_is_marked_both_ways_round(shape: tuple[int, int, int]) -> None:
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(1)) > 0.0005
    mask[-1, -1, -1] = False
    blocks = (16, 64), (16, 128)
    marked = triton_mask.leave_out(positions(mask), shape, *blocks)
    for way, (own, other), bits in zip(marked, blocks, (mask, mask.transpose(1, 2)), strict=True):
        unpacked = way.words.unsqueeze(3) >> torch.arange(32) & 1
        assert torch.equal(unpacked.flatten(2)[:, :, : bits.shape[2]].bool(), bits)
        down, across = -(-bits.shape[1] // own), -(-bits.shape[2] // other)
        wanted = torch.zeros(shape[0], down, across, dtype=torch.int32)
        for chunk, row, column in (~bits).nonzero().tolist():
            wanted[chunk, row // own, column // other] = 1
        assert torch.equal(way.flags, wanted)
        assert wanted[-1, -1, -1]
        assert wanted.numel() == 1 or not wanted.all()


def known_answers(chunks: int, edges: int, nodes: int, seed: int = 0) -> KnownAnswers:
    """Edges of 90 nodes, a third of them those of a hub with all of them, some twice; negatives as well."""
    rng = np.random.default_rng(seed)
    known = np.stack([rng.integers(0, size, 700) for size in (90, 3, 90)], 1)
    known[:200, :2] = 5, 1
    known[:90, 2] = np.arange(90)
    tables = AnswerTables(90, 3, torch.device("cpu"))
    tables.hold(known)
    batch = torch.from_numpy(rng.permutation(known)[: chunks * edges])
    negatives = torch.from_numpy(np.sort(rng.integers(0, 90, (chunks, nodes)), 1))
    return tables.answers("tail", batch[:, 0], batch[:, 1], negatives)


@pytest.mark.parametrize(
    ("shape", "short", "share"),
    [
        pytest.param((2, 69, 75), 32, 4, marks=pytest.mark.slow),
        ((2, 69, 75), 32, 1),
        pytest.param((2, 69, 75), 2, 1, marks=pytest.mark.slow),
        ((2, 30, 40), 0, 0),
        ((2, 30, 40), 128, 0),
        pytest.param((3, 64, 32), 32, 4, marks=pytest.mark.slow),
        ((1, 1, 1), 32, 4),
        ((1, 5, 200), 32, 4),
        ((1, 5, 200), 0, 0),
        ((2, 30, 3), 32, 1),
    ],
)
def test_known_answers_are_marked_as_their_positions_are(
    shape: tuple[int, int, int], short: int, share: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers searched among the negatives, and negatives among the answers of hubs or of all."""
    monkeypatch.setattr(triton_known, "_SHORT", short)
    monkeypatch.setattr(triton_known, "_SHARE", share)
    known = known_answers(*shape)
    begin, end = known.bounds()
    assert shape != (2, 69, 75) or int((end - begin).max()) > 90
    blocks = (16, 64), (16, 128)
    mask = known.mask()
    assert shape[1] < 5 or not mask.all()
    found = triton_known.leave_out_known(known, *blocks)
    wanted = triton_mask.leave_out(positions(mask), shape, *blocks)
    for way, other in zip(found, wanted, strict=True):
        assert torch.equal(way.words, other.words)
        assert torch.equal(way.flags, other.flags)


def test_known_answers_do_not_count() -> None:
    given = arguments(2, 33, 40, 20)
    known = known_answers(2, 33, 40)
    how: dict[str, Any] = {"softmax": True, "shift": 0.0, "scale": 1.0}
    by_kernels = {"precision": "ieee", "blocks": SMALL}
    found = triton_contrast.contrast(**given | {"dropped": known}, **how, **by_kernels)
    wanted = triton_contrast.contrast(**given | {"dropped": positions(known.mask())}, **how, **by_kernels)
    plain = torch_contrast(**given | {"dropped": known}, **how)
    everything = torch_contrast(**given, **how)
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one, other)
    assert_close(found, plain, 1e-5)
    assert not torch.allclose(plain[0], everything[0])


@pytest.mark.parametrize("precision", ["tf32", "tf32x3", "bf16"])
def test_coarser_products_stay_near(precision: str) -> None:
    given = arguments(1, 20, 33, 24, drop=True, weigh=True)
    found = triton_contrast.contrast(**given, softmax=True, shift=0.0, scale=1.0, precision=precision)
    assert_close(found, by_autograd(given, True, 0.0, 1.0), 3e-2)


def test_bfloat16_rounds() -> None:
    given = arguments(1, 20, 33, 24)
    coarse, fine = (
        triton_contrast.contrast(**given, softmax=True, shift=0.0, scale=1.0, precision=precision)[2]
        for precision in ("bf16", "ieee")
    )
    assert 1e-4 < float((coarse - fine).norm() / fine.norm()) < 3e-2


@pytest.mark.parametrize("path", ["torch", "triton"])
def test_scores_far_apart_do_not_overflow(path: str) -> None:
    given = arguments(1, 16, 20, 8, drop=True, scale=30.0)
    if path == "torch":
        found = torch_contrast(**given, softmax=True, shift=0.0, scale=1.0)
    else:
        found = triton_contrast.contrast(
            **given, softmax=True, shift=0.0, scale=1.0, precision="ieee", blocks=SMALL
        )
    assert all(bool(torch.isfinite(one).all()) for one in found)
    scores = given["queries"].double() @ given["candidates"].double().transpose(1, 2)
    everything = torch.cat([given["positive"].double().unsqueeze(2), scores], 2)
    left = torch.ones(1, 16, 20, dtype=torch.bool)
    left.view(-1)[given["dropped"]] = False
    left = torch.cat([torch.ones(1, 16, 1, dtype=torch.bool), left], 2)
    wanted = torch.logsumexp(everything.masked_fill(~left, -torch.inf), 2) - given["positive"].double()
    np.testing.assert_allclose(found[0].numpy(), wanted.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("softmax", [True, False])
@pytest.mark.parametrize("path", ["torch", "triton"])
def test_nothing_kept_pulls_at_nothing(path: str, softmax: bool) -> None:
    given = arguments(1, 5, 6, 8) | {"dropped": torch.arange(30)}
    if path == "torch":
        found = torch_contrast(**given, softmax=softmax, shift=0.0, scale=1.0)
    else:
        found = triton_contrast.contrast(
            **given, softmax=softmax, shift=0.0, scale=1.0, precision="ieee", blocks=SMALL
        )
    assert not found[2].any()
    assert not found[3].any()
    if softmax:
        assert not found[0].any()
        assert not found[1].any()


def adagrad_arguments(by_row: bool, rows: int = 50, changed: int = 21, dim: int = 12) -> dict[str, Any]:
    rng = torch.Generator().manual_seed(3)
    return {
        "rows": torch.randn(rows, dim, generator=rng),
        "state": torch.rand(rows, 1 if by_row else dim, generator=rng),
        "index": torch.randperm(rows, generator=rng)[:changed],
        "gradients": torch.randn(changed, dim, generator=rng),
    }


@pytest.mark.parametrize("lie", ["alone", "columns", "turned"])
@pytest.mark.parametrize("count", [None, 0, 7])
@pytest.mark.parametrize("by_row", [False, True])
def test_adagrad_equals_the_optimizer(by_row: bool, count: int | None, lie: str) -> None:
    """Gradients of decoders without a dot product are columns of something wider."""
    options = {"lr": 0.1, "eps": 1e-10, "rate": 0.5, "count": None if count is None else torch.tensor(count)}
    ours, plain = adagrad_arguments(by_row), adagrad_arguments(by_row)
    if lie == "columns":
        ours["gradients"] = torch.cat([ours["gradients"], torch.ones(21, 5)], 1)[:, :12]
    elif lie == "turned":
        ours["gradients"] = ours["gradients"].t().contiguous().t()
    before = plain["rows"].clone()
    triton_adagrad.adagrad(**ours, **options)
    torch_adagrad(**plain, **options)
    changed = (plain["rows"] != before).any(1)
    assert set(changed.nonzero().flatten().tolist()) == set(plain["index"][:count].tolist())
    for name in ("rows", "state"):
        torch.testing.assert_close(ours[name], plain[name], rtol=1e-6, atol=1e-7)


def test_adagrad_reads_the_rate_where_it_lies() -> None:
    given, there = adagrad_arguments(False), adagrad_arguments(False)
    options = {"lr": 0.1, "eps": 1e-10, "count": None}
    triton_adagrad.adagrad(**given, **options, rate=0.5)
    triton_adagrad.adagrad(**there, **options, rate=torch.tensor(0.5))
    assert torch.equal(given["rows"], there["rows"])


@pytest.mark.parametrize("count", [1, 100, 128, 130])
@pytest.mark.parametrize("dim", [1, 20, 128, 200])
def test_operands_are_the_rows_with_zeros_around(count: int, dim: int) -> None:
    values = torch.randn(2, count, dim)
    plain, turned = triton_operands.operand(values, torch.float32, turned=True)
    assert plain.shape[1] % triton_operands.ROWS == 0
    assert torch.equal(plain[:, :count, :dim], values)
    assert not plain[:, count:].any()
    assert not plain[:, :, dim:].any()
    assert torch.equal(turned, plain.transpose(1, 2))
    same, other = triton_operands.operand(values, torch.float32, turned=False)
    assert same is other
    assert torch.equal(same, plain)


@pytest.mark.parametrize("dim", [4096, 5000])
@pytest.mark.parametrize("by_row", [False, True])
def test_adagrad_of_rows_wider_than_a_block(by_row: bool, dim: int) -> None:
    ours, plain = (adagrad_arguments(by_row, rows=3, changed=2, dim=dim) for _ in range(2))
    triton_adagrad.adagrad(**ours, lr=0.1, eps=1e-10, rate=0.5, count=None)
    torch_adagrad(**plain, lr=0.1, eps=1e-10, rate=0.5, count=None)
    for name in ("rows", "state"):
        torch.testing.assert_close(ours[name], plain[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("by_row", [False, True])
@pytest.mark.parametrize("shape", [{"changed": 0}, {"dim": 0}], ids=["no rows", "no columns"])
def test_adagrad_of_nothing(shape: dict[str, int], by_row: bool) -> None:
    given = adagrad_arguments(by_row, **shape)
    before = given["rows"].clone()
    triton_adagrad.adagrad(**given, lr=0.1, eps=0.0, rate=1.0, count=None)
    assert torch.equal(given["rows"], before)


@pytest.mark.parametrize(("count", "dim"), [(0, 3), (1, 1), (45, 100), (7, 300)])
def test_rows_are_taken_as_they_are(count: int, dim: int) -> None:
    rng = torch.Generator().manual_seed(4)
    table = torch.randn(20, dim, generator=rng)
    index = torch.randint(0, 20, (count,), generator=rng)
    assert torch.equal(triton_rows.take(table, index), table[index])


@pytest.mark.parametrize("is_complex", [True, False])
@pytest.mark.parametrize(("count", "dim"), [(0, 6), (3, 0), (1, 2), (45, 100), (7, 258), (2, 5000)])
def test_the_nuclear_norms_gradient_is_added(is_complex: bool, count: int, dim: int) -> None:
    rng = torch.Generator().manual_seed(2)
    rows, sums = (torch.randn(count, dim, generator=rng) for _ in range(2))
    factors = torch.rand(count, generator=rng)
    factors[::3] = 0
    rows[::4, : dim // 2] = 0
    wanted = sums + N3(1.0).gradient(rows.double(), is_complex) * factors.unsqueeze(1)
    triton_penalties.add_n3(rows, factors, sums, is_complex=is_complex)
    torch.testing.assert_close(sums.double(), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("told_by", ["Triton", "the assembler", "its registers"])
def test_smaller_blocks_are_tried_where_memory_or_registers_are_short(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, told_by: str
) -> None:
    from triton.runtime.errors import OutOfResources, PTXASError

    short = {
        "Triton": OutOfResources(300_000, 200_000, "shared memory"),
        "the assembler": PTXASError("uses too much\nshared data\n"),
        "its registers": SimpleNamespace(n_spills=MOST_SPILLED + 1),
    }[told_by]
    said = " ".join(str(short).split()) if isinstance(short, Exception) else f"{MOST_SPILLED + 1} registers"
    tried: list[tuple[str, int]] = []
    real = {kernel: getattr(triton_contrast, f"_{kernel}_kernel") for kernel in ("forward", "backward")}

    class Scarce:
        def __init__(self, kernel: str) -> None:
            self.kernel = kernel

        def __getitem__(self, grid: Any) -> Any:
            return lambda *given, **how: self.launch(grid, *given, **how)

        def launch(self, grid: Any, *given: Any, **how: Any) -> Any:
            own = how["BLOCK_EDGES" if self.kernel == "forward" else "BLOCK_NODES"]
            tried.append((self.kernel, own))
            if own > fits[self.kernel]:
                if isinstance(short, Exception):
                    raise short
                return short
            real[self.kernel][grid](*given, **how)
            return SimpleNamespace(n_spills=MOST_SPILLED)

    for kernel in real:
        monkeypatch.setattr(triton_contrast, f"_{kernel}_kernel", Scarce(kernel))
    given = arguments(1, 17, 10, 8, drop=True)
    wanted = torch_contrast(**given, softmax=True, shift=0.0, scale=1.0)
    for fits in ({"forward": 64, "backward": 64}, {"forward": 32, "backward": 128}, {"forward": 0}):
        kernels = cuda_kernels.TritonKernels("float32")
        for _ in range(2):
            for ours, plain in zip(
                kernels.contrast(**given, softmax=True, shift=0.0, scale=1.0), wanted, strict=True
            ):
                torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-6)
        smallest = {"forward": 64, "backward": 128} | {kernel: own for kernel, own in fits.items() if own}
        if fits["forward"] == 0:  # once: PyTorch from then on
            assert tried == [("forward", 64), ("forward", 32), ("forward", 16)]
            (warning,) = (one.getMessage() for one in caplog.records if one.levelno == logging.WARNING)
            assert f"through PyTorch: forward: {said}" in warning
        else:  # each kernel by itself, and the second time at once
            assert tried[-2:] == list(smallest.items())
            assert {own for kernel, own in tried if kernel == "forward"} == {64, fits["forward"]}
            assert {own for kernel, own in tried if kernel == "backward"} == {128, fits["backward"]}
        tried.clear()


def test_rows_too_wide_for_the_kernel_go_the_plain_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_contrast, "MAX_DIM", 4)
    given = arguments(1, 17, 10, 8)
    found = cuda_kernels.TritonKernels("tf32").contrast(**given, softmax=True, shift=0.0, scale=1.0)
    for ours, plain in zip(found, torch_contrast(**given, softmax=True, shift=0.0, scale=1.0), strict=True):
        assert torch.equal(ours, plain)


@pytest.mark.parametrize("edges", [15, 16])
def test_chunks_of_few_edges_go_the_plain_way(monkeypatch: pytest.MonkeyPatch, edges: int) -> None:
    calls = []
    monkeypatch.setattr(triton_contrast, "contrast", lambda *given, **options: calls.append(1))
    given = arguments(1, edges, 10, 8)
    cuda_kernels.TritonKernels("tf32").contrast(**given, softmax=True, shift=0.0, scale=1.0)
    assert calls == [1] * (edges == 16)


def test_kernels_that_do_not_run_are_left_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A machine without what Triton compiles with, or here without a device at all."""

    def no_compiler(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("Failed to find C compiler. Please specify via CC environment variable.\nMore")

    kernels = cuda_kernels.TritonKernels("tf32")
    assert cuda_kernels._trouble(kernels, "cpu") is None
    for broken, said in (
        (no_compiler, "do not run on cpu (RuntimeError: Failed to find C compiler. Please specify via CC "),
        (lambda table, index: table + 1, "compute something else on cpu"),
    ):
        monkeypatch.setattr(kernels, "take", broken)
        assert said in str(cuda_kernels._trouble(kernels, "cpu"))
    choose_kernels.cache_clear()
    assert isinstance(choose_kernels("cuda"), TorchKernels)
    assert "through PyTorch: its kernels do not run on cuda (" in caplog.text
    with pytest.raises(ConfigError, match=r"=triton, but its kernels do not run on cuda .*kernels=auto"):
        choose_kernels("cuda", "triton")
    choose_kernels.cache_clear()


def test_a_device_that_is_full_or_not_the_current_one_ends_the_choice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is found out about a device holds for the process: neither may count as found out."""

    def full(kernels: Any, table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    choose_kernels.cache_clear()
    with pytest.raises(ConfigError, match=r"device is cuda:1, .* cuda:0: call torch\.cuda\.set_device\(1\)"):
        choose_kernels("cuda:1")
    ones = torch.ones
    monkeypatch.setattr(torch, "ones", lambda *shape, device: ones(*shape))
    zeros = torch.zeros
    monkeypatch.setattr(torch, "zeros", lambda *shape, dtype, device: zeros(*shape, dtype=dtype))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    with monkeypatch.context() as patched:
        patched.setattr(triton_rows, "take", partial(full, None))
        with pytest.raises(torch.OutOfMemoryError):
            choose_kernels("cuda:0")
    assert choose_kernels("cuda:0", "auto", "float32").name == "Triton (float32)"
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    with pytest.raises(ConfigError, match=r"device is cuda:0, .* cuda:1: call torch\.cuda\.set_device\(0\)"):
        LinkPredictionModel(Dot(4), SoftmaxLoss(), SGD(1.0), device="cuda:0")
    choose_kernels.cache_clear()


def test_the_loss_of_an_edge_far_above_its_negatives_keeps_its_digits() -> None:
    given = arguments(1, 16, 16, 8, scale=0.01)
    for positive in (5.0, 20.0, 1000.0):
        given["positive"] = torch.full((1, 16), positive)
        options = {"softmax": True, "shift": positive - 8, "scale": 1.0}
        losses = triton_contrast.contrast(**given, **options, precision="ieee")[0]
        in_double = {
            name: one.double() if one is not None and one.is_floating_point() else one
            for name, one in given.items()
        }
        torch.testing.assert_close(
            losses.double(), torch_contrast(**in_double, **options)[0], rtol=1e-3, atol=0
        )


def test_the_choice_of_kernels(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    choose_kernels.cache_clear()
    assert isinstance(choose_kernels("cpu"), TorchKernels)
    assert choose_kernels("cpu") is choose_kernels("cpu")
    with monkeypatch.context() as patched:
        patched.setattr(cuda_kernels, "_trouble", lambda kernels, device: None)
        for capability, widest in (((9, 0), triton_contrast.MAX_DIM), ((7, 5), 0)):
            choose_kernels.cache_clear()
            patched.setattr(torch.cuda, "get_device_capability", lambda device: capability)  # noqa: B023
            chosen = choose_kernels("cuda", precision="tf32")
            assert chosen.name == "Triton (tf32)"
            assert chosen.widest == widest
    choose_kernels.cache_clear()
    monkeypatch.setattr(cuda_kernels, "find_spec", lambda name: None)
    assert isinstance(choose_kernels("cuda"), TorchKernels)
    assert "Triton is not installed" in caplog.text

    def missing(precision: str) -> None:
        raise ImportError("No module named 'triton'")

    monkeypatch.setattr(cuda_kernels, "TritonKernels", missing)
    with pytest.raises(ConfigError, match=r"^pipeline\.kernels=triton, but .* pipeline\.kernels=auto"):
        choose_kernels("cuda", "triton")
    monkeypatch.setattr(cuda_kernels, "find_spec", lambda name: "there, but broken")
    choose_kernels.cache_clear()
    assert isinstance(choose_kernels("cuda"), TorchKernels)
    assert "Triton cannot be imported (No module named" in caplog.text
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ConfigError, match=r"^pipeline\.kernels=triton .* take pipeline\.kernels=auto"):
        choose_kernels("cpu", "triton")
    choose_kernels.cache_clear()


COMPILE = """
import io, re
from contextlib import redirect_stdout
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from marius_py.nn.kernels import triton_adagrad, triton_blocks, triton_contrast, triton_edges
from marius_py.nn.kernels import triton_known, triton_mask, triton_operands, triton_penalties, triton_rows

def build(kernel, types, constants, capability=90, **options):
    names = kernel.arg_names
    pointers = "queries candidates positives words flags group weight d_queries losses slopes stats " \\
        "d_candidates relations known answer relation d_queries d_rows d_relations " \\
        "candidates_turned queries_turned " \\
        "values plain turned positions words_of_rows flags_of_rows words_of_columns flags_of_columns " \\
        "rows state index gradients count rate factors sums table out begins ends firsts nodes".split()
    floats = {"shift", "scale", "lr", "eps"}
    signature = {}
    for name in names:
        if name in constants:
            signature[name] = "constexpr"
        elif name in pointers:
            signature[name] = types.get(name, "*fp32")
        else:
            signature[name] = "fp32" if name in floats else "i32"
    even = {*pointers, "padded_edges", "padded_nodes", "edges_a_part"}
    aligned = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if name in even}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=aligned)
    with redirect_stdout(io.StringIO()) as said:
        made = compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    return made, int(re.search(r"(\\d+) bytes stack frame", said.getvalue())[1]) // 4

SHARED = {80: 163, 90: 227, 120: 99}  # KiB that a block may take
for capability, precision, masked, weighed in (
    (90, "tf32", False, False), (90, "tf32", True, False), (90, "bf16", True, False),
    (90, "bf16", True, True), (90, "tf32x3", True, False), (80, "tf32", True, False),
    (80, "tf32x3", True, False), (120, "tf32", True, False), (120, "bf16", True, False),
):
    blocks = triton_blocks.default_blocks(100, precision)
    ahead, back = blocks.forward, blocks.backward
    shared = dict(DIM=100, HAS_DROPPED=masked, HAS_WEIGHT=weighed, SOFTMAX=not weighed, PRECISION=precision,
                  TURNED=precision in triton_contrast.TURNED, LOOK_UP="tf32", BLOCK_GROUPS=16, BLOCK_DIM=128)
    operand = "*bf16" if precision == "bf16" else "*fp32"
    types = dict.fromkeys(("queries", "queries_turned", "candidates", "candidates_turned"), operand)
    types |= dict.fromkeys(("words", "flags", "group"), "*i32")
    made = {}
    while len(made) < 2:
        blocks = {"forward": ahead, "backward": back}
        for name, block in blocks.items():
            sizes = dict(BLOCK_EDGES=block.own, BLOCK_NODES=block.other)
            if name == "backward":
                sizes = dict(BLOCK_EDGES=block.other, BLOCK_NODES=block.own, ADD=weighed)
            kernel, spilled = build(getattr(triton_contrast, f"_{name}_kernel"), types, shared | sizes,
                                    capability, num_warps=block.warps, num_stages=block.stages)
            fits = kernel.metadata.shared <= SHARED[capability] * 1024
            if fits and spilled <= triton_contrast.MOST_SPILLED:
                made[name] = kernel
        assert made or capability == 120, "no default block fits"
        ahead = ahead if "forward" in made else ahead.smaller()
        back = back if "backward" in made else back.smaller()
        assert ahead and back, "no block fits"
    build(triton_operands._operand_kernel, {"plain": operand, "turned": operand},
          dict(DIM=100, TURNED=precision in triton_contrast.TURNED, BLOCK_ROWS=64, BLOCK_DIM=128))
    for kernel in made.values():
        assert ("wgmma" if capability == 90 else "mma.sync") in kernel.asm["ptx"], "no tensor cores"
        is_ahead = precision == "tf32x3" or capability == 120 or "cp.async" in kernel.asm["ptx"]
        assert is_ahead, "nothing is loaded ahead"
ways = ("words_of_rows", "flags_of_rows", "words_of_columns", "flags_of_columns")
build(triton_mask._leave_out_kernel, {"positions": "*i64", **dict.fromkeys(ways, "*i32")},
      dict(OWN_ROWS=64, OTHER_COLUMNS=32, OWN_COLUMNS=128, OTHER_ROWS=64, BLOCK=256))
numbers = ("table", "begins", "ends", "firsts", "nodes")
of_known = dict.fromkeys(numbers, "*i64") | dict.fromkeys(ways, "*i32")
blocks = dict(OWN_ROWS=64, OTHER_COLUMNS=32, OWN_COLUMNS=128, OTHER_ROWS=64, SHORT=32)
build(triton_known._leave_out_few_kernel, of_known, blocks | dict(EDGES=16, FEW=8), num_warps=1)
build(triton_known._leave_out_many_kernel, of_known, blocks | dict(MANY=128), num_warps=1)
build(triton_adagrad._adagrad_kernel, {"index": "*i64", "count": "*i64"},
      dict(DIM=100, HAS_COUNT=True, HAS_RATE=True, BY_ROW=False, BLOCK_ROWS=16, BLOCK_DIM=128))
for kernel in (triton_edges._query_kernel, triton_edges._query_backward_kernel):
    build(kernel, dict.fromkeys(("known", "answer", "relation"), "*i64"),
          dict(SIGN=-1, HALF=50, COMPLEX=True, BLOCK_EDGES=16, BLOCK_HALF=64))
build(triton_rows._take_kernel, {"index": "*i64"}, dict(DIM=100, BLOCK_ROWS=16, BLOCK_DIM=128))
build(triton_penalties._n3_kernel, {},
      dict(HALF=50, COMPLEX=True, BLOCK_ROWS=16, BLOCK_HALF=64))
print("compiled")
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="Triton compiles on Linux")
def test_kernels_compile_for_devices_and_use_their_tensor_cores(tmp_path: Any) -> None:
    told = {"TRITON_DUMP_PTXAS_LOG": "1", "TRITON_ALWAYS_COMPILE": "1"}  # what is kept has no log
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path), **told}
    environment.pop("TRITON_INTERPRET", None)
    done = subprocess.run(
        [sys.executable, "-c", COMPILE], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "compiled", done.stderr[-2000:]
