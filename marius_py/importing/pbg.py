"""PyTorch-BigGraph's data and checkpoints (floor 5): its folders in; a prepared graph, a run folder out.

Nodes are numbered by entity type, partition and place, in the configuration's order, on the way; names join
the graph and the checkpoint.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from marius_py.errors import ConfigError, FormatError, MissingPathError, StorageError
from marius_py.graph import Graph
from marius_py.importing.files import (
    as_float32,
    check_file,
    check_folder,
    data_set,
    open_hdf5,
    read_bytes,
    read_count,
    read_floats,
)
from marius_py.importing.pbg_schema import (
    CONFIG_NAME,
    Schema,
    dynamic_names,
    infer_schema,
    names_of,
    read_schema,
)
from marius_py.importing.pbg_scores import convert_relations
from marius_py.importing.runs import DEFAULT_MEMORY_BYTES, PeerModel, write_run
from marius_py.prepare import prepare_arrays
from marius_py.prepare.progress import ProgressHook

VERSION_FILE = "checkpoint_version.txt"
_VERSION_DIGITS = 10
_EDGE_FILE = re.compile(r"edges_(\d+)_(\d+)\.h5")
_BLOCK_EDGES = 1 << 20
_BLOCK_BYTES = 32 << 20
_LISTED = 4
"""Buckets without a file that a message names."""

logger = logging.getLogger(__name__)

Paths = Path | str | Sequence[Path | str]


@dataclass(frozen=True, slots=True)
class Entities:
    """Counts of all partitions, and where their nodes' numbers begin.

    Attributes:
        counts: nodes of each partition, by entity type.
        starts: number of each partition's first node, by entity type.
        total: N.
    """

    counts: Mapping[str, tuple[int, ...]]
    starts: Mapping[str, tuple[int, ...]]
    total: int


def pbg_graph(
    entities: Path | str | None,
    train: Paths,
    output: Path | str,
    *,
    valid: Paths | None = None,
    test: Paths | None = None,
    config: Path | str | None = None,
    partitions: int | None = None,
    seed: int = 0,
    split: Sequence[float] | None = None,
    overwrite: bool = False,
    progress: ProgressHook | None = None,
) -> Graph:
    """Prepare a graph from PyTorch-BigGraph's entities and edge buckets.

    Args:
        entities: folder of entity_count_*, entity_names_* and dynamic_rel_*; None: the configuration's.
        train: folder of edges_I_J.h5, or several. A bucket without a file counts as empty, with a warning;
            edge weights are left out, with a warning.
        output: folder to create.
        valid: folder, or folders, of the validation edges.
        test: of the test edges. With neither, `train` is split at random by `split`.
        config: its config.json; None: known from the folder, if that has one entity type and dynamic
            relations.
        partitions, seed, split, overwrite, progress: as for `prepare`.

    Returns:
        The graph, opened. Of several entity types names are "type/name". One relation type with the operator
        none makes a graph without relations.

    Raises:
        ConfigError: an argument is wrong. StorageError: a file is missing. FormatError: a file is damaged,
        half-written, or contradicts another.
    """
    if config is not None:
        check_file(Path(config), "config", f"the {CONFIG_NAME} of PyTorch-BigGraph")
    schema, folder = _schema_and_entities(config, entities)
    counts = read_entities(schema, folder)
    relations = relation_names(schema, folder)

    def edges(paths: Paths, split: str) -> Iterator[NDArray[np.int64]]:
        return _edge_blocks(schema, counts, relations, _folders(paths), f"input.{split}")

    return prepare_arrays(
        edges(train, "train"),
        output,
        valid=None if valid is None else edges(valid, "valid"),
        test=None if test is None else edges(test, "test"),
        num_nodes=counts.total,
        num_relations=None if relations is None else len(relations),
        node_names=node_names(schema, folder, counts),
        relation_names=relations,
        partitions=partitions,
        seed=seed,
        split=split,
        overwrite=overwrite,
        progress=progress,
    )


def pbg_run(
    checkpoint: Path | str,
    graph: Graph,
    output: Path | str,
    *,
    entities: Path | str | None = None,
    config: Path | str | None = None,
    version: int | None = None,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    progress: ProgressHook | None = None,
) -> Path:
    """Make a run folder of a checkpoint of PyTorch-BigGraph; see docs/convert.md for what scores alike.

    Args:
        checkpoint: folder of embeddings_*.vN.h5 and model.vN.h5.
        graph: a graph with the same names, such as `pbg_graph` makes.
        output: run folder, new or empty.
        entities: folder of names and counts; None: the configuration's, else the checkpoint's.
        config: its config.json; None: the one in `checkpoint`.
        version: N; None: the one that checkpoint_version.txt names.
        memory_bytes: bound of the rows in memory.
        progress: as for `write_run`.

    Returns:
        The run folder.

    Raises:
        ConfigError: the model has no equal here, the checkpoint has no file of `version`, or an argument is
        wrong. StorageError, FormatError: a file is missing, damaged, half-written, or of another shape than
        the configuration says.
    """
    source = check_folder(Path(checkpoint), "checkpoint", "a checkpoint of PyTorch-BigGraph")
    if config is not None:
        check_file(Path(config), "config", f"the {CONFIG_NAME} of PyTorch-BigGraph")
    schema, folder = _schema_and_entities(source / CONFIG_NAME if config is None else config, entities)
    assert schema.dimension is not None  # read_schema refuses a configuration without it
    number = _version(source) if version is None else version
    counts = read_entities(schema, folder)
    names = relation_names(schema, folder)
    files = [
        (source / f"embeddings_{entity}_{part}.v{number}.h5", entity, counts.starts[entity][part], count)
        for entity in schema.entities
        for part, count in enumerate(counts.counts[entity])
    ]
    if version is not None:
        _check_version(source, version, [path for path, *_ in files])
    for path, entity, _, count in files:  # all of them before anything is written
        with open_hdf5(path, f"the embeddings of {entity}") as file:
            data_set(file, "embeddings", (count, schema.dimension))
    with open_hdf5(source / f"model.v{number}.h5", "the model's parameters") as file:
        converted = convert_relations(schema, file, 1 if names is None else len(names))
        shifts = _global_embeddings(schema, file)
    model = PeerModel(
        decoder=converted.decoder,
        dim=schema.dimension,
        reciprocal=converted.reciprocal,
        node_names=node_names(schema, folder, counts),
        relation_names=names,
        relations=converted.relations,
        blocks=lambda: _row_blocks(files, schema, shifts),
        facts={"from": "PyTorch-BigGraph", "checkpoint": str(source.absolute()), "version": number},
    )
    return write_run(model, graph, output, memory_bytes=memory_bytes, progress=progress)


# ---------------------------------------------------------------------- entities and relations


def read_entities(schema: Schema, folder: Path) -> Entities:
    """Counts of all partitions; StorageError or FormatError if a file is missing or holds no number."""
    counts, starts, total = {}, {}, 0
    for entity, parts in schema.entities.items():
        sizes = [
            read_count(folder / f"entity_count_{entity}_{part}.txt", f"the number of {entity} entities")
            for part in range(parts)
        ]
        counts[entity] = tuple(sizes)
        starts[entity] = tuple((total + np.cumsum([0, *sizes])[:-1]).tolist())
        total += sum(sizes)
    if not total:
        raise FormatError(f"{folder} says that there are no entities at all")
    return Entities(counts, starts, total)


def node_names(schema: Schema, folder: Path, counts: Entities) -> list[str]:
    """All names in the order of numbers; "part/place" where no partition of a type has a file of names.

    Raises:
        StorageError: only some partitions of a type have one. FormatError: names are damaged or too few.
    """
    names: list[str] = []
    for entity in schema.entities:
        prefix = f"{entity}/" if len(schema.entities) > 1 else ""
        paths = [folder / f"entity_names_{entity}_{part}.json" for part in range(schema.entities[entity])]
        named = [path.is_file() for path in paths]
        for part, (path, count) in enumerate(zip(paths, counts.counts[entity], strict=True)):
            if named[part]:
                own = names_of(path, count, f"{entity} entities")
            elif any(named) and count:
                raise StorageError(
                    f"{path} is missing, while {paths[named.index(True)].name} is there; either all "
                    f"partitions of {entity} have a file of names, or none"
                )
            else:
                own = [f"{part}/{place}" for place in range(count)]
            names += [prefix + name for name in own] if prefix else own
    return names


def relation_names(schema: Schema, folder: Path) -> list[str] | None:
    """Names of the relations; None where one type with the operator none makes them meaningless."""
    if schema.dynamic:
        return dynamic_names(folder)
    if len(schema.relations) == 1 and schema.relations[0].operator == "none":
        return None
    return [one.name for one in schema.relations]


def _schema_and_entities(config: Path | str | None, entities: Path | str | None) -> tuple[Schema, Path]:
    """The schema and the folder of names and counts."""
    if config is None:
        if entities is None:
            raise ConfigError("give entities=DIR, the folder of entity_count_*, or config=FILE")
        return infer_schema(Path(entities)), Path(entities)
    schema = read_schema(Path(config))
    if entities is not None:
        return schema, check_folder(Path(entities), "entities", "entity_count_* and entity_names_*")
    beside = Path(config).parent
    named = [] if schema.entity_path is None else [beside / schema.entity_path, Path(schema.entity_path)]
    first = next(iter(schema.entities))
    for folder in (*named, beside):
        if (folder / f"entity_count_{first}_0.txt").is_file():
            return schema, folder
    raise MissingPathError(
        f"entity_count_{first}_0.txt is neither in {schema.entity_path!r}, the entity_path of {config}, nor "
        "beside that file; say where it is: entities=DIR"
    )


# ---------------------------------------------------------------------- edges


def _folders(paths: Paths) -> list[Path]:
    return [Path(paths)] if isinstance(paths, (str, Path)) else [Path(path) for path in paths]


def _edge_blocks(
    schema: Schema, counts: Entities, relations: list[str] | None, folders: list[Path], key: str
) -> Iterator[NDArray[np.int64]]:
    """Edges (n, 3) as numbers, or (n, 2) without relations, in blocks; files are listed at once.

    `key` is the setting that names the folders.
    """
    files = []
    for folder in folders:
        check_folder(folder, key, "edges_I_J.h5")
        found = [(entry, match) for entry in folder.iterdir() if (match := _EDGE_FILE.fullmatch(entry.name))]
        if not found:
            raise MissingPathError(f"{key}={folder} holds no edges_I_J.h5")
        buckets = sorted((int(match[1]), int(match[2]), entry) for entry, match in found)
        _warn_of_absent(schema, {bucket[:2] for bucket in buckets}, f"{key}={folder}")
        files += buckets
    return _read_edges(schema, counts, relations, files, key)


def _warn_of_absent(schema: Schema, found: set[tuple[int, int]], where: str) -> None:
    """Warn of buckets without a file: one that got lost cannot be told from an empty one."""
    rows, columns = (
        range(max(schema.entities[getattr(one, side)] for one in schema.relations)) for side in ("lhs", "rhs")
    )
    present = sum(i in rows and j in columns for i, j in found)
    absent = len(rows) * len(columns) - present
    if absent:
        names = list(islice((f"{i}_{j}" for i in rows for j in columns if (i, j) not in found), _LISTED))
        more = ", …" if absent > _LISTED else ""
        logger.warning(
            "%s: %d of %d buckets have a file; none for %s%s: taken for empty",
            where, present, present + absent, ", ".join(names), more,
        )  # fmt: skip


def _read_edges(
    schema: Schema,
    counts: Entities,
    relations: list[str] | None,
    files: list[tuple[int, int, Path]],
    key: str,
) -> Iterator[NDArray[np.int64]]:
    weighted = False
    for lhs_part, rhs_part, path in files:
        sides = [
            _Side(schema, counts, side, part, path) for side, part in (("lhs", lhs_part), ("rhs", rhs_part))
        ]
        with open_hdf5(path, "a bucket of edges") as file:
            if "lhsd_data" in file or "rhsd_data" in file:
                raise FormatError(f"{path} holds featurized entities, which have no equal here")
            if "weight" in file and not weighted:
                weighted = True
                logger.warning("%s: the edges have weights (%s), which are left out", key, path.name)
            rel = data_set(file, "rel", (None,), "iu")
            ends = [data_set(file, name, rel.shape, "iu") for name in ("lhs", "rhs")]
            for start in range(0, len(rel), _BLOCK_EDGES):
                span = slice(start, start + _BLOCK_EDGES)
                kind = rel[span].astype(np.int64)
                known = len(schema.relations) if relations is None else len(relations)
                _check_range(kind, known, "relation", path, start)
                types = np.zeros_like(kind) if schema.dynamic else kind
                head, tail = (
                    side.numbers(end[span].astype(np.int64), types, start)
                    for side, end in zip(sides, ends, strict=True)
                )
                columns = (head, tail) if relations is None else (head, kind, tail)
                yield np.stack(columns, axis=1)


class _Side:
    """Numbers of the nodes on one side of a bucket."""

    def __init__(self, schema: Schema, counts: Entities, side: str, part: int, path: Path) -> None:
        self._path = path
        self._name = side
        starts, sizes = [], []
        for relation in schema.relations:
            entity = getattr(relation, side)
            # An entity type in one partition meets the others in buckets of any number.
            own = 0 if schema.entities[entity] == 1 else part
            if own >= schema.entities[entity]:
                raise FormatError(
                    f"{path} is of partition {part} on side {side}; {entity} has {schema.entities[entity]}"
                )
            starts.append(counts.starts[entity][own])
            sizes.append(counts.counts[entity][own])
        self._starts, self._sizes = np.array(starts), np.array(sizes)

    def numbers(self, offsets: NDArray[np.int64], types: NDArray[np.int64], first: int) -> NDArray[np.int64]:
        """Numbers (n,) of places in the partition."""
        wrong = np.flatnonzero((offsets < 0) | (offsets >= self._sizes[types]))
        if wrong.size:
            row = int(wrong[0])
            raise FormatError(
                f"{self._path}, edge {first + row}: {self._name} is {offsets[row]}; the partition has "
                f"{self._sizes[types[row]]} entities"
            )
        found: NDArray[np.int64] = self._starts[types] + offsets
        return found


def _check_range(values: NDArray[np.int64], count: int, what: str, path: Path, first: int) -> None:
    wrong = np.flatnonzero((values < 0) | (values >= count))
    if wrong.size:
        row = int(wrong[0])
        raise FormatError(f"{path}, edge {first + row}: {what} {values[row]}; allowed: 0 to {count - 1}")


# ---------------------------------------------------------------------- a checkpoint


def _version(folder: Path) -> int:
    """The version of the last whole checkpoint."""
    text = read_bytes(folder / VERSION_FILE, "the version of the checkpoint").strip()
    if not text.isdigit() or len(text) > _VERSION_DIGITS or int(text) == 0:
        raise StorageError(
            f"{folder / VERSION_FILE} names no version ({text[:40]!r}): no checkpoint was completed there; "
            "version=N takes one all the same"
        )
    return int(text)


def _check_version(folder: Path, version: int, embeddings: list[Path]) -> None:
    """Refuse a version of which the checkpoint has no file with a ConfigError; one file missing is damage."""
    if any(path.exists() for path in (folder / f"model.v{version}.h5", *embeddings)):
        return
    found = (re.fullmatch(r"model\.v(\d+)\.h5", path.name) for path in folder.glob("model.v*.h5"))
    there = sorted(int(name[1]) for name in found if name is not None)
    raise ConfigError(
        f"version={version}: {folder} holds no file of that version; there are "
        f"{', '.join(map(str, there)) or 'none'}"
    )


def _global_embeddings(schema: Schema, file: h5py.File) -> dict[str, NDArray[np.float32]]:
    """What is added to the rows of each entity type."""
    if not schema.global_emb or "model/entities" not in file:
        return {}
    return {
        entity: read_floats(file, f"model/entities/{entity}/global_embedding", (schema.dimension,))
        for entity in schema.entities
    }


def _row_blocks(
    files: list[tuple[Path, str, int, int]], schema: Schema, shifts: Mapping[str, NDArray[np.float32]]
) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """All embeddings as they are compared: shortened to max_norm, the type's global embedding added."""
    step = max(1, _BLOCK_BYTES // (4 * (schema.dimension or 1)))
    for path, entity, first, count in files:
        with open_hdf5(path, f"the embeddings of {entity}") as file:
            table: Any = data_set(file, "embeddings", (count, schema.dimension))
            for start in range(0, count, step):
                rows = as_float32(table[start : start + step])
                if schema.max_norm is not None:
                    norms = np.linalg.norm(rows, axis=1, keepdims=True).astype(np.float64)
                    rows *= as_float32(np.where(norms > schema.max_norm, schema.max_norm / (norms + 1e-7), 1))
                if entity in shifts:
                    rows += shifts[entity]
                yield first + start, rows
