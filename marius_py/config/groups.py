"""The folder of hydra's groups and the files in it (floor 5)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from marius_py.config.prepare_schema import PrepareConfig
from marius_py.config.schema import TrainConfig
from marius_py.errors import ConfigError, FormatError

OWN = "custom"
"""File of a group that stands for a class of the user's; who names the class need not choose it."""


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
    """
    if config_dir is None:
        return None
    folder = Path(config_dir).resolve()
    if not folder.is_dir():
        raise ConfigError(f"--config-dir {config_dir} is not a folder")
    if (folder / f"{name}.yaml").exists():
        raise ConfigError(
            f"--config-dir {config_dir} holds {name}.yaml, which would take the place of the command's own; "
            "the folder is for groups, as experiment/mine.yaml in it: move the file elsewhere"
        )
    return folder
