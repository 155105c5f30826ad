"""Which words a command takes for keys (floor 5): a key in; nothing, or an error that says what was meant."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import is_dataclass
from typing import Any, cast

from marius_py.config.evaluate_schema import EvaluateConfig
from marius_py.config.fields import Component, keys_of, type_of
from marius_py.config.groups import groups_of
from marius_py.config.near import unknown_key
from marius_py.config.prepare_schema import PrepareConfig
from marius_py.config.schema import TrainConfig

OPEN = ("model.decoder", "model.init", "negatives.sampler", "loss", "optimizer")
"""Keys whose mapping also takes the arguments of the class they name."""

_COMMANDS: dict[type[Any], str] = {
    TrainConfig: "marius-train",
    EvaluateConfig: "marius-evaluate",
    PrepareConfig: "marius-prepare",
}
"""Configuration class → the command that it is of."""


def is_of_hydra(key: str) -> bool:
    """Whether a key is one of hydra's own settings or groups."""
    return key.startswith(("hydra.", "hydra/"))


def check_key(kind: type[Any], key: str) -> None:
    """Refuse what is no key of a command: no setting, section, group, or argument of a class.

    Args:
        kind: its configuration class.
        key: as given.

    Raises:
        ConfigError: names the nearest keys and groups, or the command that has such a key.
    """
    if is_of_hydra(key) or _takes(kind, key):
        return
    others = [command for other, command in _COMMANDS.items() if other is not kind and _takes(other, key)]
    raise unknown_key(key, _settings(kind), sorted(groups_of(kind)), others)


def _takes(kind: type[Any], key: str) -> bool:
    """Whether the command of a configuration class takes a key."""
    if key in _settings(kind) or key in groups_of(kind) or key in _sections(kind):
        return True
    return kind is TrainConfig and any(key.startswith(name + ".") for name in OPEN)


def _settings(kind: type[Any]) -> list[str]:
    return [name for name, _, _ in keys_of(kind)]


def _sections(kind: type[Any], prefix: str = "") -> Iterator[str]:
    for name, hint in ((n, type_of(kind, n)) for n in kind.__dataclass_fields__):
        if is_dataclass(hint) and hint is not Component:
            yield prefix + name
            yield from _sections(cast(type[Any], hint), f"{prefix}{name}.")
