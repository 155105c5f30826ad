"""The tests of a GPU on the simulated one, each in a process of its own: it takes the place of PyTorch's."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

pytestmark = [
    pytest.mark.skipif(
        torch.version.cuda is not None, reason="PyTorch is built for a device, which is in the way"
    ),
    pytest.mark.skipif(sys.platform != "linux", reason="the device is played for Linux's build of PyTorch"),
    pytest.mark.skipif(
        find_spec("triton") is None, reason="Triton is not installed (extra marius_py[kernels])"
    ),
]

ROOT = Path(__file__).resolve().parents[2]

# Kernels alone are tried without a device; autograd is not played; some checks need a device that is late.
NOT_PLAYED = ("autograd", "contrast_kernel", "checks")
"""Tests of a GPU that the simulated one cannot stand for, by parts of their names."""

LONG = ("test_trained_as", "other_ways", "recorded", "trains_as_the_cpu")
"""Those that take longest."""

OTHERS = " and ".join(f"not {name}" for name in (*NOT_PLAYED, *LONG))


def run_on_device(order: str, chosen: str) -> None:
    environment = {**os.environ, "MARIUS_SIMULATED_ORDER": order}
    files = ["tests/simulated/checks.py", "tests/simulated/random_runs.py", "tests/nn/test_cuda.py"]
    words = ["-p", "tests.simulated.cuda", "-m", "", "-n", "0", "-k", chosen, "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words, *files],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
    assert " skipped" not in done.stdout


@pytest.mark.parametrize(
    ("order", "chosen"),
    [
        pytest.param("late", "checks or travel or (trained_as and threaded-torch)", marks=pytest.mark.slow),
        pytest.param("late", "trained_as and torch and not threaded", marks=pytest.mark.slow),
        pytest.param("early", "never_waits or (other_ways and TransE-device)", marks=pytest.mark.slow),
        pytest.param("7", "equal_to_the_cpu or (recorded and None-masked-device)", marks=pytest.mark.slow),
    ],
)
def test_what_is_written_for_a_device(order: str, chosen: str) -> None:
    run_on_device(order, chosen)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("chosen", [*LONG, OTHERS], ids=[*LONG, "others"])
def test_all_that_is_written_for_a_device(chosen: str) -> None:
    run_on_device("3", chosen)
