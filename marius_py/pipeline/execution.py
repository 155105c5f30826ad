"""The runner that suits a run (floor 3): settings, device and buffer in, the choice and its threads out.

The host's cores share in one batch at a time, or, where several may be in flight, have lanes each of which
takes its batches through all stages; cores left over share in the lanes' batches. Beside a device that keeps
the buffer one lane is enough, and where rows travel to a device each stage has a thread.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from marius_py.nn.product_units import HostPrecision, product_units
from marius_py.pipeline.forked import usable_threads
from marius_py.pipeline.lanes import run_lanes
from marius_py.pipeline.rounds import run_rounds
from marius_py.pipeline.runner import AHEAD_THREADS, Stage, run_inline, run_threaded
from marius_py.pipeline.trace import Trace
from marius_py.pipeline.watchdog import Watchdog
from marius_py.team import Teams

log = logging.getLogger(__name__)

_THREADED_STAGES = 2
"""So many of the stages beside a device have threads of their own: those that read and change rows."""

_MOST_AHEAD = 8
"""Batches that are drawn at once for a device, while there are two cores for each: finding the known edges
among 2 · 10 · 1000 negatives of 50,000 edges takes a core tens of milliseconds, and the device 2."""


_lock = threading.Lock()
_users = 0
"""How many have changed torch's number of threads, in all threads of this process."""
_later = 0
"""What the first of them found: the number for threads that are begun when all have gone."""


@contextmanager
def torch_threads(number: int) -> Iterator[None]:
    """Meanwhile torch computes with so many threads, afterwards with as many as before.

    Torch has a number for each thread, and for those that begin later the one that was set last. Where more
    threads than one are in here, that may be what one of them has meanwhile: the last to leave sets what the
    first one found.

    In a forked process with one: torch's threads are gone there (see `usable_threads`).
    """
    global _users, _later
    before = torch.get_num_threads()
    with _lock:
        _later = _later if _users else before
        _users += 1
    try:
        torch.set_num_threads(usable_threads(number))
        yield
    finally:
        with _lock:
            torch.set_num_threads(before)
            _users -= 1
            if not _users and before != _later:
                _set_for_later_threads(_later)


def _set_for_later_threads(number: int) -> None:
    """Set torch's number for threads that begin later, and not for the calling one."""
    setting = threading.Thread(target=torch.set_num_threads, args=(number,))
    with suppress(RuntimeError):  # there is no room for a thread
        setting.start()
        setting.join()


@dataclass(frozen=True, slots=True)
class Execution:
    """How batches go through their stages.

    Attributes:
        mode: "threaded" or "inline". max_in_flight: batches between gather and scatter.
        threads: of the CPU's kernels.
        compute_workers: batches that the CPU computes at once, or, with one in flight, threads that share in
            one; None: one for each of `threads`.
        members: threads that share in each of several batches that the CPU computes at once, as far as
            `threads` go; with one in flight, all do.
        precision: of the CPU's matrix products.
        on_host: the CPU computes. in_device: the buffer is where a device computes.
        swapped: partitions come and go, so that drawing waits for the disk.
        draws_quickly: drawing reads no edges beside the batch's own.
    """

    mode: str
    max_in_flight: int
    threads: int
    compute_workers: int | None
    members: int
    precision: HostPrecision
    on_host: bool
    in_device: bool
    swapped: bool
    draws_quickly: bool

    @contextmanager
    def teams(self, trace: Trace) -> Iterator[Teams]:
        """Threads that share in a batch, for each that is computed at once; torch's are shared out among all.

        Members with a thread each do more than torch's own threads in one: many of a step's operations are
        too small to be divided.
        """
        size = self._sharing
        with self._shared_threads(self._lanes * size), Teams(size, trace.span) as teams:
            yield teams

    def announce(self) -> None:
        """Say in the log what the cores of the host compute at once, if it is several batches."""
        if self._lanes > 1:
            log.info("batches: %d at once, threads of each: %d", self._lanes, self._sharing)

    def run(
        self,
        source: Iterable[Any],
        stages: Sequence[Stage],
        trace: Trace,
        on_error: Callable[[], None],
        watchdog: Watchdog,
        teams: Teams,
    ) -> None:
        """Take all of `source` through the stages, the first of which draws.

        Raises:
            PipelineError, MariusError, StalledError: as `run_threaded`.
        """
        if self.mode == "inline":
            with self._products():
                run_inline(source, stages, trace)
        elif self.in_device and self.draws_quickly:
            # The device runs ahead of the host by itself; threads would hand the interpreter's lock about.
            run_lanes(source, stages, trace, lanes=1, on_error=on_error, watchdog=watchdog)
        elif self._in_ram:
            lanes = self._lanes
            # Only where partitions are swapped does drawing wait for the disk.
            ahead = max(lanes, teams.size) + 1 if self.swapped else 0
            if lanes == 1:
                on_cores = partial(run_rounds, team=teams.mine())
            else:
                on_cores = partial(run_lanes, lanes=lanes)
            with self._products():
                on_cores(source, stages, trace, ahead=ahead, on_error=on_error, watchdog=watchdog)
        else:
            with self._shared_threads(_THREADED_STAGES):
                run_threaded(
                    source,
                    stages,
                    trace,
                    max_in_flight=self.max_in_flight,
                    ahead=max(AHEAD_THREADS, min(_MOST_AHEAD, self.threads // 2)),
                    on_error=on_error,
                    watchdog=watchdog,
                )

    def _products(self) -> AbstractContextManager[None]:
        """Lets the CPU use its units for bfloat16 meanwhile, if that is the precision."""
        return product_units(self.precision if self.on_host else "float32")

    @property
    def _in_ram(self) -> bool:
        """Whether the CPU computes on a buffer of its own."""
        return self.on_host and not self.in_device

    @property
    def _lanes(self) -> int:
        """Number of batches that the CPU computes at once, each with its share of torch's threads."""
        if self.mode == "inline" or not self._in_ram:
            return 1
        return min(self.compute_workers or self.threads, self.max_in_flight)

    @property
    def _sharing(self) -> int:
        """Number of threads that share in each of these batches."""
        if not self._in_ram:
            return 1
        if self._lanes == 1:
            return self.compute_workers or self.threads
        return max(1, min(self.members, self.threads // self._lanes))

    def _shared_threads(self, users: int) -> AbstractContextManager[None]:
        """Meanwhile torch has its share of threads for each of so many users at once.

        The share does not follow from how many torch has: another run of the process may have changed that.
        """
        return torch_threads(max(1, self.threads // users))
