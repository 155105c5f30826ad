"""Whether results can be written where a caller names (floor 1): asked before the work that they are of.

In: a path as it was given, with the key or flag it was given by. Out: nothing, or one error that names both.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from marius_py.errors import ConfigError, MariusError, MissingPathError, StorageError
from marius_py.readable import readable
from marius_py.storage.files import reason_of


def check_working_directory() -> None:
    """Raise MissingPathError where the working directory was deleted: libraries fail in many ways there."""
    try:
        os.getcwd()
    except OSError as error:
        raise MissingPathError(
            f"the working directory cannot be used ({error.strerror}): change to a folder that exists"
        ) from error


@contextmanager
def reaching(named: str) -> Iterator[None]:
    """Say which key or flag named the path that the body cannot look at or open.

    Args:
        named: the path as the caller gave it, with its key or flag, such as "among=names.txt".

    Raises:
        MissingPathError: a name in it is too long. StorageError: the system refuses it otherwise, as in a
        folder that may not be entered.
    """
    try:
        yield
    except MariusError:
        raise
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise MissingPathError(f"{named} leads nowhere: {error.strerror}") from error
        refused = StorageError(f"cannot read {named}: {reason_of(error)}")
        refused.errno = error.errno
        raise refused from error


def check_no_nul(path: Path | str, named: str) -> None:
    """Refuse with a ConfigError a path with a NUL, which no system takes; `named` as below."""
    if "\0" in os.fspath(path):
        raise ConfigError(f"{readable(named)} holds a NUL character, which no path may: leave it out")


def check_file_name(target: Path | str, named: str) -> None:
    """Refuse what cannot be a file's name: none, or one that ends in a slash, which a Path of it has lost.

    Args:
        target: as the caller gave it.
        named: the same with its key or flag, such as "output=m.json".

    Raises:
        ConfigError: it is empty or the current folder, or ends so.
    """
    if os.fspath(target).endswith(os.sep):
        raise ConfigError(f"{named} ends in a slash, as a folder does; give the name of a file")
    if not Path(target).name:  # of which no file beside it could be named
        raise ConfigError(f"{named} is the current folder, or empty; give the name of a file")


def temporary_name(place: Path) -> str:
    """Name of the file beside a place without links that this process writes instead."""
    return f".{place.name}.{os.getpid()}.tmp"


def check_length(place: Path, beside: str, named: str) -> None:
    """Refuse a file or folder whose name, or that of what is written `beside` it first, is too long.

    Args:
        place: of it, without links.
        beside: the other name.
        named: as for `check_file_name`.

    Raises:
        ConfigError: it is.
    """
    for name in (place.name, beside):
        try:
            os.lstat(place.parent / name)
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                raise ConfigError(
                    f"{named}: {place.name[:40]}… is too long for the name of a file or folder, beside which "
                    "another is written first: give a shorter one"
                ) from error


def check_target(target: Path | str, named: str) -> None:
    """Refuse a file that cannot be written, before the work whose result it is for.

    Args:
        target: the file as given, which may exist; of a link the file that it leads to is meant.
        named: the file as the caller gave it, with its key or flag, such as "output=m.json".

    Raises:
        ConfigError: no such folder, it is no file, or its name is too long. StorageError: the folder
            cannot be written to.
    """
    check_file_name(target, named)
    target = Path(target)
    check_no_nul(target, named)
    place = Path(os.path.realpath(target))
    folder = place.parent
    check_length(place, temporary_name(place), named)
    try:
        if not folder.is_dir():
            missing = folder if target.is_symlink() else target.parent
            raise ConfigError(f"{named}: there is no folder {missing}; create it first")
        if target.exists() and not target.is_file():
            raise ConfigError(f"{named} is a folder or a device; give the name of a file")
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise StorageError(
            f"{named}: the folder {folder} cannot be written to ({error.strerror or error}); "
            "give a file in another folder"
        ) from error
