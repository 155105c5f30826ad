"""BETA (floor 0), the order of Marius: hold c − 1 partitions, pass the others through the last slot."""

from __future__ import annotations

from random import Random

from marius_py.ordering.order import Order, Swap


def beta_order(p: int, c: int, rng: Random | None = None) -> Order:
    """The order of Mohoney et al. (OSDI 2021, §4.1); `bounds.beta_swaps` gives its length.

    In each round the last slot takes every partition on disk in turn, then the c − 1 held ones, which have
    now met all the others, retire and make room for c − 1 fresh ones. `rng` is not used.
    """
    buffer = list(range(c))
    disk = list(range(c, p))
    swaps: list[Swap] = []
    while disk:
        for index, part in enumerate(disk):
            swaps.append(Swap(buffer[-1], part))
            disk[index], buffer[-1] = buffer[-1], part
        fresh = disk[: c - 1]
        for slot, part in enumerate(fresh):
            swaps.append(Swap(buffer[slot], part))
            buffer[slot] = part
        disk = disk[len(fresh) :]
    return Order(p, c, tuple(range(c)), tuple(swaps))
