"""What a run's history says, line by line."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from marius_py import run_state
from marius_py.run_state import RunState


def test_what_is_derived_follows_the_history() -> None:
    state = RunState(history=[{"epoch": 0, "valid": {"mrr": 0.1}}, {"epoch": 1}])
    assert state.validations() == [(1, 0.1)]
    for epoch in range(2, 5):
        state.history.append({"epoch": epoch, "valid": None})
        assert json.loads(f"[{','.join(state.encoded_history())}]") == state.history
        state.history[-1]["valid"] = {"mrr": epoch / 10}
        assert json.loads(f"[{','.join(state.encoded_history())}]") == state.history
        assert state.validations()[-1] == (epoch + 1, epoch / 10)
    assert state.validations() == [(1, 0.1), (3, 0.2), (4, 0.3), (5, 0.4)]
    assert RunState().encoded_history() == RunState().validations() == []


def test_an_epoch_costs_the_same_however_many_went_before(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[int] = []

    def dumps(line: dict[str, int]) -> str:
        encoded.append(line["epoch"])
        return json.dumps(line)

    monkeypatch.setattr(run_state, "json", SimpleNamespace(dumps=dumps))
    state = RunState()
    for epoch in range(100):
        state.history.append({"epoch": epoch})
        for _ in range(2):  # as the last line, which may change, and as one before it
            state.encoded_history()
    assert max(encoded.count(epoch) for epoch in range(100)) == 3
