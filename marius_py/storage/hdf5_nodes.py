"""The node store on disk (floor 1): `PartitionStore` over nodes.h5 and checkpoint.h5.

In: whole partitions from the I/O thread, a Checkpoint at each commit. Out: the newest version of a
partition; after a crash, the last commit. A version never overwrites the one that checkpoint.h5 refers to:
it goes to a free slot, and the atomic replacement of checkpoint.h5 commits all of them at once.
"""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from marius_py.errors import FormatError, MariusError, StorageError
from marius_py.storage import files
from marius_py.storage.checkpoint_file import (
    CHECKPOINT_NAME,
    Manifest,
    copy_checkpoint,
    encode,
    read_checkpoint,
)
from marius_py.storage.checks import check_arrays, check_range, check_table, hash_rows, spans
from marius_py.storage.lock import FolderLock
from marius_py.storage.node_file import NODES_NAME, NodeFile, create_node_file, read_facts
from marius_py.storage.protocols import Checkpoint, Float32, NodeTable
from marius_py.storage.slots import EMPTY, SlotTable

logger = logging.getLogger(__name__)


def create_node_store(
    folder: str | os.PathLike[str], table: NodeTable, *, spare_slots: int
) -> Hdf5PartitionStore:
    """Create an empty node store with its disk space reserved, locked for writing.

    A store in `folder` in which nothing was ever committed is replaced.

    Args:
        folder: created if missing.
        table: shape of the node table.
        spare_slots: slots beyond one a partition: how many partitions can be written between two commits.

    Raises:
        StorageError: disk full (nothing is left behind), folder in use, or it holds a committed store.
        ConfigError: an impossible table.
    """
    check_table(table, spare_slots)
    path = Path(folder)
    is_new = not path.exists()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise files.storage_error("create", path, error) from error
    lock = FolderLock(path)
    try:
        lock.acquire()
        if has_commit(path):
            raise StorageError(f"{path} holds a committed node store; resume it, or use another folder")
        _clear(path)
        try:
            _create_files(path, table, table.partitioning.num_partitions + spare_slots)
            return Hdf5PartitionStore(path, lock)
        except BaseException:
            _clear(path)
            raise
    except BaseException:
        lock.release()
        if is_new:
            _remove_empty(path)
        raise


def _create_files(folder: Path, table: NodeTable, num_slots: int) -> None:
    # The order decides what a crash leaves: checkpoint.h5 of generation 0 comes before nodes.h5 has its
    # name, so a nodes.h5 without a checkpoint.h5 can only mean that a file was lost.
    nodes = folder / NODES_NAME
    temporary = nodes.with_name(nodes.name + files.TEMPORARY_SUFFIX)
    store_id = os.urandom(16).hex()
    create_node_file(temporary, table, num_slots, store_id)
    parts = table.partitioning.num_partitions
    manifest = Manifest(
        store_id, 0, table, num_slots, np.full(parts, EMPTY, np.int64), np.zeros((parts, 2), np.uint64)
    )
    checkpoint = folder / CHECKPOINT_NAME
    files.replace(files.write_temporary(checkpoint, encode(manifest, Checkpoint())), checkpoint)
    files.replace(temporary, nodes)


def _clear(folder: Path) -> None:
    """Remove an uncommitted store; checkpoint.h5 last, so that a crash in between loses nothing."""
    _remove_strays(folder)
    files.remove(folder / NODES_NAME)
    files.remove(folder / CHECKPOINT_NAME)


def _remove_strays(folder: Path) -> None:
    for name in (CHECKPOINT_NAME, NODES_NAME):
        files.remove(folder / (name + files.TEMPORARY_SUFFIX))


def _remove_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError as error:
        logger.debug("%s stays: %s", folder, error.strerror)


def has_commit(folder: str | os.PathLike[str]) -> bool:
    """Whether something was committed to the node store in `folder`, so that it can be resumed.

    Raises:
        StorageError, FormatError: there was a store, but a file of it is missing or damaged.
    """
    path = Path(folder)
    if not (path / CHECKPOINT_NAME).exists():
        if (path / NODES_NAME).exists():
            raise StorageError(
                f"{path / CHECKPOINT_NAME} is missing, though {NODES_NAME} is there: without it the nodes "
                "cannot be read; restore it from a copy, or remove the folder and train anew"
            )
        return False
    return read_checkpoint(path / CHECKPOINT_NAME)[0].generation > 0


def open_node_store(folder: str | os.PathLike[str]) -> Hdf5PartitionStore:
    """Open the node store in `folder` at its last commit, locked for writing.

    Leftovers of an interrupted commit are removed. Each partition's hash is checked at its first load.

    Raises:
        StorageError: a file is missing, truncated or damaged, or another process writes to the folder.
        FormatError: a file is of another format version, of another store, or not ours.
    """
    path = Path(folder)
    if not path.is_dir():
        raise StorageError(f"{path} is missing")
    lock = FolderLock(path)
    lock.acquire()
    try:
        has_commit(path)
        store = Hdf5PartitionStore(path, lock)
        _remove_strays(path)
        return store
    except BaseException:
        lock.release()
        raise


def open_nodes(folder: Path, manifest: Manifest, *, writable: bool) -> NodeFile:
    """Open nodes.h5 if it is the one that `manifest` describes; StorageError or FormatError otherwise."""
    path = folder / NODES_NAME
    facts = read_facts(path)
    if facts.store_id != manifest.store_id:
        raise FormatError(
            f"{path} belongs to another run than {CHECKPOINT_NAME} (store {facts.store_id[:8]}…, expected "
            f"{manifest.store_id[:8]}…); restore the right one"
        )
    expected = (manifest.num_slots, manifest.table.slot_rows, manifest.table.dim, manifest.table.state_dim)
    found = (facts.num_slots, facts.slot_rows, facts.dim, facts.state_dim)
    if found != expected:
        raise FormatError(
            f"{path} has (slots, rows, dim, state_dim) {found}, {CHECKPOINT_NAME} says {expected}"
        )
    return NodeFile(path, facts, writable=writable)


class Hdf5PartitionStore:
    """`PartitionStore` on disk; made by `create_node_store` or `open_node_store`.

    Bulk methods run on one thread at a time, `commit` and `rollback` only while none of them runs. After a
    flush or rename that failed it is unknown what is on the disk: the store then refuses all writes until
    it is opened anew, at a state that is surely whole.

    Args:
        folder: folder of the store.
        lock: its acquired lock, released by `close`.
    """

    def __init__(self, folder: Path, lock: FolderLock) -> None:
        self.folder = folder
        self._lock = lock
        self._manifest, self._checkpoint = read_checkpoint(folder / CHECKPOINT_NAME)
        self._nodes = open_nodes(folder, self._manifest, writable=True)
        self._slots = SlotTable(self._manifest.num_slots, self._manifest.slots)
        self._hashes = self._manifest.hashes.copy()
        self._unverified = set(range(self.table.partitioning.num_partitions))
        self._refusal: str | None = None
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def table(self) -> NodeTable:
        """Shape of the stored node table."""
        return self._manifest.table

    @property
    def generation(self) -> int:
        """Commits so far."""
        return self._manifest.generation

    @property
    def num_slots(self) -> int:
        """Slots on the disk, each of `table.slot_bytes`."""
        return self._manifest.num_slots

    def read_into(self, part: int, embeddings: Float32, state: Float32) -> int:
        """Fill slot-shaped arrays with the newest version of `part`; returns bytes read.

        Rows past the partition's size are undefined. Arrays from `aligned.allocate` go past the page cache.
        """
        self._check_open()
        check_arrays(self.table, part, embeddings, state)
        rows = self.table.partitioning.size(part)
        size = self._nodes.read_slot(self._slots.current(part), rows, embeddings, state)
        if part in self._unverified:
            self._verify(part, embeddings[:rows], state[:rows])
        return size

    def read_rows(self, start: int, stop: int) -> Float32:
        """Read the newest embeddings of the node ids start:stop into a new (stop − start, D) array."""
        self._check_open()
        partitioning = self.table.partitioning
        check_range(partitioning, start, stop)
        out = np.empty((stop - start, self.table.dim), np.float32)
        done = 0
        for part, first, last in spans(partitioning, start, stop):
            self._nodes.read_rows(self._slots.current(part), first, out[done : done + last - first])
            done += last - first
        return out

    def write(self, part: int, embeddings: Float32, state: Float32) -> int:
        """Store a new, uncommitted version of `part` from slot-shaped arrays; returns bytes written.

        Raises:
            StorageError: no free slot (commit first), or the disk fails: the committed version is intact,
                and the partition must be written again before it is read or committed.
        """
        self._check_writable()
        check_arrays(self.table, part, embeddings, state)
        slot = self._slots.claim(part)
        rows = self.table.partitioning.size(part)
        hashes = hash_rows(embeddings[:rows]), hash_rows(state[:rows])
        size = self._nodes.write_slot(slot, rows, embeddings, state)
        self._hashes[part] = hashes
        self._unverified.discard(part)
        self._slots.confirm(part)
        return size

    def uncommitted(self) -> tuple[int, ...]:
        """Partitions, ascending, that were written since the last commit."""
        return self._slots.uncommitted()

    def free_slots(self) -> int:
        """How many further partitions can be written before a commit is due."""
        return self._slots.num_free()

    def commit(self, checkpoint: Checkpoint) -> None:
        """Make all writes so far and `checkpoint` the committed state, atomically and durably.

        Raises:
            StorageError: a partition is missing or the disk fails; the last commit stays.
            FormatError: an array or the meta cannot be stored; nothing has changed.
        """
        self._check_writable()
        manifest = replace(
            self._manifest,
            generation=self._manifest.generation + 1,
            slots=self._slots.proposal(),
            hashes=self._hashes.copy(),
        )
        content = encode(manifest, checkpoint)
        path = self.folder / CHECKPOINT_NAME
        try:
            self._nodes.sync()
        except MariusError as error:
            self._refusal = str(error)
            raise
        temporary = files.write_temporary(path, content)
        try:
            files.replace(temporary, path)
        except MariusError as error:
            self._refusal = str(error)
            raise
        self._slots.commit()
        self._manifest = manifest
        self._checkpoint = copy_checkpoint(checkpoint)

    def rollback(self) -> None:
        """Forget all writes since the last commit."""
        self._check_writable()
        changed = self._slots.uncommitted()
        self._slots.rollback()
        for part in changed:
            self._hashes[part] = self._manifest.hashes[part]
            self._unverified.add(part)

    def checkpoint(self) -> Checkpoint | None:
        """A copy of the last committed checkpoint, or None before the first commit."""
        return copy_checkpoint(self._checkpoint) if self._manifest.generation else None

    def close(self) -> None:
        """Release files and lock; uncommitted writes are forgotten. May be called twice."""
        if not self._closed:
            self._closed = True
            self._nodes.close()
            self._lock.release()

    def _verify(self, part: int, embeddings: Float32, state: Float32) -> None:
        found = (hash_rows(embeddings), hash_rows(state))
        expected = tuple(int(value) for value in self._hashes[part])
        if found != expected:
            raise StorageError(
                f"{self._nodes.path} is damaged: the checksum of partition {part} differs (slot "
                f"{self._slots.current(part)}, generation {self.generation}); restore the file from a copy"
            )
        self._unverified.discard(part)

    def _check_open(self) -> None:
        if self._closed:
            raise StorageError(f"the node store in {self.folder} is closed")

    def _check_writable(self) -> None:
        self._check_open()
        if self._refusal is not None:
            raise StorageError(
                f"the node store in {self.folder} takes no more writes, since what is on the disk is "
                f"unknown after: {self._refusal}; open it again to go on from the last commit"
            )
