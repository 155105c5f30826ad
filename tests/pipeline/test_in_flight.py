"""Batches in flight and threads in each: as many as cores, memory, freshness and the interpreter allow."""

from __future__ import annotations

from dataclasses import replace

import pytest

from marius_py.data.rounds import EpochWork, product_flop
from marius_py.pipeline.in_flight import LEAST, MOST, MOST_ON_DEVICE, batches_in_flight, members_of_each

PLENTY = 1_000_000
LARGE = EpochWork(100_000_000, 10_000, product_flop(100, 2000), 1 << 20)
FB15K = EpochWork(272_115, 1024, product_flop(128, 1000), 1 << 20)


@pytest.mark.parametrize(("cores", "expected"), [(1, LEAST), (2, 2), (3, 3), (8, MOST), (64, MOST)])
def test_a_core_has_a_batch(cores: int, expected: int) -> None:
    assert batches_in_flight(LARGE, 20, cores, PLENTY) == expected


def test_few_batches_an_epoch_stay_fresh() -> None:
    assert batches_in_flight(replace(LARGE, num_edges=8 * 32 * 10_000), 20, 16, PLENTY) == MOST
    assert batches_in_flight(replace(LARGE, num_edges=5 * 32 * 10_000), 20, 16, PLENTY) == 5
    assert batches_in_flight(replace(LARGE, num_edges=272_115), 20, 16, PLENTY) == LEAST
    assert batches_in_flight(replace(LARGE, num_edges=0), 20, 16, PLENTY) == LEAST
    of_eight = replace(LARGE, num_edges=266 * 10_000)
    assert [batches_in_flight(of_eight, epochs, 16, PLENTY) for epochs in (1, 2, 4, 5)] == [LEAST, 3, 7, 8]


def test_batches_that_the_interpreter_would_hold_up_are_few() -> None:
    assert batches_in_flight(FB15K, 20, 16, PLENTY) == 7  # of .79 Gflop
    assert batches_in_flight(replace(FB15K, flop_per_edge=product_flop(64, 1000)), 20, 16, PLENTY) == 3
    assert batches_in_flight(replace(FB15K, flop_per_edge=product_flop(64, 40)), 20, 16, PLENTY) == LEAST


def test_batches_in_flight_fit_in_memory() -> None:
    assert batches_in_flight(LARGE, 20, 16, 5) == 5
    assert batches_in_flight(LARGE, 20, 16, 0) == LEAST
    assert members_of_each(LARGE, 2, 7) == 3
    assert members_of_each(LARGE, 2, -1) == 1


def test_beside_a_device_cores_do_not_count() -> None:
    on_device = replace(LARGE, device="cuda")
    assert batches_in_flight(on_device, 20, 1, PLENTY) == MOST_ON_DEVICE
    assert batches_in_flight(on_device, 20, 64, 3) == 3
    assert batches_in_flight(replace(on_device, num_edges=272_115), 20, 64, PLENTY) == LEAST


def test_members_of_a_team_do_not_wait_for_the_interpreter() -> None:
    assert members_of_each(LARGE, 8, PLENTY) == 3  # of 12 Gflop: 3² · 8 < 120
    assert members_of_each(LARGE, 2, PLENTY) == 7
    assert members_of_each(FB15K, 7, PLENTY) == 1
    assert members_of_each(replace(LARGE, num_edges=0), 2, PLENTY) == 1
