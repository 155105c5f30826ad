"""Standard streams that a command can write to whatever the shell or a terminal did to them (floor 6)."""

from __future__ import annotations

import errno
import os
import sys

_STREAMS = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))


def open_missing() -> None:
    """Open /dev/null in place of each standard stream that was closed, as by `2>&-`.

    Python has None for such a stream, and the next file to be opened would get its number.
    """
    for number, (name, mode) in enumerate(_STREAMS):
        try:
            os.fstat(number)
        except OSError:
            _discard(number)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, closefd=False))


def leave_terminal() -> None:
    """Discard what is written to standard streams whose terminal is gone, where each write would fail."""
    import termios

    for number in range(len(_STREAMS)):
        try:
            termios.tcgetattr(number)
        except termios.error as error:
            if error.args[0] == errno.EIO:  # else it is open, but no terminal
                _discard(number)


def _discard(number: int) -> None:
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    if null != number:
        os.dup2(null, number)
        os.close(null)
    os.set_inheritable(number, True)  # as a standard stream is
