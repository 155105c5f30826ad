"""Stages on the cores of the host (floor 3): each lane draws an item and takes it through all of them.

In: an iterator of items and the stages they pass through. Out: nothing; the last stage is the sink. Where the
host computes, its cores are the limit whatever the stage: one thread more than there are cores takes their
caches away and waits for the interpreter's lock. Where drawing waits for the disk, such a thread pays all the
same: it draws ahead, so that no lane waits. Errors are as with the other runners.
"""

from __future__ import annotations

import itertools
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from marius_py.pipeline.channel import Channel, StoppedError
from marius_py.pipeline.runner import LOAD, Bodies, Run, Stage, draw, work_on
from marius_py.pipeline.trace import Trace
from marius_py.pipeline.watchdog import Watchdog


def run_lanes(
    source: Iterable[Any],
    stages: Sequence[Stage],
    trace: Trace,
    *,
    lanes: int,
    ahead: int = 0,
    on_error: Callable[[], None] = lambda: None,
    watchdog: Watchdog | None = None,
) -> None:
    """Run `lanes` threads, each of which draws one item at a time and takes it through all stages.

    Items are drawn and enter the first stage that is not `ahead` in the source's order, and leave the last
    one in any order, one at a time; the other stages work on several items at once and must allow it. An item
    enters only when all that are `lanes` or more before it have left, so it misses the results of fewer than
    `lanes` before it. One lane is the thread of the caller.

    Args:
        source: drawn in whatever lane is free, or in a thread of its own.
        stages: in order, two at least.
        trace: spans by stage, waits as "wait for …".
        lanes: how many.
        ahead: items that a thread of the source's own draws ahead; 0: there is none, lanes draw.
        on_error: called once when a stage fails, to wake what waits outside the lanes.
        watchdog: its alarm ends the run; a thread that hangs is then left behind.

    Raises:
        PipelineError, MariusError, StalledError: as `run_threaded`.
    """
    run = _LanesRun(source, stages, trace, lanes, ahead, on_error)
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
        on_error: Callable[[], None],
    ) -> None:
        super().__init__(source, stages, trace, on_error)
        self._lanes = lanes
        self._channel: Channel[Any] | None = Channel(ahead, self._stop) if ahead else None
        self._ahead = sum(stage.ahead for stage in stages)
        self._asked = itertools.count()
        self._turns: defaultdict[str, _Turn] = defaultdict(_Turn)
        self._ended = False
        self._left = 0
        self._through: set[int] = set()

    def bodies(self) -> Bodies:
        """One lane each, and the source if it draws ahead."""
        lanes: list[tuple[str, Callable[[], None]]] = [
            (f"lane-{number}", partial(self._lane, number)) for number in range(1, self._lanes)
        ]
        source = [] if self._channel is None else [(LOAD, partial(self._produce, self._channel))]
        return partial(self._lane, 0), [*source, *lanes]

    def _take(self) -> Any | None:
        """The next item, None at the end."""
        if self._channel is None:
            return draw(self._source, self._trace, LOAD)
        with self._trace.span(f"wait for {LOAD}"):
            return self._channel.get()

    def _lane(self, lane: int) -> None:
        ahead, (first, *between, last) = self._stages[: self._ahead], self._stages[self._ahead :]
        while True:
            asked = time.perf_counter()
            number = next(self._asked)
            with self._turn(LOAD, number):
                item = None if self._ended else self._take()
                if lane == 0:
                    self._trace.idle.append((asked, time.perf_counter()))
                if item is None:
                    self._ended = True
                    return
            for stage in ahead:
                item = work_on(stage, item, self._trace)
            with self._turn(first.name, number, number - self._lanes + 1):
                item = work_on(first, item, self._trace)
            for stage in between:
                item = work_on(stage, item, self._trace)
            with self._turn(last.name):
                work_on(last, item, self._trace)
                self._leave(number)

    @contextmanager
    def _turn(self, name: str, number: int | None = None, left: int = 0) -> Iterator[None]:
        """Wait until no other item is here, all before this one have been, and the first `left` have left.

        Without a number items come in any order. One that fails lets no other by.
        """
        condition, turns = self._stop.condition, self._turns

        def is_free() -> bool:
            return turns[name].is_free and number in (None, turns[name].next) and self._left >= left

        with self._trace.span(f"wait for the turn to {name}"), condition:
            condition.wait_for(lambda: self._stop.is_set or is_free())
            if self._stop.is_set:
                raise StoppedError
            turns[name].is_free = False
        yield
        with condition:
            turns[name].is_free = True
            turns[name].next += 1
            condition.notify_all()

    def _leave(self, number: int) -> None:
        """Note that an item is through, and how many are with none missing among them."""
        self._through.add(number)
        while self._left in self._through:
            self._through.remove(self._left)
            self._left += 1


@dataclass(slots=True)
class _Turn:
    """Who may come: nobody unless `is_free`, then whoever has the number `next`."""

    is_free: bool = True
    next: int = 0
