"""Reading the last commit without the lock, beside a writer."""

from __future__ import annotations

import copy
import json
import os
import pickle
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pytest

from marius_py.errors import StorageError
from marius_py.partitioning import Partitioning
from marius_py.storage.checkpoint_file import CheckpointFile, open_checkpoint
from marius_py.storage.hdf5_nodes import create_node_store
from marius_py.storage.hdf5_store import Hdf5PartitionStore
from marius_py.storage.node_file import NODES_NAME, read_facts
from marius_py.storage.protocols import Checkpoint, NodeTable
from marius_py.storage.reader import NodeReader, open_node_reader
from marius_py.storage.verify import verify_node_store
from marius_py.testing.store_tests import slot_arrays, version

TABLE = NodeTable(Partitioning(2503, 3), dim=3, state_dim=2)


def rows(part: int, number: int, tensor: int = 0) -> np.ndarray:
    return version(TABLE, part, number)[tensor][: TABLE.partitioning.size(part)]


@pytest.fixture
def writer(tmp_path: Path) -> Hdf5PartitionStore:
    with create_node_store(tmp_path / "s", TABLE, spare_slots=2) as store:
        for part in range(3):
            store.write(part, *version(TABLE, part, 0))
        store.commit(Checkpoint({"relations": np.eye(3)}, {"number": 0}))
        yield store


def test_reads_the_commit_not_what_follows(writer: Hdf5PartitionStore) -> None:
    with open_node_reader(writer.folder) as reader:
        writer.write(0, *version(TABLE, 0, 1))
        assert reader.table == TABLE
        assert reader.generation == 1
        assert reader.checkpoint().meta == {"number": 0}
        np.testing.assert_array_equal(reader.checkpoint().arrays["relations"], np.eye(3))
        everything = np.concatenate([rows(part, 0) for part in range(3)])
        np.testing.assert_array_equal(reader.read_rows(0, 2503), everything)
        np.testing.assert_array_equal(reader.read_rows(700, 1900), everything[700:1900])
        embeddings, state = slot_arrays(TABLE)
        reader.read_into(1, embeddings, state)
        np.testing.assert_array_equal(embeddings[:834], rows(1, 0))
        np.testing.assert_array_equal(state[:834], rows(1, 0, 1))
        reader.verify(2)
    with pytest.raises(StorageError, match="closed"):
        reader.read_rows(0, 1)


def test_the_meta_is_parsed_when_it_is_asked_for(
    writer: Hdf5PartitionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[bytes] = []

    def parse(encoded: bytes) -> object:
        parsed.append(encoded)
        return json.loads(encoded)

    monkeypatch.setattr("marius_py.storage.checkpoint_file.json", SimpleNamespace(loads=parse))
    with open_node_reader(writer.folder) as reader:
        reader.read_rows(0, 2503)
        assert not parsed
        assert reader.meta == {"number": 0}
        assert len(parsed) == 1


def test_replaced_partition_is_refused_others_go_on(writer: Hdf5PartitionStore) -> None:
    with open_node_reader(writer.folder) as reader:
        writer.write(0, *version(TABLE, 0, 1))
        np.testing.assert_array_equal(reader.read_rows(0, 10), rows(0, 0)[:10])
        writer.commit(Checkpoint())
        message = r"partition 0 .* has been replaced by training since it was opened \(generation 1, now 2\)"
        for read in (
            lambda: reader.read_rows(0, 10),
            lambda: reader.read_into(0, *slot_arrays(TABLE)),
            lambda: reader.verify(0),
        ):
            with pytest.raises(StorageError, match=message):
                read()
        np.testing.assert_array_equal(reader.read_rows(1000, 1010), rows(1, 0)[165:175])
        reader.verify(2)
    with open_node_reader(writer.folder) as reader:
        np.testing.assert_array_equal(reader.read_rows(0, 10), rows(0, 1)[:10])
    assert verify_node_store(writer.folder) == []


def test_a_run_in_the_place_of_another_is_told_from_further_training(tmp_path: Path) -> None:
    """It may have as many generations, and fewer partitions."""
    for table in (TABLE, NodeTable(Partitioning(2503, 1), dim=3, state_dim=2)):
        with create_node_store(tmp_path / "new", table, spare_slots=0) as store:
            for part in range(table.partitioning.num_partitions):
                store.write(part, *version(table, part, 0))
            store.commit(Checkpoint())
        if table is TABLE:
            (tmp_path / "new").rename(tmp_path / "s")
            reader = open_node_reader(tmp_path / "s")
    shutil.rmtree(tmp_path / "s")
    (tmp_path / "new").rename(tmp_path / "s")
    with reader, pytest.raises(StorageError, match=r"/s is of another run by now .*: open it anew"):
        reader.read_rows(2000, 2010)


@pytest.mark.parametrize(("times", "found"), [(4, 0), (99, 1)])
def test_a_partition_that_is_replaced_while_it_is_checked_is_not_damaged(
    times: int, found: int, writer: Hdf5PartitionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, verify = iter(range(times)), NodeReader.verify

    def replaced(reader: NodeReader, part: int) -> None:
        if part == 1 and next(left, None) is not None:
            writer.write(1, *version(TABLE, 1, 1))
            writer.commit(Checkpoint())
        verify(reader, part)

    monkeypatch.setattr(NodeReader, "verify", replaced)
    findings = verify_node_store(writer.folder)
    assert [finding.partition for finding in findings] == [1] * found
    assert all(finding.harmless and "was replaced" in finding.problem for finding in findings)


def test_a_check_opens_a_commit_once_for_all_partitions(
    writer: Hdf5PartitionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads all relations, which may be as much as many partitions."""
    opened: list[Path] = []

    def read(path: Path) -> CheckpointFile:
        opened.append(path)
        return open_checkpoint(path)

    monkeypatch.setattr("marius_py.storage.reader.open_checkpoint", read)
    assert verify_node_store(writer.folder) == []
    assert len(opened) == 2  # a look whether it can be read at all, then one for the partitions


def test_a_newer_commit_is_parsed_once(writer: Hdf5PartitionStore, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_node_reader(writer.folder) as reader:
        parsed: list[Path] = []

        def read(path: Path) -> CheckpointFile:
            parsed.append(path)
            return open_checkpoint(path)

        monkeypatch.setattr("marius_py.storage.reader.open_checkpoint", read)
        for commits in (1, 2):
            writer.write(0, *version(TABLE, 0, commits))
            writer.commit(Checkpoint())
            for first in range(1000, 1020):
                np.testing.assert_array_equal(
                    reader.read_rows(first, first + 1), rows(1, 0)[first - 835 :][:1]
                )
                with pytest.raises(StorageError, match=rf"partition 0 .* now {1 + commits}\)"):
                    reader.read_rows(0, 1)
            assert len(parsed) == commits


def test_bad_arguments(writer: Hdf5PartitionStore) -> None:
    with open_node_reader(writer.folder) as reader:
        with pytest.raises(StorageError, match="outside 0:2503"):
            reader.read_rows(0, 2504)
        for function in (reader.verify, lambda part: reader.read_into(part, *slot_arrays(TABLE))):
            with pytest.raises(StorageError, match="partition 3 does not exist"):
                function(3)
        with pytest.raises(StorageError, match="embeddings must be"):
            reader.read_into(0, np.empty((5, 3), np.float32), slot_arrays(TABLE)[1])


def test_never_a_mixture_beside_a_busy_writer(writer: Hdf5PartitionStore) -> None:
    """Versions are constant arrays, so that a block with two values is a torn read."""
    embeddings, state = slot_arrays(TABLE)
    for part in range(3):
        embeddings[:] = -1
        writer.write(part, embeddings, state)
        writer.commit(Checkpoint())
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            for part in range(3):
                embeddings[:] = number
                writer.write(part, embeddings, state)
                if part != 1:
                    writer.commit(Checkpoint())
            writer.commit(Checkpoint())

    thread = threading.Thread(target=write)
    thread.start()
    good = refused = 0
    try:
        while good < 50 or refused < 5:
            with open_node_reader(writer.folder) as reader:
                try:
                    for part in range(3):
                        start = TABLE.partitioning.start(part)
                        block = reader.read_rows(start, start + TABLE.partitioning.size(part))
                        assert len(np.unique(block)) == 1
                        good += 1
                except StorageError as error:
                    assert "has been replaced by training since it was opened" in str(error)  # noqa: PT017
                    refused += 1
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_snapshot_that_goes_while_it_is_opened_is_an_error_of_ours(
    writer: Hdf5PartitionStore, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """As training removes snapshots that are not kept any more."""
    nodes = writer.folder / NODES_NAME

    class Removing(h5py.File):
        def __init__(self, name: Path, mode: str, *, locking: bool) -> None:
            if when == "before":
                nodes.unlink()
            super().__init__(name, mode, locking=locking)

        def close(self) -> None:
            super().close()
            nodes.unlink()

    monkeypatch.setattr(h5py, "File", Removing)
    told = {"before": "nodes.h5 is missing$", "after": r"cannot look at \S+nodes\.h5: No such file"}
    with pytest.raises(StorageError, match=told[when]):
        read_facts(nodes)


def test_a_reader_that_is_not_closed_warns_and_leaves_no_descriptor(writer: Hdf5PartitionStore) -> None:
    before = len(os.listdir("/proc/self/fd"))
    readers = [open_node_reader(writer.folder)]
    assert len(os.listdir("/proc/self/fd")) > before
    with pytest.warns(ResourceWarning, match=r"node reader of .* was not closed"):
        readers.clear()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_descriptors_are_not_copied(
    writer: Hdf5PartitionStore, duplicate: Callable[[object], object]
) -> None:
    with open_node_reader(writer.folder) as reader:
        with pytest.raises(TypeError, match=r"node reader of .* holds open files"):
            duplicate(reader)
        with pytest.raises(TypeError, match=r"nodes\.h5 is open by descriptors"):
            duplicate(reader._nodes)
        np.testing.assert_array_equal(reader.read_rows(0, 835), rows(0, 0))


def test_a_file_that_is_open_with_locking_is_not_called_damaged(
    writer: Hdf5PartitionStore, tmp_path: Path
) -> None:
    with (
        h5py.File(tmp_path / "s" / "nodes.h5", "r", locking=True),
        pytest.raises(StorageError, match=r"nodes\.h5 is open in this program.*locking=False") as error,
    ):
        open_node_reader(tmp_path / "s")
    assert "damaged" not in str(error.value)
