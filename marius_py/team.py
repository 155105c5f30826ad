"""Threads that do one piece of work together (floor 0): functions in, their results out, all of them done.

The cores of a machine share in one batch this way: what is computed is the same as by one thread, and no
batch waits for rows that another is about to change.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import pairwise
from queue import SimpleQueue
from threading import Thread
from types import TracebackType
from typing import Any, Self, TypeVar

from marius_py.threads import start_thread

T = TypeVar("T")

Span = Callable[[str], AbstractContextManager[None]]
_Queue = SimpleQueue[tuple[Callable[[], Any], Future[Any], str] | None]

TEAM_THREAD = "marius-team"
"""How the names of a team's threads begin."""

_JOIN_S = 0.2
"""How long a thread is waited for that may hang, once the work has failed."""

_LEAST_ROWS = 2048
"""Rows a member at least: fewer are done before another thread has woken."""


class Team:
    """So many threads, the caller's among them; used in a `with` block, by one thread at a time.

    Args:
        size: members, at least 1; alone, the caller does everything and no thread is started.
        span: notes what the other members do under the name given to `run`; see `Trace.span`.
        first: number of the first of the others, in its thread's name.
    """

    def __init__(self, size: int, span: Span = lambda name: nullcontext(), first: int = 1) -> None:
        self.size = size
        # Not a pool of the library's: its threads, if one hangs, would keep the process from ending. Each has
        # a queue of its own: one that took two works of a run would do both in the same scratch memory.
        self._queues: list[_Queue] = [SimpleQueue() for _ in range(1, size)]
        self._threads = [
            Thread(target=_serve, args=(queue, span), name=f"{TEAM_THREAD}-{number}", daemon=True)
            for number, queue in enumerate(self._queues, first)
        ]

    def __enter__(self) -> Self:
        try:
            for thread in self._threads:
                start_thread(thread)
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for queue in self._queues:
            queue.put(None)
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(None if error is None else _JOIN_S)

    def run(self, works: Sequence[Callable[[], T]], name: str = "") -> list[T]:
        """Do all of `works` side by side, the first in the caller's thread; their results, in order.

        Each has a member of its own, so there may be no more of them than members. (Alone, the caller does
        any number.) If some fail, the first one's error is raised once all have ended. With a name, what the
        others do is noted; without, the works see to that.
        """
        if self.size == 1:
            return [work() for work in works]
        done: list[Future[Any]] = [Future() for _ in works]
        for work, future, queue in zip(works[1:], done[1:], self._queues[: len(works) - 1], strict=True):
            queue.put((work, future, name))
        if works:
            _fulfil(done[0], works[0])
        for future in done:
            future.exception()  # waits
        return [future.result() for future in done]

    def share(self, count: int, work: Callable[[slice], object], name: str = "") -> None:
        """Have `work` do all of `count` rows, which it must allow to be done side by side; see `run`."""
        shares = max(1, min(self.size, count // _LEAST_ROWS))
        bounds = [count * share // shares for share in range(shares + 1)]
        self.run([partial(work, slice(*ends)) for ends in pairwise(bounds)], name)


def _serve(queue: _Queue, span: Span) -> None:
    while (given := queue.get()) is not None:
        work, done, name = given
        with span(name) if name else nullcontext():
            _fulfil(done, work)
        del given, work, done  # a thread that waits holds nothing


def _fulfil(done: Future[Any], work: Callable[[], Any]) -> None:
    try:
        done.set_result(work())
    except BaseException as error:
        done.set_exception(error)


ALONE = Team(1)
"""Nobody but the caller."""


class Teams:
    """A team for each thread that asks for its own; used in a `with` block, by any number of threads.

    Args:
        size: members of each, at least 1.
        span: as for `Team`.
    """

    def __init__(self, size: int, span: Span = lambda name: nullcontext()) -> None:
        self.size = size
        self._span = span
        self._local = threading.local()
        self._lock = threading.Lock()
        self._open: list[Team] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for team in self._open:
            team.__exit__(kind, error, trace)

    def mine(self) -> Team:
        """The team of the calling thread."""
        if self.size == 1:
            return ALONE
        if not hasattr(self._local, "team"):
            with self._lock:
                team = Team(self.size, self._span, first=1 + len(self._open) * (self.size - 1))
                self._local.team = team.__enter__()
                self._open.append(team)
        found: Team = self._local.team
        return found
