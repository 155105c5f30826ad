"""Read the last commit of a node store without its lock (floor 1), while a trainer may be writing.

In: a folder. Out: embeddings by node id, by partition, or a few by id, and the Checkpoint. What is read is
the commit that was the last one at the opening. A trainer may free and reuse a slot of it after its next
commit; since that commit replaces checkpoint.h5 before any reuse, a look at checkpoint.h5 after each read
tells whether the read can be trusted. If not, an error says so: never a mixture of two versions.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

import numpy as np
import xxhash

from marius_py.errors import StorageError
from marius_py.given import as_path
from marius_py.storage.checkpoint_file import CHECKPOINT_NAME, decode_meta, open_checkpoint
from marius_py.storage.checks import (
    StreamedHashes,
    check_arrays,
    check_part,
    check_range,
    hash_rows,
    spans,
)
from marius_py.storage.hdf5_store import damaged_partition, open_nodes
from marius_py.storage.protocols import Checkpoint, Float32, NodeTable

_VERIFY_ROWS = 65_536
"""Rows a block when a partition is read only to be hashed."""


class ReplacedError(StorageError):
    """A trainer has committed a newer version of the partition that was being read; none is damaged."""


def open_node_reader(folder: str | os.PathLike[str]) -> NodeReader:
    """Open the last commit of the node store in `folder` for reading.

    Raises:
        StorageError: a file is missing, truncated or damaged, or nothing was committed yet.
        FormatError: a file is of another format version, of another run, or not ours.
        ConfigError: `folder` is no path.
    """
    return NodeReader(as_path(folder, "folder", "the folder of a node store"))


class NodeReader:
    """The committed nodes of a run; made by `open_node_reader`. One thread at a time.

    The hash of a partition's embeddings is checked when all of them have passed by in ascending blocks, and
    by `read_into` and `verify` with that of its state. A reader that is forgotten without `close` is closed
    with a ResourceWarning.
    """

    _closed = True  # until there is something to close

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._path = folder / CHECKPOINT_NAME
        # The look before the reading: a replacement in between shows up as a change, never goes unseen.
        seen = self._look()
        self._committed = open_checkpoint(self._path)
        self._manifest = self._committed.manifest
        self._newest = seen, self._manifest
        if self._manifest.generation == 0:
            raise StorageError(f"{folder} holds no committed nodes yet; train first")
        self._nodes = open_nodes(folder, self._manifest, writable=False)
        self._hashes = StreamedHashes()
        self._verified: set[tuple[int, int]] = set()  # partition, and 0 of its embeddings or 1 of its state
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if not self._closed:
            warnings.warn(
                f"the node reader of {self.folder} was not closed", ResourceWarning, stacklevel=1, source=self
            )
            self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"the node reader of {self.folder} holds open files: it cannot be copied or pickled; open "
            "another with open_node_reader"
        )

    @property
    def table(self) -> NodeTable:
        """Shape of the stored node table."""
        return self._manifest.table

    @property
    def generation(self) -> int:
        """Number of the commit that is read."""
        return self._manifest.generation

    @property
    def fingerprint(self) -> str:
        """Hash of all embeddings of the commit, by the hashes of their partitions; nothing is read for it."""
        return xxhash.xxh3_128_hexdigest(np.ascontiguousarray(self._manifest.hashes[:, 0]).tobytes())

    def checkpoint(self) -> Checkpoint:
        """A copy of what was committed with the nodes. Raises FormatError."""
        return self._committed.checkpoint()

    @property
    def meta(self) -> dict[str, Any]:
        """A copy of the checkpoint's meta alone. Raises FormatError."""
        return decode_meta(self._committed.encoded_meta, self._path)

    def read_rows(self, start: int, stop: int) -> Float32:
        """Read the embeddings of the node ids start:stop: a new (stop − start, D) float32 array.

        Raises:
            StorageError: the disk fails, a partition is damaged, or a trainer has replaced it.
        """
        self._check_open()
        partitioning = self.table.partitioning
        check_range(partitioning, start, stop)
        out = np.empty((stop - start, self.table.dim), np.float32)
        done = 0
        for part, first, last in spans(partitioning, start, stop):
            rows = out[done : done + last - first]
            self._nodes.read_rows(self._slot(part), first, rows)
            self._check_current(part)
            self._feed(part, first, rows)
            done += last - first
        return out

    def read_into(self, part: int, embeddings: Float32, state: Float32) -> int:
        """Fill slot-shaped arrays, (slot_rows, D) and (slot_rows, S), with a partition; returns bytes read.

        Rows past the partition's size are undefined. Its hashes are checked the first time.
        """
        self._check_open()
        check_arrays(self.table, part, embeddings, state)
        rows = self.table.partitioning.size(part)
        size = self._nodes.read_slot(self._slot(part), rows, embeddings, state)
        self._check_current(part)
        for tensor, array in enumerate((embeddings, state)):
            if (part, tensor) not in self._verified:
                self._compare(part, tensor, hash_rows(array[:rows]))
        return size

    def verify(self, part: int) -> None:
        """Read all of partition `part`, state included, and check its hashes; StorageError if damaged."""
        self._check_open()
        check_part(self.table.partitioning, part)
        size = self.table.partitioning.size(part)
        for tensor, width in enumerate((self.table.dim, self.table.state_dim)):
            block = np.empty((min(size, _VERIFY_ROWS), width), np.float32)
            hashes = StreamedHashes()
            found: int | None = None
            for first in range(0, size, _VERIFY_ROWS):
                rows = block[: size - first]
                self._nodes.read_rows(self._slot(part), first, rows, tensor=tensor)
                found = hashes.feed(part, first, rows, size)
            self._check_current(part)
            self._compare(part, tensor, found)

    def close(self) -> None:
        """Release the file. May be called twice."""
        if not self._closed:
            self._closed = True
            self._nodes.close()

    def _slot(self, part: int) -> int:
        return int(self._manifest.slots[part])

    def _feed(self, part: int, first: int, rows: Float32) -> None:
        if (part, 0) in self._verified:
            return
        found = self._hashes.feed(part, first, rows, self.table.partitioning.size(part))
        if found is not None:
            self._compare(part, 0, found)

    def _compare(self, part: int, tensor: int, found: int | None) -> None:
        """Raise unless the hash is that of a partition's embeddings or state; note that it was verified."""
        if found != int(self._manifest.hashes[part, tensor]):
            raise damaged_partition(self._nodes.path, part, self._slot(part), self.generation)
        self._verified.add((part, tensor))

    def _look(self) -> tuple[int, int, int]:
        try:
            status = self._path.stat()
        except FileNotFoundError as error:
            raise StorageError(f"{self._path} is missing") from error
        except OSError as error:
            raise StorageError(f"cannot look at {self._path}: {error.strerror}") from error
        return status.st_ino, status.st_mtime_ns, status.st_size

    def _check_current(self, part: int) -> None:
        """Raise ReplacedError if the slot just read may have been reused since the opening."""
        seen = self._look()
        if seen != self._newest[0]:  # parsed once a commit, not once a read: it holds all relations
            self._newest = seen, open_checkpoint(self._path).manifest
        newest = self._newest[1]
        if newest.store_id != self._manifest.store_id:
            raise ReplacedError(
                f"{self.folder} is of another run by now than when it was opened: open it anew (in Python "
                "with marius_py.load), or give the command again"
            )
        same = (
            newest.slots[part] == self._manifest.slots[part]
            and (newest.hashes[part] == self._manifest.hashes[part]).all()
        )
        if not same:
            raise ReplacedError(
                f"partition {part} in {self.folder} has been replaced by training since it was opened "
                f"(generation {self.generation}, now {newest.generation}): open it anew (in Python with "
                "marius_py.load), or give the command again, at best when training has ended"
            )

    def _check_open(self) -> None:
        if self._closed:
            raise StorageError(f"the node reader of {self.folder} is closed")
