"""The fewest loads available (floor 0): the shortest of the optimal, the cyclic and the BETA order."""

from __future__ import annotations

from random import Random

from marius_py.ordering.order import Order
from marius_py.ordering.orders.cyclic import cyclic_order
from marius_py.ordering.orders.optimal import optimal_order, stored_orders


def auto_order(p: int, c: int, rng: Random | None = None) -> Order:
    """An optimal order where one is stored, else the cyclic one, which is never longer than BETA."""
    if (p, c) in stored_orders():
        return optimal_order(p, c)
    return cyclic_order(p, c)
