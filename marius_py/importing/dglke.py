"""DGL-KE's data and checkpoints (floor 5): triples, mappings, .npy tables in; a graph or a run folder out.

Mapping files give names by number; the numbers are those of the rows of its tables.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marius_py.errors import ConfigError, FormatError
from marius_py.given import as_path, check_flags
from marius_py.graph import Graph
from marius_py.importing.dglke_triples import FORMATS, Triples
from marius_py.importing.files import (
    as_float32,
    check_file,
    check_folder,
    check_holds,
    finite,
    open_rows,
    read_json,
    shown,
)
from marius_py.importing.mappings import check_delimiter, mapping_file, read_mapping
from marius_py.importing.runs import DEFAULT_MEMORY_BYTES, PeerModel, write_run
from marius_py.prepare import prepare_arrays
from marius_py.prepare.progress import ProgressHook
from marius_py.whole import is_whole

CONFIG_NAME = "config.json"
PHASE_EPSILON = 2.0
"""RotatE's phases are scaled by (gamma + this) / hidden width."""

_DECODERS: Mapping[str, Mapping[str, Any]] = {
    "TransE": {"_target_": "transe", "norm": "l2"},
    "TransE_l1": {"_target_": "transe", "norm": "l1"},
    "TransE_l2": {"_target_": "transe", "norm": "l2"},
    "DistMult": {"_target_": "distmult"},
    "ComplEx": {"_target_": "complex"},
    "RESCAL": {"_target_": "rescal"},
    "RotatE": {"_target_": "rotate", "norm": "moduli"},
}
_BLOCK_BYTES = 32 << 20


def dglke_graph(
    train: Path | str,
    output: Path | str,
    *,
    valid: Path | str | None = None,
    test: Path | str | None = None,
    entities: Path | str | None = None,
    relations: Path | str | None = None,
    format: str = "built_in",
    delimiter: str = "\t",
    importance: bool = False,
    partitions: int | None = None,
    seed: int = 0,
    split: Sequence[float] | None = None,
    overwrite: bool = False,
    progress: ProgressHook | None = None,
) -> Graph:
    """Prepare a graph from DGL-KE's triples and mappings.

    Args:
        train: file of triples.
        output: folder to create.
        valid: file of the validation triples.
        test: of the test triples. With neither, `train` is split at random by `split`.
        entities: mapping of entities, a line "number, name"; None: entities.dict or entities.tsv
            beside `train`.
        relations: likewise of relations.
        format: as DGL-KE's --format: built_in and raw_udd_hrt hold names, udd_hrt numbers, in the order of
            the last three letters.
        delimiter: one character.
        importance: a fourth column holds the weights of the edges of `train`, as with --has_edge_importance;
            otherwise it is ignored.
        partitions, seed, split, overwrite, progress: as for `prepare`.

    Returns:
        The graph, opened; it holds all entities of the mapping, whether or not they have an edge.

    Raises:
        ConfigError: an argument is wrong. MissingPathError: a file is missing. FormatError: a line is
        malformed, a name or number is not in the mapping.
    """
    if format not in FORMATS:
        raise ConfigError(f"format is {format!r}; allowed: built_in, raw_udd_hrt, udd_hrt, or another order")
    check_delimiter(delimiter)
    check_flags(importance=importance)
    for key, path in (("input.train", train), ("input.valid", valid), ("input.test", test)):
        if path is not None:
            check_file(path, key, "triples")
    train = as_path(train, "input.train", "the file of triples")
    beside = train.parent
    names = {
        what: read_mapping(mapping_file(what, given, [beside]), delimiter)
        for what, given in (("entities", entities), ("relations", relations))
    }
    reader = Triples(names["entities"], names["relations"], format, delimiter)
    return prepare_arrays(
        reader.blocks(train, weighted=importance),
        output,
        weighted=importance,
        valid=None if valid is None else reader.blocks(Path(valid)),
        test=None if test is None else reader.blocks(Path(test)),
        num_nodes=len(names["entities"]),
        num_relations=len(names["relations"]),
        node_names=names["entities"],
        relation_names=names["relations"],
        partitions=partitions,
        seed=seed,
        split=split,
        overwrite=overwrite,
        progress=progress,
    )


def dglke_run(
    checkpoint: Path | str,
    graph: Graph,
    output: Path | str,
    *,
    entities: Path | str | None = None,
    relations: Path | str | None = None,
    data: Path | str | None = None,
    delimiter: str = "\t",
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    progress: ProgressHook | None = None,
) -> Path:
    """Make a run folder of a checkpoint of DGL-KE.

    The score is DGL-KE's minus its gamma (for models that have one): the same order, the same softmax.

    Args:
        checkpoint: folder of config.json and the two tables, DATASET_MODEL_entity.npy and ..._relation.npy.
        graph: a graph with the same names, such as `dglke_graph` makes.
        output: run folder, new or empty.
        entities: mapping of entities; None: the one that config.json names, in `checkpoint` or `data`.
        relations: likewise of relations.
        data: folder in which mappings are looked for too.
        delimiter: of the mappings.
        memory_bytes: bound of the rows in memory.
        progress: as for `write_run`.

    Returns:
        The run folder.

    Raises:
        ConfigError: the model has no equal here. MissingPathError: no such folder or mapping. StorageError,
        FormatError: a file is missing, damaged,
        half-written, or of another shape than config.json says.
    """
    model = dglke_model(checkpoint, entities=entities, relations=relations, data=data, delimiter=delimiter)
    return write_run(model, graph, output, memory_bytes=memory_bytes, progress=progress)


def dglke_model(
    checkpoint: Path | str,
    *,
    entities: Path | str | None = None,
    relations: Path | str | None = None,
    data: Path | str | None = None,
    delimiter: str = "\t",
) -> PeerModel:
    """What `dglke_run` writes, read and checked as far as that needs no graph; arguments and errors alike.

    Rows stay in their file until they are asked for.
    """
    check_delimiter(delimiter)
    folder = check_folder(checkpoint, "checkpoint", f"{CONFIG_NAME} and the tables of DGL-KE")
    check_holds(folder, (CONFIG_NAME, "*.npy"), "checkpoint", "a checkpoint of DGL-KE")
    trained = read_config(folder / CONFIG_NAME)
    if trained.model not in _DECODERS:
        raise ConfigError(
            f"the model {trained.model} of DGL-KE has no equal here; allowed: {', '.join(_DECODERS)}"
        )
    places = [folder] if data is None else [folder, as_path(data, "data", "a folder with mappings")]
    names = {
        what: read_mapping(mapping_file(what, given, places, named), delimiter)
        for what, given, named in (
            ("entities", entities, trained.entity_map),
            ("relations", relations, trained.relation_map),
        )
    }
    stem = f"{trained.dataset}_{trained.model}"
    rows = open_rows(folder / f"{stem}_entity.npy", "the embeddings of entities")
    relation_rows = open_rows(folder / f"{stem}_relation.npy", "the embeddings of relations")
    dim = rows.shape[1]
    decoder, width = convert_model(trained, dim)
    for found, wanted, path in (
        (rows.shape, (len(names["entities"]), dim), f"{stem}_entity.npy"),
        (relation_rows.shape, (len(names["relations"]), width), f"{stem}_relation.npy"),
    ):
        if found != wanted:
            raise FormatError(
                f"{folder / path} has shape {found}; {trained.model} with {len(names['entities'])} entities, "
                f"{len(names['relations'])} relations and a width of {dim} needs {wanted}"
            )
    step = max(1, _BLOCK_BYTES // (4 * dim))

    def blocks() -> Iterator[tuple[int, NDArray[np.float32]]]:
        for start in range(0, len(rows), step):
            yield start, as_float32(rows[start : start + step])

    return PeerModel(
        decoder=decoder,
        dim=dim,
        reciprocal=False,
        node_names=names["entities"],
        relation_names=names["relations"],
        relations=as_float32(relation_rows),
        blocks=blocks,
        facts={
            "from": "DGL-KE",
            "checkpoint": str(folder.absolute()),
            "model": trained.model,
            "gamma": trained.gamma if trained.model.startswith(("TransE", "RotatE")) else None,
        },
    )


# ---------------------------------------------------------------------- the model


@dataclass(frozen=True, slots=True)
class TrainedWith:
    """What config.json says about a model.

    Attributes:
        dataset, model: parts of the tables' names.
        hidden_dim: width before doubling, from 1; None if it says nothing.
        gamma: margin of the score, finite; None if it says nothing.
        entity_map, relation_map: names of the mapping files, if it says them.
    """

    dataset: str
    model: str
    hidden_dim: int | None
    gamma: float | None
    entity_map: str | None
    relation_map: str | None


def read_config(path: Path) -> TrainedWith:
    """Read config.json, with the keys of DGL-KE's older and newer versions.

    Raises:
        StorageError: missing. FormatError: damaged, it names no dataset or model, or a value is none that its
        key can have.
    """
    values = read_json(path, "the configuration of DGL-KE")
    if not isinstance(values, dict):
        raise FormatError(f"{path} holds no configuration of DGL-KE: it is not a JSON object")

    def first(*keys: str) -> tuple[str, Any]:
        return next(((key, values[key]) for key in keys if values.get(key) is not None), (keys[0], None))

    def text(*keys: str) -> str | None:
        key, value = first(*keys)
        if value is not None and (not isinstance(value, str) or not value or "\0" in value):
            raise FormatError(f"{path}: {key} is {value!r}; it should be a text")
        return value

    def whole(*keys: str) -> int | None:
        key, value = first(*keys)
        if value is not None and not is_whole(value, 1):
            raise FormatError(f"{path}: {key} is {shown(value)}; allowed: a whole number from 1")
        return value

    def number(*keys: str) -> float | None:
        key, value = first(*keys)
        if value is not None and finite(value) is None:
            raise FormatError(f"{path}: {key} is {shown(value)}; allowed: a finite number")
        return finite(value)

    dataset, model = text("dataset"), text("model", "model_name")
    if dataset is None or model is None:
        raise FormatError(f"{path} names no dataset, or no model: it is no whole configuration of DGL-KE")
    if "/" in dataset or "/" in model:
        raise FormatError(f"{path}: dataset {dataset!r} and model {model!r} are parts of the tables' names")
    return TrainedWith(
        dataset,
        model,
        whole("emb_size", "hidden_dim"),
        number("gamma"),
        text("emap_file", "emp_file"),
        text("rmap_file"),
    )


def convert_model(trained: TrainedWith, dim: int) -> tuple[Mapping[str, Any], int]:
    """The decoder that scores alike, up to gamma, and the width of its relation rows.

    Args:
        trained: what config.json says, of a model that has an equal here.
        dim: width of the table of entities.

    Raises:
        FormatError: a width or gamma does not fit the model.
    """
    model, gamma, hidden = trained.model, trained.gamma, trained.hidden_dim
    if model in ("ComplEx", "RotatE") and dim % 2:
        raise FormatError(f"the table of entities is {dim} wide; {model} needs an even width")
    if hidden is not None:
        # RotatE's phases are of half the entities' width; other models score alike with either width.
        wanted = (2 * hidden,) if model == "RotatE" else (hidden, 2 * hidden)
        if dim not in wanted:
            raise FormatError(
                f"the table of entities is {dim} wide; {model} with emb_size (hidden_dim) {shown(hidden)} "
                f"needs {' or '.join(map(shown, wanted))}"
            )
    decoder = dict(_DECODERS[model])
    if model == "RotatE":
        if gamma is None or hidden is None or gamma + PHASE_EPSILON <= 0:
            raise FormatError(
                f"RotatE's phases need gamma, above -{PHASE_EPSILON:g}, and emb_size; the configuration has "
                f"{gamma}, {hidden}"
            )
        decoder["phase_scale"] = math.pi * hidden / (gamma + PHASE_EPSILON)
    return decoder, {"RESCAL": dim * dim, "RotatE": dim // 2}.get(model, dim)
