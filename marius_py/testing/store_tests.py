"""Tests that every `PartitionStore` must pass (floor 6; needs pytest): subclass and give a store.

class TestMyStore(StoreTests):
    def make_store(self, folder, table, spare_slots):
        return MyStore(folder, table, spare_slots)
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from marius_py.errors import FormatError, MariusError, StorageError
from marius_py.partitioning import Partitioning
from marius_py.storage.aligned import allocate
from marius_py.storage.protocols import Checkpoint, Float32, JsonText, NodeTable, PartitionStore


def slot_arrays(table: NodeTable, fill: float = 0.0, *, aligned: bool = True) -> tuple[Float32, Float32]:
    """Embeddings (slot_rows, D) and state (slot_rows, S), filled with one value."""
    shapes = (table.slot_rows, table.dim), (table.slot_rows, table.state_dim)
    first, second = (allocate(s) if aligned else np.empty(s, np.float32) for s in shapes)
    first[:], second[:] = fill, fill
    return first, second


def version(table: NodeTable, part: int, number: int) -> tuple[Float32, Float32]:
    """Slot arrays with random content that `part` and `number` determine; garbage past the partition."""
    generator = np.random.default_rng([part, number])
    embeddings, state = slot_arrays(table)
    embeddings[:] = generator.standard_normal(embeddings.shape, np.float32)
    state[:] = generator.standard_normal(state.shape, np.float32)
    return embeddings, state


def expect_version(store: PartitionStore, part: int, number: int) -> None:
    """Raise AssertionError unless the store's newest version of `part` is `version(…, number)`."""
    embeddings, state = slot_arrays(store.table, np.nan)
    assert store.read_into(part, embeddings, state) > 0
    size = store.table.partitioning.size(part)
    expected = version(store.table, part, number)
    np.testing.assert_array_equal(embeddings[:size], expected[0][:size])
    np.testing.assert_array_equal(state[:size], expected[1][:size])


_LOOP: list[Any] = []
_LOOP.append(_LOOP)


class StoreTests:
    """Semantics of `PartitionStore`; `make_store` is what a subclass gives."""

    table = NodeTable(Partitioning(2503, 4), dim=3, state_dim=2)

    def make_store(self, folder: Path, table: NodeTable, spare_slots: int) -> PartitionStore:
        """An empty store."""
        raise NotImplementedError

    @pytest.fixture
    def store(self, tmp_path: Path) -> PartitionStore:
        """A store of p partitions in their committed version 0, with two spare slots."""
        store = self.make_store(tmp_path / "store", self.table, 2)
        self.fill(store)
        store.commit(Checkpoint(meta={"number": 0}))
        return store

    def fill(self, store: PartitionStore) -> None:
        """Write version 0 of every partition."""
        for part in range(store.table.partitioning.num_partitions):
            assert store.write(part, *version(store.table, part, 0)) > 0

    def test_fulfils_the_protocol(self, store: PartitionStore) -> None:
        """It is a `PartitionStore` and knows its table."""
        assert isinstance(store, PartitionStore)
        assert store.table == self.table
        store.close()

    def test_empty_store(self, tmp_path: Path) -> None:
        """Before the first commit there is no checkpoint, and what is missing is named."""
        store = self.make_store(tmp_path / "store", self.table, 1)
        assert store.checkpoint() is None
        assert store.meta is None
        assert store.free_slots() == 5
        with pytest.raises(StorageError, match="partition 2 has never been written"):
            store.read_into(2, *slot_arrays(self.table))
        store.write(0, *version(self.table, 0, 0))
        with pytest.raises(StorageError, match="partition 1 has never been written"):
            store.commit(Checkpoint())
        assert store.checkpoint() is None
        store.close()

    @pytest.mark.parametrize("aligned", [True, False])
    def test_returns_what_was_written(self, store: PartitionStore, aligned: bool) -> None:
        """Reads see the newest write, from aligned and unaligned arrays."""
        for part in range(4):
            expect_version(store, part, 0)
        embeddings, state = slot_arrays(self.table, 7, aligned=aligned)
        store.write(1, embeddings, state)
        embeddings[:], state[:] = 0, 0
        store.read_into(1, embeddings, state)
        size = self.table.partitioning.size(1)
        assert (embeddings[:size] == 7).all()
        assert (state[:size] == 7).all()
        store.close()

    def test_without_state(self, tmp_path: Path) -> None:
        """An optimizer without state has arrays of width 0."""
        table = NodeTable(Partitioning(100, 3), dim=5, state_dim=0)
        store = self.make_store(tmp_path / "store", table, 1)
        for part in range(3):
            store.write(part, *version(table, part, 1))
        store.commit(Checkpoint())
        expect_version(store, 2, 1)
        store.close()

    def test_slots_run_out_and_come_back(self, store: PartitionStore) -> None:
        """A write without a free slot says so; a commit frees the old versions."""
        assert store.free_slots() == 2
        for _ in range(3):  # versions of one generation share a slot
            store.write(3, *version(self.table, 3, 1))
        store.write(0, *version(self.table, 0, 1))
        assert store.free_slots() == 0
        with pytest.raises(StorageError, match=r"no free slot .*: 2 partitions await .* commit first"):
            store.write(1, *version(self.table, 1, 1))
        expect_version(store, 1, 0)
        store.commit(Checkpoint(meta={"number": 1}))
        assert store.free_slots() == 2
        store.write(1, *version(self.table, 1, 2))
        for part, number in enumerate((1, 2, 0, 1)):
            expect_version(store, part, number)
        store.close()

    def test_checkpoint_is_a_copy(self, store: PartitionStore) -> None:
        """Arrays and meta come back as they were, whatever happens to the originals."""
        arrays = {
            "relations": np.arange(6, dtype=np.float32).reshape(2, 3),
            "relation_state": np.empty((2, 0), np.float32),
            "counts": np.array([2**63 - 1, -1]),
            "scalar.x": np.array(3.5),
            "flags": np.array([True, False]),
        }
        meta = {"position": [1, 2, 3], "text": 'quotes " and ü', "nothing": None, "deep": {"a": [0.5]}}
        store.commit(Checkpoint(arrays=arrays, meta=meta))
        expected = {name: array.copy() for name, array in arrays.items()}
        arrays["relations"][:] = -1
        for _ in range(2):
            found = store.checkpoint()
            assert found is not None
            assert found.meta == store.meta == meta
            assert set(found.arrays) == set(expected)
            for name, array in expected.items():
                assert found.arrays[name].dtype == array.dtype
                np.testing.assert_array_equal(found.arrays[name], array)
            found.arrays["relations"][:] = -2
        store.close()

    def test_json_is_taken_over(self, store: PartitionStore) -> None:
        """What is JSON already comes back as what it says."""
        history = [{"epoch": 0, "valid": None}, {"epoch": 1, "text": "ü"}]
        store.commit(Checkpoint(meta={"number": 1, "history": JsonText(json.dumps(history)), "last": 2}))
        found = store.checkpoint()
        assert found is not None
        assert found.meta == store.meta == {"number": 1, "history": history, "last": 2}
        store.close()

    @pytest.mark.parametrize(
        "checkpoint",
        [
            Checkpoint(arrays={"a": np.array(["text"])}),
            Checkpoint(arrays={"a": np.array([b"text"])}),
            Checkpoint(arrays={"a": np.array([None])}),
            Checkpoint(arrays={"a": np.zeros(2, np.complex64)}),
            Checkpoint(arrays={"a": np.zeros(2, np.longdouble)}),
            Checkpoint(arrays={"../a": np.zeros(2)}),
            Checkpoint(arrays={"a/b": np.zeros(2)}),
            Checkpoint(arrays={"..": np.zeros(2)}),
            Checkpoint(arrays={"a" * 101: np.zeros(2)}),
            Checkpoint(meta={"a": object()}),
            Checkpoint(meta={"a": _LOOP}),
        ],
    )
    def test_refuses_what_it_cannot_keep(self, store: PartitionStore, checkpoint: Checkpoint) -> None:
        """Objects, text and bad names are refused, and nothing is committed."""
        store.write(0, *version(self.table, 0, 1))
        with pytest.raises(FormatError, match="checkpoint"):
            store.commit(checkpoint)
        found = store.checkpoint()
        assert found is not None
        assert found.meta == {"number": 0}
        assert store.free_slots() == 1
        store.close()

    def test_refuses_wrong_arrays(self, store: PartitionStore) -> None:
        """Partitions, shapes, dtypes and layouts are checked."""
        embeddings, state = slot_arrays(self.table)
        wrong: list[tuple[int, Any, Any]] = [
            (4, embeddings, state),
            (-1, embeddings, state),
            (0, embeddings[:-1], state),
            (0, embeddings.astype(np.float64), state),
            (0, np.asfortranarray(embeddings), state),
            (0, embeddings, state[:, :1]),
        ]
        for part, first, second in wrong:
            for operation in (store.write, store.read_into):
                with pytest.raises(StorageError, match=r"must be C-contiguous|does not exist"):
                    operation(part, first, second)
        assert store.free_slots() == 2
        store.close()

    def test_closed_store_refuses(self, store: PartitionStore) -> None:
        """Closing twice is fine; use after it is an error."""
        store.close()
        store.close()
        for operation in (
            lambda: store.read_into(0, *slot_arrays(self.table)),
            lambda: store.write(0, *slot_arrays(self.table)),
            lambda: store.commit(Checkpoint()),
        ):
            with pytest.raises(MariusError, match="closed"):
                operation()
