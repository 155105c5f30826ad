"""What `output` may be, where the finished folder comes, and what others that prepare it are told."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from marius_py.errors import ConfigError, StorageError
from marius_py.graph.manifest import EDGES_FILE, GRAPH_FILE
from marius_py.prepare import folder as folders
from marius_py.prepare.folder import building, check_output
from marius_py.storage import folders as replacing


def build(output: Path, text: str = "new", *, overwrite: bool = False) -> None:
    with building(output, overwrite) as folder:
        (folder / GRAPH_FILE).write_text(text)


def test_names_of_folders_are_taken_literally(tmp_path: Path) -> None:
    stranger = tmp_path / ".ab.preparing-1"
    stranger.mkdir()
    with building(tmp_path / "[a]b*", overwrite=False) as folder:
        (folder / "x").write_text("x")
    assert stranger.exists()
    assert (tmp_path / "[a]b*" / "x").exists()


def test_a_link_stays_and_what_it_leads_to_is_made(tmp_path: Path) -> None:
    disk, here = tmp_path / "disk", tmp_path / "here"
    (disk / "empty").mkdir(parents=True)
    here.mkdir()
    for name in ("empty", "not there yet"):
        (here / name).symlink_to(disk / name)
        build(here / name, "old")
        with pytest.raises(ConfigError, match="holds a prepared graph already"):
            build(here / name)
        build(here / name, overwrite=True)
        assert (disk / name / GRAPH_FILE).read_text() == "new"
        assert (here / name).is_symlink()
    for folder in (disk, here):
        assert sorted(path.name for path in folder.iterdir()) == ["empty", "not there yet"]


def test_what_lies_beside_a_graph_is_not_removed_with_it(tmp_path: Path) -> None:
    output = tmp_path / "g"
    build(output, "old")
    for name in (EDGES_FILE, f"{GRAPH_FILE}.tmp"):
        (output / name).write_text("of the graph")
    build(output, overwrite=True)
    (output / "run1").mkdir()
    for name in "abcde":
        (output / f"{name}.tsv").write_text("precious")
    message = r"beside it a\.tsv, b\.tsv, c\.tsv, d\.tsv, e\.tsv, …: overwrite=true would remove.* move it"
    with pytest.raises(ConfigError, match=message):
        build(output, overwrite=True)
    assert (output / "e.tsv").read_text() == "precious"
    assert [path.name for path in tmp_path.iterdir()] == ["g"]


def test_the_current_folder_and_those_around_it_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "a/b")
    monkeypatch.chdir(tmp_path / "a/b")
    for output in (Path("."), Path(".."), tmp_path / "link", Path("../b")):
        with pytest.raises(ConfigError, match=r"is the current folder or one around it.* such as .*graph"):
            build(output)
    build(Path("g"))
    build(Path("../b/g"), overwrite=True)
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    build(tmp_path / "a/b/g", overwrite=True)


def test_a_mount_point_is_refused_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounted = tmp_path / "out"
    mounted.mkdir()
    (tmp_path / "link").symlink_to(mounted)
    monkeypatch.setattr(folders, "_mount_of", lambda folder: f"mnt_id:\t{folder == mounted:d}")
    for output in (mounted, tmp_path / "link"):
        with pytest.raises(ConfigError, match=f"output {mounted} is a mount point.* such as {mounted}/graph"):
            build(output)
    build(mounted / "graph")
    assert [path.name for path in mounted.iterdir()] == ["graph"]


def test_mount_points_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(folder: Path) -> str:
        raise FileNotFoundError

    for _ in range(2):
        assert folders._is_mount_point(Path("/proc"))
        assert not folders._is_mount_point(tmp_path)
        monkeypatch.setattr(folders, "_mount_of", unknown)


def test_what_appears_at_the_last_moment_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the last look at the output and the rename."""
    flush = replacing.sync_folder

    def flushed(folder: Path) -> None:
        flush(folder)
        if not (tmp_path / "g").exists():
            (tmp_path / "g").mkdir()
            (tmp_path / "g" / "theirs").write_text("whole")

    monkeypatch.setattr(replacing, "sync_folder", flushed)
    with pytest.raises(StorageError, match=r"write .*/g: Directory not empty"):
        build(tmp_path / "g")
    assert (tmp_path / "g" / "theirs").read_text() == "whole"
    assert [path.name for path in tmp_path.iterdir()] == ["g"]


def test_without_flock_the_process_in_the_name_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(descriptor: int, operation: int) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(fcntl, "flock", flock)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    left, live = (tmp_path / f".g.preparing-{pid}-00ff" for pid in (gone.pid, os.getppid()))
    left.mkdir()
    build(tmp_path / "g")
    assert [path.name for path in tmp_path.iterdir()] == ["g"]
    live.mkdir()
    told = f"another process or thread is preparing .*; wait for it; if it has ended, .* remove {live}$"
    with pytest.raises(StorageError, match=told):
        build(tmp_path / "g", overwrite=True)
    assert live.exists()


def test_an_output_that_is_not_utf_8(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not UTF-8, as the path of a Parquet file must be"):
        build(tmp_path / os.fsdecode(b"g\xff"))
    assert os.listdir(tmp_path) == []


def test_an_output_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConfigError, match=f"lies below {tmp_path}/file, which is a file; choose a folder"):
        build(tmp_path / "file" / "new" / "g")
    assert os.listdir(tmp_path) == ["file"]


def test_an_output_in_a_folder_that_may_not_be_entered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stat(path: Path, **_: bool) -> os.stat_result:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "stat", stat)
    with pytest.raises(StorageError, match=f"cannot look at output {tmp_path}/g: Permission denied"):
        check_output(tmp_path / "g", False)


def test_a_folder_that_cannot_be_opened_is_not_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = os.open

    def opened(path: Path, *arguments: int, **named: int) -> int:
        if ".preparing-" in Path(path).name:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return plain(path, *arguments, **named)

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", opened)
        with pytest.raises(StorageError, match=r"cannot write .*/g: Too many open files"):
            build(tmp_path / "g")
        left = os.listdir(tmp_path)
    assert left == []


def test_a_graph_that_is_read_only_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build(tmp_path / "g", "old")
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path / "g" or not mode & os.W_OK)
    with pytest.raises(ConfigError, match="g holds a prepared graph and is read-only: make it writable"):
        build(tmp_path / "g", overwrite=True)
    assert (tmp_path / "g" / GRAPH_FILE).read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["g"]
