"""Words `key=value` made ready for hydra (floor 5): checked keys, quoted paths, classes by their path.

In: words as a user gives them. Out: words that hydra's grammar takes.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Collection, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, get_origin

from marius_py.config.built_in import short_name
from marius_py.config.evaluate_schema import EvaluateConfig
from marius_py.config.fields import Component, default_of, keys_of, type_of
from marius_py.config.groups import OWN, conf_dir, group_options, groups_of, unknown_choice
from marius_py.config.known_keys import OPEN, check_key, is_of_hydra
from marius_py.config.prepare_schema import PrepareConfig
from marius_py.config.schema import TrainConfig
from marius_py.config.values import allowed
from marius_py.errors import ConfigError

log = logging.getLogger(__name__)

NESTED = OPEN[:3]
"""Those of them that are keys inside a section, not groups of files."""

VERBATIM = ("input.delimiter", "input.comment")
"""Keys besides those of paths whose value is quoted: hydra would trim a tab, and fail at a semicolon."""

_FILES_OF_EDGES = ("input.train", "input.valid", "input.test")

_OF_A_PATH = {TrainConfig: "graph", EvaluateConfig: "run", PrepareConfig: "input.train"}

_DOTTED = re.compile(r"[A-Za-z_]\w*([.:][A-Za-z_]\w*)+\Z")
_CLASS = re.compile(r"[A-Za-z_][\w.:]*\Z")
_NAMED = re.compile(r"""\{_target_: *(['"]?)(?P<name>[A-Za-z_][\w.:]*)\1\}\Z""")
_CALL = re.compile(r" *(?P<name>choice|shuffle)\((?P<inside>.*)\) *\Z", re.DOTALL)
_OF_HYDRA = re.compile(r"[^\[{]*(\$\{|[(,])")
_QUOTED = re.compile(r"""(['"])(?:\\.|(?!\1)[^\\])*\1\Z""", re.DOTALL)
_OVERRIDE = re.compile(r"(?P<prefix>\+\+|\+|~|)(?P<key>[^=\s]+?)(?:=(?P<value>.*))?\Z", re.DOTALL)


def prepare_overrides(
    kind: type[Any], overrides: Sequence[str], *, sweep: bool = False, config_dir: str | Path | None = None
) -> list[str]:
    """Check override keys and rewrite the conveniences that hydra's grammar lacks.

    Paths are quoted, so that any file name works; `loss=mypkg.MyLoss` and arguments of a class
    (`model.decoder.norm=1`) become plain hydra, the arguments behind the choice of their class in whichever
    order they were given; without a graph the demo's settings come first.

    Args:
        kind: configuration class.
        overrides: words as given.
        sweep: several values a key are allowed (multirun), so nothing is quoted.
        config_dir: folder with groups of the user's own.

    Raises:
        ConfigError: unknown key or group choice.
    """
    words: list[str] = []
    classes: list[str] = []
    parsed = [_split(word, _OF_A_PATH.get(kind)) for word in overrides]
    seen: dict[str, str | None] = {}
    for prefix, key, value in parsed:
        check_key(kind, key)
        if prefix == "~" and not is_of_hydra(key):
            raise ConfigError(
                f"~{key}: settings cannot be removed; leave the word out for the default, or give {key}=… "
                "another value"
            )
        if key in seen and key in _FILES_OF_EDGES:
            raise ConfigError(f"{key} is given twice: {seen[key]} and {value}; give one file with all edges")
        seen[key] = value
        if value is not None and key not in groups_of(kind):
            _check_shape(kind, key, _values(value, sweep))
        if value is None:
            words.append(prefix + key)
        elif key in groups_of(kind):
            folders = [conf_dir(), *([Path(config_dir)] if config_dir else [])]
            words += _choose(key, prefix, value, sweep, folders, {other for _, other, _ in parsed})
        elif key in NESTED:
            classes += _choose_class(key, prefix, value, sweep, _has_arguments(key, parsed))
        elif any(key.startswith(name + ".") for name in OPEN):
            words.append(f"++{key}={value}")
        elif (key in VERBATIM or key in path_keys(kind)) and not sweep:
            words.append(f"{prefix}{key}={_quote(value)}")
        else:
            words.append(f"{prefix}{key}={value}")
    words = classes + words
    names = {key: value for _, key, value in parsed}
    demo = kind is TrainConfig and names.get("graph") in (None, "null")
    if demo and "experiment" not in names and str(names.get("resume", "false")).lower() != "true":
        words.insert(0, "experiment=demo")
    return words


def _split(word: str, of_a_path: str | None = None) -> tuple[str, str, str | None]:
    """Prefix, key and value; `of_a_path` is the key that a path given alone is likely meant for."""
    match = _OVERRIDE.match(word)
    if match is None:
        raise ConfigError(f"{word!r} is no setting: settings have the form key=value; --help lists them")
    if match["value"] is None and match["prefix"] != "~":
        likely = f", as {of_a_path}={word}" if of_a_path and Path(word).exists() else ""
        raise ConfigError(
            f"{word!r} has no value: settings have the form key=value{likely}; --help lists them"
        )
    return match["prefix"], match["key"], match["value"]


def warn_of_idle_words(overrides: Sequence[str], *, sweep: bool = False) -> None:
    """Say which settings of `marius-evaluate` others given, or not given, leave without effect."""
    given = {key: value for _, key, value in map(_split, overrides) if value is not None}
    edges, modes = given.get("edges", "null"), _values(given.get("mode", "full"), sweep)
    if "split" in given and "null" not in _values(edges, sweep) and "${" not in edges:
        log.warning(
            "split=%s is without effect beside edges=%s, which is ranked instead of a split",
            given["split"],
            edges,
        )
    if set(_values(edges, sweep)) == {"null"}:
        for key, value in given.items():
            if key.startswith("input.") and value != "null":
                log.warning(
                    "%s=%s is without effect: it is of edges=FILE, and edges of a split are ranked",
                    key,
                    value,
                )
    if "candidates" in given and {_unquoted(one) for one in modes} == {"full"}:
        log.warning(
            "candidates=%s is without effect: it is of mode=sampled, and ranks are full", given["candidates"]
        )


def warn_of_idle(config: TrainConfig, overrides: Sequence[str]) -> None:
    """Say which settings of a run that `overrides` give are without effect beside the others.

    What files and saved runs set is for more than one choice of the others, and what is given as the default
    asks for nothing: neither is told of.
    """
    schedule, evaluation, negatives = config.optimizer.schedule, config.evaluation, config.negatives
    idle: dict[str, str] = {}
    if schedule.name == "constant":
        idle["optimizer.schedule.floor"] = "optimizer.schedule.name=constant never goes down to it"
    if schedule.name != "plateau":
        why = f"it is of optimizer.schedule.name=plateau, and the run's is {schedule.name}"
        idle |= dict.fromkeys(("optimizer.schedule.reduction", "optimizer.schedule.patience"), why)
    if evaluation.mode == "full" and evaluation.valid.mode != "candidates":
        why = "it is of evaluation.mode=sampled, and ranks of the test are full"
        if evaluation.valid.mode == "auto":
            why += "; validation goes by it where evaluation.valid.mode=auto finds those too costly"
        idle["evaluation.candidates"] = why
    most = max(one or negatives.count for one in (negatives.count_head, negatives.count_tail))
    if negatives.sampler.target == "degree" and not round(most * negatives.degree_fraction):
        idle["negatives.degree_fraction"] = f"of {most} to a chunk and side, none is drawn by degree"
    given = keys_in(overrides)
    for key, _, item in keys_of(TrainConfig):
        value = attrgetter(key)(config)
        if key in idle and key in given and value != default_of(item):
            log.warning("%s=%s is without effect: %s", key, value, idle[key])


def warn_of_hydra(overrides: Sequence[str], *, sweep: bool = False) -> None:
    """Say which settings of hydra's own have no effect: of its folder of a run, and all without a sweep.

    They are taken, since many programs give them to whatever hydra configures.
    """
    for prefix, key, value in map(_split, overrides):
        word = prefix + key if value is None else f"{prefix}{key}={value}"
        if key == "hydra.run.dir":
            instead = "the folder of a sweep is hydra.sweep.dir" if sweep else "the folder of a run is output"
            log.warning(
                "%s is without effect: hydra makes no folder for a run; %s=%s", word, instead, value or "…"
            )
        elif is_of_hydra(key) and not sweep:
            log.warning("%s is without effect on a single run: what is hydra's own is for sweeps (-m)", word)


def keys_in(overrides: Sequence[str]) -> set[str]:
    """Keys that some of `overrides` set."""
    return {key for _, key, _ in map(_split, overrides)}


def job_words(
    kind: type[Any], given: Sequence[str], prepared: Sequence[str], swept: Collection[str], job: Sequence[str]
) -> list[str]:
    """The words of one job of a sweep as its user would give them to run it alone.

    Args:
        kind: configuration class.
        given: words of the sweep as given.
        prepared: the same as `prepare_overrides` makes them, and what the command adds.
        swept: keys of those that have several values.
        job: hydra's words of the job.

    >>> given, prepared = ["model.dim=4,6", "loss=softmax"], ["model.dim=4,6", "loss=softmax", "output=o"]
    >>> job_words(TrainConfig, given, prepared, {"model.dim"}, ["model.dim=6", "loss=softmax", "output=o"])
    ['model.dim=6', 'loss=softmax']
    """
    fixed = keys_in(prepared) - set(swept)  # other keys are a sweeper's own
    chosen = {key: value for _, key, value in map(_split, job) if key not in fixed and value is not None}
    words = []
    for word in given:
        _, key, _ = _split(word)
        if key in chosen:
            words.append(_as_given(kind, key, chosen.pop(key)))
        elif not is_of_hydra(key):
            words.append(word)
    return words + [_as_given(kind, key, value) for key, value in chosen.items()]


def _as_given(kind: type[Any], key: str, value: str) -> str:
    """The word for a value that hydra has rendered."""
    named = _NAMED.match(value) if key in NESTED else None
    if named:
        value = named["name"]
    elif key in path_keys(kind) and not _QUOTED.match(value):
        value = re.sub(r"\\(.)", r"\1", value)  # what is no hydra string there stands for itself
    return f"{key}={value}"


def _has_arguments(key: str, parsed: Sequence[tuple[str, str, str | None]]) -> bool:
    return any(other.startswith(key + ".") for _, other, _ in parsed)


def path_keys(kind: type[Any]) -> set[str]:
    """Keys whose value is the name of a file or folder; those of lists are hydra's to take apart."""
    return {
        key
        for key, owner, item in keys_of(kind)
        if item.metadata["path"] and get_origin(type_of(owner, item.name)) is not tuple
    }


def _check_shape(kind: type[Any], key: str, values: Sequence[str]) -> None:
    """Refuse what hydra fails at: a list for a class, a mapping for a list, a number of too many digits."""
    digits = max((len(number) for value in values for number in re.findall(r"\d+", value)), default=0)
    most = sys.get_int_max_str_digits()  # 0: Python reads any
    if 0 < most < digits and key not in path_keys(kind):
        raise ConfigError(f"{key} has a number of {digits} digits: allowed are up to {most}")
    found = next(((owner, item) for name, owner, item in keys_of(kind) if name == key), None)
    if found is None:  # an argument of a class
        return
    owner, item = found
    hint = type_of(owner, item.name)
    wrong = "[" if hint is Component else "{" if get_origin(hint) is tuple else None
    for value in values:
        if wrong is not None and value.startswith(wrong):
            raise ConfigError(f"{key}={value} has the wrong type: it takes {allowed(hint, item)}")


def _choose_class(key: str, prefix: str, value: str, sweep: bool, has_arguments: bool) -> list[str]:
    """Overrides for a class named at a key inside a section, or in a sweep for several."""
    if not has_arguments and not any(one.startswith("{") for one in _values(value, sweep)):
        return [f"{prefix}{key}={value}"]
    # A mapping replaces the one of the group's file instead of being merged into it.
    return [f"~{key}", f"+{key}={_with_mappings(value, sweep)}"]


def _with_mappings(value: str, sweep: bool) -> str:
    """The value with {_target_: name} for each name."""
    call = _CALL.match(value) if sweep else None
    if call:
        return f"{call['name']}({_with_mappings(call['inside'], sweep)})"
    return ",".join(_mapping(one) for one in _values(value, sweep))


def _mapping(value: str) -> str:
    name = _unquoted(value)
    if name == "null" or not _CLASS.match(name):
        return value
    return f"{{_target_:{quoted(name) if ':' in name else name}}}"


def _unquoted(value: str) -> str:
    return value[1:-1] if _QUOTED.match(value) else value


def _values(value: str, sweep: bool) -> list[str]:
    """The values that a word gives its key: one, or in a sweep those between commas."""
    if not sweep:
        return [value]
    call = _CALL.match(value)
    if call:
        return _values(call["inside"], sweep)
    values, depth, quote = [""], 0, ""
    for char in value:
        if char == "," and not depth and not quote:
            values.append("")
            continue
        values[-1] += char
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        else:
            depth += (char in "([{") - (char in ")]}")
    return [one.strip() for one in values]


def _choose(
    group: str, prefix: str, value: str, sweep: bool, folders: Sequence[Path], given: Collection[str]
) -> list[str]:
    """Overrides for `group=value`, beside other keys `given`: a file of the group, or a class by its path."""
    values = [_unquoted(one.strip()) for one in _values(value, sweep)]
    registry = _registry(group)
    options = sorted({name for folder in folders for name in group_options(folder, group)})
    key = "_target_" if group == "loss" else "name"
    if len(values) > 1:
        for one in values:
            _check_choice(group, one, options, f"{group}={OWN} {group}.{key}=mypkg.MyClass,mypkg.Other")
        return [f"{prefix}{group}={value}"]
    bare = values[0]
    if group == "experiment" and bare == "null":
        return []  # as it is without that word
    if registry and _DOTTED.match(bare):
        name = short_name(bare, registry)
        if name != bare:
            return [f"{prefix}{group}={name}"]
        return [f"{group}={OWN}", f"{group}.{key}={bare}"]
    if registry and value.startswith("{"):
        raise ConfigError(
            f"{group}={value}: choose the class with {group}=mypkg.MyClass, its arguments with "
            f"{group}.argument=value"
        )
    if bare == OWN and registry and f"{group}.{key}" not in given:
        raise ConfigError(f"{group}={OWN} needs {group}.{key}=mypkg.MyClass; {group}=mypkg.MyClass says both")
    _check_choice(group, bare, options, f"its dotted path, {group}=mypkg.MyClass")
    return [f"{prefix}{group}={value}"]


def _check_choice(group: str, name: str, options: Sequence[str], own: str) -> None:
    """Refuse what is no file of a group; globs and interpolations are hydra's to read.

    Of experiments there may be a list, each on top of those before it.

    Args:
        group: its key.
        name: as given.
        options: names of its files.
        own: how a class of the user's is named.

    Raises:
        ConfigError: there is no such file.
    """
    several = group == "experiment" and name.startswith("[")
    for one in _values(name[1:-1], True) if several else [name]:
        if _unquoted(one) not in options and not _OF_HYDRA.match(one):
            raise unknown_choice(group, one or name, options, own)


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
