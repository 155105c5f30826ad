"""Shared fixtures: the real data folder, one torch thread, the same random numbers, no thread left behind."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# How long an example takes says more of the machine than of the code. The examples are the same in every run:
# a test that begins to fail tells of the change at hand. `--hypothesis-profile=search` looks for new ones.
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None)
settings.load_profile("repeatable")

# Commands leave signals ignored that they find ignored, as nohup and jobs in the background have them; tests,
# and the processes that they start, send them.
if threading.current_thread() is threading.main_thread():
    for _signal, _handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(_signal) is signal.SIG_IGN:
            signal.signal(_signal, _handler)

DEFAULT_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Folder of the real graphs: MARIUS_DATA, else shared/data beside the checkout; skips without them.

    With MARIUS_REQUIRE_DATA set, missing data fails the test instead.
    """
    path = Path(os.environ.get("MARIUS_DATA", DEFAULT_DATA))
    if not (path / "umls" / "train.tsv.gz").exists():
        reason = f"no real graphs in {path}; set MARIUS_DATA to the folder that has FB15k-237, umls, …"
        if os.environ.get("MARIUS_REQUIRE_DATA"):
            pytest.fail(f"MARIUS_REQUIRE_DATA is set, but there are {reason}")
        pytest.skip(reason)
    return path


@pytest.fixture(autouse=True)
def _torch_as_new() -> None:
    """One thread, and the same random numbers whatever ran before: a test that fails does so again alone."""
    import torch

    torch.set_num_threads(1)
    torch.default_generator.manual_seed(0)


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """A command called in this process takes over the package's logger, hydra the root's: give them back."""
    logger, root = logging.getLogger("marius_py"), logging.getLogger()
    before: tuple[list[logging.Handler], int, bool] = [], logging.NOTSET, True
    logger.handlers[:], level, logger.propagate = before  # a fixture of the module may have called a command
    logger.setLevel(level)
    of_root = list(root.handlers), root.level
    yield
    root.handlers[:], level = of_root
    root.setLevel(level)
    logger.handlers[:], level, logger.propagate = before
    logger.setLevel(level)


@pytest.fixture(autouse=True)
def _no_thread_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    left = [t for t in threading.enumerate() if t not in before and t.is_alive() and not t.daemon]
    for thread in left:
        thread.join(timeout=5)
    alive = [t.name for t in left if t.is_alive()]
    assert not alive, f"threads left running: {alive}"
