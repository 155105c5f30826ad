"""A forked process computes with one thread: those that torch had are gone."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import os, signal, sys
import numpy as np, torch
from marius_py.pipeline.execution import torch_threads
from marius_py.pipeline.forked import usable_threads

torch.set_num_threads(2)
table = torch.ones(2000, 2000)
table.mul(2).sum()  # in two threads
with torch_threads(2):
    assert torch.get_num_threads() == 2
if child := os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
signal.alarm(20)
with torch_threads(2):
    table.mul(2).sum()
with torch_threads(2):
    found = torch.get_num_threads()
os._exit(found - 1)
"""


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="no fork")
def test_a_forked_process_does_not_wait_for_threads_that_are_gone() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    (line,) = done.stderr.splitlines()
    assert "1 thread here, not 2" in line
    assert '"spawn"' in line
