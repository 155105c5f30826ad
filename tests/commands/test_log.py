"""Lines of the log and progress bars on stderr."""

from __future__ import annotations

import io
import logging
import os
import re
import sys
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


@pytest.mark.filterwarnings("ignore:Exception ignored in. <function tqdm.__del__")  # before tqdm 4.68
def test_a_bar_whose_terminal_is_gone_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    master, slave = os.openpty()
    terminal = open(slave, "w")  # noqa: SIM115
    monkeypatch.setattr(sys, "stderr", terminal)
    with Bars() as bars:
        bars("stage", 1, 10, "edges")
        os.close(master)
        for stage in ("stage", "another"):
            bars(stage, 9, 10, "edges")
    with pytest.raises(OSError, match="Input/output error"):
        terminal.close()


def _drive(bars: Bars) -> None:
    with bars:
        for done in (0, 50, 100):
            bars("read", done, 100, "B")
        Bars.write("a line")
        bars("sort", 1, None, "edges")


def test_bars_are_silent_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    _drive(Bars())
    assert capsys.readouterr() == ("", "a line\n")


def test_lines_tell_of_long_stages_where_there_is_no_terminal(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO", "marius_py")
    times = iter([0.0, 599.0, 600.0, 610.0, 1300.0, 1300.0, 1901.0])
    monkeypatch.setattr("marius_py.commands.progress.time.monotonic", lambda: next(times))
    trainer: Any = SimpleNamespace(edges_done=500, interrupt=lambda: None)
    with Bars() as bars, CommandWatcher(bars, 3) as watcher:
        watcher.on_start(trainer, 4000, 1)
        for edges in (100, 100, 1000, 100, 700):
            watcher.on_progress(edges)
        for done in (1, 7):
            watcher.on_stage("rank test", done, 10, "edges")
    assert [record.getMessage() for record in caplog.records] == [
        "epoch 2/3: 1,700 of 4,000 edges (42 %), 20:54 left",
        "epoch 2/3: 2,500 of 4,000 edges (62 %), 17:06 left",
        "rank test: 7 of 10 edges (70 %), 05:00 left",
    ]


def test_a_bar_shows_what_is_ranked_in_training(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with Bars() as bars, CommandWatcher(bars, 3) as watcher:
        watcher.on_stage("rank test", 3, 10, "edges")
    assert re.search(r"rank test:\s+30%", capsys.readouterr().err)


def test_bars_on_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    _drive(Bars())
    out, err = capsys.readouterr()
    assert out == ""
    assert "read" in err
    assert "a line" in err


def test_the_bar_of_an_epoch_begins_where_a_run_goes_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    trainer: Any = SimpleNamespace(edges_done=500, interrupt=lambda: None)
    with Bars() as bars, CommandWatcher(bars, 3) as watcher:
        watcher.on_start(trainer, 1000, 1)
        watcher.on_progress(100)
        watcher.on_epoch({"epoch": 1})
        watcher.on_progress(100)
    drawn = capsys.readouterr().err
    assert re.search(r"epoch 2/3:\s+60%", drawn)
    assert re.search(r"epoch 3/3:\s+10%", drawn)


def test_log_lines_reach_stderr(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def train(config: TrainConfig, watcher: Any = None) -> dict[str, Any]:
        logging.getLogger("marius_py.training.trainer").info("epoch 1: loss 0.5")
        logging.getLogger("marius_py.training.trainer").debug("detail")
        return {"test": None, "output": "o"}

    monkeypatch.setattr(marius_py.assembly.build, "train", train)
    assert cli.train(["graph=g"]) == 0
    out, err = capsys.readouterr()
    assert "epoch 1: loss 0.5" in err
    assert "detail" not in err
    assert "no test metrics" in out


@pytest.mark.parametrize(
    ("is_terminal", "when"), [(True, r"\d\d:\d\d:\d\d"), (False, r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")]
)
def test_lines_have_their_date_where_they_are_kept(
    is_terminal: bool, when: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    assert console.guarded(lambda: logging.getLogger("marius_py").info("epoch 1")) == 0
    assert re.fullmatch(f"{when} I epoch 1\n", capsys.readouterr().err)


@pytest.mark.parametrize("level", ["trace", "10", "Trace me"])
def test_a_level_that_does_not_exist_is_refused(
    level: str, runs: list[TrainConfig], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MARIUS_LOG", level)
    assert cli.train(["graph=g"]) == 2
    said = f"error: MARIUS_LOG={level} is unknown: it takes one of debug, info, warning, error\n"
    assert capsys.readouterr().err == said
    assert not runs


@pytest.mark.parametrize(("level", "number"), [("", logging.INFO), ("Warning", logging.WARNING)])
def test_level_of_the_log(
    level: str, number: int, runs: list[TrainConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MARIUS_LOG", level)
    assert cli.train(["graph=g"]) == 0
    assert logging.getLogger("marius_py").level == number


def test_a_line_of_the_log_that_comes_upon_another_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one of a signal's handler does, where standard error is a full pipe."""
    tried = []

    class Busy(io.StringIO):
        def write(self, text: str) -> int:
            tried.append(text)
            raise RuntimeError("reentrant call inside <_io.BufferedWriter name='<stderr>'>")

    monkeypatch.setattr(sys, "stderr", Busy())
    console._StderrHandler().emit(
        logging.LogRecord("marius_py", logging.WARNING, "", 0, "committing", (), None)
    )
    assert tried


def test_errors_and_log_lines_are_one_line_that_steers_no_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A user's class says what it likes."""

    def fail() -> None:
        logging.getLogger("marius_py").warning("%s", "two\nlines\x1b[2J")
        raise ValueError("no\n\x1b[31mquery\x1b[0m today\u2028\n")

    assert console.guarded(fail) == 1
    warning, error, rest = capsys.readouterr().err.split("\n")
    assert warning.endswith(" W two\\nlines\\x1b[2J")
    assert error.startswith(r"error: unexpected ValueError: no\n\x1b[31mquery\x1b[0m today")
    assert error.isprintable()
    assert not rest
