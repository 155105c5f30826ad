"""Distinct names and their numbers (floor 4): columns of names in, the number of each name out.

Few names are numbered by hash passes of Arrow, one over a column and one over all names, which makes a table
anew each time; from `LARGE_NAMES` on by a table of our own that stays and grows in place.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from marius_py.errors import FormatError
from marius_py.prepare.blocks import NameKind

LARGE_NAMES = 1 << 17
"""Names from which the table that stays takes over; for fewer no loop is compiled or loaded."""

_LIMIT = (1 << 31) - 1
_SLICE = 1 << 18
"""Names for which room is made at a time, as if none were known."""
_ROOM = 1.25
"""By how much an array grows that is full: what it has is not copied, but moved by the system."""


class NameTable:
    """Distinct names in order of first appearance.

    Args:
        kind: text or integer names.
        what: "node" or "relation", for messages.
    """

    def __init__(self, kind: NameKind, what: str) -> None:
        self.type = pa.int64() if kind == "integer" else pa.large_string()
        self._names = pa.array([], self.type)
        self._hashed: HashedNames | None = None
        self._what = what

    def __len__(self) -> int:
        return len(self._names) if self._hashed is None else self._hashed.count

    @property
    def names(self) -> Any:
        """(n,) Arrow array of int64 or large_string: those taken in, by number; asked for at the end."""
        if self._hashed is not None:  # its memory is that of the array from here on
            self._names, self._hashed = self._hashed.names(), None
        return self._names

    def number(self, columns: Sequence[Any]) -> list[NDArray[np.int32]]:
        """Number the names of some columns, one after the other; new ones are taken in.

        Args:
            columns: Arrow arrays, chunked or not, of int64, string or large_string.

        Returns:
            For each column, the number of each of its names.

        Raises:
            FormatError: there are too many.
        """
        parts = [[chunk for chunk in _chunks(column) if len(chunk)] for column in columns]
        flat = _of_one_type([chunk for part in parts for chunk in part], self.type)
        numbers = iter(self._few(flat)) if self._hashed is None else map(self._hashed.number, flat)
        found = [np.concatenate([_NONE, *islice(numbers, len(part))]) for part in parts]
        if len(self) > _LIMIT:
            raise FormatError(
                f"more than {_LIMIT} different {self._what} names; this is the limit for named graphs"
            )
        return found

    def _few(self, chunks: list[Any]) -> list[NDArray[np.int32]]:
        """The numbers of each chunk's names, by one pass over these and one over all that are known."""
        if not chunks:
            return []
        encoded = pa.chunked_array(chunks).dictionary_encode().chunks
        new = encoded[0].dictionary.cast(self.type)
        if len(self._names) + len(new) < LARGE_NAMES:
            # Arrow drops empty chunks here, so the names known so far take part only when there are any
            known = [self._names] if len(self._names) else []
            merged = pa.chunked_array([*known, new], self.type).dictionary_encode().chunks
            self._names, numbers = merged[0].dictionary, np.asarray(merged[-1].indices)
        else:
            self._hashed = HashedIntegers() if pa.types.is_integer(self.type) else HashedTexts()
            self._hashed.number(self._names)
            self._names = None
            numbers = self._hashed.number(new)
        return [numbers[np.asarray(chunk.indices)] for chunk in encoded]


_NONE = np.empty(0, np.int32)


def _chunks(column: Any) -> list[Any]:
    return column.chunks if isinstance(column, pa.ChunkedArray) else [column]


def _of_one_type(chunks: list[Any], kind: Any) -> list[Any]:
    """Text that is all `string` stays so, which has half the offsets of large_string; else all of a kind."""
    if pa.types.is_large_string(kind) and all(pa.types.is_string(chunk.type) for chunk in chunks):
        return chunks
    return [chunk.cast(kind) for chunk in chunks]


class HashedNames(ABC):
    """Names in a hash table that grows in place; see `numba_names`."""

    def __init__(self) -> None:
        self.count = 0
        self._slots = np.zeros(1 << 12, np.uint64)

    def number(self, names: Any) -> NDArray[np.int32]:
        """Take in an Arrow array (n,) of names; the number of each."""
        numbers = np.empty(len(names), np.int32)
        for start in range(0, len(names), _SLICE):
            found = numbers[start : start + _SLICE]
            self._make_room(len(found))
            self._number(names.slice(start, len(found)), found)
        return numbers

    @abstractmethod
    def _number(self, names: Any, numbers: NDArray[np.int32]) -> None:
        """Take in an Arrow array (n,) of names for which there are slots, and fill in the number of each."""

    @abstractmethod
    def names(self) -> Any:
        """All names by number, an Arrow array over the memory of this table, which takes no more then."""

    @property
    def _shift(self) -> int:
        return 65 - len(self._slots).bit_length()

    def _make_room(self, more: int) -> None:
        """Have three slots for two names once `more` have come."""
        from marius_py.prepare.numba_names import move

        size = len(self._slots)
        while 2 * size < 3 * (self.count + more):
            size *= 2
        if size > len(self._slots):
            old, self._slots = self._slots, np.zeros(size, np.uint64)
            move(old, self._slots, self._shift)


class HashedIntegers(HashedNames):
    """Whole numbers."""

    def __init__(self) -> None:
        super().__init__()
        self._names = np.empty(0, np.int64)

    def _number(self, names: Any, numbers: NDArray[np.int32]) -> None:
        """Of int64."""
        from marius_py.prepare.numba_names import number_integers

        values = names.to_numpy()
        _grow(self._names, self.count + len(values))
        self.count = number_integers(values, self._slots, self._shift, self._names, self.count, numbers)

    def names(self) -> Any:
        """All of them by number, int64."""
        return pa.Array.from_buffers(pa.int64(), self.count, [None, pa.py_buffer(self._names)])


class HashedTexts(HashedNames):
    """Texts, their bytes one behind the other."""

    def __init__(self) -> None:
        super().__init__()
        self._bytes, self._ends = np.empty(0, np.uint8), np.zeros(1, np.int64)

    def _number(self, names: Any, numbers: NDArray[np.int32]) -> None:
        """Of string or large_string."""
        from marius_py.prepare.numba_names import number_texts

        _, offsets, data = names.buffers()
        kind = np.int64 if pa.types.is_large_string(names.type) else np.int32
        places = np.frombuffer(offsets, kind)[names.offset : names.offset + len(names) + 1].astype(np.int64)
        texts = np.frombuffer(data if data else b"\0", np.uint8)  # of empty texts there may be no bytes
        _grow(self._ends, self.count + len(names) + 1)
        _grow(self._bytes, int(self._ends[self.count]) + int(places[-1] - places[0]))
        self.count = number_texts(
            texts, places, self._slots, self._shift, self._bytes, self._ends, self.count, numbers
        )

    def names(self) -> Any:
        """All of them by number, large_string."""
        buffers = [None, pa.py_buffer(self._ends), pa.py_buffer(self._bytes)]
        return pa.Array.from_buffers(pa.large_string(), self.count, buffers)


def _grow(array: NDArray[Any], size: int) -> None:
    """Have room for `size` elements in an array of which no view is held."""
    if size > len(array):
        array.resize(int(_ROOM * size), refcheck=False)
