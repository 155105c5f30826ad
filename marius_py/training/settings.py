"""How a run is carried out (floor 4)."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import torch

from marius_py.nn.product_units import HostPrecision
from marius_py.nn.schedules import RateSchedule
from marius_py.pipeline.execution import Execution
from marius_py.training.commits import CommitRhythm


@dataclass(frozen=True, slots=True)
class TrainerSettings:
    """How a run is carried out.

    Attributes:
        capacity: c, partitions in the buffer.
        mode: "threaded" or "inline". max_in_flight: batches between gather and scatter (inline: 1).
        commits: when to commit inside an epoch.
        trace: where to write a Chrome trace, or None.
        rate: factor of the learning rate over the run; None: always 1.
        patience: end after so many validations in a row without a new best MRR; None: never.
        device_buffer: keep the buffer where batches are computed, not in RAM.
        threads: of the CPU's kernels; None: as many as torch has now.
        compute_workers: batches that the CPU computes at once, which share these threads, at most
            `max_in_flight`; with one in flight, threads that share in it; None: one for each thread.
        members: threads that share in each of several batches in flight, at most, and as far as `threads` go.
        precision: of the CPU's matrix products: "bfloat16" rounds their factors, where the CPU has units for
            that; sums, rows and everything else are float32.
    """

    capacity: int
    mode: str = "threaded"
    max_in_flight: int = 8
    commits: CommitRhythm = field(default_factory=CommitRhythm)
    trace: Path | None = None
    rate: RateSchedule | None = None
    patience: int | None = None
    device_buffer: bool = False
    threads: int | None = None
    compute_workers: int | None = None
    members: int = 1
    precision: HostPrecision = "float32"

    def execution(self, device: torch.device, num_partitions: int, *, reads_edges: bool) -> Execution:
        """How batches run.

        Args:
            device: where they are computed.
            num_partitions: p; more than the capacity are swapped.
            reads_edges: whether drawing a batch reads known edges, which takes the host longer.
        """
        return Execution(
            mode=self.mode,
            max_in_flight=self.max_in_flight,
            threads=self.threads or torch.get_num_threads(),
            compute_workers=self.compute_workers,
            members=self.members,
            precision=self.precision,
            on_host=device.type == "cpu",
            in_device=self.device_buffer,
            swapped=self.capacity < num_partitions,
            draws_quickly=not reads_edges,
        )
