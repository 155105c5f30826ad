"""Where the time went (floor 3): seconds by stage always, a Chrome trace of every span on request."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from marius_py.storage.file_io import replace_file
from marius_py.types import Position

log = logging.getLogger(__name__)

IN_FLIGHT, ON_DEVICE = "wait for a place in flight", "wait for the device"
"""What the host's waits for a device are called: for one of few batches to end, for what it knows of one."""

MOST_EVENTS = 100_000
"""Spans that are kept, of about 12,000 batches: 40 MB, and a file of 15 MB."""


class Trace:
    """Spans by name. Thread-safe.

    Args:
        keep_events: keep the first `MOST_EVENTS` spans for `write`; otherwise only the sums.
        current: where it is noted what each thread does now; a watchdog's, or one of its own.
    """

    def __init__(
        self, *, keep_events: bool = False, current: dict[str, tuple[float, str]] | None = None
    ) -> None:
        self._keep = keep_events
        self._events: list[dict[str, Any]] = []
        self._left_out = 0
        self._origin = time.perf_counter()
        self._lock = threading.Lock()
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.idle: list[tuple[float, float]] = []
        """(start, end) of the caller's waits for its next item: when nothing is computed."""
        self.current: dict[str, tuple[float, str]] = {} if current is None else current
        """Name of the thread → (start, span) of what it is doing now; the watchdog reads it."""

    def follow(self, earlier: Trace) -> None:
        """Begin with the spans of another trace of this process, which has ended; before any of its own."""
        self._events, self._left_out = list(earlier._events), earlier._left_out
        self._origin = earlier._origin

    @contextmanager
    def span(self, name: str, here: Position | None = None) -> Iterator[None]:
        """Time a block under `name`; of which batch it is stands with the event, counted from 1."""
        thread = threading.current_thread().name
        started = time.perf_counter()
        self.current[thread] = (started, name)
        try:
            yield
        finally:
            ended = time.perf_counter()
            self.current.pop(thread, None)
            self._note(name, started, ended, here)

    def tell(self, name: str, started: float, **facts: Any) -> None:
        """Note a span of this thread that ends now; `facts` are shown with the event."""
        self._note(name, started, time.perf_counter(), None, facts)

    def _note(
        self, name: str, started: float, ended: float, here: Position | None, facts: Mapping[str, Any] = {}
    ) -> None:
        with self._lock:
            self.seconds[name] += ended - started
            kept = self._keep and len(self._events) < MOST_EVENTS
            self._left_out += self._keep and not kept
        if kept:
            self._events.append(
                {
                    "name": name,
                    "ph": "X",
                    "pid": os.getpid(),
                    "tid": threading.current_thread().name,
                    "ts": (started - self._origin) * 1e6,
                    "dur": (ended - started) * 1e6,
                    "args": facts if here is None else _counted(here),
                }
            )

    def write(self, path: Path) -> None:
        """Write the events as Chrome trace JSON (chrome://tracing, Perfetto), replacing `path` atomically.

        How many later ones were left out is logged, and stands under `otherData`.
        """
        if self._left_out:
            log.warning(
                "%s has the first %d spans of the run; %d later ones are left out",
                path,
                len(self._events),
                self._left_out,
            )
        facts = {"displayTimeUnit": "ms", "otherData": {"spans_left_out": self._left_out}}
        content = json.dumps({"traceEvents": self._events, **facts})
        replace_file(path, content.encode())


def _counted(here: Position) -> dict[str, int]:
    """A position as messages count it, from 1."""
    return {name: number + 1 for name, number in here._asdict().items()}


def overlap_s(first: Sequence[tuple[float, float]], second: Sequence[tuple[float, float]]) -> float:
    """Seconds that two lists of disjoint, ascending intervals have in common.

    >>> overlap_s([(0, 2), (5, 9)], [(1, 6), (8, 10)])
    3
    """
    total: float = 0
    i = j = 0
    while i < len(first) and j < len(second):
        start, end = max(first[i][0], second[j][0]), min(first[i][1], second[j][1])
        total += max(0, end - start)
        if first[i][1] <= second[j][1]:
            i += 1
        else:
            j += 1
    return total
