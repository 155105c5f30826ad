"""Pairs of partitions in random order (floor 0): the most random order, and a baseline in loads."""

from __future__ import annotations

from random import Random

from marius_py.ordering.order import Order, Swap


def random_order(p: int, c: int, rng: Random | None = None) -> Order:
    """Draws pairs at random; one that has not met yet is fetched in place of random residents.

    Args:
        p: partitions.
        c: capacity.
        rng: source of the draws; None means a fixed one.
    """
    rng = rng or Random(0)
    pairs = [(i, j) for i in range(p) for j in range(i)]
    rng.shuffle(pairs)
    resident = rng.sample(range(p), c)
    initial = tuple(sorted(resident))
    met = {(i, j) for i in resident for j in resident if i > j}
    swaps: list[Swap] = []
    for pair in pairs:
        if pair in met:
            continue
        for part in pair:
            if part not in resident:
                slot = rng.choice([s for s, other in enumerate(resident) if other not in pair])
                swaps.append(Swap(resident[slot], part))
                resident[slot] = part
                met.update((max(part, other), min(part, other)) for other in resident)
    return Order(p, c, initial, tuple(swaps))
