"""Check a run or a graph on disk (floor 5), for `marius-verify`: every file read, nothing changed.

In: a folder. Out: findings, each with the file, what is wrong and what can be done. checkpoint.h5 holds the
truth of a run; config.yaml, metrics.jsonl and result.json are views of it and compared with it, so that a
changed digit or another run's file is found, and `repair` can write them again.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from marius_py.config import read_yaml, write_yaml
from marius_py.errors import ConfigError, FormatError, MariusError, StorageError
from marius_py.graph import open_graph
from marius_py.graph.manifest import EDGES_FILE, GRAPH_FILE, NODES_FILE, read_manifest
from marius_py.prepare.folder import temporary_folders
from marius_py.resuming.resume import BEFORE_META, VIEWS, claimed, plain_json, shows_commits
from marius_py.run_files.folder import graph_folder, run_around
from marius_py.run_files.names import (
    CHECKPOINT_FOLDER,
    CONFIG_FILE,
    CONFIG_META,
    DEMO_GRAPH,
    METRICS_FILE,
    RESULT_FILE,
    RESULT_META,
    SNAPSHOT_FOLDER,
    TRACE_FILE,
)
from marius_py.run_files.results import write_json, write_lines
from marius_py.storage.checkpoint_file import CHECKPOINT_NAME, read_checkpoint
from marius_py.storage.file_io import file_checksum, os_errors_as_storage
from marius_py.storage.files import TEMPORARY_SUFFIX, read_whole, storage_error
from marius_py.storage.hdf5_edges import Hdf5EdgeStore
from marius_py.storage.hdf5_nodes import has_commit
from marius_py.storage.lock import LOCK_NAME, absence_of, is_locked, lock_owner
from marius_py.storage.node_file import NODES_NAME, read_facts
from marius_py.storage.verify import Finding, finding_of, leftovers, verify_node_store

log = logging.getLogger(__name__)

VALIDATED = ("valid", "best_epoch")
"""Keys of an epoch's line that a second commit fills in, after its validation."""

COMMITTED_VIEWS = (CONFIG_FILE, METRICS_FILE, RESULT_FILE)
VIEW_LIMIT = 1 << 32
"""Bytes of a view that are read at most."""

_LOOKS = 5
"""How often a view of a run that trains is read before it is called damaged."""

_REPREPARE = "prepare the graph again from its edge lists"
_NEXT_START = "the next start removes it"
_REMOVE = "nothing depends on it; remove it"


def verify(path: str | os.PathLike[str]) -> list[Finding]:
    """Check every file of a run folder, a graph folder or a node store.

    Safe while a run trains.

    Returns:
        Findings; empty if all is well, only harmless ones if the next start cleans up by itself.

    Raises:
        ConfigError: the folder is none of these. StorageError: it, or a folder in it, may not be entered.
    """
    try:
        return _verify(Path(path))
    except StorageError:
        raise
    except OSError as error:
        raise storage_error("check", Path(error.filename or path), error) from error


def _verify(folder: Path) -> list[Finding]:
    if not folder.is_dir():
        raise ConfigError(f"{folder} is no folder; give a run or a prepared graph")
    names = {entry.name for entry in folder.iterdir()}
    if names & {CHECKPOINT_FOLDER, CONFIG_FILE, METRICS_FILE, RESULT_FILE}:
        return verify_run(folder)
    if names & {GRAPH_FILE, EDGES_FILE, NODES_FILE}:
        return verify_graph(folder)
    if names & {CHECKPOINT_NAME, NODES_NAME}:
        return verify_node_store(folder)
    raise ConfigError(
        f"{folder} is neither a run (it has no {CHECKPOINT_FOLDER}/) nor a prepared graph "
        f"(it has no {GRAPH_FILE})"
    )


def is_sound(findings: list[Finding]) -> bool:
    """Whether nothing is lost or damaged."""
    return all(finding.harmless for finding in findings)


# ---------------------------------------------------------------------- a graph


def verify_graph(folder: Path) -> list[Finding]:
    """Compare every file of a prepared graph with its checksum in graph.json."""
    findings = _strays(_entries(folder, f"*{TEMPORARY_SUFFIX}"), _REMOVE)
    left = [beside for beside, is_left in temporary_folders(folder.resolve()) if is_left]
    findings += _strays(left, "the next marius-prepare to the same output removes it")
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


# ---------------------------------------------------------------------- a run


def verify_run(folder: Path) -> list[Finding]:
    """Check a run's checkpoint, the views of it, its sorted edges, its graph and its snapshots."""
    nodes = folder / CHECKPOINT_FOLDER
    live = is_locked(folder)
    findings = _uncommitted(folder, nodes, live=live)
    if findings is None:
        findings = verify_node_store(nodes)
    meta = _committed(nodes)
    if _is_anothers(folder, nodes, meta):
        problem = f"{nodes / CHECKPOINT_NAME} is another run's: neither {NODES_NAME} nor {CONFIG_FILE} fit it"
        return [Finding(str(nodes / CHECKPOINT_NAME), problem, "restore it from a copy of this run")]
    findings += _views(folder, nodes, meta, live=live)
    findings += _edges(folder, meta, live=live)
    findings += _graph(folder, meta)
    snapshots = folder / SNAPSHOT_FOLDER
    if not live:
        views = {folder / (name + TEMPORARY_SUFFIX) for name in VIEWS}
        found = set(_entries(folder, f"*{TEMPORARY_SUFFIX}"))
        findings += _strays(found & views, _NEXT_START)
        findings += _strays(found - views, _REMOVE)
        findings += _strays(_entries(snapshots, f"*{TEMPORARY_SUFFIX}"), "the next epoch to end removes it")
        findings += _stale_lock(folder)
    for snapshot in _entries(snapshots, "*-*"):
        if snapshot.suffix != TEMPORARY_SUFFIX:
            findings += _snapshot(snapshot)
    return findings


def _entries(folder: Path, pattern: str) -> list[Path]:
    """Paths in a folder whose names match, in order; none if it is missing.

    Raises:
        OSError: the folder may not be read, where `Path.glob` finds nothing.
    """
    try:
        with os.scandir(folder) as entries:
            return sorted(folder / entry.name for entry in entries if fnmatch(entry.name, pattern))
    except FileNotFoundError:
        return []


def _uncommitted(folder: Path, nodes: Path, *, live: bool) -> list[Finding] | None:
    """What to say of a run without a commit, from which nothing can be lost; None of others."""
    if run_around(folder) is not None:  # a snapshot appears with its commit
        return None
    try:
        if has_commit(nodes) or shows_commits(folder) is not None:
            return None
    except MariusError:
        return None
    remedy = "the run trains on" if live else "resume=true begins the run anew"
    return [
        Finding(str(nodes), f"{nodes}: nothing was committed yet", remedy, harmless=True),
        *leftovers(nodes),
    ]


def _snapshot(folder: Path) -> list[Finding]:
    """Check a snapshot, of which nothing is said if the run that trains has removed it meanwhile."""
    try:
        findings = verify_run(folder)
    except OSError:  # a StorageError is one
        if folder.exists():
            raise
        return []
    return findings if folder.exists() else []


def _committed(nodes: Path) -> dict[str, Any] | None:
    """The meta of the last commit; None without a readable one."""
    try:
        manifest, checkpoint = read_checkpoint(nodes / CHECKPOINT_NAME)
    except MariusError:
        return None
    return dict(checkpoint.meta) if manifest.generation else None


def _is_anothers(folder: Path, nodes: Path, meta: Mapping[str, Any] | None) -> bool:
    """Whether checkpoint.h5, whole in itself, was put there from another run."""
    if meta is None or not (nodes / NODES_NAME).exists():
        return False
    try:
        manifest, _ = read_checkpoint(nodes / CHECKPOINT_NAME)
        fits = read_facts(nodes / NODES_NAME).store_id == manifest.store_id
        return not fits and read_view(folder / CONFIG_FILE) != meta.get(CONFIG_META)
    except MariusError:
        return False


def _views(folder: Path, nodes: Path, meta: Mapping[str, Any] | None, *, live: bool) -> list[Finding]:
    """Compare the views with the last commit; a run that trains is about to write those behind it."""
    if not live:
        found = [_view(folder / name, lambda: meta, live=False) for name in VIEWS]
        return [finding for finding in found if finding is not None]
    findings = []
    for name in VIEWS:
        for _ in range(_LOOKS):
            finding = _view(folder / name, lambda: _committed(nodes), live=True)
            if finding is None or finding.harmless:
                break
        if finding is not None and not finding.harmless:
            findings.append(finding)
    return findings


def _view(path: Path, commit: Callable[[], Mapping[str, Any] | None], *, live: bool) -> Finding | None:
    """Compare a view with the meta of the last commit, which is asked for when the view has been read."""
    name, found, problem = path.name, None, None
    try:
        found = read_view(path)
    except MariusError as error:
        problem = error
    meta = commit()
    wanted = expected_views(meta).get(name)
    if problem is not None:
        late = name == METRICS_FILE and (live or RESULT_META not in (meta or {}))
        if path.exists() or wanted is not None:
            finding = finding_of(path, problem, _remedy(name, wanted))
            return replace(finding, harmless=late and not path.exists())
        return None
    known = wanted is not None or name != CONFIG_FILE
    if meta is not None and known and name in COMMITTED_VIEWS and found != wanted:
        return _changed(path, wanted, harmless=_is_behind(name, found, meta, live=live))
    return None


def _is_behind(name: str, found: Any, meta: Mapping[str, Any], *, live: bool) -> bool:
    """Whether a view is what it was before the last commit: the run ended between the two, or is about to."""
    if name == RESULT_FILE:
        return RESULT_META not in meta
    if name == CONFIG_FILE:
        return found is not None and found == meta.get(BEFORE_META)
    history = meta.get("history", [])
    if (RESULT_META in meta and not live) or len(found) > len(history):
        return False
    pairs = list(zip(found, history, strict=False))
    blank = dict.fromkeys(VALIDATED)
    unvalidated = [{**line, **blank} for line, _ in pairs[-1:]]
    return all(line == wanted for line, wanted in pairs[:-1]) and (
        not pairs or pairs[-1][0] == pairs[-1][1] or unvalidated == [{**pairs[-1][1], **blank}]
    )


def expected_views(meta: Mapping[str, Any] | None) -> dict[str, Any]:
    """What each view should hold by the last commit; a view that the run has not come to is left out."""
    if meta is None:
        return {}
    views = {CONFIG_FILE: meta.get(CONFIG_META), RESULT_FILE: meta.get(RESULT_META)}
    if meta.get("history"):
        views[METRICS_FILE] = meta["history"]
    return {name: value for name, value in views.items() if value is not None}


def read_view(path: Path) -> Any:
    """Parse a view; StorageError if it is missing or may not be read, FormatError if it cannot be parsed."""
    data = read_whole(path, VIEW_LIMIT)
    if path.name == CONFIG_FILE:
        return plain_json(read_yaml(path))
    try:
        if path.name == METRICS_FILE:
            return [json.loads(line) for line in data.decode().splitlines()]
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path} is damaged: {error}") from error


def _changed(path: Path, wanted: Any, *, harmless: bool) -> Finding:
    if harmless:
        problem = f"{path} is not what the last commit says: the run ended before it was written"
    else:
        problem = f"{path} is damaged, changed by hand, or another run's: it is not what the last commit says"
    return Finding(str(path), problem, _remedy(path.name, wanted), harmless=harmless)


def _remedy(name: str, wanted: Any) -> str:
    if wanted is not None:
        return "--repair writes it from the checkpoint"
    if name == RESULT_FILE:
        return "resume=true computes it anew"
    if name == TRACE_FILE:
        return _REMOVE
    return "the checkpoint does not hold it; restore it from a copy"


def _edges(folder: Path, meta: Mapping[str, Any] | None, *, live: bool) -> list[Finding]:
    """The edges that a run has sorted for its own number of partitions."""
    findings = []
    remedy = "remove it; the next start sorts the graph's edges anew"
    for sorted_edges in _entries(folder, "edges-*"):
        path = sorted_edges / EDGES_FILE
        strays = _entries(sorted_edges, f"*{TEMPORARY_SUFFIX}")
        if not live:  # which may be sorting
            findings += _strays(strays, _NEXT_START)
        if not path.exists():
            continue
        try:
            with Hdf5EdgeStore(path) as store:
                if meta is not None and store.fingerprint != meta["graph"]["fingerprint"]:
                    findings.append(Finding(str(path), f"{path} holds the edges of another graph", remedy))
                findings += [finding_of(path, error, remedy) for error in store.verify()]
        except MariusError as error:
            findings.append(finding_of(path, error, remedy))
    return findings


def _graph(folder: Path, meta: Mapping[str, Any] | None) -> list[Finding]:
    """The graph in the run folder is checked as a whole, one elsewhere only for being there and the same."""
    own = folder / DEMO_GRAPH
    settings = (meta or {}).get(CONFIG_META) or {}
    named = settings.get("graph")
    if named is None:
        if own.exists() or meta is not None:
            return verify_graph(own)
        return []
    remedy = f"put the graph back to {named}, or prepare it again with the same input, partitions and seed"
    try:
        fingerprint = open_graph(graph_folder(folder, meta or {})).fingerprint
    except MariusError as error:
        return [finding_of(Path(named), error, remedy)]
    if meta is not None and fingerprint != meta.get("graph", {}).get("fingerprint"):
        return [Finding(named, f"{named} is another graph than the run was trained on", remedy)]
    return []


def _strays(paths: Iterable[Path], remedy: str) -> list[Finding]:
    return [
        Finding(str(path), f"{path} is left from an interrupted write", remedy, harmless=True)
        for path in sorted(paths)
    ]


def _stale_lock(folder: Path) -> list[Finding]:
    owner = lock_owner(folder)
    if owner is None:
        return []
    problem = f"{folder / LOCK_NAME} is left from process {owner['pid']}, {absence_of(owner)}"
    return [Finding(str(folder / LOCK_NAME), problem, "the next start takes it over", harmless=True)]


def repair(folder: Path) -> list[Path]:
    """Write the views of a run that are missing or not what the last commit says; returns their paths.

    Raises:
        StorageError: the run is in use, its checkpoint is damaged, or writing failed.
    """
    meta = dict(read_checkpoint(folder / CHECKPOINT_FOLDER / CHECKPOINT_NAME)[1].meta)
    written = []
    with claimed(folder):
        for name, wanted in expected_views(meta).items():
            path = folder / name
            try:
                if read_view(path) == wanted:
                    continue
            except MariusError as error:
                log.info("%s", error)
            if name == METRICS_FILE:
                write_lines(path, wanted)
            elif name == CONFIG_FILE:
                write_yaml(wanted, path)
            else:
                write_json(path, wanted)
            written.append(path)
    return written
