"""A disk that is full or fails at any system call of a run: one error, exit code 1, and the run resumes."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from marius_py.testing.crash_harness import committed_position
from marius_py.testing.crashes import CrashServer
from marius_py.testing.system_calls import SystemCall, SystemCallFaults
from marius_py.verify import is_sound, verify
from tests.end_to_end.conftest import SMALL, Train, embeddings

SHORT = ("storage.partitions=3", "training.epochs=1", "training.batch_size=512", "checkpoint.every_steps=1")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CrashServer]:
    with CrashServer(tmp_path_factory.mktemp("server")) as server:
        yield server


class Trial:
    """A short run through the command, whose n-th system call fails."""

    def __init__(self, server: CrashServer, graph: Path, place: Path) -> None:
        self.server, self.place = server, place
        self.words = ["train", f"graph={graph}", *SMALL, *SHORT]
        undisturbed = server.run([*self.words, f"output={place / 'whole'}"])
        assert undisturbed.code == 0, undisturbed.output
        assert undisturbed.calls is not None
        self.calls = undisturbed.calls
        self.wanted = embeddings(place / "whole")

    def strike(self, number: int, error: int) -> None:
        run = self.place / f"run-{number}-{error}"
        ended = self.server.run([*self.words, f"output={run}"], fail_at_call=(number, error))
        errors = [line for line in ended.output.splitlines() if line.startswith("error:")]
        assert ended.code == 1, f"call {number}: {ended.output}"
        assert len(errors) == 1, f"call {number}: {errors}"
        reason = "disk full" if error == errno.ENOSPC else os.strerror(error)
        assert reason in errors[0], f"call {number}: {errors[0]}"
        assert "Traceback" not in ended.output
        if committed_position(run) is not None:
            assert is_sound(verify(run)), f"call {number}: {verify(run)}"
        ended = self.server.run([*self.words, f"output={run}", "resume=true"])
        assert ended.code == 0, f"call {number}: {ended.output}"
        np.testing.assert_array_equal(embeddings(run), self.wanted)
        assert not verify(run), f"call {number}"


def test_calls_here_and_there(server: CrashServer, graph: Path, tmp_path: Path) -> None:
    trial = Trial(server, graph, tmp_path)
    assert trial.calls > 60
    for number in range(1, trial.calls + 1, 97):
        trial.strike(number, (errno.ENOSPC, errno.EIO)[number % 2])


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("first", range(1, 5))
def test_every_call(first: int, server: CrashServer, graph: Path, tmp_path: Path) -> None:
    trial = Trial(server, graph, tmp_path)
    for turn, number in enumerate(range(first, trial.calls + 1, 4)):
        trial.strike(number, (errno.ENOSPC, errno.EIO)[turn % 2])


def test_all_files_of_a_run_pass_the_hook(run_train: Train, graph: Path, tmp_path: Path) -> None:
    """What the faults do not see they cannot fail: every file that is read or written is among the calls."""
    with SystemCallFaults() as faults:
        run_train(*SHORT, "pipeline.trace=true")
    seen = {SystemCall(name, Path(path).name, 0) for name, path, _ in faults.calls}
    for name in ("config.yaml", "metrics.jsonl", "result.json", "trace.json", "checkpoint.h5"):
        assert SystemCall("open", f"{name}.tmp", 0) in seen, name
        assert SystemCall("pwritev", f"{name}.tmp", 0) in seen, name
        assert SystemCall("rename", name, 0) in seen, name
    for call in ("preadv", "pwritev", "fdatasync"):
        assert SystemCall(call, "nodes.h5", 0) in seen, call
    for call in ("open", "preadv"):
        assert SystemCall(call, "edges.h5", 0) in seen, call
