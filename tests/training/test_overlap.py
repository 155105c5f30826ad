"""A slowed disk behind a real training run in BETA order: deadline and spread hide it, eager does not.

Compute is paced by a decoder that sleeps, so that the shares do not depend on the machine's load: the I/O of
a swap (one read, one write-back) takes 80 % of a swap's mean compute.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
import torch

from marius_py.data.batch_settings import BatchSettings
from marius_py.nn.decoders import DistMult
from marius_py.nn.losses import SoftmaxLoss
from marius_py.nn.model import LinkPredictionModel
from marius_py.nn.negatives import UniformNegatives
from marius_py.nn.optimizers import Adagrad
from marius_py.ordering import build_schedule
from marius_py.partitioning import Partitioning
from marius_py.storage.memory import MemoryEdgeStore, MemoryPartitionStore
from marius_py.storage.protocols import NodeTable
from marius_py.testing import SlowStore
from marius_py.training.settings import TrainerSettings
from marius_py.training.trainer import Trainer

P, C, NODES, EDGES, BATCH = 16, 4, 1600, 20_000, 50
PACE_S = 0.012
"""Seconds of a batch's compute."""


class PacedDecoder(DistMult):
    """Sleeps in the first query of each batch."""

    def query(self, node: torch.Tensor, relation: torch.Tensor, side: Any) -> torch.Tensor:
        if side == "tail":
            time.sleep(PACE_S)
        return super().query(node, relation, side)


def wait_share(policy: str, io_per_swap_s: float) -> float:
    """Share of an epoch in which nothing is computed because a read is waited for."""
    partitioning = Partitioning(NODES, P)
    rng = np.random.default_rng(0)
    edges = np.stack(
        [rng.integers(0, NODES, EDGES), rng.integers(0, 3, EDGES), rng.integers(0, NODES, EDGES)], 1
    )
    store = MemoryEdgeStore(partitioning, edges)
    model = LinkPredictionModel(PacedDecoder(8), SoftmaxLoss(), Adagrad(lr=0.1), num_relations=3)
    nodes = MemoryPartitionStore(NodeTable(partitioning, 8, model.node_state_dim))
    counts = store.bucket_counts()
    trainer = Trainer(
        model,
        SlowStore(nodes, 1e12, latency_s=io_per_swap_s / 2),
        store,
        lambda epoch, start: build_schedule(
            P,
            C,
            order="beta",
            seed=epoch,
            policy="eager" if policy == "spread" else policy,
            costs=counts,
            start=start,
        ),
        UniformNegatives(10, 1),
        BatchSettings(BATCH, 1, 0, spread=policy == "spread"),
        TrainerSettings(C, "threaded", max_in_flight=2),
    )
    line = trainer.train(2)[1]  # the first epoch also fills the empty buffer
    assert line["edges"] == EDGES
    return float(line["wait_disk_s"] / line["seconds"])


@pytest.mark.slow
@pytest.mark.alone
def test_deadline_and_spread_hide_what_eager_exposes(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one slot to spare, as large partitions have it: with two nothing is waited for here either way."""
    monkeypatch.setattr("marius_py.storage.protocols.SMALL_SLOT", 0)
    swaps = build_schedule(P, C, order="beta", seed=0).swaps
    io_per_swap_s = 0.8 * PACE_S * EDGES / BATCH / swaps
    shares = {policy: wait_share(policy, io_per_swap_s) for policy in ("deadline", "spread", "eager")}
    assert shares["deadline"] < 0.05, shares
    assert shares["spread"] < 0.05, shares
    assert shares["eager"] > max(shares["deadline"], 0.002), shares
