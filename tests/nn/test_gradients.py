"""Gradients of every decoder against differences of the loss."""

from __future__ import annotations

import pytest
import torch

from marius_py.nn import LinkPredictionModel
from marius_py.nn.registry import DECODERS, LOSSES
from tests.nn.batches import gradients, make_model, random_batch


def finite_difference(model: LinkPredictionModel, batch_seed: int) -> None:
    batch = random_batch(model.dim, seed=batch_seed, scale=0.5)
    relations = model.state_arrays()
    d_rows, _, _ = gradients(model, batch)
    direction = torch.randn(batch.rows.shape, generator=torch.Generator().manual_seed(1))
    values = []
    for sign in (1, -1):
        model.load_state_arrays(relations)
        moved = random_batch(model.dim, seed=batch_seed, scale=0.5)
        moved.rows.add_(direction, alpha=sign * 1e-2)
        values.append(float(model.gradients(moved).loss))
    slope = (values[0] - values[1]) / 2e-2
    assert slope == pytest.approx(float((torch.from_numpy(d_rows) * direction).sum()), rel=2e-2, abs=2e-3)


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("loss", ["softmax", "logistic"])
def test_gradient_is_the_slope_of_the_loss(name: str, loss: str) -> None:
    finite_difference(make_model(DECODERS[name](8), LOSSES[loss]()), batch_seed=4)
