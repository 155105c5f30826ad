"""Simulated times against figures worked out by hand."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_py.errors import ScheduleError
from marius_py.ordering import (
    assign_buckets,
    beta,
    build_schedule,
    format_summary,
    format_table,
    hidden_io_cost,
    join,
    plot,
    relabel,
    reverse,
    simulate,
    to_json,
    validate,
)
from marius_py.types import Schedule
from tests.ordering.strategies import orders


def test_an_epoch_by_hand() -> None:
    schedule = assign_buckets(beta(4, 3), "eager")  # buckets a step: 9, 5, 2; two swaps
    assert [len(step.buckets) for step in schedule.steps] == [9, 5, 2]
    epoch = simulate(schedule, compute_rate=2.0, partition_bytes=8.0, read_rate=2.0, write_rate=4.0)
    # Reads take 4 s, writes 2 s. Fill 12; step 0: 4.5 work over a read of 4; step 1: 2.5 work, write and
    # read 6, so 3.5 idle; step 2: 1 work, a write of 2, so 1 idle; flush 6.
    assert [(t.start_s, t.compute_s, t.io_s, t.idle_s) for t in epoch.steps] == [
        (12.0, 4.5, 4.0, 0.0),
        (16.5, 2.5, 6.0, 3.5),
        (22.5, 1.0, 2.0, 1.0),
    ]
    assert (epoch.compute_s, epoch.idle_s, epoch.exposed_io_s, epoch.io_s) == (8.0, 4.5, 22.5, 30.0)
    assert (epoch.makespan_s, epoch.bytes_read, epoch.bytes_written) == (30.5, 40.0, 40.0)
    warm = simulate(
        schedule, compute_rate=2.0, partition_bytes=[8.0] * 4, read_rate=2, write_rate=4, cold=False
    )
    assert (warm.makespan_s, warm.exposed_io_s, warm.bytes_read, warm.bytes_written) == (
        12.5,
        4.5,
        16.0,
        16.0,
    )
    blocking = simulate(
        schedule, compute_rate=2.0, partition_bytes=8.0, read_rate=2, write_rate=4, cold=False, overlap=False
    )
    assert (blocking.makespan_s, blocking.idle_s) == (20.0, 12.0)


@pytest.mark.parametrize("kind", [np.array, tuple, deque, lambda sizes: array("d", sizes)])
def test_sizes_of_partitions_are_any_sequence(kind: Callable[[list[float]], Sequence[float]]) -> None:
    sizes = [1.0, 2.0, 3.0, 4.0]
    assert simulate(beta(4, 3), partition_bytes=kind(sizes)) == simulate(beta(4, 3), partition_bytes=sizes)


@settings(max_examples=60)
@given(orders(max_p=20), st.floats(0.1, 50), st.booleans(), st.booleans())
def test_times_add_up(case: tuple[int, int, str], slow: float, cold: bool, overlap: bool) -> None:
    p, c, order = case
    schedule = build_schedule(p, c, order, seed=2)
    epoch = simulate(schedule, read_rate=1 / slow, write_rate=1 / slow, cold=cold, overlap=overlap)
    assert epoch.compute_s == p * p
    assert epoch.makespan_s == pytest.approx(epoch.compute_s + epoch.exposed_io_s)
    assert epoch.bytes_read == epoch.bytes_written == schedule.swaps + c * cold
    assert epoch.io_s == pytest.approx(2 * slow * epoch.bytes_read)
    assert max(epoch.compute_s, epoch.io_s) <= epoch.makespan_s * (1 + 1e-12)
    if not overlap:
        assert epoch.exposed_io_s == pytest.approx(epoch.io_s)


@settings(max_examples=60)
@given(orders(max_p=20), st.floats(0, 0.2))
def test_hidden_io_is_the_threshold(case: tuple[int, int, str], tolerance: float) -> None:
    p, c, order = case
    schedule = build_schedule(p, c, order, seed=2)
    hidden = hidden_io_cost(schedule, tolerance=tolerance)
    if p == c:
        assert hidden == float("inf")
        return
    work = [len(step.buckets) for step in schedule.steps[:-1]]
    assert sum(max(0.0, hidden - w) for w in work) == pytest.approx(tolerance * p * p, abs=1e-6)
    assert hidden >= min(work)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"compute_rate": 0}, "compute_rate is 0.0; allowed: a finite number above 0"),
        ({"read_rate": -1}, "read_rate is -1.0"),
        ({"write_rate": float("inf")}, "write_rate is inf"),
        ({"partition_bytes": [1.0]}, r"partition_bytes has 1 entries; allowed: a number, or 4 \(= p\) of"),
        ({"partition_bytes": np.ones(5)}, "partition_bytes has 5 entries"),
        ({"partition_bytes": np.ones((4, 1))}, r"partition_bytes\[0\] is \[1\.0\]"),
        ({"partition_bytes": None}, "partition_bytes is None"),
        ({"partition_bytes": "big"}, "partition_bytes"),
        ({"costs": [[1.0]]}, "costs has 1 entries"),
    ],
)
def test_bad_rates_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        simulate(beta(4, 3), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "function",
    [assign_buckets, format_summary, format_table, plot, reverse, simulate],
    ids=lambda f: f.__name__,
)
def test_nothing_is_played_without_steps(function: Callable[[Schedule], object]) -> None:
    with pytest.raises(ScheduleError, match="schedule has no step"):
        function(Schedule(2, 2, (0, 1), ()))


@pytest.mark.parametrize(
    "function",
    [
        assign_buckets,
        format_summary,
        format_table,
        hidden_io_cost,
        lambda schedule: join(schedule, beta(4, 3)),
        plot,
        relabel,
        reverse,
        simulate,
        to_json,
        validate,
    ],
)
@pytest.mark.parametrize("other", [None, (4, 3), to_json(beta(4, 3))], ids=["None", "tuple", "text"])
def test_what_is_no_schedule_is_named(function: Callable[[Any], object], other: object) -> None:
    with pytest.raises(ScheduleError, match=r"schedule is .* allowed: a Schedule, as build_schedule and"):
        function(other)


def test_the_schedule_that_follows_is_named_likewise() -> None:
    with pytest.raises(ScheduleError, match="following is None, a NoneType; allowed: a Schedule"):
        join(beta(4, 3), None)  # type: ignore[arg-type]
