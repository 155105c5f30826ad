"""Partition ranges (floor 1): node ids in, partitions and rows out. Storage and graph build on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from marius_py.errors import ConfigError
from marius_py.whole import is_whole

Ids = TypeVar("Ids", bound=np.signedinteger[Any])


@dataclass(frozen=True, slots=True)
class Partitioning:
    """N nodes in p ranges of consecutive ids whose sizes differ by at most one row.

    Ids are assigned in random order when a graph is prepared, so a range is a random set of nodes, and any
    other p is another arithmetic on the same ids. The first N mod p ranges hold one row more.
    """

    num_nodes: int
    num_partitions: int

    def __post_init__(self) -> None:
        if not is_whole(self.num_partitions, 1, max(self.num_nodes, 1)):
            raise ConfigError(
                f"number of partitions is {self.num_partitions!r}; allowed: 1 to the number of nodes "
                f"({self.num_nodes}); change partitions= (prepare) or storage.partitions= (train)"
            )

    @property
    def max_size(self) -> int:
        """Rows of the largest partition."""
        return -(-self.num_nodes // self.num_partitions)

    def start(self, part: int) -> int:
        """First node id of partition `part` (of one past the last one: N)."""
        base, extra = divmod(self.num_nodes, self.num_partitions)
        return part * base + min(part, extra)

    def size(self, part: int) -> int:
        """Rows of partition `part`."""
        return self.start(part + 1) - self.start(part)

    def starts(self) -> NDArray[np.int64]:
        """(p + 1,) first ids of all partitions, then N."""
        return np.array([self.start(i) for i in range(self.num_partitions + 1)], dtype=np.int64)

    def locate(self, nodes: NDArray[np.integer]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Partition (U,) and row within it (U,) of node ids (U,)."""
        base, extra = divmod(self.num_nodes, self.num_partitions)
        ids = nodes.astype(np.int64, copy=False)
        part = self.part_of(ids)
        start = part * base + np.minimum(part, extra)
        return part, ids - start

    def part_of(self, nodes: NDArray[Ids]) -> NDArray[Ids]:
        """Partition (U,) of node ids (U,), signed integers, in their type."""
        if self.num_partitions == 1:
            return np.zeros_like(nodes)
        base, extra = divmod(self.num_nodes, self.num_partitions)
        # Among the partitions of base + 1 rows the first quotient is right and the second no larger; among
        # those of base rows it is the other way round.
        part: NDArray[Ids] = nodes // (base + 1)
        np.maximum(part, (nodes - extra) // base, out=part)
        return part
