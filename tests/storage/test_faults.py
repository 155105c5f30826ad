"""Full disks, broken devices and refused system calls, at every call that the store makes."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from marius_py.errors import StorageError
from marius_py.partitioning import Partitioning
from marius_py.prepare import prepare
from marius_py.storage import edge_layout, files, node_file
from marius_py.storage.checkpoint_file import CHECKPOINT_NAME
from marius_py.storage.edge_writer import EdgeWriter
from marius_py.storage.file_io import hdf5_errors_as_storage, replace_file
from marius_py.storage.hdf5_nodes import create_node_store, has_commit, open_node_store
from marius_py.storage.hdf5_store import Hdf5PartitionStore
from marius_py.storage.node_file import NODES_NAME, NodeFile
from marius_py.storage.protocols import Checkpoint, NodeTable
from marius_py.storage.reader import open_node_reader
from marius_py.storage.slots import SlotTable
from marius_py.storage.verify import verify_node_store
from marius_py.testing import SystemCallFaults
from marius_py.testing.store_tests import expect_version, slot_arrays, version

TABLE = NodeTable(Partitioning(2503, 3), dim=3, state_dim=2)
GENERATIONS = 2


def numbers_at(generation: int) -> list[int]:
    """Which version each partition has in a generation: all in the first, then one each."""
    return [max([1, *(g for g in range(2, generation + 1) if g % 3 == part)]) for part in range(3)]


def run(folder: Path) -> None:
    """Create or resume, and go on to the last generation: what a trainer does to its store."""
    is_old = has_commit(folder)
    with open_node_store(folder) if is_old else create_node_store(folder, TABLE, spare_slots=1) as store:
        for generation in range(store.generation + 1, GENERATIONS + 1):
            for part in range(3):
                if generation == 1 or generation % 3 == part:
                    store.write(part, *version(TABLE, part, generation))
            store.commit(Checkpoint({"relations": np.full(4, generation)}, {"number": generation}))
        store.read_into(0, *slot_arrays(TABLE))
    with open_node_reader(folder) as reader:
        reader.read_rows(0, 2503)


def check(folder: Path, at_least: int) -> None:
    """The store is whole, at a generation that was committed, and nothing lies about."""
    with open_node_store(folder) as store:
        assert store.generation >= at_least
        checkpoint = store.checkpoint()
        assert checkpoint is not None
        assert checkpoint.meta == {"number": store.generation}
        for part, number in enumerate(numbers_at(store.generation)):
            expect_version(store, part, number)
    assert sorted(path.name for path in folder.iterdir()) == [CHECKPOINT_NAME, NODES_NAME]


def count_calls(folder: Path) -> int:
    with SystemCallFaults() as faults:
        run(folder)
    return len(faults.calls)


@pytest.mark.parametrize(
    ("code", "tear"), [(errno.ENOSPC, False), pytest.param(errno.EIO, True, marks=pytest.mark.slow)]
)
def test_fault_at_every_call(quick_folder: Path, code: int, tear: bool) -> None:
    total = count_calls(quick_folder / "clean")
    assert total > 30
    for number in range(1, total + 1):
        folder = quick_folder / str(number)
        with (
            SystemCallFaults(number, code, tear=tear) as faults,
            pytest.raises(StorageError, match=r"disk full|Input/output error") as caught,
        ):
            run(folder)
        assert caught.value.errno == code
        assert faults.calls[-1].path.split(os.sep)[-1].removesuffix(".tmp") in str(caught.value)
        if folder.exists() and has_commit(folder):
            check(folder, 1)
        run(folder)
        check(folder, GENERATIONS)


@pytest.mark.parametrize("number", [3, 8])
def test_disk_that_stays_full_leaves_nothing_of_a_creation(tmp_path: Path, number: int) -> None:
    with SystemCallFaults(number, errno.ENOSPC, every=True), pytest.raises(StorageError, match="disk full"):
        create_node_store(tmp_path / "new", TABLE, spare_slots=1)
    assert not (tmp_path / "new").exists()


def test_a_quota_and_a_disk_without_further_files_are_told_from_a_full_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where bytes are free all the same."""
    path = tmp_path / "file"
    with (
        SystemCallFaults(1, errno.EDQUOT),
        pytest.raises(StorageError, match=f"^quota exceeded: cannot open {path}.tmp; free space"),
    ):
        replace_file(path, b"content")
    disk = os.statvfs_result((4096, 4096, 1000, 1000, 1000, 50, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda folder: disk)
    with (
        SystemCallFaults(1, errno.ENOSPC),
        pytest.raises(StorageError, match=r"\(4,096,000 bytes are free, but no further file can be made\);"),
    ):
        replace_file(path, b"content")


def test_full_disk_names_the_bytes_before_filling_it(tmp_path: Path) -> None:
    disk = os.statvfs(tmp_path)
    num_nodes = disk.f_bavail * disk.f_frsize // (4 * 100) + 10_000_000
    table = NodeTable(Partitioning(num_nodes, 4), 50, 50)
    with pytest.raises(
        StorageError, match=r"disk full: .*nodes.h5.* \([\d,]+ bytes were needed, [\d,]+ bytes are free\)"
    ):
        create_node_store(tmp_path / "new", table, spare_slots=0)
    assert not (tmp_path / "new").exists()


def test_a_disk_that_says_nothing_of_its_size_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown = os.statvfs_result((512, 512, 0, 0, 0, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: unknown)
    run(tmp_path / "s")
    check(tmp_path / "s", GENERATIONS)


def test_a_disk_too_small_for_the_edges_is_left_as_it_is(tmp_path: Path) -> None:
    disk = os.statvfs(tmp_path)
    num_valid = disk.f_bavail * disk.f_frsize // 12 + 10_000_000
    with pytest.raises(
        StorageError,
        match=r"disk full: cannot create \S+edges\.h5 \([\d,]+ bytes were needed, [\d,]+ bytes",
    ):
        EdgeWriter(
            tmp_path / "edges.h5",
            Partitioning(10, 2),
            np.zeros(4, np.int64),
            num_valid=num_valid,
            num_test=0,
            degrees=np.zeros(10, np.int64),
            fingerprint="f",
        )
    assert not list(tmp_path.iterdir())


def test_a_file_that_cannot_take_its_place_is_removed(tmp_path: Path) -> None:
    (tmp_path / "result.json").mkdir()
    with pytest.raises(StorageError, match="cannot replace"):
        replace_file(tmp_path / "result.json", b"{}")
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


@pytest.mark.parametrize("number", [2, 3, 4])
def test_full_disk_names_the_bytes_of_the_whole_file(tmp_path: Path, number: int) -> None:
    """Whether the first piece, the second or the flush finds it full."""
    with (
        SystemCallFaults(number, errno.ENOSPC),
        pytest.raises(StorageError, match=r"cannot write .*\.tmp \(1,512 bytes were needed, "),
    ):
        files.write_temporary(tmp_path / CHECKPOINT_NAME, bytes(512), bytes(1000))
    assert not list(tmp_path.iterdir())


def test_existing_folder_stays_after_a_failed_creation(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with SystemCallFaults(1, errno.EIO, every=True), pytest.raises(StorageError):
        create_node_store(tmp_path, TABLE, spare_slots=1)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.fixture
def store(tmp_path: Path) -> Hdf5PartitionStore:
    with create_node_store(tmp_path / "s", TABLE, spare_slots=2) as store:
        for part in range(3):
            store.write(part, *version(TABLE, part, 0))
        store.commit(Checkpoint(meta={"number": 0}))
        yield store


def test_each_partition_whose_write_failed_must_be_written_again(store: Hdf5PartitionStore) -> None:
    for part in (0, 1):
        with SystemCallFaults(1, errno.EIO), pytest.raises(StorageError, match="cannot write"):
            store.write(part, *version(TABLE, part, 1))
    store.write(0, *version(TABLE, 0, 2))
    with pytest.raises(StorageError, match="last write of partition 1 failed"):
        store.commit(Checkpoint())
    expect_version(store, 0, 2)


def test_what_is_rolled_back_has_not_failed() -> None:
    slots = SlotTable(3, np.array([0, 1]))
    slots.claim(1)
    slots.rollback()
    assert slots.current(1) == 1
    assert slots.num_free() == 1


def names_of_a_commit(store: Hdf5PartitionStore) -> list[str]:
    with SystemCallFaults() as faults:
        store.commit(Checkpoint(meta={"number": 0}))
    return [call.name for call in faults.calls]


def test_order_of_a_commit(store: Hdf5PartitionStore) -> None:
    assert names_of_a_commit(store) == [
        "fdatasync",
        "open",
        "pwritev",
        "pwritev",
        "fsync",
        "rename",
        "open",
        "fsync",
    ]


@pytest.mark.parametrize("call", ["pwritev", "fsync"])
def test_failed_manifest_can_be_committed_again(store: Hdf5PartitionStore, call: str) -> None:
    number = names_of_a_commit(store).index(call) + 1
    store.write(1, *version(TABLE, 1, 1))
    with SystemCallFaults(number, errno.ENOSPC), pytest.raises(StorageError, match="disk full"):
        store.commit(Checkpoint(meta={"number": 1}))
    assert not list(store.folder.glob("*.tmp"))
    assert store.free_slots() == 1
    expect_version(store, 1, 1)
    store.commit(Checkpoint(meta={"number": 1}))
    store.close()
    with open_node_store(store.folder) as again:
        expect_version(again, 1, 1)


@pytest.mark.parametrize("number", [1, 6, 8])
def test_after_a_failed_flush_or_rename_the_store_takes_no_more(
    store: Hdf5PartitionStore, number: int
) -> None:
    store.write(1, *version(TABLE, 1, 1))
    with SystemCallFaults(number, errno.EIO), pytest.raises(StorageError, match="Input/output error"):
        store.commit(Checkpoint(meta={"number": 1}))
    for attempt in (
        lambda: store.write(0, *version(TABLE, 0, 1)),
        lambda: store.commit(Checkpoint()),
    ):
        with pytest.raises(StorageError, match=r"takes no more writes.*Input/output error.*open it again"):
            attempt()
    store.close()
    with open_node_store(store.folder) as again:
        is_new = again.checkpoint().meta == {"number": 1}
        assert is_new == (number == 8)
        expect_version(again, 1, int(is_new))


@pytest.mark.parametrize("operation", ["write", "read"])
def test_a_store_closed_under_a_transfer_that_hangs_is_nobody_elses_until_it_ends(
    store: Hdf5PartitionStore, operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its slot would be another version's by then, its descriptor another file's."""
    hangs, go, real = threading.Event(), threading.Event(), getattr(NodeFile, f"{operation}_slot")

    def hang(self: NodeFile, *words: Any) -> int:
        hangs.set()
        assert go.wait(10)
        moved: int = real(self, *words)
        return moved

    monkeypatch.setattr(NodeFile, f"{operation}_slot", hang)
    move = store.write if operation == "write" else store.read_into
    thread = threading.Thread(target=move, args=(1, *version(TABLE, 1, 1)))
    thread.start()
    assert hangs.wait(10)
    store.close()
    store.close()
    with pytest.raises(StorageError, match="is closed"):
        store.write(0, *version(TABLE, 0, 1))
    with pytest.raises(StorageError, match=rf"in use: this process \({os.getpid()}\) "):
        open_node_store(store.folder)
    go.set()
    thread.join(10)
    assert not thread.is_alive()
    monkeypatch.undo()
    with open_node_store(store.folder) as again:
        for part in range(3):
            expect_version(again, part, 0)


def test_failed_write_is_forgotten_by_the_next_opening(store: Hdf5PartitionStore) -> None:
    with (
        SystemCallFaults(1, errno.ENOSPC),
        pytest.raises(StorageError, match=r"disk full.*nodes.h5 \(12,288 bytes"),
    ):
        store.write(1, *version(TABLE, 1, 1))
    with pytest.raises(StorageError, match="last write of partition 1 failed"):
        store.read_into(1, *slot_arrays(TABLE))
    store.close()
    with open_node_store(store.folder) as again:
        expect_version(again, 1, 0)
        assert again.free_slots() == 2


@pytest.mark.parametrize("limit", [1, 4096, 5000])
def test_short_transfers_are_continued(store: Hdf5PartitionStore, limit: int) -> None:
    arrays = version(TABLE, 0, 1)
    if limit % 4096:  # direct transfers move whole sectors only
        store._nodes._direct, direct = None, store._nodes._direct
    calls: list[int] = []

    def hook(name: str, path: str, size: int) -> int:
        calls.append(size)
        return min(size, max(limit, size // 50)) if limit % 4096 else min(size, limit)

    previous = files.set_call_hook(hook)
    try:
        store.write(0, *arrays)
        expect_version(store, 0, 1)
    finally:
        files.set_call_hook(previous)
        if limit % 4096:
            store._nodes._direct = direct
    assert len(calls) > 9


def test_calls_over_the_limit_are_split(store: Hdf5PartitionStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "CALL_LIMIT", 8192)
    with SystemCallFaults() as faults:
        store.write(0, *version(TABLE, 0, 1))
    assert [call.size for call in faults.calls] == [8192, 4096, 8192]
    expect_version(store, 0, 1)


def test_one_call_a_tensor(store: Hdf5PartitionStore) -> None:
    arrays = version(TABLE, 0, 1)
    with SystemCallFaults() as faults:
        store.write(0, *arrays)
        store.read_into(0, *arrays)
    assert [call.name for call in faults.calls] == ["pwritev"] * 2 + ["preadv"] * 2


def test_without_direct_transfers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_file.files, "open_direct", lambda path, flags: None)
    run(tmp_path / "s")
    with open_node_store(tmp_path / "s") as store:
        assert store._nodes._direct is None
    check(tmp_path / "s", GENERATIONS)


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL])
def test_without_reserved_space(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A file system that cannot: files have their whole length all the same, and the log says so."""

    def refused(descriptor: int, offset: int, size: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "posix_fallocate", refused)
    caplog.set_level("INFO", "marius_py.storage.files")
    run(tmp_path / "s")
    check(tmp_path / "s", GENERATIONS)
    (tmp_path / "edges.tsv").write_text("".join(f"a{i}\tr\tb{i}\n" for i in range(50)), encoding="utf-8")
    assert prepare(tmp_path / "edges.tsv", tmp_path / "graph").num_nodes == 100
    said = [one.split(": ") for one in caplog.messages if "reserves no space" in one]
    assert [Path(path).name for path, _ in said] == [f"{NODES_NAME}.tmp", "edges.h5"]


def test_without_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(StorageError, match=r"^disk full: cannot reserve space for .*nodes\.h5"):
        run(tmp_path / "s")
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(("number", "action"), [(2, "reserve space for"), (3, "flush")])
def test_the_call_that_fails_when_space_is_reserved_is_told(tmp_path: Path, number: int, action: str) -> None:
    (tmp_path / "f").touch()
    with SystemCallFaults(number, errno.EIO) as faults, pytest.raises(StorageError) as caught:
        files.reserve(tmp_path / "f", 4096)
    assert [call.name for call in faults.calls] == ["open", "fallocate", "fsync"][:number]
    assert str(caught.value) == f"cannot {action} {tmp_path / 'f'}: Input/output error"


@pytest.mark.parametrize("operation", ["write", "read"])
def test_direct_transfers_that_are_refused_late(store: Hdf5PartitionStore, operation: str) -> None:
    if store._nodes._direct is None:  # refused at the opening: any descriptor may refuse a transfer
        store._nodes._direct = os.dup(store._nodes._buffered)
    with SystemCallFaults(1, errno.EINVAL):
        if operation == "write":
            store.write(0, *version(TABLE, 0, 1))
        else:
            expect_version(store, 0, 0)
    assert store._nodes._direct is None
    expect_version(store, 0, int(operation == "write"))


def test_refused_buffered_transfers_are_errors(store: Hdf5PartitionStore) -> None:
    store._nodes._direct, direct = None, store._nodes._direct
    try:
        for operation in (store.write, store.read_into):
            with SystemCallFaults(1, errno.EINVAL), pytest.raises(StorageError, match="Invalid argument"):
                operation(1 if operation == store.write else 0, *version(TABLE, 0, 1))
    finally:
        store._nodes._direct = direct
    with (
        open_node_reader(store.folder) as reader,
        SystemCallFaults(1, errno.EINVAL),
        pytest.raises(StorageError, match="Invalid argument"),
    ):
        reader.read_rows(0, 5)


CLOSED = """
import resource, signal, sys
from pathlib import Path
import numpy as np
from marius_py.errors import StorageError
from marius_py.partitioning import Partitioning
from marius_py.storage.edge_writer import EdgeWriter
from marius_py.storage.node_file import create_node_file
from marius_py.storage.protocols import NodeTable
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
folder, ranges = Path(sys.argv[2]), Partitioning(20_000, 4)
for make in (
    lambda: create_node_file(folder / "nodes.h5", NodeTable(ranges, 8, 8), 8, "a" * 32),
    lambda: EdgeWriter(folder / "edges.h5", ranges, np.full(16, 500), num_valid=0, num_test=0,
                       degrees=np.zeros(20_000, np.int64), fingerprint="f"),
):
    try:
        make()
    except StorageError as error:
        print(error.errno, error)
"""


@pytest.mark.parametrize("limit", [3_000, 60_000])
def test_a_write_that_fails_while_hdf5_closes_the_file(limit: int, tmp_path: Path) -> None:
    command = [sys.executable, "-c", CLOSED, str(limit), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    too_large = f"{errno.EFBIG} cannot %s {tmp_path}/%s: {os.strerror(errno.EFBIG)}"
    assert done.stdout.splitlines() == [too_large % ("create", "nodes.h5"), too_large % ("write", "edges.h5")]
    assert not (tmp_path / "nodes.h5").exists()


@pytest.mark.parametrize("where", ["system", "hdf5"])
def test_a_file_that_may_not_be_read_is_not_called_damaged(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "s"
    run(folder)
    number = errno.EACCES if where == "system" else errno.EMFILE
    if where == "hdf5":

        def opened(*_: object, **__: object) -> None:
            raise OSError(f"Unable to open file (name = 'nodes.h5', errno = {number}, flags = 0)")

        monkeypatch.setattr("h5py.File", opened)
        with pytest.raises(StorageError, match=os.strerror(number)) as caught:
            node_file.read_facts(folder / NODES_NAME)
        assert caught.value.errno == number
        return

    def refuse(call: str, path: str, size: int) -> int:
        if call == "open" and path.endswith(NODES_NAME):
            raise PermissionError(number, os.strerror(number))
        return size

    before = files.set_call_hook(refuse)
    try:
        findings = verify_node_store(folder)
    finally:
        files.set_call_hook(before)
    assert [one.problem for one in findings] == [f"cannot open {folder / NODES_NAME}: Permission denied"]
    assert findings[0].label == "UNREAD"
    assert "restore" not in findings[0].remedy


@pytest.mark.parametrize("name", [CHECKPOINT_NAME, NODES_NAME])
@pytest.mark.parametrize(("call", "code"), [("open", errno.EMFILE), ("preadv", errno.EIO)])
def test_what_the_system_refuses_at_any_moment_is_unread(
    name: str, call: str, code: int, tmp_path: Path
) -> None:
    folder = tmp_path / "s"
    run(folder)
    with SystemCallFaults() as faults:
        assert verify_node_store(folder) == []
    asked = [
        number
        for number, made in enumerate(faults.calls, 1)
        if made.name == call and made.path.endswith(name)
    ]
    assert len(asked) >= 3
    for number in asked:
        with SystemCallFaults(number, code):
            findings = verify_node_store(folder)
        assert [one.label for one in findings] == ["UNREAD"]
        assert findings[0].file == str(folder / name)
        assert os.strerror(code) in findings[0].problem
        assert findings[0].remedy == "see that it can be read, then check again"


def test_a_partition_that_is_damaged_comes_before_one_that_is_unread(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    run(folder)
    with open_node_reader(folder) as reader:
        place = reader._nodes._place(0, reader._slot(2))
    with (folder / NODES_NAME).open("r+b") as file:
        file.seek(place)
        file.write(b"\xff" * 8)
    with SystemCallFaults() as faults:
        verify_node_store(folder)
    first = [call.name == "preadv" and call.path.endswith(NODES_NAME) for call in faults.calls].index(True)
    with SystemCallFaults(first + 1, errno.EIO):
        findings = verify_node_store(folder)
    assert [(one.label, one.partition) for one in findings] == [("DAMAGED", 2), ("UNREAD", 0)]
    assert "1 of 3 partitions are whole" in findings[0].remedy


HDF5_READ = (
    "Unable to synchronously open object (file read failed: time = Tue Nov 24 02:01:02 2026\n, filename = "
    "'x', file descriptor = 5, errno = 5, error message = 'Input/output error', buf = 0x3bb7a, offset = 96)"
)
"""What HDF5 says of an object that the disk does not give."""


@pytest.mark.parametrize("kind", [KeyError, RuntimeError])
@pytest.mark.parametrize("what", ["nodes", "edges"])
def test_a_read_that_fails_inside_hdf5_is_the_systems_error(
    kind: type[Exception], what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if what == "nodes":
        run(tmp_path / "s")
        path, read = tmp_path / "s" / NODES_NAME, node_file.read_facts
    else:
        path, read = tmp_path / "edges.h5", edge_layout.read_layout
        path.write_bytes(b"")

    def opened(*_: object, **__: object) -> None:
        raise kind(HDF5_READ)

    monkeypatch.setattr("h5py.File", opened)
    with pytest.raises(StorageError) as caught:
        read(path)
    assert str(caught.value) == f"cannot open {path}: Input/output error"
    assert caught.value.errno == errno.EIO


def test_a_missing_object_is_said_in_plain_words(tmp_path: Path) -> None:
    with (
        pytest.raises(StorageError, match=r"cannot write .*/e.h5: no object\Z"),
        hdf5_errors_as_storage("write", tmp_path / "e.h5"),
    ):
        raise KeyError("no\nobject")
    with pytest.raises(StorageError) as caught, hdf5_errors_as_storage("write", tmp_path / "e.h5"):
        raise KeyError(HDF5_READ)
    assert str(caught.value) == f"cannot write {tmp_path}/e.h5: Input/output error"


def test_only_what_is_there_cannot_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A file system that is read-only refuses both."""

    def refuse(path: Path, *, missing_ok: bool) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    (tmp_path / "there").touch()
    monkeypatch.setattr(Path, "unlink", refuse)
    for name in ("there", "gone"):
        files.remove(tmp_path / name)
    assert caplog.messages == [f"cannot remove {tmp_path / 'there'}: Read-only file system"]
