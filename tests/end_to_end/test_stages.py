"""A stage that raises, hangs or diverges: one message that names it, exit code 1; resuming goes on."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from marius_py.errors import StalledError
from marius_py.pipeline.watchdog import Watchdog
from marius_py.testing.crashes import CrashServer, Ended
from marius_py.verify import is_sound, verify
from tests.end_to_end.conftest import SMALL, embeddings

FAULT = """
import importlib, threading, time
def strike(where, name, at):
    module, _, kind = where.partition(":")
    owner = importlib.import_module(module)
    owner = getattr(owner, kind) if kind else owner
    original, calls = getattr(owner, name), [0]
    def call(*words, **named):
        calls[0] += 1
        if calls[0] == at:
            {act}
        return original(*words, **named)
    setattr(owner, name, call)
strike({where!r}, {name!r}, {at})
"""
PLACES = {
    "load": ("marius_py.buffer:PartitionBuffer", "lease", 5),
    "draw": ("marius_py.data.drawing:BatchDrawing", "draw", 5),
    "gather": ("marius_py.buffer:PartitionBuffer", "gather_rows", 5),
    "compute": ("marius_py.nn.model:LinkPredictionModel", "gradients", 5),
    "scatter": ("marius_py.buffer:PartitionBuffer", "update", 5),
    "I/O: read": ("marius_py.storage.hdf5_store:Hdf5PartitionStore", "read_into", 4),
    "I/O: write": ("marius_py.storage.hdf5_store:Hdf5PartitionStore", "write", 6),
    "commit": ("marius_py.storage.hdf5_store:Hdf5PartitionStore", "commit", 2),
    "validate": ("marius_py.evaluation.evaluator:Evaluator", "evaluate", 1),
    "evaluate": ("marius_py.evaluation.evaluator:Evaluator", "evaluate", 3),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CrashServer]:
    with CrashServer(tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture(scope="module")
def whole(graph: Path, server: CrashServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("whole") / "run"
    assert server.run(["train", f"graph={graph}", f"output={run}", *SMALL]).code == 0
    return run


def strike(
    server: CrashServer, graph: Path, run: Path, stage: str, mode: str, act: str, *words: str
) -> Ended:
    where, name, at = PLACES[stage]
    settings = [*SMALL, f"pipeline.mode={mode}", "pipeline.max_in_flight=1", *words]
    setup = FAULT.format(where=where, name=name, at=at, act=act)
    return server.run(["train", f"graph={graph}", f"output={run}", *settings], setup=setup)


def resume(server: CrashServer, run: Path, whole: Path) -> None:
    assert is_sound(verify(run))
    ended = server.run(["train", f"output={run}", "resume=true", "pipeline.stall_seconds=300"])
    assert ended.code == 0, ended.output
    np.testing.assert_array_equal(embeddings(run), embeddings(whole))
    assert not verify(run)


RAISING = [
    pytest.param(stage, mode, marks=[] if number % 2 == 1 and mode == "threaded" else pytest.mark.slow)
    for number, stage in enumerate(PLACES)
    for mode in ("inline", "threaded")
]


@pytest.mark.parametrize(("stage", "mode"), RAISING)
def test_a_stage_that_raises(
    stage: str, mode: str, server: CrashServer, graph: Path, whole: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    ended = strike(server, graph, run, stage, mode, "raise RuntimeError('injected trouble')")
    assert ended.code == 1, ended.output
    errors = [line for line in ended.output.splitlines() if line.startswith("error:")]
    assert len(errors) == 1
    assert "RuntimeError: injected trouble" in errors[0]
    # What the I/O thread does, a stage waits for: it fails there.
    waiting = {"I/O: read": "load", "I/O: write": "load"}
    assert f"stage '{waiting.get(stage, stage)}' failed" in errors[0]
    assert "Traceback" not in ended.output
    resume(server, run, whole)


@pytest.mark.parametrize(
    ("stage", "mode"),
    [
        pytest.param("load", "threaded", marks=pytest.mark.slow),
        pytest.param("gather", "threaded", marks=pytest.mark.slow),
        pytest.param("compute", "threaded", marks=pytest.mark.slow),
        ("compute", "inline"),
        pytest.param("scatter", "threaded", marks=pytest.mark.slow),
        pytest.param("I/O: read", "threaded", marks=pytest.mark.slow),
        pytest.param("I/O: read", "inline", marks=pytest.mark.slow),
        pytest.param("I/O: write", "threaded", marks=pytest.mark.slow),
        pytest.param("commit", "threaded", marks=pytest.mark.slow),
        pytest.param("validate", "threaded", marks=pytest.mark.slow),
        pytest.param("evaluate", "inline", marks=pytest.mark.slow),
    ],
)
def test_a_stage_that_hangs(
    stage: str, mode: str, server: CrashServer, graph: Path, whole: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    act = "threading.Event().wait()"  # for ever, and no signal ends it
    ended = strike(server, graph, run, stage, mode, act, "pipeline.stall_seconds=2")
    assert ended.code == 1, ended.output
    assert ended.seconds < 60
    errors = [line for line in ended.output.splitlines() if line.startswith("error:")]
    assert len(errors) == 1
    assert errors[0].startswith(f"error: stage '{stage}' made no progress for ")
    assert "pipeline.stall_seconds" in errors[0]
    assert "most recent call first" in ended.output
    assert " in call" in ended.output  # the frame that hangs
    resume(server, run, whole)


@pytest.mark.parametrize(
    ("what", "where", "name"),
    [
        pytest.param(
            "write metrics.jsonl", "marius_py.assembly.joint", "write_lines", marks=pytest.mark.slow
        ),
        pytest.param("write result.json", "marius_py.assembly.build", "write_json", marks=pytest.mark.slow),
        ("trackers", "marius_py.tracking.trackers:CsvTracker", "log"),
    ],
)
def test_what_hangs_between_stages(
    what: str, where: str, name: str, server: CrashServer, graph: Path, whole: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    words = [f"graph={graph}", f"output={run}", *SMALL, "trackers=[csv]", "pipeline.stall_seconds=2"]
    setup = FAULT.format(where=where, name=name, at=1, act="threading.Event().wait()")
    ended = server.run(["train", *words], setup=setup, kill_after_s=120)
    assert ended.code == 1, ended.output
    assert f"error: stage '{what}' made no progress for " in ended.output
    resume(server, run, whole)


@pytest.mark.parametrize("mode", ["inline", "threaded"])
def test_a_loss_that_is_no_number(
    mode: str, server: CrashServer, graph: Path, whole: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    act = "update = original(*words, **named); update.loss.fill_(float('nan')); return update"
    ended = strike(server, graph, run, "compute", mode, act)
    assert ended.code == 1
    errors = [line for line in ended.output.splitlines() if line.startswith("error:")]
    assert len(errors) == 1
    for fact in ("loss became nan", "epoch 1", "step", "largest row gradients", "last commit is intact"):
        assert fact in errors[0]
    resume(server, run, whole)


# ---------------------------------------------------------------------- whom to blame


def test_who_waits_is_not_to_blame() -> None:
    dog = Watchdog(10)
    dog.current |= {"a": (0.0, "wait for gather"), "b": (1.0, "gather"), "c": (95.0, "load")}
    assert dog.stalled(100.0) == ("b", "gather", 99.0)


def test_loading_is_excused_while_the_disk_moves() -> None:
    dog = Watchdog(10)
    dog.current |= {"main": (0.0, "load"), "marius-io": (95.0, "I/O: read")}
    assert dog.stalled(100.0) is None
    assert dog.stalled(106.0) == ("marius-io", "I/O: read", 11.0)


def test_an_idle_disk_excuses_nobody() -> None:
    dog = Watchdog(10)
    dog.current |= {"main": (0.0, "load"), "marius-io": (0.0, "idle")}
    assert dog.stalled(100.0) == ("main", "load", 100.0)


def test_when_all_wait_the_longest_is_named() -> None:
    dog = Watchdog(10)
    dog.current |= {"a": (5.0, "wait for load"), "b": (2.0, "wait for a place in flight")}
    assert dog.stalled(20.0) == ("b", "wait for a place in flight", 18.0)
    dog.current["c"] = (15.0, "compute")
    assert dog.stalled(20.0) is None


def test_progress_keeps_it_quiet_and_the_alarm_rings_once(capfd: pytest.CaptureFixture[str]) -> None:
    hung: list[str] = []
    heard: list[StalledError] = []
    with Watchdog(0.6, hung.append, grace_s=0.05) as dog, dog.listening(heard.append), dog.doing("work"):
        for _ in range(8):
            time.sleep(0.1)
            dog.touch()
        assert not heard
        time.sleep(1.2)
    assert [error.stage for error in heard] == ["work"]
    assert len(hung) == 1
    assert "most recent call first" in capfd.readouterr().err


def test_time_in_which_all_threads_were_stopped_is_nobodys_fault() -> None:
    dog = Watchdog(10)
    dog.current = {"a": (0.0, "compute")}
    dog.look(5.0, 6.0)
    assert dog.stalled(10.0) == ("a", "compute", 10.0)
    dog.look(6.0, 100.0)
    assert dog.stalled(109.0) is None
    assert dog.stalled(110.0) == ("a", "compute", 10.0)


STOPPED = """
import sys
from marius_py.pipeline.watchdog import Watchdog
with Watchdog(2) as dog, dog.doing("work"):
    print("ready", flush=True)
    sys.stdin.readline()
    print(dog.error)
"""


@pytest.mark.slow
def test_a_run_that_was_stopped_for_long_goes_on() -> None:
    words = [sys.executable, "-c", STOPPED]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdin is not None
        assert run.stdout is not None
        assert run.stdout.readline() == "ready\n"
        run.send_signal(signal.SIGSTOP)
        time.sleep(3)
        run.send_signal(signal.SIGCONT)
        time.sleep(1)
        assert run.communicate("end\n")[0] == "None\n"


def test_without_a_limit_nothing_is_watched() -> None:
    with Watchdog(None) as dog, dog.doing("anything"):
        assert dog.stalled(1e9) is None
