"""Row by row through the bucket matrix (floor 0): what a loader without an ordering would do."""

from __future__ import annotations

from random import Random

from marius_py.ordering.order import Order
from marius_py.ordering.orders.visits import visit_buckets


def sequential_order(p: int, c: int, rng: Random | None = None) -> Order:
    """Buckets (0, 0), (0, 1), … (p−1, p−1) through an LRU buffer. A baseline. `rng` is not used."""
    return visit_buckets(p, c, ((head, tail) for head in range(p) for tail in range(p)))
