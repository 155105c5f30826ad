"""Losses after five steps from fixed seeds: a change of numerics must be seen and meant."""

from __future__ import annotations

import pytest

from marius_py.nn import (
    RESCAL,
    SGD,
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
from tests.nn.batches import make_model, random_batch, step, untrained

GOLDEN_DECODERS: dict[str, Decoder] = {
    "dot": Dot(8),
    "distmult": DistMult(8),
    "complex": ComplEx(8),
    "transe": TransE(8),
    "transe-l1": TransE(8, norm="l1"),
    "rotate": RotatE(8),
    "rotate-moduli": RotatE(8, norm="moduli"),
    "rescal": RESCAL(8),
}
GOLDEN_LOSSES: dict[str, Loss] = {
    "softmax": SoftmaxLoss(),
    "logistic": LogisticLoss(margin=1.0),
    "margin": MarginLoss(adversarial_temperature=1.0),
}
GOLDEN_VALUES: dict[tuple[str, str], tuple[float, float]] = {
    ("dot", "softmax"): (2.252502, 1.527989),
    ("dot", "logistic"): (2.778154, 2.682226),
    ("dot", "margin"): (0.944309, 0.809894),
    ("distmult", "softmax"): (2.446447, 1.486777),
    ("distmult", "logistic"): (2.775854, 2.335997),
    ("distmult", "margin"): (0.713356, 0.719613),
    ("complex", "softmax"): (2.220625, 1.404478),
    ("complex", "logistic"): (2.697455, 2.321395),
    ("complex", "margin"): (0.612392, 0.699746),
    ("transe", "softmax"): (2.318788, 1.238319),
    ("transe", "logistic"): (2.082756, 2.025173),
    ("transe", "margin"): (0.621343, 0.411849),
    ("transe-l1", "softmax"): (2.656753, 1.650383),
    ("transe-l1", "logistic"): (2.446681, 3.359847),
    ("transe-l1", "margin"): (1.108029, 1.002316),
    ("rotate", "softmax"): (2.381278, 1.470607),
    ("rotate", "logistic"): (2.075247, 2.078506),
    ("rotate", "margin"): (0.670384, 0.558312),
    ("rotate-moduli", "softmax"): (1.869464, 1.080520),
    ("rotate-moduli", "logistic"): (1.946063, 2.106677),
    ("rotate-moduli", "margin"): (0.500646, 0.369176),
    ("rescal", "softmax"): (1.068464, 0.344619),
    ("rescal", "logistic"): (2.046764, 1.008542),
    ("rescal", "margin"): (0.217397, 0.023739),
}


def golden_loss(decoder: Decoder, loss: Loss, *, rich: bool) -> float:
    """Loss of the 5th of five steps on one batch; rich: with dropout, masks and reciprocal relations."""
    # The slope of |x| jumps, so that many gradients are sums of equal parts: their last bits, others on each
    # kind of processor, decide which way Adagrad's first step goes.
    is_l1 = isinstance(decoder, TransE) and decoder.norm == "l1"
    optimizer = SGD(0.2) if is_l1 else Adagrad(0.1)
    model = make_model(decoder, loss, optimizer=optimizer, reciprocal=rich, dropout=rich)
    batch = random_batch(decoder.dim, scale=0.3, drop=rich)
    state = untrained(model, batch)
    value = 0.0
    for _ in range(5):
        update = step(model, batch, state)
        batch.rows.add_(update.d_rows)
        state.add_(update.d_state)
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
