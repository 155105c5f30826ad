"""What a command shows and hears while a run trains (floor 6): a bar, Ctrl-C, SIGTERM, SIGHUP."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from marius_py.assembly.build import Watcher
from marius_py.assembly.interrupts import Interrupts
from marius_py.commands.progress import Bars
from marius_py.commands.streams import leave_terminal, tell
from marius_py.training.trainer import Trainer

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class CommandWatcher(Watcher):
    """Draws an epoch's bar and turns Ctrl-C, SIGTERM or SIGHUP into a commit and an orderly end.

    See `Interrupts`. Signals that are ignored, as by nohup or in the background of a script, stay so, and
    those that code in C handles, as of a library that was loaded before Python, are left to it. Use it in a
    `with` block, which puts the previous handlers back.

    Args:
        bars: where progress is drawn.
        epochs: epochs of the run in all.
    """

    def __init__(self, bars: Bars, epochs: int) -> None:
        self._bars = bars
        self._epochs = epochs
        self._epoch = 0
        self._done = 0
        self._num_edges = 0
        heard = [one for one in SIGNALS if signal.getsignal(one) not in (signal.SIG_IGN, None)]
        self._interrupts = Interrupts(heard, leave_terminal)

    def __enter__(self) -> CommandWatcher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._interrupts.end()

    def on_start(self, trainer: Trainer, num_edges: int, epochs_done: int) -> None:
        """Take over the signals, for all trainers of the run; an epoch has `num_edges` edges."""
        self._num_edges = num_edges
        self._epoch = epochs_done
        self._done = trainer.edges_done
        self._interrupts.begin(trainer)

    def on_hang(self, message: str) -> None:
        """End the process: nothing of it can be waited for."""
        tell(f"error: {message}")
        os._exit(1)

    def on_progress(self, edges: int) -> None:
        """Move the bar by a batch of `edges` edges."""
        self._done += edges
        self._bars(f"epoch {self._epoch + 1}/{self._epochs}", self._done, self._num_edges, "edges")

    def on_epoch(self, line: Mapping[str, Any]) -> None:
        """Start the next epoch's bar."""
        self._epoch = line["epoch"] + 1
        self._done = 0

    def on_stage(self, stage: str, done: int, total: int | None, unit: str) -> None:
        """Show the stage, or stop where a signal came while the epoch before was committed."""
        self._interrupts.check()
        self._bars(stage, done, total, unit)
