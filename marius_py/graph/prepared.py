"""A prepared graph (floor 1): counts, partition ranges, names, edges. In: a graph's folder. Out: `Graph`.

h5py and pyarrow are imported only by the methods that read edges or names: a training process never needs
pyarrow.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from marius_py.errors import ConfigError, MariusError, MissingPathError, StorageError
from marius_py.given import as_path, shown
from marius_py.graph.manifest import (
    EDGES_FILE,
    GRAPH_FILE,
    MEAN_WEIGHT,
    NODES_FILE,
    RELATIONS_FILE,
    read_manifest,
)
from marius_py.partitioning import Partitioning
from marius_py.storage.file_io import os_errors_as_storage

if TYPE_CHECKING:
    from marius_py.storage.hdf5_edges import Hdf5EdgeStore


@dataclass(frozen=True, slots=True)
class Graph:
    """A prepared graph on disk: counts in memory, names and edges read on demand.

    Attributes:
        path: its folder, absolute.
        num_nodes: N.
        num_relations: R (1 for a graph without relations).
        has_relations: False when the edge list had two columns.
        partitioning: the ranges by which the train edges are sorted on disk.
        num_edges: edges by split "train", "valid", "test".
        fingerprint: hash of names, edges and their weights; does not depend on the number of partitions.
        seed: seed of the random ids and, if there was one, of the random split.
        names_are_integers: True when the node names were given as integers, not text.
        report: what preparing noticed: duplicate edges, self-loops, nodes and relations unknown to train,
            edges of valid and test that stand in train, as they are or reversed.
        files: name → "bytes" and "xxh3", a hash, of the other files of the folder.
        mean_weight: of the train edges; None where they have no weights.
    """

    path: Path
    num_nodes: int
    num_relations: int
    has_relations: bool
    partitioning: Partitioning
    num_edges: Mapping[str, int]
    fingerprint: str
    seed: int
    names_are_integers: bool
    report: Mapping[str, Any]
    files: Mapping[str, Mapping[str, Any]]
    mean_weight: float | None = None

    def __repr__(self) -> str:
        edges = ", ".join(f"{count} {split} edges" for split, count in self.num_edges.items())
        relations = f"{self.num_relations} relations" if self.has_relations else "no relations"
        return f"{type(self).__name__}({str(self.path)!r}: {self.num_nodes} nodes, {relations}, {edges})"

    def edges(self) -> Hdf5EdgeStore:
        """Open the edges as prepared; the caller closes the store.

        Raises:
            StorageError, FormatError: the file is missing, damaged or of another graph.
        """
        from marius_py.storage.hdf5_edges import Hdf5EdgeStore

        store = Hdf5EdgeStore(self.path / EDGES_FILE)
        if store.fingerprint != self.fingerprint or store.partitioning != self.partitioning:
            store.close()
            raise StorageError(
                f"{store.path} belongs to another graph than {self.path / GRAPH_FILE}; prepare it again"
            )
        return store

    def repartition(self, num_partitions: int, folder: Path | str) -> Hdf5EdgeStore:
        """Open the edges sorted into the buckets of another p; the caller closes the store.

        Node ids stay. With the graph's own p this is `edges()`; otherwise `folder`/edges.h5 is used if it
        holds this graph with that p already, else written out of core (atomically).

        Raises:
            ConfigError: more partitions than nodes. StorageError: reading or writing failed, or another
            thread of this process writes that file.
        """
        from marius_py.storage.edge_writer import resort
        from marius_py.storage.files import storage_error
        from marius_py.storage.hdf5_edges import SORT_ANEW, Hdf5EdgeStore
        from marius_py.storage.replacing import Replacing

        wanted = Partitioning(self.num_nodes, num_partitions)
        if wanted == self.partitioning:
            return self.edges()
        folder = as_path(folder, "folder", "the folder for the edges as sorted")
        path = folder / EDGES_FILE
        if os.path.realpath(path) == os.path.realpath(self.path / EDGES_FILE):
            raise ConfigError(
                f"repartition into {folder}: this would replace the graph's own edges; choose another folder"
            )
        existing = _existing_edges(path, self.fingerprint, wanted)
        if existing is not None:
            return existing
        with os_errors_as_storage("write", path):
            path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with Replacing([path]) as temporary, self.edges() as source:
                resort(source, temporary[path], num_partitions)
        except StorageError as error:
            cause = error.__cause__
            if error.errno is None and isinstance(cause, OSError) and cause.errno:  # of the writing itself
                raise storage_error("write", path, cause) from cause
            raise
        return Hdf5EdgeStore(path, SORT_ANEW)

    def degrees(self, start: int, stop: int) -> NDArray[np.int64]:
        """Read the total train degree (a self-loop counts twice) of node ids start..stop: (n,) int64."""
        with self.edges() as store:
            return store.degrees(start, stop)

    def node_names(self, start: int = 0, stop: int | None = None) -> list[str]:
        """Read the names of node ids start..stop (default: all), in id order."""
        from marius_py.graph.names import read_names

        return read_names(
            self.path / NODES_FILE, start, self.num_nodes if stop is None else stop, self.num_nodes
        )

    def relation_names(self) -> list[str]:
        """Read the names of all R relations in id order; `[""]` for a graph without relations."""
        if not self.has_relations:
            return [""]
        from marius_py.graph.names import read_names

        return read_names(self.path / RELATIONS_FILE, 0, self.num_relations, self.num_relations)

    def node_ids(self, names: Sequence[str]) -> NDArray[np.int64]:
        """Look node names up: (n,) int64 ids, −1 where no node has that name. Reads the names in blocks."""
        from marius_py.graph.names import find_names

        return find_names(self.path / NODES_FILE, names)

    def relation_ids(self, names: Sequence[str]) -> NDArray[np.int64]:
        """Look relation names up: (n,) int64 ids, −1 where no relation has that name."""
        from marius_py.graph.names import find_names

        return find_names(self.path / RELATIONS_FILE, names)


def open_graph(path: Path | str) -> Graph:
    """Open a prepared graph.

    Args:
        path: the folder that `prepare` wrote.

    Raises:
        MissingPathError (a StorageError): there is no such folder, or it holds no graph.
        StorageError: one of its files is missing or has the wrong size, or the folder may not be entered.
        FormatError: graph.json is damaged, no graph's, or of another format version.
        ConfigError: `path` is no path.
    """
    folder = as_path(path, "path", "a prepared graph's folder")
    with os_errors_as_storage("open the graph", folder):
        return _open(folder)


def check_graph(graph: object) -> None:
    """Refuse with a ConfigError what is no opened graph, a path among it."""
    if not isinstance(graph, Graph):
        raise ConfigError(
            f"graph is {shown(graph)}; allowed: an opened graph, as marius_py.open_graph(folder) returns it"
        )


def _open(folder: Path) -> Graph:
    if folder.is_file():
        if (folder.parent / GRAPH_FILE).is_file():
            raise MissingPathError(
                f"graph={folder} is a file in the folder of a prepared graph; give "
                f"{_word('graph', folder.parent)}"
            )
        raise MissingPathError(
            f"graph={folder} is a file, not the folder of a prepared graph; prepare one from it with "
            f"marius-prepare {_word('input.train', folder)} output=graphs/NAME and give graph=graphs/NAME"
        )
    if not folder.is_dir():
        raise MissingPathError(
            f"graph folder {folder} does not exist; prepare a graph there first "
            f"(marius-prepare input.train=FILE {_word('output', folder)})"
        )
    manifest = read_manifest(folder)
    for name, facts in manifest["files"].items():
        file = folder / name
        if not file.is_file():
            raise StorageError(f"{file} is missing; prepare the graph again")
        if file.stat().st_size != facts["bytes"]:
            raise StorageError(
                f"{file} is damaged: {file.stat().st_size} bytes, should be {facts['bytes']}; "
                "prepare the graph again"
            )
    return Graph(
        path=folder.absolute(),  # the current folder may be another one when a file is needed
        num_nodes=manifest["num_nodes"],
        num_relations=manifest["num_relations"],
        has_relations=manifest["has_relations"],
        partitioning=Partitioning(manifest["num_nodes"], manifest["num_partitions"]),
        num_edges=dict(manifest["num_edges"]),
        fingerprint=manifest["fingerprint"],
        seed=manifest["seed"],
        names_are_integers=manifest["names_are_integers"],
        report=dict(manifest["report"]),
        files=dict(manifest["files"]),
        mean_weight=manifest.get(MEAN_WEIGHT),
    )


def _word(key: str, path: Path) -> str:
    """A setting as a shell takes it."""
    return shlex.quote(f"{key}={path}")


def _existing_edges(path: Path, fingerprint: str, wanted: Partitioning) -> Hdf5EdgeStore | None:
    """An earlier result of `repartition`, unless it is of another graph or p, or its layout is damaged."""
    from marius_py.storage.hdf5_edges import SORT_ANEW, Hdf5EdgeStore

    try:
        store = Hdf5EdgeStore(path, SORT_ANEW)
    except MariusError:
        return None
    if store.fingerprint == fingerprint and store.partitioning == wanted:
        return store
    store.close()
    return None
