"""What a PyTorch-BigGraph configuration says about its files (floor 5): config.json in, a `Schema` out.

Only JSON is read: PyTorch-BigGraph writes it into the checkpoint's folder. A configuration in Python is code.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marius_py.errors import ConfigError, FormatError, MissingPathError
from marius_py.importing.files import check_folder, finite, read_count, read_json, shown
from marius_py.whole import is_whole

CONFIG_NAME = "config.json"
RELATION_COUNT = "dynamic_rel_count.txt"
RELATION_NAMES = "dynamic_rel_names.json"
OPERATORS = ("none", "diagonal", "translation", "complex_diagonal", "linear", "affine")
COMPARATORS = ("dot", "cos", "l2", "squared_l2")

_NO_NAME = re.compile(r"[\x00\ud800-\udfff]")
"""A NUL, or half of a character (a lone surrogate), which UTF-8 cannot spell."""
_COUNT_FILE = re.compile(r"entity_count_(.+)_(\d+)\.txt")


@dataclass(frozen=True, slots=True)
class RelationType:
    """One entry of the configuration's relations: types of its two sides, operator, factor of the loss."""

    name: str
    lhs: str
    rhs: str
    operator: str
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Schema:
    """The part of a configuration that its files' meaning depends on.

    Attributes:
        entities: number of partitions by entity type, in the configuration's order.
        relations: relation types; one that stands for all if `dynamic`.
        dynamic: relations are numbered in the entity folder, and each has an operator a side.
        dimension, comparator, bias, global_emb, max_norm: of the model.
        entity_path: folder of names and counts, as configured.
    """

    entities: Mapping[str, int]
    relations: tuple[RelationType, ...]
    dynamic: bool
    dimension: int | None = None
    comparator: str = "cos"
    bias: bool = False
    global_emb: bool = True
    max_norm: float | None = None
    entity_path: str | None = None

    @property
    def factors(self) -> list[float] | None:
        """What the edges of each relation count; None: all alike."""
        found = [relation.weight for relation in self.relations]
        return found if len(set(found)) > 1 else None


def read_schema(path: Path) -> Schema:
    """Read a configuration.

    Raises:
        StorageError: missing. ConfigError: a Python file. FormatError: no configuration, or with featurized
        entities or dimensions by entity type, which have no equal here.
    """
    if path.suffix == ".py":
        raise ConfigError(
            f"config={path} is Python code, which is not run here; give the {CONFIG_NAME} that "
            "PyTorch-BigGraph wrote into the folder of the checkpoint"
        )
    values = read_json(path, "the configuration of PyTorch-BigGraph")
    if not isinstance(values, dict):
        raise FormatError(f"{path} holds no configuration of PyTorch-BigGraph: it is not a JSON object")
    read = _Reader(path)
    entities = {
        _entity_name(name, path): _partitions(name, read.mapping(value, f"entities.{name}"), read)
        for name, value in read.mapping(values.get("entities"), "entities").items()
    }
    relations = values.get("relations")
    if not entities or not isinstance(relations, list) or not relations:
        raise FormatError(f"{path} names no entities, or no relations: it is no whole configuration")
    types = tuple(_relation(value, number, entities, read) for number, value in enumerate(relations))
    schema = Schema(
        entities=entities,
        relations=types,
        dynamic=read.flag(values.get("dynamic_relations", False), "dynamic_relations"),
        dimension=read.whole(values.get("dimension"), "dimension"),
        comparator=read.choice(values.get("comparator", "cos"), "comparator", COMPARATORS),
        bias=read.flag(values.get("bias", False), "bias"),
        global_emb=read.flag(values.get("global_emb", True), "global_emb"),
        max_norm=read.number(values.get("max_norm"), "max_norm"),
        entity_path=values.get("entity_path") if isinstance(values.get("entity_path"), str) else None,
    )
    if schema.dynamic and len(types) != 1:
        raise FormatError(f"{path}: with dynamic_relations there is one relation, not {len(types)}")
    if not schema.dynamic and len({one.name for one in types}) < len(types):
        raise FormatError(f"{path}: two relations have the same name; names must be distinct")
    return schema


def infer_schema(folder: Path) -> Schema:
    """The schema of one entity type, from the names of the files in its folder alone.

    Raises:
        MissingPathError: no such folder or no counts in it. ConfigError: several entity types, or no
        relations' count: a configuration is needed.
    """
    check_folder(folder, "entities", "entity_count_* and entity_names_*")
    found: dict[str, int] = {}
    for entry in folder.iterdir():
        match = _COUNT_FILE.fullmatch(entry.name)
        if match is not None:
            found[match[1]] = max(found.get(match[1], 0), int(match[2]) + 1)
    if not found:
        raise MissingPathError(f"entities={folder} holds no entity_count_TYPE_PART.txt")
    dynamic = (folder / RELATION_COUNT).is_file()
    if len(found) > 1 or not dynamic:
        reason = f"entity types {', '.join(sorted(found))}" if len(found) > 1 else f"no {RELATION_COUNT}"
        raise ConfigError(
            f"entities={folder} has {reason}, so only the configuration tells what relations there are: "
            f"give config=FILE, the {CONFIG_NAME} of the checkpoint"
        )
    (entity,) = found
    return Schema(found, (RelationType("all", entity, entity, "none"),), True)


def dynamic_names(folder: Path) -> list[str]:
    """Names of dynamic relations; their numbers if there is no file of names.

    Raises:
        StorageError: no count. FormatError: it is 0, counts differ, or names are no distinct texts.
    """
    count = read_count(folder / RELATION_COUNT, "the number of relations")
    if count == 0:
        raise FormatError(f"{folder / RELATION_COUNT} holds 0; it should hold the number of relations")
    if not (folder / RELATION_NAMES).is_file():
        return [str(number) for number in range(count)]
    names = names_of(folder / RELATION_NAMES, count, "relations")
    if len(set(names)) < count:
        raise FormatError(f"{folder / RELATION_NAMES} holds a name twice; names must be distinct")
    return names


def names_of(path: Path, count: int, what: str) -> list[str]:
    """A JSON list of `count` names, texts or whole numbers; FormatError otherwise."""
    names = read_json(path, f"the names of {what}")
    if not isinstance(names, list):
        raise FormatError(f"{path} should hold a list of names of {what}")
    place = next((place for place, name in enumerate(names) if not _is_name(name)), None)
    if place is not None:
        raise FormatError(
            f"{path}: name {place} of {what} is {shown(names[place])}; allowed: a text in UTF-8 that is "
            "not empty and has no NUL, or a whole number"
        )
    if len(names) != count:
        raise FormatError(f"{path} has {len(names)} names, but there are {count} {what}")
    return [str(name) for name in names]


def _is_name(value: Any) -> bool:
    if isinstance(value, str):
        return bool(value) and _NO_NAME.search(value) is None
    return isinstance(value, int) and not isinstance(value, bool)


class _Reader:
    """Checks of plain values, naming the file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def mapping(self, value: Any, key: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self._wrong(key, value, "an object")
        return value

    def whole(self, value: Any, key: str) -> int:
        if not is_whole(value, 1):
            raise self._wrong(key, value, "a whole number from 1")
        return value

    def number(self, value: Any, key: str) -> float | None:
        if value is None:
            return None
        found = finite(value)
        if found is None or found <= 0:
            raise self._wrong(key, value, "a finite number above 0, or null")
        return found

    def weight(self, value: Any, key: str) -> float:
        found = finite(value)
        if found is None or found < 0:
            raise self._wrong(key, value, "a finite number from 0")
        return found

    def flag(self, value: Any, key: str) -> bool:
        if not isinstance(value, bool):
            raise self._wrong(key, value, "true, false")
        return value

    def text(self, value: Any, key: str) -> str:
        if not isinstance(value, str) or not value:
            raise self._wrong(key, value, "a text that is not empty")
        return value

    def choice(self, value: Any, key: str, known: tuple[str, ...]) -> str:
        if value not in known:
            raise self._wrong(key, value, ", ".join(known))
        return str(value)

    def refuse(self, key: str, value: Any, why: str) -> FormatError:
        """The error for what has no equal here."""
        return FormatError(f"{self._path}: {key} is {value!r}: {why}")

    def _wrong(self, key: str, value: Any, allowed: str) -> FormatError:
        return FormatError(f"{self._path}: {key} is {shown(value)}; allowed: {allowed}")


def _entity_name(name: str, path: Path) -> str:
    if not name or "/" in name or "\0" in name:
        raise FormatError(f"{path}: the entity type {name!r} cannot be part of a file's name")
    return name


def _partitions(name: str, value: dict[str, Any], read: _Reader) -> int:
    if value.get("featurized"):
        raise read.refuse(f"entities.{name}.featurized", True, "entities made of features have no equal here")
    if value.get("dimension") is not None:
        raise read.refuse(
            f"entities.{name}.dimension",
            value["dimension"],
            "a type's own width has no equal here",
        )
    return read.whole(value.get("num_partitions"), f"entities.{name}.num_partitions")


def _relation(value: Any, number: int, entities: Mapping[str, int], read: _Reader) -> RelationType:
    key = f"relations[{number}]"
    fields = read.mapping(value, key)
    known = tuple(entities)
    return RelationType(
        name=read.text(fields.get("name", str(number)), f"{key}.name"),
        lhs=read.choice(fields.get("lhs"), f"{key}.lhs", known),
        rhs=read.choice(fields.get("rhs"), f"{key}.rhs", known),
        operator=read.choice(fields.get("operator", "none"), f"{key}.operator", OPERATORS),
        weight=read.weight(fields.get("weight", 1.0), f"{key}.weight"),
    )
