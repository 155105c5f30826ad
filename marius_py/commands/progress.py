"""Progress bars for the commands (floor 6): counts in, one line on a terminal, nothing elsewhere."""

from __future__ import annotations

import sys
from contextlib import suppress
from types import TracebackType
from typing import Any, ClassVar


class Bars:
    """One bar at a time, a stage each, on stderr if that is a terminal; silent otherwise.

    Call it with (stage, done, total or None, unit) as often as convenient, from one thread. Use it in a
    `with` block, which clears the last bar.
    """

    _open: ClassVar[Any] = None

    def __init__(self) -> None:
        self._enabled = sys.stderr.isatty()
        self._stage: str | None = None

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
                self._enabled, Bars._open = False, None

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
