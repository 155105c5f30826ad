"""The folder of hydra's groups and the files in it (floor 5)."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from marius_py.config.explain import explain
from marius_py.config.near import suggest
from marius_py.config.prepare_schema import PrepareConfig
from marius_py.config.saved import read_yaml
from marius_py.config.schema import TrainConfig
from marius_py.errors import ConfigError, FormatError, MissingPathError, StorageError
from marius_py.storage.targets import check_no_nul

OWN = "custom"
"""File of a group that stands for a class of the user's; who names the class need not choose it."""


_INSIDE = {"model": "model.decoder", "negatives": "negatives.sampler"}
"""Groups whose class is a setting inside → the key that names it."""


def conf_dir() -> Path:
    """The folder of the hydra groups: inside the installed package, or beside it in a checkout."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "conf", package.parent / "conf"):
        if (folder / "train.yaml").is_file():
            return folder
    raise FormatError(
        f"no folder conf/ with train.yaml in {package} or beside it: the installation is incomplete"
    )


def groups_of(kind: type[Any]) -> set[str]:
    """Keys that hydra takes as the choice of a file: the folders of conf/ that this command uses."""
    if kind is TrainConfig:
        names = {"model", "loss", "negatives", "optimizer", "training", "storage", "ordering", "pipeline"}
        return names | {"checkpoint", "evaluation", "experiment"}
    return {"dataset"} if kind is PrepareConfig else set()


def group_options(folder: Path, group: str) -> list[str]:
    """The choices of a group: the files in its folder, without those that only others build upon."""
    root = folder / group
    return sorted(
        {file.relative_to(root).with_suffix("").as_posix() for file in root.rglob("*.yaml")} - {"base"}
    )


def own_groups(name: str, config_dir: str | Path | None) -> Path | None:
    """The folder of the user's own groups, or None.

    Args:
        name: of the command's primary file.
        config_dir: the folder as given.

    Raises:
        ConfigError: it is no folder, or holds a file that would take the place of the primary one.
        StorageError: it may not be entered.
    """
    if config_dir is None:
        return None
    check_no_nul(config_dir, f"--config-dir {config_dir}")
    folder = Path(os.path.realpath(config_dir))
    try:
        if not folder.is_dir():
            raise ConfigError(f"--config-dir {config_dir} is not a folder")
        hides = (folder / f"{name}.yaml").exists()
    except OSError as error:
        kind = MissingPathError if error.errno == errno.ENAMETOOLONG else StorageError
        raise kind(f"--config-dir {config_dir} cannot be read: {error.strerror}") from error
    if hides:
        raise ConfigError(
            f"--config-dir {config_dir} holds {name}.yaml, which would take the place of the command's own; "
            "the folder is for groups, as experiment/mine.yaml in it: move the file elsewhere"
        )
    return folder


def unknown_choice(group: str, name: str, options: Sequence[str], own: str) -> ConfigError:
    """The error for what is no file of a group.

    Args:
        group: its key.
        name: as given.
        options: names of its files.
        own: how a class of the user's is named.
    """
    offered = [one for one in options if one != OWN]
    if group in _INSIDE:
        own = f"{_INSIDE[group]}=mypkg.MyClass"
    return ConfigError(
        f"{group}={name} is {'not allowed' if name == 'null' else 'unknown'}: it takes one of "
        f"{', '.join(offered)}{suggest(name, offered)}"
        + (f"; a class of yours is named by {own}" if OWN in options or group in _INSIDE else "")
    )


def refused(error: Exception, words: Sequence[str], own: Path | None) -> ConfigError:
    """What hydra, or what it reads with, finds wrong; where a file of the user's is to blame, it is named.

    Args:
        error: as raised.
        words: that were to be composed.
        own: the folder of the user's own groups.
    """
    missing = getattr(error, "missing_cfg_file", None)
    found = None
    if own is not None and isinstance(error, UnicodeDecodeError):
        found = _undecodable(own, error.object)
    elif own is not None and isinstance(missing, str):
        found = _unknown_default(own, words, missing)
    return found or ConfigError(explain(error))


def _undecodable(own: Path, content: bytes) -> ConfigError | None:
    """The error for the file in `own` that holds `content`, which is not UTF-8; None: there is none."""
    for file in _files(own):
        with suppress(OSError):
            data = file.read_bytes()
            try:
                data.decode()
            except UnicodeDecodeError as error:
                if content in data:
                    line = data.count(b"\n", 0, error.start) + 1
                    return ConfigError(
                        f"{file} is not UTF-8: line {line} holds the byte 0x{data[error.start]:02x}; "
                        "save the file as UTF-8"
                    )
    return None


def _unknown_default(own: Path, words: Sequence[str], missing: str) -> ConfigError | None:
    """The error for the file in `own` whose defaults name `missing`, such as "loss/nope"; None: none does."""
    chosen = {word.lstrip("+").replace("=", "/", 1) for word in words}
    for file in sorted(_files(own), key=lambda one: _config_path(own, one) not in chosen):
        with suppress(FormatError):
            if missing in _defaults(file, _config_path(own, file)):
                break
    else:
        return None
    group, _, name = missing.rpartition("/")
    options = sorted({one for folder in (conf_dir(), own) for one in group_options(folder, group)})
    if not group or not options:
        return ConfigError(f"{file}: its defaults name {missing}, but there is no file {missing}.yaml")
    key = f"{group}.{'_target_' if group == 'loss' else 'name'}"
    error = unknown_choice(group, name, options, f"{group}: {OWN} there, and its dotted path as {key}")
    return ConfigError(f"{file}: {error}")


def _files(own: Path) -> list[Path]:
    return sorted(filter(Path.is_file, own.rglob("*.yaml")))


def _config_path(own: Path, file: Path) -> str:
    """A file's name as hydra has it: "experiment/mine"."""
    return file.relative_to(own).with_suffix("").as_posix()


def _defaults(file: Path, name: str) -> Iterator[str]:
    """What the defaults of a file called `name` choose, as "loss/softmax"."""
    inside = name.rpartition("/")[0]
    entries = read_yaml(file).get("defaults")
    for entry in entries if isinstance(entries, list) else ():
        for key, value in entry.items() if isinstance(entry, dict) else (("", entry),):
            # "override /loss@pkg: softmax"; without a slash it is relative to the file's own group.
            words = [*str(key).split(), ""]
            group = next(one for one in words if one not in ("override", "optional")).partition("@")[0]
            for one in value if isinstance(value, list) else (value,):
                path = f"{group}/{one}" if group else str(one).partition("@")[0]
                yield path[1:] if path.startswith("/") else f"{inside}/{path}" if inside else path
