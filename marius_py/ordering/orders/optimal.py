"""Orders with the fewest loads possible (floor 0), from package data: all 2 ≤ c < p ≤ 16."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from random import Random

from marius_py.errors import ScheduleError
from marius_py.ordering.order import Order, Swap

DATA = "optimal_orders.json"


@cache
def stored_orders() -> dict[tuple[int, int], Order]:
    """The embedded orders by (p, c); read once."""
    text = resources.files("marius_py.ordering.orders").joinpath(DATA).read_text(encoding="utf-8")
    orders: dict[tuple[int, int], Order] = {}
    for row in json.loads(text)["orders"]:
        swaps = tuple(Swap(evict, admit) for evict, admit in row["swaps"])
        orders[row["p"], row["c"]] = Order(row["p"], row["c"], tuple(row["initial"]), swaps)
    return orders


def optimal_order(p: int, c: int, rng: Random | None = None) -> Order:
    """An order that meets `lower_bound`. `rng` is not used.

    Raises:
        ScheduleError: none is stored for p and c.
    """
    if p == c:
        return Order(p, c, tuple(range(p)), ())
    order = stored_orders().get((p, c))
    if order is None:
        limit = max(size for size, _ in stored_orders())
        raise ScheduleError(
            f"order is 'optimal' with p = {p}, c = {c}; allowed: p up to {limit}, or order='auto'"
        )
    return order
