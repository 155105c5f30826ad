"""Sparse row optimizers against dense ones of torch, row by row."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from marius_py.errors import ConfigError
from marius_py.nn import SGD, Adagrad, AdagradRow, Adam, SparseOptimizer, optimizers
from marius_py.nn.registry import OPTIMIZERS

ALL: list[SparseOptimizer] = [SGD(0.1), Adagrad(0.1), AdagradRow(0.1), Adam(0.1)]


def test_every_registered_optimizer_is_tested() -> None:
    assert {type(optimizer) for optimizer in ALL} == set(OPTIMIZERS.values())


def train(optimizer: SparseOptimizer, gradients: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    """Rows (U, D) after steps with gradients (T, U, D), of which each step sees the rows seen (T, U)."""
    steps, count, dim = gradients.shape
    rows = torch.ones(count, dim)
    initial = np.empty((count, optimizer.state_dim(dim)), np.float32)
    optimizer.init_state(initial)
    state = torch.from_numpy(initial)
    for step in range(steps):
        mine = seen[step]
        before = rows[mine].clone(), state[mine].clone()
        d_rows, d_state = optimizer.delta(rows[mine], state[mine], gradients[step][mine])
        torch.testing.assert_close(before, (rows[mine], state[mine]), rtol=0, atol=0)
        rows[mine] += d_rows
        state[mine] += d_state
    return rows


@pytest.mark.parametrize("compiled", [False, True])
def test_adam_forgets_moments_that_were_much_larger(compiled: bool) -> None:
    """Where nothing of the past counts a step is as long as the rate, however large the past was."""
    optimizer = Adam(0.01, beta1=0.0, beta2=0.0, eps=1e-10)
    optimizer.compiled = compiled
    rows, state, index = torch.zeros(1, 3), torch.zeros(1, 7), torch.tensor([0])
    for size in (100.0, 1e-3, 1e-5):
        before = rows.clone()
        optimizer.step(rows, state, index, torch.full((1, 3), size))
        torch.testing.assert_close(before - rows, torch.full((1, 3), 0.01), rtol=1e-4, atol=0)


class Halved(Adam):
    """Not what the compiled loop computes."""

    def delta(
        self, rows: torch.Tensor, state: torch.Tensor, gradient: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        d_rows, d_state = super().delta(rows, state, gradient)
        return d_rows / 2, d_state


@pytest.mark.parametrize("optimizer", [*ALL, Halved(0.1)], ids=lambda optimizer: type(optimizer).__name__)
@pytest.mark.parametrize("rate", [1.0, 0.3])
def test_a_step_adds_the_deltas_of_its_rows(
    optimizer: SparseOptimizer, rate: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optimizers, "_BLOCK_FLOATS", (6, 6))  # blocks of three rows, the last one of one
    rows, index = torch.randn(12, 4), torch.tensor([2, 0, 5, 11, 7, 3, 8])
    initial = np.empty((12, optimizer.state_dim(4)), np.float32)
    optimizer.init_state(initial)
    state, gradient = torch.from_numpy(initial), torch.randn(7, 4)
    expected_rows, expected_state = rows.clone(), state.clone()
    d_rows, d_state = optimizer.delta(rows[index], state[index], gradient)
    expected_rows[index] += d_rows * rate
    expected_state[index] += d_state
    optimizer.step(rows, state, index, gradient, rate)
    torch.testing.assert_close(rows, expected_rows)
    torch.testing.assert_close(state, expected_state)


def reference(optimizer: SparseOptimizer, gradients: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    """The same by torch's own optimizers, one for each row, which counts only its own steps."""
    steps, count, dim = gradients.shape
    result = []
    for row in range(count):
        leaf = torch.ones(dim, requires_grad=True)
        dense: torch.optim.Optimizer
        if isinstance(optimizer, Adam):
            dense = torch.optim.Adam([leaf], lr=optimizer.lr, eps=optimizer.eps)
        elif isinstance(optimizer, Adagrad):
            dense = torch.optim.Adagrad([leaf], lr=optimizer.lr, eps=optimizer.eps)
        else:
            dense = torch.optim.SGD([leaf], lr=optimizer.lr)
        for step in range(steps):
            if seen[step, row]:
                leaf.grad = gradients[step, row].clone()
                dense.step()
        result.append(leaf.detach())
    return torch.stack(result)


@pytest.mark.parametrize("optimizer", [SGD(0.1), Adagrad(0.1), Adam(0.1)], ids=lambda o: type(o).__name__)
def test_equal_to_torch(optimizer: SparseOptimizer) -> None:
    generator = torch.Generator().manual_seed(0)
    gradients = torch.randn(12, 5, 4, generator=generator)
    seen = torch.rand(12, 5, generator=generator) < 0.6
    torch.testing.assert_close(
        train(optimizer, gradients, seen), reference(optimizer, gradients, seen), rtol=1e-4, atol=1e-5
    )


def test_row_wise_adagrad_shares_one_sum_a_row() -> None:
    rows = train(
        AdagradRow(0.1, eps=0.0),
        torch.tensor([[[3.0, 4.0]], [[0.0, 5.0]]]),
        torch.ones(2, 1, dtype=torch.bool),
    )
    first = 12.5**0.5
    second = 25.0**0.5
    expected = [1 - 0.1 * 3 / first, 1 - 0.1 * 4 / first - 0.1 * 5 / second]
    torch.testing.assert_close(rows[0], torch.tensor(expected))


@pytest.mark.parametrize("optimizer", ALL, ids=lambda o: type(o).__name__)
def test_zero_gradient_of_a_new_row_moves_nothing(optimizer: SparseOptimizer) -> None:
    rows = train(optimizer, torch.zeros(2, 3, 4), torch.ones(2, 3, dtype=torch.bool))
    torch.testing.assert_close(rows, torch.ones(3, 4))


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize(
    "optimizer", [Adagrad(eps=0), AdagradRow(eps=0), Adam(eps=0)], ids=lambda o: type(o).__name__
)
def test_nor_does_one_where_nothing_is_added_to_the_root(optimizer: SparseOptimizer, compiled: bool) -> None:
    rows, state = torch.ones(3, 4), torch.zeros(3, optimizer.state_dim(4))
    assert not optimizer.delta(rows, state, torch.zeros(3, 4))[0].any()
    optimizer.compiled = compiled
    optimizer.step(rows, state, torch.arange(3), torch.zeros(3, 4))
    torch.testing.assert_close(rows, torch.ones(3, 4))


def test_initial_sum() -> None:
    state = np.empty((2, 3), np.float32)
    Adagrad(initial=0.5).init_state(state)
    assert (state == 0.5).all()


@pytest.mark.parametrize(
    ("make", "key"),
    [
        (lambda: Adagrad(0.0), "lr"),
        (lambda: SGD(float("nan")), "lr"),
        (lambda: SGD(float("inf")), "lr"),
        (lambda: Adagrad(0.1, initial=-0.1), "initial"),
        (lambda: Adagrad(0.1, eps=-1.0), "eps"),
        (lambda: Adagrad(0.1, eps=1e39), "eps"),
        (lambda: AdagradRow(0.1, initial=1e-46), "initial"),
        (lambda: Adam(0.1, beta1=1.0), "beta1"),
        (lambda: Adam(0.1, beta2=-0.1), "beta2"),
    ],
)
def test_refused_settings(make: object, key: str) -> None:
    with pytest.raises(ConfigError, match=rf"optimizer\.{key}"):
        make()  # type: ignore[operator]
