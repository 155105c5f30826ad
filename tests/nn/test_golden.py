"""Losses after five steps from fixed seeds: a change of numerics must be seen and meant."""

from __future__ import annotations

import pytest

from marius_py.nn import (
    Adagrad,
    ComplEx,
    Decoder,
    DistMult,
    Dot,
    LogisticLoss,
    Loss,
    MarginLoss,
    RotatE,
    SoftmaxLoss,
    TransE,
)
from marius_py.nn.registry import DECODERS, LOSSES
from tests.nn.batches import make_model, random_batch

GOLDEN_DECODERS: dict[str, Decoder] = {
    "dot": Dot(8),
    "distmult": DistMult(8),
    "complex": ComplEx(8),
    "transe": TransE(8),
    "transe-l1": TransE(8, norm="l1"),
    "rotate": RotatE(8),
    "rotate-moduli": RotatE(8, norm="moduli"),
}
GOLDEN_LOSSES: dict[str, Loss] = {
    "softmax": SoftmaxLoss(),
    "logistic": LogisticLoss(margin=1.0),
    "margin": MarginLoss(adversarial_temperature=1.0),
}
GOLDEN_VALUES: dict[tuple[str, str], tuple[float, float]] = {
    ("dot", "softmax"): (2.252503, 1.373473),
    ("dot", "logistic"): (2.778154, 2.618369),
    ("dot", "margin"): (0.944309, 0.715490),
    ("distmult", "softmax"): (2.446447, 1.604431),
    ("distmult", "logistic"): (2.775854, 2.425730),
    ("distmult", "margin"): (0.713356, 0.887100),
    ("complex", "softmax"): (2.220625, 1.380584),
    ("complex", "logistic"): (2.697455, 2.280806),
    ("complex", "margin"): (0.612392, 0.694847),
    ("transe", "softmax"): (2.318789, 1.453104),
    ("transe", "logistic"): (2.082756, 2.147959),
    ("transe", "margin"): (0.621343, 0.650879),
    ("transe-l1", "softmax"): (1.581372, 1.091626),
    ("transe-l1", "logistic"): (2.022173, 2.900842),
    ("transe-l1", "margin"): (0.358239, 0.605778),
    ("rotate", "softmax"): (2.381278, 1.462883),
    ("rotate", "logistic"): (2.075247, 2.099412),
    ("rotate", "margin"): (0.670384, 0.590857),
    ("rotate-moduli", "softmax"): (1.869464, 1.132109),
    ("rotate-moduli", "logistic"): (1.946063, 2.163184),
    ("rotate-moduli", "margin"): (0.500646, 0.518586),
}


def golden_loss(decoder: Decoder, loss: Loss, *, rich: bool) -> float:
    """Loss of the 5th of five steps on one batch; rich: with dropout, masks and reciprocal relations."""
    model = make_model(decoder, loss, optimizer=Adagrad(0.1), reciprocal=rich, dropout=rich)
    batch = random_batch(decoder.dim, state_dim=decoder.dim, scale=0.3, keep=rich)
    value = 0.0
    for _ in range(5):
        update = model.step(batch)
        batch.rows.add_(update.d_rows)
        batch.state.add_(update.d_state)
        value = float(update.loss)
    return value


def test_golden_values_cover_the_registries() -> None:
    assert {type(decoder) for decoder in GOLDEN_DECODERS.values()} == set(DECODERS.values())
    assert {type(loss) for loss in GOLDEN_LOSSES.values()} == set(LOSSES.values())
    assert set(GOLDEN_VALUES) == {(decoder, loss) for decoder in GOLDEN_DECODERS for loss in GOLDEN_LOSSES}


@pytest.mark.parametrize(("decoder", "loss"), GOLDEN_VALUES)
def test_golden_losses(decoder: str, loss: str) -> None:
    parts = GOLDEN_DECODERS[decoder], GOLDEN_LOSSES[loss]
    found = golden_loss(*parts, rich=False), golden_loss(*parts, rich=True)
    assert found == pytest.approx(GOLDEN_VALUES[decoder, loss], rel=1e-3)
