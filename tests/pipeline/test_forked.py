"""A forked process computes with one thread: those that torch and faiss had are gone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.small_runs import write_run

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")

IN_TRAINING = """
import os, signal, sys
import numpy as np, torch
from marius_py.pipeline.execution import torch_threads

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

OF_AN_OPENED_RUN = """
import os, signal, sys
import numpy as np, torch
from marius_py import load

torch.set_num_threads(2)
table = torch.ones(2000, 2000)
run = load(sys.argv[1])
table.mul(2).sum()  # in two threads
if os.fork() == 0:  # uses neither this package nor anything it would have to tell of
    signal.alarm(20)
    table.mul(2).sum()
    os._exit(torch.get_num_threads() - 1)
if os.waitstatus_to_exitcode(os.wait()[1]):
    sys.exit("one thread is enough")
if child := os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
signal.alarm(20)
table.mul(2).sum()
run.neighbors("Oslo")
run.predict(head="Oslo", relation="likes", probabilities=True, temperature=1.0)
run.score([("Oslo", "likes", "Bern")])
run.evaluate("test")
os._exit(torch.get_num_threads() - 1)
"""

OF_AN_INDEX = """
import os, signal, sys
import faiss, numpy as np
from marius_py import load
from marius_py.predict import open_index

faiss.omp_set_num_threads(2)
run = load(sys.argv[1])
ids = np.arange(run.num_nodes)
index = open_index(run)
index.neighbors(run, ids, 3)
if child := os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
signal.alarm(20)
index.neighbors(run, ids, 3)
os._exit(faiss.omp_get_max_threads() - 1)
"""


def _run(program: str, *arguments: str) -> list[str]:
    """Lines that a program writes to standard error; it has to succeed."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr.splitlines()


def _check_told(lines: list[str]) -> None:
    (line,) = lines
    assert "1 thread here, not 2" in line
    assert '"spawn"' in line


def test_a_forked_process_does_not_wait_for_threads_that_are_gone() -> None:
    _check_told(_run(IN_TRAINING))


@pytest.mark.slow
def test_a_run_opened_before_the_fork_is_used_with_one_thread(tmp_path: Path) -> None:
    _check_told(_run(OF_AN_OPENED_RUN, str(write_run(tmp_path)[0])))


@pytest.mark.slow
def test_an_index_opened_before_the_fork_is_searched_with_one_thread(tmp_path: Path) -> None:
    names = [f"node {i}" for i in range(3000)]
    _run(OF_AN_INDEX, str(write_run(tmp_path, names=names, dim=8)[0]))
