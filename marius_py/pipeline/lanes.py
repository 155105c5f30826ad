"""Stages on the cores of the host (floor 3): each lane draws an item and takes it through all of them.

In: an iterator of items and the stages they pass through. Out: nothing; the last stage is the sink. Where the
host computes, its cores are the limit whatever the stage: one thread more than there are cores takes their
caches away and waits for the interpreter's lock. Where drawing waits for the disk, such a thread pays all the
same: it draws ahead, so that no lane waits. Errors are as with the other runners.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from marius_py.pipeline.channel import Channel, StoppedError
from marius_py.pipeline.runner import Bodies, Run, Stage, draw, work_on
from marius_py.pipeline.trace import Trace
from marius_py.pipeline.watchdog import Watchdog


def run_lanes(
    source: Iterable[Any],
    stages: Sequence[Stage],
    trace: Trace,
    *,
    lanes: int,
    ahead: int = 0,
    name: str = "load",
    on_error: Callable[[], None] = lambda: None,
    watchdog: Watchdog | None = None,
) -> None:
    """Run `lanes` threads, each of which draws one item at a time and takes it through all stages.

    Items are drawn, enter the first stage and leave the last one in the source's order, one at a time; the
    stages in between work on several items at once and must allow it. At most `lanes` items are between the
    entry of the first stage and the end of the last. One lane is the thread of the caller.

    Args:
        source: drawn in whatever lane is free, or in a thread of its own, called `name`.
        stages: in order, two at least.
        trace: spans by stage, waits as "wait for …".
        lanes: how many.
        ahead: items that a thread of the source's own draws ahead; 0: there is none, lanes draw.
        name: what the source is called in errors and traces.
        on_error: called once when a stage fails, to wake what waits outside the lanes.
        watchdog: its alarm ends the run; a thread that hangs is then left behind.

    Raises:
        PipelineError, MariusError, StalledError: as `run_threaded`.
    """
    run = _LanesRun(source, stages, trace, lanes, ahead, name, on_error)
    with (watchdog or Watchdog()).listening(run.give_up):
        run.run()


class _LanesRun(Run):
    """State of one run in lanes: whose turn it is to draw, and at the last stage."""

    def __init__(
        self,
        source: Iterable[Any],
        stages: Sequence[Stage],
        trace: Trace,
        lanes: int,
        ahead: int,
        name: str,
        on_error: Callable[[], None],
    ) -> None:
        super().__init__(source, stages, trace, name, on_error)
        self._lanes = lanes
        self._channel: Channel[Any] | None = Channel(ahead, self._stop) if ahead else None
        self._entering = False
        self._ended = False
        self._entered = 0
        self._left = 0

    def bodies(self) -> Bodies:
        """One lane each, and the source if it draws ahead."""
        lanes: list[tuple[str, Callable[[], None]]] = [
            (f"lane-{number}", partial(self._lane, number)) for number in range(1, self._lanes)
        ]
        source = [] if self._channel is None else [(self._name, partial(self._produce, self._channel))]
        return partial(self._lane, 0), [*source, *lanes]

    def _take(self) -> Any | None:
        """The next item, None at the end."""
        if self._channel is None:
            return draw(self._source, self._trace, self._name)
        with self._trace.span(f"wait for {self._name}"):
            return self._channel.get()

    def _lane(self, lane: int) -> None:
        first, *between, last = self._stages
        while True:
            asked = time.perf_counter()
            with self._alone_at_entrance():
                item = None if self._ended else self._take()
                if lane == 0:
                    self._trace.idle.append((asked, time.perf_counter()))
                if item is None:
                    self._ended = True
                    return
                number = self._entered
                self._entered += 1
                item = work_on(first, item, self._trace)
            for stage in between:
                item = work_on(stage, item, self._trace)
            with self._trace.span(f"wait for the turn to {last.name}"):
                self._wait_turn(number)
            work_on(last, item, self._trace)
            with self._stop.condition:
                self._left += 1
                self._stop.condition.notify_all()

    @contextmanager
    def _alone_at_entrance(self) -> Iterator[None]:
        """Wait until no other lane takes an item. Not a lock: a stop must wake whoever waits."""
        with self._trace.span("wait for another lane"), self._stop.condition:
            self._stop.condition.wait_for(lambda: self._stop.is_set or not self._entering)
            if self._stop.is_set:
                raise StoppedError
            self._entering = True
        try:
            yield
        finally:
            with self._stop.condition:
                self._entering = False
                self._stop.condition.notify_all()

    def _wait_turn(self, number: int) -> None:
        with self._stop.condition:
            self._stop.condition.wait_for(lambda: self._stop.is_set or self._left == number)
            if self._stop.is_set:
                raise StoppedError
