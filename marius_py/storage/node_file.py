"""nodes.h5: the slots that hold partition versions (floor 1).

In: slot numbers and arrays in the shape of a slot. Out: bytes moved to and from the disk. The file is an
ordinary HDF5 file with the contiguous float32 data sets `slots` (num_slots·S, D) and, if the optimizer has
state, `slots_state` (num_slots·S, state_dim), S = `NodeTable.slot_rows`. HDF5 writes it once; from then on
only this module writes to it, at the data sets' offsets, one call a tensor past the page cache.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import h5py
import numpy as np
from numpy.typing import NDArray

from marius_py.errors import FormatError, MariusError, StorageError
from marius_py.storage import files
from marius_py.storage.aligned import PAGE, is_aligned
from marius_py.storage.checks import FROM_A_COPY
from marius_py.storage.file_io import hdf5_errors_as_storage, os_errors_as_storage
from marius_py.storage.protocols import Float32, NodeTable

logger = logging.getLogger(__name__)

NODES_NAME = "nodes.h5"
FORMAT_VERSION = 1
EMBEDDINGS = "slots"
STATE = "slots_state"


@dataclass(frozen=True, slots=True)
class NodeFileFacts:
    """What nodes.h5 says of itself; `offsets` are bytes of `slots` and `slots_state` (None: width 0)."""

    store_id: str
    num_slots: int
    slot_rows: int
    dim: int
    state_dim: int
    offsets: tuple[int | None, int | None]


def create_node_file(path: Path, table: NodeTable, num_slots: int, store_id: str) -> None:
    """Write nodes.h5 with all its disk blocks reserved; on failure nothing is left.

    Raises:
        StorageError: the disk is full (the bytes needed are named) or fails.
    """
    rows = num_slots * table.slot_rows
    size = rows * (table.dim + table.state_dim) * 4
    files.check_space(path, size)
    try:
        # alignment: data sets begin on a page, as direct transfers need. Early allocation gives each its
        # place in the file now; FILL_TIME_NEVER keeps HDF5 from writing zeros over all of it.
        with (
            hdf5_errors_as_storage("create", path, size),
            h5py.File(
                path,
                "w",
                libver=("v110", "v110"),
                alignment_threshold=PAGE,
                alignment_interval=PAGE,
                locking=False,
            ) as file,
        ):
            facts = {
                "format_version": FORMAT_VERSION,
                "num_slots": num_slots,
                "slot_rows": table.slot_rows,
                "dim": table.dim,
                "state_dim": table.state_dim,
            }
            for name, value in facts.items():
                file.attrs[name] = np.int64(value)
            file.attrs["store_id"] = store_id
            for name, width in ((EMBEDDINGS, table.dim), (STATE, table.state_dim)):
                if width:
                    _create_slots(file, name, rows, width)
        files.reserve(path, path.stat().st_size)
    except BaseException:
        files.remove(path)
        raise


def _create_slots(file: h5py.File, name: str, rows: int, width: int) -> None:
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_layout(h5py.h5d.CONTIGUOUS)
    properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    space = h5py.h5s.create_simple((rows, width))
    h5py.h5d.create(file.id, name.encode(), h5py.h5t.IEEE_F32LE, space, properties)


def read_facts(path: Path) -> NodeFileFacts:
    """Read and check the header of nodes.h5.

    Raises:
        StorageError: missing, truncated or unreadable; `errno` in `files.REFUSALS` says that it may be whole.
        FormatError: readable, but not what this version writes.
    """
    os.close(files.open_file(path, os.O_RDONLY))  # what the system refuses is not damaged
    try:
        with h5py.File(path, "r", locking=False) as file:
            version = int(file.attrs["format_version"])
            if version != FORMAT_VERSION:
                raise FormatError(f"{path} has format version {version}; this version reads {FORMAT_VERSION}")
            count, rows, dim, width = (
                int(file.attrs[name]) for name in ("num_slots", "slot_rows", "dim", "state_dim")
            )
            offsets = (
                _offset(file, EMBEDDINGS, count * rows, dim),
                _offset(file, STATE, count * rows, width),
            )
            facts = NodeFileFacts(str(file.attrs["store_id"]), count, rows, dim, width, offsets)
    except MariusError as error:
        raise type(error)(str(error) if str(path) in str(error) else f"{path}: {error}") from None
    except Exception as error:
        if (refusal := files.refused_by_hdf5(path, error)) is not None:
            raise refusal from error
        if isinstance(error, OSError):
            raise StorageError(
                f"{path} is damaged or truncated, HDF5 cannot open it ({error}); {FROM_A_COPY}"
            ) from error
        raise FormatError(f"{path} is not a node file of this package: {error}") from error
    end = max(
        (offset + count * rows * w * 4 for offset, w in zip(offsets, (dim, width), strict=True) if offset),
        default=0,
    )
    with os_errors_as_storage("look at", path):  # it may be a snapshot's that training has just removed
        size = path.stat().st_size
    if size < end:
        raise StorageError(f"{path} is truncated: it has {size:,} bytes, {end:,} are needed; {FROM_A_COPY}")
    return facts


def _offset(file: h5py.File, name: str, rows: int, width: int) -> int | None:
    """Byte offset of a data set of slots; FormatError unless it is plain, contiguous and in this file."""
    if width == 0:
        return None
    if not isinstance(file.get(name, getlink=True), h5py.HardLink):
        raise FormatError(f"data set {name!r} is a link out of the file")
    data = file[name]
    plain = (
        isinstance(data, h5py.Dataset)
        and data.id.get_create_plist().get_layout() == h5py.h5d.CONTIGUOUS
        and data.external is None
        and data.dtype == np.dtype("<f4")
    )
    if not plain or data.shape != (rows, width):
        raise FormatError(f"data set {name!r} is not contiguous float32 of shape ({rows}, {width})")
    offset = data.id.get_offset()
    if offset is None:
        raise FormatError(f"data set {name!r} has no place in the file")
    return int(offset)


class NodeFile:
    """Open nodes.h5: moves slots to and from the disk. One thread at a time.

    Args:
        path: the file.
        facts: its header, from `read_facts`.
        writable: open for writing too.
    """

    def __init__(self, path: Path, facts: NodeFileFacts, *, writable: bool) -> None:
        self.path = path
        self.facts = facts
        flags = os.O_RDWR if writable else os.O_RDONLY
        self._buffered: int = files.open_file(path, flags)
        try:
            self._direct = files.open_direct(path, flags)
        except StorageError:
            os.close(self._buffered)
            raise
        self._closed = False

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{self.path} is open by descriptors, which cannot be copied or pickled; open it again"
        )

    def read_slot(self, slot: int, rows: int, embeddings: Float32, state: Float32) -> int:
        """Fill the first `rows` rows of slot-shaped arrays; returns bytes read.

        Whole pages are moved, so up to 4095 bytes behind the last row change too.
        """
        return sum(
            self._transfer(tensor, slot, rows, array, write=False)
            for tensor, array in enumerate((embeddings, state))
        )

    def write_slot(self, slot: int, rows: int, embeddings: Float32, state: Float32) -> int:
        """Write the first `rows` rows of slot-shaped arrays; returns bytes written. Not yet durable."""
        return sum(
            self._transfer(tensor, slot, rows, array, write=True)
            for tensor, array in enumerate((embeddings, state))
        )

    def read_rows(self, slot: int, first: int, out: NDArray[Any], *, tensor: int = 0) -> None:
        """Fill `out` (n, width) with rows from `first` of a slot through the page cache."""
        offset = self._place(tensor, slot)
        if out.size == 0 or offset is None:
            return
        try:
            files.read_into(self._buffered, _bytes_of(out), offset + first * out.shape[1] * 4, self.path)
        except StorageError:
            raise
        except OSError as error:
            raise files.storage_error("read", self.path, error) from error

    def sync(self) -> None:
        """Wait until all that was written is on the disk."""
        files.sync_data(self._buffered, self.path)

    def close(self) -> None:
        """Close the descriptors. May be called twice."""
        if not self._closed:
            self._closed = True
            os.close(self._buffered)
            if self._direct is not None:
                os.close(self._direct)

    def _place(self, tensor: int, slot: int) -> int | None:
        base = self.facts.offsets[tensor]
        width = self.facts.state_dim if tensor else self.facts.dim
        return None if base is None else base + slot * self.facts.slot_rows * width * 4

    def _transfer(self, tensor: int, slot: int, rows: int, array: Float32, *, write: bool) -> int:
        offset = self._place(tensor, slot)
        if offset is None or rows == 0:
            return 0
        if self._closed:  # the descriptor may be another file's by now
            raise StorageError(f"{self.path} was closed while a transfer waited")
        # Slots are a multiple of a page, so rounding up to one stays inside the slot and the array.
        size = -(-rows * int(array.shape[1]) * 4 // PAGE) * PAGE
        buffer = _bytes_of(array)[:size]
        move = files.write_from if write else files.read_into
        try:
            if self._direct is not None and is_aligned(array) and offset % PAGE == 0:
                try:
                    move(self._direct, buffer, offset, self.path)
                    return size
                except StorageError:
                    raise
                except OSError:
                    logger.info("%s: direct transfers refused, buffered ones from here on", self.path)
                    os.close(self._direct)
                    self._direct = None
            move(self._buffered, buffer, offset, self.path)
        except StorageError:
            raise
        except OSError as error:
            raise files.storage_error("write" if write else "read", self.path, error, size) from error
        if write and self._direct is None:
            # Without this, dirty pages pile up and the kernel stalls later writers for seconds.
            self.sync()
        files.drop_cache(self._buffered, offset, size)
        return size


def _bytes_of(array: NDArray[Any]) -> memoryview:
    return array.reshape(-1).view(np.uint8).data
