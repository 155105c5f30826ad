"""Regularizers: gradients, and how often a row counts."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from marius_py.nn import L2, N3, DistMult, Regularizer, SoftmaxLoss
from tests.nn.batches import gradients, make_model, random_batch


@pytest.mark.parametrize("kind", [L2, N3])
@pytest.mark.parametrize("complex_halves", [False, True])
def test_regularizers_know_their_gradient(kind: type[Regularizer], complex_halves: bool) -> None:
    regularizer = kind(1.0)
    rows = torch.randn(5, 6)
    rows[0] = 0
    closed = regularizer.gradient(rows, complex_halves)
    torch.testing.assert_close(closed, Regularizer.gradient(regularizer, rows, complex_halves))


def test_weighted_regularizers_count_occurrences() -> None:
    batch = random_batch(4)
    before = gradients(make_model(DistMult(4), SoftmaxLoss()), batch)
    for weighted in (True, False):
        regularizer = L2(0.5, relation_weight=0.25, weighted=weighted)
        after = gradients(make_model(DistMult(4), SoftmaxLoss(), regularizers=[regularizer]), batch)
        ends = torch.cat((batch.head, batch.tail))
        counts = torch.bincount(ends, minlength=20).float()
        counts = counts if weighted else counts.clamp(max=1)
        expected = batch.rows * counts.unsqueeze(1) * 2 * 0.5 / len(batch.head)
        np.testing.assert_allclose(after[0] - before[0], expected.numpy(), atol=1e-5)
        assert after[2] == pytest.approx(before[2])
    moduli = N3(1.0).penalty(torch.tensor([[3.0, 0.0, 4.0, 1.0]]), complex_halves=True)
    assert float(moduli) == pytest.approx(126)
