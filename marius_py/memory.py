"""Who holds how much memory (floor 0): sizes by component in, the most that each has held out."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def unit_of(num_bytes: float) -> tuple[int, str]:
    """The binary unit in which people read a number of bytes: its size and its name.

    >>> unit_of(3 << 30), unit_of(512)
    ((1073741824, 'GiB'), (1, 'B'))
    """
    power = 0
    while num_bytes >= 1024 ** (power + 1) and power < len(_UNITS) - 1:
        power += 1
    return 1024**power, _UNITS[power]


def with_unit(num_bytes: float) -> str:
    """A number of bytes as people read it, with a binary unit.

    >>> with_unit(3 << 30), with_unit(512)
    ('3.0 GiB', '512 B')
    """
    size, name = unit_of(num_bytes)
    return f"{num_bytes / size:.{min(size - 1, 1)}f} {name}"


def buffer_too_large(slots: int, slot_bytes: int, capacity: int, reason: object) -> str:
    """What is said of a buffer of `slots` slots that memory does not hold, for `reason`, and what helps.

    >>> buffer_too_large(3, 1 << 30, 2, "full").partition("; ")[2]
    'set more storage.partitions or a smaller model.dim'
    """
    smaller = "set a smaller one, more storage.partitions, or a smaller model.dim"
    if capacity <= 2:  # the ends of an edge
        smaller = "set more storage.partitions or a smaller model.dim"
    return (
        f"the buffer needs {with_unit(slots * slot_bytes)}, {slots} slots of {with_unit(slot_bytes)}, and "
        f"memory is short ({reason}): storage.capacity is {capacity}; {smaller}"
    )


class MemoryMeter:
    """Bytes that the components of a run hold, by name, and the most that each has held. Thread-safe.

    >>> meter = MemoryMeter()
    >>> meter.add("batches", 300); meter.add("batches", 200); meter.add("batches", -300)
    >>> meter.put("buffer", 1000)
    >>> meter.peaks
    {'batches': 500, 'buffer': 1000}
    """

    def __init__(self) -> None:
        self._held: defaultdict[str, int] = defaultdict(int)
        self._peaks: defaultdict[str, int] = defaultdict(int)
        self._lock = threading.Lock()

    def add(self, component: str, num_bytes: int) -> None:
        """The component holds so many bytes more, or fewer where the number is negative."""
        with self._lock:
            self._held[component] += num_bytes
            self._peaks[component] = max(self._peaks[component], self._held[component])

    def put(self, component: str, num_bytes: int) -> None:
        """The component holds so many bytes in all."""
        with self._lock:
            self._held[component] = num_bytes
            self._peaks[component] = max(self._peaks[component], num_bytes)

    @property
    def peaks(self) -> Mapping[str, int]:
        """The most bytes held at once, by component."""
        with self._lock:
            return dict(self._peaks)


def array_bytes(value: Any) -> int:
    """Bytes of all arrays in a dataclass, or a mapping or list of them; anything else counts nothing."""
    if isinstance(value, Mapping):
        return sum(map(array_bytes, value.values()))
    if isinstance(value, (list, tuple)):
        return sum(map(array_bytes, value))
    if is_dataclass(value):
        return sum(array_bytes(getattr(value, field.name)) for field in fields(value))
    size = getattr(value, "nbytes", 0)
    return size if isinstance(size, int) else 0
