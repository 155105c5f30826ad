"""Stages on the cores of the host, one batch at a time (floor 3): a team shares in the work on each.

In: an iterator of items and the stages they pass through. Out: nothing; the last stage is the sink. Drawing
does not wait for results, but it cannot be divided: the team draws as many items as it has members side by
side, then takes them one after the other through the stages that read and change rows, which ask it for
help. So nothing is ever stale, and results do not depend on how threads meet. Errors are as with the other
runners.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import takewhile
from typing import Any

from marius_py.pipeline.channel import Channel
from marius_py.pipeline.runner import LOAD, Bodies, Run, Stage, draw, work_on
from marius_py.pipeline.trace import Trace
from marius_py.pipeline.watchdog import Watchdog
from marius_py.team import Team


def run_rounds(
    source: Iterable[Any],
    stages: Sequence[Stage],
    trace: Trace,
    *,
    team: Team,
    ahead: int = 0,
    on_error: Callable[[], None] = lambda: None,
    watchdog: Watchdog | None = None,
) -> None:
    """Take items through the stages, one after the other; only stages that are `ahead` see several at once.

    Args:
        source: drawn in the caller's thread, or in one of its own.
        stages: in order; all see the items in the source's order.
        trace: spans by stage, waits as "wait for …".
        team: draws side by side; what else it does the stages know.
        ahead: items that a thread of the source's own draws ahead; 0: there is none.
        on_error: called once when a stage fails, to wake what waits outside.
        watchdog: its alarm ends the run; a thread that hangs is then left behind.

    Raises:
        PipelineError, MariusError, StalledError: as `run_threaded`.
    """
    run = _RoundsRun(source, stages, trace, team, ahead, on_error)
    with (watchdog or Watchdog()).listening(run.give_up):
        run.run()


class _RoundsRun(Run):
    """State of one run in rounds."""

    def __init__(
        self,
        source: Iterable[Any],
        stages: Sequence[Stage],
        trace: Trace,
        team: Team,
        ahead: int,
        on_error: Callable[[], None],
    ) -> None:
        super().__init__(source, stages, trace, on_error)
        self._team = team
        self._channel: Channel[Any] | None = Channel(ahead, self._stop) if ahead else None

    def bodies(self) -> Bodies:
        """The rounds, and the source if it draws ahead."""
        if self._channel is None:
            return self._rounds, []
        return self._rounds, [(LOAD, partial(self._produce, self._channel))]

    def _rounds(self) -> None:
        num_ahead = sum(stage.ahead for stage in self._stages)
        ahead, others = self._stages[:num_ahead], self._stages[num_ahead:]

        def draw_one(item: Any) -> Any:
            for stage in ahead:
                item = work_on(stage, item, self._trace)
            return item

        while items := self._take():
            for item in self._team.run([partial(draw_one, item) for item in items]):
                for stage in others:
                    item = work_on(stage, item, self._trace)

    def _take(self) -> list[Any]:
        """The items of the next round; none at the end.

        It waits for the first alone: the source may have to wait for these to be done before it has more.
        """
        asked = time.perf_counter()
        try:
            if self._channel is None:
                drawn = (draw(self._source, self._trace, LOAD) for _ in range(self._team.size))
                return list(takewhile(lambda item: item is not None, drawn))
            with self._trace.span(f"wait for {LOAD}"):
                first = self._channel.get()
            return [] if first is None else [first, *self._channel.waiting(self._team.size - 1)]
        finally:
            self._trace.idle.append((asked, time.perf_counter()))
