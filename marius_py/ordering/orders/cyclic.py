"""Orders by differences modulo v (floor 0): every pass covers a whole interval of differences, none twice.

Write k = c − 1 and place partitions on a circle of v = 2mk + 1 points. While the arc R_i = {i, …, i+k−1}
is held, the last slot takes i + jk for j = 1 … m. Over all i, pass j meets exactly the differences
(j−1)k+1 … jk, each once, and j ≤ m exhausts the differences up to (v−1)/2: hardly a pair is met twice,
where BETA loses (c−1)(c−2)/2 pairs a round.
"""

from __future__ import annotations

from random import Random

from marius_py.ordering.bounds import lower_bound
from marius_py.ordering.order import Order, Swap, visit_sets
from marius_py.ordering.orders.beta import beta_order


class _Recorder:
    """The resident set under construction, and the swaps that led to it."""

    def __init__(self, c: int) -> None:
        self.resident = list(range(c))
        self.swaps: list[Swap] = []

    def swap(self, evict: int, admit: int) -> int:
        """Records one swap; returns the partition that came."""
        self.resident[self.resident.index(evict)] = admit
        self.swaps.append(Swap(evict, admit))
        return admit


def cyclic_order(p: int, c: int, rng: Random | None = None) -> Order:
    """The shortest of BETA and of the cyclic constructions that apply to p and c. `rng` is not used."""
    beta = beta_order(p, c)
    if beta.loads == lower_bound(p, c):
        return beta
    candidates = [beta]
    k = c - 1
    if p == 2 * c and c >= 3:
        candidates.append(_double(c))
    below = (p - 1) // (2 * k)
    candidates += [_expand(p, c, m) for m in (below - 1, below) if m >= 1 and p - (2 * m * k + 1) <= 2 * k]
    above = -(-(p - 1) // (2 * k))
    for m in (above, above + 1):
        v = 2 * m * k + 1
        offsets = sorted({0, c // 2, k, v // 2})
        candidates += [_delete(p, c, m, offset) for offset in offsets]
    return min(candidates, key=lambda order: order.loads)


def _double(c: int) -> Order:
    """p = 2c in 2c swaps, which is the minimum."""
    moves = _Recorder(c)
    for j in range(c - 1):
        moves.swap(j, c + j)
    moves.swap(c, 2 * c - 1)
    moves.swap(c - 1, 1)
    moves.swap(1, 0)
    last = c + 1
    for q in range(2, c - 1):
        moves.swap(last, q)
        last = q
    moves.swap(last, c)
    return Order(2 * c, c, tuple(range(c)), tuple(moves.swaps))


def _expand(p: int, c: int, m: int) -> Order:
    """v = 2mk + 1 ≤ p on the circle; the p − v others pass by each time the arc holds k new members."""
    k = c - 1
    v = 2 * m * k + 1
    extra = list(range(v, p))
    moves = _Recorder(c)
    slot = 0
    for i in range(1, v + 1):
        slot = (i - 1) % v  # {slot} and the arc are resident, so pass j = 1 of this arc is done
        for j in range(2, m + 1):
            slot = moves.swap(slot, (i + j * k) % v)
        if i == v:
            break
        if i % k == 1 % k:
            for part in extra:
                slot = moves.swap(slot, part)
        moves.swap(slot, (i + k) % v)
    _meet_extra(moves, extra, slot)
    return Order(p, c, tuple(range(c)), tuple(moves.swaps))


def _meet_extra(moves: _Recorder, extra: list[int], slot: int) -> None:
    """Makes the extra partitions meet each other and partition 0, which is resident as is 1 … c − 2."""
    need = [part for part in extra if part not in moves.resident]
    leaving = ([] if slot in extra else [slot]) + list(range(len(moves.resident) - 2, 0, -1))
    while need and leaving:
        moves.swap(leaving.pop(0), need.pop(0))
    if not need:
        return
    # The buffer is full of partition 0 and extras: the rest replaces some, and these pass by once more.
    held = list(moves.resident)
    for part, new in zip(held, need, strict=False):
        moves.swap(part, new)
    last = held[len(need)]
    for part in held[: len(need)]:
        last = moves.swap(last, part)


def _delete(p: int, c: int, m: int, offset: int) -> Order:
    """v = 2mk + 1 ≥ p on the circle without v − p neighbours: their states lose members, hence swaps."""
    k = c - 1
    v = 2 * m * k + 1
    gone = {(offset + i) % v for i in range(v - p)}
    number = {part: index for index, part in enumerate(part for part in range(v) if part not in gone)}
    sets = [
        frozenset(number[part] for part in state if part in number) for state in _expand(v, c, m).states()
    ]
    return visit_sets(p, c, sets)
