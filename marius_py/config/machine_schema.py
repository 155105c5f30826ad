"""Settings of `marius-train` of where and in what order it runs (floor 5): partitions, buffer, threads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from marius_py.config.fields import setting
from marius_py.config.sections import Checked
from marius_py.errors import ConfigError
from marius_py.types import MAX_PARTITIONS, MAX_THREADS

ORDERS = (
    "auto",
    "optimal",
    "cyclic",
    "beta",
    "comet",
    "hilbert",
    "hilbert_symmetric",
    "sequential",
    "random",
)
"""Orderings by name; the same as `marius_py.ordering` knows, listed here so that help imports nothing."""

MOST_OPTIMAL = 16
"""Most partitions for which `marius_py.ordering` holds an optimal order."""

MAX_ROUNDS = 64
"""Most passes of an epoch through the partitions, as `marius_py.ordering` allows."""


AUTO = "auto"
"""Of partitions and capacity: what `assembly.planned` replaces by numbers when a run starts."""


@dataclass(frozen=True, kw_only=True)
class StorageConfig(Checked):
    """Partitions on disk and in the buffer."""

    PREFIX: ClassVar[str] = "storage"

    partitions: int | Literal["auto"] | None = setting(
        None,
        "partitions of the node table; null = as the graph was prepared; auto = planned for this machine",
        unit="partitions",
        low=1,
        high=MAX_PARTITIONS,
    )
    capacity: int | Literal["auto"] | None = setting(
        None,
        "partitions in the buffer; = partitions: all in memory; null = as many as fit in half of the "
        "available memory at each start; auto = planned once",
        unit="partitions",
        low=1,
    )
    device: Literal["cpu", "cuda"] = setting("cpu", "where the buffer lives")

    def check(self) -> None:
        """The buffer has to hold both ends of a bucket."""
        if isinstance(self.partitions, int) and isinstance(self.capacity, int):
            check_buffer(self.partitions, self.capacity)


@dataclass(frozen=True, kw_only=True)
class OrderingConfig(Checked):
    """The order in which partitions pass through the buffer."""

    PREFIX: ClassVar[str] = "ordering"

    name: str = setting(
        "auto",
        "order of the buffer's states; auto = random where its loads should hide behind training and rounds "
        "are auto too, else the one with the fewest loads; optimal is known for up to "
        f"{MOST_OPTIMAL} partitions",
        choices=ORDERS,
    )
    policy: Literal["spread", "deadline", "eager", "random"] = setting(
        "spread",
        "which of the steps that hold both ends runs a bucket; spread = all of them share it, evenly loaded",
    )
    rounds: int | Literal["auto"] = setting(
        "auto",
        "times an epoch goes through the partitions, each with a share of every bucket; auto = as many as "
        "should hide behind training",
        low=1,
        high=MAX_ROUNDS,
    )

    def check(self) -> None:
        """Only a bucket that is shared has something to run in every round."""
        if self.policy != "spread" and self.rounds not in (AUTO, 1):
            raise ConfigError(
                f"ordering.rounds={self.rounds} goes with ordering.policy=spread, and not with "
                f"{self.policy}, which runs every bucket whole; allowed here: auto, 1"
            )


@dataclass(frozen=True, kw_only=True)
class PipelineConfig(Checked):
    """Stages, threads and staleness."""

    PREFIX: ClassVar[str] = "pipeline"

    mode: Literal["threaded", "inline"] = setting("threaded", "stages in threads, or one after the other")
    max_in_flight: int | None = setting(
        None,
        "batches between gather and write-back: the bound of staleness; 1 = synchronous; null = 2 to 8, by "
        "cores, and by the size and number of an epoch's batches",
        unit="batches",
        low=1,
    )
    compute_threads: int | None = setting(
        None,
        "threads of the numeric kernels; null = the cores that the process may use, within the quota of its "
        "container",
        unit="threads",
        low=1,
        high=MAX_THREADS,
    )
    compute_workers: int | None = setting(
        None,
        "batches that the CPU computes at once, sharing compute_threads, at most max_in_flight; with one in "
        "flight, threads that share in it; null = one for each thread",
        unit="batches",
        low=1,
        high=MAX_THREADS,
    )
    stall_seconds: float | None = setting(
        300.0,
        "how long a stage may make no progress until the run ends and names it; null = for ever",
        unit="seconds",
        above=0.0,
    )
    kernels: Literal["auto", "triton", "torch"] = setting(
        "auto", "what computes batches on a CUDA device; auto = Triton if it is installed"
    )
    precision: Literal["float32", "tf32", "bfloat16"] = setting(
        "tf32",
        "of the products of scores; sums and rows are float32; the CPU takes tf32 for float32, and "
        "bfloat16 too where it has no units for it",
    )
    trace: bool = setting(
        False,
        "write trace.json, a timeline of stages, batches, swaps, reads and writes, for Perfetto or Chrome",
    )


def check_buffer(partitions: int, capacity: int) -> None:
    """Refuse a buffer of `capacity` slots for `partitions` partitions that no schedule exists for.

    Raises:
        ConfigError: capacity > partitions, or capacity < 2 while something has to be swapped.
    """
    if capacity > partitions:
        raise ConfigError(
            f"storage.capacity={capacity} is out of range: it takes at most storage.partitions={partitions} "
            "(then everything is in memory)"
        )
    if capacity < 2 and partitions > capacity:
        raise ConfigError(
            f"storage.capacity={capacity} is out of range: an edge needs the partitions of both its ends, "
            f"so it takes from 2 to storage.partitions={partitions}"
        )


def check_order(name: str, partitions: int, capacity: int) -> None:
    """Refuse an order of that name that is not known for `partitions` partitions, `capacity` in the buffer.

    Raises:
        ConfigError: `ordering.name` is optimal, more than `MOST_OPTIMAL` partitions are swapped.
    """
    if name == "optimal" and capacity < partitions and partitions > MOST_OPTIMAL:
        raise ConfigError(
            f"ordering.name=optimal is known for storage.partitions of up to {MOST_OPTIMAL}, and not for "
            f"{partitions} with storage.capacity={capacity}: set ordering.name=auto, or fewer "
            "storage.partitions"
        )
