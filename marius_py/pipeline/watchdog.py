"""Notices that a stage hangs (floor 3): what each thread does in, an error that names the stage out.

Every thread of a run notes what it does and since when. If one stays at the same thing for `seconds`, the
watchdog logs which, dumps the stacks of all threads to stderr and rings the alarm: whoever waits for that
thread wakes with a StalledError, so the run ends even though the thread does not. Where the main thread
itself hangs nobody can wake it; `on_hang` is then called, and the commands end the process there.
"""

from __future__ import annotations

import faulthandler
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from marius_py.buffer.swap import NAME as IO_THREAD
from marius_py.errors import StalledError
from marius_py.team import TEAM_THREAD
from marius_py.threads import start_thread

log = logging.getLogger(__name__)

GRACE_S = 5.0
"""Seconds that a run has to end after the alarm, before `on_hang` is called."""

_WAIT = "wait"
_WAITS_FOR_IO = ("load", "commit", "flush")


class Watchdog:
    """Watches what the threads of one run do; use it in a `with` block around the run.

    Thread-safe. `current` may be written by any thread under its own name.

    Args:
        seconds: how long a thread may stay at one thing; None: it is never asked.
        on_hang: called with the message if the run has not ended in time after the alarm.
        grace_s: how long that is.

    Attributes:
        current: name of a thread → (time.perf_counter() since when, what it does).
        error: what the run ends with; None while all is well.
    """

    def __init__(
        self,
        seconds: float | None = None,
        on_hang: Callable[[str], None] = lambda message: None,
        *,
        grace_s: float = GRACE_S,
    ) -> None:
        self._seconds = seconds
        self._on_hang = on_hang
        self._grace_s = grace_s if seconds is None else min(grace_s, seconds)
        self._listeners: list[Callable[[StalledError], None]] = []
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._went_on = 0.0
        self.current: dict[str, tuple[float, str]] = {}
        self.error: StalledError | None = None

    def __enter__(self) -> Self:
        if self._seconds is not None:
            self._thread = threading.Thread(target=self._watch, name="marius-watchdog", daemon=True)
            try:
                start_thread(self._thread)
            except BaseException:  # an interrupt may come while it starts
                self._ended.set()
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    @contextmanager
    def doing(self, what: str) -> Iterator[None]:
        """Note that this thread does `what` within the block."""
        name = threading.current_thread().name
        before = self.current.get(name)
        self.current[name] = (time.perf_counter(), what)
        try:
            yield
        finally:
            if before is None:
                self.current.pop(name, None)
            else:
                self.current[name] = (time.perf_counter(), before[1])

    def touch(self, name: str | None = None) -> None:
        """The thread of that name, or this one, makes progress with what it does."""
        name = threading.current_thread().name if name is None else name
        noted = self.current.get(name)
        if noted is not None:
            self.current[name] = (time.perf_counter(), noted[1])

    @contextmanager
    def listening(self, listener: Callable[[StalledError], None]) -> Iterator[None]:
        """Call `listener` with the error if the alarm rings within the block; from the watchdog's thread."""
        with self._lock:
            self._listeners.append(listener)
        try:
            yield
        finally:
            with self._lock:
                self._listeners.remove(listener)

    def stalled(self, now: float) -> tuple[str, str, float] | None:
        """(thread, what, seconds) of the thread to blame at time `now`, or None."""
        if self._seconds is None:
            return None
        noted = dict(self.current)
        ages = {name: now - max(since, self._went_on) for name, (since, _) in noted.items()}
        old = [name for name, age in ages.items() if age >= self._seconds]
        busy = [name for name in old if not noted[name][1].startswith((_WAIT, "idle"))]
        if IO_THREAD in noted and IO_THREAD not in old:
            busy = [name for name in busy if noted[name][1] not in _WAITS_FOR_IO]
        # Who waits for the disk, for a batch or for its team is old too: blame what it waits for.
        busy.sort(
            key=lambda name: (
                name != IO_THREAD,
                noted[name][1] in _WAITS_FOR_IO,
                not name.startswith(TEAM_THREAD),
                -ages[name],
            )
        )
        waiting = [name for name in noted if not noted[name][1].startswith("idle")]
        if not busy and waiting and all(name in old for name in waiting):
            busy = sorted(waiting, key=lambda name: -ages[name])
        return (busy[0], noted[busy[0]][1], ages[busy[0]]) if busy else None

    def look(self, last: float, now: float) -> None:
        """Note that the watchdog looks at `now`, having looked at `last`, a second before unless stopped.

        A process that is stopped (Ctrl-Z, a debugger) stops the watchdog with all other threads. Nobody can
        be blamed for that time, so ages are counted from here on.
        """
        if self._seconds is not None and now - last > min(1.0, self._seconds / 4) + self._seconds / 4:
            self._went_on = now

    def _watch(self) -> None:
        seconds = self._seconds or 0.0
        slept = time.perf_counter()
        while not self._ended.wait(min(1.0, seconds / 4)):
            now = time.perf_counter()
            self.look(slept, now)
            slept = now
            blamed = self.stalled(now)
            if blamed is not None:
                self._ring(*blamed)
                return

    def _ring(self, thread: str, what: str, age: float) -> None:
        message = (
            f"stage '{what}' made no progress for {age:.0f} s (thread {thread}); the stacks of all threads "
            "are on stderr, the last commit is intact: go on with resume=true, or raise "
            "pipeline.stall_seconds if so long is normal here"
        )
        log.error("%s", message)
        now = time.perf_counter()
        for name, (since, doing) in sorted(self.current.items()):
            log.error("thread %s: '%s' for %.1f s", name, doing, now - since)
        dump_stacks()
        self.error = StalledError(message, stage=what)
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            listener(self.error)
        if not self._ended.wait(self._grace_s):
            self._on_hang(message)


def dump_stacks() -> None:
    """Write the stacks of all threads to stderr, or to the process's own one where that has no descriptor."""
    for stream in (sys.stderr, sys.__stderr__):
        try:
            if stream is not None:
                faulthandler.dump_traceback(stream, all_threads=True)
                return
        except (OSError, ValueError, AttributeError):
            continue
