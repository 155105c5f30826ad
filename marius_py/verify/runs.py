"""Check a run (floor 5): its folder in, findings out; every file of it is read, nothing changed."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from marius_py.errors import MariusError
from marius_py.graph import open_graph
from marius_py.graph.manifest import EDGES_FILE
from marius_py.resuming.resume import VIEWS, shows_commits
from marius_py.run_files.folder import graph_folder, run_around
from marius_py.run_files.names import (
    CHECKPOINT_FOLDER,
    CONFIG_META,
    DEMO_GRAPH,
    SNAPSHOT_FOLDER,
    SNAPSHOT_NAME,
    SORTED_EDGES_NAME,
)
from marius_py.storage.checkpoint_file import CHECKPOINT_NAME
from marius_py.storage.files import TEMPORARY_SUFFIX
from marius_py.storage.hdf5_edges import SORT_ANEW, Hdf5EdgeStore
from marius_py.storage.hdf5_nodes import has_commit
from marius_py.storage.lock import is_locked
from marius_py.storage.verify import Finding, finding_of, leftovers, stale_lock, verify_node_store
from marius_py.verify.graphs import verify_graph
from marius_py.verify.strays import NEXT_START, REMOVE, entries, folders, strays
from marius_py.verify.views import anothers, check_views, committed, is_anothers


def verify_run(folder: Path) -> list[Finding]:
    """Check a run's checkpoint, the views of it, its sorted edges, its graph and its snapshots."""
    nodes = folder / CHECKPOINT_FOLDER
    live = is_locked(folder)
    findings = _uncommitted(folder, nodes, live=live)
    if findings is None:
        findings = verify_node_store(nodes)
    meta = committed(nodes)
    if is_anothers(folder, meta):
        return [Finding(str(nodes / CHECKPOINT_NAME), anothers(folder), "restore it from a copy of this run")]
    findings += check_views(folder, nodes, meta, live=live)
    findings += _edges(folder, meta, live=live)
    findings += _graph(folder, meta)
    snapshots = folder / SNAPSHOT_FOLDER
    if not live:
        views = {folder / (name + TEMPORARY_SUFFIX) for name in VIEWS}
        found = set(entries(folder, f"*{TEMPORARY_SUFFIX}"))
        findings += strays(found & views, NEXT_START)
        findings += strays(found - views, REMOVE)
        findings += strays(entries(snapshots, f"*{TEMPORARY_SUFFIX}"), "the next epoch to end removes it")
        findings += stale_lock(folder)
    for snapshot in folders(snapshots, SNAPSHOT_NAME):
        findings += [finding for finding in _snapshot(snapshot) if finding not in findings]
    return findings


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


def _edges(folder: Path, meta: Mapping[str, Any] | None, *, live: bool) -> list[Finding]:
    """The edges that a run has sorted for its own number of partitions."""
    findings = []
    for sorted_edges in folders(folder, SORTED_EDGES_NAME):
        path = sorted_edges / EDGES_FILE
        left = entries(sorted_edges, f"*{TEMPORARY_SUFFIX}")
        if not live:  # which may be sorting
            findings += strays(left, NEXT_START)
        if not path.exists():
            continue
        try:
            with Hdf5EdgeStore(path, SORT_ANEW) as store:
                if meta is not None and store.fingerprint != meta["graph"]["fingerprint"]:
                    findings.append(Finding(str(path), f"{path} holds the edges of another graph", SORT_ANEW))
                findings += [finding_of(path, error, SORT_ANEW) for error in store.verify()]
        except MariusError as error:
            findings.append(finding_of(path, error, SORT_ANEW))
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
        if os.path.lexists(named):
            return [finding_of(Path(named), error, remedy)]
        run = run_around(folder) or folder
        moved = f"marius-train {shlex.quote(f'output={run}')} resume=true graph=DIR"
        gone = f"the graph of the run {run}, {named}, is gone"
        return [Finding(named, gone, f"if it was moved, {moved} notes where it is; else {remedy}")]
    if meta is not None and fingerprint != meta.get("graph", {}).get("fingerprint"):
        return [Finding(named, f"{named} is another graph than the run was trained on", remedy)]
    return []
