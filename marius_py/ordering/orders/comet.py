"""COMET (floor 0): BETA over random groups of partitions, as MariusGNN orders them.

Waleffe et al. (EuroSys 2023) group the physical partitions at random into logical ones each epoch, hold two
logical ones at a time, and defer each bucket to a random state that can run it (policy "random"). Here a
group is replaced by single swaps, so that each load hides behind work.
"""

from __future__ import annotations

from random import Random

from marius_py.ordering.order import Order, visit_sets
from marius_py.ordering.orders.beta import beta_order


def comet_order(p: int, c: int, rng: Random | None = None) -> Order:
    """Random groups of ⌊c/2⌋ partitions, every two of which meet; `rng` None means a fixed grouping."""
    rng = rng or Random(0)
    parts = list(range(p))
    rng.shuffle(parts)
    size = max(c // 2, 1)
    groups = [frozenset(parts[at : at + size]) for at in range(0, p, size)]
    if len(groups) < 2 or p == c:
        return Order(p, c, tuple(range(p)), ())
    pairs = beta_order(len(groups), 2).states()
    return visit_sets(p, c, [frozenset().union(*(groups[g] for g in pair)) for pair in pairs])
