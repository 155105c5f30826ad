"""Buckets run where both ends are, and deadline order never waits longer than eager, on skewed counts too."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_py.errors import ScheduleError
from marius_py.ordering import (
    assign_buckets,
    auto,
    beta,
    build_schedule,
    cyclic,
    hidden_io_cost,
    simulate,
    validate,
)
from marius_py.ordering.assignment import Policy
from marius_py.ordering.leveling import idle_cost, step_work
from marius_py.ordering.residency import Residency
from marius_py.types import Schedule
from tests.ordering.strategies import rmat_counts, sizes


@settings(max_examples=30)
@given(sizes(), st.sampled_from(["auto", "beta"]), st.integers(0, 99), st.data())
def test_deadline_never_waits_longer_than_eager(
    case: tuple[int, int], order: str, seed: int, data: st.DataObject
) -> None:
    p, c = case
    costs = data.draw(rmat_counts(p)) if p <= 24 and data.draw(st.booleans()) else None
    mean = max(1, sum(map(sum, costs)) if costs else p * p) / p  # R-MAT counts may all be zero
    known = data.draw(st.none() | st.floats(0, 2 * mean))
    read, write = data.draw(st.floats(1e-3, 2 * mean)), data.draw(st.floats(1e-3, 2 * mean))
    times: dict[str, float] = {}
    for policy in ("eager", "deadline"):
        schedule = build_schedule(p, c, order, seed, policy=policy, costs=costs, io_cost=known)
        validate(schedule)
        epoch = simulate(schedule, costs=costs, read_rate=1 / read, write_rate=1 / write)
        times[policy] = epoch.idle_s
    assert times["deadline"] <= times["eager"] * (1 + 1e-9) + 1e-6


def _skewed(p: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.outer(rng.lognormal(0, 1.5, p), rng.lognormal(0, 1.5, p))


def _work(schedule: Schedule, costs: np.ndarray) -> list[float]:
    return [float(sum(costs[bucket] for bucket in step.buckets)) for step in schedule.steps]


@pytest.mark.parametrize(("p", "c", "seed"), [(6, 3, 398), (6, 3, 7025), (8, 4, 2393)])
def test_the_most_even_assignment_is_not_taken_where_it_may_wait_longer(p: int, c: int, seed: int) -> None:
    costs = _skewed(p, seed)
    eager = _work(assign_buckets(beta(p, c), "eager", costs=costs), costs)
    deadline = _work(assign_buckets(beta(p, c), costs=costs), costs)
    for io_cost in (*eager, *deadline):
        assert idle_cost(deadline, io_cost) <= idle_cost(eager, io_cost) * (1 + 1e-9)


@pytest.mark.parametrize(("p", "c", "seed"), [(6, 3, 3853), (8, 4, 8385)])
def test_a_known_io_cost_is_hidden_where_even_work_would_not_hide_it(p: int, c: int, seed: int) -> None:
    costs, schedule = _skewed(p, seed), beta(p, c)
    io_cost = 0.5 * float(costs.sum()) / len(schedule.steps)
    known = _work(assign_buckets(schedule, costs=costs, io_cost=io_cost), costs)
    even = _work(assign_buckets(schedule, costs=costs), costs)
    assert idle_cost(known, io_cost) < 0.3 * idle_cost(even, io_cost)


def test_the_last_step_has_no_io_to_hide() -> None:
    assert idle_cost([3.0, 1.0, 0.5, 0.0], 2.0) == 2.5


@pytest.mark.parametrize(
    ("p", "c", "eager", "deadline"),
    [(16, 4, 2.1, 6.0), (32, 8, 2.5, 13.3), (64, 16, 4.0, 29.3), (128, 8, 9.1, 14.0)],
)
def test_hidden_io(p: int, c: int, eager: float, deadline: float) -> None:
    """The figures of docs/ordering.md."""
    order = cyclic(p, c)
    assert round(hidden_io_cost(assign_buckets(order, "eager")), 1) == eager
    assert round(hidden_io_cost(assign_buckets(order, "deadline")), 1) == deadline


def test_io_at_four_fifths_of_the_mean_is_hidden() -> None:
    rng = np.random.default_rng(0)
    for p, c in (16, 4), (32, 8), (64, 16):
        # Random node ids leave hubs: bucket counts are products of lumpy partition degrees.
        degree = rng.lognormal(0.0, 0.4, p)
        costs = rng.poisson(2000 * np.outer(degree, rng.permutation(degree)))
        swap = 0.8 * costs.sum() / len(auto(p, c, seed=1).steps)
        rates = {"read_rate": 2 / swap, "write_rate": 2 / swap, "costs": costs, "cold": False}
        deadline = simulate(build_schedule(p, c, seed=1, costs=costs), **rates)
        eager = simulate(build_schedule(p, c, seed=1, costs=costs, policy="eager"), **rates)
        assert deadline.idle_s < 0.05 * deadline.makespan_s
        assert deadline.idle_s < 0.5 * eager.idle_s


def test_deadline_is_quick_for_128_partitions() -> None:
    rng = np.random.default_rng(0)
    for c in (4, 8, 16):
        schedule = build_schedule(128, c, policy="eager")
        begin = time.process_time()
        assign_buckets(schedule, "deadline", costs=rng.pareto(1.2, (128, 128)))
        assert time.process_time() - begin < 2.0


def test_one_step_of_many_buckets_is_quick() -> None:
    seconds = []
    for _ in range(3):
        begin = time.process_time()
        build_schedule(256, 256, seed=1)
        seconds.append(time.process_time() - begin)
    assert min(seconds) < 0.2  # about 0.04 s, and 0.4 s with a list of spans for each bucket


def test_the_spans_of_a_bucket_are_the_steps_that_hold_it() -> None:
    schedule = beta(9, 3)
    residency = Residency(schedule)
    for bucket, spans in enumerate(residency.spans()):
        held = {time for time, step in enumerate(schedule.steps) if {*divmod(bucket, 9)} <= {*step.resident}}
        assert [time for first, last in spans for time in range(first, last + 1)] == sorted(held)
        assert (residency.first[bucket], residency.last[bucket]) == (min(held), max(held))


def test_eager_runs_buckets_at_the_first_chance() -> None:
    schedule = assign_buckets(beta(12, 4), "eager")
    seen: set[tuple[int, int]] = set()
    for step in schedule.steps:
        pairs = {(i, j) for i in step.resident for j in step.resident}
        assert set(step.buckets) == pairs - seen
        seen |= pairs


def test_random_uses_late_steps_and_the_seed() -> None:
    schedule = auto(16, 4)
    drawn = [assign_buckets(schedule, "random", seed=seed) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    first, last = Residency(schedule).first, Residency(schedule).last
    steps = {bucket: time for time, step in enumerate(drawn[0].steps) for bucket in step.buckets}
    assert all(first[i * 16 + j] <= time <= last[i * 16 + j] for (i, j), time in steps.items())
    assert sum(time > first[i * 16 + j] for (i, j), time in steps.items()) > 50


def test_random_draws_any_step_that_holds_a_bucket() -> None:
    schedule = beta(6, 2)
    held = [
        {number for first, last in spans for number in range(first, last + 1)}
        for spans in Residency(schedule).spans()
    ]
    drawn: list[list[int]] = [[] for _ in held]
    for seed in range(200):
        for number, step in enumerate(assign_buckets(schedule, "random", seed=seed).steps):
            for head, tail in step.buckets:
                drawn[head * 6 + tail].append(number)
    assert [set(numbers) for numbers in drawn] == held
    for numbers, steps in zip(drawn, held, strict=True):
        assert max(map(numbers.count, steps)) < 400 / len(steps)  # each 200 / len(steps) times on average


@pytest.mark.parametrize("policy", ["eager", "deadline", "random"])
def test_buckets_that_can_never_run_later_come_first_in_a_step(policy: Policy) -> None:
    schedule = assign_buckets(auto(16, 4), policy)
    last = Residency(schedule).last
    for step in schedule.steps:
        deadlines = [last[head * 16 + tail] for head, tail in step.buckets]
        assert deadlines == sorted(deadlines)


def test_known_io_cost_is_served() -> None:
    rng = np.random.default_rng(4)
    costs = rng.pareto(1.1, (24, 24)) + 0.01
    schedule = auto(24, 6)
    flat = costs.ravel().tolist()
    io_cost = 0.6 * sum(flat) / len(schedule.steps)

    def idle(**options: object) -> float:
        place = assign_buckets(schedule, costs=costs, **options)  # type: ignore[arg-type]
        steps = {bucket: time for time, step in enumerate(place.steps) for bucket in step.buckets}
        order = [steps[i, j] for i in range(24) for j in range(24)]  # type: ignore[index]
        return idle_cost(step_work(order, flat, len(schedule.steps)), io_cost)

    assert idle(io_cost=io_cost) <= 1.05 * idle()
    assert idle(io_cost=io_cost) < 0.6 * idle(policy="eager")


def test_costs_of_zero_and_arrays_are_accepted() -> None:
    schedule = auto(9, 3)
    validate(assign_buckets(schedule, costs=np.zeros((9, 9))))
    as_list = assign_buckets(schedule, costs=[[i * j for j in range(9)] for i in range(9)])
    assert as_list == assign_buckets(schedule, costs=np.outer(range(9), range(9)))
    assert as_list == assign_buckets(schedule, costs=list(np.outer(range(9), range(9))))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policy": "lazy"}, "policy is 'lazy'; allowed: eager, deadline, random"),
        ({"policy": ""}, "policy is ''; allowed: eager"),
        ({"policy": ["eager"]}, r"policy is \['eager'\]"),
        ({"costs": [[1]]}, r"costs has 1 entries; allowed: shape \(p, p\) = \(6, 6\)"),
        ({"costs": 3}, "costs is a int; allowed: shape"),
        ({"costs": np.ones(6)}, r"costs\[0\] is a float; allowed: shape"),
        ({"costs": [[1.0] * 5, *[[1.0] * 6] * 5]}, r"costs\[0\] has 5 entries; allowed: shape"),
        ({"costs": [[10**400] * 6] * 6}, r"costs\[0\]\[0\] is too large for a float"),
        ({"costs": [[-1.0] * 6] * 6}, r"costs\[0\]\[0\] is -1.0"),
        ({"costs": [[float("nan")] * 6] * 6}, r"costs\[0\]\[0\] is nan"),
        ({"costs": [["a"] * 6] * 6}, r"costs\[0\]\[0\] is 'a'"),
        ({"io_cost": -1}, "io_cost is -1.0; allowed: a finite number of 0 or more"),
        ({"io_cost": 10**400}, "io_cost is too large for a float; allowed: a finite number"),
        ({"io_cost": np.array([3.0])}, r"io_cost is array\(\[3\.\]\); allowed: a finite number"),
        ({"policy": "random", "seed": -1}, "seed is -1"),
    ],
)
def test_bad_arguments(options: dict[str, object], message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        assign_buckets(beta(6, 3), **options)  # type: ignore[arg-type]
