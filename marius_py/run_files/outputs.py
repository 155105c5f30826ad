"""Files that are written from a run (floor 4): the run that is read and a target in; refusals out."""

from __future__ import annotations

import os
from pathlib import Path

from marius_py.errors import ConfigError
from marius_py.graph.manifest import GRAPH_FILE
from marius_py.run_files.folder import run_around
from marius_py.run_files.names import (
    CHECKPOINT_FOLDER,
    CONFIG_FILE,
    CSV_FILE,
    METRICS_FILE,
    RESULT_FILE,
    SNAPSHOT_FOLDER,
    SORTED_EDGES_NAME,
    TRACE_FILE,
)
from marius_py.run_files.reader import RunReader
from marius_py.storage.targets import check_target

_FILES = frozenset({CONFIG_FILE, CSV_FILE, METRICS_FILE, RESULT_FILE, TRACE_FILE})


def check_output(run: RunReader, target: Path | str, named: str, *, overwrite: bool = True) -> None:
    """Refuse a file that cannot be written, or must not be, before the work whose result it is for.

    New files may lie anywhere, in the run folder too, and what a user put there may be replaced.

    Args:
        run: the run that is read for it.
        target: the file as given, which may exist.
        named: the file as the caller gave it, with its key or flag, such as "output=m.json".
        overwrite: whether a file that exists may be replaced.

    Raises:
        ConfigError: no such folder, it is a folder or a device, it is a file of the run or of its graph, or
            it exists and is not to be overwritten. StorageError: the folder cannot be written to.
    """
    check_target(target, named)
    target = Path(target)
    if not target.exists():
        return
    owner = _owner(run, Path(os.path.realpath(target)))
    if owner is not None:
        raise ConfigError(f"{named} is a file of {owner}, which is read for it; give another name")
    if not overwrite:
        raise ConfigError(
            f"{named} exists; choose another name, or replace it with --overwrite (in Python overwrite=True)"
        )


def _owner(run: RunReader, file: Path) -> str | None:
    """What a file belongs to, in words, if that is the run or its graph."""
    if file.name in {GRAPH_FILE, *run.graph.files} and file.parent == run.graph.path.resolve():
        return f"the graph {run.graph.path}"
    for folder in (run.path, run_around(run.path)):
        if folder is None or not file.is_relative_to(folder.resolve()):
            continue
        if _is_of_run(file.relative_to(folder.resolve()).parts):
            return f"the run {folder}"
    return None


def _is_of_run(parts: tuple[str, ...]) -> bool:
    """Whether training writes a file of this path below the run folder, or below a snapshot in it."""
    if len(parts) < 2:
        return parts[0] in _FILES
    if parts[0] == SNAPSHOT_FOLDER:
        return len(parts) > 2 and _is_of_run(parts[2:])
    return parts[0] == CHECKPOINT_FOLDER or SORTED_EDGES_NAME.fullmatch(parts[0]) is not None
