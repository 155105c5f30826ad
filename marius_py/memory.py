"""Who holds how much memory, and how much may be taken (floor 0).

In: sizes by component; what the system says of this process. Out: the most that each component has held;
bytes that control groups leave.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

_GROUPS = (
    # mount, and of a group: its limit, what it uses, and the entry of memory.stat for pages dropped first
    ("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Memory controllers of control groups: version 2, then version 1."""


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


def group_memory(root: Path = Path("/")) -> int | None:
    """Bytes that the control groups of this process leave it, of version 1 and 2; None without a limit.

    A group shares in the limits of those above it, so the smallest rest up to the root counts. Pages of files
    that were not used lately do not count as taken: the kernel drops them as soon as memory is wanted.

    Args:
        root: where /proc and /sys are.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    rests = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        mount, *files = _GROUPS[1 if controllers else 0]
        group = root / mount
        rests.append(_rest(group, *files))  # in a container often its own group, whatever the path says
        for name in filter(None, path.split("/")):
            group /= name
            rests.append(_rest(group, *files))
    return min((rest for rest in rests if rest is not None), default=None)


def _rest(group: Path, limit: str, usage: str, reclaimable: str) -> int | None:
    """Bytes that one control group may still take; None if it has no limit, or none that can be read."""
    try:
        allowed, used = (int((group / name).read_text()) for name in (limit, usage))
        facts = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        return max(0, allowed - used + int(facts[reclaimable]))
    except (OSError, ValueError, KeyError):  # "max" is no limit
        return None
