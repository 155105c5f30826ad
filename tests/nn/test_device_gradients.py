"""The device's way through a batch, walked on the CPU: equal to the blocked closed form and to autograd."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from marius_py.nn import (
    L2,
    N3,
    RESCAL,
    SGD,
    Adagrad,
    AdagradRow,
    Adam,
    ComplEx,
    Decoder,
    DistMult,
    Dot,
    LinkPredictionModel,
    LogisticLoss,
    Loss,
    MarginLoss,
    Regularizer,
    RotatE,
    SoftmaxLoss,
    SparseOptimizer,
    TransE,
    cuda_gradients,
    cuda_kernels,
    relation_rows,
)
from marius_py.nn import model as model_module
from marius_py.nn.batch import Corruption, Importance
from marius_py.nn.cuda_kernels import TorchKernels, step_rows
from marius_py.nn.known_answers import AnswerTables
from tests.every_second import every_second
from tests.nn.batches import NUM_RELATIONS, gradients, random_batch

REGULARIZERS: list[list[Regularizer]] = [[], [N3(0.1), L2(0.2, relation_weight=0.3, weighted=False)]]


def make(
    decoder: Decoder,
    loss: Loss,
    *,
    kernels: str,
    optimizer: SparseOptimizer | None = None,
    reciprocal: bool = False,
    dropout: bool = False,
    regularizers: Sequence[Regularizer] = (),
    fused: bool = True,
) -> LinkPredictionModel:
    return LinkPredictionModel(
        decoder,
        loss,
        SGD(1.0) if optimizer is None else optimizer,
        num_relations=NUM_RELATIONS,
        reciprocal=reciprocal,
        node_dropout=0.3 if dropout else 0.0,
        relation_dropout=0.2 if dropout else 0.0,
        regularizers=regularizers,
        kernels=kernels,
        fused=fused,
    )


def weighted(batch: Any) -> Any:
    """The batch with weights of its negatives."""
    rng = torch.Generator().manual_seed(1)
    negatives = {}
    for side, one in batch.negatives.items():
        chunks, count = one.nodes.shape
        group = torch.randint(0, 3, (chunks, count), generator=rng)
        weight = torch.rand(chunks, len(batch.head) // chunks, 3, generator=rng) + 0.5
        negatives[side] = replace(one, importance=Importance(group, weight))
    return replace(batch, negatives=negatives)


def assert_close(found: Any, wanted: Any, tolerance: float = 1e-5) -> None:
    for ours, reference in zip(found, wanted, strict=True):
        size = np.abs(reference).max(initial=1e-12)
        assert np.abs(np.subtract(ours, reference)).max(initial=0.0) <= tolerance * size


@pytest.mark.parametrize(
    "decoder", [Dot(8), DistMult(8), ComplEx(8), RESCAL(8)], ids=lambda d: type(d).__name__
)
@pytest.mark.parametrize(
    "loss",
    [SoftmaxLoss(), SoftmaxLoss(negative_weight=20.0), LogisticLoss(2.0)],
    ids=["softmax", "weighted", "logistic"],
)
def test_equal_to_autograd(decoder: Decoder, loss: Loss) -> None:
    flags = (False, True)
    for reciprocal, dropout, drop, regularizers in itertools.product(flags, flags, flags, REGULARIZERS):
        options: dict[str, Any] = {
            "reciprocal": reciprocal,
            "dropout": dropout,
            "regularizers": regularizers,
        }
        batch = weighted(random_batch(8, drop=drop))
        found = gradients(make(decoder, loss, kernels="torch", **options), batch)
        assert_close(found, gradients(make(decoder, loss, kernels="auto", fused=False, **options), batch))


@pytest.mark.parametrize("kernels", ["torch", "auto"])
def test_equal_whatever_torchs_default_dtype_is(kernels: str) -> None:
    batch = random_batch(8, drop=True)
    models = [make(ComplEx(8), LogisticLoss(2.0), kernels=kernels, regularizers=[N3(0.1)]) for _ in range(2)]
    wanted = gradients(models[0], batch)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        found = gradients(models[1], batch)
    finally:
        torch.set_default_dtype(before)
    assert_close(found, wanted, tolerance=0)


@pytest.mark.parametrize(
    ("decoder", "reciprocal"), every_second([ComplEx(12), DistMult(12), Dot(12)], [False, True])
)
def test_triton_equals_the_blocked_closed_form(decoder: Decoder, reciprocal: bool) -> None:
    pytest.importorskip("triton", reason="Triton is not installed (extra marius_py[kernels])")
    batch = weighted(random_batch(12, drop=True, chunks=2, chunk_edges=20, count=18))
    for loss, dropout in itertools.product((SoftmaxLoss(), LogisticLoss()), (False, True)):
        found, plain = (
            gradients(make(decoder, loss, kernels=kernels, dropout=dropout, reciprocal=reciprocal), batch)
            for kernels in ("triton", "auto")
        )
        assert_close(found, plain)


@pytest.mark.parametrize("regularizers", REGULARIZERS, ids=["", "penalties"])
@pytest.mark.parametrize(
    "optimizer", [Adagrad(0.1), AdagradRow(0.1), Adam(0.1)], ids=lambda o: type(o).__name__
)
@pytest.mark.parametrize(
    "decoder",
    [Dot(8), DistMult(8), ComplEx(8), RESCAL(8), TransE(8), RotatE(8)],
    ids=lambda d: type(d).__name__,
)
def test_relations_change_under_triton_as_on_the_host(
    decoder: Decoder, optimizer: SparseOptimizer, regularizers: list[Regularizer]
) -> None:
    """Dot has none to change: its rows are empty."""
    pytest.importorskip("triton", reason="Triton is not installed (extra marius_py[kernels])")
    batch = random_batch(8)
    ours, host = (
        make(decoder, SoftmaxLoss(), kernels=kernels, optimizer=optimizer, regularizers=regularizers)
        for kernels in ("triton", "auto")
    )
    for _ in range(2):
        assert_close(*([one.gradients(batch).rows.numpy()] for one in (ours, host)))
    for name, wanted in host.state_arrays().items():
        np.testing.assert_allclose(ours.state_arrays()[name], wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("kernels", "fused"), [("torch", True), ("auto", False)])
def test_a_penalty_that_is_no_number_at_rows_without_one(kernels: str, fused: bool) -> None:
    """The norm has no gradient at zero, where rows may be that negatives alone name."""

    class Norm(Regularizer):
        def penalty(self, rows: torch.Tensor, complex_halves: bool) -> torch.Tensor:
            return rows.square().sum(1).sqrt()

    batch = random_batch(8)
    batch = replace(batch, rows=torch.cat((batch.rows, torch.zeros(3, 8))))
    options: dict[str, Any] = {"regularizers": [Norm(0.1, 0.0)]}
    found = gradients(make(ComplEx(8), SoftmaxLoss(), kernels=kernels, fused=fused, **options), batch)
    wanted = gradients(make(ComplEx(8), SoftmaxLoss(), kernels="auto", **options), batch)
    assert np.isfinite(found[0]).all()
    assert_close(found, wanted)


@pytest.mark.parametrize(("kernels", "parts"), every_second(["auto", "torch", "triton"], [1, 2, 7]))
@pytest.mark.parametrize(
    ("decoder", "loss"),
    [(ComplEx(8), SoftmaxLoss()), (Dot(8), LogisticLoss(2.0)), (TransE(8), SoftmaxLoss())],
    ids=["complex", "logistic", "transe"],
)
def test_known_edges_that_are_yet_to_be_found_do_not_count(
    decoder: Decoder, loss: Loss, kernels: str, parts: int
) -> None:
    """Whatever computes the batch, at once or in parts, with and without closed form."""
    batch = random_batch(8, chunk_edges=16, count=7)
    edges = torch.stack((batch.head, batch.relation, batch.tail), 1)
    tables = AnswerTables(20, NUM_RELATIONS, torch.device("cpu"))
    rng = np.random.default_rng(0)
    others = np.stack([rng.integers(0, size, 300) for size in (20, NUM_RELATIONS, 20)], 1)
    tables.hold(np.concatenate((others, edges.numpy())))
    sides = {}
    for side, one in batch.negatives.items():
        nodes = one.nodes.sort(1).values
        known = tables.answers(side, batch.head if side == "tail" else batch.tail, batch.relation, nodes)
        sides[side] = Corruption(nodes, known=known)
    to_find = replace(batch, negatives=sides)
    listed = {
        side: Corruption(one.nodes, dropped=(~one.known.mask()).view(-1).nonzero().view(-1))
        for side, one in sides.items()
        if one.known is not None
    }
    for fused in (True, False):
        found, wanted, of_all = (
            gradients(in_parts(make(decoder, loss, kernels=kernels, fused=fused), parts), one)
            for one in (to_find, replace(batch, negatives=listed), batch)
        )
        # Of distances, those that are listed go through compiled loops and the others do not.
        assert_close(found, wanted, 1e-5 if isinstance(decoder, TransE) else 1e-6)
        assert abs(found[2] - of_all[2]) > 0.01


def in_parts(model: LinkPredictionModel, parts: int) -> LinkPredictionModel:
    """The model as it is once memory was too little for a batch at once."""
    model._parts = parts
    return model


def test_products_of_rows_take_few_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="Triton is not installed (extra marius_py[kernels])")

    def never(*arguments: Any) -> None:
        raise AssertionError("the way of any decoder was taken")

    monkeypatch.setattr(cuda_gradients, "_any_decoder", never)
    batch = random_batch(8)
    for decoder in (ComplEx(8), DistMult(8)):
        gradients(make(decoder, SoftmaxLoss(), kernels="triton"), batch)
    for decoder, options in ((Dot(8), {}), (ComplEx(8), {"dropout": True})):
        with pytest.raises(AssertionError, match="the way of any decoder"):
            gradients(make(decoder, SoftmaxLoss(), kernels="triton", **options), batch)


def test_what_the_kernels_do_not_know_goes_another_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*arguments: Any) -> None:
        raise AssertionError("the device's way was taken")

    monkeypatch.setattr(model_module, "device_gradients", never)
    batch = random_batch(8)
    for decoder, loss in ((TransE(8), SoftmaxLoss()), (ComplEx(8), MarginLoss())):
        found = gradients(make(decoder, loss, kernels="torch"), batch)
        assert_close(found, gradients(make(decoder, loss, kernels="auto"), batch))
    with pytest.raises(AssertionError, match="the device's way"):
        gradients(make(ComplEx(8), SoftmaxLoss(), kernels="torch"), batch)


@pytest.mark.parametrize("reciprocal", [False, True])
def test_relations_of_other_batches_stay_as_they_are(reciprocal: bool) -> None:
    batch = random_batch(8)
    batch.relation[:] = torch.where(batch.relation == 1, 2, batch.relation)
    models = [
        make(ComplEx(8), SoftmaxLoss(), kernels=kernels, optimizer=Adam(0.1), reciprocal=reciprocal)
        for kernels in ("torch", "auto")
    ]
    for model in models:
        before = model.state_arrays()["relations"]
        for _ in range(2):
            model.gradients(batch)
        after = model.state_arrays()
        unused = [1, 1 + NUM_RELATIONS] if reciprocal else [1]
        np.testing.assert_array_equal(after["relations"][unused], before[unused])
        assert not after["relation_state"][unused].any()
    for name, value in models[0].state_arrays().items():
        np.testing.assert_allclose(value, models[1].state_arrays()[name], rtol=1e-4, atol=1e-6)


def test_many_relations_are_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = random_batch(8)
    wanted = gradients(make(ComplEx(8), SoftmaxLoss(), kernels="torch"), batch)
    monkeypatch.setattr(relation_rows, "DENSE_RELATIONS", 2)
    assert_close(gradients(make(ComplEx(8), SoftmaxLoss(), kernels="torch"), batch), wanted)


def test_scores_that_overflow_elsewhere_stay_finite() -> None:
    batch = random_batch(8, scale=30.0)
    found = gradients(make(ComplEx(8), SoftmaxLoss(), kernels="torch"), batch)
    wanted = gradients(make(ComplEx(8), SoftmaxLoss(), kernels="auto"), batch)
    assert np.isfinite(found[2])
    assert_close(found, wanted, 1e-4)


@pytest.mark.parametrize("optimizer", [SGD(0.1), Adagrad(0.1), AdagradRow(0.1), Adam(0.1)])
@pytest.mark.parametrize("count", [None, 5])
def test_steps_in_place_equal_deltas(optimizer: SparseOptimizer, count: int | None) -> None:
    rng = torch.Generator().manual_seed(2)
    rows, state = torch.randn(20, 6, generator=rng), torch.rand(20, optimizer.state_dim(6), generator=rng)
    index, gradient = torch.randperm(20, generator=rng)[:9], torch.randn(9, 6, generator=rng)
    used = index[:count]
    d_rows, d_state = optimizer.delta(rows[used], state[used], gradient[:count])
    wanted_rows = rows.index_add(0, used, d_rows * 0.5)
    wanted_state = state.index_add(0, used, d_state)
    number = None if count is None else torch.tensor(count)
    step_rows(TorchKernels(), optimizer, rows, state, index, gradient, count=number, rate=0.5)
    assert torch.equal(rows, wanted_rows)
    assert torch.equal(state, wanted_state)


def test_modules_load_without_triton() -> None:
    assert "triton" not in vars(cuda_kernels)
    assert "triton" not in vars(cuda_gradients)
