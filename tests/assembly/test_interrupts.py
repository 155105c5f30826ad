"""Signals that reach a run between its epochs."""

from __future__ import annotations

import os
import signal
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from marius_py.assembly.interrupts import Interrupts
from marius_py.errors import InterruptedRunError


class Between:
    """A trainer whose state is committed, between two epochs."""

    epochs_done = 1
    interrupted = 0

    def __init__(self) -> None:
        self.state = SimpleNamespace(history=[{}], is_between_epochs=True, position=SimpleNamespace(epoch=1))

    def interrupt(self) -> None:
        self.interrupted += 1


@pytest.fixture
def heard() -> Iterator[tuple[Interrupts, Between]]:
    before = signal.getsignal(signal.SIGINT)
    interrupts, trainer = Interrupts([signal.SIGINT]), Between()
    interrupts.begin(trainer)  # type: ignore[arg-type]
    try:
        yield interrupts, trainer
    finally:
        interrupts.end()
        assert signal.getsignal(signal.SIGINT) is before


def test_one_between_epochs_stops_at_once(heard: tuple[Interrupts, Between]) -> None:
    with pytest.raises(KeyboardInterrupt, match="committed"):
        os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_one_that_python_drops_stops_the_run_all_the_same(heard: tuple[Interrupts, Between]) -> None:
    """What is raised within a callback of a weak reference is printed and forgotten."""
    interrupts, trainer = heard

    class Thing:
        pass

    def callback(_: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(100):  # it is raised here
            pass

    thing = Thing()
    reference = weakref.ref(thing, callback)
    interrupts.check()
    del thing
    assert reference() is None
    assert trainer.interrupted == 1
    with pytest.raises(InterruptedRunError, match="go on with resume=true"):
        interrupts.check()
