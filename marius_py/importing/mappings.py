"""Mappings of DGL-KE (floor 5): files with a line "number, name" each in, names by number out."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from marius_py.errors import ConfigError, FormatError, MissingPathError
from marius_py.importing.files import check_file, has_repeats, shown
from marius_py.storage.file_io import os_errors_as_storage
from marius_py.storage.regular import open_regular

_LINES = "a line 'number, name' each"
_NAMES = {"entities": ("entities.dict", "entities.tsv"), "relations": ("relations.dict", "relations.tsv")}


def mapping_file(
    what: str, given: Path | str | None, folders: Sequence[Path], named: str | None = None
) -> Path:
    """The mapping as given, else as named, else by its usual names.

    Args:
        what: entities or relations.
        given: the file, by a setting.
        folders: where to look for it otherwise.
        named: its name, as a configuration says it.

    Raises:
        MissingPathError: there is none.
    """
    if given is not None:
        return check_file(given, what, _LINES)
    names = _NAMES[what] if named is None else (Path(named).name, *_NAMES[what])
    for folder in folders:
        for name in names:
            if (folder / name).is_file():
                return folder / name
    places = " or ".join(str(folder) for folder in folders)
    raise MissingPathError(
        f"none of {', '.join(dict.fromkeys(names))} is in {places}; say where: {what}=FILE"
    )


def check_delimiter(delimiter: str) -> None:
    """Refuse with a ConfigError what is not one character."""
    if not isinstance(delimiter, str) or len(delimiter) != 1:
        raise ConfigError(f"delimiter is {delimiter!r}; allowed: one character")


def read_mapping(path: Path, delimiter: str) -> list[str]:
    """Names by number, of a file of UTF-8 text with a line "number, name" each; further columns are ignored.

    Raises:
        StorageError: it cannot be read. FormatError: the numbers are not 0, 1, 2, … or a line is malformed.
    """
    numbers, names = array("q"), []  # and no hash table of the names: Freebase has 86 million
    for line, (number, name) in _rows(path, delimiter):
        if not (number.isascii() and number.isdecimal() and len(number) < 19):
            raise FormatError(f"{path}, line {line}: the number is {shown(number)}, which is no whole number")
        if not name or "\0" in name or "\r" in name:
            raise FormatError(f"{path}, line {line}: the name of number {number} is {shown(name)}")
        numbers.append(int(number))
        names.append(name)
    if not names:
        raise FormatError(f"{path} is empty; it should hold {_LINES}")
    order = np.argsort(numbers)
    if not np.array_equal(np.asarray(numbers)[order], np.arange(len(names))):
        raise FormatError(
            f"{path} has {len(names)} numbers, which should be 0 to {len(names) - 1}, each of them once"
        )
    if has_repeats(names):
        raise FormatError(f"{path} holds a name twice; names must be distinct")
    return [names[place] for place in order]


def _rows(path: Path, delimiter: str) -> Iterator[tuple[int, tuple[str, str]]]:
    """The line from 1 of each row, and its first two cells without the blanks around them."""
    with os_errors_as_storage("read", path):
        try:
            with open(path, encoding="utf-8-sig", newline="\n", opener=open_regular) as lines:
                for line, text in enumerate(lines, 1):
                    if not text.strip("\r\n"):
                        continue
                    cells = text.split(delimiter)
                    if len(cells) < 2:
                        raise FormatError(
                            f"{path}, line {line}: {shown(text.strip())} has no {shown(delimiter)}; a line "
                            "holds a number, the delimiter and a name"
                        )
                    yield line, (cells[0].strip(), cells[1].strip())
        except UnicodeDecodeError as error:
            raise FormatError(f"{path} is no UTF-8 text: {error}") from error
