"""Signals while a run trains (floor 5): the first one becomes a commit and an orderly end."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

from marius_py.errors import InterruptedRunError
from marius_py.training.trainer import Trainer

log = logging.getLogger(__name__)

_COMMITTED = (
    "interrupted between epochs, or after the last one; the state is committed: use the run as it is, or "
    "go on with resume=true"
)


class Interrupts:
    """Turns the first of some signals into a commit and an orderly end of a run.

    Where all is committed, as while edges are ranked between epochs or at the end, it stops at once; so does
    the second one anywhere, and the last commit is intact then, too. A terminal that is closed may send
    SIGHUP several times: after the first one it stays ignored. Outside the main thread signals are left to
    whoever started it.

    Args:
        signals: that are heeded.
        on_hangup: called at the first SIGHUP.

    Attributes:
        came: whether one of them came.
    """

    def __init__(
        self, signals: Sequence[signal.Signals], on_hangup: Callable[[], None] = lambda: None
    ) -> None:
        self._signals, self._on_hangup = signals, on_hangup
        self._handlers: dict[signal.Signals, Any] = {}
        self._trainer: Trainer | None = None
        self.came = False

    def begin(self, trainer: Trainer) -> None:
        """Take over the signals for a trainer, and for those that follow it in the same run."""
        self._trainer = trainer
        if not self._handlers and threading.current_thread() is threading.main_thread():
            self._handlers = {one: signal.signal(one, self._on_signal) for one in self._signals}

    def end(self) -> None:
        """Put the handlers of before back."""
        for one, handler in self._handlers.items():
            signal.signal(one, handler)
        self._handlers = {}

    def check(self) -> None:
        """Stop where a signal came while the epoch before was committed: no further batch heeds it.

        Raises:
            InterruptedRunError: one did.
        """
        if self.came:
            raise InterruptedRunError(_COMMITTED)

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        if signum == signal.SIGHUP:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            self._handlers.pop(signal.SIGHUP, None)
            self._on_hangup()
        trainer = self._trainer
        if trainer is None or self.came:
            raise KeyboardInterrupt
        # Noted before anything is raised: Python drops what is raised within a callback of a weak reference
        # or a finalizer, and the run then stops at the next batch or stage.
        self.came = True
        trainer.interrupt()
        state = trainer.state
        if state.history and state.is_between_epochs and trainer.epochs_done == state.position.epoch:
            raise KeyboardInterrupt(_COMMITTED)
        log.warning(
            "%s: committing the state, then stopping; once more to stop now", signal.Signals(signum).name
        )
