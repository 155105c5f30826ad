"""A run whose validation has not improved for long ends, and only between epochs."""

from __future__ import annotations

import logging

import pytest

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


@pytest.mark.parametrize(("sampled", "said"), [(False, ": validation"), (True, ": sampled validation")])
def test_the_best_epoch_is_named(sampled: bool, said: str, caplog: pytest.LogCaptureFixture) -> None:
    valid = [{"mrr": 0.25}, {"mrr": 0.5, "sampled": sampled}, None, {"mrr": 0.4}]
    history = [{"epoch": epoch, "valid": found} for epoch, found in enumerate(valid)]
    with caplog.at_level(logging.INFO, "marius_py"):
        assert is_exhausted(RunState(Position(4, 0, 0), history=history), 1)
    assert f"stopping after epoch 4{said} MRR was best after epoch 2 (0.5000)" in caplog.text
