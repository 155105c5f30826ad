"""Folders that appear whole or not at all (floor 3): built beside their place, then renamed into it.

A temporary folder is locked while its process lives, so that a live one is told from what a killed process
has left, which the next writer removes.
"""

from __future__ import annotations

import ctypes
import errno
import glob
import logging
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from marius_py.errors import StorageError
from marius_py.storage.file_io import os_errors_as_storage
from marius_py.storage.files import made_folders, sync_folder
from marius_py.storage.lock import if_it_is_gone, is_abandoned, try_flock
from marius_py.storage.targets import check_length

logger = logging.getLogger(__name__)

_RENAME_EXCHANGE = 2
_AT_FDCWD = -100


@contextmanager
def locked_folder(parent: Path, prefix: str, doing: str) -> Iterator[Path]:
    """A new folder in `parent`, locked while the block runs; removed after it, if it is there still.

    Raises:
        StorageError: another process that is `doing` so has taken it for left over.
        OSError: it cannot be made.
    """
    folder = parent / _unused_name(prefix)
    folder.mkdir()
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except BaseException:
        with suppress(OSError):
            folder.rmdir()  # rmtree would have to open it
        raise
    try:
        if try_flock(lock) is False:
            raise _busy(doing)
        yield folder
    finally:
        os.close(lock)
        _remove_tree(folder)


def _remove_tree(folder: Path) -> None:
    """Remove a folder if it is there; what cannot be removed is told of, since the work itself went well."""
    with suppress(OSError):  # of looking at the folder itself, which `ignore_errors` leaves out
        shutil.rmtree(folder, ignore_errors=True)
    if os.path.lexists(folder):
        logger.warning("%s cannot be removed: it is of no use any more, remove it by hand", folder)


def _busy(doing: str, folder: Path | None = None) -> StorageError:
    hint = "" if folder is None else if_it_is_gone(folder)
    return StorageError(f"another process or thread is {doing} right now; wait for it{hint}")


def left_folders(parent: Path, prefix: str, *, older_s: float = 0.0) -> Iterator[tuple[Path, bool]]:
    """The folders that `locked_folder` has made in `parent`, and of each whether its process is gone.

    Args:
        older_s: seconds since they were last changed, at least: where many are made at once, one may not be
            locked yet.
    """
    for folder in parent.glob(f"{glob.escape(prefix)}*"):
        pid = folder.name.removeprefix(prefix).partition("-")[0]
        if pid.isdecimal():
            with suppress(OSError):
                if older_s == 0 or time.time() - folder.stat().st_mtime >= older_s:
                    yield folder, is_abandoned(folder, int(pid))


def remove_left(parent: Path, prefix: str, *, older_s: float = 0.0) -> Path | None:
    """Remove such folders of processes that are gone; one of the others, if any. See `left_folders`."""
    other: Path | None = None
    for folder, is_left in left_folders(parent, prefix, older_s=older_s):
        if is_left:
            _remove_tree(folder)
        else:
            other = folder
    return other


def temporary_prefix(output: Path, verb: str) -> str:
    """What names of temporary folders beside an output begin with."""
    return f".{output.name}.{verb}-"


def _unused_name(prefix: str) -> str:
    return f"{prefix}{os.getpid()}-{secrets.token_hex(4)}"


def check_folder_name(output: Path, verb: str, named: str) -> None:
    """Refuse a folder, as for `new_folder` and with its key as `named`, for whose name there is no room.

    Raises:
        ConfigError: it is too long.
    """
    check_length(output, _unused_name(temporary_prefix(output, verb)), named)


@contextmanager
def new_folder(output: Path, verb: str, check: Callable[[], None], *, replace: bool) -> Iterator[Path]:
    """Give a temporary folder; when the block ends without an error it becomes `output`, else it vanishes.

    Args:
        output: without links.
        verb: what is done to it, as in "preparing": in the names of temporary folders and in errors.
        check: raises where `output` may not be made or replaced; asked before and after the block.
        replace: take the place of what is there, in one step where the file system can.

    Raises:
        StorageError: another process is at it, or the folder cannot be made or renamed; or it stands in its
            place, as the error says, and only the folder around it cannot be flushed. What `check` raises.
    """
    prefix = temporary_prefix(output, verb)

    def refuse_others() -> None:
        if (other := remove_left(output.parent, prefix)) is not None:
            raise _busy(f"{verb} {output}", other)

    with os_errors_as_storage("write", output):
        if _aside(output).is_dir():
            refuse_others()  # where a live one has put it there
            _settle(output)
    check()
    with ExitStack() as held:
        with os_errors_as_storage("write", output):
            held.enter_context(made_folders(output.parent))
            refuse_others()
            # At the end it is the old folder after an exchange, after a plain rename it is gone already.
            folder = held.enter_context(locked_folder(output.parent, prefix, f"{verb} {output}"))
        yield folder
        with os_errors_as_storage("write", output):
            check()
            sync_folder(folder)
            _move_into_place(folder, output, replace)
            try:
                sync_folder(output.parent)
            except StorageError as error:
                raise StorageError(
                    f"{error}; {output} stands whole in its place, but may not outlive a power failure"
                ) from error


def _move_into_place(folder: Path, output: Path, replace: bool) -> None:
    """Rename, which fails where another program has put something since, or exchange with what is there."""
    if not replace or not output.exists() or not any(output.iterdir()):
        os.rename(folder, output)
        return
    if not _exchange(folder, output):
        # file systems without atomic exchange: for a moment there is nothing at `output`
        aside = _aside(output)
        try:
            os.rename(output, aside)
            os.rename(folder, output)
        finally:
            _settle(output)


def _aside(output: Path) -> Path:
    """Where the old folder waits while the new one takes its place."""
    return output.with_name(f".{output.name}.replaced")


def _settle(output: Path) -> None:
    """Put an old folder back whose place is empty, be it that a process was killed there; else remove it."""
    aside = _aside(output)
    if not output.exists() and aside.is_dir():
        os.rename(aside, output)
    _remove_tree(aside)


def _exchange(first: Path, second: Path) -> bool:
    """Swap two folders in one step; False where the kernel or file system cannot."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    if renameat2(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        return False
    raise OSError(code, os.strerror(code), str(second))
