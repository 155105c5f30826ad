"""Faults one floor below the stores (floor 6): at the n-th system call that node storage makes on a file."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple, Self

from marius_py.storage.aligned import PAGE
from marius_py.storage.files import CallHook, set_call_hook


class SystemCall(NamedTuple):
    """One call that storage made: its name (open, preadv, pwritev, fsync, …), the path, bytes asked for."""

    name: str
    path: str
    size: int


class SystemCallFaults:
    """Within `with`, fail the n-th system call of node storage; without a number, only list the calls.

    Args:
        number: the call that fails, from 1; None: none does.
        error: errno of the failure.
        tear: a transfer moves half of its bytes, and what follows it fails: a torn write.
        action: called instead of raising, say to kill the process.
        every: all later calls fail too, as on a disk that stays full or is gone.

    Attributes:
        calls: the calls so far.
    """

    def __init__(
        self,
        number: int | None = None,
        error: int = 0,
        *,
        tear: bool = False,
        action: Callable[[], None] | None = None,
        every: bool = False,
    ) -> None:
        self.calls: list[SystemCall] = []
        self._number = number
        self._error = error
        self._tear = tear
        self._action = action
        self._every = every
        self._previous: CallHook | None = None
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        self._previous = set_call_hook(self._strike)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        set_call_hook(self._previous)

    def _strike(self, name: str, path: str, size: int) -> int:
        with self._lock:
            self.calls.append(SystemCall(name, path, size))
            number = len(self.calls)
        if self._number is None or number < self._number:
            return size
        half = _half(size)
        if number == self._number and self._tear and half:
            self._number += 1  # the rest of the transfer is the next call
            return half
        if number == self._number or self._every:
            if self._action is not None:
                self._action()
            raise OSError(self._error, os.strerror(self._error))
        return size


def _half(size: int) -> int:
    """Half of a transfer; whole pages if it is made of pages, since direct transfers stop at sectors."""
    return size // 2 if size % PAGE else size // PAGE // 2 * PAGE
