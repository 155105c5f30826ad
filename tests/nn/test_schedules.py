"""Learning-rate schedules: their shapes, and what they do to a step."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from marius_py.errors import ConfigError
from marius_py.nn import SGD, Adagrad, Adam, ComplEx, SoftmaxLoss, SparseOptimizer
from marius_py.nn.registry import SCHEDULES
from marius_py.nn.schedules import ConstantRate, CosineRate, LinearRate, PlateauRate, since_best
from tests.nn.batches import gradients, make_model, random_batch, step


@given(
    st.sampled_from(sorted(SCHEDULES)),
    st.integers(1, 50),
    st.floats(0, 60),
    st.floats(0, 1),
    st.floats(0, 60),
    st.lists(st.floats(0, 1), max_size=8),
)
def test_factors_lie_between_0_and_1(
    name: str, epochs: int, warmup: float, floor: float, done: float, validations: list[float]
) -> None:
    factor = SCHEDULES[name](epochs, warmup, floor).factor(done, validations)
    assert 0 <= factor <= 1
    assert done < warmup or factor >= floor - 1e-12


@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_the_rate_rises_in_the_warm_up_and_then_falls(name: str) -> None:
    schedule = SCHEDULES[name](20, 4.0, 0.1)
    rising = [schedule.factor(done, ()) for done in np.linspace(0, 4, 30)]
    falling = [schedule.factor(done, ()) for done in np.linspace(4, 20, 50)]
    assert rising == sorted(rising)
    assert falling == sorted(falling, reverse=True)
    assert rising[0] > 0
    assert rising[-1] == falling[0] == 1
    assert schedule.factor(25, ()) == falling[-1]


def test_shapes() -> None:
    assert ConstantRate(10).factor(7, ()) == 1
    assert LinearRate(10, floor=0.5).factor(10, ()) == 0.5
    assert CosineRate(10).factor(5, ()) == pytest.approx(0.5)
    assert CosineRate(10, floor=0.2).factor(10, ()) == pytest.approx(0.2)
    assert CosineRate(12, warmup=2).factor(4.5, ()) == pytest.approx((1 + math.cos(math.pi / 4)) / 2)
    assert LinearRate(10, floor=1.0).factor(10, ()) == 1
    assert LinearRate(4, warmup=3.5).factor(3.75, ()) == 0.5
    for name in SCHEDULES:
        warming = SCHEDULES[name](10, 4.0, 0.5)
        assert [warming.factor(done, ()) for done in (0, 0.1, 1, 2)] == [0.001, 0.025, 0.25, 0.5]


def test_plateaus() -> None:
    schedule = PlateauRate(10, floor=0.1, reduction=0.5, patience=0)
    rates = [schedule.factor(1, [0.3] * number) for number in range(7)]
    assert rates == [1, 1, 0.5, 0.25, 0.125, 0.1, 0.1]
    assert PlateauRate(10).factor(1, [0.3, 0.2]) == 1
    assert PlateauRate(10).factor(1, [0.3, 0.2, 0.2]) == 0.5
    assert PlateauRate(10, warmup=2).factor(1, [0.3, 0.2, 0.2]) == 0.25  # of the half that it has risen to
    assert PlateauRate(10, patience=2).factor(1, [0.1, 0.0, 0.0, 0.2, 0.0, 0.0]) == 1
    assert PlateauRate(10, patience=2).factor(1, [0.1, 0.0, 0.0, 0.0, 0.2]) == 0.5


@given(st.lists(st.sampled_from([0.1, 0.2, 0.3]), max_size=8))
def test_since_best_counts_from_the_first_best(values: list[float]) -> None:
    waited = since_best(values)
    assert not values or values.index(max(values)) == len(values) - 1 - waited


@pytest.mark.parametrize("optimizer", [SGD, Adagrad, Adam])
@pytest.mark.parametrize("rate", [0.0, 0.25])
def test_a_batch_s_rate_stands_for_the_optimizer_s(optimizer: type[SparseOptimizer], rate: float) -> None:
    """A factor of a quarter is a quarter of the rate, for node rows, relations and state alike."""
    batch = random_batch(6)
    scaled = make_model(ComplEx(6), SoftmaxLoss(), optimizer=optimizer(0.2))
    start = scaled.state_arrays()["relations"]
    update = step(scaled, replace(batch, rate=rate))
    other = make_model(ComplEx(6), SoftmaxLoss(), optimizer=optimizer(0.2 * rate or 1e-30))
    reference = step(other, batch)
    torch.testing.assert_close(update.d_rows, reference.d_rows, rtol=1e-5, atol=1e-8)
    torch.testing.assert_close(update.d_state, reference.d_state, rtol=0, atol=0)
    found, wanted = scaled.state_arrays(), other.state_arrays()
    np.testing.assert_allclose(found["relations"], wanted["relations"], rtol=1e-5, atol=1e-7)
    np.testing.assert_array_equal(found["relation_state"], wanted["relation_state"])
    assert (rate > 0) == bool((found["relations"] != start).any())


@pytest.mark.parametrize("fused", [True, False])
def test_long_gradients_are_shortened_and_short_ones_left(fused: bool) -> None:
    batch = random_batch(6)
    plain = gradients(make_model(ComplEx(6), SoftmaxLoss(), fused=fused), batch)
    longest = float(np.median(np.linalg.norm(plain[0], axis=1)))
    model = make_model(ComplEx(6), SoftmaxLoss(), fused=fused)
    model.clip_norm = longest
    clipped = gradients(model, batch)
    for ours, reference in zip(clipped[:2], plain[:2], strict=True):
        norms = np.linalg.norm(reference, axis=1, keepdims=True)
        np.testing.assert_allclose(
            ours, reference * np.minimum(1, longest / np.maximum(norms, 1e-30)), rtol=1e-4, atol=1e-6
        )
    assert clipped[2] == plain[2]
    assert 0 < (np.linalg.norm(plain[0], axis=1) > longest).sum() < len(plain[0])


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: LinearRate(5, warmup=-1), "warmup"),
        (lambda: LinearRate(5, floor=1.5), "floor"),
        (lambda: PlateauRate(5, reduction=1.0), "reduction"),
        (lambda: PlateauRate(5, reduction=0.0), "reduction"),
        (lambda: PlateauRate(5, patience=-1), "patience"),
        (lambda: PlateauRate(5, patience=1.5), "patience"),  # type: ignore[arg-type]
        (lambda: PlateauRate(5, patience=math.inf), "patience"),  # type: ignore[arg-type]
    ],
)
def test_refused_settings(make: object, word: str) -> None:
    with pytest.raises(ConfigError, match=rf"optimizer\.schedule\.{word}"):
        make()  # type: ignore[operator]
