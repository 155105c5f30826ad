"""A writer killed at any moment leaves its last commit, and the next one goes on from there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

DRIVER = Path(__file__).with_name("kill_driver.py")


def drive(folder: Path, mode: str, count: int, seed: int) -> int:
    command = [sys.executable, str(DRIVER), str(folder), mode, str(count), str(seed)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert result.returncode == 0, result.stderr
    return int(result.stdout)


@pytest.mark.parametrize("stride", [2, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_at_system_calls(tmp_path: Path, stride: int) -> None:
    assert drive(tmp_path, "calls", stride, 0) > 60 // stride


def test_killed_at_random_times(tmp_path: Path) -> None:
    assert drive(tmp_path, "times", 15, 1) == 15


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 7))
def test_killed_at_many_random_times(tmp_path: Path, seed: int) -> None:
    assert drive(tmp_path, "times", 200, seed) == 200
