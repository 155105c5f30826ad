"""Entities of PyTorch-BigGraph (floor 5): a schema and a folder in; counts and names of nodes out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from marius_py.errors import ConfigError, FormatError, MissingPathError, StorageError
from marius_py.given import as_path
from marius_py.importing.files import check_folder, has_repeats, read_count
from marius_py.importing.pbg_schema import Schema, dynamic_names, infer_schema, names_of, read_schema


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
        StorageError: only some partitions of a type have one. FormatError: names are damaged, too few, or
        not distinct.
    """
    names: list[str] = []
    for entity in schema.entities:
        prefix = f"{entity}/" if len(schema.entities) > 1 else ""
        paths = [folder / f"entity_names_{entity}_{part}.json" for part in range(schema.entities[entity])]
        named = [path.is_file() for path in paths]
        first = len(names)
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
        if any(named) and has_repeats(names[first:]):
            raise FormatError(
                f"{folder}: entity_names_{entity}_*.json hold a name twice; names must be distinct"
            )
    return names


def relation_names(schema: Schema, folder: Path) -> list[str] | None:
    """Names of the relations; None where one type with the operator none makes them meaningless."""
    if schema.dynamic:
        return dynamic_names(folder)
    if len(schema.relations) == 1 and schema.relations[0].operator == "none":
        return None
    return [one.name for one in schema.relations]


def schema_and_entities(config: Path | str | None, entities: Path | str | None) -> tuple[Schema, Path]:
    """The schema and the folder of names and counts."""
    if config is None:
        if entities is None:
            raise ConfigError("give entities=DIR, the folder of entity_count_*, or config=FILE")
        folder = as_path(entities, "entities", "the folder of entity_count_*")
        return infer_schema(folder), folder
    schema = read_schema(Path(config))
    if entities is not None:
        return schema, check_folder(entities, "entities", "entity_count_* and entity_names_*")
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
