from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from marius_py.errors import ConfigError, FormatError, MariusError, StorageError
from marius_py.partitioning import Partitioning
from marius_py.storage import edge_writer
from marius_py.storage.edge_writer import EdgeWriter, count_buckets, resort
from marius_py.storage.hdf5_edges import Hdf5EdgeStore
from marius_py.storage.memory import MemoryEdgeStore
from marius_py.storage.protocols import EdgeStore
from marius_py.storage.weighted import weighted_rows, weights_of
from marius_py.types import SPLITS, Bucket


def random_edges(count: int, nodes: int, seed: int = 0, dtype: Any = np.int32) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, nodes, (count, 3)).astype(dtype)


def write(
    path: Path,
    train: np.ndarray,
    valid: np.ndarray,
    test: np.ndarray,
    nodes: int,
    p: int,
    block: int = 64,
    **more: Any,
) -> Hdf5EdgeStore:
    partitioning = Partitioning(nodes, p)
    degrees = np.bincount(train[:, [0, 2]].ravel(), minlength=nodes)
    with EdgeWriter(
        path,
        partitioning,
        count_buckets(partitioning, train),
        num_valid=len(valid),
        num_test=len(test),
        degrees=degrees,
        fingerprint="f",
        **more,
    ) as writer:
        for split, edges in zip(SPLITS, (train, valid, test), strict=True):
            for start in range(0, len(edges), block):
                writer.append(split, edges[start : start + block])
        writer.finish()
    return Hdf5EdgeStore(path)


@pytest.fixture
def store(tmp_path: Path) -> Hdf5EdgeStore:
    splits = [random_edges(count, 50, seed) for seed, count in enumerate((500, 40, 30))]
    with write(tmp_path / "edges.h5", *splits, nodes=50, p=4) as opened:
        yield opened


def rows(edges: np.ndarray) -> Counter[tuple[int, ...]]:
    return Counter(map(tuple, edges.tolist()))


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    counts=st.tuples(st.integers(0, 300), st.integers(0, 20), st.integers(0, 20)),
    nodes=st.integers(1, 60),
    p=st.integers(1, 9),
    block=st.integers(1, 100),
    wide=st.booleans(),
)
def test_equals_its_twin_in_memory(
    tmp_path_factory: pytest.TempPathFactory,
    counts: tuple[int, ...],
    nodes: int,
    p: int,
    block: int,
    wide: bool,
) -> None:
    p = min(p, nodes)
    dtype = np.dtype(np.int64 if wide else np.int32)
    splits = [random_edges(count, nodes, seed) for seed, count in enumerate(counts)]
    path = tmp_path_factory.mktemp("edges") / "edges.h5"
    with write(path, *splits, nodes=nodes, p=p, block=block, dtype=dtype) as disk:
        twin = MemoryEdgeStore(Partitioning(nodes, p), *splits)
        assert isinstance(disk, EdgeStore)
        assert disk.partitioning == twin.partitioning
        assert disk.dtype == dtype
        assert np.array_equal(disk.bucket_counts(), twin.bucket_counts())
        for split in SPLITS:
            assert disk.num_edges(split) == twin.num_edges(split)
            assert split == "train" or np.array_equal(disk.read(split), twin.read(split))
        for i in range(p):
            for j in range(p):
                assert rows(disk.read("train", Bucket(i, j))) == rows(twin.read("train", Bucket(i, j)))
        assert disk.verify(block_rows=7) == []
        assert disk.degrees(0, nodes).sum() == 2 * counts[0]


def test_ranges_and_blocks_tile_the_file(store: Hdf5EdgeStore) -> None:
    for split in SPLITS:
        whole, count = store.read(split), store.num_edges(split)
        assert np.array_equal(np.concatenate(list(store.blocks(split, 13))), whole)
        assert np.array_equal(store.read_range(split, 5, count - 3), whole[5 : count - 3])
        assert store.read_range(split, 3, 3).shape == (0, 3)


def test_it_is_an_ordinary_hdf5_file(store: Hdf5EdgeStore) -> None:
    with h5py.File(store.path, "r") as file:
        assert np.array_equal(file["train"][...], store.read("train"))
        assert np.array_equal(file["valid"][...], store.read("valid"))
        assert np.array_equal(file["degrees"][...], store.degrees(0, 50))
        assert np.array_equal(np.diff(file["train_offsets"]), store.bucket_counts().ravel())
        assert file["train"].chunks is None


def test_wrong_questions(store: Hdf5EdgeStore) -> None:
    for call in (
        lambda: store.read("dev"),
        lambda: store.num_edges("dev"),
        lambda: store.read("train", Bucket(0, 4)),
        lambda: store.read("train", Bucket(-1, 0)),
        lambda: store.read("valid", Bucket(0, 0)),
        lambda: store.read_range("train", 3, 501),
        lambda: store.read_range("train", 3, 2),
        lambda: store.degrees(0, 51),
    ):
        with pytest.raises(ConfigError, match=r"allowed|only train"):
            call()


def test_reads_from_many_threads_agree(store: Hdf5EdgeStore) -> None:
    expected = {(i, j): store.read("train", Bucket(i, j)) for i in range(4) for j in range(4)}
    wrong: list[object] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(100):
            bucket = Bucket(*rng.integers(0, 4, 2).tolist())
            if not np.array_equal(store.read("train", bucket), expected[bucket]):
                wrong.append(bucket)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_closed_store_says_so(store: Hdf5EdgeStore) -> None:
    store.close()
    store.close()
    with pytest.raises(StorageError, match="was closed"):
        store.read("train")


def test_the_order_of_train_edges_is_told(store: Hdf5EdgeStore, tmp_path: Path) -> None:
    splits = [random_edges(count, 50, seed) for seed, count in enumerate((500, 40, 30))]
    again = write(tmp_path / "again.h5", *splits, nodes=50, p=4)
    turned = write(tmp_path / "turned.h5", splits[0][::-1], *splits[1:], nodes=50, p=4)
    with again, turned:
        assert store.train_order() == again.train_order() != turned.train_order()
        twins = [MemoryEdgeStore(one.partitioning, one.read("train")) for one in (store, again, turned)]
        assert twins[0].train_order() == twins[1].train_order() != twins[2].train_order()


@pytest.mark.parametrize("p", [1, 2, 7])
def test_resort_keeps_all_edges_in_new_buckets(store: Hdf5EdgeStore, tmp_path: Path, p: int) -> None:
    resort(store, tmp_path / "other.h5", p, block_rows=50)
    with Hdf5EdgeStore(tmp_path / "other.h5") as other:
        assert other.fingerprint == store.fingerprint
        assert rows(other.read("train")) == rows(store.read("train"))
        assert np.array_equal(other.read("test"), store.read("test"))
        assert np.array_equal(other.degrees(0, 50), store.degrees(0, 50))
        for i in range(p):
            for j in range(p):
                edges = other.read("train", Bucket(i, j))
                assert (other.partitioning.locate(edges[:, 0])[0] == i).all()
                assert (other.partitioning.locate(edges[:, 2])[0] == j).all()


@pytest.mark.parametrize(("p", "block_rows"), [(3, 1 << 21), (30, 1 << 21), (30, 150), (7, 1)])
def test_resort_counts_whole_blocks_of_edges_not_buckets(
    store: Hdf5EdgeStore, tmp_path: Path, p: int, block_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each count costs p²; the file is the one that sorting all edges at once gives."""
    counted: list[int] = []

    def count(partitioning: Partitioning, edges: np.ndarray) -> np.ndarray:
        counted.append(len(edges))
        return count_buckets(partitioning, edges)

    monkeypatch.setattr(edge_writer, "count_buckets", count)
    resort(store, tmp_path / "other.h5", p, block_rows=block_rows)
    assert sum(counted) == 500
    assert len(counted) <= 2 * 500 // block_rows + 1
    whole = store.read("train")
    with (
        write(tmp_path / "once.h5", whole, store.read("valid"), store.read("test"), 50, p, 500),
        h5py.File(tmp_path / "once.h5") as once,
        h5py.File(tmp_path / "other.h5") as other,
    ):
        assert set(once) == set(other) == {*SPLITS, "degrees", "train_offsets", "train_xxh3"}
        for name in once:
            np.testing.assert_array_equal(other[name][...], once[name][...])
        assert dict(other.attrs) == dict(once.attrs)


@pytest.mark.parametrize("together", [1, 100, 333])
def test_rows_are_gathered_until_they_are_worth_a_write_for_each_bucket(
    tmp_path: Path, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is sorted together and whatever blocks come, the file has the same edges in the same order."""
    train = random_edges(2000, 400)
    monkeypatch.setattr(edge_writer, "BLOCK_ROWS", 60)
    with write(tmp_path / "once.h5", train, train[:0], train[:0], 400, 20, block=2000) as once:
        expected = once.read("train")
        counts = once.bucket_counts()
    monkeypatch.setattr(edge_writer, "_MOST_SORTED", together)
    writes: list[int] = []
    write_from = edge_writer.write_from

    def counting(descriptor: int, content: memoryview, *more: Any) -> None:
        writes.append(len(content))
        write_from(descriptor, content, *more)

    monkeypatch.setattr(edge_writer, "write_from", counting)
    with write(tmp_path / "parts.h5", train, train[:0], train[:0], 400, 20, block=37) as parts:
        assert np.array_equal(parts.read("train"), expected)
        assert np.array_equal(parts.bucket_counts(), counts)
    rows = max(60, together)
    keys = edge_writer.bucket_keys(Partitioning(400, 20), train)
    assert len(writes) == sum(len(np.unique(keys[i : i + rows])) for i in range(0, 2000, rows))
    assert sum(writes) == train.nbytes


@pytest.mark.parametrize("block_rows", [100, 999, 1 << 21])
@pytest.mark.parametrize("p", [1, 2, 40])
def test_every_piece_of_a_bucket_is_a_sample_of_it(
    tmp_path: Path, p: int, block_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of edges that come sorted, too, and of buckets that are longer than a block."""
    monkeypatch.setattr(edge_writer, "BLOCK_ROWS", block_rows)
    rng = np.random.default_rng(3)
    train = rng.integers(0, 40, (8000, 3))
    train[:, 1] = np.arange(8000)  # what tells when an edge came
    with write(tmp_path / "edges.h5", train, train[:0], train[:0], 40, p, block=350) as store:
        assert store.verify() == []
        assert rows(store.read("train")) == rows(train)
        for bucket in range(p * p) if p < 40 else ():
            came = store.read("train", Bucket(*divmod(bucket, p)))[:, 1]
            for piece in np.array_split(came, 4):
                early = np.histogram(piece, 4, (0, 8000))[0] / len(piece)
                assert (abs(early - 0.25) < 0.07).all()


def test_many_buckets_are_sorted_as_by_one_number() -> None:
    keys = np.random.default_rng(0).integers(0, 1 << 18, 5000).astype(np.uint32) // 7 * 7
    assert np.array_equal(edge_writer._stable_order(keys), np.argsort(keys, kind="stable"))


def offset_of(path: Path, name: str) -> int:
    with h5py.File(path, "r") as file:
        return file[name].id.get_offset()


@pytest.mark.parametrize("split", SPLITS)
def test_a_flipped_bit_is_found_and_never_resorted(store: Hdf5EdgeStore, tmp_path: Path, split: str) -> None:
    with open(store.path, "r+b") as file:
        file.seek(offset_of(store.path, split) + 123)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 4]))
    with pytest.raises(StorageError, match=rf"damaged: (the {split}|{split} bucket)"):
        store.read(split)
    assert len(store.verify()) == 1
    with pytest.raises(StorageError, match="not match the checksum"):
        resort(store, tmp_path / "other.h5", 2)


@pytest.mark.parametrize("length", [1, 5, 16])
def test_a_few_edges_of_a_damaged_bucket_are_not_returned(store: Hdf5EdgeStore, length: int) -> None:
    """Shares of a bucket that is cut among many steps are as short."""
    starts = np.cumsum(store.bucket_counts().ravel())
    with open(store.path, "r+b") as file:
        file.seek(offset_of(store.path, "train") + int(starts[5]) * 12 - 3)
        file.write(b"\xff")
    first = int(starts[4])
    for start in range(first, int(starts[5]) - length):
        with pytest.raises(StorageError, match=r"train bucket \(1, 1\) does not match"):
            store.read_range("train", start, start + length)
    store.read_range("train", int(starts[5]), int(starts[5]) + length)


def test_a_bucket_is_verified_once_for_all_of_its_shares(
    store: Hdf5EdgeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[int] = []
    read_rows = store._read_rows

    def counting(split: str, start: int, stop: int) -> np.ndarray:
        reads.append(stop - start)
        return read_rows(split, start, stop)

    size = int(store.bucket_counts()[0, 0])
    monkeypatch.setattr(store, "_read_rows", counting)
    for start in range(0, 12, 3):
        store.read_range("train", start, start + 3)
    assert reads == [3, size, 3, 3, 3]
    reads.clear()
    store.read("train", Bucket(0, 1))  # a bucket that was read whole is not read again for that
    store.read_range("train", size + 1, size + 4)
    assert reads == [int(store.bucket_counts()[0, 1]), 3]


def test_damaged_files_give_one_clear_error(tmp_path: Path) -> None:
    edges = random_edges(300, 20)
    path = tmp_path / "edges.h5"
    write(path, edges, edges[:20], edges[:10], nodes=20, p=3).close()
    whole = path.read_bytes()
    for size in [0, 1, 100, 500, 1000, 2000, *range(3000, len(whole), 997)]:
        path.write_bytes(whole[:size])
        with pytest.raises((StorageError, FormatError), match=r"edges\.h5"):
            Hdf5EdgeStore(path)
    rng = np.random.default_rng(0)
    for _ in range(60):
        content = bytearray(whole)
        start = int(rng.integers(0, 6000))
        content[start : start + 40] = rng.bytes(40)
        path.write_bytes(bytes(content))
        # some of it hits padding and does no harm; the rest must end in an error of ours
        with contextlib.suppress(MariusError), Hdf5EdgeStore(path) as store:
            store.verify()


def test_missing_foreign_and_newer_files(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="missing"):
        Hdf5EdgeStore(tmp_path / "none.h5")
    with h5py.File(tmp_path / "foreign.h5", "w") as file:
        file["x"] = [1]
    with pytest.raises(FormatError, match="no edge file"):
        Hdf5EdgeStore(tmp_path / "foreign.h5")
    edges = random_edges(10, 5)
    write(tmp_path / "newer.h5", edges, edges, edges, nodes=5, p=1).close()
    with h5py.File(tmp_path / "newer.h5", "r+") as file:
        file.attrs["format_version"] = 99
    with pytest.raises(FormatError, match="version 99; this program reads versions 1 and 2"):
        Hdf5EdgeStore(tmp_path / "newer.h5")


def test_input_that_changes_between_the_passes_is_noticed(tmp_path: Path) -> None:
    edges = random_edges(100, 10)
    counts = count_buckets(Partitioning(10, 2), edges)
    common: dict[str, Any] = {
        "num_valid": 1,
        "num_test": 0,
        "degrees": np.zeros(10, np.int64),
        "fingerprint": "f",
    }
    with EdgeWriter(tmp_path / "a.h5", Partitioning(10, 2), counts, **common) as writer:
        with pytest.raises(FormatError, match="fewer edges"):
            writer.finish()
        writer.append("train", edges)
        with pytest.raises(FormatError, match="more train edges"):
            writer.append("train", edges[:1])
        writer.append("valid", edges[:1])
        with pytest.raises(FormatError, match="more valid edges"):
            writer.append("valid", edges[:1])
        writer.finish()


def test_what_cannot_be_read_is_told_from_what_is_damaged(
    store: Hdf5EdgeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = store.path
    with path.open("r+b") as file:
        file.seek(offset_of(path, "valid"))
        file.write(b"\x01\x02\x03\x04\x05")
    begin, degrees, plain = offset_of(path, "test"), offset_of(path, "degrees"), os.preadv

    def preadv(descriptor: int, buffers: Any, offset: int) -> int:
        if offset in (begin, degrees):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return plain(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", preadv)
    errors = store.verify()
    assert [error.errno for error in errors] == [None, errno.EIO, errno.EIO]
    assert "the valid edges do not match the checksum" in str(errors[0])
    assert str(errors[1]) == f"cannot read {path}: Input/output error"


def weighted(count: int, nodes: int, seed: int = 0, dtype: Any = np.int32) -> np.ndarray:
    """Edges whose weights tell which they are."""
    edges = random_edges(count, nodes, seed, dtype)
    return weighted_rows(edges, np.arange(count, dtype=np.float32) / 7)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("p", [1, 3])
def test_weights_stay_with_their_edges(tmp_path: Path, p: int, dtype: Any) -> None:
    train, valid = weighted(400, 20, dtype=dtype), random_edges(30, 20, 1, dtype)
    with write(
        tmp_path / "a.h5", train, valid, valid, nodes=20, p=p, weighted=True, dtype=np.dtype(dtype)
    ) as store:
        assert store.weighted
        assert store.verify() == []
        assert rows(store.read("train", weights=True)) == rows(train)
        assert rows(store.read("train")) == rows(train[:, :3])
        np.testing.assert_array_equal(store.read("valid", weights=True), valid)
        resort(store, tmp_path / "b.h5", 5, block_rows=37)
        blocks = np.concatenate(list(store.blocks("train", 50, weights=True)))
        assert rows(blocks) == rows(train)
    with Hdf5EdgeStore(tmp_path / "b.h5") as other:
        assert other.weighted
        memory = MemoryEdgeStore(Partitioning(20, 5), train, valid)
        for bucket in (Bucket(i, j) for i in range(5) for j in range(5)):
            found = other.read("train", bucket, weights=True)
            assert rows(found) == rows(memory.read("train", bucket, weights=True))
            assert found.dtype == dtype
            np.testing.assert_array_equal(other.read("train", bucket), found[:, :3])
        for start, stop in ((0, 400), (13, 57), (7, 7)):
            found = other.read_range("train", start, stop, weights=True)
            np.testing.assert_array_equal(found, other.read("train", weights=True)[start:stop])
            np.testing.assert_array_equal(other.read_range("train", start, stop), found[:, :3])
            assert other.read_unverified("train", start, stop).shape == (stop - start, 3)
    assert set(weights_of(train)) == {np.float32(i) / np.float32(7) for i in range(400)}


def test_a_changed_weight_is_damage(tmp_path: Path) -> None:
    train = weighted(100, 20)
    with write(tmp_path / "a.h5", train, train[:1, :3], train[:1, :3], nodes=20, p=2, weighted=True) as store:
        assert isinstance(store, EdgeStore)
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        file["train"][17, 3] += 1
    with (
        Hdf5EdgeStore(tmp_path / "a.h5") as store,
        pytest.raises(StorageError, match="is damaged: train bucket"),
    ):
        store.read("train")


def test_edges_without_weights_are_no_weighted_ones(tmp_path: Path, store: Hdf5EdgeStore) -> None:
    assert not store.weighted
    np.testing.assert_array_equal(store.read("train", weights=True), store.read("train"))
    with h5py.File(store.path) as file:
        assert file.attrs["format_version"] == 1
    train = weighted(50, 20)
    with write(tmp_path / "w.h5", train, train[:1, :3], train[:1, :3], nodes=20, p=1, weighted=True):
        pass
    with h5py.File(tmp_path / "w.h5", "r+") as file:
        assert file.attrs["format_version"] == 2
        file.attrs["format_version"] = 1  # as a program that knows no weights would see it
    with pytest.raises(FormatError, match=r"train has shape \(50, 4\) .* not \(E, 3\)"):
        Hdf5EdgeStore(tmp_path / "w.h5")
