"""Progress of the commands (floor 6): counts in; a bar on a terminal, elsewhere now and then a log line."""

from __future__ import annotations

import logging
import sys
import time
from contextlib import suppress
from types import TracebackType
from typing import Any, ClassVar

log = logging.getLogger(__name__)

EVERY_S = 600.0
"""Seconds between the lines of a stage where there is no terminal, as many as between commits."""


class Bars:
    """One bar at a time, a stage each, on stderr if that is a terminal; else a line of a long stage at times.

    Call it with (stage, done, total or None, unit) as often as convenient, from one thread. Use it in a
    `with` block, which clears the last bar.
    """

    _open: ClassVar[Any] = None

    def __init__(self) -> None:
        self._enabled = sys.stderr.isatty()
        self._stage: str | None = None
        self._began = self._told = 0.0
        self._initial = 0

    def __enter__(self) -> Bars:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def __call__(self, stage: str, done: int, total: int | None, unit: str) -> None:
        """Show `done` of `total` units of `stage`; a new stage starts a new bar."""
        if self._enabled:
            try:
                self._show(stage, done, total, unit)
            except OSError:  # the terminal is gone: the work goes on without a bar
                self._enabled, Bars._open, self._stage = False, None, None
        else:
            self._tell(stage, done, total, unit)

    def _tell(self, stage: str, done: int, total: int | None, unit: str) -> None:
        """Log how far a stage is, if that was not told for a while."""
        now = time.monotonic()
        if stage != self._stage:
            self._stage, self._began, self._told, self._initial = stage, now, now, done
        elif now - self._told >= EVERY_S:
            self._told = now
            rate = (done - self._initial) / (now - self._began)
            log.info("%s", _line(stage, done, total, unit, rate))

    def _show(self, stage: str, done: int, total: int | None, unit: str) -> None:
        if stage != self._stage:
            self._close()
            from tqdm import tqdm

            # What was done before the bar opened says nothing of the speed: a run may go on inside an epoch.
            Bars._open = tqdm(
                desc=stage,
                total=total,
                initial=done,
                unit=unit,
                unit_scale=True,
                leave=False,
                file=sys.stderr,
            )
            self._stage = stage
        bar = Bars._open
        if total is not None and bar.total != total:
            bar.total = total
        bar.update(max(0, done - bar.n))

    def _close(self) -> None:
        bar, Bars._open = Bars._open, None
        if bar is not None:
            with suppress(OSError):  # its terminal is gone
                bar.close()
        self._stage = None

    @staticmethod
    def write(line: str) -> None:
        """Write a line to stderr, above the bar if there is one."""
        if Bars._open is not None:
            from tqdm import tqdm

            tqdm.write(line, file=sys.stderr)
        else:
            sys.stderr.write(line + "\n")
            sys.stderr.flush()


def _line(stage: str, done: int, total: int | None, unit: str, rate: float) -> str:
    """How far a stage is, and when it ends at `rate` units a second.

    >>> _line("epoch 2/3", 250, 1000, "edges", 0.25)
    'epoch 2/3: 250 of 1,000 edges (25 %), 50:00 left'
    >>> _line("sort", 1234, None, "edges", 10.0)
    'sort: 1,234 edges'
    """
    if not total:
        return f"{stage}: {done:,} {unit}"
    text = f"{stage}: {done:,} of {total:,} {unit} ({done * 100 // total} %)"
    if rate <= 0:
        return text
    from tqdm import tqdm

    return f"{text}, {tqdm.format_interval((total - done) / rate)} left"
