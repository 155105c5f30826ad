"""Fixtures of the storage tests."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

SHARED_MEMORY = Path("/dev/shm")


def memory_root() -> Path | None:
    """A folder in memory, where flushes cost nothing, for tests with injected faults; None: there is none."""
    return SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else None


@pytest.fixture
def quick_folder() -> Iterator[Path]:
    """An empty folder, in memory if there is such a place."""
    folder = Path(tempfile.mkdtemp(dir=memory_root()))
    yield folder
    shutil.rmtree(folder)
