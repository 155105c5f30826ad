"""Threads that take works from one queue (floor 0): functions in, futures of their results out.

The library's ThreadPoolExecutor ends its threads and takes nothing more once the main thread has ended, also
while other threads of the program go on: what they train or ask would fail there.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future
from functools import partial
from queue import Empty, SimpleQueue
from threading import Lock, Semaphore, Thread
from types import TracebackType
from typing import Any, Self, TypeVar

from marius_py.threads import start_thread

T = TypeVar("T")
_END: Any = object()


class Workers:
    """At most so many threads, each started when no other is free; used in a `with` block, or shut down.

    Any thread may give them work.

    Args:
        most: number of threads, at least 1. name: how their names begin.
        begin: what each does first; it must not fail.

    Attributes:
        most: as given.
    """

    def __init__(self, most: int, name: str, begin: Callable[[], object] = lambda: None) -> None:
        self.most, self._name, self._begin = most, name, begin
        self._works: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._free, self._lock, self._ended = Semaphore(0), Lock(), False
        self._threads: list[Thread] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown(drop=error is not None)

    def submit(self, work: Callable[..., T], *given: Any) -> Future[T]:
        """Have a thread do `work` with these arguments; PipelineError if none can be started for it."""
        done: Future[T] = Future()
        with self._lock:
            if self._ended:
                raise RuntimeError(f"the threads {self._name!r} were shut down")
            if not self._free.acquire(blocking=False) and len(self._threads) < self.most:
                name = f"{self._name}_{len(self._threads)}"
                thread = Thread(target=self._serve, name=name, daemon=True)
                self._threads.append(thread)  # so that it is ended if an interrupt comes while it starts
                try:
                    start_thread(thread)
                except Exception:
                    self._threads.pop()
                    raise
            self._works.put((done, partial(work, *given)))
        return done

    def map(self, work: Callable[..., T], *given: Iterable[Any]) -> list[T]:
        """Do `work` with each of the arguments, side by side; its results in order, or the first's error."""
        return [done.result() for done in [self.submit(work, *one) for one in zip(*given, strict=True)]]

    def shutdown(self, *, drop: bool = False) -> None:
        """Wait for what is being done, and for what waits unless it is dropped. May be called twice."""
        with self._lock:
            self._ended = True
            while drop:
                try:
                    waiting = self._works.get_nowait()
                except Empty:
                    break
                if waiting is not None:
                    waiting[0].cancel()
            for _ in self._threads:
                self._works.put(None)
        for thread in self._threads:
            if thread.ident is not None:  # it has started
                thread.join()

    def _serve(self) -> None:
        self._begin()
        while (given := self._works.get()) is not None:
            done, work = given
            if done.set_running_or_notify_cancel():
                try:
                    done.set_result(work())
                except BaseException as error:
                    done.set_exception(error)
            del given, done, work  # a thread that waits holds nothing
            self._free.release()


def made_ahead(items: Iterator[T], name: str) -> Iterator[T]:
    """What an iterator yields, the next item made by a thread while one is used; its errors come in turn.

    Args:
        items: a generator is closed at the end. name: how the thread's name begins.
    """
    try:
        with Workers(1, name) as worker:
            coming = worker.submit(next, items, _END)
            while (item := coming.result()) is not _END:
                coming = worker.submit(next, items, _END)
                yield item
    finally:
        if isinstance(items, Generator):
            items.close()
