"""Query files (floor 4): TSV, CSV or Parquet in, names with what is asked for left out."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from marius_py.errors import FormatError, MissingPathError, StorageError
from marius_py.predict.queries import PARTS
from marius_py.prepare.column_names import WORDS
from marius_py.prepare.text import compression_of
from marius_py.storage.regular import PIPE, irregular_kind
from marius_py.storage.targets import reaching

Column = list[str | None] | None

_SIGN = "?"
_ASKED = (None, "", _SIGN)
_PARQUET = (".parquet", ".pq")


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
    _check_end(file, "queries ")
    if _is_parquet(file):
        return _read_parquet(file)
    try:
        rows = list(_csv_rows(file) if _is_csv(file) else _tsv_rows(file))
    except OSError as error:
        raise StorageError(f"queries {file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise _no_text(file, error) from error
    if not rows:
        raise _empty(file)
    columns: Sequence[str | None] = PARTS
    named = [_part_of(cell) for cell in rows[0][1]]
    if None not in named and len(set(named)) == len(named):
        columns, rows = named, rows[1:]
        if not rows:
            raise _empty(file)
    for number, cells in rows:
        if len(cells) != len(columns):
            raise _wrong_count(file, number, cells, rows[0][1] if columns is PARTS else None, len(columns))
    cells_of: dict[str, list[str | None]] = {
        str(column): [cells[place] for _, cells in rows] for place, column in enumerate(columns)
    }
    return Queries(file, cells_of, [number for number, _ in rows])


def read_names(path: Path | str, given: str = "names ") -> list[str]:
    """Read names of nodes: a line each, or of a Parquet file the column `name`, or its only one.

    A byte order mark and empty lines are no names. Quotes are a part of them but in files that end in .csv.

    Args:
        path: the file. given: what messages have before it, such as its flag.

    Raises:
        MissingPathError: no such file. StorageError: it cannot be read. FormatError: it holds no names.
    """
    file = Path(path)
    _check_end(file, given)
    try:
        names = _parquet_names(file) if _is_parquet(file) else _text_names(file)
    except UnicodeDecodeError as error:
        raise _no_text(file, error) from error
    except (pa.ArrowException, OSError) as error:
        reason = getattr(error, "strerror", None) or error
        raise StorageError(f"{given}{file} cannot be read: {reason}") from error
    if not names:
        raise FormatError(f"{file} holds no names; a name a line is expected")
    return names


def _check_end(file: Path, given: str) -> None:
    """Refuse what is not there, is a folder, or may have no end, as a device; a pipe is read."""
    with reaching(f"{given}{file}"):
        if not file.exists():
            raise MissingPathError(f"{given}{file} does not exist")
        kind = irregular_kind(file)
    if kind not in (None, PIPE):
        raise MissingPathError(f"{given}{file} is no file but {kind}; give a file, or a pipe")


def _text_names(file: Path) -> list[str]:
    if not _is_csv(file):
        lines = file.read_text(encoding="utf-8-sig").split("\n")
        return [line.rstrip("\r") for line in lines if line.strip("\r")]
    names = []
    for number, cells in _csv_rows(file):
        if len(cells) != 1:
            raise FormatError(f"{file} line {number}: {len(cells)} columns; a name a line is expected")
        names += cells
    return names


def _parquet_names(file: Path) -> list[str]:
    columns = pq.read_schema(file).names
    if "name" not in columns and len(columns) != 1:
        raise FormatError(f"{file} has no column name; it has {', '.join(columns)}")
    column = pq.read_table(file, columns=["name" if "name" in columns else columns[0]]).column(0)
    names: list[str] = column.cast(pa.string()).drop_null().to_pylist()  # of views Arrow drops no null
    return names


def _empty(file: Path) -> FormatError:
    return FormatError(f"{file} holds no queries")


def _no_text(file: Path, error: UnicodeDecodeError) -> FormatError:
    if (kind := compression_of(bytes(error.object))) is not None:
        return FormatError(
            f"{file} is compressed by {kind}; unpack it first, only files of edges may be packed"
        )
    return FormatError(f"{file} is not UTF-8 text: {error}")


def _is_parquet(file: Path) -> bool:
    return file.suffix.casefold() in _PARQUET


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
    if table.num_rows == 0:
        raise _empty(file)
    return Queries(file, columns, range(1, table.num_rows + 1))


def _column_of(file: Path, part: str, names: Sequence[str]) -> str | None:
    """The column of a part: the one of its own name, or else the only one that means it."""
    if part in names:
        return part
    known = [name for name in names if _part_of(name) == part]
    if len(known) > 1:
        raise FormatError(f"{file} has more than one column for the {part}: {', '.join(known)}; keep one")
    return known[0] if known else None
