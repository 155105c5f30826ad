"""Every node store passes the shared tests: memory, disk, and both behind wrappers."""

from __future__ import annotations

import errno
import os
import shutil
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from marius_py.errors import ConfigError, FormatError, StorageError
from marius_py.partitioning import Partitioning
from marius_py.storage.aligned import is_aligned
from marius_py.storage.checkpoint_file import encode, open_checkpoint
from marius_py.storage.hdf5_nodes import create_node_store, open_node_store
from marius_py.storage.memory import MemoryEdgeStore, MemoryPartitionStore
from marius_py.storage.node_file import NODES_NAME
from marius_py.storage.protocols import Checkpoint, EdgeStore, NodeTable, PartitionStore
from marius_py.testing import Fault, FaultyStore, SlowStore
from marius_py.testing.store_tests import StoreTests, expect_version, slot_arrays, version
from marius_py.types import Bucket

TABLE = NodeTable(Partitioning(50, 3), dim=4, state_dim=1)


class TestMemoryStore(StoreTests):
    def make_store(self, folder: Path, table: NodeTable, spare_slots: int) -> PartitionStore:
        return MemoryPartitionStore(table, spare_slots=spare_slots)


class TestHdf5Store(StoreTests):
    def make_store(self, folder: Path, table: NodeTable, spare_slots: int) -> PartitionStore:
        return create_node_store(folder, table, spare_slots=spare_slots)


class TestFaultyStoreWithoutFaults(StoreTests):
    def make_store(self, folder: Path, table: NodeTable, spare_slots: int) -> PartitionStore:
        return FaultyStore(create_node_store(folder, table, spare_slots=spare_slots))


class TestSlowStore(StoreTests):
    def make_store(self, folder: Path, table: NodeTable, spare_slots: int) -> PartitionStore:
        return SlowStore(MemoryPartitionStore(table, spare_slots=spare_slots), 1e9)


def test_relations_are_held_twice_while_they_are_committed_and_not_after(tmp_path: Path) -> None:
    relations = np.ones((1 << 21,), np.float32)
    with create_node_store(tmp_path / "s", TABLE, spare_slots=1) as store:
        for part in range(3):
            store.write(part, *version(TABLE, part, 0))
        tracemalloc.start()
        try:
            store.commit(Checkpoint({"relations": relations}))
            kept, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert kept < relations.nbytes / 8
        assert peak < 1.2 * relations.nbytes  # the bytes to be written; HDF5's own are not traced
        np.testing.assert_array_equal(store.checkpoint().arrays["relations"], relations)
        content = (tmp_path / "s" / "checkpoint.h5").read_bytes()
        manifest = open_checkpoint(tmp_path / "s" / "checkpoint.h5").manifest
        assert len(content) == len(b"".join(encode(manifest, store.checkpoint())[:2]))  # HDF5 notes the time
        store.commit(Checkpoint({"relations": relations[:1]}))
        (tmp_path / "s" / "checkpoint.h5").write_bytes(content)
        with pytest.raises(StorageError, match=r"replaced .* \(generation 1, expected 2\)"):
            store.checkpoint()


def filled(**options: int) -> MemoryPartitionStore:
    store = MemoryPartitionStore(TABLE, **options)
    for part in range(3):
        store.write(part, *version(TABLE, part, 0))
    store.commit(Checkpoint())
    return store


def test_memory_store_has_a_spare_slot_a_partition_by_default() -> None:
    assert filled().free_slots() == 3
    with pytest.raises(ConfigError, match="spare_slots is -1"):
        MemoryPartitionStore(TABLE, spare_slots=-1)
    for dim, state_dim in ((0, 0), (3, -1)):
        with pytest.raises(ConfigError, match="dim"):
            MemoryPartitionStore(NodeTable(TABLE.partitioning, dim, state_dim))


def test_memory_store_keeps_rows_where_the_system_has_them_back() -> None:
    held = [array for version in filled()._versions.values() for array in version if array.size]
    assert held
    assert all(map(is_aligned, held))  # on pages of their own


@pytest.mark.parametrize(("kind", "code"), [("fail", None), ("enospc", errno.ENOSPC), ("eio", errno.EIO)])
def test_faults_strike_the_numbered_call_only(kind: str, code: int | None) -> None:
    store = FaultyStore(filled(), [Fault(2, kind), Fault(2, kind, "write")])
    store.write(0, *version(TABLE, 0, 1))
    with pytest.raises(StorageError, match="write of partition 1 failed") as caught:
        store.write(1, *version(TABLE, 1, 1))
    assert caught.value.errno == code
    expect_version(store, 1, 0)
    store.write(1, *version(TABLE, 1, 1))
    store.commit(Checkpoint())
    assert [name for name, _ in store.calls] == [
        "write",
        "write",
        "read_into",
        "write",
        "commit",
    ]


def test_torn_write_is_neither_read_nor_committed() -> None:
    store = FaultyStore(filled(), [Fault(1, "tear", "write"), Fault(1, "tear", "commit")])
    with pytest.raises(StorageError, match="Input/output error"):
        store.write(1, *version(TABLE, 1, 1))
    with pytest.raises(StorageError, match="last write of partition 1 failed"):
        store.read_into(1, *slot_arrays(TABLE))
    for part in (0, 2):
        expect_version(store, part, 0)
    for _ in range(2):  # torn, then refused for the torn partition
        with pytest.raises(StorageError):
            store.commit(Checkpoint())
    store.write(1, *version(TABLE, 1, 2))
    store.commit(Checkpoint())
    expect_version(store, 1, 2)


def test_torn_read_fills_half() -> None:
    store = FaultyStore(filled(), [Fault(1, "tear", "read_into")])
    embeddings, state = slot_arrays(TABLE, -5)
    with pytest.raises(StorageError):
        store.read_into(0, embeddings, state)
    half = len(embeddings) // 2
    assert (embeddings[half:] == -5).all()
    expect_version(store, 0, 0)


def test_delay_and_slow_store_take_their_time() -> None:
    store = FaultyStore(filled(), [Fault(1, "delay", "read_into", seconds=0.03)])
    started = time.perf_counter()
    store.read_into(0, *slot_arrays(TABLE))
    assert time.perf_counter() - started >= 0.03
    waits: list[float] = []
    slow = SlowStore(filled(), 1000.0, latency_s=1.0, sleep=waits.append)
    size = slow.read_into(0, *slot_arrays(TABLE))
    slow.write(0, *version(TABLE, 0, 1))
    slow.commit(Checkpoint({"a": np.zeros(125)}))
    expected = [1 + size / 1000, 1 + size / 1000, 2.0]
    assert waits == pytest.approx(expected, abs=0.1)
    with pytest.raises(ValueError, match="bytes_per_s is 0"):
        SlowStore(filled(), 0)


def test_memory_edge_store_sorts_into_buckets() -> None:
    parts = Partitioning(10, 3)
    generator = np.random.default_rng(0)
    train = np.column_stack([generator.integers(0, n, 200) for n in (10, 4, 10)])
    store = MemoryEdgeStore(parts, train, valid=train[:7])
    assert isinstance(store, EdgeStore)
    assert [store.num_edges(split) for split in ("train", "valid", "test")] == [200, 7, 0]
    counts = store.bucket_counts()
    assert counts.sum() == 200
    seen = []
    for head in range(3):
        for tail in range(3):
            edges = store.read("train", Bucket(head, tail))
            assert edges.shape == (counts[head, tail], 3)
            assert edges.dtype == np.int32
            inside = (parts.locate(train[:, 0])[0] == head) & (parts.locate(train[:, 2])[0] == tail)
            np.testing.assert_array_equal(edges, train[inside])
            seen.append(edges)
    np.testing.assert_array_equal(np.concatenate(seen), store.read("train"))
    np.testing.assert_array_equal(store.read_range("train", 20, 90), store.read("train")[20:90])
    np.testing.assert_array_equal(store.read("valid"), train[:7])
    store.read("valid")[:] = 0
    np.testing.assert_array_equal(store.read("valid"), train[:7])
    store.close()


def test_a_node_file_that_a_copy_shares_is_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What is written to the one is soon damage to the other."""
    run, backup = tmp_path / "run", tmp_path / "backup"
    with create_node_store(run, TABLE, spare_slots=1) as store:
        for part in range(3):
            store.write(part, *version(TABLE, part, 0))
        store.commit(Checkpoint())
    open_node_store(run).close()
    assert not caplog.messages
    shutil.copytree(run, backup, copy_function=os.link)
    for folder in (run, backup):
        open_node_store(folder).close()
        assert caplog.messages.pop().startswith(f"{folder / NODES_NAME} has 2 names (hard links")
        caplog.clear()
    shutil.copy(run / NODES_NAME, tmp_path / "own")
    (tmp_path / "own").replace(backup / NODES_NAME)
    open_node_store(backup).close()
    assert not caplog.messages


def test_memory_edge_store_refuses_nonsense() -> None:
    parts = Partitioning(10, 2)
    good = np.array([[0, 0, 9]])
    store = MemoryEdgeStore(parts, good)
    with pytest.raises(StorageError, match="unknown split 'dev'"):
        store.read("dev")
    with pytest.raises(StorageError, match="only train edges"):
        store.read("test", Bucket(0, 0))
    with pytest.raises(StorageError, match="partition 2 does not exist"):
        store.read("train", Bucket(0, 2))
    with pytest.raises(StorageError, match="0:2 of 'train' lies outside 0:1"):
        store.read_range("train", 0, 2)
    for edges in (np.zeros((2, 2), int), np.zeros((2, 3)), np.array([[0, 0, 10]]), np.array([[-1, 0, 1]])):
        with pytest.raises(FormatError, match="train edges"):
            MemoryEdgeStore(parts, edges)
