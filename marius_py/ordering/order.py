"""The bare order of an epoch (floor 0): an initial set and swaps, before any bucket is assigned.

In: what a construction emits. Out: `Order`, and from it a `Schedule` whose steps run no bucket yet.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from marius_py.types import Schedule, Step


class Swap(NamedTuple):
    """One partition leaves, one comes."""

    evict: int
    admit: int


@dataclass(frozen=True, slots=True)
class Order:
    """`initial` (c distinct partitions) then one swap a state; state 0 is the initial set."""

    p: int
    c: int
    initial: tuple[int, ...]
    swaps: tuple[Swap, ...]

    @property
    def loads(self) -> int:
        """Partitions read when the buffer is empty at the start."""
        return self.c + len(self.swaps)

    def states(self) -> Iterator[frozenset[int]]:
        """The resident sets in order, one more than there are swaps."""
        resident = frozenset(self.initial)
        yield resident
        for swap in self.swaps:
            resident = resident - {swap.evict} | {swap.admit}
            yield resident


def to_schedule(order: Order) -> Schedule:
    """The order as the steps of a schedule, to which buckets have yet to be assigned."""
    resident = [tuple(sorted(state)) for state in order.states()]
    swaps = [((swap.admit,), (swap.evict,)) for swap in order.swaps]
    steps = tuple(
        Step(state, admit, evict, ())
        for state, (admit, evict) in zip(resident, [((), ()), *swaps], strict=True)
    )
    return Schedule(order.p, order.c, resident[0], steps)


def visit_sets(p: int, c: int, sets: Sequence[frozenset[int]]) -> Order:
    """An order of single swaps that holds each of `sets` (at most c members) in turn.

    A set's missing members come one at a time; each replaces the resident outside the set whose next use
    lies furthest ahead (Belady's rule, optimal for a fixed sequence). Small sets leave slots over, which
    keep what is needed soonest.
    """
    never = len(sets)
    uses: list[list[int]] = [[] for _ in range(p)]
    for time, members in enumerate(sets):
        for part in members:
            uses[part].append(time)

    def next_use(part: int, time: int) -> int:
        at = bisect_right(uses[part], time)
        return uses[part][at] if at < len(uses[part]) else never

    others = sorted(set(range(p)) - sets[0], key=lambda part: (next_use(part, 0), part))
    initial = tuple(sorted(sets[0] | set(others[: c - len(sets[0])])))
    resident = set(initial)
    swaps: list[Swap] = []
    for time, members in enumerate(sets):
        for part in sorted(members - resident):
            leaving = max(resident - members, key=lambda other: (next_use(other, time), other))
            swaps.append(Swap(leaving, part))
            resident.remove(leaving)
            resident.add(part)
    return Order(p, c, initial, tuple(swaps))
