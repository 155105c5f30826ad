"""How often an epoch goes through the partitions: as often as hides, never so often that batches shrink."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from marius_py.config import load_config
from marius_py.data.plan import spread_spans
from marius_py.data.rounds import LEAST_BATCHES, MOST_ROUNDS, EpochWork, product_flop
from marius_py.errors import ConfigError
from marius_py.ordering import build_schedule
from marius_py.partitioning import Partitioning
from marius_py.parts import rounds_of
from marius_py.storage.protocols import NodeTable

WORK = EpochWork(272_115, 1024, product_flop(256, 2000), 1824 * 512 * 4)


def test_a_dense_graph_takes_what_whole_batches_allow() -> None:
    rounds = WORK.rounds(swaps=8, steps=9)
    assert rounds == 272_115 // (9 * LEAST_BATCHES * 1024) == 14
    assert replace(WORK, batch_size=256).rounds(8, 9) == MOST_ROUNDS
    assert replace(WORK, batch_size=100_000).rounds(8, 9) == 1


def test_io_that_does_not_hide_is_not_repeated() -> None:
    # 20 M nodes of dim 64 with state in 64 partitions, 100 M edges, 100 negatives a side.
    large = EpochWork(100_000_000, 10_000, product_flop(64, 200), 312_500 * 128 * 4)
    assert large.rounds(swaps=187, steps=188) == 1
    assert replace(large, flop_per_edge=product_flop(64, 2000)).rounds(187, 188) == 3
    assert replace(large, flop_per_edge=product_flop(64, 20_000)).rounds(187, 188) == 16
    assert WORK.rounds(swaps=0, steps=1) == 1


def test_masks_are_indexed_once_a_step() -> None:
    masked = replace(WORK, known_edges=272_115 // 4)
    assert masked.rounds(swaps=8, steps=9) == 14  # 3 Mflop an edge
    assert replace(masked, flop_per_edge=product_flop(128, 1000)).rounds(8, 9) == 5
    assert replace(masked, flop_per_edge=product_flop(64, 100)).rounds(8, 9) == 1


def test_settings_decide() -> None:
    table = NodeTable(Partitioning(14_541, 8), 256, 256)

    def rounds(*words: str, capacity: int = 4) -> int:
        config = load_config(["graph=g", "model.dim=256", "negatives.count=1000", *words])
        return rounds_of(config, table, capacity, 272_115)

    assert rounds() == 14
    assert rounds(capacity=8) == 1
    assert rounds("ordering.rounds=3") == 3
    assert rounds("ordering.policy=deadline") == 1
    with pytest.raises(ConfigError, match=r"ordering\.rounds=3 goes with ordering\.policy=spread"):
        rounds("ordering.rounds=3", "ordering.policy=eager")


def test_every_round_has_a_share_of_every_bucket() -> None:
    p, rounds = 8, 4
    counts = np.full((p, p), 4_000)
    schedule = build_schedule(p, 4, policy="eager", rounds=rounds)
    spans = spread_spans(schedule, counts, np.random.default_rng(0))
    steps = (len(schedule.steps) - 1) // rounds
    for number in range(rounds):
        states = slice(number * steps, (number + 1) * steps + 1)  # neighbours share the state between them
        mine = [span for step in spans[states] for span in step]
        seen = {start // 4_000 for start, stop in mine if stop > start}
        assert len(seen) == p * p
    assert sum(stop - start for step in spans for start, stop in step) == counts.sum()
