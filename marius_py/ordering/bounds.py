"""How few loads are possible (floor 0). In: p and c. Out: counts of partition loads."""

from __future__ import annotations

from typing import SupportsIndex

from marius_py.ordering.arguments import check_sizes


def lower_bound(p: SupportsIndex, c: SupportsIndex) -> int:
    """Loads that no epoch over p partitions with a buffer of c can undercut, the first c included.

    The largest of three bounds (proofs in docs/ordering.md): every load after the first c brings at most
    c − 1 new pairs; a partition that is never evicted and reloaded must meet all others; few partitions
    can stay for the whole epoch.

    Args:
        p: partitions, 1 or more.
        c: buffer capacity in partitions, 2 ≤ c ≤ p (1 where p is 1).

    Raises:
        ScheduleError: p or c out of range.

    Example:
        >>> lower_bound(16, 4), lower_bound(32, 8)
        (42, 75)
    """
    p, c = check_sizes(p, c)
    if c == p:
        return p
    pairs = (p * (p - 1) - c * (c - 1)) // 2
    return max(c - (-pairs // (c - 1)), 2 * p - c, 3 * (p - c))


def beta_swaps(p: SupportsIndex, c: SupportsIndex) -> int:
    """Swaps of the BETA order in closed form (Mohoney et al., OSDI 2021, §4.1).

    Raises:
        ScheduleError: p or c out of range.

    Example:
        >>> beta_swaps(32, 8), beta_swaps(128, 16)
        (78, 588)
    """
    p, c = check_sizes(p, c)
    if c == p:
        return 0
    disk, fixed = p - c, c - 1
    rounds = disk // fixed
    # Rounds replace c - 1 fixed partitions each; the sum over rounds of what is still on disk is arithmetic.
    return disk + (rounds + 1) * disk - fixed * rounds * (rounds + 1) // 2
