"""Reading files of other systems (floor 5): one message for whatever is missing, damaged or half-written.

In: paths. Out: plain JSON values, counts, and arrays whose shape has been checked.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tokenize import TokenError
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from marius_py.errors import FormatError, MariusError, MissingPathError, StorageError
from marius_py.given import as_path
from marius_py.storage.regular import read_regular
from marius_py.storage.targets import reaching

JSON_LIMIT = 1 << 36
"""Bytes of a JSON file that are read at most."""
_COUNT_DIGITS = 15
_SHOWN = 80


def read_json(path: Path, what: str) -> Any:
    """The content of a JSON file.

    Args:
        path: the file.
        what: what it holds, for messages.

    Raises:
        StorageError: missing or unreadable. FormatError: no JSON, as when it was only half written.
    """
    content = read_bytes(path, what)
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise FormatError(
            f"{path} is damaged or half-written: it should hold {what} as JSON ({error})"
        ) from None


def finite(value: Any) -> float | None:
    """A JSON number as a float; None if it is no number, not finite, or too large for a float."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def shown(value: Any) -> str:
    """A value for messages, cut."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def has_repeats(names: list[str]) -> bool:
    """Whether two names are equal, by 8 bytes a name: only those whose hashes are equal are compared."""
    hashes = np.fromiter(map(hash, names), np.int64, len(names))
    hashes.sort()
    shared = set(hashes[1:][hashes[1:] == hashes[:-1]].tolist())
    alike = [name for name in names if hash(name) in shared] if shared else []
    return len(set(alike)) < len(alike)


def check_folder(given: Path | str, key: str, what: str) -> Path:
    """The path of a folder; MissingPathError names the setting if it is none, ConfigError if no path."""
    path = as_path(given, key, f"a folder that holds {what}")
    with reaching(f"{key}={path}"):
        is_folder = path.is_dir()
    if not is_folder:
        raise MissingPathError(f"{key}={path} is no folder; it should hold {what}")
    return path


def check_holds(folder: Path, patterns: tuple[str, ...], key: str, what: str) -> None:
    """Refuse a folder that has no file of `what`, not one of which some are lost; MissingPathError."""
    with reaching(f"{key}={folder}"):
        holds = any(next(folder.glob(pattern), None) is not None for pattern in patterns)
    if not holds:
        raise MissingPathError(f"{key}={folder} is not {what}: it holds no {' and no '.join(patterns)}")


def check_file(given: Path | str, key: str, what: str) -> Path:
    """The path of a file; MissingPathError names the setting if it is none, ConfigError if no path."""
    path = as_path(given, key, f"a file that holds {what}")
    with reaching(f"{key}={path}"):
        is_file = path.is_file()
        if is_file:
            path.open("rb").close()
    if not is_file:
        raise MissingPathError(f"{key}={path} is no file; it should hold {what}")
    return path


def read_bytes(path: Path, what: str) -> bytes:
    """The content of a file; StorageError if it is missing, unreadable or absurdly large."""
    try:
        if path.stat().st_size > JSON_LIMIT:
            raise StorageError(f"{path} has more than {JSON_LIMIT >> 30} GiB; it should hold {what}")
        return read_regular(path)
    except FileNotFoundError:
        raise StorageError(f"{path} is missing; it should hold {what}") from None
    except OSError as error:
        if isinstance(error, MariusError):
            raise
        raise StorageError(f"reading {path} failed: {error.strerror or error}") from error


def read_count(path: Path, what: str) -> int:
    """A whole number of up to 15 digits in a text file; StorageError if missing, FormatError otherwise."""
    text = read_bytes(path, what).strip()
    if not text.isdigit() or len(text) > _COUNT_DIGITS:
        raise FormatError(
            f"{path} holds {text[:40]!r}; it should hold {what}, a whole number of up to "
            f"{_COUNT_DIGITS} digits"
        )
    return int(text)


@contextmanager
def open_hdf5(path: Path, what: str) -> Iterator[h5py.File]:
    """Open an HDF5 file for reading.

    Raises:
        StorageError: missing. FormatError: no HDF5, damaged, half-written, or of another format version.
    """
    if not path.is_file():
        raise StorageError(f"{path} is missing; it should hold {what}")
    try:
        with h5py.File(path, "r", locking=False) as file:
            version = file.attrs.get("format_version")
            if version != 1:
                raise FormatError(f"{path} has format_version {version}; 1 is what can be read")
            yield file
    except (OSError, RuntimeError, KeyError, TypeError, ValueError) as error:  # TypeError: an unknown type
        if isinstance(error, MariusError):
            raise
        raise FormatError(
            f"{path} is damaged or half-written: it cannot be read as HDF5 ({error})"
        ) from error


def data_set(file: h5py.File, name: str, shape: tuple[int | None, ...], kinds: str = "f") -> h5py.Dataset:
    """A data set that lies in the file itself.

    Args:
        file: open file.
        name: path of the data set in it.
        shape: wanted shape; None: any length.
        kinds: allowed kinds of its dtype.

    Raises:
        FormatError: missing, a link out of the file, or of another shape or type.
    """
    path = file.filename
    place: Any = file
    for part in name.split("/"):
        if not isinstance(place, h5py.Group) or not isinstance(place.get(part, getlink=True), h5py.HardLink):
            raise FormatError(f"{path} has no data set {name}, or a link out of the file in its place")
        place = place[part]
    if not isinstance(place, h5py.Dataset) or place.is_virtual or place.external is not None:
        raise FormatError(f"{path}: {name} is no data set that lies in this file")
    wanted = "×".join("any" if size is None else str(size) for size in shape)
    found = place.shape  # None: a data set without values, not even a scalar
    fits = (
        found is not None
        and len(found) == len(shape)
        and all(size in (None, own) for size, own in zip(shape, found, strict=True))
    )
    if not fits or place.dtype.kind not in kinds:
        raise FormatError(f"{path}: {name} has shape {found} and type {place.dtype}; expected {wanted}")
    return place


def read_floats(file: h5py.File, name: str, shape: tuple[int | None, ...]) -> NDArray[np.float32]:
    """A whole data set of floats as float32; raises like `data_set`."""
    return as_float32(data_set(file, name, shape)[...])


def as_float32(values: Any) -> NDArray[np.float32]:
    """An array of floats as float32; what is too large for it becomes an infinity, without a warning."""
    with np.errstate(over="ignore"):
        return np.asarray(values, dtype=np.float32)


def open_rows(path: Path, what: str) -> NDArray[Any]:
    """A two-dimensional array of floats (n, at least 1) in an .npy file, mapped into memory.

    Raises:
        StorageError: missing. FormatError: no .npy, damaged, half-written, pickled, or of another shape.
    """
    if not path.is_file():
        raise StorageError(f"{path} is missing; it should hold {what}")
    try:
        rows: NDArray[Any] = np.lib.format.open_memmap(path, mode="r")
    except (OSError, ValueError, EOFError, TokenError) as error:
        raise FormatError(f"{path} is damaged or half-written: it should hold {what} ({error})") from error
    if rows.ndim != 2 or rows.dtype.kind != "f" or not rows.shape[1]:
        raise FormatError(
            f"{path} holds {rows.dtype} {rows.shape}; expected {what}: two dimensions of floats, at "
            "least one a row"
        )
    return rows
