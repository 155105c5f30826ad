"""Check a node store on disk (floor 1), for `marius-verify`: reads everything, changes nothing.

In: a folder. Out: findings, each with the file, what is wrong, and what can be done.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from marius_py.errors import MariusError
from marius_py.storage.checkpoint_file import CHECKPOINT_NAME, SIZE_LIMIT, decode, view_problems
from marius_py.storage.files import REFUSALS, TEMPORARY_SUFFIX, read_whole
from marius_py.storage.lock import LOCK_NAME, absence_of, is_locked, lock_owner
from marius_py.storage.node_file import NODES_NAME, read_facts
from marius_py.storage.reader import NodeReader, ReplacedError, open_node_reader

_READINGS = 8
"""How often a partition that a trainer replaces meanwhile is read."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong with a store.

    Attributes:
        file: path of the file.
        problem: what is wrong, complete without the other fields.
        remedy: what can be done, or what is not lost.
        partition: the partition that it is about, None if it is not about one.
        harmless: nothing is lost; the next start cleans it up.
        unread: the system did not let it be read, so that it may be whole.
    """

    file: str
    problem: str
    remedy: str
    partition: int | None = None
    harmless: bool = False
    unread: bool = False

    @property
    def label(self) -> str:
        """What it is to whoever reads a list of them: "note", "UNREAD" or "DAMAGED"."""
        return "note" if self.harmless else "UNREAD" if self.unread else "DAMAGED"


def finding_of(path: Path, error: MariusError, remedy: str, partition: int | None = None) -> Finding:
    """What an error of reading `path` says, with `remedy` unless the system refused to read it."""
    if _is_refusal(error):
        remedy = "see that it can be read, then check again"
        return Finding(str(path), str(error), remedy, partition, unread=True)
    return Finding(str(path), str(error), remedy, partition)


def _is_refusal(error: BaseException | None) -> bool:
    """Whether an error, or one that caused it, is that the system did not let a file be read."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in REFUSALS:
            return True
        error = error.__cause__
    return False


def verify_node_store(folder: str | os.PathLike[str]) -> list[Finding]:
    """Check every file and every partition's hash of the node store in `folder`.

    Safe while a trainer writes: a partition that it replaces meanwhile is then read from the newer commit.

    Returns:
        Findings, most important first; empty if all is well. Never raises for a damaged store.
    """
    path = Path(folder)
    if not path.is_dir():
        return [Finding(str(path), f"{path} is missing", "nothing to recover here")]
    return _files(path) + leftovers(path)


def _files(folder: Path) -> list[Finding]:
    checkpoint, nodes = folder / CHECKPOINT_NAME, folder / NODES_NAME
    findings: list[Finding] = []
    try:
        data = read_whole(checkpoint, SIZE_LIMIT)
        manifest, _ = decode(data, checkpoint)
        remedy = "this package reads the nodes without it; do not read them by h5py from this file"
        findings += [
            Finding(str(checkpoint), f"{checkpoint}: {problem}", remedy)
            for problem in view_problems(data, manifest)
        ]
    except MariusError as error:
        remedy = (
            f"restore {CHECKPOINT_NAME} from a copy of the same run; without it {NODES_NAME} cannot be read"
        )
        findings.append(finding_of(checkpoint, error, remedy))
        try:
            read_facts(nodes)
        except MariusError as other:
            findings.append(finding_of(nodes, other, "restore it from a copy, or train anew"))
        return findings
    if manifest.generation == 0:
        return [Finding(str(checkpoint), f"{folder}: nothing was committed yet", "start the run anew")]
    try:
        reader = open_node_reader(folder)
    except MariusError as error:
        remedy = f"restore {NODES_NAME} from a copy of the same run; relations and settings are whole"
        return [*findings, finding_of(_failed_file(folder, error), error, remedy)]
    reader.close()
    return findings + _partitions(folder, nodes, manifest.table.partitioning.num_partitions)


def _partitions(folder: Path, nodes: Path, num_partitions: int) -> list[Finding]:
    replaced: list[Finding] = []
    failed: list[tuple[int, MariusError]] = []
    with _Commits(folder) as commits:
        for part in range(num_partitions):
            try:
                error = commits.check(part)
            except ReplacedError:
                problem = f"partition {part} of {nodes} was replaced by a newer commit each time it was read"
                replaced.append(
                    Finding(str(nodes), problem, "check again, or when training has ended", part, True)
                )
                continue
            if error is not None:
                failed.append((part, error))
    whole = f"{num_partitions - len(failed) - len(replaced)} of {num_partitions} partitions are whole"
    findings = []
    for part, error in failed:
        path = _failed_file(folder, error)
        remedy = f"restore {path.name} from a copy of the same commit, or train anew; {whole}"
        findings.append(finding_of(path, error, remedy, part))
    return sorted(findings, key=lambda finding: finding.unread) + replaced


def _failed_file(folder: Path, error: MariusError) -> Path:
    """The file that a reader of the nodes has failed with: the other one is named only beside its path."""
    checkpoint = folder / CHECKPOINT_NAME
    return checkpoint if str(checkpoint) in str(error) else folder / NODES_NAME


class _Commits:
    """The last commit of a store, opened anew only where a newer one has replaced what it holds.

    Opening reads all relations, which may be as much as many partitions.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._reader: NodeReader | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def check(self, part: int) -> MariusError | None:
        """What is wrong with a partition, None if nothing.

        Raises:
            ReplacedError: it was replaced at every reading.
        """
        # The first reading may be of an old commit; further ones cover a commit during the one before.
        for reading in range(_READINGS + 1):
            try:
                if self._reader is None:
                    self._reader = open_node_reader(self._folder)
                self._reader.verify(part)
                break
            except ReplacedError:
                self._close()
                if reading == _READINGS:
                    raise
            except MariusError as error:
                self._close()
                return error
        return None

    def _close(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()


def leftovers(folder: Path) -> list[Finding]:
    """What an interrupted write has left in a node store's folder that nobody writes to."""
    if is_locked(folder):
        return []
    findings = []
    for name in (CHECKPOINT_NAME, NODES_NAME):
        stray = folder / (name + TEMPORARY_SUFFIX)
        if stray.exists():
            findings.append(
                Finding(
                    str(stray),
                    f"{stray} is left from an interrupted write",
                    "the next start removes it",
                    harmless=True,
                )
            )
    return findings + stale_lock(folder)


def stale_lock(folder: Path) -> list[Finding]:
    """What to say of the lock of a process that is gone."""
    owner = lock_owner(folder)
    if owner is None:
        return []
    problem = f"{folder / LOCK_NAME} is left from process {owner['pid']}, {absence_of(owner)}"
    return [Finding(str(folder / LOCK_NAME), problem, "the next start takes it over", harmless=True)]
