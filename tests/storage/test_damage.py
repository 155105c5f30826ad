"""Damaged, missing, foreign and hostile files: always detected, named, never loaded."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from marius_py.errors import FormatError, MariusError, StorageError
from marius_py.partitioning import Partitioning
from marius_py.storage.checkpoint_file import (
    CHECKPOINT_NAME,
    HEADER_BYTES,
    _header,
    decode,
    encode,
    read_checkpoint,
)
from marius_py.storage.hdf5_nodes import create_node_store, has_commit, open_node_store
from marius_py.storage.node_file import NODES_NAME, read_facts
from marius_py.storage.protocols import Checkpoint, NodeTable
from marius_py.storage.reader import NodeReader, open_node_reader
from marius_py.storage.verify import verify_node_store
from marius_py.testing.store_tests import expect_version, slot_arrays, version

TABLE = NodeTable(Partitioning(2503, 3), dim=3, state_dim=2)
META = {"position": [1, 2, 3], "history": []}


def make(folder: Path, number: int = 0) -> Path:
    with create_node_store(folder, TABLE, spare_slots=1) as store:
        for part in range(3):
            store.write(part, *version(TABLE, part, number))
        store.commit(Checkpoint({"relations": np.ones((5, 3), np.float32)}, META))
        store.write(1, *version(TABLE, 1, number + 1))
        store.commit(Checkpoint({"relations": np.ones((5, 3), np.float32)}, META))
    return folder


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("pristine") / "store")


@pytest.fixture
def folder(pristine: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / "copy"))


def read_everything(folder: Path) -> None:
    """What a trainer does: open, load every partition."""
    arrays = slot_arrays(TABLE)
    with open_node_store(folder) as store:
        for part in range(3):
            store.read_into(part, *arrays)


def stream(reader: NodeReader) -> None:
    for start in range(0, 2503, 100):
        reader.read_rows(start, min(start + 100, 2503))


def flip(path: Path, offset: int, bit: int = 0) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1 << bit]))


def slot_offset(folder: Path, part: int, tensor: int) -> int:
    facts = read_facts(folder / NODES_NAME)
    slot = int(read_checkpoint(folder / CHECKPOINT_NAME)[0].slots[part])
    base = facts.offsets[tensor]
    assert base is not None
    return base + slot * facts.slot_rows * (facts.state_dim if tensor else facts.dim) * 4


def test_the_whole_store_is_whole(folder: Path) -> None:
    read_everything(folder)
    assert verify_node_store(folder) == []
    with open_node_store(folder) as store:
        for part, number in enumerate((0, 1, 0)):
            expect_version(store, part, number)


def test_h5py_reads_nodes_in_id_order(folder: Path) -> None:
    parts = TABLE.partitioning
    with h5py.File(folder / CHECKPOINT_NAME) as file:
        for part, number in enumerate((0, 1, 0)):
            rows = slice(parts.start(part), parts.start(part + 1))
            for name, expected in zip(("embeddings", "state"), version(TABLE, part, number), strict=True):
                np.testing.assert_array_equal(file[name][rows], expected[: parts.size(part)])
        assert file["embeddings"].shape == (2503, 3)
        assert json.loads(file["meta"][:].tobytes()) == META
        assert file.attrs["generation"] == 2
        np.testing.assert_array_equal(file["arrays/relations"], np.ones((5, 3)))
        assert sorted(file["partition_slot"][:]) == [0, 2, 3]


def test_state_of_width_zero_for_h5py(tmp_path: Path) -> None:
    table = NodeTable(Partitioning(7, 2), 1, 0)
    with create_node_store(tmp_path / "s", table, spare_slots=0) as store:
        for part in range(2):
            store.write(part, *version(table, part, 0))
        store.commit(Checkpoint())
    with h5py.File(tmp_path / "s" / CHECKPOINT_NAME) as file:
        assert file["state"][:].shape == (7, 0)
    assert verify_node_store(tmp_path / "s") == []


@pytest.mark.parametrize("part", [0, 1, 2])
@pytest.mark.parametrize("tensor", [0, 1])
def test_flipped_bit_in_a_partition(folder: Path, part: int, tensor: int) -> None:
    size = TABLE.partitioning.size(part) * (TABLE.state_dim if tensor else TABLE.dim) * 4
    for offset in (0, size // 2, size - 1):
        flip(folder / NODES_NAME, slot_offset(folder, part, tensor) + offset, bit=offset % 8)
        with pytest.raises(StorageError, match=rf"nodes.h5 is damaged: the checksum of partition {part} "):
            read_everything(folder)
        assert [finding.partition for finding in verify_node_store(folder)] == [part]
        flip(folder / NODES_NAME, slot_offset(folder, part, tensor) + offset, bit=offset % 8)
    read_everything(folder)


def test_streamed_rows_notice_damage(folder: Path) -> None:
    flip(folder / NODES_NAME, slot_offset(folder, 1, 0) + 100)
    with open_node_reader(folder) as reader, pytest.raises(StorageError, match="checksum of partition 1"):
        stream(reader)


def test_state_is_checked_though_embeddings_have_been(folder: Path) -> None:
    flip(folder / NODES_NAME, slot_offset(folder, 1, 1) + 100)
    with open_node_reader(folder) as reader:
        stream(reader)
        with pytest.raises(StorageError, match="checksum of partition 1"):
            reader.read_into(1, *slot_arrays(TABLE))


def test_zeroed_middle(folder: Path) -> None:
    with (folder / NODES_NAME).open("r+b") as file:
        file.seek(slot_offset(folder, 2, 0) + 4096)
        file.write(bytes(4096))
    with pytest.raises(StorageError, match="checksum of partition 2"):
        read_everything(folder)


@given(position=st.integers(0, 10**9), bit=st.integers(0, 7))
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_flipped_bit_of_the_checkpoint(pristine: Path, position: int, bit: int) -> None:
    data = bytearray((pristine / CHECKPOINT_NAME).read_bytes())
    data[position % len(data)] ^= 1 << bit
    with pytest.raises((StorageError, FormatError), match=r"damaged|truncated|format version"):
        decode(bytes(data), pristine / CHECKPOINT_NAME)


@given(position=st.integers(0, 10**9), bit=st.integers(0, 7))
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_flipped_bit_of_the_node_file_header(folder: Path, position: int, bit: int) -> None:
    """HDF5 notices, or the store does, or the bit means nothing to where and what the slots are."""
    path = folder / NODES_NAME
    before = read_facts(path)
    offset = position % (before.offsets[0] or 1)
    flip(path, offset, bit)
    try:
        if read_facts(path) != before:
            with pytest.raises((StorageError, FormatError), match=NODES_NAME):
                read_everything(folder)
    except MariusError as error:
        assert str(path) in str(error)  # noqa: PT017
    finally:
        flip(path, offset, bit)


@given(size=st.floats(0, 1, exclude_max=True))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_truncation(pristine: Path, tmp_path: Path, size: float) -> None:
    for name in (CHECKPOINT_NAME, NODES_NAME):
        folder = tmp_path / "cut"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(pristine, folder)
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[: int(size * len(data))])
        with pytest.raises((StorageError, FormatError), match=name):
            read_everything(folder)
        findings = verify_node_store(folder)
        assert findings
        assert name in findings[0].file


@pytest.mark.parametrize("name", [CHECKPOINT_NAME, NODES_NAME])
def test_removed_file(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(StorageError, match=f"{name} is missing"):
        read_everything(folder)
    with pytest.raises(StorageError, match=f"{name} is missing"):
        open_node_reader(folder)
    assert any(name in f.file and "missing" in f.problem for f in verify_node_store(folder))
    if name == CHECKPOINT_NAME:
        with pytest.raises(StorageError, match=r"checkpoint.h5 is missing, though nodes.h5 is there"):
            has_commit(folder)
        with pytest.raises(StorageError, match=r"checkpoint.h5 is missing"):
            create_node_store(folder, TABLE, spare_slots=1)
        assert (folder / NODES_NAME).exists()


def test_missing_folder(tmp_path: Path) -> None:
    for function in (open_node_store, open_node_reader):
        with pytest.raises(StorageError, match=r"nowhere.* is missing"):
            function(tmp_path / "nowhere")
    assert not has_commit(tmp_path / "nowhere")
    assert len(verify_node_store(tmp_path / "nowhere")) == 1


@pytest.mark.parametrize("name", [CHECKPOINT_NAME, NODES_NAME])
def test_file_of_another_run(folder: Path, tmp_path: Path, name: str) -> None:
    other = make(tmp_path / "other")
    shutil.copy(other / name, folder / name)
    with pytest.raises(FormatError, match="belongs to another run"):
        read_everything(folder)
    with pytest.raises(FormatError, match="belongs to another run"):
        open_node_reader(folder)
    assert "belongs to another run" in verify_node_store(folder)[0].problem


@pytest.mark.parametrize("name", [CHECKPOINT_NAME, NODES_NAME])
@pytest.mark.parametrize(
    "content", [b"", b"\0" * 5000, b"\x89HDF\r\n\x1a\n" + b"\xff" * 5000, b"cos\nsystem\n"]
)
def test_garbage_in_place_of_a_file(folder: Path, name: str, content: bytes) -> None:
    (folder / name).write_bytes(content)
    with pytest.raises((StorageError, FormatError), match=name):
        read_everything(folder)
    assert verify_node_store(folder)


def test_older_node_file_of_the_same_run(folder: Path) -> None:
    old = folder.parent / "old.h5"
    shutil.copy(folder / NODES_NAME, old)
    with open_node_store(folder) as store:
        store.write(0, *version(TABLE, 0, 9))
        store.commit(Checkpoint())
    shutil.copy(old, folder / NODES_NAME)
    with pytest.raises(StorageError, match="checksum of partition 0"):
        read_everything(folder)


def test_other_format_versions(folder: Path) -> None:
    with h5py.File(folder / NODES_NAME, "r+") as file:
        file.attrs["format_version"] = 2
    with pytest.raises(FormatError, match=r"nodes.h5 has format version 2; this version reads 1"):
        read_everything(folder)
    content = (folder / CHECKPOINT_NAME).read_bytes()[HEADER_BYTES:]
    for number in (0, 7):
        (folder / CHECKPOINT_NAME).write_bytes(_header(number, content) + content)
        message = f"checkpoint.h5 has format version {number}; this version reads 1"
        with pytest.raises(FormatError, match=message):
            read_everything(folder)


def test_memory_that_is_short_is_no_fault_of_the_checkpoint(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(*_: object) -> None:
        raise MemoryError("Unable to allocate 12.0 GiB")

    monkeypatch.setattr("marius_py.storage.checkpoint_file.np.asarray", no_memory)
    with pytest.raises(MemoryError, match=r"12\.0 GiB"):
        read_checkpoint(folder / CHECKPOINT_NAME)


def test_a_cut_checkpoint_says_what_is_left(folder: Path) -> None:
    path = folder / CHECKPOINT_NAME
    data = path.read_bytes()
    size = len(data) - HEADER_BYTES
    for left, message in ((0, "is empty"), (-1, f"is truncated: {size - 1:,} of {size:,} bytes are left")):
        path.write_bytes(data[:left])
        with pytest.raises(StorageError, match=message):
            read_checkpoint(path)


@pytest.mark.parametrize("name", [CHECKPOINT_NAME, NODES_NAME])
@pytest.mark.parametrize("kind", ["emptied", "cut", "overwritten", "flipped"])
def test_who_reads_damaged_nodes_is_told_what_can_be_done(name: str, kind: str, folder: Path) -> None:
    path = folder / name
    data = path.read_bytes()
    if kind == "flipped":
        flip(path, len(data) - 1 if name == CHECKPOINT_NAME else slot_offset(folder, 1, 0))
    else:
        path.write_bytes({"emptied": b"", "cut": data[: len(data) // 2]}.get(kind, bytes(64) + data[64:]))
    with pytest.raises(MariusError, match=rf"{name}.*; restore the file from a copy of the same run, or"):
        read_everything(folder)


def test_a_checkpoint_needs_no_new_hdf5(folder: Path) -> None:
    """HDF5 1.14 cannot open what it makes in memory, unless the superblock is one without a checksum."""
    content = (folder / CHECKPOINT_NAME).read_bytes()[HEADER_BYTES:]
    assert content.startswith(b"\x89HDF\r\n\x1a\n")
    assert content[8] == 0


def rebuild(folder: Path, change: Callable[[h5py.File], None]) -> None:
    """Change checkpoint.h5 and make its checksum right again, as an attacker would."""
    path = folder / CHECKPOINT_NAME
    with h5py.File(path, "r+") as file:
        change(file)
    content = path.read_bytes()[HEADER_BYTES:]
    path.write_bytes(_header(1, content) + content)


def put(file: h5py.File, name: str, data: object, **options: object) -> None:
    del file[name]
    file.create_dataset(name, data=data, **options)


def link_out(file: h5py.File) -> None:
    file["arrays/secret"] = h5py.ExternalLink("/etc/passwd", "/x")


def soft_link(file: h5py.File) -> None:
    file["arrays/secret"] = h5py.SoftLink("/embeddings")


def external_storage(file: h5py.File) -> None:
    file.create_dataset("arrays/secret", shape=(10,), dtype="u1", external=[("/etc/passwd", 0, 10)])


def virtual_array(file: h5py.File) -> None:
    layout = h5py.VirtualLayout((4,), "f4")
    layout[:] = h5py.VirtualSource("/etc/other.h5", "x", (4,))
    file.create_virtual_dataset("arrays/secret", layout)


def bomb(file: h5py.File) -> None:
    file.create_dataset("arrays/bomb", shape=(1 << 40,), dtype="f4", chunks=(1 << 20,))


def hollow(file: h5py.File) -> None:
    """4 TiB in one piece of which nothing is written."""
    create = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    create.set_layout(h5py.h5d.CONTIGUOUS)
    create.set_alloc_time(h5py.h5d.ALLOC_TIME_LATE)
    shape = h5py.h5s.create_simple((1 << 40,))
    h5py.h5d.create(file["arrays"].id, b"hollow", h5py.h5t.IEEE_F32LE, shape, create)


def text(file: h5py.File) -> None:
    file["arrays/text"] = "variable-length text"


def group(file: h5py.File) -> None:
    file.create_group("arrays/inner")


def uncommitted_in_two_slots(file: h5py.File) -> None:
    file.attrs.modify("generation", 0)
    file.attrs.modify("num_slots", 2)
    put(file, "partition_slot", np.full(3, -1))


HOSTILE: list[tuple[Callable[[h5py.File], None], str]] = [
    (link_out, "'secret' is missing or a link"),
    (soft_link, "'secret' is missing or a link"),
    (external_storage, "'secret' does not lie in this file"),
    (virtual_array, "'secret' does not lie in this file"),
    (bomb, "'bomb' does not lie in this file"),
    (hollow, "'hollow' is not stored in full"),
    (text, "'text' has dtype object"),
    (group, "'inner' is not a data set"),
    (lambda f: put(f, "partition_slot", np.array([0, 1, 99])), "does not fit 4 slots"),
    (lambda f: put(f, "partition_slot", np.array([0, 1, 1])), "does not fit 4 slots"),
    (lambda f: put(f, "partition_slot", np.array([0, 1, -1])), "does not fit 4 slots"),
    (lambda f: put(f, "partition_slot", np.array([0, 1, 4])), "does not fit 4 slots"),
    (lambda f: put(f, "partition_slot", np.array([0, 1])), r"partition_slot has shape \(2,\)"),
    (lambda f: put(f, "partition_slot", np.array([0.0, 2.0, 3.0])), "partition_slot .* dtype float64"),
    (lambda f: put(f, "partition_xxh3", np.zeros((3, 2))), "dtype float64"),
    (lambda f: put(f, "partition_xxh3", np.zeros((2, 2), np.uint64)), r"partition_xxh3 has shape \(2, 2\)"),
    (lambda f: put(f, "arrays/relations", np.ones(2, np.longdouble)), "'relations' has dtype"),
    (lambda f: put(f, "meta", h5py.Empty("u1")), "'meta' is not a data set"),
    (lambda f: put(f, "meta", np.frombuffer(b"[1]", np.uint8)), "meta is not a JSON object"),
    (lambda f: put(f, "meta", np.frombuffer(b"{", np.uint8)), "not a checkpoint"),
    (lambda f: f.attrs.modify("dim", 0), "impossible counts"),
    (lambda f: f.attrs.modify("state_dim", -1), "impossible counts"),
    (lambda f: f.attrs.modify("generation", -1), "impossible counts"),
    (lambda f: f.attrs.modify("num_nodes", 0), "impossible counts"),
    (lambda f: f.attrs.modify("generation", 0), "does not fit 4 slots"),
    (uncommitted_in_two_slots, "does not fit 2 slots"),
    (lambda f: f.attrs.modify("num_partitions", 2), "partition_slot has shape"),
    (lambda f: f.attrs.modify("num_partitions", 5000), "impossible counts"),
    (lambda f: f.attrs.modify("num_nodes", 2), "impossible counts"),
    (lambda f: f.attrs.modify("store_id", "../../etc"), "32 hex digits"),
    (lambda f: f.attrs.modify("store_id", f.attrs["store_id"] + "0"), "32 hex digits"),
    (lambda f: f.attrs.__delitem__("generation"), "not a checkpoint"),
    (lambda f: f.__delitem__("arrays"), "not a checkpoint"),
]


@pytest.mark.parametrize(("change", "message"), HOSTILE)
def test_hostile_checkpoint(folder: Path, change: Callable[[h5py.File], None], message: str) -> None:
    rebuild(folder, change)
    with pytest.raises(FormatError, match=message) as caught:
        open_node_store(folder)
    assert CHECKPOINT_NAME in str(caught.value)
    assert verify_node_store(folder)


def other_rows(file: h5py.File) -> None:
    layout = h5py.VirtualLayout((2503, 3), "f4")
    layout[:] = h5py.VirtualSource(NODES_NAME, "slots", (2503, 3))
    del file["embeddings"]
    file.create_virtual_dataset("embeddings", layout)


def other_file(file: h5py.File) -> None:
    layout = h5py.VirtualLayout((2503, 3), "f4")
    source = h5py.VirtualSource("/etc/other.h5", "slots", (4 * TABLE.slot_rows, 3))
    for part, slot in enumerate(file["partition_slot"][:].tolist()):
        start, first = TABLE.partitioning.start(part), slot * TABLE.slot_rows
        size = TABLE.partitioning.size(part)
        layout[start : start + size] = source[first : first + size]
    del file["embeddings"]
    file.create_virtual_dataset("embeddings", layout)


def no_rows(file: h5py.File) -> None:
    space = h5py.h5s.create_simple((2503, 3))
    space.select_none()
    create = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    create.set_virtual(space, NODES_NAME.encode(), b"slots", space)
    del file["embeddings"]
    h5py.h5d.create(file.id, b"embeddings", h5py.h5t.IEEE_F32LE, h5py.h5s.create_simple((2503, 3)), create)


def link_to_a_view(file: h5py.File) -> None:
    del file["embeddings"]
    file["embeddings"] = h5py.ExternalLink("/etc/other.h5", "/embeddings")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (other_rows, "'embeddings' does not map the committed slots"),
        (other_file, "'embeddings' does not map the committed slots"),
        (no_rows, "'embeddings' does not map the committed slots"),
        (lambda f: put(f, "embeddings", np.zeros((2503, 3), np.float32)), "'embeddings' does not map"),
        (lambda f: put(f, "embeddings", np.zeros((9, 3), np.float32)), "'embeddings' is missing or not of"),
        (link_to_a_view, "'embeddings' is missing or not of shape"),
    ],
)
def test_hostile_view_is_reported_and_not_followed(
    folder: Path, change: Callable[[h5py.File], None], problem: str
) -> None:
    rebuild(folder, change)
    read_everything(folder)
    findings = verify_node_store(folder)
    assert len(findings) == 1
    assert problem in findings[0].problem


@pytest.mark.parametrize("kind", ["link", "external", "chunked", "shape"])
def test_hostile_node_file(folder: Path, kind: str) -> None:
    path = folder / NODES_NAME
    with h5py.File(path, "r+", locking=False) as file:
        shape = file["slots"].shape
        del file["slots"]
        if kind == "link":
            file["slots"] = h5py.ExternalLink("/etc/other.h5", "/slots")
        elif kind == "external":
            file.create_dataset("slots", shape, "f4", external=[("/etc/passwd", 0, h5py.h5f.UNLIMITED)])
        elif kind == "chunked":
            file.create_dataset("slots", shape, "f4", chunks=(1024, 3))
        else:
            file.create_dataset("slots", (shape[0] - 1, shape[1]), "f4")
    with pytest.raises(FormatError, match=r"nodes.h5: data set 'slots'"):
        open_node_store(folder)


def test_contradicting_shapes(folder: Path) -> None:
    manifest, checkpoint = read_checkpoint(folder / CHECKPOINT_NAME)
    wrong = replace(manifest, table=NodeTable(TABLE.partitioning, 4, 2))
    (folder / CHECKPOINT_NAME).write_bytes(b"".join(encode(wrong, checkpoint)[:2]))
    with pytest.raises(FormatError, match=r"\(4, 1024, 3, 2\), checkpoint.h5 says \(4, 1024, 4, 2\)"):
        open_node_store(folder)


def test_uncommitted_store(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    create_node_store(folder, TABLE, spare_slots=1).close()
    assert not has_commit(folder)
    assert "nothing was committed" in verify_node_store(folder)[0].problem
    with h5py.File(folder / CHECKPOINT_NAME) as file:
        assert not {"embeddings", "state"} & {*file}
    with pytest.raises(StorageError, match="no committed nodes yet"):
        open_node_reader(folder)
    with open_node_store(folder) as store:
        assert store.checkpoint() is None
    create_node_store(folder, TABLE, spare_slots=2).close()  # nothing to lose, so it is replaced


def test_strays_are_reported_then_removed(folder: Path) -> None:
    stray = folder / (CHECKPOINT_NAME + ".tmp")
    stray.write_bytes(b"half")
    findings = verify_node_store(folder)
    assert [(f.file, f.harmless) for f in findings] == [(str(stray), True)]
    open_node_store(folder).close()
    assert sorted(path.name for path in folder.iterdir()) == [CHECKPOINT_NAME, NODES_NAME]
