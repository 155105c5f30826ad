"""A run folder looked at (floor 4): a path in; what it is, and where its graph lies out."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from marius_py.errors import FormatError, MariusError, StorageError
from marius_py.run_files.names import (
    CHECKPOINT_FOLDER,
    CONFIG_FILE,
    CONFIG_META,
    DEMO_GRAPH,
    SNAPSHOT_FOLDER,
)
from marius_py.storage.checkpoint_file import CHECKPOINT_NAME, open_checkpoint
from marius_py.storage.file_io import os_errors_as_storage
from marius_py.storage.files import storage_error
from marius_py.storage.node_file import NODES_NAME, read_facts
from marius_py.storage.reader import open_node_reader
from marius_py.storage.regular import read_regular


def is_snapshot(folder: Path) -> bool:
    """Whether a folder is a run's snapshot: its node file has a slot a partition and none to train with."""
    nodes = folder / CHECKPOINT_FOLDER
    try:
        table = open_checkpoint(nodes / CHECKPOINT_NAME).manifest.table
        return read_facts(nodes / NODES_NAME).num_slots == table.partitioning.num_partitions
    except MariusError:
        return False


def run_around(folder: Path) -> Path | None:
    """The run folder that a snapshot lies in; None of other folders."""
    return folder.parent.parent if folder.parent.name == SNAPSHOT_FOLDER else None


def graph_folder(folder: Path, meta: Mapping[str, Any]) -> Path:
    """The graph that a run was trained on; the demo graph lies in the run folder.

    The last commit names it. Only where it does not, config.yaml is asked, which anything may have changed.
    """
    way = f"say where the graph is: --graph DIR, or in Python load({str(folder)!r}, graph=…)"
    settings = meta.get(CONFIG_META)
    if not isinstance(settings, dict):
        settings = _read_settings(folder / CONFIG_FILE, way)
    named = settings.get("graph")
    if named is None:
        return folder / DEMO_GRAPH
    with os_errors_as_storage("look at the graph", Path(named)):
        is_there = Path(named).is_dir()
    if not is_there:
        run = run_around(folder)
        if run is not None:  # which may have found its graph again
            with suppress(MariusError), open_node_reader(run / CHECKPOINT_FOLDER) as reader:
                return graph_folder(run, reader.meta)
        raise StorageError(
            f"the graph of the run {folder}, {named}, is gone; if it was moved, {way}; for marius-evaluate "
            "graph=DIR"
        )
    return Path(named)


def _read_settings(path: Path, way: str) -> dict[str, Any]:
    """The content of config.yaml; an error ends with `way`, which needs no such file."""
    try:
        settings = yaml.safe_load(read_regular(path).decode())
    except FileNotFoundError:
        raise StorageError(f"{path} is missing; {way}") from None
    except OSError as error:
        raise StorageError(f"{storage_error('read', path, error)}; {way}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise FormatError(f"{path} is damaged ({error}); {way}") from error
    if not isinstance(settings, dict):
        raise FormatError(f"{path} is damaged: it holds no settings; {way}")
    return settings
