"""PyTorch-BigGraph's data and checkpoints (floor 5): its folders in; a prepared graph, a run folder out.

Nodes are numbered by entity type, partition and place, in the configuration's order, on the way; names join
the graph and the checkpoint.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from marius_py.errors import ConfigError, StorageError
from marius_py.graph import Graph
from marius_py.importing.files import (
    as_float32,
    check_file,
    check_folder,
    check_holds,
    data_set,
    open_hdf5,
    read_bytes,
    read_floats,
)
from marius_py.importing.pbg_edges import Paths, edge_blocks, have_weights
from marius_py.importing.pbg_entities import node_names, read_entities, relation_names, schema_and_entities
from marius_py.importing.pbg_schema import CONFIG_NAME, Schema
from marius_py.importing.pbg_scores import convert_relations
from marius_py.importing.runs import DEFAULT_MEMORY_BYTES, PeerModel, write_run
from marius_py.prepare import WeightedEdges, prepare_arrays
from marius_py.prepare.progress import ProgressHook

VERSION_FILE = "checkpoint_version.txt"
_VERSION_DIGITS = 10
_BLOCK_BYTES = 32 << 20


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
        train: folder of edges_I_J.h5, or several. A bucket without a file counts as empty, with a warning.
            Weights of edges are read where all files have them.
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
        check_file(config, "config", f"the {CONFIG_NAME} of PyTorch-BigGraph")
    schema, folder = schema_and_entities(config, entities)
    counts = read_entities(schema, folder)
    relations = relation_names(schema, folder)

    in_files = have_weights(train, "input.train")

    def edges(paths: Paths, split: str) -> Iterator[NDArray[np.int64] | WeightedEdges]:
        reads = in_files and split == "train"
        return edge_blocks(schema, counts, relations, paths, f"input.{split}", weighted=reads)

    return prepare_arrays(
        edges(train, "train"),
        output,
        weighted=in_files or schema.factors is not None,
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
    model = pbg_model(checkpoint, entities=entities, config=config, version=version)
    return write_run(model, graph, output, memory_bytes=memory_bytes, progress=progress)


def pbg_model(
    checkpoint: Path | str,
    *,
    entities: Path | str | None = None,
    config: Path | str | None = None,
    version: int | None = None,
) -> PeerModel:
    """What `pbg_run` writes, read and checked as far as that needs no graph; arguments and errors alike.

    Rows stay in their files until they are asked for.
    """
    source = check_folder(checkpoint, "checkpoint", "a checkpoint of PyTorch-BigGraph")
    if config is None:
        check_holds(source, (CONFIG_NAME, "*.h5"), "checkpoint", "a checkpoint of PyTorch-BigGraph")
    else:
        check_file(config, "config", f"the {CONFIG_NAME} of PyTorch-BigGraph")
    schema, folder = schema_and_entities(source / CONFIG_NAME if config is None else config, entities)
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
    return PeerModel(
        decoder=converted.decoder,
        dim=schema.dimension,
        reciprocal=converted.reciprocal,
        node_names=node_names(schema, folder, counts),
        relation_names=names,
        relations=converted.relations,
        blocks=lambda: _row_blocks(files, schema, shifts),
        facts={"from": "PyTorch-BigGraph", "checkpoint": str(source.absolute()), "version": number},
    )


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
