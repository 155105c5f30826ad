"""Settings from Python as words (floor 5): mappings in, `key=value` as on the command line out."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from typing import Any

from marius_py.config.fields import join
from marius_py.config.hydra_values import is_one_value
from marius_py.config.known_keys import OPEN
from marius_py.config.overrides import NESTED, path_keys, quoted
from marius_py.config.schema import TrainConfig
from marius_py.config.values import as_list
from marius_py.errors import ConfigError

logger = logging.getLogger(__name__)

NOTES = ("training.regularizer.n3_automatic", "training.regularizer.n3_relation_automatic")
"""What config.yaml notes beside settings: whoever gives its number for n3 gives just that number."""

_OF_CLASSES = (*OPEN, "trackers")
"""Keys whose values name classes."""

_OF_ARGUMENTS = tuple(f"{key}." for key in OPEN)
"""What keys of arguments of classes begin with."""

_NO_TEXT: Any = object.__str__
"""The method of types that have a repr alone."""


def words_of(settings: Mapping[str, Any], kind: type[Any] = TrainConfig) -> list[str]:
    """Overrides for settings from Python: flat keys, nested mappings as in config.yaml, or a mix of both.

    Of a key that is given both ways the latter value counts, as on the command line.

    A mapping with `_target_` for a key of `OPEN` names a class and all of its arguments. Names of files and
    folders stand for themselves, also "null" and what hydra would take for a quotation or interpolation; so
    do texts in such a mapping and, as arguments by a key of their own, those that hydra cannot read.

    Args:
        settings: values by key.
        kind: configuration class.

    Raises:
        ConfigError: no mapping, a key that is no text, or a value that no setting can have.

    >>> words_of({"model": {"dim": 16, "decoder": {"_target_": "transe", "norm": "l1"}}, "resume": True})
    ['model.dim=16', 'model.decoder={_target_:"transe",norm:"l1"}', 'resume=true']
    >>> words_of({"output": "runs/a, b", "graph": None})
    ['output="runs/a, b"', 'graph=null']
    """
    if not isinstance(settings, Mapping):
        raise ConfigError(
            f"settings is {_shown(settings)}; allowed: a mapping of keys to values, "
            '{"model.dim": 64} or {"model": {"dim": 64}}'
        )
    return list(_words("", settings, path_keys(kind)))


def _words(prefix: str, settings: Mapping[str, Any], paths: set[str]) -> Iterator[str]:
    for name, value in settings.items():
        if not isinstance(name, str):
            raise ConfigError(f"settings: the key {name!r} is {type(name).__name__}; allowed: a text")
        key = join(prefix, name)
        if key in NOTES:
            continue
        if key in paths and isinstance(value, (str, PathLike)):
            yield f"{key}={quoted(os.fsdecode(value))}"
        elif isinstance(value, str) and key.startswith(_OF_ARGUMENTS) and not is_one_value(value):
            yield f"{key}={quoted(value)}"
        elif not isinstance(value, Mapping):
            yield f"{key}={_word(value, key)}"
        elif key in NESTED and "_target_" in value:
            yield f"{key}={_inside(value, key)}"
        elif key in ("loss", "optimizer"):
            # Their class is the choice of a file of the group; see `_choose`.
            chosen = "_target_" if key == "loss" else "name"
            if chosen in value:
                yield f"{key}={_word(value[chosen], key)}"
            yield from _words(key, {one: value[one] for one in value if one != chosen}, paths)
        else:
            yield from _words(key, value, paths)


def _word(value: Any, key: str) -> str:
    """A setting's value as the command line has it; the key is for messages."""
    value = as_list(value)
    if key.removesuffix("._target_").removesuffix(".name") in _OF_CLASSES:
        _check_class(value, key)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, type):  # named by its path, as on the command line
        return f"{_module_of(value)}.{value.__qualname__}"
    if isinstance(value, (list, tuple)):
        return _inside(value, key)
    _check_text(value, key)
    return str(value)


def _check_text(value: Any, key: str) -> None:
    """Refuse what has no text of its own, as functions, generators and most objects have none; bytes, too."""
    has_text = isinstance(value, (str, int, float)) or type(value).__str__ is not _NO_TEXT
    if not has_text or isinstance(value, bytes):
        raise ConfigError(
            f"{key} is {_shown(value)}; allowed: a text, a number, True, False, None, a list or a mapping"
        )


def _module_of(kind: type[Any]) -> str:
    """Name of a class's module; that of the program has another one in spawned processes, beside __main__."""
    return "__main__" if kind.__module__ == "__mp_main__" else kind.__module__


def _check_class(value: Any, key: str) -> None:
    """Refuse a class that its path does not lead to, and what has been made of one."""
    if isinstance(value, type):
        if "." in value.__qualname__:
            raise ConfigError(
                f"{key} is the class {value.__module__}.{value.__qualname__}, which cannot be imported by "
                "that path, as a run has to: define it at the top level of a module, in no class or function"
            )
        if _module_of(value) == "__main__":
            logger.warning(
                "%s is %s of the program that runs, where alone the run can be %sresumed: put it into a "
                "module of its own for other programs and the commands",
                key,
                value.__qualname__,
                "used and " if key.startswith("model.decoder") else "",
            )
    elif not (value is None or isinstance(value, (Sequence, int, float))):
        arguments = f' (its arguments are settings too: "{key}.ARGUMENT")' if key in OPEN else ""
        raise ConfigError(
            f"{key} is {_shown(value)}; allowed: a class itself, its name or its path{arguments}"
        )


def _inside(value: Any, key: str) -> str:
    """A value within a mapping or list: texts are quoted, as nothing else tells them from numbers there."""
    value = as_list(value)
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{name}:{_inside(one, f'{key}.{name}')}" for name, one in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(_inside(one, key) for one in value) + "]"
    return quoted(os.fsdecode(value)) if isinstance(value, (str, PathLike)) else _word(value, key)


def _shown(value: Any) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 80 else text[:77] + '…'}"
