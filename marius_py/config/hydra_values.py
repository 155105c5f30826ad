"""What hydra composes from words, as plain values (floor 5): files of conf/ and values for their keys.

Nobody else's hydra: its state belongs to the process, and what the program around us initialised comes back.
hydra takes a fifth of a second to compose the package's files; what it makes of each choice of them is kept,
so that a program that composes often, as in a search for settings, waits once.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, cast

from marius_py.config.explain import explain
from marius_py.config.groups import conf_dir
from marius_py.errors import ConfigError

_HYDRA = threading.Lock()
"""Held while hydra works."""

_PLAIN = re.compile(r"(?P<key>[A-Za-z_]\w*(\.[A-Za-z_]\w*)*)=(?!.*\$\{)", re.DOTALL)
"""A word that gives a key a value in which nothing is interpolated."""


def values_of(name: str, words: Sequence[str], own: Path | None) -> dict[str, Any]:
    """Compose the primary file `name` and what `words` say.

    Args:
        name: of a file in conf/.
        words: in hydra's grammar.
        own: the folder of the user's own groups, where files are looked for first.

    Raises:
        HydraException, OmegaConfBaseException, YAMLError, ValueError: words or files that cannot be composed.
        ConfigError: what is interpolated in them cannot be.
    """
    values = None if own else _upon_files(name, words)
    return _composed(name, words, own) if values is None else values


def files_of(name: str, words: Sequence[str], own: Path | None) -> Any:
    """The files that hydra composes, in order (`defaults`), and the groups chosen from (`overrides`).

    Args and errors as of `values_of`.
    """
    choices = tuple(word for word in words if not _is_value(word))
    changes = own or any("${" in word for word in choices)  # files, or what is interpolated
    return _listed(name, choices, own) if changes else _listed_once(name, choices)


def plain_of(composed: Any) -> dict[str, Any]:
    """Values of what hydra composed; ConfigError where they cannot be interpolated."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        values = OmegaConf.to_container(composed, resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigError(explain(error)) from error
    return cast(dict[str, Any], values)


def _composed(name: str, words: Sequence[str], own: Path | None) -> dict[str, Any]:
    from hydra import compose

    with _own_hydra(own):
        composed = compose(name, overrides=list(words))
    return plain_of(composed)


@lru_cache(maxsize=64)
def _composed_once(name: str, choices: tuple[str, ...]) -> dict[str, Any]:
    """The package's own files, for reading."""
    return _composed(name, choices, None)


def _listed(name: str, choices: tuple[str, ...], own: Path | None) -> Any:
    from hydra.core.global_hydra import GlobalHydra
    from hydra.types import RunMode

    with _own_hydra(own):
        return GlobalHydra.instance().config_loader().compute_defaults_list(name, list(choices), RunMode.RUN)


@lru_cache(maxsize=64)
def _listed_once(name: str, choices: tuple[str, ...]) -> Any:
    """The package's own files, for reading."""
    return _listed(name, choices, None)


@cache
def _groups() -> frozenset[str]:
    return frozenset(one.name for one in conf_dir().iterdir() if one.is_dir())


def is_choice(word: str) -> bool:
    """Whether a word chooses a file of one of the package's groups."""
    match = _PLAIN.match(word)
    return match is not None and match["key"] in _groups()


def _is_value(word: str) -> bool:
    """Whether a word gives a setting a value in which nothing is interpolated."""
    return _PLAIN.match(word) is not None and not is_choice(word)


def _upon_files(name: str, words: Sequence[str]) -> dict[str, Any] | None:
    """As `_composed` where each word chooses a file or gives a key that is there a plain value; else None.

    hydra's grammar reads the values; they take the place of those of the files, in the order given.
    """
    choices = tuple(filter(is_choice, words))
    given = _read([word for word in words if not is_choice(word)])
    if given is None:
        return None
    values = deepcopy(_composed_once(name, choices))
    for key, value in given:
        *sections, last = key.split(".")
        section: Any = values
        for one in sections:
            section = section.get(one) if isinstance(section, dict) else None
        if not isinstance(section, dict) or last not in section:
            return None
        section[last] = value
    return values


def _read(words: Sequence[str]) -> list[tuple[str, Any]] | None:
    """Keys and values, of words that give plain ones; None: some do not. HydraException: cannot be read."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    if not all(map(_is_value, words)):
        return None
    with _HYDRA:
        parsed = OverridesParser.create().parse_overrides(list(words))
    if any(one.is_sweep_override() for one in parsed):
        return None
    given = [(one.key_or_group, one.value()) for one in parsed]
    return given if all(_is_plain(value) for _, value in given) else None


def _is_plain(value: Any) -> bool:
    """Whether a value, or each of a list, stands for itself: "???" would be a value that is missing."""
    if isinstance(value, list):
        return not any(isinstance(one, list) for one in value) and all(map(_is_plain, value))
    return value is None or (isinstance(value, str | int | float) and value != "???")


def is_one_value(text: str) -> bool:
    """Whether hydra's grammar reads a text as one value.

    >>> is_one_value("runs/a"), is_one_value("1e3"), is_one_value("a, b"), is_one_value("it's")
    (True, True, False, False)
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    with _HYDRA:
        try:
            return not OverridesParser.create().parse_override(f"key={text}").is_sweep_override()
        except HydraException:
            return False


@contextmanager
def _own_hydra(groups: Path | None) -> Iterator[None]:
    """Our hydra, by one thread at a time; `groups` as `own` of `values_of`."""
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.version import VersionBase

    from marius_py.config.search_path import searched

    with _HYDRA:
        state, version = GlobalHydra.instance(), VersionBase.instance()
        outer, base = state.hydra, version.version_base
        state.hydra = None
        try:
            with searched(groups), initialize_config_dir(str(conf_dir()), version_base="1.3"):
                yield
        finally:
            GlobalHydra.set_instance(state)  # hydra leaves a copy in its place
            state.hydra, version.version_base = outer, base
