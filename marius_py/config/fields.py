"""What a field of a configuration dataclass declares (floor 5): its default, unit and range.

In: the dataclasses of the schemas. Out: their keys, types and defaults. Each field declares its default, unit
and range once, with `setting`; everything else (checks, `--help`, the table of the documentation) is derived
from that declaration.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from typing import Any, TypeVar

from marius_py.errors import ConfigError

T = TypeVar("T")

MEBIBYTE = 2**20

NAME_KEYS = ("_target_", "name")
"""The keys under which a component's mapping may hold its name."""


@dataclass(frozen=True, slots=True)
class Component:
    """A class to be used, by its registered name or dotted path, with its own arguments.

    Attributes:
        target: registered name ("complex") or dotted path ("mypkg.MyDecoder").
        arguments: keyword arguments that the class takes besides those the package passes.
    """

    target: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, value: Any, key: str) -> Component:
        """Read a name, or a mapping with `_target_` (or `name`) and arguments; ConfigError names `key`."""
        if isinstance(value, Component):
            return value
        if isinstance(value, str) and value:
            return cls(value)
        if isinstance(value, Mapping):
            given = [name for name in NAME_KEYS if name in value]
            if len(given) == 1 and isinstance(value[given[0]], str) and value[given[0]]:
                return cls(value[given[0]], {str(k): v for k, v in value.items() if k != given[0]})
            if len(given) > 1 and isinstance(value["name"], str):
                name = value["name"]
                raise ConfigError(
                    f"{key}.name={name} is no setting: {key} itself names the class, {key}={name}"
                )
        raise ConfigError(
            f"{key}={value!r} names no class: allowed are a registered name, a dotted path, or a mapping "
            "with _target_ and arguments, such as {_target_: mypkg.MyClass, alpha: 0.5}"
        )

    def plain(self) -> dict[str, Any]:
        """The component as a mapping that `parse` reads back."""
        return {"_target_": self.target, **self.arguments}


def setting(
    default: Any,
    text: str,
    *,
    unit: str = "",
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    below: float | None = None,
    float32: bool = False,
    choices: tuple[str, ...] = (),
    path: bool = False,
    registry: str = "",
) -> Any:
    """Declare a field of a configuration dataclass.

    Args:
        default: the value without any override.
        text: what the setting does, one sentence.
        unit: unit of a number.
        low, high: inclusive ends of the range; `above`, `below`: exclusive ones.
        float32: rows are computed with the number, so float32 has to hold it.
        choices: the allowed names of a string whose type is not a Literal of them.
        path: the string is a file or folder name, so any character is taken as it stands; of a list, each is.
        registry: of a class, the dictionary of `marius_py.nn.registry` that names the built-in ones.
    """
    metadata = {
        "text": text,
        "unit": unit,
        "low": low,
        "high": high,
        "above": above,
        "below": below,
        "float32": float32,
        "choices": choices,
        "path": path,
        "registry": registry,
    }
    if isinstance(default, (dict, list)):
        raise TypeError("a mutable default is shared between instances; give a tuple or a Component")
    if isinstance(default, Component):
        return field(default_factory=lambda: default, metadata=metadata)
    return field(default=default, metadata=metadata)


def section(kind: type[T]) -> T:
    """Declare a field that holds another configuration dataclass with its defaults."""
    return field(default_factory=kind)


def default_of(item: Field[Any]) -> Any:
    """The default value of a dataclass field, whichever way it is declared."""
    if item.default is not MISSING:
        return item.default
    if item.default_factory is not MISSING:
        return item.default_factory()
    return MISSING


def type_of(owner: type[Any], name: str) -> Any:
    """The resolved type of a field."""
    if owner not in _HINTS:
        _HINTS[owner] = typing.get_type_hints(owner)
    return _HINTS[owner][name]


_HINTS: dict[type[Any], dict[str, Any]] = {}
"""Resolved types by class: resolving them is a quarter of the time of composing."""


def is_note(item: Field[Any]) -> bool:
    """Whether a field is no setting and no section, but what the program notes beside settings."""
    return not item.metadata and item.default is not MISSING


def join(prefix: str, name: str) -> str:
    """The dotted key of a field."""
    return f"{prefix}.{name}" if prefix else name


def keys_of(kind: type[Any], prefix: str = "") -> Iterator[tuple[str, type[Any], Field[Any]]]:
    """All leaf keys of a configuration class in order: (dotted key, owner class, field).

    The field of a class's further arguments is none: they are keys beside the others.
    """
    for item in fields(kind):
        hint = type_of(kind, item.name)
        if is_dataclass(hint) and isinstance(hint, type) and hint is not Component:
            yield from keys_of(hint, join(prefix, item.name))
        elif item.metadata and item.name != getattr(kind, "SPREAD", None):
            yield join(prefix, item.name), kind, item
