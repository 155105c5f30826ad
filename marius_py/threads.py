"""Threads that begin, or say why they do not, and whose end can be waited for (floor 0)."""

from __future__ import annotations

import os
from collections.abc import Callable
from threading import Event, Thread

from marius_py.errors import PipelineError


class Worker(Thread):
    """A daemon whose end can be waited for whatever interrupts come.

    Up to Python 3.12 a `join` that is interrupted takes the thread for one that has ended, and so do later
    ones and `is_alive`.

    Args:
        target: what it does. name: its name.
    """

    def __init__(self, target: Callable[[], object], name: str) -> None:
        super().__init__(target=target, name=name, daemon=True)
        self._over, self._process = Event(), os.getpid()
        self._over.set()

    def start(self) -> None:
        """As of any thread; an interrupt may come when it runs already."""
        self._over.clear()
        try:
            super().start()
        except Exception:  # there is no room for it
            self._over.set()
            raise

    def run(self) -> None:
        """Do it, and tell that it is done."""
        try:
            super().run()
        finally:
            self._over.set()

    def wait(self, seconds: float | None = None) -> bool:
        """Whether it does nothing within so many seconds (None: however long it takes) or did not start.

        Of a fork no thread is left but the one that forked.
        """
        return os.getpid() != self._process or self._over.wait(seconds)


def start_thread(thread: Thread) -> None:
    """Start a thread; PipelineError, with its name as the stage, if the system has no room for it."""
    try:
        thread.start()
    except RuntimeError as error:
        message = (
            f"the thread {thread.name!r} cannot be started: {error}; does a limit of processes or memory "
            "apply? pipeline.compute_threads says how many a run may have"
        )
        raise PipelineError(message, stage=thread.name) from error
