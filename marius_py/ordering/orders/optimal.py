"""Orders with the fewest loads possible (floor 0), from package data: all 2 ≤ c < p ≤ 16."""

from __future__ import annotations

from random import Random

from marius_py.errors import ScheduleError
from marius_py.ordering.order import Order
from marius_py.ordering.orders.stored import OPTIMAL, stored_orders


def optimal_order(p: int, c: int, rng: Random | None = None) -> Order:
    """An order that meets `lower_bound`. `rng` is not used.

    Raises:
        ScheduleError: none is stored for p and c.
    """
    if p == c:
        return Order(p, c, tuple(range(p)), ())
    order = stored_orders(OPTIMAL).get((p, c))
    if order is None:
        limit = max(size for size, _ in stored_orders(OPTIMAL))
        raise ScheduleError(
            f"order is 'optimal' with p = {p}, c = {c}; allowed: p up to {limit}, or order='auto'"
        )
    return order
