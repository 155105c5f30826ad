"""Check whatever a folder holds (floor 5): a run, a graph or a node store in, findings out."""

from __future__ import annotations

import os
from pathlib import Path

from marius_py.errors import ConfigError, StorageError
from marius_py.given import as_path
from marius_py.graph.manifest import EDGES_FILE, GRAPH_FILE, NODES_FILE
from marius_py.run_files.names import CHECKPOINT_FOLDER, CONFIG_FILE, METRICS_FILE, RESULT_FILE
from marius_py.storage.checkpoint_file import CHECKPOINT_NAME
from marius_py.storage.files import storage_error
from marius_py.storage.node_file import NODES_NAME
from marius_py.storage.verify import Finding, verify_node_store
from marius_py.verify.graphs import verify_graph
from marius_py.verify.runs import verify_run


def verify(path: str | os.PathLike[str]) -> list[Finding]:
    """Check every file of a run folder, a graph folder or a node store.

    Safe while a run trains.

    Returns:
        Findings; empty if all is well, only harmless ones if the next start cleans up by itself.

    Raises:
        ConfigError: the folder is none of these, or `path` no path. StorageError: it, or a folder in it, may
        not be entered.
    """
    folder = as_path(path, "path", "the folder of a run, a prepared graph or a node store")
    try:
        return _verify(folder)
    except StorageError:
        raise
    except OSError as error:
        raise storage_error("check", Path(error.filename or folder), error) from error


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
