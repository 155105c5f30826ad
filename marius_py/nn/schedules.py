"""Learning-rate schedules and early stopping (floor 1): how far a run is and how it ranked in, a factor out.

A schedule keeps no state. What it needs of the past is the list of validation results, which travels in the
checkpoint with the rest of the history, so that a resumed run goes on at the rate it would have had.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

from marius_py.errors import ConfigError
from marius_py.whole import is_whole

LEAST_WARMUP = 1e-3
"""The least factor of a warm-up: above 0, so that the first batch changes something."""


def _check(key: str, value: float, low: float, high: float) -> float:
    if not low <= value <= high:
        raise ConfigError(f"optimizer.schedule.{key} is {value!r}; it must lie in [{low:g}, {high:g}]")
    return float(value)


class RateSchedule(ABC):
    """Factor of the learning rate over a run of `epochs` epochs.

    Args:
        epochs: length of the run, at least 1.
        warmup: epochs over which the rate first rises in a straight line, at least 0; may be a fraction.
        floor: the least factor after the warm-up, in [0, 1].
    """

    def __init__(self, epochs: int, warmup: float = 0.0, floor: float = 0.0) -> None:
        self.epochs = epochs
        self.warmup = _check("warmup", warmup, 0, math.inf)
        self.floor = _check("floor", floor, 0, 1)

    def factor(self, done: float, validations: Sequence[float]) -> float:
        """Factor in [0, 1] for the batch after `done` epochs.

        Args:
            done: epochs done, with the share of the one under way.
            validations: validation MRRs so far, in order.
        """
        if done < self.warmup:
            return max(done / self.warmup, LEAST_WARMUP) * self.decay(0.0, validations)
        share = (done - self.warmup) / max(self.epochs - self.warmup, 1e-9)
        return self.decay(min(share, 1.0), validations)

    @abstractmethod
    def decay(self, share: float, validations: Sequence[float]) -> float:
        """Factor when a share in [0, 1] of the run after its warm-up is done."""


class ConstantRate(RateSchedule):
    """The same rate throughout, after the warm-up."""

    def decay(self, share: float, validations: Sequence[float]) -> float:
        """1."""
        return 1.0


class LinearRate(RateSchedule):
    """A straight line from 1 to the floor.

    >>> LinearRate(10, warmup=2, floor=0.2).factor(6, ())
    0.6
    """

    def decay(self, share: float, validations: Sequence[float]) -> float:
        """1 − (1 − floor) · share."""
        return 1 - (1 - self.floor) * share


class CosineRate(RateSchedule):
    """Half a cosine from 1 to the floor."""

    def decay(self, share: float, validations: Sequence[float]) -> float:
        """floor + (1 − floor) (1 + cos(π share)) / 2."""
        return self.floor + (1 - self.floor) * (1 + math.cos(math.pi * share)) / 2


class PlateauRate(RateSchedule):
    """Multiplied by a factor each time that validation MRR has not risen for some validations.

    Args:
        epochs, warmup, floor: as for `RateSchedule`.
        reduction: the factor, in (0, 1).
        patience: validations without a new best that are let pass, at least 0.
    """

    def __init__(
        self,
        epochs: int,
        warmup: float = 0.0,
        floor: float = 0.0,
        reduction: float = 0.5,
        patience: int = 1,
    ) -> None:
        super().__init__(epochs, warmup, floor)
        if not 0 < reduction < 1:
            raise ConfigError(f"optimizer.schedule.reduction is {reduction!r}; it must lie in (0, 1)")
        self.reduction = float(reduction)
        if not is_whole(patience, 0):
            raise ConfigError(
                f"optimizer.schedule.patience is {patience!r}; it must be a whole number, at least 0"
            )
        self.patience = int(patience)

    def decay(self, share: float, validations: Sequence[float]) -> float:
        """reduction to the power of the plateaus so far, at least the floor.

        >>> PlateauRate(10, patience=1).decay(0.5, [0.3, 0.2, 0.2, 0.2, 0.2, 0.4])
        0.25
        """
        best, waited, plateaus = -math.inf, 0, 0
        for value in validations:
            if value > best:
                best, waited = value, 0
                continue
            waited += 1
            if waited > self.patience:
                waited, plateaus = 0, plateaus + 1
        return max(self.reduction**plateaus, self.floor)


def since_best(validations: Sequence[float]) -> int:
    """Validations after the first that reached the highest value.

    >>> since_best([0.1, 0.3, 0.2, 0.3]), since_best([])
    (2, 0)
    """
    if not validations:
        return 0
    return len(validations) - 1 - validations.index(max(validations))
