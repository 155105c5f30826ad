"""Slow and exact reading of delimited text (floor 4): the first line of a file, and the search for an error.

In: bytes of whole lines. Out: cells of one record, or the `FormatError` that names line and content of the
first bad one. The fast path (Arrow) finds that something is wrong; this module says what and where.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from marius_py.errors import FormatError
from marius_py.prepare.advice import OWN_HEADER, elsewhere, other_delimiter
from marius_py.prepare.blocks import WEIGHTS, bad_weight
from marius_py.prepare.columns import Columns
from marius_py.prepare.first_line import NUMBER

_SHOWN = 120
_BYTE = re.compile(r"\\\\|\\udc([89a-f][0-9a-f])")
"""In a text's repr: a backslash of the text, or the digits of a byte that stands for no character."""


class Record(NamedTuple):
    """A line, or several where a quoted cell holds line ends: `content` without its end; `line` from 0."""

    content: bytes
    line: int
    lines: int
    end: int


def iterate_records(chunk: bytes, quoting: bool) -> Iterator[Record]:
    """Cut bytes into records at line ends that lie outside quotes."""
    start, line = 0, 0
    while start < len(chunk):
        end, lines, quotes = start, 0, 0
        while True:
            at = chunk.find(b"\n", end)
            stop = len(chunk) if at < 0 else at
            quotes += chunk.count(b'"', end, stop) if quoting else 0
            lines += 1
            end = min(stop + 1, len(chunk))
            if at < 0 or quotes % 2 == 0:
                break
        content = chunk[start:stop]
        if at >= 0:
            content = content.removesuffix(b"\r")
        yield Record(content, line, lines, end)
        start, line = end, line + lines


def split_record(content: bytes, delimiter: bytes, quoting: bool, where: str) -> list[str]:
    """Split one record into cells.

    Raises:
        FormatError: NUL, CR, invalid UTF-8 or a misplaced quote; `where` (file and line) begins the message.
    """
    if b"\0" in content:
        hint = (
            "; the file looks like UTF-16: convert it to UTF-8"
            if content.count(b"\0") * 3 > len(content)
            else ""
        )
        raise FormatError(f"{where}: a NUL character in {shown(content)}{hint}")
    if b"\r" in content.replace(b"\r\n", b""):
        raise FormatError(
            f"{where}: a carriage return inside the line {shown(content)}; lines end in LF or CRLF"
        )
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise FormatError(
            f"{where}: byte {error.start + 1} is no valid UTF-8 in {shown(content)}; convert the file to "
            "UTF-8, with iconv -f latin1 -t utf-8 if it is Latin-1"
        ) from error
    separator = delimiter.decode()
    if not quoting or '"' not in text:
        return text.split(separator)
    return _split_quoted(text, separator, where)


def _split_quoted(text: str, separator: str, where: str) -> list[str]:
    cells, at = [], 0
    while True:
        if text.startswith('"', at):
            cell, at = _quoted_cell(text, at, where)
        else:
            stop = text.find(separator, at)
            cell, at = (text[at:], len(text)) if stop < 0 else (text[at:stop], stop)
            if '"' in cell:
                raise FormatError(
                    f"{where}: a quote inside the unquoted cell {cell[:_SHOWN]!r}; {_QUOTE_HINT}"
                )
        cells.append(cell)
        if at == len(text):
            return cells
        if text[at] != separator:
            between = text.startswith('"', at + 1)  # two quoted cells are parted by this character
            hint = (between and other_delimiter(text[at])) or _QUOTE_HINT
            raise FormatError(f"{where}: text after the closing quote of {cell[:_SHOWN]!r}; {hint}")
        at += 1


_QUOTE_HINT = (
    "enclose the cell in quotes and write each inner quote twice; if quotes are letters here, set "
    f"input.quoting=false {elsewhere('quoting', 'write a .tsv file')}"
)


def _quoted_cell(text: str, at: int, where: str) -> tuple[str, int]:
    """The cell whose opening quote is at `at`, and the position after its closing quote."""
    parts, begin = [], at + 1
    while True:
        stop = text.find('"', begin)
        if stop < 0:
            raise FormatError(f"{where}: a quote is never closed in {text[:_SHOWN]!r}; {_QUOTE_HINT}")
        parts.append(text[begin:stop])
        if not text.startswith('"', stop + 1):
            return '"'.join(parts), stop + 1
        begin = stop + 2


def first_problem(
    chunk: bytes, delimiter: bytes, quoting: bool, columns: Columns, path: Path, first_line: int
) -> FormatError | None:
    """The error of the first bad record in a chunk that starts with line `first_line`; None: all good."""
    may_be_header = first_line == 1 and not columns.has_header
    for record in iterate_records(chunk, quoting):
        if not record.content:
            continue
        where = f"{path}, line {first_line + record.line}"
        try:
            cells = split_record(record.content, delimiter, quoting, where)
        except FormatError as error:
            return error
        if len(cells) != columns.count:
            return FormatError(
                f"{where}: {len(cells)} column{'s' if len(cells) != 1 else ''} instead of {columns.count} in "
                f"{shown(record.content)}"
            )
        if columns.weight is not None and not is_weight(cells[columns.weight]):
            found = cells[columns.weight][:_SHOWN]
            hint = f"; if this line is a header, set input.header=true {OWN_HEADER}" if may_be_header else ""
            return FormatError(
                f"{where}: the weight is {found!r} in {shown(record.content)}; {WEIGHTS}{hint}"
            )
        roles = ("head", "tail") if columns.relation is None else ("head", "relation", "tail")
        for role, position in zip(roles, columns.used, strict=True):
            if not cells[position]:
                return FormatError(f"{where}: the {role} name is empty in {shown(record.content)}")
        may_be_header = False
    return None


def is_weight(cell: str) -> bool:
    """Whether a cell is a number that may be a weight."""
    return as_number(cell) is not None and bad_weight(np.array([as_number(cell)])) < 0


def as_number(cell: str) -> float | None:
    """The number that a cell of ASCII digits is, with blanks around it or without; None: it is none."""
    return float(cell) if NUMBER.fullmatch(cell) else None


def cut(name: str) -> str:
    """A name for messages, however long it is."""
    return name if len(name) <= _SHOWN else name[:_SHOWN] + "…"


def shown(content: bytes) -> str:
    """A record for messages: quoted, escaped, cut. A byte that is no UTF-8 is \\x and its two digits."""
    text = repr(content[:_SHOWN].decode(errors="surrogateescape"))
    text = _BYTE.sub(lambda found: f"\\x{found[1]}" if found[1] else found[0], text)
    return text + ("…" if len(content) > _SHOWN else "")
