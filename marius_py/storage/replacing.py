"""Files that appear whole or not at all (floor 1): targets in, temporary files beside them to be written."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from marius_py.errors import StorageError
from marius_py.storage.file_io import sync_path
from marius_py.storage.files import reason_of
from marius_py.storage.lock import is_abandoned, try_flock
from marius_py.storage.targets import temporary_name


class Replacing:
    """Temporary files that take their targets' places together when the block ends well.

    They are locked while they are written, so that those of a killed process are known, and removed by the
    next one that writes the same targets.

    Args:
        targets: files that are to appear; those that exist are replaced, and of links the files that they
            lead to.

    Raises:
        StorageError: opening, writing or renaming failed; it names the targets that were replaced, if any.
        Its cause is a BlockingIOError where somebody writes the same targets.
    """

    def __init__(self, targets: Sequence[Path]) -> None:
        self._places = {target: Path(os.path.realpath(target)) for target in targets}
        self._temporary = {
            target: place.with_name(temporary_name(place)) for target, place in self._places.items()
        }
        self._locks: dict[Path, int] = {}
        self._replaced: list[Path] = []

    def __enter__(self) -> dict[Path, Path]:
        """Target → the file to write instead; each is there, empty and locked."""
        target: Path | None = None
        try:
            for target, path in self._temporary.items():
                _remove_stale(self._places[target])
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
                if try_flock(descriptor) is False:
                    os.close(descriptor)
                    raise BlockingIOError("another thread, or a process of the same number, writes it")
                self._locks[path] = descriptor
        except OSError as error:
            self._remove()
            raise self._failed(error, target) from error
        return self._temporary

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        target: Path | None = None  # of the file that failed
        try:
            if kind is None:
                for target in self._temporary:
                    sync_path(self._temporary[target])
                # The first, which others describe, last: who is killed here has no new rows beside old names.
                for target, path in reversed(self._temporary.items()):
                    path.replace(self._places[target])
                    self._replaced.append(target)
        except OSError as failure:
            raise self._failed(failure, target) from failure
        finally:
            self._remove()
        if isinstance(error, OSError) and not isinstance(error, StorageError):
            raise self._failed(error) from error

    def _remove(self) -> None:
        """Remove the files that were locked here and lie there still; others are another writer's."""
        replaced = [self._temporary[target] for target in self._replaced]
        for path in (one for one in self._locks if one not in replaced):
            with suppress(OSError):
                path.unlink(missing_ok=True)
        while self._locks:
            os.close(self._locks.popitem()[1])

    def _failed(self, error: OSError, target: Path | None = None) -> StorageError:
        """What to raise for an error; without a target one of those that are not replaced has it."""
        left = {str(path): one for one, path in self._temporary.items() if one not in self._replaced}
        target = target or left.get(str(error.filename))
        written = " or ".join(map(str, left.values() if target is None else [target]))
        done = " and ".join(map(str, self._replaced))
        said = f"{done} had been replaced already" if done else "nothing was replaced"
        return StorageError(f"writing {written} failed: {reason_of(error)}; {said}")


def _remove_stale(target: Path) -> None:
    """Remove temporary files of `target` that no process writes any more."""
    prefix = f".{target.name}."
    for path in target.parent.iterdir():
        middle = path.name.removeprefix(prefix).removesuffix(".tmp")
        if path.name != f"{prefix}{middle}.tmp" or not middle.isdecimal():
            continue
        with suppress(OSError):
            if is_abandoned(path, int(middle)):
                path.unlink()
