"""The manifest of a prepared graph, graph.json (floor 1).

In: a graph's folder, or the facts to write. Out: checked facts, or bytes. graph.json is written last and
atomically: a folder without a valid one is no graph.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import xxhash

from marius_py.errors import FormatError, MissingPathError, StorageError
from marius_py.storage.files import storage_error
from marius_py.storage.regular import read_regular

GRAPH_FILE = "graph.json"
NODES_FILE = "nodes.parquet"
RELATIONS_FILE = "relations.parquet"
EDGES_FILE = "edges.h5"
GRAPH_FORMAT = "marius_py graph"
GRAPH_VERSION = 1
MEAN_WEIGHT = "mean_weight"
"""Entry of a graph whose train edges have weights alone."""

_FIELDS: dict[str, type] = {
    "num_nodes": int,
    "num_relations": int,
    "has_relations": bool,
    "num_partitions": int,
    "num_edges": dict,
    "fingerprint": str,
    "seed": int,
    "names_are_integers": bool,
    "report": dict,
    "files": dict,
}


def manifest_bytes(facts: Mapping[str, Any]) -> bytes:
    """Serialise a manifest: format name, version, the facts, and a checksum over all of it."""
    body = {"format": GRAPH_FORMAT, "version": GRAPH_VERSION, **facts}
    body["checksum"] = _manifest_checksum(body)
    return (json.dumps(body, indent=2, ensure_ascii=False) + "\n").encode()


def _manifest_checksum(body: Mapping[str, Any]) -> str:
    content = {key: value for key, value in body.items() if key != "checksum"}
    return xxhash.xxh3_64_hexdigest(json.dumps(content, sort_keys=True).encode())


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read and check graph.json.

    Raises:
        MissingPathError: the folder holds no file of a graph. StorageError: graph.json alone is missing, or
        it is unreadable. FormatError: damaged, no graph's, or of another version.
    """
    path = folder / GRAPH_FILE
    try:
        content = read_regular(path)
    except FileNotFoundError as error:
        if any((folder / name).exists() for name in (EDGES_FILE, NODES_FILE)):
            raise StorageError(
                f"{path} is missing; put it back from a copy, or prepare the graph again in another folder"
            ) from error
        way = "prepare one there first"
        with suppress(OSError):
            if any(folder.iterdir()):
                way = "give the folder that marius-prepare wrote"
        raise MissingPathError(f"{folder} is no prepared graph: it has no {GRAPH_FILE}; {way}") from error
    except OSError as error:
        raise storage_error("read", path, error) from error
    try:
        body = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path} is damaged: {error}; prepare the graph again") from error
    if not isinstance(body, dict) or body.get("format") != GRAPH_FORMAT:
        raise FormatError(f"{path} does not describe a prepared graph")
    if body.get("version") != GRAPH_VERSION:
        raise FormatError(
            f"{path} has format version {body.get('version')!r}; this program reads version {GRAPH_VERSION}: "
            "prepare the graph again with this version"
        )
    if body.get("checksum") != _manifest_checksum(body):
        raise FormatError(
            f"{path} is damaged: its content does not match its checksum; prepare the graph again"
        )
    wrong = [key for key, kind in _FIELDS.items() if not isinstance(body.get(key), kind)]
    mean = body.get(MEAN_WEIGHT, 1.0)
    if not isinstance(mean, float) or not 0 < mean < float("inf"):
        wrong.append(MEAN_WEIGHT)
    wrong += [name for name in body.get("files", {}) if name not in (NODES_FILE, RELATIONS_FILE, EDGES_FILE)]
    if wrong:
        raise FormatError(f"{path} is damaged: wrong or missing entries {', '.join(map(repr, wrong))}")
    return body
