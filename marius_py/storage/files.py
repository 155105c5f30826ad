"""Every system call that storage makes on a file's content (floor 1).

In: descriptors, buffers, offsets. Out: whole transfers, or one StorageError that names the file and the
cause. A hook sees each call before it is made: the fault kit of `marius_py.testing` fails or tears it there.
All calls release the GIL while the disk works.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from marius_py.errors import MissingPathError, StorageError
from marius_py.storage.regular import open_regular

logger = logging.getLogger(__name__)

CALL_LIMIT = 0x7FFF_F000
"""Bytes that Linux moves in one call at most: 2 GiB less a page, a multiple of 4096."""

TEMPORARY_SUFFIX = ".tmp"

CallHook = Callable[[str, str, int], int]
"""(call, path, bytes asked) -> bytes allowed; raises OSError to fail the call."""

REFUSALS = frozenset({errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO})
"""Errors of opening or reading a file that say nothing of what it holds."""

_HDF5_ERRNO = re.compile(r"errno = (\d+)")

_hook: CallHook | None = None


def set_call_hook(hook: CallHook | None) -> CallHook | None:
    """Install `hook` before every call of this module (None: none); returns the one before. For tests."""
    global _hook
    previous, _hook = _hook, hook
    return previous


def _enter(call: str, path: Path, size: int = 0) -> int:
    return size if _hook is None else _hook(call, str(path), size)


def reason_of(error: OSError) -> str:
    """What the system says, in one line; libraries that write give it a number and a text of their own.

    >>> reason_of(OSError(28, "Can't write data (file write failed, buf = 0x2b0)"))
    'No space left on device'
    """
    return os.strerror(error.errno) if error.errno else " ".join(str(error).split())


def storage_error(action: str, path: Path, cause: OSError, size: int = 0) -> StorageError:
    """Build the StorageError for a failed call; `errno` is carried over, the bytes needed are named."""
    if cause.errno in (errno.ENOSPC, errno.EDQUOT):
        facts = [f"{size:,} bytes were needed"] if size else []
        if cause.errno == errno.ENOSPC:  # what is free on the disk says nothing of a quota
            facts += _free(path.parent)
        known = f" ({', '.join(facts)})" if facts else ""
        what = "disk full" if cause.errno == errno.ENOSPC else "quota exceeded"
        text = f"{what}: cannot {action} {path}{known}; free space or use a folder on another disk"
    else:
        text = f"cannot {action} {path}: {reason_of(cause)}"
    # A name that is too long was given by somebody: there is no such file, and none is lost.
    error = MissingPathError(text) if cause.errno == errno.ENAMETOOLONG else StorageError(text)
    error.errno = cause.errno
    return error


def _free(folder: Path) -> list[str]:
    """What is left on a folder's disk, as far as it tells: bytes, and files if there can be no more."""
    try:
        disk = os.statvfs(folder)
    except OSError as unknown:
        logger.debug("%s: %s", folder, unknown)
        return []
    facts = [f"{disk.f_bavail * disk.f_frsize:,} bytes are free"] if disk.f_blocks else []
    if disk.f_files and not disk.f_favail:
        facts.append("but no further file can be made")
    return facts


def hdf5_error(cause: Exception) -> OSError:
    """The error of the system that HDF5 met, in the system's words; without one, HDF5's text in one line.

    >>> hdf5_error(RuntimeError("Can't decrement id ref count (unable to extend file, errno = 28, …)"))
    OSError(28, 'No space left on device')
    """
    text = str(cause.args[0]) if isinstance(cause, KeyError) and cause.args else str(cause)  # else quoted
    named = _HDF5_ERRNO.search(text)
    number = int(named[1]) if named else getattr(cause, "errno", None)
    return OSError(number, os.strerror(number)) if number else OSError(" ".join(text.split()))


def refused_by_hdf5(path: Path, error: Exception) -> StorageError | None:
    """The error of a file that HDF5 cannot read although it may be whole; None if its content is at fault.

    Args:
        path: the file.
        error: what h5py raised: OSError at the opening, later KeyError or RuntimeError too.
    """
    refusal = hdf5_error(error)
    if refusal.errno == errno.ENOENT:  # gone since it was looked for
        return StorageError(f"{path} is missing")
    if refusal.errno in REFUSALS:
        return storage_error("open", path, refusal)
    if "file locking flag values" in str(error):
        return StorageError(
            f"{path} is open in this program, with HDF5's locking: close it there, or open it with "
            "h5py.File(…, locking=False)"
        )
    return None


def open_file(path: Path, flags: int) -> int:
    """Open `path` as `open_regular`; raises StorageError that says whether it is missing."""
    try:
        _enter("open", path)
        return open_regular(path, flags)
    except FileNotFoundError as error:
        raise StorageError(f"{path} is missing") from error
    except OSError as error:
        raise storage_error("open", path, error) from error


def open_direct(path: Path, flags: int) -> int | None:
    """Open `path` past the page cache, or None where the file system refuses it."""
    if not hasattr(os, "O_DIRECT"):
        return None
    try:
        _enter("open", path)
        return os.open(path, flags | os.O_DIRECT | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP):
            logger.info("%s: no O_DIRECT on this file system, buffered transfers instead", path)
            return None
        raise storage_error("open", path, error) from error


def read_into(descriptor: int, buffer: memoryview, offset: int, path: Path) -> None:
    """Fill `buffer` (bytes) from `offset`: one call unless it is over the limit or comes up short.

    Raises:
        OSError: EINVAL of the first call, for the caller to fall back from O_DIRECT.
        StorageError: the device fails or the file ends too early.
    """
    done = 0
    while done < len(buffer):
        want = min(len(buffer) - done, CALL_LIMIT)
        try:
            want = _enter("preadv", path, want)
            count = os.preadv(descriptor, [buffer[done : done + want]], offset + done)
        except OSError as error:
            if error.errno == errno.EINVAL and done == 0:
                raise
            raise storage_error("read", path, error) from error
        if count == 0:
            raise StorageError(
                f"{path} is truncated: it ends at byte {offset + done:,}, {offset + len(buffer):,} are needed"
            )
        done += count


def write_from(
    descriptor: int, buffer: memoryview, offset: int, path: Path, needed: int | None = None
) -> None:
    """Write all of `buffer` (bytes) at `offset`; the counterpart of `read_into`, with the same errors.

    On a full disk they name `needed` bytes: those of the whole file, where the buffer is a piece of it.
    """
    done = 0
    while done < len(buffer):
        want = min(len(buffer) - done, CALL_LIMIT)
        try:
            want = _enter("pwritev", path, want)
            done += os.pwritev(descriptor, [buffer[done : done + want]], offset + done)
        except OSError as error:
            if error.errno == errno.EINVAL and done == 0:
                raise
            raise storage_error("write", path, error, needed or len(buffer)) from error


def drop_cache(descriptor: int, offset: int, size: int) -> None:
    """Tell the kernel that pages of this range are not needed again."""
    if hasattr(os, "posix_fadvise"):
        with contextlib.suppress(OSError):
            os.posix_fadvise(descriptor, offset, size, os.POSIX_FADV_DONTNEED)


def sync_data(descriptor: int, path: Path) -> None:
    """Wait until the file's content is on the disk (fdatasync)."""
    try:
        _enter("fdatasync", path)
        os.fdatasync(descriptor)
    except OSError as error:
        raise storage_error("flush", path, error) from error


def check_space(path: Path, size: int) -> None:
    """Raise StorageError if a file of `size` bytes cannot fit on the disk of `path`.

    Asked before the disk is filled to its last block, which would hit everybody else on it. File systems in
    user space that say nothing of their size have no blocks: there, writing finds out.
    """
    disk = os.statvfs(path.parent)
    if disk.f_blocks and size > disk.f_bavail * disk.f_frsize:
        raise storage_error("create", path, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), size)


def allocate(descriptor: int, size: int) -> bool:
    """Allocate the disk blocks of a file up to `size` bytes: whether its file system can.

    Raises:
        OSError: there is no room.
    """
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
            raise
        return False
    return True


def reserve(path: Path, size: int) -> None:
    """Allocate the disk blocks of `path` up to `size` bytes, so that no later write finds the disk full.

    Where the file system cannot, a later write may.
    """
    descriptor = open_file(path, os.O_RDWR)
    action = "reserve space for"
    try:
        _enter("fallocate", path, size)
        if not allocate(descriptor, size):
            logger.info("%s: this file system reserves no space, so that writing may find it full", path)
        action = "flush"
        _enter("fsync", path)
        os.fsync(descriptor)
    except OSError as error:
        raise storage_error(action, path, error, size) from error
    finally:
        os.close(descriptor)


def read_whole(path: Path, limit: int) -> bytes:
    """All bytes of a small file in one opening; StorageError if it is missing or longer than `limit`."""
    descriptor = open_file(path, os.O_RDONLY)
    try:
        size = os.fstat(descriptor).st_size
        if size > limit:
            raise StorageError(f"{path} has {size:,} bytes; at most {limit:,} are read")
        buffer = bytearray(size)
        read_into(descriptor, memoryview(buffer), 0, path)
        return bytes(buffer)
    except StorageError:
        raise
    except OSError as error:
        raise storage_error("read", path, error) from error
    finally:
        os.close(descriptor)


def write_temporary(path: Path, *content: bytes) -> Path:
    """Write `content`, one piece behind the other, durably to `path`.tmp; on failure nothing is left.

    Publish it with `replace`.
    """
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    descriptor = open_file(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    size = sum(map(len, content))
    try:
        try:
            offset = 0
            for piece in content:
                write_from(descriptor, memoryview(piece), offset, temporary, size)
                offset += len(piece)
            _enter("fsync", temporary)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        remove(temporary)
        if isinstance(error, StorageError):
            raise
        raise storage_error("write", temporary, error, size) from error
    return temporary


def replace(temporary: Path, path: Path) -> None:
    """Give `temporary` the name `path`, atomically and durably.

    Raises:
        StorageError: it has the name of before, or, if only flushing the folder failed, the new one already.
    """
    try:
        _enter("rename", path)
        os.rename(temporary, path)
    except OSError as error:
        raise storage_error("replace", path, error) from error
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the folder's names durable."""
    descriptor = open_file(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    try:
        _enter("fsync", folder)
        os.fsync(descriptor)
    except OSError as error:
        # Some file systems cannot flush a folder and say EINVAL; their renames are ordered anyway.
        if error.errno != errno.EINVAL:
            raise storage_error("flush", folder, error) from error
    finally:
        os.close(descriptor)


def missing_folders(folder: Path) -> list[Path]:
    """`folder` and those above it that are not there, to be given to `sync_names` once they are."""
    return [one for one in (folder, *folder.parents) if not one.exists()]


@contextlib.contextmanager
def made_folders(folder: Path) -> Iterator[list[Path]]:
    """Make a folder with those above it, and give the new ones, as `missing_folders`.

    New ones that are empty when the block ends go again.

    Raises:
        OSError: it cannot be made.
    """
    made = missing_folders(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield made
    finally:
        for new in made:  # from `folder` upwards
            with contextlib.suppress(OSError):  # it has content, as a rule
                new.rmdir()


def sync_names(made: Sequence[Path]) -> None:
    """Make the names of new folders durable, but in folders that may be written to and not be read."""
    for folder in made:
        if os.access(folder.parent, os.R_OK):
            sync_folder(folder.parent)


def remove(path: Path) -> None:
    """Remove a file if it is there; a failure is logged, since the caller is already cleaning up."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        if os.path.lexists(path):  # a file system that is read-only refuses to remove what is not there
            logger.warning("cannot remove %s: %s", path, error.strerror)
