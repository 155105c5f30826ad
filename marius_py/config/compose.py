"""From command-line words to a checked configuration (floor 5), through hydra's groups in conf/.

In: overrides such as `model.dim=64`, `optimizer=adam`, `loss=mypkg.MyLoss`. Out: a `TrainConfig`,
`EvaluateConfig` or `PrepareConfig`. Whatever is wrong becomes one `ConfigError`. hydra is imported inside
functions: `--help` and the library work without waiting for it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from marius_py.config.evaluate_schema import EvaluateConfig
from marius_py.config.groups import conf_dir, own_groups, refused
from marius_py.config.hydra_values import files_of, is_choice, plain_of, values_of
from marius_py.config.near import UnknownKeyError
from marius_py.config.overrides import (
    keys_in,
    prepare_overrides,
    warn_of_hydra,
    warn_of_idle,
    warn_of_idle_words,
)
from marius_py.config.prepare_schema import PrepareConfig
from marius_py.config.saved import as_given, keys_of_file, overlay, saved_settings
from marius_py.config.schema import TrainConfig
from marius_py.config.sections import build
from marius_py.errors import ConfigError, MariusError
from marius_py.storage.targets import check_working_directory

T = TypeVar("T", TrainConfig, EvaluateConfig, PrepareConfig)

NAMES: dict[type[Any], str] = {TrainConfig: "train", EvaluateConfig: "evaluate", PrepareConfig: "prepare"}
"""Configuration class → name of its primary file in conf/."""


def load_config(overrides: Sequence[str] = (), *, config_dir: str | Path | None = None) -> TrainConfig:
    """Compose and check the settings of a training run, as `marius-train` does.

    Args:
        overrides: hydra overrides, `["model.dim=64", "optimizer=adam"]`.
        config_dir: folder with groups of yours, searched first: model/complex.yaml in it is model=complex.

    Raises:
        ConfigError: unknown key, wrong type, value out of range, unreadable override.
    """
    is_list = isinstance(overrides, Iterable) and not isinstance(overrides, (str, bytes, Mapping))
    words = list(overrides) if is_list else []
    if not is_list or not all(isinstance(word, str) for word in words):
        raise ConfigError(
            f'overrides is {overrides!r}; allowed: a list of words, ["model.dim=64"]; marius_py.train takes '
            '{"model.dim": 64} for settings'
        )
    return compose(TrainConfig, words, config_dir=config_dir)


def compose(kind: type[T], overrides: Sequence[str] = (), *, config_dir: str | Path | None = None) -> T:
    """Compose the settings of any command; see `load_config`."""
    check_working_directory()  # which hydra notes
    handled = sys.exc_info()[1]  # what the caller is about, in an except block, is not to be told again
    try:
        own_groups(NAMES[kind], config_dir)  # refuses what is no folder before a choice that it lacks
        given = prepare_overrides(kind, overrides, config_dir=config_dir)
        warn_of_hydra(overrides)
        composed = _compose_plain(NAMES[kind], given, config_dir)
        config = config_from(kind, composed, given, config_dir=config_dir)
        if kind is EvaluateConfig:
            warn_of_idle_words(overrides)
        return config
    except Exception as error:
        if _is_of_interrupt(error, handled):
            raise KeyboardInterrupt from error
        raise


def _is_of_interrupt(error: BaseException | None, handled: BaseException | None) -> bool:
    """Whether a library made the error of an interrupt that came upon it, not of one `handled` before."""
    while error is not None and error is not handled:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__context__
    return False


def config_from(
    kind: type[T],
    values: Any,
    overrides: Sequence[str] | None = None,
    *,
    config_dir: str | Path | None = None,
) -> T:
    """Check settings and make the configuration object.

    Args:
        kind: its class.
        values: plain values, or hydra's DictConfig.
        overrides: the words that `values` were composed from: where they resume a run, what they leave open
            is as that run has it. None: `values` are complete.
        config_dir: the folder of groups that they were composed with.

    Raises:
        ConfigError: unknown key, wrong type, value out of range. StorageError, FormatError: the run to resume
        is damaged.
    """
    composed = values if isinstance(values, dict) else plain_of(values)
    if overrides is not None and "experiment" in composed:
        _check_packages(NAMES[kind], overrides, config_dir)
    if overrides is not None and kind is TrainConfig and composed.get("resume") is True:
        output = composed.get("output")
        saved = None if output is None else saved_settings(Path(str(output)))
        if saved is not None:
            defaults = _compose_plain(NAMES[kind], [], config_dir)
            keys = keys_in(overrides) | _chosen_keys(NAMES[kind], overrides, config_dir)
            composed = overlay(as_given(saved), composed, defaults, keys)
    with naming_files(kind, overrides or (), config_dir):
        config = build(kind, composed)
    if overrides is not None and isinstance(config, TrainConfig):
        warn_of_idle(config, overrides)
    return config


def _compose_plain(name: str, overrides: Sequence[str], config_dir: str | Path | None) -> dict[str, Any]:
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    own = own_groups(name, config_dir)
    try:
        return values_of(name, overrides, own)
    except (HydraException, OmegaConfBaseException, YAMLError, ValueError) as error:
        raise refused(error, overrides, own) from error


def _chosen_keys(name: str, overrides: Sequence[str], config_dir: str | Path | None) -> set[str]:
    """Keys that the files set which `overrides` choose, and groups of which such a file chooses another.

    So a file of the group experiment counts as if its settings had been given one by one.

    Args:
        name: of the primary file.
        overrides: words that can be composed.
        config_dir: the folder of groups that they are composed with.
    """
    groups, files = _chosen(name, overrides, config_dir)
    return groups.union(*(keys_of_file(path, package) for path, package in files))


def _check_packages(name: str, overrides: Sequence[str], config_dir: str | Path | None) -> None:
    """Refuse a file of the group experiment whose settings stand below that name; see `_chosen_keys`."""
    for path, package in _chosen(name, overrides, config_dir)[1]:
        if package.partition(".")[0] == "experiment":
            raise ConfigError(
                f"{path} lacks the line `# @package _global_`, without which its settings are none of the "
                "run's: write it as the first line of the file"
            )


@contextmanager
def naming_files(kind: type[Any], overrides: Sequence[str], config_dir: str | Path | None) -> Iterator[None]:
    """Put before a ConfigError about a key the file of a user's own groups that set it, if one did.

    Args:
        kind, overrides, config_dir: what was composed; a key that one of `overrides` sets is no file's.
    """
    try:
        yield
    except ConfigError as error:
        if config_dir is None:
            raise
        file = None
        with suppress(MariusError, OSError):  # the folder may have gone since
            file = _file_with(_key_of(error), NAMES[kind], overrides, config_dir)
        if file is None:
            raise
        raise type(error)(f"{file}: {error}") from error


def _key_of(error: ConfigError) -> str:
    """The key that an error is about, which its message begins with; "" if it begins with none."""
    begins = re.match(r"[a-z]\w*(\.\w+)*(?=[= ])", str(error))
    return error.key if isinstance(error, UnknownKeyError) else begins[0] if begins else ""


def _file_with(key: str, name: str, overrides: Sequence[str], config_dir: str | Path) -> Path | None:
    """The file of a user's own groups, the last of those composed, that sets a key which no word does."""
    own = own_groups(name, config_dir)
    given = keys_in([word for word in overrides if not is_choice(word)])
    if own is None or not key or any(_holds(one.removesuffix("._target_"), key) for one in given):
        return None
    for one in reversed(files_of(name, overrides, own).defaults):
        path = own / f"{one.config_path}.yaml"
        keys = keys_of_file(path, one.package or "") if path.is_file() else ()
        if any(_holds(found, key) or _holds(key, found) for found in keys):
            return path
    return None


def _holds(section: str, key: str) -> bool:
    """Whether `key` is `section` or lies in it."""
    return f"{key}.".startswith(f"{section}.")


def _chosen(
    name: str, overrides: Sequence[str], config_dir: str | Path | None
) -> tuple[set[str], list[tuple[Path, str]]]:
    """The groups that `overrides` choose from; files chosen that are not usual, with where each belongs."""
    own = own_groups(name, config_dir)
    folders = [conf_dir()] if own is None else [own, conf_dir()]
    chosen = files_of(name, overrides, own)
    taken = {one.config_path for one in files_of(name, [], own).defaults}
    files = []
    for one in chosen.defaults:
        path = next(filter(Path.is_file, (folder / f"{one.config_path}.yaml" for folder in folders)), None)
        if path is not None and one.config_path not in taken:
            files.append((path, one.package or ""))
    return set(chosen.overrides.override_choices), files
