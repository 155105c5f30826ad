"""Distinct names and their numbers (floor 4): arrays of names in, the number of each out.

Names wait, array by array, and are taken in together: few by one hash pass of Arrow over all names, which
makes a table anew each time; from `LARGE_NAMES` on by a table of our own that stays and grows in place.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from marius_py.errors import FormatError
from marius_py.prepare.blocks import NameKind

LARGE_NAMES = 1 << 20
"""Names from which the table that stays takes over; for fewer no loop is compiled or loaded."""

MIN_PENDING_BYTES = 1 << 25
_LIMIT = (1 << 31) - 1
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
        self._pending: list[Any] = []
        self._pending_bytes = 0

    def __len__(self) -> int:
        return len(self._names) if self._hashed is None else self._hashed.count

    @property
    def names(self) -> Any:
        """(n,) Arrow array of int64 or large_string: those taken in, by number; asked for at the end."""
        if self._hashed is not None:  # its memory is that of the array from here on
            self._names, self._hashed = self._hashed.names(), None
        return self._names

    @property
    def full(self) -> bool:
        """Whether the waiting names are worth a pass.

        Arrow's hashes all names anew: they wait until they are half as large together, which makes the work
        of all passes proportional to the names, however often the dictionary grows.
        """
        known = 0 if self._hashed is not None else int(self._names.nbytes) // 2
        return self._pending_bytes >= max(MIN_PENDING_BYTES, known)

    def add(self, names: Any) -> None:
        """Let an array of distinct names wait for `merge`."""
        names = names.cast(self.type)
        self._pending.append(names)
        self._pending_bytes += names.nbytes

    def merge(self) -> list[NDArray[np.int32]]:
        """Take the waiting arrays in.

        Returns:
            For each array that waited, the numbers of its names in this table.
        """
        waiting, self._pending, self._pending_bytes = self._pending, [], 0
        if not waiting:
            return []
        if self._hashed is None and len(self._names) + sum(map(len, waiting)) < LARGE_NAMES:
            return self._merged(waiting)
        if self._hashed is None:
            self._hashed = HashedIntegers() if pa.types.is_integer(self.type) else HashedTexts()
            self._hashed.number(self._names)
            self._names = None
        maps = []
        while waiting:
            if len(self) + len(waiting[0]) > _LIMIT:
                raise self._too_many()
            maps.append(self._hashed.number(waiting.pop(0)))
        return maps

    def _merged(self, waiting: list[Any]) -> list[NDArray[np.int32]]:
        """`merge` in one pass over all names."""
        # Arrow drops empty chunks here, so the names known so far take part only when there are any
        known = [self._names] if len(self._names) else []
        encoded = pa.chunked_array([*known, *waiting], self.type).dictionary_encode().chunks
        self._names = encoded[0].dictionary
        return [np.asarray(chunk.indices) for chunk in encoded[len(known) :]]

    def _too_many(self) -> FormatError:
        return FormatError(
            f"more than {_LIMIT} different {self._what} names; this is the limit for named graphs"
        )


class HashedNames(ABC):
    """Names in a hash table that grows in place; see `numba_names`."""

    def __init__(self) -> None:
        self.count = 0
        self._slots = np.zeros(1 << 12, np.uint64)

    @abstractmethod
    def number(self, names: Any) -> NDArray[np.int32]:
        """Take in an Arrow array (n,) of names; the number of each."""

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

    def number(self, names: Any) -> NDArray[np.int32]:
        """Take in an Arrow array (n,) of int64; the number of each."""
        from marius_py.prepare.numba_names import number_integers

        values = names.to_numpy()
        self._make_room(len(values))
        _grow(self._names, self.count + len(values))
        numbers = np.empty(len(values), np.int32)
        self.count = number_integers(values, self._slots, self._shift, self._names, self.count, numbers)
        return numbers

    def names(self) -> Any:
        """All of them by number, int64."""
        return pa.Array.from_buffers(pa.int64(), self.count, [None, pa.py_buffer(self._names)])


class HashedTexts(HashedNames):
    """Texts, their bytes one behind the other."""

    def __init__(self) -> None:
        super().__init__()
        self._bytes, self._ends = np.empty(0, np.uint8), np.zeros(1, np.int64)

    def number(self, names: Any) -> NDArray[np.int32]:
        """Take in an Arrow array (n,) of large_string; the number of each."""
        from marius_py.prepare.numba_names import number_texts

        if not len(names):
            return np.empty(0, np.int32)
        _, offsets, data = names.buffers()
        places = np.frombuffer(offsets, np.int64)[names.offset : names.offset + len(names) + 1]
        texts = np.frombuffer(data if data else b"\0", np.uint8)  # of empty texts there may be no bytes
        self._make_room(len(names))
        _grow(self._ends, self.count + len(names) + 1)
        _grow(self._bytes, int(self._ends[self.count]) + int(places[-1] - places[0]))
        numbers = np.empty(len(names), np.int32)
        self.count = number_texts(
            texts, places, self._slots, self._shift, self._bytes, self._ends, self.count, numbers
        )
        return numbers

    def names(self) -> Any:
        """All of them by number, large_string."""
        buffers = [None, pa.py_buffer(self._ends), pa.py_buffer(self._bytes)]
        return pa.Array.from_buffers(pa.large_string(), self.count, buffers)


def _grow(array: NDArray[Any], size: int) -> None:
    """Have room for `size` elements in an array of which no view is held."""
    if size > len(array):
        array.resize(int(_ROOM * size), refcheck=False)
