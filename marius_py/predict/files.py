"""Query files in, answer files out (floor 4): TSV, CSV, Parquet in; a table, TSV, CSV, JSON, Parquet out."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from marius_py.errors import ConfigError, FormatError, MissingPathError, StorageError
from marius_py.predict.answers import Neighbor, Prediction
from marius_py.predict.queries import PARTS
from marius_py.prepare.columns import WORDS
from marius_py.storage.files import check_target
from marius_py.storage.replacing import Replacing
from marius_py.types import ANSWER_FORMATS, AnswerFormat

ENDINGS: dict[str, AnswerFormat] = {
    ".txt": "table",
    ".tsv": "tsv",
    ".csv": "csv",
    ".json": "json",
    ".parquet": "parquet",
}
Column = list[str | None] | None

_SIGN = "?"
_ASKED = (None, "", _SIGN)
_ARROW = {"int": pa.int64(), "str": pa.string(), "float": pa.float64(), "float | None": pa.float64()}


@dataclass(frozen=True, slots=True)
class Queries:
    """Queries of a file.

    Attributes:
        path: the file.
        cells: by "head", "relation" and "tail" what stands in the file; a column that it lacks is left out.
        lines: the line that each query begins in, from 1; of a Parquet file its row.
    """

    path: Path
    cells: dict[str, list[str | None]]
    lines: Sequence[int]

    @property
    def columns(self) -> dict[str, Column]:
        """Names by "head", "relation" and "tail", None where one is asked for; None for a column that the
        file lacks."""
        found: dict[str, Column] = dict.fromkeys(PARTS)
        for part, cells in self.cells.items():
            found[part] = [None if cell in _ASKED else cell for cell in cells]
        return found

    def place(self, number: int) -> str:
        """What messages call a query, counted from 0, and what "?" means where it leaves out too much."""
        unit = "row" if _is_parquet(self.path) else "line"
        row = {part: cells[number] for part, cells in self.cells.items()}
        given = {"head": None, "tail": None} | row
        doubtful = _SIGN in row.values() and sum(cell in _ASKED for cell in given.values()) > 1
        sign = f" ({_SIGN!r} stands for what is asked for)" if doubtful else ""
        return f"{self.path} {unit} {self.lines[number]}{sign}"


def read_queries(path: Path | str) -> Queries:
    """Read queries from TSV, CSV (quoted where needed) or Parquet, by the file's ending; other files are TSV.

    Text begins with a line that names its columns by words that `marius-prepare` knows ("head" or "source",
    …; whatever their case), or has three columns, head, relation, tail; a byte order mark before it is no
    part of it. A Parquet file has columns of such names. What is asked for is left out, empty, null or "?".

    Raises:
        MissingPathError: no such file. StorageError: it cannot be read. FormatError: its content is wrong;
        names the line.
    """
    file = Path(path)
    if not file.exists():
        raise MissingPathError(f"queries {file} does not exist")
    if _is_parquet(file):
        return _read_parquet(file)
    try:
        rows = list(_csv_rows(file) if _is_csv(file) else _tsv_rows(file))
    except OSError as error:
        raise StorageError(f"queries {file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise FormatError(f"{file} is not UTF-8 text: {error}") from error
    if not rows:
        raise FormatError(f"{file} holds no queries")
    columns: Sequence[str | None] = PARTS
    named = [_part_of(cell) for cell in rows[0][1]]
    if None not in named and len(set(named)) == len(named):
        columns, rows = named, rows[1:]
    for number, cells in rows:
        if len(cells) != len(columns):
            raise _wrong_count(file, number, cells, rows[0][1] if columns is PARTS else None, len(columns))
    cells_of: dict[str, list[str | None]] = {
        str(column): [cells[place] for _, cells in rows] for place, column in enumerate(columns)
    }
    return Queries(file, cells_of, [number for number, _ in rows])


def _is_parquet(file: Path) -> bool:
    return file.suffix.casefold() == ".parquet"


def _is_csv(file: Path) -> bool:
    return file.suffix.casefold() == ".csv"


def _part_of(name: str) -> str | None:
    """The part of an edge that a column's name tells, if any."""
    word = name.strip().casefold().replace(" ", "_")
    return next((part for part in PARTS if word in WORDS[part]), None)


def _tsv_rows(file: Path) -> Iterator[tuple[int, list[str]]]:
    """The line of each row, and its cells; quotes are part of a name."""
    for number, line in enumerate(file.read_text(encoding="utf-8-sig").split("\n"), 1):
        if line.strip("\r"):
            yield number, line.rstrip("\r").split("\t")


def _csv_rows(file: Path) -> Iterator[tuple[int, list[str]]]:
    """The line that each row begins in, and its cells."""
    with file.open(encoding="utf-8-sig", newline="") as lines:
        reader, start = csv.reader(lines, strict=True), 1
        try:
            for cells in reader:
                if cells:
                    yield start, cells
                start = reader.line_num + 1
        except csv.Error as error:
            raise FormatError(f"{file} line {start}: {error}") from error


def _wrong_count(
    file: Path, number: int, cells: Sequence[str], first: Sequence[str] | None, expected: int
) -> FormatError:
    """A row of another number of cells; `first` is the first line where that names no columns."""
    problem = (
        f"{file} line {number}: {len(cells)} column{'' if len(cells) == 1 else 's'}, expected {expected}"
    )
    if first is None:
        return FormatError(f"{problem}, as its first line names them")
    words = [cell for cell in first if _part_of(cell) is not None]
    if words and len(first) > 1:
        others = [cell for cell in first if cell not in words]
        hint = (
            f"its first line names {', '.join(map(repr, others))}, which is no head, relation or tail"
            if others
            else "its first line names a part twice"
        )
    else:
        hint = f"or a first line that names the columns: {', '.join(PARTS)}"
    if len(cells) == 1 and "," in cells[0] and not _is_csv(file):
        hint = "tabs separate columns; give a file whose commas do the ending .csv"
    return FormatError(f"{problem} ({', '.join(PARTS)}); {hint}")


def _read_parquet(file: Path) -> Queries:
    try:
        names = pq.read_schema(file).names
        present = {part: name for part in PARTS if (name := _column_of(file, part, names)) is not None}
        if not present:
            raise FormatError(f"{file} has none of the columns {', '.join(PARTS)}; it has {', '.join(names)}")
        table = pq.read_table(file, columns=[*present.values()])
        columns = {part: table.column(name).cast(pa.string()).to_pylist() for part, name in present.items()}
    except (pa.ArrowException, OSError) as error:
        raise StorageError(f"queries {file} cannot be read: {error}") from error
    return Queries(file, columns, range(1, table.num_rows + 1))


def _column_of(file: Path, part: str, names: Sequence[str]) -> str | None:
    """The column of a part: the one of its own name, or else the only one that means it."""
    if part in names:
        return part
    known = [name for name in names if _part_of(name) == part]
    if len(known) > 1:
        raise FormatError(f"{file} has more than one column for the {part}: {', '.join(known)}; keep one")
    return known[0] if known else None


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
        target: the file, or None for `stdout`.
        format: one of `ANSWER_FORMATS`; Parquet needs a file.
        kind: the class of the answers.
        stdout: where to write without a file.

    Raises:
        ConfigError: an unknown format, Parquet without a file, or no such folder. StorageError: the folder
        cannot be written to.
    """

    def __init__(
        self, target: Path | None, format: str, kind: type[Prediction] | type[Neighbor], stdout: IO[str]
    ) -> None:
        if format not in ANSWER_FORMATS:
            raise ConfigError(f"format is {format!r}; allowed: {', '.join(ANSWER_FORMATS)}")
        if format == "parquet" and target is None:
            raise ConfigError("format parquet needs a file: give --output FILE")
        if target is not None:
            check_target(target, f"--output {target}")
        self._target = target
        self._format = format
        self._columns = {field.name: str(field.type) for field in fields(kind)}
        self._stdout = stdout
        self._file: Any = None
        self._count = 0
        self._open = ExitStack()

    def __enter__(self) -> AnswerWriter:
        with ExitStack() as opened, self._failures():
            if self._target is None:
                self._file = self._stdout
                if self._format != "table" and isinstance(self._stdout, io.TextIOWrapper):
                    self._stdout.reconfigure(errors="strict")  # programs read names as they are
            else:
                temporary = opened.enter_context(Replacing([self._target]))[self._target]
                self._file = opened.enter_context(self._opened(temporary))
            if self._format == "tsv":
                self._file.write("\t".join(self._columns) + "\n")
            elif self._format == "csv":
                _csv_writer(self._file).writerow(self._columns)
            opened.push(self._end)
            self._open = opened.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._failures():
            self._open.__exit__(kind, error, trace)

    def _opened(self, path: Path) -> Any:
        if self._format != "parquet":
            return path.open("w", encoding="utf-8", newline="\n")
        return pq.ParquetWriter(
            path, pa.schema([(name, _ARROW[kind]) for name, kind in self._columns.items()])
        )

    def _end(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if kind is None and self._format == "json":
            self._file.write("\n]\n" if self._count else "[]\n")

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
        if self._format == "parquet":
            columns = list(zip(*rows, strict=True)) or [()] * len(self._columns)
            self._file.write_table(
                pa.table([pa.array(c, f.type) for c, f in zip(columns, self._file.schema, strict=True)],
                         schema=self._file.schema)
            )  # fmt: skip
        elif self._format == "json":
            for row in rows:
                record = {
                    name: _json_value(cell)
                    for name, cell in zip(self._columns, row, strict=True)
                    if cell is not None
                }
                text = json.dumps(record, ensure_ascii=False, allow_nan=False)
                self._file.write((",\n " if self._count else "[\n ") + text)
                self._count += 1
        elif self._format == "tsv":
            self._file.writelines(_tsv_line(row) for row in rows)
        elif self._format == "csv":
            _csv_writer(self._file).writerows(rows)
        else:
            self._file.write(table_text([*self._columns], rows))

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Name the file in what the system says of it; of the terminal the command does that."""
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
                raise
            raise StorageError(
                f"writing --output {self._target} failed: {error.strerror or error}"
            ) from error


def _json_value(cell: Any) -> Any:
    """A cell as JSON has it: null for a number that is not finite."""
    return None if isinstance(cell, float) and not math.isfinite(cell) else cell


class _LineFeeds:
    """Ends rows in a line feed; the csv module quotes carriage returns only where they end rows."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def write(self, row: str) -> None:
        self._file.write(row.removesuffix("\r\n") + "\n")


def _csv_writer(file: IO[str]) -> Any:
    """Quotes cells with commas, quotes and line breaks; None is an empty cell."""
    return csv.writer(_LineFeeds(file), lineterminator="\r\n")


def _tsv_line(row: Sequence[Any]) -> str:
    cells = ["" if cell is None else str(cell) for cell in row]
    for cell in cells:
        if any(mark in cell for mark in "\t\n\r"):
            raise FormatError(f"the name {cell!r} holds a tab or line break; write CSV, JSON or Parquet")
    return "\t".join(cells) + "\n"


def table_text(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Rows under a heading, in columns as wide as needed; numbers to the right, all-empty columns left out.

    >>> print(table_text(["name", "score"], [["Oslo", 1.5], ["Bern", -0.25]]), end="")
    name    score
    Oslo   1.5000
    Bern  -0.2500
    """
    shown = [i for i in range(len(columns)) if not rows or any(row[i] is not None for row in rows)]
    cells = [[f"{row[i]:.4f}" if isinstance(row[i], float) else str(row[i]) for i in shown] for row in rows]
    numeric = [bool(rows) and not isinstance(rows[0][i], str) for i in shown]
    lines = [[columns[i] for i in shown], *cells]
    widths = [max(len(line[place]) for line in lines) for place in range(len(shown))]
    return "".join(
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ).rstrip()
        + "\n"
        for line in lines
    )
