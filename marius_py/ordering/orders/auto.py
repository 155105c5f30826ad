"""The fewest loads available (floor 0): a stored order where there is one, else the cyclic or BETA's.

The stored orders for p > 16 were found by simulated annealing (docs/ordering.md); a test checks that each is
valid and shorter than the construction that it replaces.
"""

from __future__ import annotations

from random import Random

from marius_py.ordering.order import Order
from marius_py.ordering.orders.cyclic import cyclic_order
from marius_py.ordering.orders.stored import OPTIMAL, SEARCHED, stored_orders


def auto_order(p: int, c: int, rng: Random | None = None) -> Order:
    """An optimal order, else one found by search, else the cyclic one, which is never longer than BETA."""
    for name in (OPTIMAL, SEARCHED):
        order = stored_orders(name).get((p, c))
        if order is not None:
            return order
    return cyclic_order(p, c)
