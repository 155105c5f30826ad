"""Name tables of a prepared graph (floor 1): written in id order, read by id range, searched by name.

nodes.parquet and relations.parquet hold one column `name` in id order. In: blocks of names, a range of ids,
or names. Out: the file and its hash, lists of text, arrays of ids. Row groups have `ROW_GROUP` rows, so a
range of ids reads only its own row groups.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence, Sized
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash
from numpy.typing import NDArray

from marius_py.errors import ConfigError, StorageError
from marius_py.given import shown
from marius_py.storage.file_io import os_errors_as_storage, sync_path
from marius_py.storage.files import REFUSALS, storage_error
from marius_py.whole import is_whole

ROW_GROUP = 1 << 16


def write_names(path: Path, data_type: Any, blocks: Iterable[Any]) -> str:
    """Write a name table, block by block.

    Args:
        path: Parquet file to create.
        data_type: Arrow type of the names, large_string or int64.
        blocks: Arrow arrays of that type in id order, `ROW_GROUP` names each but the last.

    Returns:
        Hex hash of all names in id order.

    Raises:
        StorageError: writing failed.
    """
    digest = xxhash.xxh3_128(str(data_type).encode())
    schema = pa.schema([pa.field("name", data_type, nullable=False)])
    with os_errors_as_storage("write", path):
        with pq.ParquetWriter(
            path,
            schema,
            compression="zstd",
            compression_level=1,
            use_dictionary=False,
            write_statistics=False,
            write_page_checksum=True,
        ) as writer:
            for block in blocks:
                _update(digest, block)
                writer.write_table(pa.table([block], schema=schema), row_group_size=ROW_GROUP)
        sync_path(path)
    return digest.hexdigest()


def _update(digest: Any, block: Any) -> None:
    if pa.types.is_integer(block.type):
        digest.update(np.ascontiguousarray(block.to_numpy()))
        return
    offsets = np.frombuffer(block.buffers()[1], dtype=np.int64)[block.offset : block.offset + len(block) + 1]
    digest.update(np.diff(offsets))
    digest.update(memoryview(block.buffers()[2])[int(offsets[0]) : int(offsets[-1])])


def read_names(path: Path, start: int, stop: int, count: int) -> list[str]:
    """Read the names of ids start..stop from a table of `count` names.

    Raises:
        ConfigError: the range lies outside the table. StorageError: the file is missing, damaged or may not
            be read.
    """
    if not (is_whole(start, 0) and is_whole(stop, start, count)):
        raise ConfigError(f"id range {start!r}:{stop!r} of {path.name}; allowed: within 0:{count}")
    if start == stop:
        return []
    table, first = _NameTable(path), start // ROW_GROUP
    groups = range(first, (stop - 1) // ROW_GROUP + 1)
    names: list[str] = table.read(list(groups)).slice(start - first * ROW_GROUP, stop - start).to_pylist()
    if len(names) != stop - start:
        raise StorageError(f"{path} is damaged: fewer names than {count}; prepare the graph again")
    return names


def find_names(path: Path, names: Sequence[str]) -> NDArray[np.int64]:
    """Look names up: (n,) int64 ids, −1 where the table lacks the name.

    Reads the table in blocks of about as many names as are asked for, at least a row group.
    """
    if isinstance(names, str):
        raise ConfigError(f"names is the single text {names!r}; pass a list of names")
    if not isinstance(names, Sized) or not isinstance(names, Iterable):
        raise ConfigError(f"names is {shown(names)}; pass a list of names")
    if not all(isinstance(name, str) for name in names):
        raise ConfigError("names holds something that is no text; pass a list of names (str)")
    ids = np.full(len(names), -1, dtype=np.int64)
    if not len(names):
        return ids
    try:
        encoded = pa.array(names, pa.large_string()).dictionary_encode()
    except UnicodeEncodeError:  # bytes of a command line that are no text: no table has such a name
        legal = [place for place, name in enumerate(names) if _is_text(name)]
        ids[legal] = find_names(path, [names[place] for place in legal])
        return ids
    wanted = encoded.dictionary
    found = np.full(len(wanted), -1, dtype=np.int64)
    missing = len(wanted)
    table = _NameTable(path)
    step = max(1, len(wanted) // ROW_GROUP)  # each search makes a hash table of all names asked for
    for first in range(0, table.num_groups, step):
        groups = range(first, min(first + step, table.num_groups))
        hits = pc.index_in(table.read(list(groups)), value_set=wanted)
        if hits.null_count == len(hits):
            continue
        rows = pc.indices_nonzero(hits.is_valid()).to_numpy()
        found[hits.drop_null().to_numpy(zero_copy_only=False)] = rows.astype(np.int64) + first * ROW_GROUP
        missing -= len(rows)
        if missing == 0:
            break
    ids[:] = found[encoded.indices.to_numpy()]
    return ids


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


class _NameTable:
    """A Parquet file of names, read by row groups, as large_string arrays."""

    def __init__(self, path: Path) -> None:
        self._path = path
        if not path.is_file():
            raise StorageError(f"{path} is missing; prepare the graph again")
        try:
            self._file = pq.ParquetFile(path, page_checksum_verification=True)
        except UnicodeEncodeError as error:
            raise StorageError(
                f"{path} is not UTF-8, as the path of a Parquet file must be: move the graph elsewhere"
            ) from error
        except (pa.ArrowException, OSError) as error:
            raise self._failed(error) from error

    @property
    def num_groups(self) -> int:
        return int(self._file.num_row_groups)

    def read(self, groups: list[int]) -> Any:
        """The names of some row groups as one large_string array."""
        try:
            column = self._file.read_row_groups(groups, columns=["name"], use_threads=False).column(0)
            return column.cast(pa.large_string()).combine_chunks()
        except (pa.ArrowException, OSError, KeyError, IndexError) as error:
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> StorageError:
        """The error of a table that cannot be read: it is damaged, unless the system refused to read it."""
        if isinstance(error, OSError) and error.errno in REFUSALS:
            return storage_error("read", self._path, OSError(error.errno, os.strerror(error.errno)))
        return StorageError(f"{self._path} is damaged ({error}); prepare the graph again")
