"""Every error that the package raises on purpose (floor 0, no dependency).

Each class also subclasses the builtin that a caller would expect, so `except ValueError` keeps working.
The message says what was wrong, the value, what is allowed, and which key or flag to change.
"""

from __future__ import annotations

from functools import partial
from typing import Any


class MariusError(Exception):
    """Base of all errors raised on purpose; its text is complete without a traceback."""


class ConfigError(MariusError, ValueError):
    """A configuration key is unknown, has the wrong type or lies out of range. Exit code 2."""


class ScheduleError(MariusError, ValueError):
    """Arguments from which no ordering can be built, or a schedule that breaks its invariants."""


class StorageError(MariusError, OSError):
    """A read, write or commit failed: disk full, device error, lock held, file missing or damaged."""


class MissingPathError(StorageError, ConfigError, FileNotFoundError):
    """A path that the caller gave leads nowhere, or not to what it should name. Exit code 2.

    What lacks a file that it had is damaged: a plain `StorageError`.
    """


class FormatError(MariusError, ValueError):
    """A file's content is not what its format promises: malformed row, wrong version, wrong shape."""


class PipelineError(MariusError, RuntimeError):
    """A stage of the training pipeline failed; `stage` names it and `__cause__` holds the original."""

    def __init__(self, message: str, *, stage: str) -> None:
        super().__init__(message)
        self.stage = stage

    def __reduce__(self) -> tuple[Any, ...]:
        # Unpickling calls a class with `args` alone; where that fails, a pool of processes waits for ever.
        return partial(type(self), stage=self.stage), self.args, vars(self)


class DivergedError(PipelineError):
    """Losses, gradients or rows became infinite or NaN; nothing of that was committed."""


class StalledError(PipelineError):
    """A stage made no progress for `pipeline.stall_seconds`; its thread may still hang."""


class InterruptedRunError(MariusError):
    """SIGINT, SIGTERM or SIGHUP arrived; the state was committed first. Exit code 130."""
