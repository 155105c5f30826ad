"""What resident negatives count: together they stand evenly for all partitions."""

from __future__ import annotations

import numpy as np
import pytest

from marius_py.data.importance import group_shares, group_weights
from marius_py.ordering import build_schedule


@pytest.mark.parametrize(("p", "c"), [(4, 3), (8, 4), (6, 3), (7, 6)])
def test_weighted_draws_are_even(p: int, c: int) -> None:
    """Over random buffers around an edge, each partition's share of the weighted draws is 1 / p."""
    rng = np.random.default_rng(p)
    shares = group_shares(p, c)
    assert shares is not None
    for ends in ((0, 1), (2, 2)):
        own = sorted(set(ends))
        others = [part for part in range(p) if part not in own]
        share = np.zeros(p)
        trials = 4000
        for _ in range(trials):
            resident = np.sort([*own, *rng.choice(others, c - len(own), replace=False)])
            groups = {part: group for group, part in enumerate(resident)}
            head, tail = (np.array([groups[end]]) for end in ends)
            weights = group_weights(head, tail, shares, c)
            assert weights.shape == (1, c)
            share[resident] += weights[0] / c / trials
        assert share[own] == pytest.approx(1 / p)
        assert share == pytest.approx(1 / p, rel=0.15)
        assert share.sum() == pytest.approx(1)


@pytest.mark.parametrize(("p", "c"), [(16, 4), (32, 4), (32, 8), (64, 3)])
def test_most_draws_keep_counting_where_few_partitions_are_resident(p: int, c: int) -> None:
    groups, shares = np.arange(c), group_shares(p, c)
    assert shares is not None
    for head, tail in ((groups[:1], groups[1:2]), (groups[:1], groups[:1])):
        weights = group_weights(head, tail, shares, c)
        assert weights.min() == pytest.approx(0.5)
        assert weights.mean() == pytest.approx(1)
        assert weights.sum() ** 2 / (weights**2).sum() >= 0.65 * c  # how many even draws they are worth
        assert weights[0, head] == weights[0, tail] == weights.min()


def test_nothing_to_correct() -> None:
    assert group_shares(4, 4) is None
    assert group_shares(4, 2) is None
    assert group_shares(4, 1) is None


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
