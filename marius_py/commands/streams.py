"""Standard streams that a command can write to whatever the shell or a terminal did to them (floor 6)."""

from __future__ import annotations

import codecs
import contextlib
import errno
import io
import os
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

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


def escape_unknown() -> None:
    """Let stdout print an escape for each character that its encoding lacks, as stderr does."""
    out = sys.stdout
    if not isinstance(out, io.TextIOWrapper):
        return
    complete = codecs.lookup(out.encoding).name.startswith("utf")
    if out.errors == "strict" or not complete:
        out.reconfigure(errors="backslashreplace")


def write_whole() -> None:
    """Let stdout write all of a text or fail, also where Python's is unbuffered, as by PYTHONUNBUFFERED=1.

    Such a stream writes what its file takes at once, of a long text on a full disk the beginning, and says
    nothing of the rest.
    """
    out = sys.stdout
    if isinstance(out, io.TextIOWrapper) and isinstance(out.buffer, io.FileIO):
        whole = _Unbuffered(io.FileIO(out.fileno(), "w", closefd=False))
        sys.stdout = io.TextIOWrapper(whole, out.encoding, out.errors, write_through=True)


class _Unbuffered(io.BufferedWriter):
    """Holds nothing back."""

    def write(self, data: ReadableBuffer) -> int:
        written = super().write(data)
        self.flush()
        return written


def flush(stream: TextIO) -> None:
    """Write what stdout or stderr holds back; where that fails, discard it and all that follows.

    Whoever read it may have left, or the disk be full. The interpreter, which flushes on its way out, would
    fail there with a code of its own.
    """
    try:
        stream.flush()
    except OSError:
        discard(stream)


def discard(stream: TextIO) -> None:
    """Let what stdout or stderr holds back, and all that follows, go to /dev/null."""
    with contextlib.suppress(OSError):  # it has no file
        _discard(stream.fileno())


def tell(line: str) -> None:
    """Write a line to stderr, if it can be written."""
    with contextlib.suppress(OSError):
        sys.stderr.write(line + "\n")
    flush(sys.stderr)


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
