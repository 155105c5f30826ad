"""The node store on disk (floor 1): `PartitionStore` over nodes.h5 and checkpoint.h5.

In: whole partitions from the I/O thread, a Checkpoint at each commit. Out: the newest version of a
partition; after a crash, the last commit. A version never overwrites the one that checkpoint.h5 refers to:
it goes to a free slot, and the atomic replacement of checkpoint.h5 commits all of them at once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from marius_py.errors import FormatError, MariusError, StorageError
from marius_py.storage import files
from marius_py.storage.checkpoint_file import (
    CHECKPOINT_NAME,
    Manifest,
    decode_meta,
    encode,
    open_checkpoint,
)
from marius_py.storage.checks import FROM_A_COPY, check_arrays, hash_rows
from marius_py.storage.lock import FolderLock
from marius_py.storage.node_file import NODES_NAME, NodeFile, read_facts
from marius_py.storage.protocols import Checkpoint, Float32, NodeTable
from marius_py.storage.slots import SlotTable
from marius_py.workers import Workers

log = logging.getLogger(__name__)


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


def damaged_partition(path: Path, part: int, slot: int, generation: int) -> StorageError:
    """The error for a partition whose hash is not the committed one."""
    return StorageError(
        f"{path} is damaged: the checksum of partition {part} differs (slot {slot}, generation "
        f"{generation}); {FROM_A_COPY}"
    )


class Hdf5PartitionStore:
    """`PartitionStore` on disk; made by `hdf5_nodes.create_node_store` or `open_node_store`.

    Bulk methods run on one thread at a time, `commit` only while none of them runs. After a
    flush or rename that failed it is unknown what is on the disk: the store then refuses all writes until
    it is opened anew, at a state that is surely whole.

    Args:
        folder: folder of the store.
        lock: its acquired lock, released by `close`.
    """

    def __init__(self, folder: Path, lock: FolderLock) -> None:
        self.folder = folder
        self._lock = lock
        self._path = folder / CHECKPOINT_NAME
        committed = open_checkpoint(self._path)
        self._manifest, self._meta = committed.manifest, committed.encoded_meta
        decode_meta(self._meta, self._path)  # before anything is written beside it
        del committed  # with all relations
        self._nodes = open_nodes(folder, self._manifest, writable=True)
        self._slots = SlotTable(self._manifest.num_slots, self._manifest.slots)
        self._hashes = self._manifest.hashes.copy()
        self._unverified = set(range(self.table.partitioning.num_partitions))
        self._hasher = Workers(1, "marius-hash")
        self._refusal: str | None = None
        self._transfers, self._closed = 0, False
        self._mutex = threading.Lock()

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
        check_arrays(self.table, part, embeddings, state)
        rows = self.table.partitioning.size(part)
        with self._transfer():
            size = self._nodes.read_slot(self._slots.current(part), rows, embeddings, state)
            if part in self._unverified:
                self._verify(part, embeddings[:rows], state[:rows])
        return size

    def write(self, part: int, embeddings: Float32, state: Float32) -> int:
        """Store a new, uncommitted version of `part` from slot-shaped arrays; returns bytes written.

        Raises:
            StorageError: no free slot (commit first), or the disk fails: the committed version is intact,
                and the partition must be written again before it is read or committed.
        """
        self._check_writable()
        check_arrays(self.table, part, embeddings, state)
        rows = self.table.partitioning.size(part)
        with self._transfer():
            slot = self._slots.claim(part)
            # Hashing and writing both release the GIL, so the hash hides behind the disk.
            hashes = self._hasher.submit(_hash_pair, embeddings[:rows], state[:rows])
            try:
                size = self._nodes.write_slot(slot, rows, embeddings, state)
            finally:
                self._hashes[part] = hashes.result()
            self._unverified.discard(part)
            self._slots.confirm(part)
        return size

    def free_slots(self) -> int:
        """How many further partitions can be written before a commit is due."""
        return self._slots.num_free()

    def commit(self, checkpoint: Checkpoint) -> None:
        """Make all writes so far and `checkpoint` the committed state, atomically and durably.

        Raises:
            StorageError: a partition is missing, the disk fails, or the folder was moved or replaced; the
            last commit stays.
            FormatError: an array or the meta cannot be stored; nothing has changed.
        """
        self._check_writable()
        manifest = replace(
            self._manifest,
            generation=self._manifest.generation + 1,
            slots=self._slots.proposal(),
            hashes=self._hashes.copy(),
        )
        header, content, meta = encode(manifest, checkpoint)
        try:
            self.check_place()
            self._nodes.sync()
        except MariusError as error:
            self._refusal = str(error)
            raise
        temporary = files.write_temporary(self._path, header, content)
        try:
            files.replace(temporary, self._path)
        except MariusError as error:
            self._refusal = str(error)
            raise
        self._slots.commit()
        self._manifest, self._meta = manifest, meta

    def check_place(self) -> None:
        """Raise StorageError where the folder was moved, removed or replaced: its path leads to another's."""
        self._lock.check()

    def checkpoint(self) -> Checkpoint | None:
        """The last committed checkpoint, read from the disk, or None before the first commit.

        Raises:
            StorageError, FormatError: checkpoint.h5 cannot be read, or is not that of the last commit.
        """
        if not self._manifest.generation:
            return None
        committed = open_checkpoint(self._path)
        found, expected = committed.manifest, self._manifest
        if (found.store_id, found.generation) != (expected.store_id, expected.generation):
            raise StorageError(
                f"{self._path} was replaced by another than the last commit (generation {found.generation}, "
                f"expected {expected.generation}); open the store again"
            )
        return committed.checkpoint()

    @property
    def meta(self) -> dict[str, Any] | None:
        """A copy of the last committed checkpoint's meta alone, or None before the first commit."""
        return decode_meta(self._meta, self._path) if self._manifest.generation else None

    def close(self) -> None:
        """Release files and lock; uncommitted writes are forgotten. May be called twice.

        A transfer that hangs in another thread keeps them: it may still end, and must find the slot that it
        writes to nobody else's, and its descriptor no other file's.
        """
        with self._mutex:
            if self._closed:
                return
            self._closed, left = True, self._transfers
        if left:
            log.warning("%s stays in use until a transfer that hangs ends, or this process", self.folder)
        else:
            self._release()

    def _release(self) -> None:
        """Release all, the lock too where an interrupt comes: without it the process could not resume."""
        try:
            self._hasher.shutdown()
        finally:
            try:
                self._nodes.close()
            finally:
                self._lock.release()

    @contextmanager
    def _transfer(self) -> Iterator[None]:
        """Move rows of a store that is open; if it is closed meanwhile, release it afterwards."""
        with self._mutex:
            self._check_open()
            self._transfers += 1
        try:
            yield
        finally:
            with self._mutex:
                self._transfers -= 1
                is_last = self._closed and not self._transfers
            if is_last:
                self._release()

    def _verify(self, part: int, embeddings: Float32, state: Float32) -> None:
        found = _hash_pair(embeddings, state)
        expected = tuple(int(value) for value in self._hashes[part])
        if found != expected:
            raise self._damaged(part)
        self._unverified.discard(part)

    def _damaged(self, part: int) -> StorageError:
        return damaged_partition(self._nodes.path, part, self._slots.current(part), self.generation)

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


def _hash_pair(embeddings: Float32, state: Float32) -> tuple[int, int]:
    return hash_rows(embeddings), hash_rows(state)
