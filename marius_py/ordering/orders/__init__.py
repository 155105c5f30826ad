"""The constructions by name (floor 0): each maps p, c and a random source to an `Order`."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from marius_py.ordering.order import Order
from marius_py.ordering.orders.auto import auto_order
from marius_py.ordering.orders.beta import beta_order
from marius_py.ordering.orders.comet import comet_order
from marius_py.ordering.orders.cyclic import cyclic_order
from marius_py.ordering.orders.hilbert import hilbert_order, hilbert_symmetric_order
from marius_py.ordering.orders.optimal import optimal_order
from marius_py.ordering.orders.random_pairs import random_order
from marius_py.ordering.orders.sequential import sequential_order

ORDERS: dict[str, Callable[[int, int, Random | None], Order]] = {
    "auto": auto_order,
    "optimal": optimal_order,
    "cyclic": cyclic_order,
    "beta": beta_order,
    "comet": comet_order,
    "hilbert": hilbert_order,
    "hilbert_symmetric": hilbert_symmetric_order,
    "sequential": sequential_order,
    "random": random_order,
}
"""Name of `build_schedule(order=…)` → construction."""

DRAWN = frozenset({"comet", "random"})
"""Constructions that draw from the random source; the others depend on p and c alone."""
