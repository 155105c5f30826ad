"""From a path to the reader of its format (floor 4). In: path, format and options. Out: an `EdgeSource`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from marius_py.errors import ConfigError, MissingPathError
from marius_py.given import check_flags
from marius_py.prepare.advice import elsewhere
from marius_py.prepare.blocks import EdgeSource
from marius_py.prepare.column_names import listed_columns
from marius_py.prepare.columns import ColumnKey, Header, WeightKey
from marius_py.prepare.text import TextSource
from marius_py.prepare.typed import NumpySource, ParquetSource
from marius_py.storage.regular import PIPE, irregular_kind
from marius_py.storage.targets import reaching
from marius_py.types import SPLITS

_COMPRESSED = (".gz", ".zst", ".zstd", ".bz2", ".xz", ".lz4")
"""Endings to look behind; which compression is read the first bytes decide."""
_SUFFIXES = {
    ".tsv": "tsv",
    ".tab": "tsv",
    ".txt": "tsv",
    ".csv": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".npy": "npy",
    ".npz": "npz",
}
_SEVERAL = re.compile(r"^\[.*,.*\]$|[*?]")
"""What may be meant for several files, where no file has that name."""
_DELIMITERS = {"tsv": "\t", "csv": ","}


def open_source(
    path: Path | str,
    *,
    format: str = "auto",
    delimiter: str | None = None,
    quoting: bool | None = None,
    header: Header = "auto",
    columns: Sequence[ColumnKey] | None = None,
    comment: str | None = None,
    numbered: Callable[[], bool] | None = None,
    weight: WeightKey | None = None,
    block_bytes: int | None = None,
    key: str | None = None,
) -> EdgeSource:
    """Open an edge list.

    Args:
        path: the file; text may be compressed with gzip or zstd, whatever its name says.
        format: "tsv", "csv", "parquet", "npy", "npz", or "auto": by the file's name.
        delimiter: for text, one character; None: tab for TSV, comma for CSV.
        quoting: for text, whether RFC 4180 quotes are in force; None: for CSV only.
        header: for text, whether the first line is a header; see `resolve_columns`.
        columns: columns to use; see `resolve_columns`.
        comment: for text, the character with which lines at the top begin that are no edges.
        numbered: for text, says whether all names known before are whole numbers; see `resolve_columns`.
        weight: the column of weights, if there is one; see `resolve_columns`.
        block_bytes: bytes of text read at a time; None: 32 MiB.
        key: setting that names the file, for errors.

    Raises:
        MissingPathError: no such file. StorageError: it cannot be read. FormatError: not what the format
        promises. ConfigError: unknown format, or an option that does not fit it.
    """
    if not isinstance(path, (str, PathLike)):
        raise ConfigError(
            f"{key or 'input'} is of type {type(path).__name__}; allowed: the path of a file; "
            "marius_py.graph_from makes a graph of an object, and to extend one, write a file of it"
        )
    path = Path(path)
    named = f"{key}={path}" if key else str(path)
    with reaching(named):
        exists = path.exists()
        other = irregular_kind(path) if exists else None
        if exists and other is None:
            path.open("rb").close()
    if not exists:
        several = "; if several files are meant, write their edges into one first"
        raise MissingPathError(
            f"{'' if key else 'input file '}{named} does not exist"
            + (several if _SEVERAL.search(str(path)) else "")
        )
    if other is not None:
        twice = "edges are read twice: write them to a file first (gzip and zstd are read as they are)"
        raise MissingPathError(
            f"{f'{key}=' if key else 'input '}{path} is no file but {other}"
            + (f"; {twice}" if other == PIPE else "")
        )
    if quoting is not None:
        check_flags(quoting=quoting)
    kind = format_of(path, format)
    keys = listed_columns(columns)
    if kind in _DELIMITERS:
        return TextSource(
            path,
            delimiter=_DELIMITERS[kind] if delimiter is None else delimiter,
            quoting=kind == "csv" if quoting is None else quoting,
            header=header,
            columns=keys,
            comment=comment,
            numbered=numbered,
            weight=weight,
            block_bytes=block_bytes,
        )
    given = {"delimiter": delimiter, "quoting": quoting, "comment": comment}
    for name, value in given.items():
        if value is not None:
            raise ConfigError(f"{name} is {value!r}, but {path} is read as {kind}; {name} is for tsv and csv")
    typed = ParquetSource if kind == "parquet" else NumpySource
    return typed(path, columns=keys, weight=weight)


def open_splits(
    train: Path | str,
    valid: Path | str | None,
    test: Path | str | None,
    *,
    weight: ColumnKey | None = None,
    **options: Any,
) -> list[EdgeSource | None]:
    """Open the edge list of each split, as `open_source`; None where there is none, of valid and test.

    Args:
        train, valid, test: the files.
        weight: column of the weights of train; in valid and test, where none are needed, it is left out.
        options: as for `open_source`.
    """
    needed = None if weight is None else WeightKey(weight)
    source = open_source(train, key=f"input.{SPLITS[0]}", weight=needed, **options)
    left_out = None
    if weight is not None:
        # a position from the end is that of train's, whose rows may be longer
        place = weight if isinstance(weight, str) or source.weight_column is None else source.weight_column
        left_out = WeightKey(place, needed=False, of=source.num_columns)
    others = zip(SPLITS[1:], (valid, test), strict=True)
    return [
        source,
        *(
            None if path is None else open_source(path, key=f"input.{name}", weight=left_out, **options)
            for name, path in others
        ),
    ]


def format_of(path: Path, format: str = "auto") -> str:
    """The format of a file: as given, or by its name without an ending such as .gz or .zst.

    Raises:
        ConfigError: the format is unknown or the name tells none.
    """
    allowed = ", ".join(dict.fromkeys(_SUFFIXES.values()))
    if format != "auto":
        if format not in _SUFFIXES.values():
            raise ConfigError(f"format is {format!r}; allowed: auto, {allowed}")
        return format
    suffixes = [suffix.lower() for suffix in path.suffixes]
    compressed = bool(suffixes) and suffixes[-1] in _COMPRESSED
    if compressed:
        suffixes.pop()
    found = _SUFFIXES.get(suffixes[-1]) if suffixes else None
    if found is None:
        raise ConfigError(
            f"the name of {path} does not tell its format; set input.format to one of {allowed} "
            f"{elsewhere('format', 'give the file a name with an ending such as .tsv')}"
        )
    if compressed and found not in _DELIMITERS:
        raise ConfigError(f"{path}: {found} files are compressed inside; unpack this one first")
    return found
