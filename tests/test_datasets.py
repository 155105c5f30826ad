"""Public data sets: a disk that fails is told apart from an archive that is damaged."""

from __future__ import annotations

import errno
import hashlib
import http.client
import io
import os
import random
import tarfile
from pathlib import Path
from typing import ClassVar

import pytest

from marius_py.datasets import Dataset, fetch
from marius_py.errors import FormatError, StorageError


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
        if path.suffix == ".tmp":
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


def test_what_a_killed_process_had_fetched_is_removed(tmp_path: Path) -> None:
    left = tmp_path / f".set.tar.{2**22 + 1}.tmp"  # above the largest process number
    left.write_bytes(b"half")
    with tarfile.open(tmp_path / "origin.tar", "w") as archive:
        archive.addfile(tarfile.TarInfo("train.txt"), io.BytesIO())
    url, sha256 = (tmp_path / "origin.tar").as_uri(), hashlib.sha256(b"").hexdigest()
    fetch(Dataset("Set", url, "set.tar", tmp_path, {"train": "train.txt"}, {"train": sha256}))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["origin.tar", "set.tar", "train.txt"]


def test_a_connection_that_breaks_is_told_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(io.BytesIO):
        headers: ClassVar[dict[str, str]] = {}

        def read(self, *_: object) -> bytes:
            raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")

    monkeypatch.setattr("urllib.request.urlopen", lambda url, timeout: Broken())
    dataset = Dataset("Set", "http://set", "set.tar", tmp_path / "new", {"train": "t"}, {"train": ""})
    with pytest.raises(StorageError, match=r"^Set could not be fetched from http://set \(.*reset by peer\)"):
        fetch(dataset)
    assert not list(dataset.folder.iterdir())


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (http.client.IncompleteRead(b""), r"IncompleteRead\(0 bytes read\)"),  # of a reply in chunks
        (http.client.BadStatusLine("SSH-2.0\r\n"), "SSH-2.0"),
        (http.client.ImproperConnectionState(), "ImproperConnectionState"),
    ],
)
def test_a_reply_that_is_no_whole_http_is_told_as_such(
    error: Exception, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(url: str, timeout: float) -> None:
        raise error

    monkeypatch.setattr("urllib.request.urlopen", failing)
    dataset = Dataset("Set", "http://set", "set.tar", tmp_path / "new", {"train": "t"}, {"train": ""})
    with pytest.raises(StorageError, match=rf"^Set could not be fetched from http://set \({reason}\)\."):
        fetch(dataset)
    assert not list(dataset.folder.iterdir())


def _archive(folder: Path, compression: str, files: dict[str, bytes]) -> Path:
    path = folder / "set.tar"
    with tarfile.open(path, f"w:{compression}") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def _set(folder: Path, members: dict[str, str], files: dict[str, bytes]) -> Dataset:
    sha256 = {split: hashlib.sha256(files[name]).hexdigest() for split, name in members.items()}
    return Dataset("Set", "", "set.tar", folder, members, sha256)


@pytest.mark.parametrize("compression", ["", "gz", "bz2", "xz"])
def test_a_damaged_archive_is_refused_in_one_line(compression: str, tmp_path: Path) -> None:
    """Or unpacked whole, where what is damaged is no part of the file."""
    files = {"train.txt": bytes(random.Random(0).choices(b"abcdefgh", k=20_000))}
    path = _archive(tmp_path, compression, files)
    whole, said = path.read_bytes(), []
    for place in range(0, len(whole), 97):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :])
        try:
            fetch(_set(tmp_path, {"train": "train.txt"}, files))
        except FormatError as error:
            said.append(str(error))
        (tmp_path / "train.txt").unlink(missing_ok=True)
        assert list(tmp_path.iterdir()) == [path]
    assert len(said) * 97 > len(whole) // 2
    assert "\n" not in "".join(said)


def test_a_name_with_folders_is_that_of_the_archive(tmp_path: Path) -> None:
    """Two splits may have the same last name; another folder's file of that name is none of them."""
    files = {f"set/{name}/edges.txt": name.encode() for name in ("other", "train", "test")}
    members = {split: f"{split}/edges.txt" for split in ("train", "test")}
    _archive(tmp_path, "gz", files)
    wanted = {name.removeprefix("set/"): content for name, content in files.items()}
    paths = fetch(_set(tmp_path, members, wanted))
    assert {split: path.read_text() for split, path in paths.items()} == {"train": "train", "test": "test"}
