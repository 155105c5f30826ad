"""What a disk does with partitions like a run's (floor 5): a folder in, rates of reading and writing out."""

from __future__ import annotations

import statistics
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from marius_py.errors import StorageError
from marius_py.partitioning import Partitioning
from marius_py.storage.aligned import allocate
from marius_py.storage.folders import locked_folder, remove_left
from marius_py.storage.hdf5_nodes import create_node_store
from marius_py.storage.protocols import Checkpoint, NodeTable

PROBES = 3
"""Times that a rate is measured; the median counts."""
_UNTOUCHED = 2
"""Times before that: a first write to a place on the disk costs the file system more than those of a run."""
_PROBE_BYTES = 64 << 20
_PROBE_FOLDER = ".plan-"
_LEFT_S = 60.0
"""Seconds after which a folder that no process holds was left by one that was killed."""


def measure_disk(
    folder: Path, row_floats: tuple[int, int], probe_bytes: int | None = None
) -> tuple[float, float, float]:
    """What a temporary store in `folder` takes for partitions like the run's.

    Args:
        folder: made if it is not there.
        row_floats: D and S, floats of embedding and optimizer state a node.
        probe_bytes: of the partitions in it; None: enough to time.

    Returns:
        Bytes a second of reading and of writing partitions, and seconds of a commit of nothing new.

    Raises:
        StorageError: the folder cannot be written, or the disk is full.
    """
    dim, state_dim = row_floats
    size = _PROBE_BYTES if probe_bytes is None else probe_bytes
    rows = max(1, size // 2 // (4 * (dim + state_dim)))
    rows = rows // 1024 * 1024 or rows
    table = NodeTable(Partitioning(2 * rows, 2), dim, state_dim)
    with ExitStack() as held:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            remove_left(folder, _PROBE_FOLDER, older_s=_LEFT_S)
            name = held.enter_context(locked_folder(folder, _PROBE_FOLDER, f"measuring in {folder}"))
        except OSError as error:
            if isinstance(error, StorageError):
                raise
            raise StorageError(f"{folder} cannot be written to: {error.strerror}") from error
        rng = np.random.default_rng(0)
        block, state = allocate((table.slot_rows, dim)), allocate((table.slot_rows, state_dim))
        for array in (block, state):
            array[:] = rng.random(array.shape, dtype=np.float32)
        with create_node_store(name / "probe", table, spare_slots=2) as store:
            written, committed, read = [], [], []
            for _ in range(_UNTOUCHED + PROBES):
                started = time.perf_counter()
                for part in (0, 1):
                    store.write(part, block, state)
                store.commit(Checkpoint())
                written.append(time.perf_counter() - started)
                started = time.perf_counter()
                store.commit(Checkpoint())
                committed.append(time.perf_counter() - started)
                started = time.perf_counter()
                for part in (0, 1):
                    store.read_into(part, block, state)
                read.append(time.perf_counter() - started)
        write_s, commit_s, read_s = (
            statistics.median(seconds[_UNTOUCHED:]) for seconds in (written, committed, read)
        )
        moved = 2 * table.slot_bytes
        return moved / read_s, moved / max(write_s - commit_s, write_s / 2), commit_s
