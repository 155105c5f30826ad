"""Edges are read step by step here, as those of a large graph are; whole runs elsewhere hold their few."""

import pytest


@pytest.fixture(autouse=True)
def many_edges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marius_py.data.batches.HELD_EDGES", 0)
