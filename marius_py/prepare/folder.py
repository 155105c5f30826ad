"""What may become a graph's folder (floor 5), which appears whole or not at all (`storage.folders`)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from marius_py.errors import ConfigError
from marius_py.given import check_flags
from marius_py.graph.manifest import EDGES_FILE, GRAPH_FILE, NODES_FILE, RELATIONS_FILE
from marius_py.storage.file_io import os_errors_as_storage
from marius_py.storage.files import TEMPORARY_SUFFIX
from marius_py.storage.folders import check_folder_name, left_folders, new_folder, temporary_prefix
from marius_py.storage.targets import check_no_nul

_OWN = (GRAPH_FILE, NODES_FILE, RELATIONS_FILE, EDGES_FILE)
"""All files of a prepared graph."""

_SHOWN = 5
_VERB = "preparing"


def check_output(output: Path, overwrite: bool) -> None:
    """Refuse an output that would destroy something, or whose place nothing can take.

    Raises:
        ConfigError: it is a file or below one, a mount point, the current folder or one around it, a prepared
        graph without `overwrite`, read-only or with other things beside its files, or a folder of others; or
        its path is not UTF-8, or its name too long.
        StorageError: it lies in a folder that may not be entered.
    """
    check_flags(overwrite=overwrite)
    check_no_nul(output, f"output {output}")
    try:
        os.fspath(output.absolute()).encode()
    except UnicodeEncodeError:
        raise ConfigError(
            f"output {output} is not UTF-8, as the path of a Parquet file must be: choose another folder"
        ) from None
    check_folder_name(Path(os.path.realpath(output)), _VERB, f"output {output}")
    with os_errors_as_storage("look at output", output):
        if not output.exists():
            above = next(one for one in output.absolute().parents if one.exists())
            if not above.is_dir():
                raise ConfigError(f"output {output} lies below {above}, which is a file; choose a folder")
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
            _refuse_read_only(output)
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


def _refuse_read_only(output: Path) -> None:
    """Refuse to replace a graph that somebody has protected, and whose files could not be removed after."""
    if not os.access(output, os.W_OK | os.X_OK):
        raise ConfigError(
            f"output {output} holds a prepared graph and is read-only: make it writable to have it replaced, "
            "or choose another output"
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
    with new_folder(output, _VERB, partial(check_output, output, overwrite), replace=overwrite) as folder:
        yield folder


def temporary_folders(output: Path) -> Iterator[tuple[Path, bool]]:
    """The temporary folders beside an output without links, and of each whether its process is gone."""
    return left_folders(output.parent, temporary_prefix(output, _VERB))


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
