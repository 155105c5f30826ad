"""What a command shows and hears while a run trains (floor 6): a bar, Ctrl-C, SIGTERM, SIGHUP."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Mapping
from types import FrameType, TracebackType
from typing import Any

from marius_py.assembly.build import Watcher
from marius_py.commands.progress import Bars
from marius_py.commands.streams import leave_terminal, tell
from marius_py.errors import InterruptedRunError
from marius_py.training.trainer import Trainer

log = logging.getLogger(__name__)

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_COMMITTED = (
    "interrupted between epochs, or after the last one; the state is committed: go on with resume=true"
)


class CommandWatcher(Watcher):
    """Draws an epoch's bar and turns the first Ctrl-C, SIGTERM or SIGHUP into a commit and an orderly end.

    Where all is committed, as while edges are ranked between epochs or at the end, it stops at once; so does
    the second one anywhere, and the last commit is intact then, too. A terminal that is closed may send
    SIGHUP several times: after the first one it is ignored until the process ends. Signals that are ignored,
    as by nohup or in the background of a script, stay so. Use it in a `with` block, which puts the previous
    handlers back. Outside the main thread signals are left to whoever started it.

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
        self._handlers: dict[signal.Signals, Any] = {}
        self._trainer: Trainer | None = None
        self._interrupted = False

    def __enter__(self) -> CommandWatcher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def on_start(self, trainer: Trainer, num_edges: int, epochs_done: int) -> None:
        """Take over the signals, for all trainers of the run; an epoch has `num_edges` edges."""
        self._num_edges = num_edges
        self._epoch = epochs_done
        self._trainer = trainer
        if not self._handlers and threading.current_thread() is threading.main_thread():
            heard = [one for one in SIGNALS if signal.getsignal(one) is not signal.SIG_IGN]
            self._handlers = {one: signal.signal(one, self._on_signal) for one in heard}

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
        self._epoch += 1
        self._done = 0

    def on_stage(self, stage: str, done: int, total: int | None, unit: str) -> None:
        """Stop where a signal came while the epoch before was committed: no further batch heeds it."""
        if self._interrupted:
            raise InterruptedRunError(_COMMITTED)

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        if signum == signal.SIGHUP:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            self._handlers.pop(signal.SIGHUP, None)
            leave_terminal()
        trainer = self._trainer
        if trainer is None or self._interrupted:
            raise KeyboardInterrupt
        state = trainer.state
        if state.history and state.is_between_epochs and trainer.epochs_done == state.position.epoch:
            raise KeyboardInterrupt(_COMMITTED)
        self._interrupted = True
        log.warning(
            "%s: committing the state, then stopping; once more to stop now", signal.Signals(signum).name
        )
        trainer.interrupt()

    def _restore(self) -> None:
        for one, handler in self._handlers.items():
            signal.signal(one, handler)
        self._handlers = {}
