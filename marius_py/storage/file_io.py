"""Arrays and whole files on top of `storage.files` (floor 1): positioned array I/O, replacement, checksums.

In: descriptors, paths, C-contiguous arrays. Out: bytes on disk, or one `StorageError` that names the file and
the cause. Nothing here keeps state; every function may be called from any thread.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray

from marius_py.errors import StorageError
from marius_py.storage.files import (
    hdf5_error,
    open_file,
    read_into,
    remove,
    replace,
    storage_error,
    sync_data,
    write_from,
    write_temporary,
)
from marius_py.storage.regular import open_regular

_HASH_BLOCK = 1 << 24


@contextmanager
def os_errors_as_storage(action: str, path: Path) -> Iterator[None]:
    """Turn an OSError of the body into a StorageError that says what was being done to which file.

    Args:
        action: what the body does, say "write".
        path: the file or folder it does it to.

    Raises:
        StorageError: for any OSError that is not a StorageError already.
    """
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise storage_error(action, path, error) from error


@contextmanager
def hdf5_errors_as_storage(action: str, path: Path, size: int = 0) -> Iterator[None]:
    """As `os_errors_as_storage` for a body of HDF5 calls, which raise other errors of the system too.

    A failed read of an object is a KeyError, a failed close a RuntimeError.

    Args:
        action: what the body does, say "write".
        path: the file it does it to.
        size: bytes that the file needs, 0 if unknown.

    Raises:
        StorageError: for any OSError that is not a StorageError already, any KeyError and any RuntimeError.
    """
    try:
        yield
    except StorageError:
        raise
    except (OSError, KeyError, RuntimeError) as error:
        raise storage_error(action, path, hdf5_error(error), size) from error


def read_array(descriptor: int, array: NDArray[np.generic], offset: int, path: Path) -> None:
    """Fill a C-contiguous array from byte `offset` of an open file.

    Raises:
        StorageError: the device fails or the file ends too early.
    """
    with os_errors_as_storage("read", path):
        read_into(descriptor, _bytes_of(array), offset, path)


def write_array(descriptor: int, array: NDArray[np.generic], offset: int, path: Path) -> None:
    """Write a C-contiguous array at byte `offset` of an open file.

    Raises:
        StorageError: disk full or device error.
    """
    with os_errors_as_storage("write", path):
        write_from(descriptor, _bytes_of(array), offset, path)


def replace_file(path: Path, content: bytes) -> None:
    """Write `content` to `path` so that a crash leaves the old file or the new one, never a mixture.

    Raises:
        StorageError: the old file is then untouched, and nothing lies beside it; where only flushing its
            folder failed, it is replaced.
    """
    temporary = write_temporary(path, content)
    try:
        replace(temporary, path)
    except StorageError:  # a folder may have the name
        remove(temporary)
        raise


def sync_path(path: Path) -> None:
    """Wait until a closed file's content is on the disk. Raises StorageError."""
    descriptor = open_file(path, os.O_RDONLY)
    try:
        sync_data(descriptor, path)
    finally:
        os.close(descriptor)


def file_checksum(path: Path) -> str:
    """Hash a whole file: hex xxh3-64 of its bytes, read in blocks."""
    digest = xxhash.xxh3_64()
    buffer = bytearray(_HASH_BLOCK)
    view = memoryview(buffer)
    with os_errors_as_storage("read", path), open(path, "rb", buffering=0, opener=open_regular) as file:
        while got := file.readinto(buffer):
            digest.update(view[:got])
    return digest.hexdigest()


def array_checksum(array: NDArray[np.generic]) -> int:
    """Hash the bytes of a C-contiguous array: xxh3-64 as an int below 2⁶⁴."""
    return int(xxhash.xxh3_64_intdigest(_bytes_of(array)))


def _bytes_of(array: NDArray[np.generic]) -> memoryview:
    # a memoryview of an empty array cannot be cast, hence the detour
    return array.reshape(-1).view(np.uint8).data if array.size else memoryview(b"")
