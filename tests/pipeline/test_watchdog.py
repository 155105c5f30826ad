"""The watchdog, where the system has no room for its thread."""

from __future__ import annotations

import threading

import pytest

from marius_py.errors import PipelineError
from marius_py.pipeline.watchdog import Watchdog


def test_a_watchdog_that_cannot_be_started_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_room)
    message = (
        "'marius-watchdog' cannot be started: can't start new thread; does a limit of processes or memory"
    )
    with pytest.raises(PipelineError, match=message), Watchdog(10):
        pass
