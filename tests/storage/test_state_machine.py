"""Any order of writes, reads, commits, reopenings and failing calls: disk equals memory."""

from __future__ import annotations

import errno
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from marius_py.errors import StorageError
from marius_py.partitioning import Partitioning
from marius_py.storage.hdf5_nodes import create_node_store, open_node_store
from marius_py.storage.memory import MemoryPartitionStore
from marius_py.storage.protocols import Checkpoint, NodeTable
from marius_py.storage.reader import open_node_reader
from marius_py.storage.verify import verify_node_store
from marius_py.testing import SystemCallFaults
from marius_py.testing.store_tests import slot_arrays, version
from tests.storage.conftest import memory_root

PARTS = st.integers(0, 3)


class StoreMachine(RuleBasedStateMachine):
    """The store on disk beside its twin; the twin rolls back where the disk is opened anew."""

    @initialize(
        nodes=st.integers(4, 2100),
        dim=st.integers(1, 3),
        state_dim=st.integers(0, 2),
        spare=st.integers(1, 4),
    )
    def create(self, nodes: int, dim: int, state_dim: int, spare: int) -> None:
        self.root = Path(tempfile.mkdtemp(dir=memory_root()))
        self.table = NodeTable(Partitioning(nodes, 4), dim, state_dim)
        self.number = 0
        self.uncommitted: set[int] = set()
        self.disk = create_node_store(self.root / "s", self.table, spare_slots=spare)
        self.memory = MemoryPartitionStore(self.table, spare_slots=spare)
        for part in range(4):
            self.write(part)
        self.commit()

    def teardown(self) -> None:
        if hasattr(self, "disk"):
            self.disk.close()
            shutil.rmtree(self.root)

    @rule(part=PARTS)
    def write(self, part: int) -> None:
        self.number += 1
        arrays = version(self.table, part, self.number)
        if self.memory.free_slots() == 0 and part not in self.uncommitted:
            for store in (self.disk, self.memory):
                with pytest.raises(StorageError, match="no free slot"):
                    store.write(part, *arrays)
        else:
            assert self.disk.write(part, *arrays) > 0
            self.memory.write(part, *arrays)
            self.uncommitted.add(part)

    @rule(part=PARTS)
    def read(self, part: int) -> None:
        found, expected = slot_arrays(self.table), slot_arrays(self.table)
        self.disk.read_into(part, *found)
        self.memory.read_into(part, *expected)
        size = self.table.partitioning.size(part)
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_array_equal(a[:size], b[:size])

    @rule()
    def commit(self) -> None:
        self.number += 1
        checkpoint = Checkpoint({"relations": np.full((2, 3), self.number)}, {"number": self.number})
        self.disk.commit(checkpoint)
        self.memory.commit(checkpoint)
        self.uncommitted.clear()

    @rule()
    def reopen(self) -> None:
        self.disk.close()
        self.disk = open_node_store(self.root / "s")
        self.memory.rollback()
        self.uncommitted.clear()

    @rule(call=st.integers(1, 6), tear=st.booleans(), code=st.sampled_from([errno.EIO, errno.ENOSPC]))
    def commit_that_fails(self, call: int, tear: bool, code: int) -> None:
        """Either commit may be on the disk, but nothing in between; which one, the generation says."""
        self.number += 1
        before = self.disk.generation
        checkpoint = Checkpoint({"relations": np.zeros((2, 3))}, {"number": self.number})
        with SystemCallFaults(call, code, tear=tear), pytest.raises(StorageError):
            self.disk.commit(checkpoint)
        self.disk.close()
        self.disk = open_node_store(self.root / "s")
        assert self.disk.generation in (before, before + 1)
        if self.disk.generation == before:
            self.memory.rollback()
        else:
            self.memory.commit(checkpoint)
        self.uncommitted.clear()

    @precondition(lambda self: self.memory.free_slots() > 0)
    @rule(part=PARTS, tear=st.booleans())
    def write_that_fails(self, part: int, tear: bool) -> None:
        self.number += 1
        with SystemCallFaults(1, errno.EIO, tear=tear), pytest.raises(StorageError, match="cannot write"):
            self.disk.write(part, *version(self.table, part, self.number))
        with pytest.raises(StorageError, match=f"last write of partition {part} failed"):
            self.disk.read_into(part, *slot_arrays(self.table))
        with pytest.raises(StorageError, match=f"last write of partition {part} failed"):
            self.disk.commit(Checkpoint())
        self.write(part)

    @rule()
    def look(self) -> None:
        """A reader sees the committed state, and nothing is wrong with it."""
        assert [f for f in verify_node_store(self.root / "s") if not f.harmless] == []
        with open_node_reader(self.root / "s") as reader:
            found = self.memory.checkpoint()
            assert found is not None
            assert reader.checkpoint().meta == found.meta

    @invariant()
    def agree(self) -> None:
        assert self.disk.free_slots() == self.memory.free_slots()
        found, expected = self.disk.checkpoint(), self.memory.checkpoint()
        assert (found is None) == (expected is None)
        if found is not None and expected is not None:
            assert found.meta == expected.meta
            for name, array in expected.arrays.items():
                np.testing.assert_array_equal(found.arrays[name], array)


class TestStoreMachine(StoreMachine.TestCase):
    settings = settings(max_examples=15, stateful_step_count=20)


@pytest.mark.slow
class TestStoreMachineLong(StoreMachine.TestCase):
    settings = settings(max_examples=100, stateful_step_count=40)
