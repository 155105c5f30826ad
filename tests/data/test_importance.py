"""What resident negatives count: together they stand evenly for all partitions."""

from __future__ import annotations

import numpy as np
import pytest

from marius_py.data.importance import slot_weights
from marius_py.ordering import build_schedule


@pytest.mark.parametrize(("p", "c"), [(4, 3), (8, 4), (6, 3), (7, 6)])
def test_weighted_draws_are_even(p: int, c: int) -> None:
    """Over random buffers around an edge, each partition's share of the weighted draws is 1 / p."""
    rng = np.random.default_rng(p)
    for ends in ((0, 1), (2, 2)):
        own = sorted(set(ends))
        others = [part for part in range(p) if part not in own]
        share = np.zeros(p)
        trials = 4000
        for _ in range(trials):
            resident = rng.permutation([*own, *rng.choice(others, c - len(own), replace=False)])
            slots = {part: slot for slot, part in enumerate(resident)}
            head, tail = (np.array([slots[end]]) for end in ends)
            weights = slot_weights(head, tail, p, c, c + 1)
            assert weights is not None
            assert weights.shape == (1, c + 1)
            share[resident] += weights[0, :c] / c / trials
        assert share[own] == pytest.approx(1 / p)
        assert share == pytest.approx(1 / p, rel=0.15)
        assert share.sum() == pytest.approx(1)


@pytest.mark.parametrize(("p", "c"), [(16, 4), (32, 4), (32, 8), (64, 3)])
def test_most_draws_keep_counting_where_few_partitions_are_resident(p: int, c: int) -> None:
    slots = np.arange(c)
    for head, tail in ((slots[:1], slots[1:2]), (slots[:1], slots[:1])):
        weights = slot_weights(head, tail, p, c, c)
        assert weights is not None
        assert weights.min() == pytest.approx(0.5)
        assert weights.mean() == pytest.approx(1)
        assert weights.sum() ** 2 / (weights**2).sum() >= 0.65 * c  # how many even draws they are worth
        assert weights[0, head] == weights[0, tail] == weights.min()


def test_nothing_to_correct() -> None:
    slots = np.array([0, 1])
    assert slot_weights(slots, slots, 4, 4, 4) is None
    assert slot_weights(slots, slots[::-1], 4, 2, 3) is None
    assert slot_weights(slots, slots, 4, 1, 2) is None


def test_schedules_bring_other_partitions_about_evenly() -> None:
    """What the weights suppose of relabelled orders: a pair meets every other partition about as often."""
    p, c, epochs = 8, 4, 300
    met = np.zeros(p)
    for epoch in range(epochs):
        for step in build_schedule(p, c, order="beta", seed=epoch).steps:
            if {0, 1} <= set(step.resident):
                met[list(step.resident)] += 1
    others = met[2:]
    assert others.max() < 1.25 * others.min()
