"""Check a prepared graph (floor 5): its folder in, findings out; every file is read, nothing changed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from marius_py.errors import MariusError, StorageError
from marius_py.graph.manifest import GRAPH_FILE, read_manifest
from marius_py.prepare.folder import temporary_folders
from marius_py.storage.file_io import file_checksum, os_errors_as_storage
from marius_py.storage.files import TEMPORARY_SUFFIX
from marius_py.storage.verify import Finding, finding_of
from marius_py.verify.strays import REMOVE, entries, strays

_REPREPARE = "prepare the graph again from its edge lists"


def verify_graph(folder: Path) -> list[Finding]:
    """Compare every file of a prepared graph with its checksum in graph.json."""
    findings = strays(entries(folder, f"*{TEMPORARY_SUFFIX}"), REMOVE)
    left = [beside for beside, is_left in temporary_folders(folder.resolve()) if is_left]
    findings += strays(left, "the next marius-prepare to the same output removes it")
    try:
        files = read_manifest(folder)["files"]
    except MariusError as error:
        return [finding_of(folder / GRAPH_FILE, error, _REPREPARE), *findings]
    errors: dict[str, MariusError] = {}
    for name, facts in files.items():
        try:
            _compare(folder / name, facts)
        except MariusError as error:
            errors[name] = error
    whole = [name for name in files if name not in errors]
    remedy = f"{_REPREPARE}; whole: {', '.join(whole) or 'none'}"
    return [finding_of(folder / name, error, remedy) for name, error in errors.items()] + findings


def _compare(path: Path, facts: Mapping[str, Any]) -> None:
    """Compare a graph's file with its facts in graph.json; StorageError unless it is that file and whole."""
    with os_errors_as_storage("read", path):
        if not path.exists():
            raise StorageError(f"{path} is missing")
        size = path.stat().st_size
        if size != facts["bytes"]:
            raise StorageError(
                f"{path} is damaged: it has {size:,} bytes, {GRAPH_FILE} says {facts['bytes']:,}"
            )
        if file_checksum(path) != facts["xxh3"]:
            raise StorageError(
                f"{path} is damaged, or another graph's: its checksum is not the one in {GRAPH_FILE}"
            )
