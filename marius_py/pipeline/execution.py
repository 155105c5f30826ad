"""The runner that suits a run (floor 3): settings, device and buffer in, the choice and its threads out.

The host's cores are shared by lanes, each of which takes its batches through all stages; beside a device that
keeps the buffer one lane is enough, and where rows travel to a device each stage has a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from marius_py.nn.product_units import HostPrecision, product_units
from marius_py.pipeline.lanes import run_lanes
from marius_py.pipeline.runner import Stage, run_inline, run_threaded
from marius_py.pipeline.trace import Trace
from marius_py.pipeline.watchdog import Watchdog

_THREADED_STAGES = 2
"""So many of the stages beside a device have threads of their own: those that read and change rows."""


@dataclass(frozen=True, slots=True)
class Execution:
    """How batches go through their stages.

    Attributes:
        mode: "threaded" or "inline". max_in_flight: batches between gather and scatter.
        compute_workers: batches that the CPU computes at once; None: one for each of torch's threads.
        precision: of the CPU's matrix products.
        on_host: the CPU computes. in_device: the buffer is where a device computes.
        swapped: partitions come and go, so that drawing waits for the disk.
        draws_quickly: drawing reads no edges beside the batch's own.
    """

    mode: str
    max_in_flight: int
    compute_workers: int | None
    precision: HostPrecision
    on_host: bool
    in_device: bool
    swapped: bool
    draws_quickly: bool

    def run(
        self,
        source: Iterable[Any],
        stages: Sequence[Stage],
        trace: Trace,
        on_error: Callable[[], None],
        watchdog: Watchdog,
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
        elif self.on_host and not self.in_device:
            # Only where partitions are swapped does drawing wait for the disk.
            with self._products(), self._lanes() as lanes:
                ahead = lanes + 1 if self.swapped else 0
                run_lanes(
                    source, stages, trace, lanes=lanes, ahead=ahead, on_error=on_error, watchdog=watchdog
                )
        else:
            with _shared_threads(_THREADED_STAGES):
                run_threaded(
                    source,
                    stages,
                    trace,
                    max_in_flight=self.max_in_flight,
                    on_error=on_error,
                    watchdog=watchdog,
                )

    def _products(self) -> AbstractContextManager[None]:
        """Lets the CPU use its units for bfloat16 meanwhile, if that is the precision."""
        return product_units(self.precision if self.on_host else "float32")

    @contextmanager
    def _lanes(self) -> Iterator[int]:
        """Number of batches to compute at once; meanwhile each has its share of torch's threads.

        Two workers with a thread each do more than one with two: many of a step's operations are too small to
        be divided.
        """
        lanes = min(self.compute_workers or torch.get_num_threads(), self.max_in_flight)
        with _shared_threads(lanes):
            yield lanes


@contextmanager
def _shared_threads(users: int) -> Iterator[None]:
    """Meanwhile torch has its share of threads for each of so many users at once."""
    threads = torch.get_num_threads()
    torch.set_num_threads(max(1, threads // users))
    try:
        yield
    finally:
        torch.set_num_threads(threads)
