"""One writer a folder (floor 1): a lock file of our own.

In: a folder. Out: an acquired lock, or a StorageError that names the process that has it. The kernel's
flock decides, so the lock of a dead process is free however it died; the file's text only names its owner.
A process that is forked from the owner lets go at once, else it would hold the lock as long as it lives.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import socket
import time
from pathlib import Path
from typing import Any

from marius_py.errors import StorageError
from marius_py.storage.files import reason_of
from marius_py.storage.regular import open_regular

logger = logging.getLogger(__name__)

LOCK_NAME = "writer.lock"
_PAUSES = (0.005, 0.02, 0.0)
"""Seconds after each try at a lock: who looks whether it is free holds it for microseconds."""


class FolderLock:
    """Exclusive right to write to a folder, among all processes of this machine. Not thread-safe.

    Args:
        folder: an existing folder.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / LOCK_NAME
        self._descriptor: int | None = None
        self._folder: tuple[int, int] | None = None
        self._is_left = False

    def acquire(self) -> None:
        """Take the lock without waiting; StorageError if another process or store has it."""
        while self._descriptor is None:
            try:
                descriptor = open_regular(self.path, os.O_RDWR | os.O_CREAT)
            except OSError as error:
                raise StorageError(
                    f"{self.path.parent} cannot be written to: opening its {LOCK_NAME} failed "
                    f"({reason_of(error)})"
                ) from error
            try:
                self._take(descriptor)
                # The owner before may have removed the file between our open and flock: then what we
                # locked has no name any more and shuts nobody out.
                if not self._is_named(descriptor):
                    os.close(descriptor)
                    continue
                self._sign(descriptor)
                folder = _identity(self.path.parent)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.close(descriptor)
                raise
            self._descriptor, self._folder, self._is_left = descriptor, folder, False
            _held.add(self)

    def check(self) -> None:
        """Make sure that the folder's path still leads to the folder that was locked.

        A lock file that somebody removed is made and locked again.

        Raises:
            StorageError: the folder was moved, removed or replaced, another process has locked it since, or
            it cannot be looked at; or this process was forked from the one that locked it.
        """
        if self._is_left:
            raise StorageError(
                f"{self.path.parent} is written to by the process that this one was forked from: nothing is "
                "written to it here"
            )
        descriptor = self._descriptor
        try:
            if descriptor is not None and self._is_named(descriptor):
                return
            is_same = _identity(self.path.parent) == self._folder
        except OSError as error:
            raise StorageError(f"cannot look at {self.path}: {error.strerror}") from error
        if descriptor is None or not is_same:
            raise StorageError(
                f"{self.path.parent} is not the folder any more that this process opened: it was moved, "
                "removed or replaced, so nothing is written to it; what was committed before lies in the "
                "folder that was moved"
            )
        self._descriptor = None
        try:
            self.acquire()
        except BaseException:
            self._descriptor = descriptor
            raise
        os.close(descriptor)

    def release(self) -> None:
        """Remove the lock file, unless it is another's by now, and let go. May be called twice."""
        if self._descriptor is None:
            return
        descriptor, self._descriptor = self._descriptor, None
        try:
            with contextlib.suppress(OSError):
                if self._is_named(descriptor):
                    self.path.unlink()
        finally:
            os.close(descriptor)
            _held.discard(self)

    def leave(self) -> None:
        """Let go in a forked process: the lock file, and the lock itself, stay with the one that forked."""
        descriptor, self._descriptor = self._descriptor, None
        self._is_left = True
        if descriptor is not None:
            os.close(descriptor)

    def _take(self, descriptor: int) -> None:
        for wait in _PAUSES:
            if _can_take(descriptor, fcntl.LOCK_EX):
                return
            time.sleep(wait)
        raise StorageError(
            f"{self.path.parent} is in use: {describe_owner(_owner(descriptor))} writes to it; "
            f"wait for it or stop it, or use another folder{if_it_is_gone(self.path)}"
        )

    def _is_named(self, descriptor: int) -> bool:
        return _identity(self.path) == _identity(descriptor)

    def _sign(self, descriptor: int) -> None:
        before = _owner(descriptor)
        if before is not None:
            logger.warning(
                "%s: taking over the lock of %s, %s", self.path, describe_owner(before), absence_of(before)
            )
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(_ourselves()).encode(), 0)
        except OSError as error:
            # The lock holds without its text, say on a full disk.
            logger.warning("cannot write to %s: %s", self.path, error.strerror)


_held: set[FolderLock] = set()
"""The locks of this process."""


def _leave_all() -> None:
    """Leave the locks of before to the process that forked."""
    for lock in _held:
        lock.leave()
    _held.clear()


os.register_at_fork(after_in_child=_leave_all)


def _identity(place: Path | int) -> tuple[int, int] | None:
    """Device and number of what a path or descriptor leads to; None of a path that leads nowhere."""
    try:
        found = os.stat(place)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino


def is_locked(folder: Path) -> bool:
    """Whether a process writes to a folder, by its lock; that of a process which is gone is free."""
    try:
        descriptor = open_regular(folder / LOCK_NAME, os.O_RDONLY)
    except OSError:
        return False
    try:
        is_free = _can_take(descriptor, fcntl.LOCK_SH)
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # a fork of this moment would hold it beyond our close
        return not is_free
    finally:
        os.close(descriptor)


def _can_take(descriptor: int, kind: int) -> bool:
    """Take a flock of a kind without waiting, if it is free.

    The kernel decides, whoever the file's text names; where the file system has no flock, the text does.
    """
    taken = try_flock(descriptor, kind)
    if taken is None:
        owner = _owner(descriptor)
        return owner is None or not is_alive(owner)
    return taken


def try_flock(descriptor: int, kind: int = fcntl.LOCK_EX) -> bool | None:
    """Take a flock without waiting: whether it was free, or None where the file system has no flock.

    Args:
        descriptor: of an open file or folder.
        kind: fcntl.LOCK_EX or fcntl.LOCK_SH.
    """
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except OSError as error:
        return False if error.errno in (errno.EWOULDBLOCK, errno.EACCES) else None
    return True


def if_it_is_gone(path: Path) -> str:
    """How a message that a file or folder is in use ends: without flock, whoever made it may be gone."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        is_known = try_flock(descriptor, fcntl.LOCK_SH) is not None
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)
    return "" if is_known else f"; if it has ended, which a file system without flock hides, remove {path}"


def is_abandoned(path: Path, pid: int) -> bool:
    """Whether no process writes a temporary file or folder any more, which its writer holds a flock on.

    Args:
        path: the file or folder.
        pid: the process in its name, which decides where the file system has no flock: one that does not run
            on this machine is gone, and so is an earlier one of our own number.

    Raises:
        OSError: it is gone, or may not be opened.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        free = try_flock(descriptor)
    finally:
        os.close(descriptor)
    return pid == os.getpid() or not _runs(pid) if free is None else free


def process_start(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot, None if unknown; tells recycled pids apart."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()  # the name in it may be cut within a character
    except OSError:
        return None
    return int(stat.rpartition(b")")[2].split()[19])


def is_alive(owner: dict[str, Any]) -> bool:
    """Whether the process that a lock's text names still runs, as far as this machine can tell."""
    if owner.get("host") != socket.gethostname():
        return True
    if not _runs(int(owner["pid"])):
        return False
    started = process_start(int(owner["pid"]))
    return started is None or started == owner.get("started")


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def lock_owner(folder: Path) -> dict[str, Any] | None:
    """What the folder's lock file says: pid, started, host; None if there is none or it says nothing."""
    try:
        descriptor = open_regular(folder / LOCK_NAME, os.O_RDONLY)
    except OSError:
        return None
    try:
        return _owner(descriptor)
    finally:
        os.close(descriptor)


def _ourselves() -> dict[str, Any]:
    """What the text of a lock of this process says."""
    return {"pid": os.getpid(), "started": process_start(os.getpid()), "host": socket.gethostname()}


def _owner(descriptor: int) -> dict[str, Any] | None:
    try:
        owner = json.loads(os.pread(descriptor, 4096, 0))
    except (OSError, ValueError):
        return None
    valid = isinstance(owner, dict) and type(owner.get("pid")) is int and owner["pid"] > 0
    return owner if valid else None


def absence_of(owner: dict[str, Any]) -> str:
    """What to say of a process that a free lock names: it may run, where the folder is a copy of another."""
    return "which does not write here" if is_alive(owner) else "which is gone"


def describe_owner(owner: dict[str, Any] | None) -> str:
    """Name a lock's owner for a message."""
    if owner is None:
        return "another process"
    if owner == _ourselves():
        return f"this process ({owner['pid']})"
    return f"process {owner['pid']} on {owner.get('host', 'an unknown host')}"
