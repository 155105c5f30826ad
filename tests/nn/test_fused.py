"""The closed form equals autograd, for everything that it takes on."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from marius_py.evaluation.ranking.scorer import similarity_of
from marius_py.nn import (
    L2,
    N3,
    RESCAL,
    Batch,
    ComplEx,
    Corruption,
    Decoder,
    DistMult,
    Dot,
    Importance,
    LogisticLoss,
    Loss,
    MarginLoss,
    Regularizer,
    RotatE,
    SoftmaxLoss,
    TransE,
    fused_compiled,
    fused_loops,
    product_choice,
)
from marius_py.nn import fused_contrast as fused_module
from marius_py.nn import model as model_module
from marius_py.nn import product_units as products
from marius_py.nn.decoders import ClosedFormDecoder
from marius_py.nn.fused_contrast import find_closed_form
from marius_py.nn.gradients import StepInput
from marius_py.nn.kernels import host
from marius_py.nn.kernels.gemm import bfloat16_gemm_address, rows_gemm_address
from marius_py.nn.kernels.objectives import LogisticObjective, SmoothedObjective, closed_form
from marius_py.nn.product_units import product_units
from marius_py.types import Side
from tests.every_second import every_second
from tests.nn.batches import NUM_RELATIONS, gradients, make_model, random_batch

DECODERS = [
    Dot(8),
    DistMult(8),
    ComplEx(8),
    TransE(8),
    TransE(8, norm="l1"),
    RotatE(8),
    RotatE(8, phase_scale=2.5),
    RotatE(8, norm="moduli"),
    RESCAL(8),
    RESCAL(8, block=4),
]
LOSSES: list[Loss] = [
    SoftmaxLoss(),
    SoftmaxLoss(negative_weight=7.0),
    LogisticLoss(),
    LogisticLoss(margin=2.0),
    LogisticLoss(margin=2.0, adversarial_temperature=0.7),
    SoftmaxLoss(smoothing=0.2),
    SoftmaxLoss(smoothing=0.2, negative_weight=7.0),
    MarginLoss(margin=2.0),
    MarginLoss(margin=2.0, adversarial_temperature=0.7),
]
NAMES = [
    "softmax",
    "weighted_softmax",
    "logistic",
    "logistic_margin",
    "adversarial",
    "smoothed",
    "weighted_smoothed",
    "margin",
    "adversarial_margin",
]
REGULARIZERS: list[list[Regularizer]] = [[], [N3(0.1), L2(0.2, relation_weight=0.3, weighted=False)]]


def assert_paths_equal(
    decoder: Decoder, loss: Loss, batch_options: dict[str, object], **options: object
) -> None:
    fast_model = make_model(decoder, loss, fused=True, **options)  # type: ignore[arg-type]
    assert find_closed_form(decoder, loss) is not None
    batch = random_batch(decoder.dim, **batch_options)  # type: ignore[arg-type]
    fast = gradients(fast_model, batch)
    plain = gradients(make_model(decoder, loss, fused=False, **options), batch)  # type: ignore[arg-type]
    for ours, reference in zip(fast, plain, strict=True):
        size = np.abs(reference).max(initial=1e-12)
        assert np.abs(np.subtract(ours, reference)).max(initial=0.0) <= 1e-5 * size


FLAGS = list(itertools.product((False, True), repeat=5))


@pytest.mark.parametrize("decoder", DECODERS, ids=lambda decoder: type(decoder).__name__)
@pytest.mark.parametrize("loss", LOSSES, ids=NAMES)
@pytest.mark.parametrize("turn", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 3))])
def test_equal_to_autograd(decoder: Decoder, loss: Loss, turn: int) -> None:
    """A turn has any two flags in all ways with each pair; all five in all ways with each decoder."""
    quarter = (DECODERS.index(decoder) + LOSSES.index(loss) + turn) % 4
    chosen = [f for f in FLAGS if 2 * (f[0] ^ f[1] ^ f[3]) + (f[0] ^ f[2] ^ f[4]) == quarter]
    assert len(chosen) == 8
    for reciprocal, dropout, drop, grouped, regularized in chosen:
        assert_paths_equal(
            decoder,
            loss,
            {"drop": drop, "groups": 3 * grouped},
            reciprocal=reciprocal,
            dropout=dropout,
            regularizers=REGULARIZERS[regularized],
        )


@pytest.mark.parametrize("decoder", [ComplEx(8), TransE(8)], ids=["complex", "transe"])
@pytest.mark.parametrize("loss", LOSSES[2:], ids=NAMES[2:])
def test_equal_to_autograd_where_weights_add_up_to_little(decoder: Decoder, loss: Loss) -> None:
    for drop in (False, True):
        assert_paths_equal(decoder, loss, {"count": 1, "groups": 3, "drop": drop})


COMPILED: dict[str, Callable[[int], Decoder]] = {
    "dot": Dot,
    "distmult": DistMult,
    "complex": ComplEx,
    "transe": TransE,
    "transe-l1": partial(TransE, norm="l1"),
    "rotate": RotatE,
    "rotate-moduli": partial(RotatE, norm="moduli"),
    "rescal": RESCAL,
    "rescal-blocks": partial(RESCAL, block=2),
}
"""Decoders that compiled loops know."""


@pytest.mark.parametrize(("edges", "count"), [(20, 5001), (301, 3)], ids=["candidates", "edges"])
def test_sums_over_many(edges: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for by_rows in (False, rows_gemm_address(is_rounded=False) is not None):
        monkeypatch.setattr(product_choice, "_prefers_rows", lambda by_rows=by_rows: by_rows)
        assert_paths_equal(ComplEx(8), SoftmaxLoss(), {"chunks": 1, "chunk_edges": edges, "count": count})


BY_ROWS = pytest.param(
    True,
    id="onednn",
    marks=[
        pytest.mark.skipif(
            rows_gemm_address(is_rounded=False) is None, reason="this PyTorch exports no product by rows"
        ),
        pytest.mark.slow,  # a minute of compiling; `test_sums_over_many` has some of them
    ],
)


@pytest.mark.parametrize("name", COMPILED)
@pytest.mark.parametrize("by_rows", [False, BY_ROWS])
@pytest.mark.parametrize(
    ("dim", "block"),  # a row's last register has room, and its sums are turned; blocks as below
    every_second([6, 16], [1, 3, 7]),  # one edge, some with a rest, the whole chunk
)
@pytest.mark.parametrize("half", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_compiled_equals_plain(
    name: str, by_rows: bool, dim: int, block: int, half: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = COMPILED[name]
    chunk_edges = {1: 48, 3: 35, 7: 7}[block] if by_rows else 7  # whole registers of edges are a block then
    monkeypatch.setattr(product_choice, "_prefers_rows", lambda: by_rows)
    monkeypatch.setattr(fused_loops, "block_edges", lambda *sizes, is_rounded=False: block)
    assert fused_loops.turns_sums(dim) is (dim == 6)
    calls = []
    compiled = model_module.compiled_gradients
    monkeypatch.setattr(
        model_module, "compiled_gradients", lambda *given: calls.append(0) or compiled(*given)
    )
    chunks = 2 if by_rows else 5
    shape = {"chunks": chunks, "chunk_edges": chunk_edges, "count": 4, "drop": True}
    loss = SoftmaxLoss(negative_weight=3.0)
    losses = [
        loss,
        LogisticLoss(margin=2.0),
        LogisticLoss(adversarial_temperature=0.7),
        MarginLoss(margin=2.0),
        MarginLoss(margin=1.2, adversarial_temperature=0.7),  # at 1 one pair lies at the kink to the last bit
        SoftmaxLoss(smoothing=0.2, negative_weight=3.0),
    ]
    # Groups and reciprocal relations in two of four ways; a block of three edges has the other two.
    ways = [
        (one, groups, (number + bool(groups) + (block == 3) + half) % 2 == 0)
        for (number, one), groups in itertools.product(enumerate(losses), (0, 2))
    ]
    for one, groups, reciprocal in ways:
        options = {**shape, "groups": groups, "weighted": reciprocal}
        assert_paths_equal(decoder(dim), one, options, reciprocal=reciprocal)
    assert len(calls) == 12
    calls.clear()
    for one, _, reciprocal in ways[::2]:
        assert_paths_equal(decoder(dim), one, shape, dropout=True, reciprocal=reciprocal)
    makes_factors = name in ("rotate", "rotate-moduli", "rescal", "rescal-blocks")
    assert len(calls) == (0 if makes_factors else 6)
    calls.clear()
    for one, groups, reciprocal in ways:
        options = {**shape, "groups": groups, "weighted": reciprocal, "scale": 0.5}  # no score overflows
        rates = {"dropout": True, "relation_dropout": 0.0}
        assert_paths_equal(decoder(dim), one, options, reciprocal=reciprocal, **rates)
    assert len(calls) == 12
    calls.clear()
    assert_paths_equal(decoder(dim), loss, shape, reciprocal=True, compiled=False)
    assert not calls  # it goes the plain way
    monkeypatch.setattr(host, "sgemm_address", lambda: None)  # a PyTorch that exports no matrix product
    monkeypatch.setattr(product_choice, "_prefers_rows", lambda: False)
    assert_paths_equal(decoder(dim), loss, shape, reciprocal=True)
    assert len(calls) == (name in ("transe-l1", "rotate-moduli"))  # which need none


@contextmanager
def set_precision(precision: str) -> Iterator[None]:
    setting = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before, setting.fp32_precision = setting.fp32_precision, precision
    try:
        yield
    finally:
        setting.fp32_precision = before


def test_products_of_other_precision_are_left_to_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    form = find_closed_form(ComplEx(8), SoftmaxLoss())
    assert form is not None
    model = make_model(ComplEx(8), SoftmaxLoss())
    batch = random_batch(8)
    index, taken = model._relations.index(batch.relation, ["head", "tail"])
    relations = model._relations.take(taken)
    given = StepInput(batch, relations, index, model._masks(batch, model._workspace()), reciprocal=False)
    assert fused_compiled.can_compile(form, given, model._workspace())
    for rounds in (True, False):  # a CPU may have units for bfloat16 that PyTorch leaves alone
        monkeypatch.setattr(products, "_rounds", lambda precision, rounds=rounds: rounds)
        assert fused_compiled.can_compile(form, given, model._workspace())
        assert not product_choice.rounds_factors()
        with product_units("bfloat16"):
            for tiles, pairs, by_blas, by_rows, rounded in (
                (False, False, 1, 1, False),
                (True, False, None, 1, False),
                (True, True, None, 1, False),  # registers of tiles are not left to others to empty
                (True, True, 1, 1, rounds),
                (False, True, 1, None, False),
                (False, True, 1, 1, True),
            ):
                monkeypatch.setattr(product_choice, "has_bfloat16_tiles", lambda has=tiles: has)
                monkeypatch.setattr(product_choice, "has_bfloat16_pairs", lambda has=pairs: has)
                monkeypatch.setattr(product_choice, "bfloat16_gemm_address", lambda found=by_blas: found)
                monkeypatch.setattr(
                    product_choice, "rows_gemm_address", lambda *, is_rounded, found=by_rows: found
                )
                assert product_choice.rounds_factors() is rounded
                compiles = fused_compiled.can_compile(form, given, model._workspace())
                assert compiles is (rounded or not rounds)
        with set_precision("tf32"):  # more than bfloat16 has
            assert fused_compiled.can_compile(form, given, model._workspace()) is not rounds


@pytest.mark.parametrize(
    "by_rows",
    [
        pytest.param(
            by_rows,
            id="onednn" if by_rows else "mkl",
            marks=pytest.mark.skipif(address is None, reason="no such product of bfloat16"),
        )
        for by_rows, address in (
            (False, bfloat16_gemm_address()),
            (True, rows_gemm_address(is_rounded=True) if host.has_bfloat16_pairs() else None),
        )
    ],
)
@pytest.mark.parametrize(
    ("decoder", "block", "loss"),
    every_second([Dot(6), DistMult(7), ComplEx(8)], [1, 3, 7], [LOSSES[0]])
    + [
        pytest.param(*one, marks=pytest.mark.slow)
        for one in itertools.product([Dot(6), DistMult(7), ComplEx(8)], [1, 3, 7], [LOSSES[4], LOSSES[7]])
    ],
)
def test_rounded_factors_are_all_that_bfloat16_changes(
    by_rows: bool, decoder: Decoder, block: int, loss: Loss, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that bfloat16 holds have the loss of float32; in gradients their weights are rounded."""
    monkeypatch.setattr(fused_loops, "block_edges", lambda *sizes, is_rounded=False: block)
    monkeypatch.setattr(product_choice, "has_bfloat16_tiles", lambda: not by_rows)
    monkeypatch.setattr(product_choice, "has_bfloat16_pairs", lambda: by_rows)
    monkeypatch.setattr(products, "_rounds", lambda precision: not by_rows)
    calls, errors = [], []
    compiled = model_module.compiled_gradients
    monkeypatch.setattr(
        model_module, "compiled_gradients", lambda *given: calls.append(0) or compiled(*given)
    )
    chunk_edges = {1: 48, 3: 35, 7: 7}[block] if by_rows else 7  # whole registers of edges are a block then
    shape = {"chunks": 5, "chunk_edges": chunk_edges, "count": 5, "drop": True}
    for groups, reciprocal in itertools.product((0, 2), (False, True)):
        batch = random_batch(decoder.dim, **shape, groups=groups)  # type: ignore[arg-type]
        batch = replace(batch, rows=(4 * batch.rows).round().clamp(-8, 8) / 8)  # products of two have 7 bits
        model = make_model(decoder, loss, reciprocal=reciprocal)
        plain = make_model(decoder, loss, reciprocal=reciprocal, fused=False)
        if not isinstance(decoder, Dot):
            arrays = model.state_arrays()
            arrays["relations"] = np.sign(arrays["relations"])
            for one in (model, plain):
                one.load_state_arrays(arrays)
        expected = gradients(plain, batch)
        with product_units("bfloat16"):
            found = gradients(model, batch)
        assert found[-1] == pytest.approx(expected[-1], rel=1e-6)
        for ours, reference in zip(found[:-1], expected[:-1], strict=True):
            size = np.abs(reference).max(initial=1e-12)
            errors.append(np.abs(np.subtract(ours, reference)).max(initial=0.0) / size)
    assert len(calls) == 4
    assert 2**-14 < max(errors) <= 2**-7  # float32 would be nearer


@pytest.mark.parametrize("name", ["transe", "transe-l1", "rotate", "rotate-moduli"])
def test_distances_are_not_rounded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "_rounds", lambda precision: True)
    monkeypatch.setattr(model_module, "fused_gradients", None)
    with product_units("bfloat16"):
        assert_paths_equal(COMPILED[name](6), SoftmaxLoss(), {"drop": True})


def test_whether_products_are_rounded_is_found_by_one() -> None:
    left, right = torch.randn(1, 100, 80), torch.randn(1, 80, 90)
    exact = torch.bmm(left, right)
    assert not products.rounds_products()
    with product_units("bfloat16"):
        error = (torch.bmm(left, right) - exact).abs().max() / exact.abs().max()
        assert products.rounds_products() == bool(error > 1e-4)


@pytest.mark.parametrize("is_rounded", [False, True])
@pytest.mark.parametrize("count", [0, 1, 100, 1000, 14_541])
@pytest.mark.parametrize("chunk_edges", [1, 5, 7, 100, 113, 1000, 1024, 1025, 5000, 10_000])
def test_blocks_of_compiled_edges_are_even(chunk_edges: int, count: int, is_rounded: bool) -> None:
    """Whole registers, within the limit, and none is a sliver."""
    block = fused_loops.block_edges(chunk_edges, count, is_rounded=is_rounded)
    number = -(-chunk_edges // block)
    lacking = number * block - chunk_edges
    assert lacking < number or (block % 16 == 0 and 2 * lacking <= block)
    limit, least = fused_loops.BLOCK_SCORES, fused_loops.LEAST_EDGES
    if is_rounded:
        limit, least = fused_loops.ROUNDED_BLOCK_SCORES, fused_loops.ROUNDED_LEAST_EDGES
    assert block * count <= max(limit, least * count)


def test_blocks_of_compiled_edges_are_whole_registers() -> None:
    sizes = [(1000, 1000), (5000, 1000), (1000, 500), (1024, 500), (1000, 14_541)]
    assert [fused_loops.block_edges(*size) for size in sizes] == [112, 112, 208, 208, 112]
    rounded = [fused_loops.block_edges(*size, is_rounded=True) for size in sizes]
    assert rounded == [80, 80, 144, 147, 64]
    assert fused_loops.block_edges(1025, 1000) == 103  # nine of 112 would leave 17


def test_sums_are_turned_where_rows_leave_registers_empty() -> None:
    turned = [dim for dim in (16, 20, 50, 64, 100, 128, 150, 200, 256) if fused_loops.turns_sums(dim)]
    assert turned == [20, 50, 100]
    assert not fused_loops.turns_sums(100, is_rounded=True)


class _Squared(ComplEx):
    """All that the closed form needs, written anew; the query is no longer a complex product."""

    similarity = "dot"

    def query(self, node: torch.Tensor, relation: torch.Tensor, side: Side) -> torch.Tensor:
        return node * node

    def compare(self, query: torch.Tensor, candidates: torch.Tensor) -> torch.Tensor:
        return torch.bmm(query, candidates.transpose(1, 2))

    def score(self, query: torch.Tensor, candidate: torch.Tensor) -> torch.Tensor:
        return (query * candidate).sum(-1)

    def query_into(self, node: torch.Tensor, relation: torch.Tensor, side: Side, out: torch.Tensor) -> None:
        torch.mul(node, node, out=out)

    def query_backward(
        self,
        node: torch.Tensor,
        relation: torch.Tensor,
        side: Side,
        gradient: torch.Tensor,
        d_node: torch.Tensor,
        d_relation: torch.Tensor,
    ) -> None:
        d_node.addcmul_(gradient, node, value=2)


def test_a_subclass_with_another_query_is_not_taken_for_its_parent() -> None:
    assert_paths_equal(_Squared(8), SoftmaxLoss(), {})


_METHODS = "query", "compare", "score", "query_into", "query_backward"


@pytest.mark.parametrize("parent", [DistMult, ComplEx, TransE, RotatE, RESCAL])
def test_the_similarity_of_a_parent_is_not_taken_for_that_of_a_comparison(
    parent: type[ClosedFormDecoder],
) -> None:
    """One class wrote all methods, but what they compare by was said above it."""
    below = type("Below", (parent,), {name: getattr(parent, name) for name in _METHODS})
    said: dict[str, object] = {"__init__": parent.__init__, "similarity": parent(8).similarity}
    again = type("Again", (below,), {**{name: getattr(parent, name) for name in _METHODS}, **said})
    for kind, expected in ((below, None), (again, parent(8).similarity)):
        decoder = kind(8)
        assert similarity_of(decoder) == expected
        assert (find_closed_form(decoder, SoftmaxLoss()) is None) is (expected is None)
    renamed = type("Renamed", (parent,), {"init_rows": parent.init_rows})(8)
    assert similarity_of(renamed) == parent(8).similarity
    assert find_closed_form(renamed, SoftmaxLoss()) is not None


class _Slower(RotatE):
    """Turns by half the phases, as its queries say and its factors do not."""

    def query(self, node: torch.Tensor, relation: torch.Tensor, side: Side) -> torch.Tensor:
        return super().query(node, relation / 2, side)

    def query_into(self, node: torch.Tensor, relation: torch.Tensor, side: Side, out: torch.Tensor) -> None:
        super().query_into(node, relation / 2, side, out)


class _DoubledFactors(ComplEx):
    def factors(self, relation: torch.Tensor) -> torch.Tensor:
        return 2 * relation


def test_factors_of_a_relation_belong_to_the_product_beside_them() -> None:
    for decoder in (_Slower(8), _DoubledFactors(8)):
        model = make_model(decoder, SoftmaxLoss())
        batch = random_batch(8)
        expected = gradients(make_model(decoder, SoftmaxLoss(), fused=False), batch)
        for ours, reference in zip(gradients(model, batch), expected, strict=True):
            np.testing.assert_allclose(ours, reference, rtol=1e-4, atol=1e-6)
    for decoder in (ComplEx(8), RotatE(8), TransE(8)):  # queries of nodes and factors, and the way back
        node, gradient = torch.randn(2, 5, 8, dtype=torch.float64)
        relation = torch.randn(5, decoder.relation_dim, dtype=torch.float64, requires_grad=True)
        factors = decoder.factors(relation)
        halves = (*node.chunk(2, 1), *factors.chunk(2, 1))
        by_product = torch.cat(
            (halves[0] * halves[2] - halves[1] * halves[3], halves[0] * halves[3] + halves[1] * halves[2]), 1
        )
        joined = node + factors if decoder.product == "sum" else by_product
        torch.testing.assert_close(decoder.query(node, relation, "tail"), joined)
        (expected_gradient,) = torch.autograd.grad(factors, relation, gradient)
        found = torch.zeros_like(relation)
        with torch.no_grad():
            decoder.factors_backward(relation, gradient, found)
        torch.testing.assert_close(found, expected_gradient)


@pytest.mark.parametrize("decoder", DECODERS, ids=lambda decoder: type(decoder).__name__)
@pytest.mark.parametrize("rates", [(0.3, 0.0), (0.0, 0.2)])
def test_dropout_of_nodes_or_relations_alone(decoder: Decoder, rates: tuple[float, float]) -> None:
    batch = random_batch(8, drop=True)
    for reciprocal in (False, True):
        found = []
        for fused in (True, False):
            model = make_model(decoder, SoftmaxLoss(), reciprocal=reciprocal, fused=fused)
            model.node_dropout, model.relation_dropout = rates
            found.append(gradients(model, batch))
        for ours, reference in zip(*found, strict=True):
            size = np.abs(reference).max(initial=1e-12)
            assert np.abs(np.subtract(ours, reference)).max(initial=0.0) <= 1e-5 * size


@pytest.mark.parametrize("limit", [1, 7, 20, 45, 10_000])
def test_blocks_do_not_change_the_result(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(fused_module.BLOCK_SCORES, "cpu", limit)
    monkeypatch.setattr(fused_module, "LEAST_EDGES", 1)
    shape = {"chunks": 5, "chunk_edges": 7, "count": 4, "drop": True, "groups": 2}
    assert_paths_equal(ComplEx(6), SoftmaxLoss(), shape, dropout=True)
    assert_paths_equal(TransE(6), LogisticLoss(1.0), shape, dropout=True, reciprocal=True)


@pytest.mark.parametrize("side", ["head", "tail"])
def test_one_corrupted_side(side: Side) -> None:
    assert_paths_equal(ComplEx(6), SoftmaxLoss(), {"sides": (side,)}, dropout=True, reciprocal=True)
    assert_paths_equal(DistMult(6), SoftmaxLoss(), {"sides": (side,)}, dropout=True, regularizers=[N3(0.1)])


def test_a_workspace_that_served_other_shapes() -> None:
    model = make_model(ComplEx(8), SoftmaxLoss())
    for chunks, nodes in ((6, 40), (2, 9), (4, 30)):
        batch = random_batch(8, chunks=chunks, nodes=nodes)
        model.load_state_arrays(make_model(ComplEx(8), SoftmaxLoss()).state_arrays())
        plain = make_model(ComplEx(8), SoftmaxLoss(), fused=False)
        for ours, reference in zip(gradients(model, batch), gradients(plain, batch), strict=True):
            np.testing.assert_allclose(ours, reference, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("compiled", [False, True])
def test_scores_that_overflow_an_exponential(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another closed form contrasts them, and not autograd, which takes several times the memory."""
    batch = random_batch(8, scale=6.0, drop=True, groups=2, weighted=True)
    plain = gradients(make_model(ComplEx(8), SoftmaxLoss(negative_weight=3.0), fused=False), batch)
    assert np.isfinite(plain[2])
    assert plain[2] > 88
    monkeypatch.setattr(model_module, "autograd_gradients", None)
    fast = gradients(make_model(ComplEx(8), SoftmaxLoss(negative_weight=3.0), compiled=compiled), batch)
    for ours, reference in zip(fast, plain, strict=True):
        size = np.abs(reference).max(initial=1e-12)
        assert np.abs(np.subtract(ours, reference)).max(initial=0.0) <= 1e-4 * size  # scores of hundreds


def test_scores_that_overflow_go_by_autograd_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = random_batch(8, scale=1e20)
    called = []
    plain = model_module.autograd_gradients
    monkeypatch.setattr(model_module, "autograd_gradients", lambda *given: called.append(0) or plain(*given))
    assert not np.isfinite(gradients(make_model(DistMult(8), SoftmaxLoss()), batch)[2])
    assert len(called) == 1


def _far_below(
    decoder: Decoder, gap: float, size: float, groups: bool = False, weighted: bool = False
) -> Batch:
    """Two edges with one negative, a row as long as `size`, that scores `gap` above them.

    Relations must leave the known node's row as it is.
    """
    rows = torch.zeros(3, decoder.dim)  # the known node, the answer, the negative
    if isinstance(decoder, TransE):
        rows[1, 0], rows[2, 1] = gap + 1, 1
    else:
        rows[0, 0], rows[2, 0] = gap / size, size
    importance = Importance(torch.zeros(1, 1, dtype=torch.int64), torch.ones(1, 2, 1)) if groups else None
    weight = torch.tensor([1.0, 0.5]) if weighted else None
    ends = torch.zeros(2, dtype=torch.int64)
    negatives = Corruption(torch.tensor([[2]]), importance=importance, edge_weight=weight)
    return Batch(rows, ends, ends, ends + 1, {"tail": negatives}, seed=0)


@pytest.mark.parametrize(
    ("decoder", "longest"),
    [
        (Dot(4), 40.0),
        (Dot(4), 0.01),
        (DistMult(4), 1e6),
        (ComplEx(4), 40.0),
        (TransE(4), 1.0),
        (TransE(4, norm="l1"), 1.0),
    ],
)
@pytest.mark.parametrize("way", ["whole", "parts", "groups", "weighted"])
def test_negatives_far_above_the_true_edge(decoder: Decoder, longest: float, way: str) -> None:
    """Weights that do not overflow yet may do so in their products with rows."""
    relations = np.zeros((NUM_RELATIONS, decoder.relation_dim), np.float32)
    relations[:, : 2 if isinstance(decoder, ComplEx) else 4] = not isinstance(decoder, TransE)
    for gap in (40.0, 54.0, 56.0, *np.arange(80.0, 90.5, 0.5)):
        batch = _far_below(decoder, gap, longest, groups=way == "groups", weighted=way == "weighted")
        found = []
        for fused, compiled in ((False, False), (True, False), (True, True)):
            model = make_model(decoder, SoftmaxLoss(), fused=fused, compiled=compiled)
            arrays = {**model.state_arrays(), "relations": relations}
            model.load_state_arrays(arrays)
            model._parts = 2 if way == "parts" else 1
            found.append(gradients(model, batch))
        assert found[0][2] == pytest.approx(gap, rel=1e-5)
        for ours, reference in ((other[i], found[0][i]) for other in found[1:] for i in range(3)):
            assert np.isfinite(reference).all()
            size = np.abs(reference).max(initial=0)
            assert np.abs(np.subtract(ours, reference)).max(initial=0) <= 1e-5 * size


@pytest.mark.parametrize("compiled", [False, True])
def test_ordinary_scores_are_computed_once(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_module, "autograd_gradients", None)
    for gap in (-90.0, 0.0, 54.0):
        batch = _far_below(Dot(4), gap, 40.0)
        d_rows, _, loss = gradients(make_model(Dot(4), SoftmaxLoss(), compiled=compiled), batch)
        assert loss == pytest.approx(max(gap, 0.0) if gap else np.log(2), abs=1e-4)
        assert np.isfinite(d_rows).all()


@pytest.mark.parametrize("name", ["distmult", "transe", "transe-l1", "rotate-moduli"])
@pytest.mark.parametrize("loss", LOSSES, ids=NAMES)
def test_compiled_loops_take_what_is_far_or_left_out(
    name: str, loss: Loss, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All negatives of an edge left out, and losses that average where a score overflows an exponential."""
    decoder = COMPILED[name](6)
    batch = random_batch(6, chunks=2, chunk_edges=3, drop=True, weighted=True)
    batch.negatives["tail"].dropped[:] = torch.arange(len(batch.negatives["tail"].dropped))
    # A softmax of scores in the thousands goes by their last bits: it gets smaller ones.
    far = replace(batch, rows=batch.rows * (8 if isinstance(loss, SoftmaxLoss) else 30))
    given = [batch] if isinstance(loss, SoftmaxLoss) and not loss.smoothing else [batch, far]
    expected = [gradients(make_model(decoder, loss, fused=False), one) for one in given]
    monkeypatch.setattr(model_module, "autograd_gradients", None)
    monkeypatch.setattr(model_module, "fused_gradients", None)
    for one, references in zip(given, expected, strict=True):
        found = gradients(make_model(decoder, loss), one)
        for ours, reference in zip(found, references, strict=True):
            size = np.abs(reference).max(initial=1e-12)
            assert np.abs(np.subtract(ours, reference)).max(initial=0.0) <= 1e-5 * size


@pytest.mark.parametrize("name", ["distmult", "transe", "transe-l1", "rotate-moduli"])
@pytest.mark.parametrize("loss", LOSSES, ids=NAMES)
@pytest.mark.parametrize("column", [0, 3])
def test_compiled_loops_hide_no_nan(
    name: str, loss: Loss, column: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a single negative that no edge has as an end; the loss then says that others must compute it."""
    decoder = COMPILED[name](6)
    batch = random_batch(6, nodes=20)
    rows = torch.cat((batch.rows, torch.zeros(1, 6)))
    rows[20, column] = np.nan
    batch.negatives["head"].nodes[1, 2] = 20
    called = []
    plain = model_module.autograd_gradients
    monkeypatch.setattr(model_module, "autograd_gradients", lambda *given: called.append(0) or plain(*given))
    assert np.isnan(gradients(make_model(decoder, loss), replace(batch, rows=rows))[2])
    assert called


@pytest.mark.parametrize("name", ["transe", "transe-l1", "rotate", "rotate-moduli"])
def test_a_query_that_meets_its_candidate(name: str) -> None:
    batch = random_batch(8, nodes=1)
    for fused in (True, False):
        model = make_model(COMPILED[name](8), SoftmaxLoss(), fused=fused)
        d_rows, d_relations, loss = gradients(model, batch)
        assert np.isfinite(loss)
        assert np.isfinite(d_rows).all()
        assert np.isfinite(d_relations).all()


class _Scaled(DistMult):
    def query(self, node: torch.Tensor, relation: torch.Tensor, side: Side) -> torch.Tensor:
        return 2 * super().query(node, relation, side)


class _Doubled(SoftmaxLoss):
    def __call__(
        self, positive: torch.Tensor, negative: torch.Tensor, keep: torch.Tensor | None
    ) -> torch.Tensor:
        return 2 * super().__call__(positive, negative, keep)


def test_subclasses_that_change_the_formula_use_autograd() -> None:
    assert find_closed_form(DistMult(4), SoftmaxLoss()) is not None
    assert find_closed_form(_Scaled(4), SoftmaxLoss()) is None
    assert find_closed_form(DistMult(4), _Doubled()) is None
    assert find_closed_form(TransE(4, norm="l1"), SoftmaxLoss(), "cuda") is None
    assert find_closed_form(RotatE(4, norm="moduli"), SoftmaxLoss(), "cuda") is None


@pytest.mark.parametrize("kind", [LogisticLoss, MarginLoss])
def test_a_subclass_of_a_loss_has_no_closed_form(kind: type[Loss]) -> None:
    class Own(kind):  # type: ignore[misc,valid-type]
        """Which may compute something else."""

    assert closed_form(kind()) is not None
    assert closed_form(Own()) is None


@pytest.mark.parametrize("temperature", [0.0, 2.0])
def test_an_edge_without_a_negative_has_the_loss_of_its_own_score(temperature: float) -> None:
    """Said in closed form, without the detour by way of a number that is not finite."""
    objective = LogisticObjective(0.0, temperature)
    scores, positive = torch.zeros(1, 2, 3), torch.zeros(1, 2, 1)
    counts = torch.tensor([[[0, 0, 0], [1, 0, 1]]], dtype=torch.int8)
    losses = objective.weigh(scores, counts, None, torch.empty_like(scores))
    assert losses is not None
    kept = counts.sum(-1, keepdim=True) if objective.averages else None
    loss, factor, _ = objective.reduce(positive, scores.sum(-1, keepdim=True), losses[..., None], kept)
    torch.testing.assert_close(loss, torch.tensor([[[1.0], [2.0]]]) * np.log(2))
    assert torch.isfinite(factor).all()
    assert not scores[0, 0].any()


def test_a_smoothed_loss_is_finite_however_far_below_negatives_are() -> None:
    scores = torch.full((1, 2, 3), -200.0)
    loss = SmoothedObjective(0.0, 0.1).weigh(scores, None, None, torch.empty_like(scores))
    torch.testing.assert_close(loss, torch.full((1, 2), 0.1 / 4 * 600))
    torch.testing.assert_close(scores, torch.full((1, 2, 3), -0.1 / 4))


def test_different_chunks_on_the_two_sides() -> None:
    head, tail = random_batch(8, chunks=3, chunk_edges=4), random_batch(8, chunks=2, chunk_edges=6, seed=1)
    batch = type(head)(
        **{name: getattr(head, name) for name in ("rows", "head", "relation", "tail", "seed")},
        negatives={"head": head.negatives["head"], "tail": tail.negatives["tail"]},
    )
    fast = gradients(make_model(DistMult(8), SoftmaxLoss()), batch)
    plain = gradients(make_model(DistMult(8), SoftmaxLoss(), fused=False), batch)
    np.testing.assert_array_equal(fast[0], plain[0])


@pytest.mark.parametrize("limit", [7, 10_000])
def test_different_counts_on_the_two_sides(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(fused_module.BLOCK_SCORES, "cpu", limit)
    monkeypatch.setattr(fused_module, "LEAST_EDGES", 1)
    head, tail = random_batch(8, count=3, drop=True), random_batch(8, count=11, drop=True)
    batch = replace(head, negatives={"head": head.negatives["head"], "tail": tail.negatives["tail"]})
    fast = gradients(make_model(ComplEx(8), SoftmaxLoss(), dropout=True), batch)
    plain = gradients(make_model(ComplEx(8), SoftmaxLoss(), dropout=True, fused=False), batch)
    for ours, reference in zip(fast, plain, strict=True):
        np.testing.assert_allclose(ours, reference, rtol=1e-4, atol=1e-5)


def test_blocks_keep_enough_edges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(fused_module.BLOCK_SCORES, "cpu", 10)
    monkeypatch.setattr(fused_module, "LEAST_EDGES", 3)
    shape = {"chunks": 2, "chunk_edges": 7, "count": 9, "drop": True}
    assert_paths_equal(ComplEx(6), SoftmaxLoss(), shape, dropout=True)
    contrast = SimpleNamespace(num_chunks=2, chunk_edges=7, count=9)
    groups, blocks = fused_module.divide([contrast], "cpu")  # type: ignore[list-item]
    assert groups == [slice(0, 1), slice(1, 2)]
    assert blocks == [slice(0, 3), slice(3, 6), slice(6, 7)]
