"""Which slot holds which version of a partition (floor 1): the bookkeeping of the commit protocol.

In: claims, confirmations, commits. Out: slot numbers. No I/O, so the store on disk and its twin in memory
share it, and one set of tests holds for both. Invariant: a slot of the committed state is never claimed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from marius_py.errors import StorageError

EMPTY = -1
"""Slot number of a partition that has no version yet."""


class SlotTable:
    """Committed and newer slots of p partitions; not thread-safe.

    Args:
        num_slots: slots there are; p and more.
        committed: (p,) int64 slot of each partition's committed version, EMPTY before the first commit.
    """

    def __init__(self, num_slots: int, committed: NDArray[np.int64]) -> None:
        self._committed = [int(slot) for slot in committed]
        self._newer: dict[int, int] = {}
        self._damaged: set[int] = set()
        self._free = set(range(num_slots)) - set(self._committed)

    def current(self, part: int) -> int:
        """Slot of the newest version; StorageError if there is none or its write failed."""
        if part in self._damaged:
            raise StorageError(
                f"the last write of partition {part} failed: write it again, or open the store anew at the "
                "last commit"
            )
        slot = self._newer.get(part, self._committed[part])
        if slot == EMPTY:
            raise StorageError(f"partition {part} has never been written")
        return slot

    def claim(self, part: int) -> int:
        """Slot to write the next version of `part` into: its uncommitted one again, else the lowest free.

        Until `confirm` the partition counts as damaged: a write that failed is neither read nor committed.
        """
        if part in self._newer:
            self._damaged.add(part)
            return self._newer[part]
        if not self._free:
            raise StorageError(
                f"no free slot for a new version of partition {part}: {len(self._newer)} partitions await a "
                "commit; commit first, or create the store with more spare_slots"
            )
        slot = min(self._free)
        self._free.remove(slot)
        self._newer[part] = slot
        self._damaged.add(part)
        return slot

    def confirm(self, part: int) -> None:
        """The write of `part` into its claimed slot succeeded."""
        self._damaged.discard(part)

    def num_free(self) -> int:
        """Further partitions that can be written before a commit is due."""
        return len(self._free)

    def proposal(self) -> NDArray[np.int64]:
        """(p,) slots that a commit now would make the committed ones; StorageError if one is missing."""
        return np.array([self.current(part) for part in range(len(self._committed))], np.int64)

    def commit(self) -> None:
        """The newest versions are the committed ones; the slots of the old ones are free."""
        for part, slot in self._newer.items():
            if self._committed[part] != EMPTY:
                self._free.add(self._committed[part])
            self._committed[part] = slot
        self._newer.clear()

    def rollback(self) -> None:
        """Forget all versions since the last commit."""
        self._free.update(self._newer.values())
        self._newer.clear()
        self._damaged.clear()
