"""Streams, events and graphs of the simulated device: work that is asked for now and done later."""

from __future__ import annotations

import os
import random
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

ORDER = os.environ.get("MARIUS_SIMULATED_ORDER", "late")
DEVICE = torch.device("cuda", 0)

Work = Callable[[], object]

_lock = threading.RLock()
_local = threading.local()
_random = random.Random(ORDER)
_streams: weakref.WeakSet[Stream] = weakref.WeakSet()
_modes = {"sync": "default"}


class Stream:
    """Work in order. A mark is how much of it had been asked for.

    Marks are taken without the lock, by destructors too, in the middle of anything: so that one is never too
    low, work keeps its place when it is done.
    """

    def __init__(self, device: Any = None, priority: int = 0) -> None:
        self.device = DEVICE
        self._work: list[Work | None] = []
        self._done = 0
        with _lock:
            _streams.add(self)

    @property
    def asked(self) -> int:
        """The mark of now."""
        return len(self._work)

    def ask(self, work: Work) -> None:
        """Put work off, and perhaps do some of what was put off."""
        with _lock:
            self._work.append(work)
            if ORDER == "early":
                self.do(self.asked)
            elif ORDER != "late" and _random.random() < 0.5:
                lucky = _random.choice(sorted(_streams, key=id))
                lucky.do(_random.randint(lucky._done, lucky.asked))

    def put_off(self, work: Work) -> None:
        """Put work off and do nothing: for those who ask while other work is being done."""
        self._work.append(work)

    def do(self, mark: int) -> None:
        """Do all work before a mark."""
        with _lock:
            while self._done < mark:
                work, self._work[self._done] = self._work[self._done], None
                self._done += 1
                if work is not None:
                    work()  # may have other streams do theirs first

    def is_done(self, mark: int) -> bool:
        """Whether all work before a mark is done, and none of it still being done by another thread."""
        with _lock:
            return self._done >= mark

    def synchronize(self) -> None:
        """Wait for all that was asked for."""
        self.do(self.asked)

    def record_event(self, event: Event | None = None) -> Event:
        """An event at the mark of now."""
        event = event or Event()
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        """Let what is asked for from here on come after an event."""
        stream, mark = event.stream, event.mark
        if stream is not None and stream is not self:
            self.ask(lambda: stream.do(mark))

    def wait_stream(self, stream: Stream) -> None:
        """Let what is asked for from here on come after what was asked of another stream."""
        self.wait_event(stream.record_event())


class Event:
    """A mark in a stream."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False) -> None:
        self.stream: Stream | None = None
        self.mark = 0

    def record(self, stream: Stream | None = None) -> None:
        """Take the mark of now."""
        self.stream = stream or current_stream()
        self.mark = self.stream.asked

    def query(self) -> bool:
        """Whether the work before it is done."""
        if self.stream is not None and ORDER != "late" and _random.random() < 0.5:
            self.stream.do(self.mark)
        return self.stream is None or self.stream.is_done(self.mark)

    def synchronize(self) -> None:
        """Wait for the work before it."""
        if self.stream is not None:
            self.stream.do(self.mark)

    def wait(self, stream: Stream | None = None) -> None:
        """Let a stream wait for it."""
        (stream or current_stream()).wait_event(self)


default = Stream()


def current_stream(device: Any = None) -> Stream:
    """That of the calling thread."""
    found: Stream = getattr(_local, "stream", default)
    return found


def set_stream(stream: Stream) -> None:
    """Make a stream that of the calling thread."""
    _local.stream = stream


@contextmanager
def on_stream(stream: Stream | None) -> Iterator[None]:
    """As `torch.cuda.stream`."""
    before = current_stream()
    set_stream(stream or before)
    try:
        yield
    finally:
        set_stream(before)


def synchronize(device: Any = None) -> None:
    """Wait for all streams."""
    with _lock:
        every = list(_streams)
    for stream in every:
        stream.synchronize()


class Graph:
    """Work that was asked for while it was recorded."""

    def __init__(self, keep_graph: bool = False) -> None:
        self.work: list[Work] = []

    def replay(self) -> None:
        """Ask for it again."""
        for work in self.work:
            current_stream().ask(work)


@contextmanager
def recording(
    graph: Graph, pool: Any = None, stream: Stream | None = None, capture_error_mode: str = "global"
) -> Iterator[None]:
    """As `torch.cuda.graph`."""
    synchronize()
    _local.graph = graph
    try:
        with on_stream(stream or Stream()):
            yield
    finally:
        _local.graph = None


def is_capturing() -> bool:
    """Whether the calling thread records."""
    return getattr(_local, "graph", None) is not None


def launch(work: Work) -> None:
    """Ask the calling thread's stream for work, or record it."""
    if is_capturing():
        _local.graph.work.append(work)
    else:
        current_stream().ask(work)


def wait(what: str) -> None:
    """Make the host wait for the calling thread's stream.

    Raises:
        RuntimeError: the thread records, or `set_sync_debug_mode("error")` holds.
    """
    if is_capturing():
        raise RuntimeError(f"CUDA error: operation not permitted when stream is capturing ({what})")
    if _modes["sync"] == "error":
        raise RuntimeError(f"called a synchronizing CUDA operation ({what})")
    current_stream().synchronize()


def set_sync_debug_mode(mode: str | int) -> None:
    """As `torch.cuda.set_sync_debug_mode`."""
    _modes["sync"] = str(mode)
