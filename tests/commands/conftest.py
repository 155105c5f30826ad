"""Every test of a command begins in an empty folder; training can be replaced by a recorder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import marius_py.assembly.build
import marius_py.evaluating
from marius_py.config import TrainConfig
from tests.commands.stand_ins import METRICS


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MARIUS_DEBUG", raising=False)
    monkeypatch.delenv("MARIUS_LOG", raising=False)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[TrainConfig]:
    """Training replaced by a recorder that returns metrics."""
    seen: list[TrainConfig] = []

    def train(config: TrainConfig, watcher: Any = None) -> dict[str, Any]:
        seen.append(config)
        return {"test": METRICS, "train": {}, "output": config.output or "runs/x"}

    monkeypatch.setattr(marius_py.assembly.build, "train", train)
    return seen
