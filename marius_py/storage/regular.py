"""Opening what should be a file (floor 1): a pipe, socket or device in its place is refused, not waited for.

In: a path. Out: a descriptor, or the bytes; an OSError that says what else is there.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

PIPE = "a pipe"
DEVICE = "a device"
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: PIPE,
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: DEVICE,
    stat.S_IFBLK: DEVICE,
}


def irregular_kind(path: Path | str) -> str | None:
    """What a path leads to, in words, if that is no file; None of a file. OSError: it leads nowhere.

    >>> irregular_kind("/dev/null")
    'a device'
    """
    return _KINDS.get(stat.S_IFMT(os.stat(path).st_mode))


def open_regular(path: Path | str, flags: int) -> int:
    """Open a file, or with O_DIRECTORY a folder, as os.open; also the opener of `open`.

    Anything else is refused: whoever opens a pipe waits for another program, and a device may have no end.

    Raises:
        OSError: it is something else, or the system refuses it.
    """
    with contextlib.suppress(FileNotFoundError):  # O_CREAT makes it
        kind = irregular_kind(path)
        if kind is not None and not flags & os.O_DIRECTORY:
            raise OSError(f"it is no file but {kind}")
    return os.open(path, flags | os.O_CLOEXEC, 0o666)


def read_regular(path: Path) -> bytes:
    """The bytes of a file; raises OSError as `open_regular`."""
    with open(path, "rb", opener=open_regular) as file:
        return file.read()
