"""Answer files (floor 4): predictions or neighbours in; a table, TSV, CSV, JSON or Parquet out."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from marius_py.errors import ConfigError, FormatError, StorageError
from marius_py.predict.answers import Prediction
from marius_py.predict.neighbors import Neighbor
from marius_py.readable import readable, width_of
from marius_py.storage.files import reason_of
from marius_py.storage.replacing import Replacing
from marius_py.storage.targets import check_target
from marius_py.types import ANSWER_FORMATS, AnswerFormat

ENDINGS: dict[str, AnswerFormat] = {
    ".txt": "table",
    ".tsv": "tsv",
    ".csv": "csv",
    ".json": "json",
    ".parquet": "parquet",
}

_ARROW = {"int": pa.int64(), "str": pa.string(), "float": pa.float64(), "float | None": pa.float64()}


def format_of(target: Path | None, asked: str | None) -> str:
    """The format to write answers in: the one `asked` for, else by the ending of `target`, else a table.

    Raises:
        ConfigError: the ending is unknown.

    >>> format_of(Path("answers.csv"), None), format_of(Path("answers.csv"), "tsv"), format_of(None, None)
    ('csv', 'tsv', 'table')
    """
    if asked is not None:
        return asked
    if target is None or not target.suffix:
        return "table"
    ending = target.suffix.casefold()
    if ending not in ENDINGS:
        raise ConfigError(
            f"--output {target} ends in {target.suffix}, from which no format follows; allowed: "
            f"{', '.join(ENDINGS)}; or name the format with --format"
        )
    return ENDINGS[ending]


class AnswerWriter:
    """Writes answers as they come; use it in a `with` block, which replaces the file at its good end.

    Args:
        target: the file as given, or None for `stdout`.
        format: one of `ANSWER_FORMATS`; Parquet needs a file.
        kind: the class of the answers.
        stdout: where to write without a file.

    Raises:
        ConfigError: an unknown format, Parquet without a file, no such folder, or the name of one.
        StorageError: the folder cannot be written to.
    """

    def __init__(
        self,
        target: Path | str | None,
        format: str,
        kind: type[Prediction] | type[Neighbor],
        stdout: IO[str],
    ) -> None:
        if format not in ANSWER_FORMATS:
            raise ConfigError(f"format is {format!r}; allowed: {', '.join(ANSWER_FORMATS)}")
        if format == "parquet" and target is None:
            raise ConfigError("format parquet needs a file: give --output FILE")
        if target is not None:
            check_target(target, f"--output {target}")
        self._target = None if target is None else Path(target)
        self._format = format
        self._columns = {field.name: str(field.type) for field in fields(kind)}
        self._stdout = stdout
        self._file: Any = None
        self._table = _Table(self._columns)
        self._begun = False
        self._open = ExitStack()

    def __enter__(self) -> AnswerWriter:
        with ExitStack() as opened, self._failures():
            if self._target is None:
                self._file = self._stdout
                if self._format != "table" and isinstance(self._stdout, io.TextIOWrapper):
                    self._stdout.reconfigure(errors="strict")  # programs read names as they are
            else:
                temporary = opened.enter_context(Replacing([self._target]))[self._target]
                self._file = self._opened(temporary, opened)
            opened.push(self._end)
            self._open = opened.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._failures():
            self._open.__exit__(kind, error, trace)

    def _opened(self, path: Path, opened: ExitStack) -> Any:
        if self._format != "parquet":
            return opened.enter_context(path.open("w", encoding="utf-8", newline="\n"))
        file = opened.enter_context(path.open("wb"))  # Arrow takes no path that is not UTF-8
        schema = pa.schema([(name, _ARROW[kind]) for name, kind in self._columns.items()])
        return opened.enter_context(pq.ParquetWriter(file, schema))

    def _end(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if kind is None and self._format == "json":
            self._file.write("\n]\n" if self._begun else "[]\n")
        elif kind is None and self._format != "parquet" and not self._begun:
            self._file.write(self._text([]))

    def write(self, answers: Iterable[Prediction | Neighbor]) -> None:
        """Write some answers.

        Raises:
            FormatError: a name holds a tab or line break, which TSV cannot carry. StorageError: writing
            failed.
        """
        rows = [[getattr(answer, name) for name in self._columns] for answer in answers]
        with self._failures():
            self._write(rows)

    def _write(self, rows: list[list[Any]]) -> None:
        """Write rows, the first ones under the heading, so that nothing is read of what fails at once."""
        if not rows:
            return
        if self._format == "parquet":
            columns = zip(*rows, strict=True)
            self._file.write_table(
                pa.table([pa.array(c, f.type) for c, f in zip(columns, self._file.schema, strict=True)],
                         schema=self._file.schema)
            )  # fmt: skip
        else:
            self._file.write(self._text(rows))
            self._begun = True

    def _text(self, rows: list[list[Any]]) -> str:
        if self._format == "table":
            return self._table.text(rows)
        if self._format == "json":
            return (",\n " if self._begun else "[\n ") + ",\n ".join(map(self._record, rows))
        lines = rows if self._begun else [[*self._columns], *rows]
        if self._format == "tsv":
            return "".join(map(_tsv_line, lines))
        text = io.StringIO(newline="")
        csv.writer(_LineFeeds(text), lineterminator="\r\n").writerows(lines)
        return text.getvalue()

    def _record(self, row: list[Any]) -> str:
        cells = zip(self._columns, row, strict=True)
        record = {name: _json_value(cell) for name, cell in cells if cell is not None}
        return json.dumps(record, ensure_ascii=False, allow_nan=False)

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Name the file, or standard output, in what the system says of it."""
        try:
            yield
        except StorageError as error:
            raise StorageError(f"--output: {error}") from error
        except UnicodeEncodeError as error:
            raise StorageError(
                f"standard output takes {error.encoding}, which lacks {error.object[error.start]!r}: give "
                "--output FILE, or set PYTHONIOENCODING=utf-8"
            ) from error
        except OSError as error:
            if self._target is None:
                if isinstance(error, BrokenPipeError):
                    raise
                raise StorageError(f"standard output cannot be written: {error.strerror or error}") from error
            raise StorageError(f"writing --output {self._target} failed: {reason_of(error)}") from error


def _json_value(cell: Any) -> Any:
    """A cell as JSON has it: null for a number that is not finite."""
    return None if isinstance(cell, float) and not math.isfinite(cell) else cell


class _LineFeeds:
    """Ends rows of CSV in a line feed; the csv module quotes carriage returns only where they end rows."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def write(self, row: str) -> None:
        self._file.write(row.removesuffix("\r\n") + "\n")


def _tsv_line(row: Sequence[Any]) -> str:
    cells = ["" if cell is None else str(cell) for cell in row]
    for cell in cells:
        if any(mark in cell for mark in "\t\n\r"):
            raise FormatError(f"the name {cell!r} holds a tab or line break; write CSV, JSON or Parquet")
    return "\t".join(cells) + "\n"


class _Table:
    """Rows as they come, under one heading; numbers to the right, columns that are empty at first left out.

    Columns are as wide as the first rows need, and wider from a longer cell on. Names have escapes for what
    would break a line or steer a terminal; see `readable`.

    Args:
        columns: name → type of its cells.

    >>> table = _Table({"name": "str", "score": "float", "probability": "float | None"})
    >>> print(table.text([["Oslo", 1.5, None], ["Bern", -0.25, None]]) + table.text([["Rome", 10.0, None]]))
    name    score
    Oslo   1.5000
    Bern  -0.2500
    Rome  10.0000
    <BLANKLINE>
    >>> print(_Table({"name": "str", "score": "float"}).text([["東京", 1.5], ["Oslo", 2.5], ["Bern!", 2.5]]))
    name    score
    東京   1.5000
    Oslo   2.5000
    Bern!  2.5000
    <BLANKLINE>
    """

    def __init__(self, columns: Mapping[str, str]) -> None:
        self._columns = columns
        self._shown: list[int] = []
        self._widths: list[int] = []

    def text(self, rows: Sequence[Sequence[Any]]) -> str:
        """Lines of some rows; the first ones, or none, have the heading above them."""
        names, kinds = [*self._columns], [*self._columns.values()]
        lines = []
        if not self._shown:
            filled = [any(row[i] is not None for row in rows) for i in range(len(names))]
            self._shown = [
                i for i, kind in enumerate(kinds) if filled[i] or (not rows and "None" not in kind)
            ]
            self._widths = [0] * len(self._shown)
            lines.append([names[i] for i in self._shown])
        lines += [[_cell(row[i]) for i in self._shown] for row in rows]
        self._widths = [
            max(width, *map(width_of, cells)) for width, *cells in zip(self._widths, *lines, strict=True)
        ]
        numeric = [bool(rows) and kinds[i] != "str" for i in self._shown]
        return "".join(
            "  ".join(
                _padded(cell, width, to_the_right=right)
                for cell, width, right in zip(line, self._widths, numeric, strict=True)
            ).rstrip()
            + "\n"
            for line in lines
        )


def _padded(cell: str, width: int, *, to_the_right: bool) -> str:
    blanks = " " * (width - width_of(cell))
    return blanks + cell if to_the_right else cell + blanks


def _cell(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else readable(str(value))
