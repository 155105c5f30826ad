"""Public data sets as marius-prepare fetches them: unpacked, checked, or refused."""

from __future__ import annotations

import hashlib
import tarfile
from pathlib import Path

import pytest

from marius_py import cli
from marius_py.datasets import Dataset, fetch
from marius_py.errors import (
    FormatError,
    StorageError,
)


def _archive(folder: Path, **files: str) -> Dataset:
    source = folder / "source"
    source.mkdir()
    with tarfile.open(folder / "set.tar.gz", "w:gz") as archive:
        for split, text in files.items():
            (source / f"{split}.txt").write_text(text)
            archive.add(source / f"{split}.txt", f"./{split}.txt")
    return Dataset(
        name="Set",
        url=(folder / "set.tar.gz").as_uri(),
        archive="set.tar.gz",
        folder=folder / "data",
        members={split: f"{split}.txt" for split in ("train", "valid", "test")},
        sha256={split: hashlib.sha256(text.encode()).hexdigest() for split, text in files.items()},
    )


def test_data_set_is_fetched_unpacked_and_checked(tmp_path: Path) -> None:
    dataset = _archive(tmp_path, train="a\tr\tb\n", valid="a\tr\tc\n", test="b\tr\tc\n")
    calls: list[tuple[int, int | None]] = []
    paths = fetch(dataset, lambda done, total: calls.append((done, total)))
    assert {split: path.read_text() for split, path in paths.items()}["valid"] == "a\tr\tc\n"
    assert calls[-1][0] == (tmp_path / "set.tar.gz").stat().st_size
    (tmp_path / "set.tar.gz").unlink()
    assert fetch(dataset) == paths
    assert not list((tmp_path / "data").glob("*.part"))
    paths["test"].write_text("b\tr\ta\n")
    with pytest.raises(FormatError, match="not the published test file"):
        fetch(dataset)


def test_an_output_that_is_taken_is_refused_before_anything_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("marius_py.datasets.fetch", lambda *given: pytest.fail("fetched"))
    (tmp_path / "file").touch()
    words = ["dataset=wn18rr", f"dataset.folder={tmp_path / 'data'}", f"output={tmp_path / 'file'}"]
    assert cli.prepare(words) == 2
    assert "file is a file; choose a folder" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


def test_data_set_without_a_network_says_where_to_put_the_file(tmp_path: Path) -> None:
    dataset = _archive(tmp_path, train="a\tr\tb\n", valid="a\tr\tc\n", test="b\tr\tc\n")
    archive = tmp_path / "set.tar.gz"
    moved = archive.rename(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match="Without a network") as caught:
        fetch(dataset)
    assert str(tmp_path / "data" / "set.tar.gz") in str(caught.value)
    moved.rename(tmp_path / "data" / "set.tar.gz")
    assert len(fetch(dataset)) == 3


@pytest.mark.parametrize("content", [b"", b"no archive", b"\x1f\x8b\x08\x00cut"])
def test_damaged_archive(content: bytes, tmp_path: Path) -> None:
    dataset = _archive(tmp_path, train="a\tr\tb\n", valid="a\tr\tc\n", test="b\tr\tc\n")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "set.tar.gz").write_bytes(content)
    with pytest.raises(FormatError, match=r"set\.tar\.gz"):
        fetch(dataset)


def test_archive_that_lacks_a_file(tmp_path: Path) -> None:
    dataset = _archive(tmp_path, train="a\tr\tb\n", valid="a\tr\tc\n")
    with pytest.raises(FormatError, match=r"lacks test\.txt"):
        fetch(dataset)
