"""One writer a folder: live owners are named, dead ones do not block."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from marius_py.errors import StorageError
from marius_py.partitioning import Partitioning
from marius_py.resuming.resume import check_free
from marius_py.storage.hdf5_nodes import create_node_store, open_node_store
from marius_py.storage.lock import (
    LOCK_NAME,
    FolderLock,
    describe_owner,
    is_alive,
    is_locked,
    lock_owner,
    process_start,
)
from marius_py.storage.protocols import NodeTable
from marius_py.storage.verify import leftovers

HOLDER = """
import sys, time
from pathlib import Path
from marius_py.storage.lock import FolderLock
FolderLock(Path(sys.argv[1])).acquire()
print("locked", flush=True)
time.sleep(60)
"""

FORKER = """
import os, sys, time
from pathlib import Path
from marius_py.errors import StorageError
from marius_py.storage.lock import FolderLock
lock = FolderLock(Path(sys.argv[1]))
lock.acquire()
if os.fork() == 0:
    try:
        lock.check()
    except StorageError as error:
        assert "forked from" in str(error)
        lock.release()
        print(os.getpid(), flush=True)
time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path: Path) -> subprocess.Popen[str]:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        yield process
        process.kill()


def test_second_writer_is_refused_and_the_first_named(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    told = rf"is in use: process {holder.pid} on {socket.gethostname()} writes .*or use another folder$"
    with pytest.raises(StorageError, match=told):
        FolderLock(tmp_path).acquire()
    owner = lock_owner(tmp_path)
    assert owner is not None
    assert is_alive(owner)
    assert is_locked(tmp_path)


def test_a_pipe_in_place_of_the_lock_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / LOCK_NAME)
    assert not is_locked(tmp_path)
    assert lock_owner(tmp_path) is None
    with pytest.raises(StorageError, match=r"opening its writer.lock failed \(it is no file but a pipe\)"):
        FolderLock(tmp_path).acquire()


def test_lock_of_a_killed_process_is_taken_over(
    tmp_path: Path, holder: subprocess.Popen[str], caplog: pytest.LogCaptureFixture
) -> None:
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    owner = lock_owner(tmp_path)
    assert owner is not None
    assert not is_alive(owner)
    lock = FolderLock(tmp_path)
    with caplog.at_level(logging.WARNING):
        lock.acquire()
    assert f"taking over the lock of process {holder.pid}" in caplog.text
    assert "which is gone" in caplog.text
    lock.release()
    lock.release()
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_was_forked_does_not_hold_the_lock_of_one_that_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", FORKER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        try:
            assert is_locked(tmp_path)  # also once the child has let go of all that it has
            process.kill()
            process.wait()
            FolderLock(tmp_path).acquire()
            assert is_alive({"pid": child, "started": process_start(child), "host": socket.gethostname()})
        finally:
            process.kill()
            os.kill(child, signal.SIGKILL)


def test_the_lock_of_a_copied_folder_names_a_process_that_runs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    owner = {"pid": os.getpid(), "started": process_start(os.getpid()), "host": socket.gethostname()}
    (tmp_path / LOCK_NAME).write_text(json.dumps(owner))
    assert [finding.problem for finding in leftovers(tmp_path)] == [
        f"{tmp_path / LOCK_NAME} is left from process {os.getpid()}, which does not write here"
    ]
    lock = FolderLock(tmp_path)
    with caplog.at_level(logging.WARNING):
        lock.acquire()
    lock.release()
    assert "which does not write here" in caplog.text
    assert "which is gone" not in caplog.text


def test_the_kernel_decides_who_writes_not_the_text(tmp_path: Path) -> None:
    assert not is_locked(tmp_path)
    elsewhere = {"pid": 7, "started": 1, "host": "3f2a1bc0ffee"}
    (tmp_path / LOCK_NAME).write_text(json.dumps(elsewhere))
    assert not is_locked(tmp_path)
    lock = FolderLock(tmp_path)
    lock.acquire()
    lock.path.write_text("")
    assert is_locked(tmp_path)
    lock.release()
    assert not is_locked(tmp_path)


def test_who_looks_shuts_nobody_out(tmp_path: Path) -> None:
    """Looking takes the lock for a moment, in which another process may begin to write."""
    looking = os.open(tmp_path / LOCK_NAME, os.O_RDWR | os.O_CREAT)
    fcntl.flock(looking, fcntl.LOCK_SH)
    timer = threading.Timer(0.002, os.close, (looking,))
    timer.start()
    lock = FolderLock(tmp_path)
    lock.acquire()
    timer.join()
    lock.release()


def test_same_process_is_refused_too(tmp_path: Path) -> None:
    first, second = FolderLock(tmp_path), FolderLock(tmp_path)
    first.acquire()
    first.acquire()
    with pytest.raises(StorageError, match=rf"this process \({os.getpid()}\)"):
        second.acquire()
    first.release()
    second.acquire()
    second.release()


def test_removed_lock_file_shuts_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner before removes the file between our opening and our flock."""
    lock = FolderLock(tmp_path)
    real = fcntl.flock
    calls = []

    def flock(descriptor: int, operation: int) -> None:
        calls.append(descriptor)
        if len(calls) == 1:
            lock.path.unlink()
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    lock.acquire()
    assert len(calls) == 2
    with pytest.raises(StorageError, match="in use"):
        FolderLock(tmp_path).acquire()
    lock.release()


def test_a_folder_that_was_moved_is_not_this_writers_any_more(tmp_path: Path) -> None:
    folder, moved = tmp_path / "a", tmp_path / "b"
    folder.mkdir()
    first, second = FolderLock(folder), FolderLock(folder)
    first.acquire()
    first.check()
    folder.rename(moved)
    with pytest.raises(StorageError, match=f"{folder} is not the folder any more that this process opened"):
        first.check()
    folder.mkdir()
    second.acquire()
    with pytest.raises(StorageError, match="moved, removed or replaced"):
        first.check()
    first.release()
    with pytest.raises(StorageError, match="in use"):
        FolderLock(folder).acquire()
    second.check()
    second.release()
    assert not list(folder.iterdir())
    with pytest.raises(StorageError, match="not the folder any more"):
        second.check()


def test_a_folder_that_cannot_be_looked_at_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = FolderLock(tmp_path)
    lock.acquire()

    def stat(place: Path | int) -> os.stat_result:
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(os, "stat", stat)
    with pytest.raises(StorageError, match=f"cannot look at {lock.path}: Stale file handle"):
        lock.check()
    monkeypatch.undo()
    lock.check()
    lock.release()


def test_a_lock_file_that_was_removed_is_made_again(tmp_path: Path) -> None:
    first, second = FolderLock(tmp_path), FolderLock(tmp_path)
    first.acquire()
    first.path.unlink()
    first.check()
    with pytest.raises(StorageError, match="in use"):
        second.acquire()
    first.path.unlink()
    second.acquire()
    with pytest.raises(StorageError, match="in use"):
        first.check()
    first.release()
    second.check()
    second.release()
    assert not list(tmp_path.iterdir())


def test_without_flock_the_recorded_process_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(descriptor: int, operation: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", flock)
    lock = FolderLock(tmp_path)
    lock.acquire()
    with pytest.raises(StorageError, match=rf"in use: this process \({os.getpid()}\)"):
        FolderLock(tmp_path).acquire()
    assert is_locked(tmp_path)
    elsewhere = {"pid": 1, "started": 1, "host": "0a1b2c3d4e5f"}  # a container that is gone, for all we know
    lock.path.write_text(json.dumps(elsewhere))
    told = f"process 1 on 0a1b2c3d4e5f .*without flock hides, remove {lock.path}$"
    with pytest.raises(StorageError, match=told):
        FolderLock(tmp_path).acquire()
    with pytest.raises(StorageError, match=told):
        check_free(tmp_path, resume=True)
    recycled = {"pid": os.getpid(), "started": 1, "host": socket.gethostname()}
    lock.path.write_text(json.dumps(recycled))
    assert not is_locked(tmp_path)
    FolderLock(tmp_path).acquire()


def test_owners() -> None:
    host = socket.gethostname()
    mine = {"pid": os.getpid(), "started": process_start(os.getpid()), "host": host}
    assert is_alive(mine)
    assert not is_alive({**mine, "started": 3})
    assert is_alive({**mine, "started": 3, "host": "another"})
    assert is_alive({"pid": 1, "started": process_start(1), "host": host})
    assert process_start(2**22 + 5) is None
    assert describe_owner(mine) == f"this process ({os.getpid()})"
    for other in {**mine, "started": 3}, {**mine, "host": "another"}:
        assert describe_owner(other) == f"process {os.getpid()} on {other['host']}"


def test_the_start_of_a_process_whose_name_is_cut_within_a_character_is_known() -> None:
    """The kernel keeps 15 bytes of a program's name: of eight Cyrillic letters, seven and a half."""
    name = Path("/proc/self/comm")
    before, started = name.read_bytes(), process_start(os.getpid())
    try:
        name.write_bytes("обучение".encode()[:15])
        assert process_start(os.getpid()) == started
    finally:
        name.write_bytes(before.strip())


@pytest.mark.parametrize(
    "text", ["", "garbage", "[]", '{"pid": "x"}', '{"pid": -1}', '{"pid": true}', "\0" * 9]
)
def test_unreadable_text_is_no_owner(tmp_path: Path, text: str) -> None:
    (tmp_path / LOCK_NAME).write_text(text)
    assert lock_owner(tmp_path) is None
    lock = FolderLock(tmp_path)
    lock.acquire()
    lock.release()


def test_stores_hold_the_lock(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    table = NodeTable(Partitioning(10, 2), 2, 0)
    with create_node_store(folder, table, spare_slots=0):
        for attempt in (
            lambda: open_node_store(folder),
            lambda: create_node_store(folder, table, spare_slots=0),
        ):
            with pytest.raises(StorageError, match=rf"in use: this process \({os.getpid()}\)"):
                attempt()
    open_node_store(folder).close()
    assert not (folder / LOCK_NAME).exists()


def test_an_interrupt_leaves_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the process of a notebook, which goes on, could not resume the run."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(FolderLock, "_is_named", lambda self, descriptor: True)
        patch.setattr("marius_py.storage.lock._identity", interrupted)
        with pytest.raises(KeyboardInterrupt):
            FolderLock(tmp_path).acquire()
    store = create_node_store(tmp_path, NodeTable(Partitioning(10, 2), 2, 0), spare_slots=0)
    with monkeypatch.context() as patch:
        patch.setattr("marius_py.workers.Workers.shutdown", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.close()
    FolderLock(tmp_path).acquire()


def test_folder_that_cannot_be_locked(tmp_path: Path) -> None:
    with pytest.raises(
        StorageError, match=r"missing cannot be written to: opening its writer\.lock failed \(No such file"
    ):
        FolderLock(tmp_path / "missing").acquire()


def test_others_of_a_group_may_take_over_a_lock(tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        lock = FolderLock(tmp_path)
        lock.acquire()
        assert (tmp_path / LOCK_NAME).stat().st_mode & 0o777 == 0o664
        lock.release()
    finally:
        os.umask(before)
