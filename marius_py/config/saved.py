"""The settings of a run as saved (floor 5): YAML files and commits in, settings to go on with out."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from marius_py.config.explain import one_line
from marius_py.config.fields import join
from marius_py.errors import FormatError
from marius_py.run_files.names import CHECKPOINT_FOLDER, CONFIG_FILE, CONFIG_META
from marius_py.storage.regular import open_regular

_MISSING: Any = object()


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML file of plain values, in which nothing is interpolated; FormatError when it is not one."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    try:
        with open(path, encoding="utf-8", opener=open_regular) as file:
            values = OmegaConf.to_container(OmegaConf.load(file), resolve=False)
    except (OmegaConfBaseException, YAMLError, OSError, UnicodeDecodeError) as error:
        raise FormatError(f"{path} is no readable YAML file: {one_line(error)}") from error
    if not isinstance(values, dict):
        raise FormatError(f"{path} holds no mapping of settings")
    return cast(dict[str, Any], values)


def yaml_text(values: Mapping[str, Any]) -> str:
    """Plain values as YAML, in the order given."""
    from yaml import safe_dump

    return str(safe_dump(dict(values), sort_keys=False, allow_unicode=True))


def write_yaml(values: Mapping[str, Any], path: Path) -> None:
    """Write plain values as YAML, in the order given, replacing `path` atomically. Raises StorageError."""
    from marius_py.storage.file_io import replace_file

    replace_file(path, yaml_text(values).encode())


def saved_settings(folder: Path) -> dict[str, Any] | None:
    """The settings of the run in `folder`: those of its last commit, before that config.yaml's; None: no run.

    config.yaml alone could be damaged, or another run's, without anybody noticing.

    Raises:
        StorageError, FormatError: the checkpoint, or without one config.yaml, is damaged.
    """
    from marius_py.storage.checkpoint_file import CHECKPOINT_NAME, decode_meta, open_checkpoint
    from marius_py.storage.file_io import os_errors_as_storage
    from marius_py.storage.hdf5_nodes import has_commit

    nodes = folder / CHECKPOINT_FOLDER
    with os_errors_as_storage("open", nodes):
        is_there = (nodes / CHECKPOINT_NAME).exists()
    if not is_there:
        has_commit(nodes)  # refuses a store that lacks this file
    else:
        committed = open_checkpoint(nodes / CHECKPOINT_NAME)
        settings = decode_meta(committed.encoded_meta, nodes / CHECKPOINT_NAME).get(CONFIG_META)
        if committed.manifest.generation and isinstance(settings, dict):
            return settings
    return read_yaml(folder / CONFIG_FILE) if (folder / CONFIG_FILE).is_file() else None


def as_given(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Saved settings with null for what was null when the run began, so that it follows what changes."""
    values = dict(saved)
    training = values.get("training")
    penalties = training.get("regularizer") if isinstance(training, Mapping) else None
    if isinstance(training, Mapping) and isinstance(penalties, Mapping):
        given = dict(penalties)
        for name in ("n3", "n3_relation"):
            if given.pop(f"{name}_automatic", False):
                given[name] = None
        values["training"] = {**training, "regularizer": given}
    return values


def keys_of_file(path: Path, package: str) -> set[str]:
    """Keys that a file of hydra's sets below `package`; a class that it names counts with its arguments."""
    values = {name: value for name, value in read_yaml(path).items() if name != "defaults"}
    return set(_keys(values, package))


def _keys(values: Mapping[Any, Any], prefix: str) -> Iterator[str]:
    for name, value in values.items():
        key = join(prefix, str(name))
        if isinstance(value, Mapping) and "_target_" not in value:
            yield from _keys(value, key)
        else:
            yield key


def overlay(
    saved: dict[str, Any], composed: dict[str, Any], defaults: dict[str, Any], keys: Collection[str]
) -> dict[str, Any]:
    """The settings of the saved run, with those given on the command line, which sets `keys`, on top."""

    def merge(old: Any, new: Any, default: Any, key: str) -> Any:
        explicit = any(key == one or key.startswith(one + ".") for one in keys)
        if explicit or old is _MISSING:
            return new
        if (
            isinstance(old, dict)
            and isinstance(new, dict)
            and isinstance(default, dict)
            and new.get("_target_") == default.get("_target_")  # another class takes other arguments
        ):
            names = [*new, *(name for name in old if name not in new)]
            return {
                name: merge(
                    old.get(name, _MISSING), new.get(name, old.get(name)), default.get(name), join(key, name)
                )
                for name in names
            }
        inside = any(one.startswith(key + ".") for one in keys)
        return new if inside or new != default else old

    return cast(dict[str, Any], merge(saved, composed, defaults, ""))
