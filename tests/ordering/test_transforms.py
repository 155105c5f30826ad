"""Reversal and relabelling keep coverage, count and work; bad arguments are named."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_py.config import PrepareConfig
from marius_py.config.machine_schema import StorageConfig
from marius_py.errors import ConfigError, ScheduleError
from marius_py.ordering import (
    Bucket,
    Schedule,
    Step,
    beta,
    build_schedule,
    join,
    lower_bound,
    optimal,
    relabel,
    reverse,
    validate,
)
from marius_py.prepare import api
from marius_py.types import MAX_PARTITIONS
from tests.ordering.strategies import orders


def work(schedule: Schedule) -> list[int]:
    return [len(step.buckets) for step in schedule.steps]


@settings(max_examples=80)
@given(orders(max_p=40), st.integers(0, 1000), st.data())
def test_reverse_and_relabel_keep_coverage_and_count(
    case: tuple[int, int, str], seed: int, data: st.DataObject
) -> None:
    p, c, order = case
    schedule = build_schedule(p, c, order, seed)
    back = reverse(schedule)
    validate(back)
    assert back.loads == schedule.loads
    assert (back.initial, back.final) == (schedule.final, schedule.initial)
    assert work(back) == work(schedule)[::-1]
    assert reverse(back) == schedule

    renamed = relabel(schedule, seed=seed, start=schedule.final)
    validate(renamed)
    assert renamed.initial == schedule.final
    assert renamed.loads == schedule.loads
    assert work(renamed) == work(schedule)
    assert renamed == relabel(schedule, seed=seed, start=schedule.final[::-1])

    names = data.draw(st.permutations(range(p)))
    inverse = sorted(range(p), key=names.__getitem__)
    assert {names[part] for part in schedule.initial} == set(relabel(schedule, names).initial)
    assert relabel(relabel(schedule, names), inverse) == schedule


@pytest.mark.parametrize(
    ("p", "c", "message"),
    [
        (4, 5, r"c \(buffer capacity in partitions\) is 5; allowed: 2 to p = 4"),
        (4, 1, r"c \(buffer capacity in partitions\) is 1; allowed: 2 to p = 4"),
        (4, -2, r"c \(buffer capacity in partitions\) is -2"),
        (1, 2, "is 2; allowed: 1, as p is 1"),
        (0, 2, r"p \(number of partitions\) is 0; allowed: 1 to 1024"),
        (-3, 2, r"p \(number of partitions\) is -3"),
        (1025, 2, "is 1025; allowed: 1 to 1024"),
        (4.0, 2, "is 4.0, a float; allowed: an integer"),
        ("8", 2, "is '8', a str"),
        (8, 2.5, "is 2.5, a float"),
        (np.array([8]), 2, r"p \(number of partitions\) is array\(\[8\]\), a ndarray; allowed: an integer"),
        (True, True, "is True, a bool"),
        (8, None, "is None, a NoneType"),
    ],
)
def test_bad_sizes_are_named(p: int, c: int, message: str) -> None:
    for build in (build_schedule, lower_bound, beta):
        with pytest.raises(ScheduleError, match=message):
            build(p, c)


def test_all_that_make_partitions_have_one_limit() -> None:
    storage = StorageConfig(partitions=MAX_PARTITIONS)
    assert lower_bound(MAX_PARTITIONS, 2) > MAX_PARTITIONS == storage.partitions
    with pytest.raises(ConfigError, match=r"storage\.partitions=1025 is out of range: .* from 1 to 1024"):
        StorageConfig(partitions=MAX_PARTITIONS + 1)
    (prepared,) = (item for item in fields(PrepareConfig) if item.name == "partitions")
    assert prepared.metadata["high"] == api.MAX_PARTITIONS == MAX_PARTITIONS


@pytest.mark.parametrize(
    "start", [(0, 1), (0, 1, 2, 3), (0, 0, 1), (0, 1, 6), (-1, 0, 1), (0, 1, 2.0), 5, np.array(3)]
)
def test_bad_start_sets_are_named(start: Any) -> None:
    for call in (lambda: build_schedule(6, 3, start=start), lambda: relabel(beta(6, 3), start=start)):
        with pytest.raises(ScheduleError, match=r"start.* 3 \(= c\) distinct partitions from 0 to 5"):
            call()


def test_other_bad_arguments_are_named() -> None:
    with pytest.raises(ScheduleError, match="order is 'zigzag'; allowed: auto, "):
        build_schedule(6, 3, "zigzag")
    with pytest.raises(ScheduleError, match=r"order is \['auto'\]; allowed: auto, "):
        build_schedule(6, 3, ["auto"])  # type: ignore[arg-type]
    with pytest.raises(ScheduleError, match="policy is ''; allowed: eager, "):
        build_schedule(6, 3, policy="")  # type: ignore[arg-type]
    with pytest.raises(ScheduleError, match="seed is -1"):
        build_schedule(6, 3, seed=-1)
    with pytest.raises(ScheduleError, match=r"seed is 0\.5"):
        relabel(beta(6, 3), seed=0.5)  # type: ignore[arg-type]
    with pytest.raises(ScheduleError, match="p up to 16"):
        optimal(20, 4)
    assert optimal(20, 20).loads == 20
    with pytest.raises(ScheduleError, match="permutation is"):
        relabel(beta(6, 3), [0, 1, 2, 3, 4, 4])
    with pytest.raises(ScheduleError, match="permutation is 5, a int; allowed: each of 0 to 5 once"):
        relabel(beta(6, 3), 5)  # type: ignore[arg-type]
    with pytest.raises(ScheduleError, match="both given"):
        relabel(beta(6, 3), range(6), start=(0, 1, 2))


def _edit(schedule: Schedule, index: int, **change: object) -> Schedule:
    steps = list(schedule.steps)
    steps[index] = replace(steps[index], **change)  # type: ignore[arg-type]
    return replace(schedule, steps=tuple(steps))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda s: replace(s, steps=()), "no step"),
        (lambda s: replace(s, c=7), "is 7; allowed: 2 to p = 6"),
        (lambda s: replace(s, initial=(2, 1, 0)), r"is \(2, 1, 0\); allowed: the tuple \(0, 1, 2\)"),
        (lambda s: replace(s, initial=[0, 1, 2]), r"is \[0, 1, 2\]; allowed: the tuple \(0, 1, 2\)"),
        (lambda s: replace(s, initial=(0, 1)), r"^initial is \[0, 1\]"),
        (lambda s: _edit(s, 0, evict=(0,), admit=(5,)), "step 0: .* none"),
        (lambda s: _edit(s, 1, evict=(5,)), r"step 1: evicts \(5,\), not resident"),
        (lambda s: _edit(s, 1, admit=(6,)), r"step 1: admits \(6,\); allowed: partitions 0 to 5"),
        (lambda s: _edit(s, 1, admit=(0,)), "resident already"),
        (lambda s: _edit(s, 1, evict=(), admit=()), "one of each"),
        (lambda s: _edit(s, 1, resident=(0, 1, 5)), "step 1: resident is"),
        (lambda s: _edit(s, 1, buckets=s.steps[0].buckets), "step 1: bucket .* has run before|end outside"),
        (lambda s: _edit(s, 0, buckets=(Bucket(0, 5),)), r"bucket \(0, 5\) has an end outside"),
        (lambda s: _edit(s, -1, buckets=()), "never runs"),
    ],
)
def test_validate_finds_damage(damage: object, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        validate(damage(beta(6, 3)))  # type: ignore[operator]


def test_an_order_without_some_pair_cannot_be_assigned() -> None:
    from marius_py.ordering import assign_buckets

    schedule = Schedule(4, 2, (0, 1), (Step((0, 1), (), (), ()), Step((1, 2), (2,), (0,), ())))
    with pytest.raises(ScheduleError, match="never resident together"):
        assign_buckets(schedule)


@settings(max_examples=60)
@given(orders(max_p=24), st.integers(0, 1000), st.integers(1, 5))
def test_rounds_repeat_the_order_with_other_roles(case: tuple[int, int, str], seed: int, rounds: int) -> None:
    p, c, order = case
    once = build_schedule(p, c, order, seed, policy="eager")
    schedule = build_schedule(p, c, order, seed, policy="eager", rounds=rounds)
    validate(schedule)
    assert schedule.initial == once.initial
    assert [step.resident for step in schedule.steps[: len(once.steps)]] == [
        step.resident for step in once.steps
    ]
    if order not in ("comet", "random"):  # those draw another order each round
        assert schedule.swaps == rounds * once.swaps
    assert schedule == build_schedule(p, c, order, seed, policy="eager", rounds=rounds)


def test_all_rounds_have_work() -> None:
    schedule = build_schedule(16, 4, rounds=3)  # by deadline
    third = len(schedule.steps) // 3
    assert all(sum(work(schedule)[at : at + third]) > 0 for at in (0, third, 2 * third))


@pytest.mark.parametrize(
    ("rounds", "message"),
    [(0, "rounds is 0; allowed: an integer from 1 to 64"), (65, "rounds is 65"), (1.5, "rounds is 1.5")],
)
def test_rounds_out_of_range_are_named(rounds: object, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        build_schedule(8, 4, rounds=rounds)  # type: ignore[arg-type]


def test_only_what_follows_is_joined() -> None:
    first = beta(8, 4)
    with pytest.raises(ScheduleError, match="cannot follow"):
        join(first, relabel(first, seed=3, start=sorted({0, 1, 2, 3} ^ {3, 7})))
    with pytest.raises(ScheduleError, match="cannot follow"):
        join(first, beta(9, 4))
