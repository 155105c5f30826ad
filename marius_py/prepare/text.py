"""Reads TSV and CSV edge lists in blocks (floor 4).

In: a file, plain, gzip or zstd (recognised by its first bytes). Out: `EdgeBlock`s of text names. The rules,
so that no name changes on the way:

* UTF-8, with or without byte-order mark; lines end in LF or CRLF, the last one may lack its end; empty lines
  are skipped; a CR elsewhere, a NUL, an empty name, or a line with another number of columns is an error.
* Lines at the top, or right below a header there, that begin with the sign for comments, where there is one,
  count as empty lines.
* With quoting off (the default for TSV) a quote is a character like any other.
* With quoting on (the default for CSV) RFC 4180 holds strictly: a cell may be enclosed in double quotes, and
  then holds delimiters, line ends, and quotes written twice; a quote anywhere else is an error.
* No spelling means "missing": `NA`, `null`, `-` are names.

Blocks are cut at line ends here, and only whole lines are handed to Arrow's parser, so memory is a block (or
the longest line) and an error can be traced to its line.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from marius_py.errors import ConfigError, FormatError
from marius_py.prepare.blocks import EdgeBlock, NameKind, bad_weight
from marius_py.prepare.columns import ColumnKey, Columns, Header, WeightKey, resolve_columns
from marius_py.prepare.records import first_problem, iterate_records, split_record
from marius_py.prepare.weights import as_numbers
from marius_py.storage.files import storage_error

BLOCK_BYTES = 1 << 25
MAX_ROW_BYTES = 1 << 28
_AFTER_FIRST = 5
"""Lines after the first that help to tell whether it is a header."""

_BOM = b"\xef\xbb\xbf"
_RECORD = (rb"[^\n]*\n", rb'[^\n"]*(?:"[^"]*"[^\n"]*)*\n')
"""A whole record, without and with quoting; no two ways lead through one, so that a search
gives up at once. (Python before 3.11.5 errs with quantifiers that never give back.)"""
_CONTENT = re.compile(rb"[^\r\n]")
_MAGIC = re.compile(
    rb"(?P<gzip>\x1f\x8b)|(?P<zstd>\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18)|"
    rb"(?P<bzip2>BZh[1-9](?:1AY&SY|\x17rE8P\x90))|(?P<xz>\xfd7zXZ\0)|(?P<lz4>\x04\x22\x4d\x18)"
)
"""What compressed files begin with; files of pzstd with a frame that readers of zstd skip."""
_MAGIC_BYTES = 10


class TextSource:
    """A delimited text file, fulfilling `EdgeSource`.

    Args:
        path: the file.
        delimiter: one character that separates cells.
        quoting: whether RFC 4180 quoting is in force.
        header: as `resolve_columns`.
        columns: as `resolve_columns`.
        comment: the character with which lines above the first edge begin that are none; None: no such.
        numbered, weight: as `resolve_columns`.
        block_bytes: bytes read at a time; None: BLOCK_BYTES.

    Raises:
        FormatError: empty file, wrong first line. StorageError: unreadable. ConfigError: bad arguments.
    """

    node_kind: NameKind = "text"
    relation_kind: NameKind = "text"
    unit = "B"

    def __init__(
        self,
        path: Path,
        *,
        delimiter: str,
        quoting: bool,
        header: Header = "auto",
        columns: list[ColumnKey] | None = None,
        comment: str | None = None,
        numbered: Callable[[], bool] | None = None,
        weight: WeightKey | None = None,
        block_bytes: int | None = None,
    ) -> None:
        if not _divides(delimiter):
            raise ConfigError(
                f"delimiter is {delimiter!r}; allowed: one ASCII character other than a quote or line end"
            )
        if comment is not None and not _divides(comment):
            raise ConfigError(
                f"comment is {comment!r}; allowed: one ASCII character other than a quote or line end"
            )
        self.path = path
        self._comment = b"" if comment is None else comment.encode()
        self._delimiter = delimiter.encode()
        self._quoting = quoting
        self._block_bytes = BLOCK_BYTES if block_bytes is None else block_bytes
        self.position = 0
        self.size = path.stat().st_size
        self._columns = self._inspect(header, columns, numbered, weight)
        self.num_columns, self.weight_column = self._columns.count, self._columns.weight
        self.has_relations = self._columns.relation is not None

    def blocks(self) -> Iterator[EdgeBlock]:
        """Read the file from its start."""
        line, row, header = 1, 1, self._columns.has_header
        for chunk in self._chunks(header):
            first_line, line = line, line + chunk.count(b"\n")
            if header:
                if not _CONTENT.search(chunk):
                    continue
                record = next(r for r in iterate_records(chunk, self._quoting) if r.content)
                chunk = chunk[record.end :]
                first_line += record.line + record.lines
                header = False
            block = self._parse(chunk, first_line, row)
            if block is not None:
                row += block.num_edges
                yield block

    def _inspect(
        self,
        header: Header,
        columns: list[ColumnKey] | None,
        numbered: Callable[[], bool] | None,
        weight: WeightKey | None,
    ) -> Columns:
        first = list(islice(self._records(), 1 + _AFTER_FIRST))
        if not first:
            raise FormatError(f"{self.path} is empty; it should hold one edge a line")
        (where, content), *below = first
        cells = split_record(content, self._delimiter, self._quoting, where)
        following: list[list[str]] = []
        for place, content in below:
            try:
                following.append(split_record(content, self._delimiter, self._quoting, place))
            except FormatError:  # which reading the blocks raises, unless an earlier line is wrong too
                following.append([])
        return resolve_columns(cells, columns, header, where, following, numbered, weight)

    def _records(self) -> Iterator[tuple[str, bytes]]:
        """(file and line, content) of each record that is not empty, as if the first were a header."""
        line = 1
        for chunk in self._chunks(True):
            for record in iterate_records(chunk, self._quoting):
                if record.content:
                    yield f"{self.path}, line {line + record.line}", record.content
            line += chunk.count(b"\n")

    def _chunks(self, header: bool) -> Iterator[bytes]:
        """The decompressed file, cut after line ends, without byte-order mark; comments are empty lines."""
        mark = _BOM
        with _open(self.path) as (raw, stream):
            carry = self._read_comments(stream, header) if self._comment else b""
            while True:
                data = self._read(stream)
                self.position = self.size if not data else min(raw.tell(), self.size)
                chunk = carry + data if carry else data
                if not data:
                    if chunk := chunk.removeprefix(mark):
                        yield chunk
                    return
                cut = _last_line_end(chunk, self._quoting)
                carry = chunk[cut:]
                if len(carry) > MAX_ROW_BYTES:
                    raise FormatError(
                        f"{self.path}: a line of more than {MAX_ROW_BYTES >> 20} MiB (or a quote that is "
                        "never closed); is this an edge list?"
                    )
                if cut:
                    yield chunk[:cut].removeprefix(mark)
                    mark = b""

    def _read_comments(self, stream: Any, header: bool) -> bytes:
        """The file's beginning, to where its comments are over at least; they are empty lines now.

        Args:
            stream: the file, decompressed.
            header: whether the first record is a header, below which there may be comments, too.
        """
        comments = re.compile(rb"(?:%b[^\n]*\n|\r?\n)*" % re.escape(self._comment))
        record = re.compile(_RECORD[self._quoting])
        names = rest = b""
        mark: bytes | None = None
        above = below = 0
        while data := self._read(stream):
            rest += data
            if mark is None:
                if len(rest) < len(_BOM) and _BOM.startswith(rest):
                    continue
                mark = _BOM if rest.startswith(_BOM) else b""
                rest = rest[len(mark) :]
            if not names:
                rest, lines = _leave_out(comments, rest)
                above += lines
                if header and (found := record.match(rest)):
                    names, rest = found[0], rest[found.end() :]
            if names:
                rest, lines = _leave_out(comments, rest)
                below += lines
            if (b"\n" in rest and (names or not header)) or len(rest) > MAX_ROW_BYTES:
                break
        if b"\n" not in rest and rest.startswith(self._comment):
            rest = b""
        return (mark or b"") + b"\n" * above + names + b"\n" * below + rest

    def _read(self, stream: Any) -> bytes:
        try:
            return bytes(stream.read(self._block_bytes))
        except (OSError, EOFError, zlib.error, pa.ArrowException) as error:
            if isinstance(error, OSError) and error.errno:
                raise storage_error("read", self.path, error) from error
            raise FormatError(f"{self.path} is damaged: it cannot be decompressed ({error})") from error

    def _parse(self, chunk: bytes, first_line: int, first_row: int) -> EdgeBlock | None:
        if self._suspicious(chunk):
            raise self._problem(chunk, first_line)
        if not _CONTENT.search(chunk):
            return None
        # Arrow drops a mark at the start of what it is given; here it is part of a name.
        given = b"\n" + chunk if chunk.startswith(_BOM) else chunk
        names = [str(i) for i in range(self._columns.count)]
        used = [names[i] for i in self._columns.used]
        read = [*used, *([] if self.weight_column is None else [names[self.weight_column]])]
        try:
            table = pacsv.read_csv(
                pa.BufferReader(given),
                pacsv.ReadOptions(column_names=names, block_size=len(given) + 1),
                pacsv.ParseOptions(
                    delimiter=self._delimiter.decode(),
                    quote_char='"' if self._quoting else False,
                    newlines_in_values=self._quoting,
                ),
                pacsv.ConvertOptions(
                    include_columns=read,
                    column_types=dict.fromkeys(read, pa.string()),
                    strings_can_be_null=False,
                    null_values=[],
                    check_utf8=True,
                ),
            )
        except pa.ArrowInvalid as error:
            raise self._problem(chunk, first_line, error) from error
        if any(pc.min(pc.binary_length(table[name])).as_py() == 0 for name in used):
            raise self._problem(chunk, first_line)
        relation = table[used[1]] if len(used) == 3 else None
        weight = None
        if self.weight_column is not None:
            values = as_numbers(table[names[self.weight_column]])
            if bad_weight(values) >= 0:
                raise self._problem(chunk, first_line)
            weight = values.astype(np.float32)
        return EdgeBlock(table[used[0]], relation, table[used[-1]], first_row, weight)

    def _suspicious(self, chunk: bytes) -> bool:
        if b"\0" in chunk or (b"\r" in chunk and chunk.count(b"\r") != chunk.count(b"\r\n")):
            return True
        return self._quoting and b'"' in chunk and not _quotes_well_placed(chunk, self._delimiter)

    def _problem(self, chunk: bytes, first_line: int, error: Exception | None = None) -> FormatError:
        found = first_problem(chunk, self._delimiter, self._quoting, self._columns, self.path, first_line)
        return found or FormatError(f"{self.path}, after line {first_line}: {error}")


class _open:  # noqa: N801 - used like a function
    """Context manager: the raw file and the (decompressing) stream on it."""

    def __init__(self, path: Path) -> None:
        try:
            self._raw = path.open("rb")
            compression = compression_of(self._raw.read(_MAGIC_BYTES))
            self._raw.seek(0)
        except OSError as error:
            raise storage_error("read", path, error) from error
        if compression is None:
            self._stream: Any = self._raw
        elif compression == "gzip":  # not by Arrow, which takes zeros that pad the end for damage
            self._stream = gzip.GzipFile(fileobj=self._raw, mode="rb")
        elif compression == "zstd":
            self._stream = pa.CompressedInputStream(self._raw, compression)
        else:
            self._raw.close()
            raise FormatError(
                f"{path} is compressed with {compression}; only gzip and zstd are read: recompress it"
            )

    def __enter__(self) -> tuple[Any, Any]:
        return self._raw, self._stream

    def __exit__(self, *_: object) -> None:
        self._stream.close()
        self._raw.close()


def compression_of(start: bytes) -> str | None:
    """What a file that begins so is compressed by; None: by nothing that is known.

    >>> compression_of(b"\\x1f\\x8b\\x08"), compression_of(b"head")
    ('gzip', None)
    """
    magic = _MAGIC.match(start)
    return None if magic is None else magic.lastgroup


def _divides(given: object) -> bool:
    """Whether something is a character that can stand between columns, or begin a comment."""
    return isinstance(given, str) and len(given) == 1 and given.isascii() and given not in '\r\n\0"'


def _leave_out(lines: re.Pattern[bytes], start: bytes) -> tuple[bytes, int]:
    """What follows the lines that a text begins with, and how many these are."""
    found = lines.match(start)
    if found is None or not found.end():
        return start, 0
    return start[found.end() :], found[0].count(b"\n")


def _last_line_end(chunk: bytes, quoting: bool) -> int:
    """Bytes of `chunk` up to the end of its last whole record (0 if there is none)."""
    cut = chunk.rfind(b"\n") + 1
    if not quoting or b'"' not in chunk:
        return cut
    data = np.frombuffer(chunk, dtype=np.uint8)
    ends = np.flatnonzero(data == ord("\n"))
    quotes = np.flatnonzero(data == ord('"'))
    # a line end lies outside quotes when an even number of quotes precedes it
    outside = ends[np.searchsorted(quotes, ends) % 2 == 0]
    return int(outside[-1]) + 1 if len(outside) else 0


def _quotes_well_placed(chunk: bytes, delimiter: bytes) -> bool:
    """Whether every quote opens a cell, closes one, or is one of a pair inside a quoted cell (RFC 4180)."""
    data = np.frombuffer(chunk, dtype=np.uint8)
    quotes = np.flatnonzero(data == ord('"'))
    if len(quotes) % 2:
        return False
    opening, closing = quotes[::2], quotes[1::2]
    edge = np.zeros(256, dtype=bool)
    edge[[ord("\n"), delimiter[0]]] = True
    before = np.where(opening > 0, data[opening - 1], ord("\n"))
    starts = edge[before]
    starts[1:] |= opening[1:] == closing[:-1] + 1
    edge[ord("\r")] = True
    after = np.where(closing + 1 < len(data), data[np.minimum(closing + 1, len(data) - 1)], ord("\n"))
    ends = edge[after]
    ends[:-1] |= opening[1:] == closing[:-1] + 1
    return bool(starts.all() and ends.all())
