"""Which partitions and pairs are resident when (floor 0). In: a schedule. Out: spans of steps."""

from __future__ import annotations

from collections.abc import Iterator

from marius_py.errors import ScheduleError
from marius_py.types import Schedule

Span = tuple[int, int]
"""First and last step of an unbroken stay, both included."""

Meeting = tuple[int, int, int, int]
"""Two partitions, or one twice, and the first and last step of an unbroken stay together."""


class Residency:
    """When both ends of each bucket are resident; bucket (i, j) has number i · p + j.

    Attributes:
        first: (p²,) first step that can run each bucket.
        last: (p²,) last step that can run each bucket: its deadline.
        resident: (T,) partitions resident at each step.
        admitted: (T,) partitions that come at each step, in the first one all that are resident.
    """

    def __init__(self, schedule: Schedule) -> None:
        """Walks the schedule once.

        Raises:
            ScheduleError: some pair of partitions is never resident together.
        """
        p = self.p = schedule.p
        self.num_steps = len(schedule.steps)
        self.resident = [step.resident for step in schedule.steps]
        self.admitted = [step.admit if index else step.resident for index, step in enumerate(schedule.steps)]
        self._schedule = schedule
        self.first = [-1] * p**2
        self.last = [-1] * p**2
        for part, other, first, last in self._meetings():
            bucket, mirrored = part * p + other, other * p + part
            if self.first[bucket] < 0:
                self.first[bucket] = self.first[mirrored] = first
            self.last[bucket] = self.last[mirrored] = last
        if -1 in self.first:
            missing = divmod(self.first.index(-1), p)
            raise ScheduleError(f"partitions {missing} are never resident together; no step can run them")

    def spans(self) -> list[list[Span]]:
        """(p²,) the spans of steps that can run each bucket, ascending; made anew by each call."""
        spans: list[list[Span]] = [[] for _ in range(self.p**2)]
        for part, other, first, last in self._meetings():
            spans[part * self.p + other].append((first, last))
            if part != other:
                spans[other * self.p + part].append((first, last))
        return spans

    def _meetings(self) -> Iterator[Meeting]:
        """Every unbroken meeting of two partitions, in the order in which they end."""
        entered: dict[int, int] = {}
        for time, step in enumerate(self._schedule.steps):
            yield from _parted(entered, step.evict, time - 1)
            entered.update(dict.fromkeys(self.admitted[time], time))
        yield from _parted(entered, self._schedule.final, self.num_steps - 1)


def _parted(entered: dict[int, int], leaving: tuple[int, ...], last: int) -> Iterator[Meeting]:
    """Ends the stay of `leaving` at step `last`, and with it their meetings."""
    for part in leaving:
        since = entered[part]
        for other, others_since in entered.items():
            yield part, other, since if since > others_since else others_since, last
        del entered[part]
