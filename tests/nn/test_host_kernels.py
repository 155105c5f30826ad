"""Loops compiled with Numba against their plain counterparts, and what happens where Numba cannot work."""

from __future__ import annotations

import builtins
import ctypes
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
import torch
from numba.core.errors import TypingError
from torch import Tensor

from marius_py import compiling
from marius_py.compiling import kernel
from marius_py.nn import Adagrad, Adam, SparseOptimizer, known_edges
from marius_py.nn.kernels import (
    gemm,
    host,
    numba_contrast,
    numba_gemm,
    numba_products,
    numba_turning,
    numba_weights,
)
from marius_py.nn.kernels.distance import pairwise_l1, pairwise_moduli
from marius_py.nn.kernels.gemm import bfloat16_gemm_address, rows_gemm_address, sgemm_address
from marius_py.nn.known_edges import KnownEdges


@pytest.fixture
def without_numba(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Numba cannot be imported, as where it is not installed or does not know the installed NumPy."""
    real = builtins.__import__

    def refuse(name: str, *rest: object, **more: object) -> object:
        if name == "numba":
            raise ImportError("Numba needs NumPy 1.0 or less")
        return real(name, *rest, **more)  # type: ignore[arg-type]

    host.numba_works.cache_clear()
    monkeypatch.setattr(builtins, "__import__", refuse)
    yield
    host.numba_works.cache_clear()


@cache
def from_python(helper: Any) -> Any:
    """What Python calls a function by that is for compiled ones: called itself, it would end the process."""

    @numba.njit
    def call(*given: Any) -> Any:
        return helper(*given)

    return call


def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "numba_works", lambda: False)


@pytest.mark.parametrize("rate", [1.0, 0.3])
@pytest.mark.parametrize("padding", [0, 3])
@pytest.mark.parametrize("optimizer", [Adagrad(0.07, eps=1e-3), Adam(0.07)], ids=["adagrad", "adam"])
def test_a_step_equals_the_plain_one(
    optimizer: SparseOptimizer, rate: float, padding: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = torch.randperm(50)[:33]
    gradient = torch.randn(33, 21 + padding)[:, :21]
    tables = torch.randn(50, 21), torch.rand(50, optimizer.state_dim(21))
    tables[1][:, -1] = torch.randint(0, 5, (50,))  # step counts of Adam
    results = []
    for step in range(2):
        if step == 1:
            plain(monkeypatch)
        rows, state = (table.clone() for table in tables)
        optimizer.step(rows, state, index, gradient, rate)
        results.append((rows, state))
    torch.testing.assert_close(results[0], results[1], rtol=1e-6, atol=1e-7)  # roots round otherwise
    assert not torch.equal(results[0][0], tables[0])


def test_rows_are_added_in_order_to_the_last_bit() -> None:
    index, rows, table = torch.randint(0, 9, (200,)), torch.randn(200, 17), torch.randn(9, 17)
    expected = table.clone().index_add_(0, index, rows)
    host.add_rows(table, index, rows)
    torch.testing.assert_close(table, expected, rtol=0, atol=0)


@pytest.mark.parametrize("shape", ["whole", "first columns", "last columns", "transposed", "one row"])
def test_padded_rows_hold_the_rows(shape: str) -> None:
    table = torch.randn(6, 8)
    rows = {
        "whole": table,
        "first columns": table[:, :5],
        "last columns": table[:, 5:],
        "transposed": table.T,
        "one row": table[2:3, 1:4],
    }[shape]
    padded = host.padded_rows(rows)
    assert padded.is_contiguous()
    torch.testing.assert_close(padded[:, : rows.shape[1]], rows, rtol=0, atol=0)


def test_powers_of_2() -> None:
    """Close to the exact ones over the whole range, its ends and what lies beyond them."""
    x = np.linspace(-126, 127, 1_000_001, dtype=np.float32)
    found = powers_of_2(x)
    exact = np.exp2(x.astype(np.float64))
    assert np.abs(found / exact - 1).max() < 2e-7
    ends = np.array([-np.inf, -1e30, -127, 128, 1e30, np.inf, np.nan, 0, 1, -1], dtype=np.float32)
    np.testing.assert_array_equal(
        powers_of_2(ends), np.array([0, 0, 0, np.inf, np.inf, np.inf, np.nan, 1, 2, 0.5], dtype=np.float32)
    )


def test_weights_are_summed_on_the_way() -> None:
    """Of the first edges; the others' numbers stay."""
    exponents = np.random.default_rng(0).standard_normal((3, 1001), np.float32)
    scores, totals = exponents.copy(), np.array([1, -2, 7], np.float32)
    left = scores[2].copy()
    weigh(scores, totals, 2, np.float32(0.5))
    expected = np.exp(exponents[:2].astype(np.float64) + np.array([[1.5], [-1.5]]))
    np.testing.assert_allclose(scores[:2], expected, rtol=2e-6)
    np.testing.assert_allclose(totals, [*expected.sum(1), 7], rtol=1e-6)
    np.testing.assert_array_equal(scores[2], left)


def powers_of_2(x: np.ndarray) -> np.ndarray:
    """As loops compute them."""
    found = np.empty_like(x)
    from_python(_write_powers)(x, found)
    return found


@compiling.reordered_helper
def _write_powers(x: np.ndarray, found: np.ndarray) -> None:
    for i in range(len(x)):
        found[i] = numba_weights.power_of_2(x[i])


def weigh(scores: np.ndarray, shifts: np.ndarray, count: int, log_weight: np.float32) -> None:
    """Negatives that belong to no groups, so that they are one run."""
    bias, group = np.zeros((count, 0), np.float32), np.zeros(0, np.int64)
    runs, shares = np.array([0, scores.shape[1]]), np.empty(scores.shape[1], np.float32)
    counts = numba_weights.Counts(log_weight, bias, group, runs, 1, shares)
    block = numba_weights.Block(0, 0, count)
    from_python(numba_weights.weigh_softmax)(scores, -shifts, block, counts, scores, shifts)


def test_sigmoids_and_their_integrals() -> None:
    """Close to the exact ones where these are near nothing as well, at their ends and for no number."""
    x = np.linspace(-80, 80, 100_001, dtype=np.float32)
    exact = x.astype(np.float64)
    softplus = np.array([from_python(numba_weights._softplus)(one) for one in x])
    sigmoid = np.array([from_python(numba_weights._sigmoid)(one) for one in x])
    allowed = 5e-7 + 9e-8 * np.abs(exact)  # powers of numbers that are rounded
    assert (np.abs(softplus / np.logaddexp(0, exact) - 1) <= allowed).all()
    assert (np.abs(sigmoid / np.exp(exact - np.logaddexp(0, exact)) - 1) <= allowed).all()
    ends = [np.float32(one) for one in (-np.inf, -1e30, 1e30, np.inf, np.nan)]
    np.testing.assert_array_equal(
        [from_python(numba_weights._sigmoid)(one) for one in ends], [0, 0, 1, 1, np.nan]
    )
    np.testing.assert_array_equal(
        [from_python(numba_weights._softplus)(one) for one in ends], [0, 0, np.float32(1e30), np.inf, np.nan]
    )


def test_bits_as_whole_numbers_are_in_the_order_of_floats() -> None:
    floats = np.array([-np.inf, -3e38, -1.5, -1e-40, 0, 1e-40, 2, 3e38, np.inf], np.float32)
    ordered = [int(from_python(numba_weights._ordered)(one)) for one in floats.view(np.int32)]
    assert ordered == sorted(ordered)
    back = np.array([from_python(numba_weights._ordered)(np.int32(one)) for one in ordered], np.int32)
    np.testing.assert_array_equal(back.view(np.float32), floats)
    assert (
        ordered[1]
        > numba_weights._LEAST
        == from_python(numba_weights._ordered)(np.finfo(np.float32).min.view(np.int32))
    )


def as_factors(array: np.ndarray, dtype: type[np.generic]) -> np.ndarray:
    if dtype == np.float32:
        return array
    return torch.from_numpy(array).bfloat16().view(torch.uint16).numpy()


def test_factors_are_rounded_to_the_nearest() -> None:
    rng = np.random.default_rng(0)
    numbers = rng.standard_normal((40, 50), np.float32) * 10 ** rng.uniform(-30, 30, (40, 50))
    numbers = numbers.astype(np.float32)
    numbers[0, :6] = 0, np.inf, -np.inf, 1, -2.5, np.finfo(np.float32).max
    found = np.zeros((40, 64), np.uint16)
    from_python(numba_contrast._round)(numbers, 40, 50, found)
    np.testing.assert_array_equal(found[:, :50], as_factors(numbers, np.uint16))
    assert not found[:, 50:].any()
    no_numbers = np.array([[0x7F800001, 0x7FC00000, 0x7FFFFFFF, 0xFFFFFFFF]], np.uint32).view(np.float32)
    from_python(numba_contrast._round)(no_numbers, 1, 4, found)
    assert torch.from_numpy(found[:1, :4].copy()).view(torch.bfloat16).isnan().all()
    ties = np.array([[1 + 2**-8, -1 - 2**-8]], np.float32)  # between 1 and 1 + 2^-7
    from_python(numba_contrast._round)(ties, 1, 2, found)
    rounded = torch.from_numpy(found[:1, :2].copy()).view(torch.bfloat16).float().tolist()
    assert rounded == [[1 + 2**-7, -1 - 2**-7]]


PRODUCTS = [
    pytest.param(sgemm_address(), np.float32, id="float32"),
    pytest.param(
        bfloat16_gemm_address(),
        np.uint16,
        id="bfloat16",
        marks=pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="PyTorch without MKL"),
    ),
]


@pytest.mark.parametrize(("gemm", "dtype"), PRODUCTS)
@pytest.mark.parametrize("transpose_left", [False, True])
@pytest.mark.parametrize("transpose_right", [False, True])
def test_products_within_loops(
    transpose_left: bool, transpose_right: bool, gemm: int, dtype: type[np.generic]
) -> None:
    """Of the first rows and columns of arrays, with and without what the output held."""
    rng = np.random.default_rng(0)
    m, n, k = 5, 7, 3
    left, right = (rng.integers(0, 100, shape).astype(np.float32) for shape in ((m, k), (k, n)))
    arrays = [np.full((9, 11), np.nan, np.float32) for _ in range(2)]
    for array, factor, transpose in zip(
        arrays, (left, right), (transpose_left, transpose_right), strict=True
    ):
        factor = factor.T if transpose else factor
        array[: factor.shape[0], : factor.shape[1]] = factor
    out = np.full((6, 8), np.nan, np.float32)
    for kept in (0.0, 1.0):
        factors = [as_factors(array, dtype) for array in arrays]
        from_python(numba_gemm.multiply)(
            gemm, transpose_left, transpose_right, (m, n, k), *factors, np.float32(kept), out
        )
        np.testing.assert_allclose(out[:m, :n], (1 + kept) * (left @ right), rtol=1e-6)
    assert np.isnan(out[m:]).all()
    assert np.isnan(out[:, n:]).all()


ROWS = [
    pytest.param(
        address, dtype, id=name, marks=pytest.mark.skipif(address is None, reason="no such product by rows")
    )
    for address, dtype, name in (
        (rows_gemm_address(is_rounded=False), np.float32, "float32"),
        (rows_gemm_address(is_rounded=True) if host.has_bfloat16_pairs() else None, np.uint16, "bfloat16"),
    )
]


@pytest.mark.parametrize(("gemm", "dtype"), ROWS)
@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 4), (5, 7, 4), (33, 100, 6), (112, 17, 50)])
def test_products_by_rows_within_loops(m: int, n: int, k: int, gemm: int, dtype: type[np.generic]) -> None:
    rng = np.random.default_rng(0)
    left, right = (rng.integers(-99, 100, shape).astype(np.float32) for shape in ((m, k), (k, n)))
    arrays = [np.full((m + 1, k + 2), np.nan, np.float32), np.full((k + 2, n + 3), np.nan, np.float32)]
    arrays[0][:m, :k], arrays[1][:k, :n] = left, right
    factors = [as_factors(array, dtype) for array in arrays]
    if dtype == np.uint16:
        pairs = np.zeros((k // 2, n + 3), np.uint32)
        from_python(numba_products._pair)(factors[1], k, n + 3, pairs)
        np.testing.assert_array_equal(pairs & 0xFFFF, factors[1][:k:2])
        np.testing.assert_array_equal(pairs >> 16, factors[1][1:k:2])
        factors[1] = pairs
    out = np.full((m + 1, n + 1), np.nan, np.float32)
    for is_added in (False, True):
        from_python(numba_gemm.multiply_rows)(gemm, (m, n, k), *factors, is_added, out)
        np.testing.assert_allclose(out[:m, :n], (1 + is_added) * (left @ right), rtol=1e-6)
    from_python(numba_gemm.multiply_rows)(gemm, (m, n, k - 2), *factors, False, out, 2)
    np.testing.assert_allclose(out[:m, :n], left[:, 2:] @ right[2:], rtol=1e-6)
    assert np.isnan(out[m:]).all()
    assert np.isnan(out[:, n:]).all()


@pytest.mark.parametrize("dtype", [np.float32, np.uint32])
def test_words_are_turned_by_tiles(dtype: type[np.generic]) -> None:
    words = np.arange(48 * 32, dtype=np.uint32).reshape(48, 32).view(dtype)
    turned = np.zeros((32, 64), dtype)
    from_python(numba_turning.turn)(words, 33, 17, turned)
    np.testing.assert_array_equal(turned[:, :48], words.T)
    assert not turned[:, 48:].any()
    turned[:] = 0
    from_python(numba_turning.turn)(words, 16, 1, turned)
    np.testing.assert_array_equal(turned[:16, :16], words[:16, :16].T)
    assert not turned[16:].any()
    assert not turned[:, 16:].any()


def test_products_by_rows_are_left_out_where_they_are_not_sure(monkeypatch: pytest.MonkeyPatch) -> None:
    address = rows_gemm_address(is_rounded=False)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert rows_gemm_address(is_rounded=False) is None
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA")
    assert rows_gemm_address(is_rounded=False) == address
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    assert rows_gemm_address(is_rounded=False) == address
    assert rows_gemm_address(is_rounded=True) is None
    enabled = torch.backends.mkldnn.enabled
    torch.backends.mkldnn.set_flags(False)
    try:
        assert rows_gemm_address(is_rounded=False) is None
    finally:
        torch.backends.mkldnn.set_flags(enabled)
    with monkeypatch.context() as other:
        other.setattr(gemm, "_takes_tiles", lambda: True)
        assert gemm._tried_rows_gemm.__wrapped__(True) is None
        assert gemm._tried_rows_gemm.__wrapped__(False) == address
    with monkeypatch.context() as other:
        other.setattr(gemm, "_address", lambda name: None)
        assert gemm._takes_tiles()  # nobody knows
    assert host.has_bfloat16_tiles() or not gemm._takes_tiles()
    with monkeypatch.context() as other:
        other.setattr(gemm, "_holds", lambda path, words: False)  # a PyTorch built without oneDNN
        assert gemm._tried_rows_gemm.__wrapped__(True) is None
    monkeypatch.setattr(gemm, "_address", lambda name: ctypes.cast(_add_nothing, ctypes.c_void_p).value)
    assert gemm._tried_rows_gemm.__wrapped__(False) is None  # a function that computes something else
    monkeypatch.setattr(gemm, "_address", lambda name: None)
    assert gemm._tried_rows_gemm.__wrapped__(False) is None


@ctypes.CFUNCTYPE(
    None,
    *[ctypes.c_int64] * 6,
    ctypes.c_bool,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_bool,
)
def _add_nothing(*given: object) -> None:
    """As a product by rows is called; leaves the output as it is."""


def test_words_in_a_file_are_found_across_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemm, "_PIECE", 8)
    (tmp_path / "file").write_bytes(b"0123456words789")
    assert gemm._holds(tmp_path / "file", b"words")
    assert gemm._holds(tmp_path / "file", b"789")
    assert not gemm._holds(tmp_path / "file", b"word7")
    assert not gemm._holds(tmp_path / "none", b"words")


def test_what_is_known_of_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(name: str, *features: str) -> tuple[bool, bool, bool]:
        monkeypatch.setattr(host, "_processor", lambda: (name, frozenset(features)))
        return host.has_bfloat16_tiles(), host.has_bfloat16_pairs(), host.has_slower_mkl()

    assert find("znver4", "avx512f", "avx512bf16") == (False, True, True)
    assert find("znver3", "avx2") == (False, False, False)
    assert find("sapphirerapids", "avx512f", "avx512bf16", "amx-bf16") == (True, True, False)
    assert find("") == (False, False, False)


def test_where_pytorch_exports_no_product(monkeypatch: pytest.MonkeyPatch) -> None:
    class _Library:
        def __init__(self, path: str) -> None:
            assert Path(path).is_file()

    monkeypatch.setattr("ctypes.CDLL", _Library)
    assert gemm._address.__wrapped__("sgemm_") is None
    assert sgemm_address() is not None  # found before


SUMS = {"l1": pairwise_l1, "moduli": pairwise_moduli}


def sums_and_gradients(name: str, query: Tensor, candidates: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    query, candidates = query.clone().requires_grad_(), candidates.clone().requires_grad_()
    found = SUMS[name](query, candidates)
    (found * weight).sum().backward()
    assert query.grad is not None
    assert candidates.grad is not None
    return found.detach(), query.grad, candidates.grad


@pytest.mark.parametrize("name", SUMS)
@pytest.mark.parametrize("edges", [1, 5, 6, 7, 8])  # four at a time
def test_sums_over_coordinates_equal_double_precision(
    name: str, edges: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over several blocks of candidates, one of them equal to a query."""
    dim = 21 if name == "l1" else 30  # two coordinates at a time
    query, candidates = torch.randn(2, edges, dim), torch.randn(2, 1030, dim)
    candidates[1, 40] = query[1, -1]
    weight = torch.randn(2, edges, 1030)
    equal = (query[:, :, None] == candidates[:, None]).any(dim=3)  # that one, and by chance
    weight[equal] = 0  # of a difference of zero any gradient will do
    found = sums_and_gradients(name, query, candidates, weight)
    plain(monkeypatch)
    expected = sums_and_gradients(name, query.double(), candidates.double(), weight.double())
    for one, other in zip(found, expected, strict=True):
        scale = float(other.abs().max())
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-6 * scale)
    assert found[0][1, -1, 40] == 0


@pytest.mark.parametrize("name", SUMS)
def test_a_difference_of_zero_has_a_finite_gradient(name: str) -> None:
    rows = torch.ones(1, 1, 2)
    _, d_query, d_candidate = sums_and_gradients(name, rows, rows, torch.full((1, 1, 1), -3.0))
    torch.testing.assert_close(d_query, -d_candidate)
    assert (d_query.abs() <= 3).all()


@pytest.mark.parametrize("name", SUMS)
def test_sums_over_coordinates_in_double_precision(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = torch.randn(2, 3, 8).double(), torch.randn(2, 5, 8).double(), torch.randn(2, 3, 5).double()
    found = sums_and_gradients(name, *given)
    plain(monkeypatch)
    torch.testing.assert_close(found, sums_and_gradients(name, *given), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", SUMS)
def test_sums_over_coordinates_of_nothing(name: str) -> None:
    assert SUMS[name](torch.zeros(1, 0, 4), torch.zeros(1, 3, 4)).shape == (1, 0, 3)
    assert SUMS[name](torch.zeros(1, 2, 4), torch.zeros(1, 0, 4)).shape == (1, 2, 0)


@pytest.mark.parametrize("name", SUMS)
def test_what_is_not_a_number_stays_so(name: str) -> None:
    """Divergence must show in the loss."""
    query = torch.full((1, 2, 4), torch.nan)
    assert SUMS[name](query, torch.zeros(1, 3, 4)).isnan().all()
    assert SUMS[name](torch.full((1, 2, 4), torch.inf), torch.zeros(1, 3, 4)).isinf().all()


@pytest.mark.usefixtures("without_numba")
def test_without_numba_all_goes_on_and_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "marius_py")
    assert host.compiled_rows() is host.compiled_known() is host.compiled_distance() is None
    rows, state = torch.zeros(3, 2), torch.zeros(3, 2)
    Adagrad(0.5).step(rows, state, torch.tensor([1]), torch.tensor([[2.0, -3.0]]))
    torch.testing.assert_close(rows, torch.tensor([[0.0, 0.0], [-0.5, 0.5], [0.0, 0.0]]))
    for name, distance in (("l1", 7.0), ("moduli", 5.0)):
        found = SUMS[name](torch.tensor([[[3.0, 4.0]]]), torch.zeros(1, 1, 2))
        torch.testing.assert_close(found, torch.tensor([[[distance]]]))
    (said,) = caplog.messages
    assert "Numba needs NumPy 1.0 or less" in said
    assert "pip install --upgrade numba" in said


def test_known_edges_are_compiled_where_they_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    edges = np.stack([np.arange(300) % 7, np.arange(300) % 2, np.arange(300) % 31], 1)
    negatives = np.random.default_rng(0).integers(0, 31, (5, 20))
    expected = KnownEdges(edges).false_negatives(edges[:50], negatives, "tail")
    calls = []
    compiled = host.compiled_known()
    assert compiled is not None
    find = compiled.false_negatives
    monkeypatch.setattr(compiled, "false_negatives", lambda *given: calls.append(0) or find(*given))
    monkeypatch.setattr(known_edges, "_LEAST_EDGES", 300)
    known = KnownEdges(edges)
    for _ in range(2):  # the scratch must be as it was
        np.testing.assert_array_equal(known.false_negatives(edges[:50], negatives, "tail"), expected)
    assert len(calls) == 2
    assert len(expected)


COMPILE = """
import resource, torch
from marius_py.nn.kernels import host
if {limit}:
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # as with a full disk, nothing can be written
table = torch.zeros(3, 2)
host.add_rows(table, torch.tensor([1, 1]), torch.ones(2, 2))
assert table[1].tolist() == [2, 2]
"""


LOOP = """
from marius_py.compiling import kernel

@kernel()
def double(numbers):
    for i in range(len(numbers)):
        numbers[i] *= 2
"""


def load_loop(folder: Path) -> Any:
    """A module of one compiled loop in a folder, as a new program would have it."""
    module = folder / "loop.py"
    if not module.exists():
        module.write_text(LOOP)
    spec = spec_from_file_location("loop", module)
    assert spec is not None
    assert spec.loader is not None
    loaded = module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.mark.parametrize(
    ("ending", "kept"),
    [("nbi", b""), ("nbi", bytes(100)), ("nbc", b"\x80\x04")],
    ids=["none", "zeros", "cut"],
)
def test_compiled_code_that_cannot_be_loaded_is_made_again(
    ending: str, kept: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As after a power failure."""
    caplog.set_level(logging.DEBUG, "marius_py.compiling")
    compiling._tell_of_damage.cache_clear()
    said = []
    for run in range(3):
        loaded, numbers = load_loop(tmp_path), np.arange(4.0)
        for _ in range(2):
            loaded.double(numbers)
        assert numbers.tolist() == [0, 4, 8, 12]
        said.append([one.getMessage() for one in caplog.records if one.name == compiling.__name__])
        caplog.clear()
        (file,) = tmp_path.rglob(f"*.{ending}")
        if run == 0:
            file.write_bytes(kept)
    assert said[0] == said[2] == []
    warning, reason = said[1]
    assert "damaged: compiling again" in warning
    assert reason.startswith("double: ")


def test_damage_to_several_loops_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    compiling._tell_of_damage.cache_clear()
    folders = tmp_path / "one", tmp_path / "two"
    for folder in folders:
        folder.mkdir()
        load_loop(folder).double(np.ones(1))
        (file,) = folder.rglob("*.nbi")
        file.write_bytes(b"")
        load_loop(folder).double(np.ones(1))
    assert sum("damaged" in one for one in caplog.messages) == 1


@pytest.mark.parametrize("takes_long", [True, False])
def test_what_takes_long_to_compile_says_so_once(
    takes_long: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And not when what was kept is loaded."""
    caplog.set_level(logging.INFO, "marius_py.compiling")
    (tmp_path / "loop.py").write_text(LOOP.replace("kernel()", f"kernel(takes_long={takes_long})"))
    for times in (1, 0):
        compiling._tell_of_compiling.cache_clear()
        for _ in range(2):
            loaded, numbers = load_loop(tmp_path), np.arange(4.0)
            for _ in range(2):
                loaded.double(numbers)
            assert numbers.tolist() == [0, 4, 8, 12]
        assert sum("compiling loops" in one for one in caplog.messages) == times * takes_long
        caplog.clear()


@pytest.mark.parametrize("may_be_removed", [True, False])
def test_compiled_code_that_may_not_be_read(
    may_be_removed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A folder stands for the file, which nobody can open, nor remove if something lies in it."""
    caplog.set_level(logging.DEBUG, "marius_py.compiling")
    assert load_loop(tmp_path).double(np.ones(1)) is None
    (file,) = tmp_path.rglob("*.nbi")
    file.unlink()
    file.mkdir()
    (file / "inside").touch()
    if may_be_removed:
        monkeypatch.setattr(Path, "unlink", lambda path, missing_ok: shutil.rmtree(path))
    loaded, numbers = load_loop(tmp_path), np.arange(4.0)
    for _ in range(2):
        loaded.double(numbers)
    assert numbers.tolist() == [0, 4, 8, 12]
    assert sum("of no use: IsADirectoryError" in one for one in caplog.messages) == 1
    assert file.is_file() == may_be_removed


def test_an_error_of_the_loops_own_is_told_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    compiling._tell_of_damage.cache_clear()

    @kernel()
    def none_of(numbers: np.ndarray) -> float:
        return numbers.no_such_thing  # type: ignore[attr-defined, no-any-return]

    for _ in range(2):
        with pytest.raises(TypingError, match="no_such_thing"):
            none_of(np.zeros(3))
    assert not caplog.messages


@pytest.mark.parametrize("cache_home", [None, ""])
def test_without_a_home_no_folder_is_made_in_the_working_directory(
    cache_home: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As in a container whose user has no name, with the package where it cannot write."""
    caplog.set_level(logging.INFO, "marius_py.compiling")
    compiling._tell_of_compiling.cache_clear()
    monkeypatch.setattr(compiling.numba.config, "CACHE_DIR", "")
    if cache_home is None:
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    else:
        monkeypatch.setenv("XDG_CACHE_HOME", cache_home)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    (tmp_path / "loop.py").write_text(LOOP.replace("kernel()", "kernel(takes_long=True)"))
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    loaded, numbers = load_loop(tmp_path), np.arange(4.0)
    loaded.double(numbers)
    assert numbers.tolist() == [0, 2, 4, 6]
    assert not list(work.iterdir())
    (said,) = caplog.messages
    assert "in each run" in said
    assert "NUMBA_CACHE_DIR" in said


@pytest.mark.parametrize("trouble", ["full disk", pytest.param("no folder", marks=pytest.mark.slow)])
def test_compiled_code_that_cannot_be_kept_runs_all_the_same(trouble: str, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    if trouble == "no folder":
        folder.write_text("a file")
    done = subprocess.run(
        [sys.executable, "-c", COMPILE.format(limit=trouble == "full disk")],
        env={**os.environ, "NUMBA_CACHE_DIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr


CONTRAST = """
import hashlib
import numpy as np
from marius_py.nn.kernels import numba_contrast as loops
from marius_py.nn.kernels import numba_contrast_l2 as distances
from marius_py.nn.kernels import numba_contrast_sums as sums_loops
from marius_py.nn.kernels import numba_matrices as matrices
from marius_py.nn.kernels.numba_dropout import Masks, Uses
from marius_py.nn.kernels.numba_queries import COMPLEX, SUM, Edges
from marius_py.nn.kernels.numba_weights import LOGISTIC, MARGIN, SMOOTHED, Averages, Negatives
from marius_py.nn.kernels.numba_products import Turned
from marius_py.nn.kernels.gemm import bfloat16_gemm_address, rows_gemm_address, sgemm_address
from marius_py.nn.kernels.host import has_bfloat16_pairs

random = np.random.default_rng(0)
dim, count, edges = 100, 50, 32
rows, relations = (random.standard_normal((n, dim), np.float32) / 2 for n in (80, 3))
known, answer = random.integers(0, 80, (2, edges))
relation = random.integers(0, 3, edges)
weight = random.random(edges, np.float32)
asked = Edges(known, relation, answer, known, COMPLEX, np.float32(1), weight)
negatives = Negatives(
    random.integers(0, 80, (1, count)), np.zeros((1, 0), np.int64), np.zeros((1, edges, 0), np.float32),
    np.zeros(0, np.int64),
)
losses = [None] + [
    Averages(kind, np.float32(1), np.float32(temperature), np.float32(0.1))
    for kind, temperature in ((SMOOTHED, 0), (LOGISTIC, 0), (LOGISTIC, 0.5), (MARGIN, 0), (MARGIN, 0.5))
]
kept = [random.random((edges, dim)) < 0.7 for _ in range(5)] + [random.random((count, dim)) < 0.7]
masks = Masks(*kept, np.float32(1.25), np.float32(1.5))
uses = Uses(*(np.zeros((edges, dim), np.float32) for _ in range(8)), np.arange(edges))


def show(contrast, *given):
    out = np.zeros_like(rows), np.zeros_like(relations)
    loss = contrast(rows, relations, *given, *out)
    assert np.isfinite(loss)
    print(loss, *(hashlib.sha256(array.tobytes()).hexdigest() for array in out))


exact, rounded = (sgemm_address(), np.float32, False), (bfloat16_gemm_address(), np.uint16, False)
by_rows = (rows_gemm_address(is_rounded=False), np.float32, True)
rounded_by_rows = (rows_gemm_address(is_rounded=True) if has_bfloat16_pairs() else None, np.uint16, True)
width, places = 128, 64  # whole tiles


def turn(candidates, weights):
    words, rows = candidates, [candidates, weights]
    if candidates.dtype == np.uint16:
        words = candidates.view(np.uint32)
        rows = [np.zeros((len(one) // 2, one.shape[1]), np.uint32) for one in rows]
    columns, queries = np.zeros((words.shape[1], places), words.dtype), np.zeros((width, edges), np.float32)
    return Turned(words, columns, *rows, queries, np.zeros((width, edges), candidates.dtype))


for (gemm, dtype, is_by_rows), by_columns in (
    (exact, False), (exact, True), (rounded, False), (by_rows, True), (rounded_by_rows, True)
):
    if gemm is None:
        continue
    shapes = [(edges, width)] * 2 + [(edges,)] * 3 + [(edges, places)]
    shapes += [(dim, places) if by_columns else (places, width)]
    room = [np.zeros(shape, np.float32) for shape in shapes]
    factors = (edges, width), (edges, width), (edges, places), (places, width)
    room += [np.zeros(shape, dtype) for shape in factors]
    if dtype == np.float32:
        room[7], room[9] = room[0], room[5]
    turned = turn(room[10], room[9]) if is_by_rows else None
    room = loops.Room(*room, by_columns)
    for loss in losses:
        for dropout in ((None, None), (masks, uses)):
            show(loops.contrast, asked, negatives, np.float32(0), loss, *dropout, room, turned, gemm)
shapes = [(edges, width)] * 3 + [(edges, places)] + [(edges,)] * 5
shapes += [(places, width), (places,), (dim + 1, places)]
room = distances.Room(*(np.zeros(shape, np.float32) for shape in shapes))
asked = Edges(known, relation, answer, known, SUM, np.float32(1), weight)
for gemm, turned in ((sgemm_address(), None), (by_rows[0], turn(room.candidates, room.scores))):
    for loss in losses if gemm is not None else ():
        for dropout in ((None, None), (masks, uses)):
            show(distances.contrast, asked, negatives, np.float32(0), loss, *dropout, room, turned, gemm)
room = [np.zeros(shape, np.float32) for shape in [(edges, dim)] * 2 + [(edges,)] * 3 + [(edges, count)]]
room = sums_loops.Room(*room, room[5], *(np.zeros((dim, count), np.float32) for _ in range(2)))
for product, is_complex in ((SUM, False), (COMPLEX, True)):
    asked = Edges(known, relation, answer, known, product, np.float32(1), weight)
    for loss in losses:
        for dropout in ((None, None), (masks, uses)):
            show(sums_loops.contrast, asked, negatives, np.float32(0), loss, *dropout, is_complex, room)
forms = random.standard_normal((3, dim * 20), np.float32)
given = rows, forms, known, relation, np.argsort(relation)
for turned, mask in ((False, masks.node), (True, masks.node[:0])):
    queries, out = np.zeros((edges, dim), np.float32), (np.zeros_like(rows), np.zeros_like(forms))
    matrices.ask(*given, turned, mask, masks.node_scale, queries)
    matrices.ask_back(*given, turned, mask, masks.node_scale, queries, *out)
    print(*(hashlib.sha256(array.tobytes()).hexdigest() for array in (queries, *out)))
"""


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_code_just_compiled_and_code_that_was_kept_give_the_same_bits(tmp_path: Path) -> None:
    """A run that is killed while it compiles, and goes on with kept code, equals one that is not."""
    first, second = (
        subprocess.run(
            [sys.executable, "-c", CONTRAST],
            env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=900,  # slow cores that have other work compile for over four minutes
            check=False,
        )
        for _ in range(2)
    )
    assert first.returncode == 0, first.stderr
    assert list(tmp_path.rglob("*.nbc")), "nothing was kept"
    assert second.stdout == first.stdout
