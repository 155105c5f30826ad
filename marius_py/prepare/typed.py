"""Reads Parquet and NumPy edge lists in blocks (floor 4).

In: .parquet (columns of text or integers), .npy ((E, 2) or (E, 3) integers or text), .npz (one such array, or
arrays head, relation, tail). Out: `EdgeBlock`s. Integer names stay integers. Arrays inside an .npz are read
as streams, so memory is a block even when they are compressed; wide text has fewer rows a block, since NumPy
takes four bytes a character. Object arrays (pickles) are refused.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from marius_py.errors import ConfigError, FormatError, StorageError
from marius_py.prepare.advice import columns_setting, elsewhere
from marius_py.prepare.blocks import (
    ROLES,
    EdgeBlock,
    NameKind,
    check_names,
    kind_of,
    name_column,
    pandas_index,
)
from marius_py.prepare.column_names import doubt_ids, first_of, leave_out_index, tells_ends
from marius_py.prepare.columns import ColumnKey, Columns, WeightKey, resolve_columns
from marius_py.prepare.weights import check_type, weight_column
from marius_py.storage.files import storage_error

PARQUET_BLOCK_ROWS = 1 << 16
"""Rows of Parquet read at a time: of what length its names are is known too late."""

BLOCK_ROWS, BLOCK_BYTES = 1 << 20, 1 << 25
"""Rows of NumPy's arrays read at a time, and bytes if these make fewer."""

_OWN = (ValueError, EOFError, KeyError, RuntimeError, SyntaxError)
"""NumPy's and zipfile's: a header that is no literal, a member that is missing, encrypted, packed in a way
that is not known, or cut off."""

_DAMAGE = (pa.ArrowException, zipfile.BadZipFile, zlib.error, *_OWN)
"""What readers raise on damaged files."""


class ParquetSource:
    """A Parquet file, fulfilling `EdgeSource`.

    Args:
        path: the file.
        columns: two or three positions or column names; None: by names such as head and tail, or order; see
            `resolve_columns`.
        weight: the column of weights; see there.

    Raises:
        FormatError: no Parquet file, wrong columns or types, a pandas index that may be an end, no rows.
    """

    unit = "edges"

    def __init__(
        self,
        path: Path,
        *,
        columns: list[ColumnKey] | None = None,
        weight: WeightKey | None = None,
        block_rows: int = PARQUET_BLOCK_ROWS,
    ) -> None:
        self.path = path
        self._block_rows = block_rows
        with _damage_as_format(path), path.open("rb") as opened, pq.ParquetFile(opened) as file:
            schema, self.size = file.schema_arrow, file.metadata.num_rows
            index = pandas_index(schema) if columns is None else []
        if self.size == 0:
            raise FormatError(f"{path} has no rows; it should hold one edge a row")
        if len(set(schema.names)) != len(schema.names):
            raise FormatError(f"{path}: several columns have the same name; rename them")
        names, doubtful = leave_out_index(schema.names, index, f"{path}")
        if doubtful:
            raise FormatError(
                f"{path}: {', '.join(map(repr, doubtful))} was the index of a pandas frame, and may be a "
                f"part of the edges: choose two or three of {first_of(schema.names)} with input.columns "
                f"{elsewhere('columns', 'write a file with those columns only')}"
            )
        self._columns = resolve_columns(names, columns, True, f"{path}", weight=weight)
        self._names = [names[i] for i in self._columns.used]
        self.num_columns, self.weight_column = self._columns.count, self._columns.weight
        self._weight = [] if self.weight_column is None else [names[self.weight_column]]
        kinds = [kind_of(schema.field(name).type, name, path) for name in self._names]
        self.has_relations = self._columns.relation is not None
        self.node_kind: NameKind = "integer" if kinds[0] == kinds[-1] == "integer" else "text"
        self.relation_kind: NameKind = kinds[1] if self.has_relations else "integer"
        if self.node_kind == "integer":
            doubt_ids(self._names[0], self._names[-1], f"{path}")
        self.position = 0

    def blocks(self) -> Iterator[EdgeBlock]:
        """Read the file from its start."""
        self.position = 0
        with _damage_as_format(self.path), self.path.open("rb") as opened, pq.ParquetFile(opened) as file:
            read = [*self._names, *self._weight]
            for batch in file.iter_batches(self._block_rows, columns=read, use_threads=False):
                first = self.position + 1
                columns = {
                    role: name_column(batch.column(name), kind, role, self.path, first)
                    for role, name, kind in zip(self._roles(), self._names, self._kinds(), strict=True)
                }
                weight = [weight_column(batch.column(name), self.path, first) for name in self._weight]
                block = EdgeBlock(columns["head"], columns.get("relation"), columns["tail"], first, *weight)
                check_names(block, self.path)
                self.position += block.num_edges
                yield block

    def _roles(self) -> tuple[str, ...]:
        return ROLES if self.has_relations else ("head", "tail")

    def _kinds(self) -> tuple[NameKind, ...]:
        node = self.node_kind
        return (node, self.relation_kind, node) if self.has_relations else (node, node)


class NumpySource:
    """An .npy or .npz file, fulfilling `EdgeSource`.

    Args:
        path: the file.
        columns: two or three positions in the second dimension (for an .npz of several arrays: their names).
        weight: the column of weights; see `resolve_columns`.

    Raises:
        FormatError: no NumPy file, an array of the wrong shape or type, no rows.
    """

    unit = "edges"

    def __init__(
        self,
        path: Path,
        *,
        columns: list[ColumnKey] | None = None,
        weight: WeightKey | None = None,
        block_rows: int = BLOCK_ROWS,
    ) -> None:
        self.path = path
        self.position = 0
        self._members, self._weight, self._columns = self._inspect(columns, weight)
        self.num_columns, self.weight_column = self._columns.count, self._columns.weight
        row_bytes = sum(member.row_bytes for member in self._members)
        self._block_rows = min(block_rows, max(1, BLOCK_BYTES // max(row_bytes, 1)))
        self.has_relations = self._columns.relation is not None
        self.size = self._members[0].rows
        if self.size == 0:
            raise FormatError(f"{path} has no rows; it should hold one edge a row")
        kinds = [_numpy_kind(member.dtype, path) for member in self._members]  # one for all, or one a role
        self.node_kind: NameKind = "integer" if kinds[0] == kinds[-1] == "integer" else "text"
        self.relation_kind: NameKind = kinds[len(kinds) // 2] if self.has_relations else "integer"

    def blocks(self) -> Iterator[EdgeBlock]:
        """Read the file from its start."""
        self.position = 0
        used = self._columns.used
        single = len(self._members) == 1
        with _damage_as_format(self.path), ExitStack() as stack:
            streams = [stack.enter_context(member.stream()) for member in (*self._members, *self._weight)]
            for start in range(0, self.size, self._block_rows):
                count = min(self._block_rows, self.size - start)
                if single:
                    rows = streams[0](count)
                    arrays = [rows[:, position] for position in used]
                    if self.weight_column is not None:
                        arrays.append(rows[:, self.weight_column])
                else:
                    arrays = [stream(count) for stream in streams]
                self.position = start + count
                yield self._block(arrays[: len(used)], arrays[len(used) :], start + 1)

    def _block(
        self, arrays: Sequence[NDArray[Any]], weights: Sequence[NDArray[Any]], first: int
    ) -> EdgeBlock:
        kinds = (
            [self.node_kind, self.relation_kind, self.node_kind]
            if self.has_relations
            else [self.node_kind] * 2
        )
        roles = ROLES if self.has_relations else ("head", "tail")
        columns = {}
        for role, kind, array in zip(roles, kinds, arrays, strict=True):
            values = np.ascontiguousarray(array)
            if values.dtype.kind in "US":
                _refuse_nul(values, role, self.path, first)
            try:
                column = _arrow(values)
            except UnicodeError as error:
                row = next(row for row, name in enumerate(values) if not _is_text(name))
                raise FormatError(
                    f"{self.path}, row {first + row}: the {role} name {values[row].item()!r} is no UTF-8"
                ) from error
            columns[role] = name_column(column, kind, role, self.path, first)
        weight = [weight_column(_arrow(np.ascontiguousarray(one)), self.path, first) for one in weights]
        block = EdgeBlock(columns["head"], columns.get("relation"), columns["tail"], first, *weight)
        check_names(block, self.path)
        return block

    def _inspect(
        self, columns: list[ColumnKey] | None, weight: WeightKey | None
    ) -> tuple[list[_Member], list[_Member], Columns]:
        """The one array of rows, or the arrays in the order head, (relation,) tail; the array of weights if
        it is one of several; and the columns."""
        with _damage_as_format(self.path):
            members = _npz_members(self.path) if zipfile.is_zipfile(self.path) else [_Member(self.path, None)]
        if not members:
            raise FormatError(f"{self.path} holds no array")
        if len(members) == 1:
            member = members[0]
            member.check()
            if len(member.shape) != 2:
                raise FormatError(
                    f"{self.path}: the array has shape {member.shape}; edges need (E, 2) or (E, 3)"
                )
            if columns is not None and any(isinstance(key, str) for key in columns):
                raise ConfigError(
                    f"columns is {columns!r}, but the columns of an array have no names; give positions"
                )
            if weight is not None and isinstance(weight.column, str):
                raise ConfigError(
                    f"input.weight={weight.column}, but columns of an array have no names; give a position"
                )
            if columns is None and member.shape[0] in (2, 3) and member.shape[1] > 3 + (weight is not None):
                raise FormatError(
                    f"{self.path}: the array has shape {member.shape} with {member.shape[1]} columns; edges "
                    f"need (E, 2) or (E, 3). If its {member.shape[0]} rows are the heads, (relations,) and "
                    "tails, as in edge_index of PyTorch Geometric, it is stored by rows: save array.T"
                )
            cells = [str(i) for i in range(member.shape[1])]
            return members, [], resolve_columns(cells, columns, False, str(self.path), weight=weight)
        names = [str(member.name) for member in members]
        if columns is None and not tells_ends(names):
            offered = columns_setting(names, range(min(3, len(names))))
            raise FormatError(
                f"{self.path} holds the arrays {first_of(names)}; call them head, relation, tail, or name "
                f"two or three of them with input.columns={offered} "
                f"{elsewhere('columns', 'write a file with these names')}"
            )
        resolved = resolve_columns(names, columns, True, str(self.path), weight=weight)
        used = [members[i] for i in resolved.used]
        weights = [] if resolved.weight is None else [members[resolved.weight]]
        if len({member.shape for member in (*used, *weights)}) != 1 or len(used[0].shape) != 1:
            shapes = ", ".join(f"{member.name} {member.shape}" for member in (*used, *weights))
            raise FormatError(f"{self.path}: the arrays have shapes {shapes}; they must be (E,) and equal")
        for member in (*used, *weights):
            member.check()
        for member in weights:
            check_type(member.dtype, str(member.name), self.path)
        return used, weights, resolved


class _Member:
    """An array in an .npy file, or one member of an .npz, read from start to end."""

    def __init__(self, path: Path, name: str | None) -> None:
        self._path = path
        self.name = name
        with self._open() as file:
            self.shape, self._fortran, self.dtype = _read_header(file)

    def check(self) -> None:
        """Refuse with a FormatError an array that cannot be read in blocks, or not without a pickle."""
        what = "the array" if self.name is None else f"array {self.name!r}"
        if self.dtype.hasobject:
            raise FormatError(f"{self._path}: {what} is one of objects (pickle); save integers or text")
        if self._fortran and len(self.shape) > 1 and self.name is not None:
            raise FormatError(f"{self._path}: {what} is stored by columns; save it with np.ascontiguousarray")

    @property
    def rows(self) -> int:
        return int(self.shape[0])

    @property
    def row_bytes(self) -> int:
        return int(np.prod(self.shape[1:], dtype=np.int64)) * self.dtype.itemsize

    @contextmanager
    def stream(self) -> Iterator[Any]:
        """Open the member; gives a function read(n) -> the next n rows."""
        if self.name is None:
            try:
                array = np.load(self._path, mmap_mode="r", allow_pickle=False)
            except ValueError as error:
                raise FormatError(f"{self._path} is damaged: {error}") from error
            position = 0

            def read_mapped(count: int) -> NDArray[Any]:
                nonlocal position
                position += count
                return np.asarray(array[position - count : position])

            yield read_mapped
            return
        with self._open() as file:
            _read_header(file)
            width = self.row_bytes

            def read(count: int) -> NDArray[Any]:
                data = file.read(count * width)
                if len(data) != count * width:
                    raise FormatError(f"{self._path} is damaged: array {self.name!r} ends too early")
                return np.frombuffer(data, dtype=self.dtype).reshape(count, *self.shape[1:])

            yield read

    @contextmanager
    def _open(self) -> Iterator[IO[bytes]]:
        if self.name is None:
            with open(self._path, "rb") as file:
                yield file
        else:
            with zipfile.ZipFile(self._path) as archive, archive.open(f"{self.name}.npy") as member:
                yield member


def _npz_members(path: Path) -> list[_Member]:
    with zipfile.ZipFile(path) as archive:
        names = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
    return [_Member(path, name) for name in names]


def _read_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(file)
    if version == (2, 0):
        return np.lib.format.read_array_header_2_0(file)
    raise ValueError(f"NumPy file version {version} is not supported")


def _refuse_nul(values: NDArray[Any], role: str, path: Path, first: int) -> None:
    """Refuse fixed-width text (n,) with a NUL before its end, where Arrow would cut it."""
    if not values.dtype.itemsize:
        return
    unit = np.uint32 if values.dtype.kind == "U" else np.uint8
    nul = values.view(unit).reshape(len(values), -1) == 0
    bad = (nul[:, :-1] & ~nul[:, 1:]).any(axis=1)
    if bad.any():
        row = int(bad.argmax())
        raise FormatError(f"{path}, row {first + row}: the {role} name {values[row].item()!r} holds a NUL")


def _arrow(values: NDArray[Any]) -> Any:
    """Integers or text (n,) as an Arrow array; UnicodeError if a text is no UTF-8."""
    if values.dtype.kind == "S":
        values = np.char.decode(values, "utf-8")
    return pa.array(values.astype(values.dtype.newbyteorder("="), copy=False))


def _is_text(name: Any) -> bool:
    """Whether a name of NumPy's, bytes or text, is UTF-8 or can be."""
    try:
        _arrow(np.array([name]))
    except UnicodeError:
        return False
    return True


def _numpy_kind(dtype: np.dtype[Any], path: Path) -> NameKind:
    if dtype.kind in "iu":
        return "integer"
    if dtype.kind in "US":
        return "text"
    raise FormatError(f"{path}: the array has type {dtype}; names must be integers or text")


@contextmanager
def _damage_as_format(path: Path) -> Iterator[None]:
    """Turn what the readers raise on damaged files into FormatError, on failing devices into StorageError."""
    try:
        yield
    except (FormatError, StorageError, ConfigError):
        raise
    except OSError as error:
        if error.errno:
            raise storage_error("read", path, error) from error
        raise FormatError(f"{path} is damaged: {error}") from error
    except _DAMAGE as error:
        raise FormatError(f"{path} is damaged or of another format: {error}") from error
