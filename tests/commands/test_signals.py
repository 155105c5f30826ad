"""Signals end a command in order, and come upon nothing that would lose them."""

from __future__ import annotations

import ctypes
import importlib
import io
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import marius_py.assembly.build
import marius_py.evaluating
from marius_py import cli
from marius_py.commands import console
from marius_py.commands.progress import Bars
from marius_py.commands.watch import CommandWatcher
from marius_py.config import TrainConfig
from marius_py.errors import (
    InterruptedRunError,
)
from marius_py.run_state import RunState
from marius_py.types import Position
from tests.commands.stand_ins import METRICS, SMALL, send_signal, write_small_graph


class _Trainer:
    def __init__(self) -> None:
        self.interrupted = 0
        self.state = RunState()
        self.epochs_done = self.edges_done = 0

    def interrupt(self) -> None:
        self.interrupted += 1


@pytest.fixture
def hangup() -> Iterator[None]:
    """The handler of SIGHUP put back, which stays ignored where a terminal was closed."""
    before = signal.getsignal(signal.SIGHUP)
    yield
    signal.signal(signal.SIGHUP, before)


def test_a_closed_terminal_commits_however_often_it_says_so(hangup: None) -> None:
    trainer: Any = _Trainer()
    with Bars() as bars, CommandWatcher(bars, 3) as watcher:
        watcher.on_start(trainer, 100, 0)
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGHUP)
        assert trainer.interrupted == 1
    os.kill(os.getpid(), signal.SIGHUP)
    assert trainer.interrupted == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_that_is_ignored_stays_so(number: signal.Signals) -> None:
    trainer: Any = _Trainer()
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with Bars() as bars, CommandWatcher(bars, 3) as watcher:
            watcher.on_start(trainer, 100, 0)
            os.kill(os.getpid(), number)
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)
    assert trainer.interrupted == 0


def test_a_signal_that_code_in_c_handles_is_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a handler that was there before Python it knows None, which it takes for no handler to put back."""
    known = signal.getsignal
    monkeypatch.setattr(signal, "getsignal", lambda one: None if one == signal.SIGTERM else known(one))
    trainer: Any = _Trainer()
    before = known(signal.SIGTERM)
    with Bars() as bars, CommandWatcher(bars, 3) as watcher:
        watcher.on_start(trainer, 10, 0)
        assert known(signal.SIGTERM) is before
        assert known(signal.SIGINT) is not before
    assert known(signal.SIGTERM) is before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_first_signal_commits_and_second_stops(number: signal.Signals) -> None:
    trainer: Any = _Trainer()
    before = signal.getsignal(number)
    with Bars() as bars, CommandWatcher(bars, 3) as watcher:
        watcher.on_start(trainer, 100, 0)
        os.kill(os.getpid(), number)
        assert trainer.interrupted == 1
        with pytest.raises(KeyboardInterrupt):
            send_signal(number)
    assert signal.getsignal(number) == before


def test_a_second_trainer_of_a_run_leaves_the_handlers_of_before() -> None:
    """One ends an epoch under old settings, the next goes on."""
    before = signal.getsignal(signal.SIGINT)
    with Bars() as bars, CommandWatcher(bars, 3) as watcher:
        for _ in range(2):
            watcher.on_start(_Trainer(), 100, 0)  # type: ignore[arg-type]
    assert signal.getsignal(signal.SIGINT) == before


def test_a_signal_during_the_last_commit_ends_the_ranking_after_it() -> None:
    trainer: Any = _Trainer()
    trainer.state = RunState(position=Position(1, 0, 0), history=[{}])
    with Bars() as bars, CommandWatcher(bars, 1) as watcher:
        watcher.on_start(trainer, 100, 0)
        watcher.on_stage("rank valid", 1, 2, "edges")
        os.kill(os.getpid(), signal.SIGTERM)
        assert trainer.interrupted == 1
        with pytest.raises(InterruptedRunError, match="resume=true"):
            watcher.on_stage("rank test", 1, 2, "edges")


def test_other_threads_leave_signals_alone() -> None:
    before = signal.getsignal(signal.SIGTERM)
    codes: list[int] = []

    def work() -> None:
        with Bars() as bars, CommandWatcher(bars, 3) as watcher:
            watcher.on_start(_Trainer(), 100, 0)  # type: ignore[arg-type]
        codes.append(console.guarded(lambda: None))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert codes == [0]
    assert signal.getsignal(signal.SIGTERM) == before


def test_sigterm_before_training_is_code_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def train(config: TrainConfig, watcher: Any = None) -> dict[str, Any]:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)
        return {}

    monkeypatch.setattr(marius_py.assembly.build, "train", train)
    assert cli.train(["graph=g"]) == 130


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_waits_for_the_end_of_an_import(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A library may swallow what interrupts its import, or be left half made."""
    name = f"imported_at_{number.name}"
    (tmp_path / f"{name}.py").write_text(
        f"import os, signal, time\nfor _ in range(2):\n    os.kill(os.getpid(), {int(number)})\n"
        "    time.sleep(0.1)\nwhole = True\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    before = signal.getsignal(number)
    after: list[str] = []

    def run() -> None:
        importlib.import_module(name)
        time.sleep(5)
        after.append("the sleep")

    assert console.guarded(run) == 130
    assert sys.modules.pop(name).whole
    assert not after
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(("words", "code"), [("--version", 0), ("model.dimm=3", 2)])
def test_a_signal_while_the_interpreter_ends_leaves_the_code(
    words: str, code: int, number: signal.Signals
) -> None:
    program = (
        "import atexit, os, sys; from marius_py import cli\n"
        f"sys.argv = ['python -m marius_py', 'train', '{words}']\n"
        f"atexit.register(os.kill, os.getpid(), {int(number)})\n"
        "sys.exit(cli.main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == code, done.stderr


def test_a_signal_waits_for_omegaconf() -> None:
    """Which puts an error of its own in place of what interrupts it."""
    from omegaconf import OmegaConf

    made: list[Any] = []
    sent: list[int] = []

    def once() -> str:
        if not sent:
            sent.append(signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)
        return "value"

    def run() -> None:
        OmegaConf.register_new_resolver("sends_a_signal", once, replace=True)
        try:
            made.append(OmegaConf.create({"key": "${sends_a_signal:}"}).key)
            time.sleep(5)
            made.append("after the sleep")
        finally:
            OmegaConf.clear_resolver("sends_a_signal")

    assert console.guarded(run) == 130
    assert made == ["value"]


def test_a_signal_waits_for_what_hydra_reads() -> None:
    """Which closes a file that an interrupt has kept from being opened."""
    from hydra._internal.core_plugins import importlib_resources_config_source as source

    read, sent = source.ImportlibResourcesConfigSource._read_config, []

    class Opened:
        def open(self, **named: Any) -> Any:
            os.kill(os.getpid(), signal.SIGTERM)
            sent.append("opened")
            return io.StringIO("key: value")

    def run() -> None:
        read(source.ImportlibResourcesConfigSource("hydra", "pkg://marius_py"), Opened())
        time.sleep(5)

    assert console.guarded(run) == 130
    assert sent == ["opened"]


def test_a_signal_while_an_object_goes_is_not_lost() -> None:
    class Sends:
        def __del__(self) -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.001)

    def run() -> None:
        Sends()
        time.sleep(5)

    started = time.perf_counter()
    assert console.guarded(run) == 130
    assert time.perf_counter() - started < 4


def test_one_more_signal_while_an_interrupt_is_told_is_code_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def tell(line: str) -> None:
        send_signal(signal.SIGTERM)

    monkeypatch.setattr(console, "tell", tell)
    assert console.guarded(lambda: send_signal(signal.SIGTERM)) == 130


@pytest.mark.parametrize("split", ["valid", "test"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_edges_are_ranked_ends_the_run(
    split: str,
    number: signal.Signals,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """All is committed then; going on ranks what was to be ranked."""
    write_small_graph()
    ranked: list[str] = []
    signals: list[int] = []

    def rank_split(folder: Path, graph: Any, edges: Any, model: Any, name: str, **how: Any) -> Any:
        ranked.append(name)
        if name == split and not signals:
            signals.append(number)
            send_signal(number)
        return SimpleNamespace(to_json=lambda: METRICS)

    monkeypatch.setattr("marius_py.assembly.joint.rank_split", rank_split)
    settings = [*SMALL, "training.valid_every=1", "training.epochs=1"]
    assert cli.train(settings) == 130
    assert capsys.readouterr().err.splitlines()[-1].endswith("go on with resume=true")
    assert ranked[-1] == split
    assert not (tmp_path / "run=1" / "result.json").exists()
    ranked.clear()
    assert cli.train(["output=run=1", "resume=true"]) == 0
    assert ranked == (["valid", "test"] if split == "valid" else ["test"])
    assert (tmp_path / "run=1" / "result.json").exists()


def test_interrupted_run_is_code_130_and_goes_on(tmp_path: Path) -> None:
    write_small_graph()
    command = [sys.executable, "-m", "marius_py", "train", *SMALL, "training.epochs=1000"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    assert process.stderr is not None
    with process.stderr:
        for line in process.stderr:
            if "epoch 2" in line:
                process.send_signal(signal.SIGINT)
                break
        rest = process.stderr.read()
    assert process.wait(60) == 130
    assert "Traceback" not in rest
    assert "resume=true" in rest.splitlines()[-1]
    done = len((tmp_path / "run=1" / "metrics.jsonl").read_text().splitlines())
    assert cli.train(["output=run=1", "resume=true", f"training.epochs={done + 1}"]) == 0
    assert len((tmp_path / "run=1" / "metrics.jsonl").read_text().splitlines()) == done + 1


def test_a_signal_while_llvm_calls_back_is_not_lost() -> None:
    """As when loops are compiled, or what is kept of them is loaded: ctypes drops what is raised there."""
    module: dict[str, Any] = {"__name__": "llvmlite.binding.executionengine", "os": os, "time": time}
    exec(f"def notify():\n    os.kill(os.getpid(), {int(signal.SIGINT)})\n    time.sleep(0.001)", module)
    called = ctypes.CFUNCTYPE(None)(module["notify"])

    def run() -> None:
        called()
        time.sleep(5)

    started = time.perf_counter()
    assert console.guarded(run) == 130
    assert time.perf_counter() - started < 4
