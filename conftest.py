"""What holds for the tests and for the doctests of the package alike."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

collect_ignore_glob = [] if find_spec("triton") else ["marius_py/nn/kernels/triton_*.py"]

# Triton decides when a kernel is defined whether it is compiled or interpreted; without a GPU, it can only be
# interpreted. Models on the CPU take the plain way all the same unless a test asks for the kernels.
has_gpu = shutil.which("nvidia-smi") is not None or Path("/dev/nvidiactl").exists()
if not has_gpu:
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """A process for each core where tests run whole, none beside pytest's own for fewer tests.

    A file is done sooner than processes have begun, and tests that measure times have the machine for
    themselves: only where the markers leave them out, others run side by side.
    """
    whole = config.args == config.getini("testpaths") and not config.option.keyword
    apart = any(left_out in config.option.markexpr for left_out in ("not slow", "not alone"))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores if whole and apart and cores > 1 else 0
