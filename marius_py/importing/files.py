"""Reading files of other systems (floor 5): one message for whatever is missing, damaged or half-written.

In: paths. Out: plain JSON values, counts, and arrays whose shape has been checked.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from marius_py.errors import FormatError, MariusError, MissingPathError, StorageError

JSON_LIMIT = 1 << 36
"""Bytes of a JSON file that are read at most."""


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


def check_folder(path: Path, key: str, what: str) -> Path:
    """The path back if it is a folder; MissingPathError names the setting otherwise."""
    if not path.is_dir():
        raise MissingPathError(f"{key}={path} is no folder; it should hold {what}")
    return path


def check_file(path: Path, key: str, what: str) -> Path:
    """The path back if it is a file; MissingPathError names the setting otherwise."""
    if not path.is_file():
        raise MissingPathError(f"{key}={path} is no file; it should hold {what}")
    return path


def read_bytes(path: Path, what: str) -> bytes:
    """The content of a file; StorageError if it is missing, unreadable or absurdly large."""
    try:
        if path.stat().st_size > JSON_LIMIT:
            raise StorageError(f"{path} has more than {JSON_LIMIT >> 30} GiB; it should hold {what}")
        return path.read_bytes()
    except FileNotFoundError:
        raise StorageError(f"{path} is missing; it should hold {what}") from None
    except OSError as error:
        if isinstance(error, MariusError):
            raise
        raise StorageError(f"reading {path} failed: {error.strerror or error}") from error


def read_count(path: Path, what: str) -> int:
    """A whole number of 0 or more in a text file; StorageError if missing, FormatError otherwise."""
    text = read_bytes(path, what).strip()
    if not text.isdigit():
        raise FormatError(f"{path} holds {text[:40]!r}; it should hold {what}, a whole number")
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
    except (OSError, RuntimeError, KeyError, ValueError) as error:
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
    fits = len(place.shape) == len(shape) and all(
        size in (None, found) for size, found in zip(shape, place.shape, strict=True)
    )
    if not fits or place.dtype.kind not in kinds:
        raise FormatError(f"{path}: {name} has shape {place.shape} and type {place.dtype}; expected {wanted}")
    return place


def read_floats(file: h5py.File, name: str, shape: tuple[int | None, ...]) -> NDArray[np.float32]:
    """A whole data set of floats as float32; raises like `data_set`."""
    values: NDArray[np.float32] = data_set(file, name, shape)[...].astype(np.float32)
    return values


def open_rows(path: Path, what: str) -> NDArray[Any]:
    """A two-dimensional array of floats in an .npy file, mapped into memory.

    Raises:
        StorageError: missing. FormatError: no .npy, damaged, half-written, pickled, or of another shape.
    """
    if not path.is_file():
        raise StorageError(f"{path} is missing; it should hold {what}")
    try:
        rows = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise FormatError(f"{path} is damaged or half-written: it should hold {what} ({error})") from error
    if not isinstance(rows, np.ndarray):
        rows.close()
        raise FormatError(f"{path} holds several arrays; expected {what}: one, two-dimensional, of floats")
    if rows.ndim != 2 or rows.dtype.kind != "f":
        raise FormatError(
            f"{path} holds {rows.dtype} {rows.shape}; expected {what}: two dimensions of floats"
        )
    return rows
