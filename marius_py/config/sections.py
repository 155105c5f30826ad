"""From nested plain values to checked settings and back (floor 5): types, ranges, unknown keys.

In: nested mappings of plain values, as YAML or the command line give them. Out: frozen dataclasses, each leaf
checked whichever way it was given; one message an error.
"""

from __future__ import annotations

import typing
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, ClassVar, TypeVar

from marius_py.config.built_in import short_name
from marius_py.config.fields import Component, is_note, join, keys_of, type_of
from marius_py.config.near import unknown_key
from marius_py.config.values import coerce, shown
from marius_py.errors import ConfigError

T = TypeVar("T")


def build(
    kind: type[T], values: Mapping[str, Any], prefix: str = "", known: Iterable[str] | None = None
) -> T:
    """Make a configuration dataclass from nested plain values.

    Args:
        kind: the dataclass.
        values: plain values by field name, sections as mappings; what is left out takes its default.
        prefix: dotted key of this section.
        known: all keys of the whole configuration, for suggestions.

    Raises:
        ConfigError: an unknown key, a wrong type or a value out of range.
    """
    if not isinstance(values, Mapping):
        raise ConfigError(
            f"{prefix}={shown(values)} has the wrong type: it is a section with the keys "
            f"{', '.join(key for key, _, _ in keys_of(kind, prefix))}"
        )
    names = {item.name: item for item in fields(typing.cast(Any, kind))}
    spread = getattr(kind, "SPREAD", None)
    everything = list(known) if known is not None else [key for key, _, _ in keys_of(kind, prefix)]
    made: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    for name, value in values.items():
        name = str(name)
        if name in names and name != spread:
            hint = type_of(kind, name)
            key = join(prefix, name)
            if is_dataclass(hint) and isinstance(hint, type) and hint is not Component:
                made[name] = build(hint, {} if value is None else value, key, everything)
            elif is_note(names[name]):
                made[name] = value
            else:
                made[name] = coerce(value, hint, key, names[name])
        elif spread is not None:
            extra[name] = value
        else:
            raise unknown_key(join(prefix, name), everything)
    if spread is not None and extra:
        made[spread] = extra
    return kind(**made)


def plain(config: Any) -> dict[str, Any]:
    """A configuration as nested plain values that `build` reads back (for YAML and JSON).

    What the program notes beside settings is left out where there is nothing to note.
    """
    values: dict[str, Any] = {}
    spread = getattr(config, "SPREAD", None)
    for item in fields(config):
        value = getattr(config, item.name)
        if is_note(item) and value == item.default:
            continue
        if isinstance(value, Component):
            values[item.name] = value.plain()
        elif is_dataclass(value):
            values[item.name] = plain(value)
        elif item.name == spread:
            values.update(value)
        elif isinstance(value, tuple):
            values[item.name] = list(value)
        else:
            values[item.name] = value
    return values


class Checked:
    """Checks the leaves on construction; `PREFIX` is the dotted key that messages name."""

    __slots__ = ()
    PREFIX: ClassVar[str] = ""

    def __post_init__(self) -> None:
        check_fields(self, self.PREFIX)
        self.check()

    def check(self) -> None:
        """Check what concerns several fields at once; ConfigError when they do not fit together."""


def check_fields(config: Any, prefix: str) -> None:
    """Check every leaf of a dataclass that was made directly in Python; ConfigError as `build` raises it.

    Called by `__post_init__`, so that a value out of range cannot enter by any door. Lists become tuples,
    paths of built-in classes their names, and mappings the sections that they are given for.
    """
    for item in fields(config):
        hint, key = type_of(type(config), item.name), join(prefix, item.name)
        value = checked = getattr(config, item.name)
        if item.metadata:
            checked = _by_short_name(coerce(value, hint, key, item), item.metadata["registry"])
        elif not is_note(item) and not isinstance(value, hint):
            checked = build(hint, value, key)
        if checked is not value:
            object.__setattr__(config, item.name, checked)


def _by_short_name(value: Any, registry: str) -> Any:
    if not registry:
        return value
    if isinstance(value, Component):
        return replace(value, target=short_name(value.target, registry))
    return short_name(value, registry)
