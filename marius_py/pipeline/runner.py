"""Two ways to run the same stages (floor 3): one after the other, or a thread each.

In: an iterator of items and the stages they pass through. Out: nothing; the last stage is the sink. A thread
for each stage keeps a device busy while the host moves data; the stages from the second on are the section
that `max_in_flight` bounds. (Where the host computes, see `lanes`.) An error of any stage stops all others
and is raised here once, as PipelineError with the stage's name, its cause attached; errors that already are
MariusErrors of a lower floor keep their class.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any

from marius_py.errors import MariusError, PipelineError
from marius_py.machine import on_this_device
from marius_py.pipeline.channel import Channel, InFlight, Stop, StoppedError
from marius_py.pipeline.trace import IN_FLIGHT, Trace
from marius_py.pipeline.watchdog import Watchdog
from marius_py.threads import Worker, start_thread

_JOIN_S = 0.2
LOAD = "load"
"""What the source is called in errors and traces."""
AHEAD_THREADS = 3
"""Items that a stage ahead of those in flight works on at once, at least: drawing is the longest that the
host does."""

Bodies = tuple[Callable[[], None], list[tuple[str, Callable[[], None]]]]


@dataclass(frozen=True, slots=True)
class Stage:
    """One step of a batch's path.

    Attributes:
        name: what errors, traces and the watchdog call it.
        work: item in, item out; the last stage's result is dropped. An item's `here` is its position.
        in_caller: run in the thread that called the runner (at most one stage; the one that computes).
        ahead: before the item is in flight; only the first stages may be so, and they may take several items
            at once.
    """

    name: str
    work: Callable[[Any], Any]
    in_caller: bool = False
    ahead: bool = False


def run_inline(source: Iterable[Any], stages: Sequence[Stage], trace: Trace) -> None:
    """Take each item through all stages before the next one is drawn: one item in flight, one thread."""
    items = iter(source)
    while True:
        item = draw(items, trace, LOAD)
        if item is None:
            return
        for stage in stages:
            item = work_on(stage, item, trace)


def run_threaded(
    source: Iterable[Any],
    stages: Sequence[Stage],
    trace: Trace,
    *,
    max_in_flight: int,
    ahead: int = AHEAD_THREADS,
    on_error: Callable[[], None] = lambda: None,
    watchdog: Watchdog | None = None,
) -> None:
    """Run the source and every stage in a thread of its own, at most `max_in_flight` items in flight.

    Args:
        source: drawn in its own thread.
        stages: in order; all see the items in the source's order.
        trace: spans by stage, waits as "wait for …".
        max_in_flight: items between the entry of the first stage that is not `ahead` and the end of the last.
        ahead: threads of each stage that is `ahead`.
        on_error: called once when a stage fails, to wake what waits outside the channels.
        watchdog: its alarm ends the run; a thread that hangs is then left behind.

    Raises:
        PipelineError: a stage failed with a foreign error. MariusError: it failed with one of ours.
        StalledError: a stage hangs.
    """
    run = _ThreadedRun(source, stages, trace, max_in_flight, ahead, on_error)
    with (watchdog or Watchdog()).listening(run.give_up):
        run.run()


class Run(ABC):
    """Threads over one source: a switch that stops all of them, and the first failure."""

    def __init__(
        self,
        source: Iterable[Any],
        stages: Sequence[Stage],
        trace: Trace,
        on_error: Callable[[], None],
    ) -> None:
        self._source = iter(source)
        self._stages = stages
        self._trace = trace
        self._on_error = on_error
        self._stop = Stop()
        self._failures: list[BaseException] = []
        self._given_up = threading.Event()

    def give_up(self, error: BaseException) -> None:
        """End the run with `error` without waiting for threads that hang. From any thread."""
        self._failures.insert(0, error)
        self._given_up.set()
        self._stop.set()
        self._on_error()

    @abstractmethod
    def bodies(self) -> Bodies:
        """What the caller's thread does, and the names and bodies of the other threads."""

    def run(self) -> None:
        """Run all bodies to their end; raise the first failure."""
        in_caller, bodies = self.bodies()
        threads = [
            Worker(partial(self._guard, on_this_device(body)), f"marius-{title}") for title, body in bodies
        ]
        try:
            self._guard(partial(_start, threads, in_caller))
        finally:
            self._outlast(threads)
        if isinstance(self._source, Generator) and not self._given_up.is_set():
            self._source.close()
        if self._failures:
            raise self._failures[0]

    def _outlast(self, threads: Sequence[Worker]) -> None:
        """Wait for all threads, whatever interrupts come meanwhile: they work on what the caller frees.

        The first stops the run, whose threads end at their next hand-over; another one gives it up.
        """
        stopping, ended = self._stop.is_set, False

        def wait() -> None:
            nonlocal ended
            self._join(threads)
            ended = True

        while not ended:
            self._guard(wait)
            if not ended and stopping:
                self._given_up.set()
            stopping = True

    def _join(self, threads: Sequence[Worker]) -> None:
        """Wait for all threads; once the run is given up, only a moment for each."""
        for thread in threads:
            while not thread.wait(_JOIN_S) and not self._given_up.is_set():
                pass
            if thread.is_alive():
                thread.join(_JOIN_S)

    def _produce(self, channel: Channel[Any]) -> None:
        """Draw the source to its end, each item into the channel."""
        while (item := draw(self._source, self._trace, LOAD)) is not None:
            channel.put(item)
        channel.close()

    def _guard(self, body: Callable[[], None]) -> None:
        """Run a thread's body; its error stops the others."""
        try:
            body()
        except StoppedError:
            pass
        except BaseException as error:
            self._failures.append(error)
            self._stop.set()
            self._on_error()


class _ThreadedRun(Run):
    """State of one threaded run: a channel before every stage."""

    def __init__(
        self,
        source: Iterable[Any],
        stages: Sequence[Stage],
        trace: Trace,
        max_in_flight: int,
        ahead: int,
        on_error: Callable[[], None],
    ) -> None:
        super().__init__(source, stages, trace, on_error)
        self._limit = InFlight(max_in_flight, self._stop)
        self._first_in_flight = sum(stage.ahead for stage in stages)
        self._ahead = ahead
        # Up to the first in flight they hold what the threads ahead work on.
        sizes = [
            max_in_flight if n > self._first_in_flight else max(max_in_flight, ahead)
            for n in range(len(stages))
        ]
        self._channels: list[Channel[Any]] = [Channel(size + 1, self._stop) for size in sizes]

    def bodies(self) -> Bodies:
        """The source and each stage; the caller's thread has the stage that asks for it, if one does."""
        source = partial(self._produce, self._channels[0])
        bodies: list[tuple[str, Callable[[], None]]] = [(LOAD, source)]
        in_caller: Callable[[], None] = lambda: None  # noqa: E731
        for number, stage in enumerate(self._stages):
            body = partial(self._consume, number)
            if stage.in_caller:
                in_caller = body
            else:
                bodies.append((stage.name, body))
        return in_caller, bodies

    def _consume(self, number: int) -> None:
        stage = self._stages[number]
        before = self._stages[number - 1].name if number else LOAD
        is_last = number + 1 == len(self._stages)
        with self._worker(stage) as work:
            while True:
                asked = time.perf_counter()
                with self._trace.span(f"wait for {before}"):
                    item = self._channels[number].get()
                    if isinstance(item, Future):
                        item = item.result()
                if stage.in_caller:
                    self._trace.idle.append((asked, time.perf_counter()))
                if item is None:
                    break
                if number == self._first_in_flight:
                    with self._trace.span(IN_FLIGHT):
                        self._limit.acquire()
                result = work(item)
                if is_last:
                    self._limit.release()
                else:
                    self._channels[number + 1].put(result)
        if not is_last:
            self._channels[number + 1].close()

    @contextmanager
    def _worker(self, stage: Stage) -> Iterator[Callable[[Any], Any]]:
        """What takes an item through a stage; it returns a future where several may be in it at once."""
        if not stage.ahead:
            yield partial(self._work, stage)
            return
        waiting: SimpleQueue[tuple[Any, Future[Any]] | None] = SimpleQueue()
        names = [f"marius-{stage.name}-{number}" for number in range(self._ahead)]
        # Not a pool of the library's: its threads, if one hangs, would keep the process from ending.
        threads = [Worker(partial(self._serve, stage, waiting), name) for name in names]

        def submit(item: Any) -> Future[Any]:
            done: Future[Any] = Future()
            waiting.put((item, done))
            return done

        try:
            _start(threads)
            yield submit
        finally:
            for _ in threads:
                waiting.put(None)
            self._join(threads)

    def _serve(self, stage: Stage, waiting: SimpleQueue[tuple[Any, Future[Any]] | None]) -> None:
        """Take waiting items through a stage until None comes; once the run stops, let them go."""
        while (given := waiting.get()) is not None:
            item, done = given
            try:
                if self._stop.is_set:
                    raise StoppedError
                done.set_result(self._work(stage, item))
            except BaseException as error:
                done.set_exception(error)

    def _work(self, stage: Stage, item: Any) -> Any:
        return work_on(stage, item, self._trace)


@contextmanager
def stage_of(name: str, watchdog: Watchdog, trace: Trace | None = None) -> Iterator[None]:
    """Run a block as stage `name` outside the pipeline: watched, traced, foreign errors as PipelineError."""
    try:
        with watchdog.doing(name), nullcontext() if trace is None else trace.span(name):
            yield
    except BaseException as error:
        if _goes_on(error):
            raise
        raise _wrapped(name, error) from error


def draw(items: Iterator[Any], trace: Trace, name: str) -> Any | None:
    """The next item of a source called `name`, None at its end; foreign errors as PipelineError."""
    try:
        with trace.span(name):
            return next(items, None)
    except BaseException as error:
        if _goes_on(error):
            raise
        raise _wrapped(name, error) from error


def work_on(stage: Stage, item: Any, trace: Trace) -> Any:
    """Take an item through a stage; foreign errors as PipelineError."""
    try:
        with trace.span(stage.name, getattr(item, "here", None)):
            return stage.work(item)
    except BaseException as error:
        if _goes_on(error):
            raise
        raise _wrapped(stage.name, error) from error


def _start(threads: Sequence[Worker], then: Callable[[], None] = lambda: None) -> None:
    """Start all threads, then go on; PipelineError if the system has no room for one."""
    for thread in threads:
        start_thread(thread)
    then()


def _goes_on(error: BaseException) -> bool:
    """Whether an error is told as it is: one of ours, an interrupt, or a program that leaves.

    All else fails the stage. So does SystemExit in a stage's thread, which would end the run as if it were
    done; in the main thread a handler of signals may have raised it.
    """
    if isinstance(error, SystemExit):
        return threading.current_thread() is threading.main_thread()
    return isinstance(error, (MariusError, StoppedError, KeyboardInterrupt))


def _wrapped(stage: str, error: BaseException) -> PipelineError:
    what = f"{type(error).__name__}: {error}".removesuffix(": ")
    return PipelineError(f"stage '{stage}' failed: {what}", stage=stage)
