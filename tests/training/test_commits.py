"""When a commit is due: by the clock, by swaps, and before the store has no room for further versions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from marius_py.partitioning import Partitioning
from marius_py.pipeline.trace import Trace
from marius_py.pipeline.watchdog import Watchdog
from marius_py.run_state import RunState
from marius_py.training import commits as commits_module
from marius_py.training.commits import CommitRhythm, Commits
from marius_py.types import Position

LAST, SWAPS = Position(0, 0, 0), range(6)
"""The position of the last commit; swaps before each of five steps, one a step."""


def make_commits(rhythm: CommitRhythm, spare_slots: int, partitions: int = 8) -> Commits:
    store: Any = SimpleNamespace(
        free_slots=lambda: spare_slots,
        commit=lambda checkpoint: None,
        table=SimpleNamespace(partitioning=Partitioning(80, partitions)),
    )
    buffer: Any = SimpleNamespace(capacity=2, flush=lambda: None)
    model: Any = SimpleNamespace(state_arrays=lambda copy: {"relations": np.zeros((2, 4), np.float32)})
    made = Commits(store, buffer, model, rhythm, {}, trace=Trace(), watchdog=Watchdog(None))
    made.begin()
    return made


def test_a_commit_is_due_by_the_clock_once_an_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(commits_module.time, "monotonic", lambda: now)
    commits = make_commits(CommitRhythm(seconds=10), spare_slots=8)
    here = Position(0, 1, 3)
    now = 109.0
    assert not commits.due(here, LAST, SWAPS)
    now = 110.0
    assert commits.due(here, LAST, SWAPS)
    assert not commits.due(here, here, SWAPS)  # that is where the last one was
    commits.commit(RunState())
    assert not commits.due(here, LAST, SWAPS)


def test_a_commit_is_due_by_swaps_between_steps_and_not_at_the_epochs_end() -> None:
    commits = make_commits(CommitRhythm(swaps=2), spare_slots=8)
    due = [commits.due(Position(0, step, 0), LAST, SWAPS) for step in range(6)]
    assert due == [False, False, True, True, True, False]
    assert not commits.due(Position(0, 3, 1), LAST, SWAPS)


def test_a_commit_is_due_before_versions_run_out() -> None:
    """Before step s, s partitions were written; at the next one with edges both residents are, twice."""
    commits = make_commits(CommitRhythm(), spare_slots=6)
    due = [commits.due(Position(0, step, 0), LAST, SWAPS) for step in range(1, 5)]
    assert due == [False, False, True, True]
    enough = make_commits(CommitRhythm(), spare_slots=4, partitions=4)
    assert not enough.due(Position(0, 4, 0), LAST, SWAPS)
