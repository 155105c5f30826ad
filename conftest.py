"""What holds for the tests and for the doctests of the package alike."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec
from pathlib import Path

collect_ignore_glob = [] if find_spec("triton") else ["marius_py/nn/kernels/triton_*.py"]

# Triton decides when a kernel is defined whether it is compiled or interpreted; without a GPU, it can only be
# interpreted. Models on the CPU take the plain way all the same unless a test asks for the kernels.
has_gpu = shutil.which("nvidia-smi") is not None or Path("/dev/nvidiactl").exists()
if not has_gpu:
    os.environ.setdefault("TRITON_INTERPRET", "1")
