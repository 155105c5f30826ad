"""What a run has learnt (floor 4): a run folder in; rows, names, relations and its history out.

Opening reads the checkpoint's small arrays and the graph's counts. Node rows are read when they are asked
for, by name or by id; the whole table only by `to_numpy`.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from marius_py.errors import ConfigError, FormatError, MissingPathError, StorageError
from marius_py.evaluation.ranking.candidates import near_rows
from marius_py.evaluation.ranking.trained import TrainedModel, make_decoder
from marius_py.given import as_path, check_flags, shown
from marius_py.graph import Graph, open_graph
from marius_py.graph.manifest import GRAPH_FILE
from marius_py.graph.similar import similar_in
from marius_py.machine import resolve_device
from marius_py.pipeline.forked import tell_of_fork
from marius_py.run_files.folder import graph_folder, is_snapshot
from marius_py.run_files.given_names import Name, name_text, name_texts
from marius_py.run_files.names import CHECKPOINT_FOLDER, CONFIG_FILE, RESULT_META
from marius_py.storage.file_io import os_errors_as_storage
from marius_py.storage.protocols import Checkpoint
from marius_py.storage.reader import NodeReader, open_node_reader
from marius_py.storage.targets import check_working_directory

INVERSE_SUFFIX = "^-1"
"""Appended to a relation's name where a run keeps separate rows for its inverse; once more for all of them
where a relation of the graph has such a name already."""

R = TypeVar("R", bound="RunReader")

_BLOCK_BYTES = 32 << 20


class OtherGraphError(ConfigError):
    """A run is opened with another graph than it was trained on."""


class RunReader:
    """A run folder, opened for reading. One thread at a time. Use it in a `with` block, or `close` it.

    What is read is the commit that was the last one at the opening. A copy, pickled ones included, is opened
    anew where it is made or unpickled: it reads the last commit of that time, and has its own `close`.

    Attributes:
        path: the run folder, absolute.
        graph: the prepared graph it was trained on.
        model: decoder and relations, on the chosen device.
    """

    def __init__(self, path: Path, graph: Graph, reader: NodeReader, device: torch.device) -> None:
        self.path = path
        self.graph = graph
        self._reader = reader
        self._checkpoint = reader.checkpoint()
        _check_graph(self._checkpoint, graph, path)
        self.model = _model_of(self._checkpoint, reader.table.dim, path, device)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return open_run, (type(self), self.path, self.graph.path, str(self.model.device))

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({str(self.path)!r}: {self.num_nodes} nodes, "
            f"{self.graph.num_relations} relations, dim {self.dim}, {self.epochs} epochs)"
        )

    @property
    def num_nodes(self) -> int:
        """N."""
        return self.graph.num_nodes

    @property
    def dim(self) -> int:
        """Floats of a node row, D."""
        return self._reader.table.dim

    @property
    def fingerprint(self) -> str:
        """Hash of all embeddings as they were at the opening: what is derived from them can be told stale."""
        return self._reader.fingerprint

    @property
    def epochs(self) -> int:
        """Epochs that are done and committed."""
        return int(self._checkpoint.meta.get("position", (0,))[0])

    @property
    def history(self) -> list[dict[str, Any]]:
        """Metrics of each committed epoch, as in metrics.jsonl."""
        return deepcopy(list(self._checkpoint.meta.get("history", ())))

    @property
    def settings(self) -> dict[str, Any]:
        """Settings that the run cannot change: decoder, dim, reciprocal, …"""
        return deepcopy(dict(self._checkpoint.meta.get("settings", {})))

    @property
    def result(self) -> dict[str, Any] | Any:  # Any for None: who has trained the run need not ask for it
        """Metrics and costs of a run that has finished, as in result.json; None of one that has not.

        They are in its last commit, so that nothing depends on the file.
        """
        return deepcopy(self._checkpoint.meta.get(RESULT_META))

    @property
    def unfinished(self) -> str | None:
        """What a run has that was interrupted or is still going on, in words; None if it has finished.

        None for a snapshot too: it is whole, and nothing goes on with it.
        """
        if self.result is not None or is_snapshot(self.path):
            return None
        done = f"{self.epochs} epoch{'' if self.epochs == 1 else 's'}"
        return (
            f"{self.path} has not finished: this is its last commit, after {done}; "
            "resume=true goes on with it"
        )

    @property
    def nodes(self) -> NodeReader:
        """The node rows of the commit that is read."""
        tell_of_fork()  # whatever is computed of a run begins with its rows
        return self._reader

    @property
    def relation_names(self) -> list[str]:
        """Names of the R relations in id order."""
        return list(self._relation_numbers)

    @cached_property
    def _relation_numbers(self) -> dict[str, int]:
        """Name of each relation → its id, in id order."""
        return {name: number for number, name in enumerate(self.graph.relation_names())}

    @cached_property
    def inverse_suffix(self) -> str:
        """What the names of inverse relations end in: "^-1", repeated until no relation has such a name."""
        known, suffix = self._relation_numbers, INVERSE_SUFFIX
        while any(name + suffix in known for name in known):
            suffix += INVERSE_SUFFIX
        return suffix

    def node_ids(self, names: Iterable[Name]) -> NDArray[np.int64]:
        """Ids (n,) of node names.

        Raises:
            ConfigError: a name is unknown; the message offers similar ones.
        """
        names = name_texts(names, "node_names")
        ids = self.graph.node_ids(names)
        if (ids < 0).any():
            raise self._unknown("node", [name for name, i in zip(names, ids.tolist(), strict=True) if i < 0])
        return ids

    def relation_ids(self, names: Iterable[Name]) -> NDArray[np.int64]:
        """Ids (n,) of relation names; ConfigError like `node_ids`."""
        names = name_texts(names, "relation_names")
        ids = self.graph.relation_ids(names)
        if (ids < 0).any():
            raise self._unknown(
                "relation", [name for name, i in zip(names, ids.tolist(), strict=True) if i < 0]
            )
        return ids

    def embedding(self, name: Name) -> NDArray[np.float32]:
        """Embedding (D,) float32 of the node with this name; ConfigError if there is none."""
        row: NDArray[np.float32] = self.embeddings([name])[0]
        return row

    def embeddings(self, names: Iterable[Name] | NDArray[np.integer]) -> NDArray[np.float32]:
        """Embeddings (n, D) float32 of nodes by name, or by id (n,), in their order.

        Raises:
            ConfigError: an unknown name, an id out of range, or ids of another shape. StorageError: reading
            failed.
        """
        if isinstance(names, np.ndarray) and np.issubdtype(names.dtype, np.integer):
            if names.ndim != 1:
                raise ConfigError(f"node ids have shape {names.shape}; expected (n,)")
            ids = names.astype(np.int64)
            if ids.size and (int(ids.min()) < 0 or int(ids.max()) >= self.num_nodes):
                raise ConfigError(
                    f"node ids span {ids.min()} to {ids.max()}; allowed: 0 to {self.num_nodes - 1}"
                )
        else:
            ids = self.node_ids(names)
        distinct, inverse = np.unique(ids, return_inverse=True)
        rows = near_rows(self, distinct, self.dim, self.block_rows)
        return rows[inverse]

    @property
    def block_rows(self) -> int:
        """Rows that make a block of 32 MiB, for streaming."""
        return max(1, _BLOCK_BYTES // (4 * self.dim))

    def read_rows(self, start: int, stop: int) -> NDArray[np.float32]:
        """Embeddings (stop − start, D) of consecutive node ids, for streaming."""
        return self.nodes.read_rows(start, stop)

    def node_names(self, start: int = 0, stop: int | None = None) -> list[str]:
        """Names of consecutive node ids, to the last node if `stop` is None."""
        return self.graph.node_names(start, stop)

    def relation(self, name: Name, *, inverse: bool = False) -> NDArray[np.float32]:
        """Parameters (Dr,) float32 of a relation.

        Args:
            name: its name; in a reciprocal run also that of an inverse as `relations` lists it, "likes^-1".
            inverse: of its inverse, in a reciprocal run.

        Raises:
            ConfigError: unknown name, or `inverse` in a run without reciprocal relations.
        """
        check_flags(inverse=inverse)
        known = self._relation_numbers
        name = name_text(name, "the relation")
        base = name.removesuffix(self.inverse_suffix)
        if not inverse and name not in known and base != name and base in known:
            name, inverse = base, True
        if inverse and not self.model.reciprocal:
            raise ConfigError(
                f"the run in {self.path} has model.reciprocal=false and so no rows of inverse relations"
            )
        if name not in known:
            raise self._unknown("relation", [name])
        index = known[name] + (self.graph.num_relations if inverse else 0)
        row: NDArray[np.float32] = self.model.relations[index].cpu().numpy().copy()
        return row

    def relations(self) -> tuple[list[str], NDArray[np.float32]]:
        """Names and parameters (R, Dr) of all relations; in a reciprocal run (2R, Dr), inverses last."""
        names = self.relation_names
        if self.model.reciprocal:
            suffix = self.inverse_suffix
            names += [name + suffix for name in names]
        return names, self.model.relations.cpu().numpy().copy()

    def to_numpy(self) -> NDArray[np.float32]:
        """All embeddings (N, D) in the order of ids, in memory; names in `node_names()`."""
        table = np.empty((self.num_nodes, self.dim), dtype=np.float32)
        for start in range(0, self.num_nodes, self.block_rows):
            stop = min(start + self.block_rows, self.num_nodes)
            table[start:stop] = self.read_rows(start, stop)
        return table

    def to_torch(self) -> torch.Tensor:
        """All embeddings (N, D) float32 in the order of ids, on the CPU."""
        return torch.from_numpy(self.to_numpy())

    def close(self) -> None:
        """Release the files. May be called twice."""
        self._reader.close()

    def _unknown(self, kind: str, missing: list[str]) -> ConfigError:
        if kind == "relation" and not self.graph.has_relations:
            return ConfigError(
                f"the graph {self.graph.path} has no relations, but {missing[0]!r} is given: leave it out"
            )
        shown = ", ".join(repr(name) for name in missing[:3]) + (", …" if len(missing) > 3 else "")
        similar = similar_in(self.graph, kind, missing[0])
        hint = f" Did you mean {' or '.join(repr(name) for name in similar)}?" if similar else ""
        plural = "s" if len(missing) > 1 else ""
        return ConfigError(f"no {kind} of {self.graph.path} has the name{plural} {shown}.{hint}")


def open_run(kind: type[R], path: Path | str, graph: Path | str | None, device: str) -> R:
    """Open a run folder as a `RunReader` of some kind; see `marius_py.load` for arguments and errors."""
    resolved = resolve_device(str(device))
    given = as_path(path, "path", "the folder of a run")
    graph = None if graph is None else as_path(graph, "graph", "a prepared graph's folder")
    if not all(one.is_absolute() for one in (given, graph) if one is not None):
        check_working_directory()
    folder = given.absolute()  # the current folder may be another one when a file is needed
    with os_errors_as_storage("open", folder):
        is_run = (folder / CHECKPOINT_FOLDER).is_dir()
    if not is_run:
        if (folder / CONFIG_FILE).is_file():
            raise StorageError(
                f"the run {folder} has no {CHECKPOINT_FOLDER}/: nothing was committed yet, or it is lost"
            )
        said = f"{folder} is no run folder: it holds no {CHECKPOINT_FOLDER}/; "
        if folder.parent.name.startswith("run=") or folder.name.startswith("run="):
            raise MissingPathError(f"{said}RUN is given as it is, without run=")
        if (folder / GRAPH_FILE).is_file():
            raise MissingPathError(f"{said}this is a prepared graph: give the run that was trained on it")
        raise MissingPathError(f"{said}train one with marius-train graph=GRAPH output=FOLDER")
    reader = open_node_reader(folder / CHECKPOINT_FOLDER)
    try:
        trained_on = graph_folder(folder, reader.meta) if graph is None else graph
        opened = open_graph(trained_on.absolute())
        return kind(folder, opened, reader, resolved)
    except BaseException:
        reader.close()
        raise


def check_open(run: object) -> None:
    """Refuse with a ConfigError what is no open run, a path among it."""
    if not isinstance(run, RunReader):
        raise ConfigError(f"run is {shown(run)}; allowed: an open run, as marius_py.load(folder) returns it")


def _check_graph(checkpoint: Checkpoint, graph: Graph, path: Path) -> None:
    trained_on = checkpoint.meta.get("graph", {}).get("fingerprint")
    if trained_on is not None and trained_on != graph.fingerprint:
        raise OtherGraphError(
            f"the run in {path} was trained on another graph than {graph.path} "
            f"(fingerprints {trained_on} and {graph.fingerprint}); give graph= the folder it was trained on"
        )


def _model_of(checkpoint: Checkpoint, dim: int, path: Path, device: torch.device) -> TrainedModel:
    settings = checkpoint.meta.get("settings", {})
    try:
        decoder = make_decoder(settings["model.decoder"], dim)
        relations = torch.from_numpy(np.asarray(checkpoint.arrays["relations"], dtype=np.float32))
        return TrainedModel(decoder, relations.to(device), bool(settings["model.reciprocal"]))
    except KeyError as error:
        raise FormatError(f"the checkpoint in {path} lacks {error}; it is not of this version") from error
