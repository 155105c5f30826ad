"""Kill writers of a node store and look at what is left; run by test_kill.py in a process without torch.

Usage: kill_driver.py FOLDER calls|times COUNT SEED; COUNT is the stride through the calls, or the number
of kills. Forks a writer per kill, so that a kill costs milliseconds.
Prints the number of kills that hit a running writer; raises on the first store that is not its last commit.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

import numpy as np

from marius_py.partitioning import Partitioning
from marius_py.storage.checkpoint_file import CHECKPOINT_NAME
from marius_py.storage.hdf5_nodes import create_node_store, has_commit, open_node_store
from marius_py.storage.node_file import NODES_NAME
from marius_py.storage.protocols import Checkpoint, NodeTable
from marius_py.storage.verify import verify_node_store
from marius_py.testing import SystemCallFaults

PARTS = 4


def content(table: NodeTable, part: int, generation: int) -> tuple[np.ndarray, np.ndarray]:
    """Slot arrays that name their partition and generation in every element."""
    value = np.float32(part * 1000 + generation)
    shapes = (table.slot_rows, table.dim), (table.slot_rows, table.state_dim)
    return np.full(shapes[0], value), np.full(shapes[1], -value)


def written_in(generation: int) -> list[int]:
    """The partitions that a generation changes: all in the first, two in every other."""
    return list(range(PARTS)) if generation == 1 else [generation % PARTS, (generation + 1) % PARTS]


def write(folder: Path, table: NodeTable, last: int, report: int) -> None:
    """Create or resume the store and commit up to generation `last`; a byte to `report` a commit."""
    is_old = has_commit(folder)
    with open_node_store(folder) if is_old else create_node_store(folder, table, spare_slots=2) as store:
        for generation in range(store.generation + 1, last + 1):
            for part in written_in(generation):
                store.write(part, *content(table, part, generation))
                store.write(part, *content(table, part, generation))  # over its uncommitted slot
            relations = np.full((3, 2), generation, np.float32)
            store.commit(Checkpoint({"relations": relations}, {"number": generation}))
            os.write(report, b"c")


def check(folder: Path, table: NodeTable, committed: int) -> int:
    """Generation of the store left behind; raises unless it is a whole one, `committed` or the next."""
    if not folder.exists() or not has_commit(folder):
        require(committed == 0, f"{committed} commits are lost")
        return 0
    findings = [finding for finding in verify_node_store(folder) if not finding.harmless]
    require(not findings, f"damaged: {findings}")
    with open_node_store(folder) as store:
        generation = store.generation
        require(
            generation in (committed, committed + 1), f"generation {generation}, {committed} were committed"
        )
        checkpoint = store.checkpoint()
        require(checkpoint is not None and checkpoint.meta == {"number": generation}, "wrong meta")
        require(
            checkpoint is not None and (checkpoint.arrays["relations"] == generation).all(), "wrong array"
        )
        arrays = content(table, 0, 0)
        for part in range(PARTS):
            newest = max(g for g in range(1, generation + 1) if part in written_in(g))
            store.read_into(part, *arrays)
            size = table.partitioning.size(part)
            for found, expected in zip(arrays, content(table, part, newest), strict=True):
                require(
                    (found[:size] == expected[:size]).all(), f"partition {part} is not of generation {newest}"
                )
    names = sorted(path.name for path in folder.iterdir())
    require(names == [CHECKPOINT_NAME, NODES_NAME], f"stray files: {names}")
    return generation


def require(condition: bool, message: str) -> None:
    if not condition:
        raise SystemExit(message)


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def writer(folder: Path, table: NodeTable, last: int, faults: SystemCallFaults) -> tuple[int, int]:
    """Fork a writer; its process id, and where it reports."""
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            with faults:
                write(folder, table, last, send)
        finally:
            os._exit(0)
    os.close(send)
    return child, receive


def finish(child: int, receive: int) -> tuple[bool, int]:
    """Whether the writer was killed, and how many commits it reported."""
    _, status = os.waitpid(child, 0)
    with os.fdopen(receive, "rb") as pipe:
        return os.WIFSIGNALED(status), len(pipe.read())


def at_calls(root: Path, stride: int) -> int:
    """Kill before every `stride`-th system call, and in the middle of as many transfers."""
    table, last = NodeTable(Partitioning(5000, PARTS), 3, 1), 2
    null = os.open(os.devnull, os.O_WRONLY)
    with SystemCallFaults() as clean:
        write(root / "clean", table, last, null)
    moments = [(number, False) for number in range(1, len(clean.calls) + 1)]
    moments += [(number, True) for number, call in enumerate(clean.calls, 1) if call.name == "pwritev"]
    for number, tear in moments[::stride]:
        folder = root / f"{number}-{tear}"
        was_killed, commits = finish(
            *writer(folder, table, last, SystemCallFaults(number, tear=tear, action=kill))
        )
        require(was_killed, f"call {number} was not reached")
        check(folder, table, commits)
        write(folder, table, last, null)
        require(check(folder, table, last) == last, "the store does not go on")
    return len(moments[::stride])


def at_random_times(root: Path, count: int, seed: int) -> int:
    """Kill one store's writer again and again at random moments."""
    table = NodeTable(Partitioning(100_000, PARTS), 16, 4)
    rng = random.Random(seed)
    kills, generation = 0, 0
    for _ in range(count):
        child, receive = writer(root / "s", table, generation + 1000, SystemCallFaults())
        time.sleep(rng.uniform(0.0, 0.12))
        os.kill(child, signal.SIGKILL)
        was_killed, commits = finish(child, receive)
        kills += was_killed
        generation = check(root / "s", table, generation + commits)
    return kills


if __name__ == "__main__":
    root, mode, count, seed = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    kills = at_calls(root, count) if mode == "calls" else at_random_times(root, count, seed)
    sys.stdout.write(f"{kills}\n")
