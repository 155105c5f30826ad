"""The settings of `marius-prepare` as frozen dataclasses (floor 5): default, unit and range of every key."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from marius_py.config.fields import section, setting
from marius_py.config.sections import Checked
from marius_py.errors import ConfigError
from marius_py.types import MAX_PARTITIONS, MAX_SEED

_NUMBER = re.compile(r"0|-?[1-9][0-9]*")
"""Columns that are numbers; 007 and such are names."""


@dataclass(frozen=True, kw_only=True)
class InputFiles(Checked):
    """Edge lists of a graph; before how they are read, as `--help` has them."""

    train: str | None = setting(None, "file of the training edges, or of all edges", path=True)
    valid: str | None = setting(None, "file of the validation edges; null = split off or none", path=True)
    test: str | None = setting(None, "file of the test edges; null = split off or none", path=True)


def _column(key: str) -> int | str:
    """A column's position or name."""
    return int(key) if _NUMBER.fullmatch(key) else key


@dataclass(frozen=True, kw_only=True)
class ReadingConfig(Checked):
    """How a file of edges is read."""

    PREFIX: ClassVar[str] = "input"

    format: Literal["auto", "tsv", "csv", "parquet", "npy", "npz"] = setting(
        "auto", "file format; auto = by the name's ending"
    )
    columns: tuple[str, ...] | None = setting(
        None,
        "columns of head, relation, tail (or head, tail): names, or numbers from 0 (-1 is the last); "
        "null = by name or order",
    )
    header: bool | None = setting(None, "the first line holds column names; null = if it looks so")
    quoting: bool | None = setting(None, "fields may stand in double quotes; null = for CSV only")
    comment: str | None = setting(
        None, "character with which lines at the top begin that are no edges; null = there are none"
    )
    delimiter: str | None = setting(None, "one character between columns; null = by the format")

    @property
    def reading(self) -> dict[str, Any]:
        """How files are read, as arguments of `marius_py.prepare.prepare`."""
        return {
            "format": self.format,
            "columns": None if self.columns is None else [_column(one) for one in self.columns],
            "header": "auto" if self.header is None else self.header,
            "quoting": self.quoting,
            "comment": self.comment,
            "delimiter": self.delimiter,
        }

    def check(self) -> None:
        """Columns and characters have to make sense."""
        if self.columns is not None and len(self.columns) not in (2, 3):
            raise ConfigError(
                f"input.columns={list(self.columns)} has {len(self.columns)} entries: it takes three columns "
                "(head, relation, tail) or two (head, tail) for a graph without relations"
            )
        if self.columns is not None and len(set(self.columns)) != len(self.columns):
            raise ConfigError(f"input.columns={list(self.columns)} names a column twice")
        if self.delimiter is not None and len(self.delimiter) != 1:
            raise ConfigError(
                f"input.delimiter={self.delimiter!r} is not one character: quote it for the shell, "
                "'input.delimiter=;'; for a tab, input.format=tsv"
            )
        if self.comment is not None and len(self.comment) != 1:
            raise ConfigError(
                f"input.comment={self.comment!r} is not one character: quote it for the shell, "
                "'input.comment=#'"
            )


@dataclass(frozen=True, kw_only=True)
class InputConfig(ReadingConfig, InputFiles):
    """Edge lists and how to read them."""

    weight: str | None = setting(
        None,
        "column of the weights of train edges, a name or a number from 0: what each counts in training "
        "beside the others; null = all count alike",
    )
    split: tuple[float, ...] | None = setting(
        None,
        "shares of train, valid and test edges when only train is given; null = 0.90, 0.05, 0.05",
        unit="shares that add up to 1",
        low=0.0,
        high=1.0,
    )
    undirected: bool = setting(
        False, "a random split keeps an edge and its reverse together: for edges listed in both directions"
    )
    mirror: bool = setting(False, "add the reverse of each edge: for undirected edges that are listed once")

    @property
    def reading(self) -> dict[str, Any]:
        """How files are read, as arguments of `marius_py.prepare.prepare`."""
        return {**super().reading, "weight": None if self.weight is None else _column(self.weight)}

    def check(self) -> None:
        """Reading has to make sense, and shares and files together."""
        super().check()
        if self.weight is not None and self.columns is not None and self.weight in self.columns:
            raise ConfigError(
                f"input.weight={self.weight} is one of input.columns={list(self.columns)}, too: the weight "
                "is no part of an edge"
            )
        if self.split is not None and (
            len(self.split) != 3 or abs(sum(self.split) - 1) > 1e-6 or self.split[0] <= 0
        ):
            raise ConfigError(
                f"input.split={list(self.split)} is not allowed: it takes three shares (train, valid, test) "
                "that add up to 1, the first above 0"
            )
        if self.split is not None and (self.valid is not None or self.test is not None):
            raise ConfigError("input.split is for a single file: leave it out, or input.valid and input.test")
        if self.undirected and (self.valid is not None or self.test is not None):
            raise ConfigError(
                "input.undirected=true is for a random split of a single file: leave it out, or input.valid "
                "and input.test"
            )
        if self.undirected and self.mirror:
            raise ConfigError(
                "input.undirected=true is for edges that are listed in both directions, and "
                "input.mirror=true adds the other direction to those that are listed once: leave one out"
            )


_BROUGHT: dict[str, tuple[str | bool | None, ...]] = {
    "train": (None,),
    "valid": (None,),
    "test": (None,),
    "format": ("auto", "tsv"),
    "split": (None,),
    "undirected": (False,),
    "mirror": (False,),
}
"""Keys of input.* that a data set decides → values that do not contradict it."""


@dataclass(frozen=True, kw_only=True)
class DatasetConfig(Checked):
    """A public data set that `marius-prepare` fetches, checks and unpacks by itself."""

    PREFIX: ClassVar[str] = "dataset"

    name: str | None = setting(None, "name of the data set; null = the files of input.*")
    url: str | None = setting(None, "address of the archive")
    archive: str | None = setting(None, "file name of the archive")
    folder: str = setting(
        "data", "folder for the archive and its files; a file already there is not fetched", path=True
    )
    train: str | None = setting(None, "the training edges inside the archive")
    valid: str | None = setting(None, "the validation edges inside the archive")
    test: str | None = setting(None, "the test edges inside the archive")
    sha256: tuple[str, ...] | None = setting(
        None, "SHA-256 of the train, valid and test files, in hexadecimal"
    )

    def check(self) -> None:
        """A data set that is named is described whole."""
        if self.name is None:
            return
        lacking = [
            f"dataset.{key}"
            for key in ("url", "archive", "train", "valid", "test", "sha256")
            if getattr(self, key) is None
        ]
        if lacking:
            raise ConfigError(
                f"dataset.name={self.name} lacks {', '.join(lacking)}: a data set is chosen by its file, "
                "dataset=fb15k_237 or dataset=wn18rr, or one of yours that sets all of these"
            )
        if self.sha256 is not None and len(self.sha256) != 3:
            raise ConfigError(
                f"dataset.sha256 has {len(self.sha256)} entries: it takes three, of the train, valid and "
                "test files"
            )


@dataclass(frozen=True, kw_only=True)
class PrepareConfig(Checked):
    """All settings of `marius-prepare`."""

    input: InputConfig = section(InputConfig)
    dataset: DatasetConfig = section(DatasetConfig)
    output: str = setting("???", "folder of the prepared graph", path=True)
    partitions: int | None = setting(
        None,
        "partitions of the node table; null = 8, or the nodes if those are fewer",
        unit="partitions",
        low=1,
        high=MAX_PARTITIONS,
    )
    seed: int = setting(0, "seed of the node order and of the split", low=0, high=MAX_SEED)
    overwrite: bool = setting(False, "replace a graph that output already holds")

    def check(self) -> None:
        """Files and a folder have to be named, and all files that are named are used."""
        if self.input.train is None and self.dataset.name is None:
            raise ConfigError(
                "input.train is missing: give input.train=FILE, the edge list, or dataset=fb15k_237 "
                "for a public one"
            )
        for key, allowed in _BROUGHT.items() if self.dataset.name is not None else ():
            value = getattr(self.input, key)
            if value not in allowed:
                shown = list(value) if isinstance(value, tuple) else value
                raise ConfigError(
                    f"input.{key}={shown} would not be used: dataset={self.dataset.name} brings its own "
                    f"files, TSV and already split; leave out input.{key}, or dataset"
                )
        if self.output == "???":
            raise ConfigError("output is missing: give output=DIR, the folder of the prepared graph")
