"""Make and open node stores on disk (floor 1).

In: a folder and a NodeTable. Out: an `Hdf5PartitionStore`, locked for writing. Creation leaves either a
whole store of generation 0 or, on a failure, nothing; opening starts from the last commit.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

import numpy as np

from marius_py.errors import StorageError
from marius_py.storage import files
from marius_py.storage.checkpoint_file import (
    CHECKPOINT_NAME,
    Manifest,
    encode,
    open_checkpoint,
)
from marius_py.storage.checks import check_table
from marius_py.storage.file_io import os_errors_as_storage
from marius_py.storage.hdf5_store import Hdf5PartitionStore
from marius_py.storage.lock import FolderLock
from marius_py.storage.node_file import NODES_NAME, create_node_file
from marius_py.storage.protocols import Checkpoint, NodeTable
from marius_py.storage.slots import EMPTY

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
    made = files.missing_folders(path)
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
            files.sync_names(made)
            return Hdf5PartitionStore(path, lock)
        except BaseException:
            _clear(path)
            raise
    except BaseException:
        lock.release()
        if made:
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
    header, content, _ = encode(manifest, Checkpoint())
    files.replace(files.write_temporary(checkpoint, header, content), checkpoint)
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
                "cannot be read; restore it from a copy, or remove the run and train anew"
            )
        return False
    return open_checkpoint(path / CHECKPOINT_NAME).manifest.generation > 0


def open_node_store(folder: str | os.PathLike[str]) -> Hdf5PartitionStore:
    """Open the node store in `folder` at its last commit, locked for writing.

    Leftovers of an interrupted commit are removed. Each partition's hash is checked at its first load. A
    warning tells of a node file that another folder shares.

    Raises:
        StorageError: a file is missing, truncated or damaged, or another process writes to the folder.
        FormatError: a file is of another format version, of another store, or not ours.
    """
    path = Path(folder)
    if not path.is_dir():
        raise StorageError(f"{path} is missing")
    lock = FolderLock(path)
    try:
        lock.acquire()
        has_commit(path)
        store = Hdf5PartitionStore(path, lock)
        _remove_strays(path)
        _warn_of_links(path / NODES_NAME)
        return store
    except BaseException:
        lock.release()
        raise


def _warn_of_links(nodes: Path) -> None:
    """Tell of hard links: partitions are written to the file itself, soon to slots of former commits too."""
    with os_errors_as_storage("look at", nodes):
        names = nodes.stat().st_nlink
    if names > 1:
        logger.warning(
            "%s has %d names (hard links, as cp -al makes): training changes what all of them show, so a "
            "copy of the run that shares it is damaged soon; to keep it stop now and give it its own file",
            nodes,
            names,
        )
