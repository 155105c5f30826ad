"""Settings of commands that take key=value without hydra (floor 6): words in; values by key, checked, out."""

from __future__ import annotations

import argparse
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from marius_py.config.near import suggest
from marius_py.errors import ConfigError
from marius_py.types import MAX_SEED

_MOST_DIGITS = 20
"""More than the largest number that a setting takes has."""


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Any number of words KEY=VALUE, as `options.settings`."""
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="as listed below")


def read_settings(
    words: Sequence[str], defaults: Mapping[str, str | None], repeated: Collection[str] = ()
) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """Text by key.

    Args:
        words: key=value each.
        defaults: every key, with the text that it has if it is not given, or given as null.
        repeated: keys that may be given several times.

    Returns:
        The text of every key, or None, lists of texts for `repeated`; and what was given, as it was.

    Raises:
        ConfigError: a word without "=", an unknown key, or one given twice that is none of `repeated`.
    """
    values: dict[str, Any] = dict(defaults)
    given: dict[str, list[str]] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or key not in defaults:
            raise ConfigError(f"{word!r} is no setting{suggest(key, defaults)} (--help lists them)")
        if key in given and key not in repeated:
            raise ConfigError(f"{key} is given twice: {given[key][0]!r} and {value!r}")
        given.setdefault(key, []).append(value)
    for key, found in given.items():
        if found != ["null"]:
            values[key] = found if key in repeated else found[0]
    return values, given


def whole(key: str, text: str, low: int, high: int) -> int:
    """The number that `text` is; ConfigError if it is no whole number from `low`, 0 or more, to `high`.

    >>> whole("partitions", "16", 1, 1024)
    16
    """
    plain = text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS
    if not plain or not low <= int(text) <= high:
        raise ConfigError(f"{key}={text}; allowed: a whole number from {low} to {high}")
    return int(text)


def seed_of(values: Mapping[str, Any]) -> int:
    """The number of the key seed; ConfigError if it is no whole number from 0 to MAX_SEED."""
    return whole("seed", values["seed"], 0, MAX_SEED)


def check_new_run(values: Mapping[str, Any], run: str, graph: str) -> None:
    """Refuse a run's folder that is taken or would hold the graph's, both by key, before either is made."""
    from marius_py.prepare.folder import check_output
    from marius_py.resuming.resume import check_free

    run_folder, graph_folder = (Path(os.path.abspath(values[key])) for key in (run, graph))
    if graph_folder.is_relative_to(run_folder):
        raise ConfigError(
            f"{run}={values[run]} would hold {graph}={values[graph]}, and a run begins in an empty folder: "
            "give the graph or the run another one"
        )
    check_free(Path(values[run]), resume=False)
    check_output(Path(values[run]), overwrite=False)


def choice(key: str, text: str, allowed: Sequence[str]) -> str:
    """`text`; ConfigError if it is none of `allowed`."""
    if text not in allowed:
        raise ConfigError(f"{key}={text}; allowed: {', '.join(allowed)}")
    return text


def flag(key: str, text: str) -> bool:
    """Whether `text` is true; ConfigError if it is neither true nor false."""
    return choice(key, text, ("true", "false")) == "true"
