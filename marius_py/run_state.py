"""Where a run stands (floor 1): what a commit says of epochs done and of the one under way.

In: the meta of a checkpoint. Out: position, sums and history, and back. A run that goes on needs nothing else
beside the committed rows. What is derived from a line of history is kept, since an epoch's cost must hardly
grow with the epochs before it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from marius_py.types import Position


@dataclass(frozen=True, slots=True)
class EpochMetrics:
    """One line of metrics.jsonl; times in seconds, loss the mean an edge with both sides summed.

    `cpu_s` are the seconds of processor that the whole process used in `seconds`, all threads together.
    `rate` is the factor of the learning rate at the epoch's end, `best_epoch` the number of epochs that were
    done at the best validation so far.
    """

    epoch: int
    loss: float = 0.0
    seconds: float = 0.0
    edges: int = 0
    edges_per_second: float = 0.0
    bytes_read: int = 0
    bytes_written: int = 0
    loads: int = 0
    wait_disk_s: float = 0.0
    wait_device_s: float = 0.0
    cpu_s: float = 0.0
    rate: float = 1.0
    valid: Mapping[str, Any] | None = None
    best_epoch: int | None = None


@dataclass(slots=True)
class RunState:
    """Where a run stands; written with every commit.

    Attributes:
        position: batches done. epoch_start: partitions resident when the epoch began (None: none).
        schedule: hash of the epoch's schedule and the order of its edges, to which the position refers (None:
            not begun).
        current: sums of the epoch under way.
        history: finished epochs; lines are only added, and only the last one may still change.
    """

    position: Position = field(default_factory=lambda: Position(0, 0, 0))
    epoch_start: tuple[int, ...] | None = None
    schedule: str | None = None
    current: EpochMetrics = field(default_factory=lambda: EpochMetrics(0))
    history: list[dict[str, Any]] = field(default_factory=list)
    _encoded: list[str] = field(default_factory=list, init=False, repr=False, compare=False)
    _validations: list[tuple[int, float]] = field(default_factory=list, init=False, repr=False, compare=False)

    @property
    def is_between_epochs(self) -> bool:
        """Whether no epoch has begun that is not done."""
        return (self.position.step, self.position.batch) == (0, 0)

    def to_meta(self) -> dict[str, Any]:
        """JSON-serialisable form."""
        return {
            "position": list(self.position),
            "epoch_start": None if self.epoch_start is None else list(self.epoch_start),
            "schedule": self.schedule,
            "current": asdict(self.current),
            "history": self.history,
        }

    @classmethod
    def from_meta(cls, meta: Mapping[str, Any]) -> RunState:
        """Inverse of `to_meta`."""
        start = meta["epoch_start"]
        return cls(
            Position(*meta["position"]),
            None if start is None else tuple(start),
            meta.get("schedule"),
            EpochMetrics(**meta["current"]),
            list(meta["history"]),
        )

    def encoded_history(self) -> list[str]:
        """Each line of the history as JSON."""
        self._settle()
        return self._encoded + [json.dumps(line) for line in self.history[-1:]]

    def validations(self) -> list[tuple[int, float]]:
        """(epochs done, MRR) of each validation so far, in order."""
        self._settle()
        return self._validations + validations_of(self.history[-1:])

    def _settle(self) -> None:
        """Take what is derived from the lines that do not change any more."""
        settled = self.history[len(self._encoded) : -1]
        self._encoded += map(json.dumps, settled)
        self._validations += validations_of(settled)


def validations_of(lines: Sequence[Mapping[str, Any]]) -> list[tuple[int, float]]:
    """(epochs done, MRR) of each validation among the lines of epochs, in order."""
    found = [(line["epoch"] + 1, line.get("valid") or {}) for line in lines]
    return [(epochs, float(valid["mrr"])) for epochs, valid in found if "mrr" in valid]


def best_of(validations: Sequence[tuple[int, float]]) -> tuple[int, float] | None:
    """The one of (epochs done, MRR) with the highest MRR, the first of equals; None without any.

    >>> best_of([(1, 0.2), (3, 0.3), (4, 0.3)])
    (3, 0.3)
    """
    return max(validations, key=lambda one: one[1], default=None)
