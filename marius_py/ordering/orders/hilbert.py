"""Buckets along a Hilbert curve (floor 0): neighbours on the curve share a partition. A baseline.

The curve fills the smallest square of side 2ⁿ ≥ p; cells outside the p × p matrix are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from marius_py.ordering.order import Order
from marius_py.ordering.orders.visits import visit_buckets


def hilbert_order(p: int, c: int, rng: Random | None = None) -> Order:
    """All p² buckets along the curve, through an LRU buffer. `rng` is not used."""
    return visit_buckets(p, c, _curve(p))


def hilbert_symmetric_order(p: int, c: int, rng: Random | None = None) -> Order:
    """(i, j) and (j, i) together: only one triangle of the matrix is walked. `rng` is not used."""
    return visit_buckets(p, c, ((x, y) for x, y in _curve(p) if x <= y))


def _curve(p: int) -> Iterator[tuple[int, int]]:
    """Cells (x, y) of the p × p matrix in the curve's order."""
    side = 1 << (p - 1).bit_length()
    for distance in range(side * side):
        x, y = _cell(side, distance)
        if x < p and y < p:
            yield x, y


def _cell(side: int, distance: int) -> tuple[int, int]:
    """The cell at `distance` along the curve: two bits a level choose the quadrant, which may be mirrored."""
    x = y = 0
    scale = 1
    while scale < side:
        right = 1 & (distance >> 1)
        up = 1 & (distance ^ right)
        if not up:
            if right:
                x, y = scale - 1 - x, scale - 1 - y
            x, y = y, x
        x += scale * right
        y += scale * up
        distance >>= 2
        scale <<= 1
    return x, y
