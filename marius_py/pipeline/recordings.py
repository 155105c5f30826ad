"""A device's work on tensors of recurring shapes, recorded once and replayed by one call (floor 3).

A batch is some seventy to a hundred launches, each of which costs the host more than it does a fast device.
As a CUDA graph they are one. What is recorded must depend on nothing but the numbers in its tensors, and must
not make the host wait.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

log = logging.getLogger(__name__)

WARM_UPS = 8
"""Times that work is done before it is recorded, which waits for the device: the last batches of a block have
a shape that may not come again. The first times compile kernels and make scratch memory."""

LONG = 256
"""A recording that was not replayed in so many times that work is done may give its place to another."""

MOST_SEEN = 1024
"""Shapes that are counted; the one that was not seen for the longest time is forgotten first."""

_one_at_a_time = threading.Lock()
"""Held by the thread that records: PyTorch frees cached memory first, which no other may be recording for."""

Work = Callable[[Sequence[Tensor]], Sequence[Tensor]]


@dataclass(slots=True)
class _Recorded:
    """Replaying `graph` computes `results` from what lies in `given`; it was replayed as work `at` last."""

    graph: Any
    given: Sequence[Tensor]
    results: Sequence[Tensor]
    at: int


class Recordings:
    """Does work in one thread, by replaying it where it has been done often enough.

    Args:
        may: whether work may be recorded, asked each time before it is; no where there is no CUDA device.
        keep: what is returned stays as it is when the next work is done, at the price of a copy; else a
            replay, and work that returns scratch of its own, may overwrite it.
        most: recordings at most: each keeps what it is given and returns in the device's memory. Each block
            of edges may have batches of a size of its own; those that find no place are launched one by one,
            until a recording has not been replayed for `LONG`.
    """

    def __init__(self, *, may: Callable[[], bool], keep: bool, most: int) -> None:
        self._may, self._keep, self._most = may, keep, most
        self._failed = False
        self._recorded: dict[Hashable, _Recorded] = {}
        self._seen: dict[Hashable, int] = {}
        self._pool: Any = None
        self._stream: Any = None
        self._done = 0

    def do(self, work: Work, given: Sequence[Tensor], key: Hashable = None) -> Sequence[Tensor]:
        """What `work` makes of the tensors: the same work whenever their shapes and `key` are the same."""
        shapes = (key, *(one.shape for one in given))
        self._done += 1
        if not self._failed and shapes not in self._recorded and self._may():
            self._count(shapes)
            if self._seen[shapes] > WARM_UPS and self._has_place():
                self._record(shapes, work, given)
        recorded = self._recorded.get(shapes)
        if recorded is None:
            results = work(given)
        else:
            for mine, one in zip(recorded.given, given, strict=True):
                mine.copy_(one)
            recorded.graph.replay()
            recorded.at = self._done
            results = recorded.results
        return [one.clone() for one in results] if self._keep else results

    def close(self) -> None:
        """Give back the device's memory; later work is recorded anew."""
        self._recorded.clear()
        self._seen.clear()
        self._pool = self._stream = None

    def _count(self, shapes: Hashable) -> None:
        """Count the shapes once more, as those seen last."""
        self._seen[shapes] = self._seen.pop(shapes, 0) + 1
        if len(self._seen) > MOST_SEEN:
            del self._seen[next(iter(self._seen))]

    def _has_place(self) -> bool:
        """Whether one more may be recorded, in the place of another if need be."""
        if len(self._recorded) < self._most:
            return True
        return self._most > 0 and self._done - self._recorded[self._idle()].at > LONG

    def _idle(self) -> Hashable:
        """The shapes whose recording was not replayed for the longest time."""
        return min(self._recorded, key=lambda shapes: self._recorded[shapes].at)

    def _record(self, shapes: Hashable, work: Work, given: Sequence[Tensor]) -> None:
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
            # PyTorch's own for this is one for all devices and threads.
            make_stream: Any = torch.cuda.Stream
            self._stream = make_stream()
        make_graph: Any = torch.cuda.CUDAGraph
        graph, before = make_graph(), torch.cuda.current_stream()
        # Not the error itself: a cycle of it and this frame would keep what the device may have no room for.
        in_work: int | None = None
        try:
            mine = [one.clone() for one in given]
            options = {"pool": self._pool, "stream": self._stream, "capture_error_mode": "thread_local"}
            # Other threads go on copying meanwhile, which the default mode forbids.
            with _one_at_a_time, torch.cuda.graph(graph, **options):
                try:
                    results = work(mine)
                except RuntimeError as error:
                    in_work = id(error)
                    raise
        except RuntimeError as error:  # nothing has been computed: the work is done the other way
            self._failed = True
            torch.cuda.set_stream(before)
            if id(error) != in_work:
                _end_allocating(before.device, self._pool)
            log.warning("batches are launched one by one, since they cannot be recorded: %s", str(error))
            return
        self._recorded[shapes] = _Recorded(graph, mine, results, self._done)
        del self._seen[shapes]
        if len(self._recorded) > self._most:
            # Recording has waited for the device: no replay is under way. The pool stays: another uses it.
            del self._recorded[self._idle()]


def _end_allocating(device: torch.device, pool: Any) -> None:
    """Tell the allocator that a recording which could not be ended is over.

    PyTorch leaves that out (up to 2.11, pytorch#180395): memory that other streams have used would never come
    back, and emptying the cache would fail. There is no public way to say it.
    """
    end = getattr(torch._C, "_cuda_endAllocateToPool", None)
    if end is not None:
        with suppress(RuntimeError):  # it knows already
            end(torch.cuda.current_device() if device.index is None else device.index, pool)
