"""What marius-plan says of an epoch and what the epoch then takes, for three shapes of graph."""

from __future__ import annotations

import statistics
import time

import numpy as np
import pytest

from marius_py import load_config
from marius_py.assembly.build import Watcher, train
from marius_py.assembly.planned import plan
from marius_py.generate import planted_edges, rmat_edges
from marius_py.prepare import prepare_arrays

TOLERANCE = 0.25
TRIES = 3

SHAPES = {
    "in memory": (
        lambda: planted_edges(5000, 20, 60_000),
        ["model.dim=64", "negatives.count=200", "training.batch_size=1000", "storage.capacity=8"],
    ),
    "on disk, bound by compute": (
        lambda: planted_edges(20_000, 20, 120_000),
        ["model.dim=64", "negatives.count=300", "training.batch_size=2000", "storage.capacity=4"],
    ),
    "on disk, bound by the disk": (
        lambda: np.concatenate(list(rmat_edges(300_000, 40_000, 5))),
        ["model.dim=100", "model.decoder=distmult", "negatives.count=20", "storage.capacity=2"],
    ),
}


class _Clock(Watcher):
    """Seconds from epoch to epoch, commits included; the first one, which fills the buffer, is left out."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_epoch(self, line):
        self.ends.append(time.perf_counter())

    @property
    def epochs(self):
        return [after - before for before, after in zip(self.ends, self.ends[1:], strict=False)]


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize("name", SHAPES)
def test_epochs_take_as_long_as_planned(name, tmp_path):
    """Rates change by the minute on a machine with other work: a plan before, one after, their mean."""
    make, words = SHAPES[name]
    prepare_arrays(make(), tmp_path / "graph", partitions=8, split=(1.0, 0.0, 0.0))
    off = []
    for attempt in range(TRIES):
        given = [f"graph={tmp_path / 'graph'}", f"output={tmp_path / f'run{attempt}'}", *words]
        config = load_config(
            [*given, "storage.partitions=8", "training.epochs=4", "training.valid_every=0", "device=cpu"]
        )
        clock = _Clock()
        before = plan(config)[0].epoch_s
        train(config, clock)
        after = plan(config)[0].epoch_s
        measured = statistics.median(clock.epochs)
        off.append((before + after) / 2 / measured - 1)
        if abs(off[-1]) <= TOLERANCE:
            return
    pytest.fail(f"planned against measured, of {TRIES} tries: " + ", ".join(f"{one:+.0%}" for one in off))
