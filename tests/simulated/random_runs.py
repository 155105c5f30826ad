"""Settings drawn at random: runs on the device are the CPU's, or refused. Collected by test_simulated.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import marius_py
from marius_py.errors import ConfigError
from tests.end_to_end.test_random_settings import CHOICES, drawn, graphs

BASE: dict[str, Any] = {
    "training.batch_size": 128,
    "model.dim": 16,
    "negatives.count": 20,
    "optimizer.lr": 0.1,
    "training.valid_every": 0,
}
ALIKE: dict[str, Any] = {
    "pipeline.mode": "inline",
    "pipeline.max_in_flight": 1,
    "pipeline.precision": "float32",
    "training.epochs": 1,  # roundings grow
    "model.node_dropout": 0,  # masks are drawn where batches are computed
    "model.relation_dropout": 0,
}
"""What both compute alike."""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return graphs(tmp_path_factory.mktemp("graphs"))


def loss_of(graph: Path, output: Path, settings: dict[str, Any]) -> float | None:
    """The train loss of a run; None if it is refused."""
    try:
        with marius_py.train(graph, output, settings) as run:
            return float(run.result["train"]["loss"])
    except ConfigError:
        return None


@pytest.mark.parametrize("seed", range(40))
def test_a_device_trains_as_the_cpu_does(seed: int, prepared: list[Path], tmp_path: Path) -> None:
    rng = np.random.default_rng([43, seed])
    graph = prepared[rng.integers(len(prepared))]
    settings = BASE | drawn(rng) | ALIKE
    for key in ("model.decoder", "optimizer.name"):
        settings[key] = CHOICES[key][rng.integers(len(CHOICES[key]))]
    there = {
        "device": "cuda",
        "storage.device": rng.choice(["cpu", "cuda"]).item(),
        "pipeline.kernels": rng.choice(["triton", "triton", "torch"]).item(),
    }
    wanted = loss_of(graph, tmp_path / "cpu", settings | {"device": "cpu"})
    found = loss_of(graph, tmp_path / "device", settings | there)
    if wanted is None:
        assert found is None
    elif found is None:
        assert there["storage.device"] == "cuda"
        assert settings.get("negatives.per_question"), "nothing else is refused there alone"
    else:
        assert found == pytest.approx(wanted, rel=0.01)
