"""Public data sets (floor 4): fetched once, unpacked, checked; then ordinary files for `prepare`.

In: a description (address, members, checksums). Out: paths of edge lists on this machine. A file that is
already in its folder is checked, not fetched, so a machine without a network needs only the archive.
"""

from __future__ import annotations

import hashlib
import logging
import lzma
import shutil
import tarfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import IO

from marius_py.errors import FormatError, StorageError
from marius_py.storage.replacing import Replacing

log = logging.getLogger(__name__)

BLOCK_BYTES = 1 << 20
TIMEOUT_S = 30.0

_DAMAGE = (tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, OSError)
"""What reading a tar archive raises where it is damaged; an OSError with a number is the system's."""


@dataclass(frozen=True, slots=True)
class Dataset:
    """A data set in a tar archive.

    Attributes:
        name: what messages call it.
        url: address of the archive.
        archive: file name of the archive in `folder`.
        folder: where the archive and its files lie.
        members: split ("train", "valid", "test") → file name in `folder`, and of a member of the archive,
            whose own path may have further folders before it.
        sha256: split → SHA-256 of that file, hexadecimal.
    """

    name: str
    url: str
    archive: str
    folder: Path
    members: Mapping[str, str]
    sha256: Mapping[str, str]


def fetch(dataset: Dataset, progress: Callable[[int, int | None], None] | None = None) -> dict[str, Path]:
    """Provide the files of a data set.

    Args:
        dataset: what to provide.
        progress: called with bytes fetched so far and in all (None if unknown).

    Returns:
        Split → path of its edge list.

    Raises:
        StorageError: no network, or the folder cannot be written; says where to put the file by hand.
        FormatError: a file is not the published one, by its checksum.
    """
    paths = {split: dataset.folder / name for split, name in dataset.members.items()}
    if not all(path.is_file() for path in paths.values()):
        archive = dataset.folder / dataset.archive
        if not archive.is_file():
            _download(dataset, archive, progress)
        _unpack(dataset, archive, paths)
    for split, path in paths.items():
        found = _sha256(path)
        if found != dataset.sha256[split]:
            raise FormatError(
                f"{path} is not the published {split} file of {dataset.name}: its SHA-256 is {found}, "
                f"expected {dataset.sha256[split]}; remove it and {dataset.archive} beside it, "
                "and run again"
            )
    return paths


@contextmanager
def _appearing(path: Path) -> Iterator[IO[bytes]]:
    """Give a file to write that appears at `path` whole or not at all.

    What is raised in the block is raised as it is.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    failure: OSError | None = None
    try:
        with Replacing([path]) as temporary, temporary[path].open("wb") as sink:
            try:
                yield sink
            except OSError as error:
                failure = error
                raise
    except StorageError:
        if failure is not None:
            raise failure from None
        raise


def _download(dataset: Dataset, target: Path, progress: Callable[[int, int | None], None] | None) -> None:
    log.info("fetching %s from %s", dataset.name, dataset.url)
    try:
        with _appearing(target) as sink, urllib.request.urlopen(dataset.url, timeout=TIMEOUT_S) as source:
            length = source.headers.get("Content-Length")
            total = int(length) if length else None
            done = 0
            while block := source.read(BLOCK_BYTES):
                sink.write(block)
                done += len(block)
                if progress is not None:
                    progress(done, total)
            if total is not None and done != total:
                raise urllib.error.URLError(f"only {done} of {total} bytes arrived")
    except (OSError, ValueError, HTTPException) as error:  # the last: no HTTP, or a reply that is cut off
        reason = str(getattr(error, "reason", None) or error).strip() or type(error).__name__
        raise StorageError(
            f"{dataset.name} could not be fetched from {dataset.url} ({reason}). Without a network: download "
            f"that file elsewhere and put it at {target}, or put {', '.join(dataset.members.values())} into "
            f"{target.parent}, then run the command again"
        ) from error


def _unpack(dataset: Dataset, archive: Path, paths: Mapping[str, Path]) -> None:
    """Copy out the members whose paths end as is wanted; none can choose where it lands."""
    wanted = {dataset.members[split]: path for split, path in paths.items()}
    try:
        with tarfile.open(archive, "r:*") as files:
            for member in files:
                name = next((name for name in wanted if f"/{member.name}".endswith(f"/{name}")), None)
                source = files.extractfile(member) if name is not None and member.isfile() else None
                if name is None or source is None:
                    continue
                with source, _appearing(wanted[name]) as sink:
                    shutil.copyfileobj(source, sink, BLOCK_BYTES)
                del wanted[name]
    except _DAMAGE as error:
        if isinstance(error, StorageError) or (isinstance(error, OSError) and error.errno):
            raise StorageError(f"unpacking {archive} failed: {error}") from error
        reason = str(error).partition("\n")[0].rstrip(":")  # below it: what each compression said
        raise FormatError(f"{archive} cannot be unpacked ({reason}); remove it and run again") from error
    if wanted:
        raise FormatError(f"{archive} lacks {', '.join(sorted(wanted))}; remove it and run again")


def _sha256(path: Path) -> str:
    with path.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()
