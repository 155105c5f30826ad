"""What comes between two epochs (floor 4): the run's state in; commit, validation, line of metrics out."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from marius_py.pipeline.runner import stage_of
from marius_py.pipeline.trace import Trace
from marius_py.pipeline.watchdog import Watchdog
from marius_py.run_state import EpochMetrics, RunState, best_of
from marius_py.training.commits import Commits
from marius_py.types import Position

log = logging.getLogger(__name__)


class EpochEnds:
    """Ends epochs: commits, validates, tells of them.

    Args:
        commits: makes the commits.
        trace: notes the seconds. watchdog: told of validation and snapshot.
        validate: called after the commit of an epoch with the number of epochs done; its dict is the
            line's `valid`.
        on_epoch: called with every finished line. on_boundary: called after commit and validation.
        quiet: log no lines.
    """

    def __init__(
        self,
        commits: Commits,
        *,
        trace: Trace,
        watchdog: Watchdog,
        validate: Callable[[int], dict[str, Any] | None] | None,
        on_epoch: Callable[[dict[str, Any]], None],
        on_boundary: Callable[[], None],
        quiet: bool,
    ) -> None:
        self._commits = commits
        self._trace, self._watchdog = trace, watchdog
        self._validate, self._on_epoch, self._on_boundary = validate, on_epoch, on_boundary
        self._quiet = quiet

    def go_on(self, state: RunState) -> None:
        """Do what a run left undone that ended between an epoch's commit and the next epoch."""
        if self._validate_pending(state):
            self._on_epoch(state.history[-1])
        self._snapshot(state)

    def finish(self, state: RunState, resident: tuple[int, ...], rate: float) -> None:
        """End the epoch under way, whose rows are in the store by now.

        Args:
            state: of the run; its position is between the epochs afterwards.
            resident: partitions in the buffer.
            rate: factor of the learning rate at the epoch's end.
        """
        epoch, current = state.position.epoch + 1, state.current
        line = replace(
            current,
            loss=current.loss / max(current.edges, 1),
            edges_per_second=current.edges / max(current.seconds, 1e-9),
            rate=rate,
        )
        state.position = Position(epoch, 0, 0)
        state.epoch_start = resident
        state.schedule = None
        state.current = EpochMetrics(epoch)
        state.history.append(asdict(line))
        self._commits.commit(state)
        self._validate_pending(state)
        self._on_epoch(state.history[-1])
        self._snapshot(state)
        if not self._quiet:
            log.info(
                "epoch %d: loss %.4f, %.0f edges/s, %.1f s, %d loads, %.2f s waiting on disk",
                epoch,
                line.loss,
                line.edges_per_second,
                line.seconds,
                line.loads,
                line.wait_disk_s,
            )

    def _validate_pending(self, state: RunState) -> bool:
        """Validate the epoch just finished, also where a run ended between its commit and its validation.

        Returns:
            Whether its line has a validation now that it did not have.
        """
        if not state.is_between_epochs or not state.history:
            return False
        if self._validate is None or state.history[-1].get("valid"):
            return False
        with stage_of("validate", self._watchdog, self._trace):
            valid = self._validate(state.position.epoch)
        if valid is None:
            return False
        line = state.history[-1]
        line["valid"] = valid
        if (best := best_of(state.validations())) is not None:
            line["best_epoch"] = best[0]
        self._commits.commit(state)
        return True

    def _snapshot(self, state: RunState) -> None:
        """Give a chance to copy the last commit, where it is between epochs."""
        if state.is_between_epochs and state.history:
            with stage_of("snapshot", self._watchdog, self._trace):
                self._on_boundary()
