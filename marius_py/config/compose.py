"""From command-line words to a checked configuration (floor 5), through hydra's groups in conf/.

In: overrides such as `model.dim=64`, `optimizer=adam`, `loss=mypkg.MyLoss`. Out: a `TrainConfig`,
`EvaluateConfig` or `PrepareConfig`. Whatever is wrong becomes one `ConfigError`. hydra is imported inside
functions: `--help` and the library work without waiting for it.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from marius_py.config.evaluate_schema import EvaluateConfig
from marius_py.config.fields import Component, build, keys_of, suggest, type_of, unknown_key
from marius_py.config.prepare_schema import PrepareConfig
from marius_py.config.schema import TrainConfig
from marius_py.errors import ConfigError, FormatError

T = TypeVar("T", TrainConfig, EvaluateConfig, PrepareConfig)

NAMES: dict[type[Any], str] = {TrainConfig: "train", EvaluateConfig: "evaluate", PrepareConfig: "prepare"}
"""Configuration class → name of its primary file in conf/."""

OPEN = ("model.decoder", "model.init", "negatives.sampler", "loss", "optimizer")
"""Keys whose mapping also takes the arguments of the class they name."""

NESTED = OPEN[:3]
"""Those of them that are keys inside a section, not groups of files."""

CONFIG_FILE = "config.yaml"
"""The resolved settings in a run folder."""

_HYDRA = threading.Lock()
"""Held while hydra composes: its state belongs to the process."""

_IDENTIFIER = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*\Z")
_CHOICE = re.compile(r"[\w./-]+\Z")
_OVERRIDE = re.compile(r"(?P<prefix>\+\+|\+|~|)(?P<key>[^=\s]+?)(?:=(?P<value>.*))?\Z", re.DOTALL)


def conf_dir() -> Path:
    """The folder of the hydra groups: inside the installed package, or beside it in a checkout."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "conf", package.parent / "conf"):
        if (folder / "train.yaml").is_file():
            return folder
    raise FormatError(
        f"no folder conf/ with train.yaml in {package} or beside it: the installation is incomplete"
    )


def load_config(overrides: Sequence[str] = (), *, config_dir: str | Path | None = None) -> TrainConfig:
    """Compose and check the settings of a training run, as `marius-train` does.

    Args:
        overrides: hydra overrides, `["model.dim=64", "optimizer=adam"]`.
        config_dir: folder with groups of yours, searched first.

    Raises:
        ConfigError: unknown key, wrong type, value out of range, unreadable override.
    """
    return compose(TrainConfig, overrides, config_dir=config_dir)


def compose(kind: type[T], overrides: Sequence[str] = (), *, config_dir: str | Path | None = None) -> T:
    """Compose the settings of any command; see `load_config`."""
    given = prepare_overrides(kind, overrides, config_dir=config_dir)
    values = _compose_plain(NAMES[kind], given, config_dir)
    if kind is TrainConfig and values.get("resume") is True and values.get("output") is not None:
        saved = saved_settings(Path(str(values["output"])))
        if saved is not None:
            plain_defaults = _compose_plain(NAMES[kind], [], config_dir)
            values = _overlay(saved, values, plain_defaults, given)
    return build(kind, values)


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
        elif key in _path_keys(kind) and not sweep:
            words.append(f"{prefix}{key}={_quote(value)}")
        else:
            words.append(f"{prefix}{key}={value}")
    names = {key: value for _, key, value in parsed}
    demo = kind is TrainConfig and names.get("graph") in (None, "null")
    if demo and "experiment" not in names and str(names.get("resume", "false")).lower() != "true":
        words.insert(0, "experiment=demo")
    return words


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
        key = _dot(prefix, name)
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
    return _quoted(value) if isinstance(value, str) else _word(value)


def _shown(value: Any) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 80 else text[:77] + '…'}"


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML file of plain values; FormatError when it is not one."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    try:
        values = OmegaConf.to_container(OmegaConf.load(path), resolve=True)
    except (OmegaConfBaseException, YAMLError, OSError, UnicodeDecodeError) as error:
        raise FormatError(f"{path} is no readable YAML file: {_one_line(error)}") from error
    if not isinstance(values, dict):
        raise FormatError(f"{path} holds no mapping of settings")
    return cast(dict[str, Any], values)


def write_yaml(values: Mapping[str, Any], path: Path) -> None:
    """Write plain values as YAML, in the order given, replacing `path` atomically. Raises StorageError."""
    from omegaconf import OmegaConf

    from marius_py.storage.files import replace, write_temporary

    replace(write_temporary(path, OmegaConf.to_yaml(OmegaConf.create(dict(values))).encode()), path)


def saved_settings(folder: Path) -> dict[str, Any] | None:
    """The settings of the run in `folder`: those of its last commit, before that config.yaml's; None: no run.

    config.yaml alone could be damaged, or another run's, without anybody noticing.

    Raises:
        StorageError, FormatError: the checkpoint, or without one config.yaml, is damaged.
    """
    from marius_py.storage.checkpoint_file import CHECKPOINT_NAME, read_checkpoint
    from marius_py.storage.hdf5_nodes import has_commit

    nodes = folder / "checkpoint"
    if has_commit(nodes):
        settings = read_checkpoint(nodes / CHECKPOINT_NAME)[1].meta.get("config")
        if isinstance(settings, dict):
            return settings
    return read_yaml(folder / CONFIG_FILE) if (folder / CONFIG_FILE).is_file() else None


def config_from(kind: type[T], values: Any) -> T:
    """Check settings, plain values or hydra's DictConfig, and make the configuration object."""
    return build(kind, values if isinstance(values, dict) else _plain_of(values))


def _compose_plain(name: str, overrides: Sequence[str], config_dir: str | Path | None) -> dict[str, Any]:
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    extra = []
    if config_dir is not None:
        folder = Path(config_dir).resolve()
        if not folder.is_dir():
            raise ConfigError(f"--config-dir {config_dir} is not a folder")
        extra = [f'hydra.searchpath=["file://{folder}"]']
    try:
        with _own_hydra(), initialize_config_dir(str(conf_dir()), version_base="1.3"):
            composed = hydra_compose(name, overrides=[*extra, *overrides])
        return _plain_of(composed)
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(explain(error)) from error


@contextmanager
def _own_hydra() -> Iterator[None]:
    """Nobody else's hydra, by one thread at a time; what the program around us initialised comes back."""
    from hydra.core.global_hydra import GlobalHydra
    from hydra.version import VersionBase

    with _HYDRA:
        state, version = GlobalHydra.instance(), VersionBase.instance()
        outer, base = state.hydra, version.version_base
        state.hydra = None
        try:
            yield
        finally:
            GlobalHydra.set_instance(state)  # hydra leaves a copy in its place
            state.hydra, version.version_base = outer, base


def explain(error: BaseException) -> str:
    """One line for an error of hydra or OmegaConf, with the cause that it wraps."""
    text = _one_line(error)
    cause = error.__cause__
    if cause is not None and _one_line(cause) not in text:
        text = f"{text} ({_one_line(cause)})"
    override = getattr(error, "override", None)
    if override is not None:
        text = text.split(" See https")[0]
        hint = "quote special characters, for the shell too: 'key=\"a value\"'"
        text = f"{override!r} cannot be read ({text}): {hint}"
    return text


def _plain_of(composed: Any) -> dict[str, Any]:
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        values = OmegaConf.to_container(composed, resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigError(explain(error)) from error
    return cast(dict[str, Any], values)


def _one_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines()]
    return " ".join(
        line
        for line in lines
        if line and not line.startswith(("full_key:", "object_type=", "reference_type="))
    )


def _split(word: str) -> tuple[str, str, str | None]:
    match = _OVERRIDE.match(word)
    if match is None:
        raise ConfigError(f"{word!r} is no setting: settings have the form key=value, such as model.dim=64")
    if match["value"] is None and match["prefix"] != "~":
        raise ConfigError(f"{word!r} has no value: settings have the form key=value, such as model.dim=64")
    return match["prefix"], match["key"], match["value"]


def _has_arguments(key: str, parsed: Sequence[tuple[str, str, str | None]]) -> bool:
    return any(other.startswith(key + ".") for _, other, _ in parsed)


def groups_of(kind: type[Any]) -> set[str]:
    """Keys that hydra takes as the choice of a file: the folders of conf/ that this command uses."""
    if kind is TrainConfig:
        names = {"model", "loss", "negatives", "optimizer", "training", "storage", "ordering", "pipeline"}
        return names | {"checkpoint", "evaluation", "experiment"}
    return {"dataset"} if kind is PrepareConfig else set()


def _sections(kind: type[Any], prefix: str = "") -> Iterator[str]:
    for name, hint in ((n, type_of(kind, n)) for n in kind.__dataclass_fields__):
        if is_dataclass(hint) and hint is not Component:
            yield prefix + name
            yield from _sections(cast(type[Any], hint), f"{prefix}{name}.")


def _path_keys(kind: type[Any]) -> set[str]:
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
    if group in ("loss", "optimizer") and "." in bare and _IDENTIFIER.match(bare):
        return [f"{group}=custom", f"{group}.{'_target_' if group == 'loss' else 'name'}={bare}"]
    if group in ("loss", "optimizer") and value.startswith("{"):
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


def group_options(folder: Path, group: str) -> list[str]:
    """The choices of a group: the files in its folder, without those that only others build upon."""
    root = folder / group
    return sorted(
        {file.relative_to(root).with_suffix("").as_posix() for file in root.rglob("*.yaml")} - {"base"}
    )


def _quote(value: str) -> str:
    """A path as a hydra string; null, what is quoted already and interpolations stay."""
    if value in ("null", "???", "") or value[0] in "'\"" or "${" in value:
        return value
    return _quoted(value)


def _quoted(value: str) -> str:
    """Any text as a hydra string."""
    escaped = re.sub(r'(\\*)"', lambda m: m[1] * 2 + '\\"', value)
    trailing = len(escaped) - len(escaped.rstrip("\\"))
    return '"' + escaped + "\\" * trailing + '"'


def _overlay(
    saved: dict[str, Any], composed: dict[str, Any], defaults: dict[str, Any], overrides: Sequence[str]
) -> dict[str, Any]:
    """The settings of the saved run, with those given on the command line on top."""
    keys = {key for _, key, _ in (_split(word) for word in overrides)}

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
                    old.get(name, _MISSING), new.get(name, old.get(name)), default.get(name), _dot(key, name)
                )
                for name in names
            }
        inside = any(one.startswith(key + ".") for one in keys)
        return new if inside or new != default else old

    return cast(dict[str, Any], merge(saved, composed, defaults, ""))


_MISSING: Any = object()


def _dot(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name
