"""A run whose validation has not improved for long ends, and only between epochs."""

from __future__ import annotations

from marius_py.run_state import RunState
from marius_py.training.patience import is_exhausted
from marius_py.types import Position


def test_patience_ends_a_run_between_epochs_only() -> None:
    history = [{"epoch": i, "valid": {"mrr": 0.5 - i / 10}} for i in range(3)]
    assert is_exhausted(RunState(Position(3, 0, 0), history=history), 2)
    assert not is_exhausted(RunState(Position(3, 0, 0), history=history), 3)
    for inside in (Position(3, 1, 0), Position(3, 0, 1)):
        assert not is_exhausted(RunState(inside, history=history), 2)
    assert not is_exhausted(RunState(Position(3, 0, 0), history=history), None)
