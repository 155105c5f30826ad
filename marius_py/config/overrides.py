"""Words `key=value` made ready for hydra (floor 5): checked keys, quoted paths, classes by their path.

In: words as a user gives them. Out: words that hydra's grammar takes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, cast

from marius_py.config.built_in import short_name
from marius_py.config.fields import Component, keys_of, suggest, type_of, unknown_key
from marius_py.config.groups import conf_dir, group_options, groups_of
from marius_py.config.schema import TrainConfig
from marius_py.errors import ConfigError

OPEN = ("model.decoder", "model.init", "negatives.sampler", "loss", "optimizer")
"""Keys whose mapping also takes the arguments of the class they name."""

NESTED = OPEN[:3]
"""Those of them that are keys inside a section, not groups of files."""

VERBATIM = ("input.delimiter", "input.comment")
"""Keys besides those of paths whose value is quoted: hydra would trim a tab, and fail at a semicolon."""

_IDENTIFIER = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*\Z")
_CHOICE = re.compile(r"[\w./-]+\Z")
_QUOTED = re.compile(r"""(['"])(?:\\.|(?!\1)[^\\])*\1\Z""", re.DOTALL)
_OVERRIDE = re.compile(r"(?P<prefix>\+\+|\+|~|)(?P<key>[^=\s]+?)(?:=(?P<value>.*))?\Z", re.DOTALL)


def prepare_overrides(
    kind: type[Any], overrides: Sequence[str], *, sweep: bool = False, config_dir: str | Path | None = None
) -> list[str]:
    """Check override keys and rewrite the conveniences that hydra's grammar lacks.

    Paths are quoted, so that any file name works; `loss=mypkg.MyLoss` and arguments of a class
    (`model.decoder.norm=1`) become plain hydra; without a graph the demo's settings come first.

    Args:
        kind: configuration class.
        overrides: words as given.
        sweep: several values a key are allowed (multirun), so nothing is quoted.
        config_dir: folder with groups of the user's own.

    Raises:
        ConfigError: unknown key or group choice.
    """
    words: list[str] = []
    parsed = [_split(word) for word in overrides]
    for prefix, key, value in parsed:
        _check_key(kind, key)
        if value is None:
            words.append(prefix + key)
        elif key in groups_of(kind):
            words += _choose(
                key, prefix, value, sweep, [conf_dir(), *([Path(config_dir)] if config_dir else [])]
            )
        elif key in NESTED and (
            value.startswith("{") or (_IDENTIFIER.match(value) and _has_arguments(key, parsed))
        ):
            # A mapping replaces the one of the group's file instead of being merged into it.
            mapping = value if value.startswith("{") else f"{{_target_:{value}}}"
            words += [f"~{key}", f"+{key}={mapping}"]
        elif any(key.startswith(name + ".") for name in OPEN):
            words.append(f"++{key}={value}")
        elif (key in VERBATIM or key in path_keys(kind)) and not sweep:
            words.append(f"{prefix}{key}={_quote(value)}")
        else:
            words.append(f"{prefix}{key}={value}")
    names = {key: value for _, key, value in parsed}
    demo = kind is TrainConfig and names.get("graph") in (None, "null")
    if demo and "experiment" not in names and str(names.get("resume", "false")).lower() != "true":
        words.insert(0, "experiment=demo")
    return words


def _split(word: str) -> tuple[str, str, str | None]:
    match = _OVERRIDE.match(word)
    if match is None:
        raise ConfigError(f"{word!r} is no setting: settings have the form key=value, such as model.dim=64")
    if match["value"] is None and match["prefix"] != "~":
        raise ConfigError(f"{word!r} has no value: settings have the form key=value, such as model.dim=64")
    return match["prefix"], match["key"], match["value"]


def keys_in(overrides: Sequence[str]) -> set[str]:
    """Keys that some of `overrides` set."""
    return {key for _, key, _ in map(_split, overrides)}


def _has_arguments(key: str, parsed: Sequence[tuple[str, str, str | None]]) -> bool:
    return any(other.startswith(key + ".") for _, other, _ in parsed)


def _sections(kind: type[Any], prefix: str = "") -> Iterator[str]:
    for name, hint in ((n, type_of(kind, n)) for n in kind.__dataclass_fields__):
        if is_dataclass(hint) and hint is not Component:
            yield prefix + name
            yield from _sections(cast(type[Any], hint), f"{prefix}{name}.")


def path_keys(kind: type[Any]) -> set[str]:
    """Keys whose values are names of files or folders."""
    return {key for key, _, item in keys_of(kind) if item.metadata["path"]}


def _check_key(kind: type[Any], key: str) -> None:
    known = [name for name, _, _ in keys_of(kind)]
    if key.startswith(("hydra.", "hydra/")) or key in groups_of(kind) or key in _sections(kind):
        return
    if key in known or any(key.startswith(name + ".") for name in OPEN if kind is TrainConfig):
        return
    raise unknown_key(key, known)


def _choose(group: str, prefix: str, value: str, sweep: bool, folders: Sequence[Path]) -> list[str]:
    """Overrides for `group=value`: a file of the group, or a class by its dotted path."""
    bare = value.strip("'\"")
    if sweep and "," in value:
        return [f"{prefix}{group}={value}"]
    registry = _registry(group)
    if registry and "." in bare and _IDENTIFIER.match(bare):
        name = short_name(bare, registry)
        if name != bare:
            return [f"{prefix}{group}={name}"]
        return [f"{group}=custom", f"{group}.{'_target_' if group == 'loss' else 'name'}={bare}"]
    if registry and value.startswith("{"):
        raise ConfigError(
            f"{group}={value}: choose the class with {group}=mypkg.MyClass, its arguments with "
            f"{group}.argument=value"
        )
    options = sorted({name for folder in folders for name in group_options(folder, group)})
    if _CHOICE.match(bare) and bare not in (*options, "null") and not sweep:
        raise ConfigError(
            f"{group}={bare} is unknown: it takes one of {', '.join(options)}{suggest(bare, options)}"
            + (
                f"; a class of yours is named by its dotted path, {group}=mypkg.MyClass"
                if "custom" in options
                else ""
            )
        )
    return [f"{prefix}{group}={value}"]


def _registry(group: str) -> str:
    """What names the built-in classes of a group of which each has a file; "" for groups without a class."""
    return next(
        (
            str(item.metadata["registry"])
            for key, _, item in keys_of(TrainConfig)
            if key in (group, f"{group}.name")
        ),
        "",
    )


def _quote(value: str) -> str:
    """A path as a hydra string; null, what is quoted already and interpolations stay."""
    if value in ("null", "???", "") or _QUOTED.match(value) or "${" in value:
        return value
    return quoted(value)


def quoted(text: str) -> str:
    """Any text as a hydra string, which stands for just that text: nothing in it is interpolated."""
    literal = re.sub(r"(\\*)\$\{", lambda m: m[1] * 2 + r"\${", text)
    escaped = re.sub(r'(\\*)"', lambda m: m[1] * 2 + '\\"', literal)
    trailing = len(escaped) - len(escaped.rstrip("\\"))
    return '"' + escaped + "\\" * trailing + '"'
