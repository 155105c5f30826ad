"""How often an epoch goes through the partitions: as often as hides, never so often that batches shrink."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from marius_py.config import load_config
from marius_py.data.plan import spread_spans
from marius_py.data.rounds import (
    FEWEST,
    FILLING,
    MIXED,
    MOST_ROUNDS,
    EpochOrder,
    EpochWork,
    product_flop,
)
from marius_py.errors import ConfigError
from marius_py.ordering import build_schedule
from marius_py.partitioning import Partitioning
from marius_py.parts import order_of
from marius_py.storage.protocols import NodeTable

WORK = EpochWork(272_115, 1024, product_flop(256, 2000), 1824 * 512 * 4)
LARGE = EpochWork(100_000_000, 10_000, product_flop(64, 200), 312_500 * 128 * 4)
"""20 M nodes of dim 64 with state in 64 partitions, 100 M edges, 100 negatives a side."""


def test_batches_keep_their_size() -> None:
    steps = len(build_schedule(8, 4).steps) - 1
    for size in (1024, 4096, 9000, 20_000):
        rounds = replace(WORK, batch_size=size).rounds("auto", 8, 4)
        assert rounds == 1 or WORK.num_edges >= FILLING * (rounds * steps + 1) * size
    assert replace(WORK, batch_size=4096).rounds("auto", 8, 4) == 9  # 73 steps of 0.91 batches
    assert replace(WORK, batch_size=4150).rounds("auto", 8, 4) == 8  # 73 steps would have .898
    assert replace(WORK, batch_size=256).rounds("auto", 8, 4) == MOST_ROUNDS
    assert replace(WORK, batch_size=100_000).rounds("auto", 8, 4) == 1


def test_steps_with_few_edges_have_small_batches() -> None:
    steps = len(build_schedule(64, 4).steps)
    assert WORK.batches(EpochOrder("auto", 1), 64, 4) == (steps, WORK.num_edges / steps / 1024)
    twice = WORK.batches(EpochOrder("auto", 2), 64, 4)
    assert twice == (2 * steps, WORK.num_edges / steps / 2048)
    assert WORK.batches(EpochOrder("auto", 1), 8, 8) == (266, 1.0)


def test_io_that_does_not_hide_is_not_repeated() -> None:
    assert LARGE.rounds("auto", 64, 12) == 1
    assert replace(LARGE, flop_per_edge=product_flop(64, 800)).rounds("auto", 64, 12) == 2
    assert replace(LARGE, flop_per_edge=product_flop(64, 2000)).rounds("auto", 64, 12) == 4
    assert replace(LARGE, flop_per_edge=product_flop(64, 20_000)).rounds("auto", 64, 12) == 16
    assert WORK.rounds("auto", 8, 8) == 1


def test_the_mixed_order_is_taken_where_it_hides() -> None:
    assert WORK.order(8, 4) == EpochOrder(MIXED, WORK.rounds(MIXED, 8, 4))
    assert LARGE.order(64, 12) == EpochOrder(FEWEST, 1)  # the mixed order has 2.5 times the loads
    assert replace(LARGE, flop_per_edge=product_flop(64, 2000)).order(64, 12) == EpochOrder(MIXED, 1)
    assert replace(WORK, batch_size=200_000).order(8, 4).name == FEWEST
    assert replace(WORK, batch_size=24_000).order(8, 4) == EpochOrder(MIXED, 1)  # 14 steps of .81 batches
    assert replace(WORK, batch_size=26_500).order(8, 4) == EpochOrder(FEWEST, 1)  # of .73
    assert WORK.order(8, 8) == EpochOrder(FEWEST, 1)


def test_masks_are_indexed_once_a_step() -> None:
    masked = replace(WORK, known_edges=272_115 // 4)
    few = replace(masked, flop_per_edge=product_flop(64, 400), partition_bytes=1824 * 128 * 4)
    assert masked.rounds(MIXED, 8, 4) == WORK.rounds(MIXED, 8, 4) == 16  # 3 Mflop an edge
    assert few.rounds(MIXED, 8, 4) == 8
    assert replace(few, known_edges=272_115 // 2).rounds(MIXED, 8, 4) == 4
    dense = replace(few, known_edges=20 * 272_115)
    assert dense.order(8, 4) == EpochOrder(FEWEST, 1)
    assert replace(dense, known_edges=0).order(8, 4).name == MIXED


def test_beside_a_device_less_hides() -> None:
    large = replace(LARGE, flop_per_edge=product_flop(64, 20_000), device="cuda")
    assert large.rounds("auto", 64, 12) == 1  # 16 beside a CPU
    work = replace(WORK, flop_per_edge=product_flop(64, 20_000), device="cuda")
    assert work.order(8, 4) == EpochOrder(MIXED, 2)
    assert replace(work, known_edges=272_115 // 4).order(8, 4) == EpochOrder(FEWEST, 1)  # 12 steps' hide
    assert replace(work, known_edges=272_115 // 5).order(8, 4) == EpochOrder(MIXED, 1)  # 15
    assert replace(work, flop_per_edge=product_flop(64, 9000)).order(8, 4) == EpochOrder(FEWEST, 1)


def test_settings_decide() -> None:
    table = NodeTable(Partitioning(14_541, 8), 256, 256)

    def order(*words: str, capacity: int = 4) -> EpochOrder:
        config = load_config(["graph=g", "model.dim=256", "negatives.count=1000", *words])
        return order_of(config, table, capacity, 272_115)

    assert order() == EpochOrder("random", 16)
    assert order("ordering.name=beta") == EpochOrder("beta", 16)
    assert order(capacity=8) == EpochOrder("auto", 1)
    assert order("ordering.rounds=3") == EpochOrder("auto", 3)
    assert order("ordering.rounds=3", "ordering.name=random") == EpochOrder("random", 3)
    assert order("ordering.policy=deadline") == EpochOrder("auto", 1)
    with pytest.raises(ConfigError, match=r"ordering\.rounds=3 goes with ordering\.policy=spread"):
        order("ordering.rounds=3", "ordering.policy=eager")


def test_every_round_has_a_share_of_every_bucket() -> None:
    p, rounds = 8, 4
    counts = np.full((p, p), 4_000)
    schedule = build_schedule(p, 4, policy="eager", rounds=rounds)
    found = spread_spans(schedule, counts, np.random.default_rng(0))
    spans = [found[step] for step in range(len(schedule.steps))]
    steps = (len(schedule.steps) - 1) // rounds
    for number in range(rounds):
        states = slice(number * steps, (number + 1) * steps + 1)  # neighbours share the state between them
        mine = [span for step in spans[states] for span in step]
        seen = {start // 4_000 for start, stop in mine if stop > start}
        assert len(seen) == p * p
    assert sum(stop - start for step in spans for start, stop in step) == counts.sum()
