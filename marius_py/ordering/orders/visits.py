"""From a sequence of buckets to an order (floor 0): fetch what the next one lacks, drop the least recent."""

from __future__ import annotations

from collections.abc import Iterable

from marius_py.ordering.order import Order, Swap


def visit_buckets(p: int, c: int, buckets: Iterable[tuple[int, int]]) -> Order:
    """The order of an LRU cache of c partitions under the given bucket accesses (head, tail).

    The cache starts with the first c partitions that the sequence asks for, so these cost no swap.
    """
    sequence = list(buckets)
    initial = list(dict.fromkeys(part for bucket in sequence for part in bucket))[:c]
    recent = dict.fromkeys(reversed(initial))  # insertion order = least recent first
    swaps: list[Swap] = []
    for bucket in sequence:
        for part in dict.fromkeys(bucket):
            if part in recent:
                del recent[part]
            else:
                leaving = next(other for other in recent if other not in bucket)
                del recent[leaving]
                swaps.append(Swap(leaving, part))
            recent[part] = None
    return Order(p, c, tuple(sorted(initial)), tuple(swaps))
