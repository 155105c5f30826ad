"""Public data sets: a disk that fails is told apart from an archive that is damaged."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import tarfile
from pathlib import Path

import pytest

from marius_py.datasets import Dataset, fetch
from marius_py.errors import StorageError


def test_a_full_disk_is_no_damaged_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tarfile.open(tmp_path / "set.tar", "w") as archive:
        archive.addfile(tarfile.TarInfo("train.txt"), io.BytesIO())
    dataset = Dataset(
        name="Set",
        url="",
        archive="set.tar",
        folder=tmp_path,
        members={"train": "train.txt"},
        sha256={"train": ""},
    )
    plain = Path.open

    def full(path: Path, *arguments: str) -> object:
        if path.suffix == ".part":
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return plain(path, *arguments)

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(StorageError, match=r"unpacking .*set\.tar failed: .*No space left on device"):
        fetch(dataset)


def test_two_that_fetch_at_once_write_files_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "origin").mkdir()
    with tarfile.open(tmp_path / "origin" / "set.tar", "w") as archive:
        archive.addfile(tarfile.TarInfo("train.txt"), io.BytesIO())
    dataset = Dataset(
        name="Set",
        url=(tmp_path / "origin" / "set.tar").as_uri(),
        archive="set.tar",
        folder=tmp_path / "here",
        members={"train": "train.txt"},
        sha256={"train": hashlib.sha256(b"").hexdigest()},
    )
    mine = os.getpid()

    def other(done: int, total: int | None) -> None:
        """Another process comes and goes while this one reads."""
        monkeypatch.setattr(os, "getpid", lambda: mine + 1)
        assert fetch(dataset)["train"].is_file()
        monkeypatch.setattr(os, "getpid", lambda: mine)

    assert fetch(dataset, other)["train"].read_bytes() == b""
    assert sorted(path.name for path in dataset.folder.iterdir()) == ["set.tar", "train.txt"]
