"""Regularizers: gradients, and how often a row counts."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from marius_py.errors import ConfigError
from marius_py.nn import L2, N3, ComplEx, DistMult, Regularizer, SoftmaxLoss
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
        relations = make_model(DistMult(4), SoftmaxLoss()).state_arrays()["relations"]
        counts = torch.bincount(batch.relation, minlength=len(relations))
        counts = counts if weighted else counts.clamp(max=1)
        expected = relations * counts[:, None].numpy() * 2 * 0.25 / len(batch.head)
        np.testing.assert_allclose(after[1] - before[1], expected, atol=1e-5)
        assert after[2] == pytest.approx(before[2])
    moduli = N3(1.0).penalty(torch.tensor([[3.0, 0.0, 4.0, 1.0]]), complex_halves=True)
    assert float(moduli) == pytest.approx(126)


def test_weights_by_default_and_refused_ones() -> None:
    assert (N3(0.5).relation_weight, N3(0.5, 0.0).relation_weight, N3(0.0, 0.5).weight) == (0.5, 0, 0)
    assert L2(0.5).weighted
    for weight in (-0.5, math.inf, math.nan):
        with pytest.raises(ConfigError, match="regularizer weight"):
            L2(weight)
        with pytest.raises(ConfigError, match="regularizer relation_weight"):
            L2(0.5, weight)


class Doubled(N3):
    """Not what the compiled loop computes."""

    def gradient(self, rows: torch.Tensor, complex_halves: bool) -> torch.Tensor:
        return super().gradient(rows, complex_halves) * 2


class HalfL2(L2):
    """Half of the squared norm."""

    def penalty(self, rows: torch.Tensor, complex_halves: bool) -> torch.Tensor:
        return super().penalty(rows, complex_halves) / 2


class HalfN3(N3):
    """Half of the nuclear 3-norm."""

    def penalty(self, rows: torch.Tensor, complex_halves: bool) -> torch.Tensor:
        return super().penalty(rows, complex_halves) / 2


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("kind", [HalfL2, HalfN3])
def test_a_penalty_that_is_written_anew_has_a_gradient_of_its_own(
    kind: type[Regularizer], compiled: bool
) -> None:
    """The closed form of the class above is that of another penalty."""
    batch = random_batch(4)
    fused, reference = (
        gradients(
            make_model(ComplEx(4), SoftmaxLoss(), regularizers=[kind(1.0)], fused=fused, compiled=compiled),
            batch,
        )
        for fused in (True, False)
    )
    for mine, expected in zip(fused[:2], reference[:2], strict=True):
        np.testing.assert_allclose(mine, expected, atol=1e-5)


@pytest.mark.parametrize("padding", [0, 3])
@pytest.mark.parametrize("which", [torch.tensor([7, 2, 3]), slice(0, 9), slice(2, 5)])
@pytest.mark.parametrize("complex_halves", [False, True])
@pytest.mark.parametrize("kind", [N3, Doubled])
def test_compiled_gradients_are_added_as_plain_ones(
    kind: type[N3], complex_halves: bool, which: torch.Tensor | slice, padding: int
) -> None:
    """Into the first columns of wider arrays too; other rows and columns stay."""
    rng = torch.Generator().manual_seed(0)
    rows, factors = torch.randn(9, 38, generator=rng), torch.rand(9, generator=rng)
    rows[3] = 0
    before = torch.randn(9, 38 + padding, generator=rng)
    found = []
    for compiled in (True, False):
        regularizer, wide = kind(1.0), before.clone()
        regularizer.compiled = compiled
        regularizer.add_gradient(rows, complex_halves, factors, wide[:, :38], which)
        found.append(wide)
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-6)
    changed = (found[0] != before).any(1)
    expected = torch.zeros(9, dtype=torch.bool)
    expected[which] = True
    expected[3] = False
    assert torch.equal(changed, expected)
    assert torch.equal(found[0][:, 38:], before[:, 38:])


def test_arrays_that_no_loop_can_change_are_left_to_pytorch() -> None:
    """Columns of a turned array: a copy of them would be changed instead."""
    rows, factors, out = torch.randn(5, 4), torch.ones(5), torch.zeros(4, 5).T
    N3(1.0).add_gradient(rows, True, factors, out, torch.tensor([1]))
    torch.testing.assert_close(out[1], N3(1.0).gradient(rows[1:2], True)[0])
