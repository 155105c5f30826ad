"""The I/O thread (floor 2): partition reads, write-backs and edge reads, one after the other.

In: tasks from the thread that walks the schedule. Out: futures. One thread, first in first out: a read
queued behind the write-back that frees its slot needs no further lock, and parallel disk access was
measured to gain nothing. `shutdown` always returns: a task that waits does so on something `abort` ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class IOThread:
    """One worker thread; the first task that fails stops all that are queued behind it.

    Thread-safe: `submit` may be called from any thread, `busy_s` read from any.
    """

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="marius-io")
        self._error: BaseException | None = None
        self.busy_s = 0.0
        """Seconds spent inside tasks, waiting for leases included."""

    def submit(self, task: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Queue `task(*args, **kwargs)`. After a failure every later task fails with the same cause."""
        return self._executor.submit(lambda: self._run(task, *args, **kwargs))

    def _run(self, task: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        if self._error is not None:
            raise self._error
        started = time.perf_counter()
        try:
            return task(*args, **kwargs)
        except BaseException as error:
            self._error = error
            raise
        finally:
            self.busy_s += time.perf_counter() - started

    def raise_failure(self) -> None:
        """Raise the error of the first failed task, if one has failed."""
        if self._error is not None:
            raise self._error

    def drain(self) -> None:
        """Wait until everything queued so far has ended, then raise the first failure, if any."""
        self.submit(lambda: None).exception()
        self.raise_failure()

    def shutdown(self) -> None:
        """Forget what is queued, wait for the running task, end the thread. May be called twice."""
        self._executor.shutdown(wait=True, cancel_futures=True)
