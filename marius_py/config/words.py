"""Settings from Python as words (floor 5): mappings in, `key=value` as on the command line out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from marius_py.config.overrides import NESTED, quoted
from marius_py.errors import ConfigError


def words_of(settings: Mapping[str, Any]) -> list[str]:
    """Overrides for settings from Python: flat keys, nested mappings as in config.yaml, or a mix of both.

    A mapping with `_target_` for a key of `OPEN` names a class and all of its arguments.

    Raises:
        ConfigError: no mapping, or a key that is no text.

    >>> words_of({"model": {"dim": 16, "decoder": {"_target_": "transe", "norm": "l1"}}, "resume": True})
    ['model.dim=16', 'model.decoder={_target_:"transe",norm:"l1"}', 'resume=true']
    """
    if not isinstance(settings, Mapping):
        raise ConfigError(
            f"settings is {_shown(settings)}; allowed: a mapping of keys to values, "
            '{"model.dim": 64} or {"model": {"dim": 64}}'
        )
    return list(_words("", settings))


def _words(prefix: str, settings: Mapping[str, Any]) -> Iterator[str]:
    for name, value in settings.items():
        if not isinstance(name, str):
            raise ConfigError(f"settings: the key {name!r} is {type(name).__name__}; allowed: a text")
        key = f"{prefix}.{name}" if prefix else name
        if not isinstance(value, Mapping):
            yield f"{key}={_word(value)}"
        elif key in NESTED and "_target_" in value:
            yield f"{key}={_inside(value)}"
        elif key in ("loss", "optimizer"):
            # Their class is the choice of a file of the group; see `_choose`.
            chosen = "_target_" if key == "loss" else "name"
            if chosen in value:
                yield f"{key}={_word(value[chosen])}"
            yield from _words(key, {one: value[one] for one in value if one != chosen})
        else:
            yield from _words(key, value)


def _word(value: Any) -> str:
    """A setting's value as the command line has it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(_word(one) for one in value) + "]"
    return str(value)


def _inside(value: Any) -> str:
    """A value within a mapping: texts are quoted, as nothing else tells them from numbers there."""
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{name}:{_inside(one)}" for name, one in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(_inside(one) for one in value) + "]"
    return quoted(value) if isinstance(value, str) else _word(value)


def _shown(value: Any) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 80 else text[:77] + '…'}"
