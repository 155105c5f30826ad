"""The I/O thread (floor 2): partitions read and written back, edges read and divided, one after the other.

In: tasks from the thread that walks the schedule. Out: futures. One thread, first in first out: a read
queued behind the write-back that frees its slot needs no further lock, and parallel disk access was
measured to gain nothing. `shutdown` always returns: a task that waits does so on something `abort` ends.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, ParamSpec, Protocol, TypeVar

from marius_py.machine import on_this_device
from marius_py.threads import Worker, start_thread

P = ParamSpec("P")
T = TypeVar("T")

NAME = "marius-io"
_LAST_S = 10.0
"""Seconds that the running task may take to end once its end is waited for and an interrupt comes."""


class Tell(Protocol):
    """Takes what a thread has done: its name, time.perf_counter() of when it began, and facts."""

    def __call__(self, name: str, started: float, **facts: Any) -> None:
        """What was done ends now."""
        ...


class IOThread:
    """One worker thread; the first task that fails stops all that are queued behind it.

    Thread-safe: `submit` may be called from any thread. The thread is a daemon: one that hangs in the
    kernel keeps neither `abandon` nor the interpreter from ending.

    Args:
        current: where it is noted under "marius-io" what the thread does and since when.
        tell: told of reads, writes, waits and swaps by the thread that has done one, as soon as it is done.
    """

    def __init__(
        self,
        current: dict[str, tuple[float, str]] | None = None,
        tell: Tell = lambda name, started, **facts: None,
    ) -> None:
        self.tell = tell
        self._current = {} if current is None else current
        self._tasks: queue.SimpleQueue[tuple[Future[Any], str, Callable[[], Any]] | None] = (
            queue.SimpleQueue()
        )
        self._open: set[Future[Any]] = set()
        self._lock = threading.Lock()
        self._error: BaseException | None = None
        self._ended = self._abandoned = False
        self._thread: Worker | None = None

    def submit(self, task: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Queue `task(*args, **kwargs)`. After a failure every later task fails with the same cause.

        Raises:
            PipelineError: the system has no room for the thread; nothing is queued.
        """
        future: Future[T] = Future()
        what = getattr(task, "__name__", "task").strip("_<>")
        with self._lock:
            if self._ended:
                future.set_exception(self._error or RuntimeError("the I/O thread has been shut down"))
                return future
            if self._thread is None:
                thread = Worker(on_this_device(self._work), NAME)
                start_thread(thread)
                self._thread = thread
            self._open.add(future)
            self._tasks.put((future, what, lambda: task(*args, **kwargs)))
        return future

    def doing(self, what: str) -> None:
        """Note what the running task does from here on; called by the task."""
        self._current[NAME] = (time.perf_counter(), what)

    def _work(self) -> None:
        while (item := self._tasks.get()) is not None:
            self._run(*item)
            del item  # and with it the result, which may be all edges of a block
        self._current.pop(NAME, None)

    def _run(self, future: Future[Any], what: str, task: Callable[[], Any]) -> None:
        self.doing(f"I/O: {what}")
        try:
            if self._error is not None:
                raise self._error
            result = task()
        except BaseException as error:
            self._error = self._error or error
            self._settle(future, error=error)
        else:
            self._settle(future, result)
        self.doing("idle")

    def _settle(self, future: Future[Any], result: Any = None, error: BaseException | None = None) -> None:
        with self._lock:
            self._open.discard(future)
        with suppress(InvalidStateError):  # given up meanwhile
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

    def raise_failure(self) -> None:
        """Raise the error of the first failed task, if one has failed."""
        if self._error is not None:
            raise self._error

    def drain(self) -> None:
        """Wait until everything queued so far has ended, then raise the first failure, if any."""
        self.submit(lambda: None).exception()
        self.raise_failure()

    def abandon(self, error: BaseException) -> None:
        """Fail everything queued and running with `error` and wait for nothing, not even for the thread."""
        with self._lock:
            self._error = self._error or error
            self._ended = self._abandoned = True
            left = list(self._open)
        for future in left:
            self._settle(future, error=error)
        self._tasks.put(None)

    def shutdown(self) -> None:
        """Forget what is queued, wait for the running task, end the thread. May be called twice.

        An interrupt is raised once the task has ended; another one, or a task that hangs for `_LAST_S` after
        it, leaves the thread behind.
        """
        with self._lock:
            self._ended = True
            self._error = self._error or RuntimeError("the I/O thread has been shut down")
        self._tasks.put(None)
        thread = self._thread
        if thread is None or self._abandoned:
            return
        try:
            thread.wait()
        except BaseException:
            thread.wait(_LAST_S)
            raise
        thread.join()
