"""One function a construction (floor 0), for those who want an order by itself.

Each takes p (partitions), c (capacity, 2 ≤ c ≤ p) and a seed that renumbers the partitions (None: the
construction's own numbers), and returns a schedule whose buckets run in the first state that holds both
ends; `assign_buckets` spreads them. Each raises ScheduleError for p or c out of range.
"""

from __future__ import annotations

from typing import SupportsIndex

from marius_py.ordering.build import build_schedule
from marius_py.types import Schedule


def beta(p: SupportsIndex, c: SupportsIndex, *, seed: SupportsIndex | None = None) -> Schedule:
    """BETA, the order of Marius: hold c − 1 partitions and pass the others through the last slot.

    Mohoney et al., OSDI 2021, §4.1. Optimal for c = 2 and for p < 2c; `beta_swaps` gives its length.

    Example:
        >>> beta(32, 8).loads
        86
    """
    return build_schedule(p, c, "beta", seed, policy="eager")


def cyclic(p: SupportsIndex, c: SupportsIndex, *, seed: SupportsIndex | None = None) -> Schedule:
    """Cyclic differences: never longer than BETA, within a few loads of the bound for p ≫ c.

    Example:
        >>> cyclic(64, 16).loads
        152
    """
    return build_schedule(p, c, "cyclic", seed, policy="eager")


def optimal(p: SupportsIndex, c: SupportsIndex, *, seed: SupportsIndex | None = None) -> Schedule:
    """The fewest loads possible, from a table of proved optima; raises ScheduleError for p > 16 unless c = p.

    Example:
        >>> optimal(16, 4).loads
        42
    """
    return build_schedule(p, c, "optimal", seed, policy="eager")


def auto(p: SupportsIndex, c: SupportsIndex, *, seed: SupportsIndex | None = None) -> Schedule:
    """The fewest loads available for p and c.

    Example:
        >>> auto(16, 4).loads
        42
    """
    return build_schedule(p, c, "auto", seed, policy="eager")


def hilbert(p: SupportsIndex, c: SupportsIndex, *, seed: SupportsIndex | None = None) -> Schedule:
    """All buckets along a Hilbert curve through an LRU buffer: a baseline.

    Example:
        >>> hilbert(64, 16).loads
        568
    """
    return build_schedule(p, c, "hilbert", seed, policy="eager")


def hilbert_symmetric(p: SupportsIndex, c: SupportsIndex, *, seed: SupportsIndex | None = None) -> Schedule:
    """As `hilbert`, with (i, j) and (j, i) together: a baseline.

    Example:
        >>> hilbert_symmetric(64, 16).loads
        312
    """
    return build_schedule(p, c, "hilbert_symmetric", seed, policy="eager")


def sequential(p: SupportsIndex, c: SupportsIndex, *, seed: SupportsIndex | None = None) -> Schedule:
    """Row by row through the bucket matrix with an LRU buffer: what no ordering at all costs.

    Example:
        >>> sequential(64, 16).loads
        4067
    """
    return build_schedule(p, c, "sequential", seed, policy="eager")


def random(p: SupportsIndex, c: SupportsIndex, *, seed: SupportsIndex | None = None) -> Schedule:
    """Pairs in random order, each fetched in place of random residents: a baseline."""
    return build_schedule(p, c, "random", seed, policy="eager")


def comet(p: SupportsIndex, c: SupportsIndex, *, seed: SupportsIndex | None = None) -> Schedule:
    """BETA over random groups of ⌊c/2⌋ partitions, as in MariusGNN (Waleffe et al., EuroSys 2023)."""
    return build_schedule(p, c, "comet", seed, policy="eager")
