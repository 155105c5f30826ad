"""The package's types hold in a user's program."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_a_users_program_passes_strict_checks() -> None:
    pytest.importorskip("mypy")
    here = Path(__file__).parent
    command = [sys.executable, "-m", "mypy", "--strict", "--warn-unreachable", str(here / "typed.py")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=here.parents[1], check=False)
    assert done.returncode == 0, done.stdout + done.stderr
