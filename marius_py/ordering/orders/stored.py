"""Orders kept as package data (floor 0). In: a JSON file beside this module. Out: `Order` by (p, c).

{"format": "marius_py.orders", "version": 1, "about": …,
 "orders": [{"p": 4, "c": 3, "initial": [0, 1, 2], "swaps": [[2, 3], [0, 2]]}, …]}
"""

from __future__ import annotations

import json
from functools import cache
from importlib import resources

from marius_py.ordering.order import Order, Swap

OPTIMAL = "optimal_orders.json"
SEARCHED = "searched_orders.json"


@cache
def stored_orders(name: str) -> dict[tuple[int, int], Order]:
    """The orders of one file by (p, c); read once."""
    text = resources.files("marius_py.ordering.orders").joinpath(name).read_text(encoding="utf-8")
    orders: dict[tuple[int, int], Order] = {}
    for row in json.loads(text)["orders"]:
        swaps = tuple(Swap(evict, admit) for evict, admit in row["swaps"])
        orders[row["p"], row["c"]] = Order(row["p"], row["c"], tuple(row["initial"]), swaps)
    return orders
