"""Assembling a run: what cannot be had is refused before anything is opened."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from marius_py.build import train, warn_of_decline
from marius_py.config import load_config
from marius_py.errors import ConfigError


def test_a_buffer_on_a_device_that_is_not_there_is_refused(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    config = load_config([f"output={tmp_path / 'run'}", f"graph={tmp_path / 'none'}", "storage.device=cuda"])
    with pytest.raises(ConfigError, match=r"storage\.device=cuda.*set storage\.device=cpu"):
        train(config)
    assert not (tmp_path / "run").exists()


def test_a_missing_graph_leaves_no_run_folder(tmp_path: Path) -> None:
    config = load_config([f"output={tmp_path / 'run'}", f"graph={tmp_path / 'none'}", "device=cpu"])
    with pytest.raises(OSError, match="does not exist"):
        train(config)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("settings", "said"), [([], True), (["training.patience=2"], False), (["checkpoint.best=true"], False)]
)
def test_a_decline_is_told_only_where_no_setting_provides_for_it(
    settings: list[str], said: bool, caplog: pytest.LogCaptureFixture
) -> None:
    history = [{"epoch": epoch, "valid": {"mrr": mrr}} for epoch, mrr in ((4, 0.2), (9, 0.1))]
    warn_of_decline(load_config(["training.valid_every=5", *settings]), history)
    assert ("is 0.1000 at the end" in caplog.text) == said
