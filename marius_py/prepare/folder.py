"""A graph folder appears whole or not at all (floor 4).

In: the output path. Out: a temporary sibling folder to build in, renamed into place at the end. A killed
prepare leaves only that sibling, which never opens as a graph at `output` and is removed by the next prepare
of the same output: it is locked while its process lives, so a live one is told from a dead one.
"""

from __future__ import annotations

import ctypes
import errno
import glob
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from marius_py.errors import ConfigError, StorageError
from marius_py.graph.manifest import EDGES_FILE, GRAPH_FILE, NODES_FILE, RELATIONS_FILE
from marius_py.storage.file_io import os_errors_as_storage
from marius_py.storage.files import TEMPORARY_SUFFIX, sync_folder
from marius_py.storage.lock import is_abandoned, try_flock

_OWN = (GRAPH_FILE, NODES_FILE, RELATIONS_FILE, EDGES_FILE)
"""All files of a prepared graph."""

_SHOWN = 5
_RENAME_EXCHANGE = 2
_AT_FDCWD = -100


def check_output(output: Path, overwrite: bool) -> None:
    """Refuse an output that would destroy something, or whose place nothing can take.

    Raises:
        ConfigError: it is a file, a mount point, the current folder or one around it, a prepared graph
        without `overwrite` or with other things beside its files, or a folder of other things. StorageError:
        it lies in a folder that may not be entered.
    """
    with os_errors_as_storage("look at output", output):
        if not output.exists():
            return
        if not output.is_dir():
            raise ConfigError(f"output {output} is a file; choose a folder")
        if _is_mount_point(Path(os.path.realpath(output))):
            raise ConfigError(
                f"output {output} is a mount point, whose place no finished folder can take: choose a folder "
                f"in it, such as {output / 'graph'}"
            )
        if _holds_current(Path(os.path.realpath(output))):
            raise ConfigError(
                f"output {output} is the current folder or one around it, whose place no finished folder can "
                f"take: choose another, such as {output / 'graph'}"
            )
        if (output / GRAPH_FILE).exists():
            if not overwrite:
                raise ConfigError(
                    f"output {output} holds a prepared graph already; set overwrite=true to replace it"
                )
            _refuse_others(output)
        elif any(output.iterdir()):
            raise ConfigError(
                f"output {output} is not empty and holds no prepared graph; choose a new or an empty folder"
            )


def _refuse_others(output: Path) -> None:
    """Refuse to replace a graph's folder that holds more than the graph."""
    own = {*_OWN, *(name + TEMPORARY_SUFFIX for name in _OWN)}
    others = sorted(entry.name for entry in output.iterdir() if entry.name not in own)
    if others:
        shown = ", ".join(others[:_SHOWN]) + ", …" * (len(others) > _SHOWN)
        raise ConfigError(
            f"output {output} holds a prepared graph, and beside it {shown}: overwrite=true would remove "
            "that too; move it elsewhere, or choose another output"
        )


@contextmanager
def building(output: Path, overwrite: bool) -> Iterator[Path]:
    """Give a temporary folder; when the body ends without an error it becomes `output`, else it vanishes.

    A symbolic link at `output` stays: what it leads to is made or replaced.

    Raises:
        ConfigError: as `check_output`. StorageError: another prepare of the same output is running, or the
        folder cannot be made or renamed.
    """
    output = Path(os.path.realpath(output))
    with os_errors_as_storage("write", output):
        if _aside(output).is_dir():
            _remove_stale(output)  # raises where a live process has put it there
            _settle(output)
    check_output(output, overwrite)
    with os_errors_as_storage("write", output):
        output.parent.mkdir(parents=True, exist_ok=True)
        _remove_stale(output)
        folder, lock = _new_sibling(output)
    try:
        if try_flock(lock) is False:
            raise _in_use(output)
        yield folder
        with os_errors_as_storage("write", output):
            check_output(output, overwrite)
            sync_folder(folder)
            _move_into_place(folder, output, overwrite)
            sync_folder(output.parent)
    finally:
        os.close(lock)
        # after a successful exchange this is the old graph, after a plain rename it is gone already
        shutil.rmtree(folder, ignore_errors=True)


def _prefix(output: Path) -> str:
    return f".{output.name}.preparing-"


def _new_sibling(output: Path) -> tuple[Path, int]:
    """A new folder beside the output, and a descriptor of it to lock it by."""
    folder = output.with_name(f"{_prefix(output)}{os.getpid()}-{secrets.token_hex(4)}")
    folder.mkdir()
    try:
        return folder, os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except BaseException:
        with suppress(OSError):
            folder.rmdir()  # rmtree would have to open it
        raise


def _remove_stale(output: Path) -> None:
    for folder, is_left in temporary_folders(output):
        if not is_left:
            raise _in_use(output)
        shutil.rmtree(folder, ignore_errors=True)


def temporary_folders(output: Path) -> Iterator[tuple[Path, bool]]:
    """The temporary folders beside an output without links, and of each whether its process is gone."""
    prefix = _prefix(output)
    for folder in output.parent.glob(f"{glob.escape(prefix)}*"):
        pid = folder.name.removeprefix(prefix).partition("-")[0]
        if pid.isdecimal():
            with suppress(OSError):
                yield folder, is_abandoned(folder, int(pid))


def _in_use(output: Path) -> StorageError:
    return StorageError(f"another process or thread is preparing {output} right now; wait for it")


def _holds_current(folder: Path) -> bool:
    """Whether the current folder is this one, without links, or lies in it."""
    try:
        return Path.cwd().is_relative_to(folder)
    except FileNotFoundError:  # it was removed
        return False


def _is_mount_point(folder: Path) -> bool:
    """Whether a folder is the root of a mount, be it of its parent's own file system (a bind mount)."""
    with suppress(OSError, StopIteration):
        return _mount_of(folder) != _mount_of(folder.parent)
    return os.path.ismount(folder)


def _mount_of(folder: Path) -> str:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        facts = Path(f"/proc/self/fdinfo/{descriptor}").read_text().splitlines()
        return next(line for line in facts if line.startswith("mnt_id:"))
    finally:
        os.close(descriptor)


def _move_into_place(folder: Path, output: Path, overwrite: bool) -> None:
    """Rename, which fails where another program has put something since, or exchange with what is there."""
    if not overwrite or not output.exists() or not any(output.iterdir()):
        os.rename(folder, output)
        return
    if not _exchange(folder, output):
        # file systems without atomic exchange: for a moment there is no graph at `output`
        aside = _aside(output)
        os.rename(output, aside)
        try:
            os.rename(folder, output)
        finally:
            _settle(output)


def _aside(output: Path) -> Path:
    """Where the old graph waits while the new one takes its place."""
    return output.with_name(f".{output.name}.replaced")


def _settle(output: Path) -> None:
    """Put an old graph back whose place is empty, be it that a process was killed there; else remove it."""
    aside = _aside(output)
    if not output.exists() and aside.is_dir():
        os.rename(aside, output)
    shutil.rmtree(aside, ignore_errors=True)


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
