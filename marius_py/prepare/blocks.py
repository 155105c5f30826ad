"""What readers hand to the dictionary (floor 4): a block of edges as three Arrow columns, and its checks.

In: columns of one block as read. Out: `EdgeBlock` whose names are valid: present, not empty, proper UTF-8,
without NUL. Every reader fulfils `EdgeSource`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from marius_py.errors import FormatError
from marius_py.whole import MAX_INT64

NameKind = Literal["text", "integer"]

ROLES = ("head", "relation", "tail")


@dataclass(frozen=True, slots=True)
class EdgeBlock:
    """Some edges in file order.

    Attributes:
        head: (n,) Arrow array of large_string, string or int64 names.
        relation: (n,) likewise, or None for edges without relation.
        tail: (n,) likewise, of the same type as `head`.
        first_row: number of the first edge in its file, from 1, for messages.
        weight: (n,) float32, finite and not negative, or None for edges that count alike.
    """

    head: Any
    relation: Any | None
    tail: Any
    first_row: int
    weight: NDArray[np.float32] | None = None

    @property
    def num_edges(self) -> int:
        """Edges of the block."""
        return len(self.head)


class EdgeSource(Protocol):
    """An edge list on disk, read in blocks of bounded memory.

    Attributes:
        path: the file.
        has_relations: whether it has a column of relations.
        num_columns: cells a row has.
        weight_column: position of the column of weights; None if it was not asked for.
        node_kind, relation_kind: kinds of names.
        size, position: of the file, and how much of it was read, in `unit`s.
        unit: "B" or "edges".
    """

    path: Path
    has_relations: bool
    num_columns: int
    weight_column: int | None
    node_kind: NameKind
    relation_kind: NameKind
    size: int
    position: int
    unit: str

    def blocks(self) -> Iterator[EdgeBlock]:
        """Read the file from its start. Raises FormatError (bad content) or StorageError (read error)."""
        ...


def kind_of(data_type: Any, column: str, path: Path) -> NameKind:
    """Whether a column of this Arrow type holds text or integer names; FormatError for any other type."""
    if pa.types.is_dictionary(data_type):
        data_type = data_type.value_type
    if pa.types.is_integer(data_type):
        return "integer"
    if (
        pa.types.is_string(data_type)
        or pa.types.is_large_string(data_type)
        or pa.types.is_string_view(data_type)
    ):
        return "text"
    hint = ""
    if pa.types.is_floating(data_type):
        hint = ": write it anew as one of these, in pandas with .astype('Int64') or .astype(str)"
    raise FormatError(f"{path}: column {column!r} has type {data_type}; names must be text or integers{hint}")


def pandas_index(schema: Any) -> list[str]:
    """Names of the columns of an Arrow schema in which pandas stored a frame's index."""
    try:
        listed = schema.pandas_metadata["index_columns"]  # a range stands there as a dictionary
        return [name for name in schema.names if name in listed]
    except (ValueError, TypeError, KeyError):  # none, or not written by pandas
        return []


def name_column(column: Any, kind: NameKind, role: str, path: Path, first_row: int) -> Any:
    """A column of a typed file as an array of int64 or large_string names without nulls.

    Raises:
        FormatError: a null, or an integer of 2⁶³ or more; names file and row.
    """
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if column.null_count:
        row = first_row + pc.index(column.is_null(), True).as_py()
        raise FormatError(f"{path}, row {row}: the {role} is null; every edge needs one")
    if kind == "integer" and pa.types.is_uint64(column.type):
        place = pc.index(pc.greater(column, pa.scalar(MAX_INT64, pa.uint64())), True).as_py()
        if place >= 0:
            raise FormatError(
                f"{path}, row {first_row + place}: the {role} is {column[place]}; integer names go up to "
                f"2^63 - 1: save all {'relations' if role == 'relation' else 'nodes'} as text, such as "
                "array.astype(str) of NumPy or a string column of Parquet"
            )
    return column.cast(pa.int64() if kind == "integer" else pa.large_string())


def check_names(block: EdgeBlock, path: Path) -> None:
    """Check the names of a block from a typed file (text readers check the bytes of their rows themselves).

    Raises:
        FormatError: an empty name, a NUL or invalid UTF-8; names file, row and value.
    """
    for role in ROLES:
        column = getattr(block, role)
        if column is None or pa.types.is_integer(column.type):
            continue
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            raise FormatError(
                f"{path}: a {role} name near row {block.first_row} is no valid UTF-8"
            ) from error
        for bad, what in (
            (pc.equal(pc.binary_length(column), 0), "is empty"),
            (has_nul(column), "holds a NUL"),
        ):
            index = pc.index(bad, True).as_py()
            if index >= 0:
                name = column[index].as_py()
                raise FormatError(f"{path}, row {block.first_row + index}: the {role} name {name!r} {what}")


WEIGHTS = "allowed: numbers from 0 to 3.4e38"
"""What ends an error of a weight."""


def bad_weight(values: NDArray[np.float64]) -> int:
    """The first place (n,) of what is no weight: less than 0, NaN, or beyond float32; -1 if all are some."""
    bad = ~((values >= 0) & (values <= np.finfo(np.float32).max))
    return int(bad.argmax()) if bad.any() else -1


def has_nul(column: Any) -> Any:
    """Which texts of an Arrow array hold a NUL, as an Arrow array."""
    return pc.match_substring(column, pattern="\0")


def name_fault(name: str) -> str | None:
    """Why no graph can hold a name that is not empty, to follow "which"; None: it can."""
    if "\0" in name:
        return "holds a NUL; a name must have none"
    if not name.isascii():
        try:
            name.encode()
        except UnicodeEncodeError:
            return (
                "UTF-8 cannot spell: it has half of a character (a lone surrogate), as bytes of another "
                "encoding leave it; decode them with that encoding"
            )
    return None
