"""Files that appear whole or not at all: what is left of a killed process, and errors of the system."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from marius_py.errors import ConfigError, StorageError
from marius_py.storage import replacing
from marius_py.storage.replacing import Replacing
from marius_py.storage.targets import check_target
from marius_py.testing.system_calls import SystemCallFaults


def test_all_targets_appear_together(tmp_path: Path) -> None:
    targets = [tmp_path / "a b.csv", tmp_path / "second"]
    targets[0].write_text("old")
    with Replacing(targets) as temporary:
        for target in targets:
            temporary[target].write_text(f"new {target.name}")
        assert targets[0].read_text() == "old"
        assert not targets[1].exists()
    assert [target.read_text() for target in targets] == ["new a b.csv", "new second"]
    assert sorted(tmp_path.iterdir()) == targets


def test_targets_are_replaced_once_their_content_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced, replace = [], Path.replace

    def checked(path: Path, target: Path) -> Path:
        flushed = {call.path for call in system.calls if call.name == "fdatasync"}
        assert set(map(str, temporary.values())) <= flushed
        replaced.append(target)
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", checked)
    targets = [tmp_path / "first", tmp_path / "second"]
    with SystemCallFaults() as system, Replacing(targets) as temporary:
        for path in temporary.values():
            path.write_text("new")
    assert replaced == targets[::-1]  # what others describe comes last


def test_of_a_link_the_file_that_it_leads_to_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    real, link = tmp_path / "far" / "real.tsv", tmp_path / "link.tsv"
    link.symlink_to(Path("far") / "real.tsv")
    for text in ("first", "second"):
        with Replacing([link]) as temporary:
            temporary[link].write_text(text)
        assert link.is_symlink()
        assert real.read_text() == text
    assert sorted(tmp_path.rglob("*")) == [real.parent, real, link]


def test_a_link_into_no_folder_is_refused(tmp_path: Path) -> None:
    link = tmp_path / "link.tsv"
    link.symlink_to(tmp_path / "none" / "real.tsv")
    with pytest.raises(ConfigError, match=f"there is no folder {tmp_path / 'none'}; create it first"):
        check_target(link, "--output link.tsv")


def test_what_a_killed_process_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    left, others = tmp_path / ".v.csv.99999.tmp", [".v.csv.tmp", ".v.csv.1x.tmp", ".w.csv.99999.tmp"]
    for name in (left.name, *others):
        (tmp_path / name).write_text("half")
    written = tmp_path / ".v.csv.88888.tmp"  # by a process that goes on
    lock = os.open(written, os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with Replacing([tmp_path / "v.csv"]):
        assert not left.exists()
    os.close(lock)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*others, written.name, "v.csv"])


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (
            OSError(28, "Can't write data (\n buf = 0x2b0"),
            StorageError,
            "No space left on device; nothing",
        ),
        (OSError("no number\n here"), StorageError, "no number here; nothing was replaced"),
        (ValueError("a name"), ValueError, "a name"),
    ],
)
def test_an_error_inside_leaves_nothing(
    tmp_path: Path, error: Exception, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        _write_half(tmp_path / "v.csv", error)
    assert list(tmp_path.iterdir()) == []


def test_what_was_replaced_before_an_error_is_said(tmp_path: Path) -> None:
    targets = [tmp_path / "first", tmp_path / "second"]
    targets[1].write_text("old")
    with pytest.raises(StorageError, match=r"writing .*first failed: .* .*second had been replaced already"):
        _write_new(targets, targets[0].mkdir)
    assert targets[1].read_text() == "new"
    assert sorted(tmp_path.iterdir()) == targets


@pytest.mark.parametrize("call", ["open", "fsync", "write"])
def test_the_file_that_failed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """Its disk need not be the others': targets may be links."""
    targets = [tmp_path / name for name in ("first", "second", "third")]
    temporary = str(tmp_path / f".second.{os.getpid()}.tmp")

    def refuse(*given: object) -> None:
        raise OSError(28, "No space left on device", temporary if call == "write" else None)

    def failing(real: Callable[..., Any]) -> Callable[..., Any]:
        return lambda path, *how: refuse() if str(path) == temporary else real(path, *how)

    if call == "open":
        monkeypatch.setattr(os, "open", failing(os.open))
    elif call == "fsync":
        monkeypatch.setattr(replacing, "sync_path", failing(replacing.sync_path))
    with pytest.raises(StorageError, match=r"^writing \S+second failed: No space .*; nothing was replaced"):
        _write_new(targets, refuse if call == "write" else lambda: None)
    assert list(tmp_path.iterdir()) == []


def test_all_files_are_named_where_nobody_says_which_failed(tmp_path: Path) -> None:
    def refuse() -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(StorageError, match=r"^writing \S+first or \S+second failed: No space"):
        _write_new([tmp_path / "first", tmp_path / "second"], refuse)


def _write_new(targets: list[Path], then: Callable[[], None]) -> None:
    with Replacing(targets) as temporary:
        for path in temporary.values():
            path.write_text("new")
        then()


def _write_half(target: Path, error: Exception) -> None:
    with Replacing([target]) as temporary:
        temporary[target].write_text("half")
        raise error


def test_a_folder_that_cannot_be_written_is_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a file system that is read-only even removing what is not there fails."""

    def refuse(*given: object, **named: object) -> int:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "open", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(StorageError, match=r"v\.csv failed: Read-only file system"):
        Replacing([tmp_path / "v.csv"]).__enter__()


def test_without_flock_the_process_in_the_name_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(descriptor: int, operation: int) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(fcntl, "flock", flock)
    gone, too_large, live = (tmp_path / f".v.csv.{pid}.tmp" for pid in (2**22 + 5, 10**30, os.getppid()))
    for path in (gone, too_large, live):
        path.write_text("half")
    with Replacing([tmp_path / "v.csv"]) as temporary:
        temporary[tmp_path / "v.csv"].write_text("whole")
    assert sorted(tmp_path.iterdir()) == [live, tmp_path / "v.csv"]
    assert (tmp_path / "v.csv").read_text() == "whole"


def test_a_target_that_another_thread_writes_is_refused_and_stays_that_threads(tmp_path: Path) -> None:
    target, other = tmp_path / "target", tmp_path / "other"
    with Replacing([target]) as temporary:
        temporary[target].write_text("whole")
        with pytest.raises(
            StorageError, match=r"writing .*target failed: another thread.*nothing was replaced"
        ):
            Replacing([other, target]).__enter__()
        assert list(tmp_path.iterdir()) == [temporary[target]]
    assert target.read_text() == "whole"
    assert list(tmp_path.iterdir()) == [target]


def test_a_temporary_file_of_the_next_writer_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a file has its target's name, another thread may write one of its own under the name before."""
    replace = Path.replace

    def replaced(path: Path, target: Path) -> Path:
        found = replace(path, target)
        path.write_text("another's")
        return found

    with Replacing([tmp_path / "target"]) as temporary:
        (path,) = temporary.values()
        path.write_text("whole")
        monkeypatch.setattr(Path, "replace", replaced)
    assert (tmp_path / "target").read_text() == "whole"
    assert path.read_text() == "another's"
