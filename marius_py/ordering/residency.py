"""Which partitions and pairs are resident when (floor 0). In: a schedule. Out: spans of steps."""

from __future__ import annotations

from marius_py.errors import ScheduleError
from marius_py.types import Schedule

Span = tuple[int, int]
"""First and last step of an unbroken stay, both included."""


class Residency:
    """Spans of steps in which both ends of each bucket are resident; bucket (i, j) has number i · p + j."""

    def __init__(self, schedule: Schedule) -> None:
        """Walks the schedule once.

        Raises:
            ScheduleError: some pair of partitions is never resident together.
        """
        self.p = schedule.p
        self.num_steps = len(schedule.steps)
        self.resident = [step.resident for step in schedule.steps]
        self.admitted = [step.admit if index else step.resident for index, step in enumerate(schedule.steps)]
        self._spans: list[list[Span]] = [[] for _ in range(self.p**2)]
        self._walk(schedule)
        missing = next(
            (b for b, spans in enumerate(self._spans) if not spans and b // self.p <= b % self.p), None
        )
        if missing is not None:
            raise ScheduleError(
                f"partitions {divmod(missing, self.p)} are never resident together; no step can run them"
            )

    def _walk(self, schedule: Schedule) -> None:
        entered: dict[int, int] = {}
        for time, step in enumerate(schedule.steps):
            self._close(entered, step.evict, time - 1)
            entered.update(dict.fromkeys(self.admitted[time], time))
        self._close(entered, schedule.final, self.num_steps - 1)

    def _close(self, entered: dict[int, int], leaving: tuple[int, ...], last: int) -> None:
        """Ends the stay of `leaving`; the spans of their pairs end too."""
        for part in leaving:
            for other, since in entered.items():
                low, high = (part, other) if part < other else (other, part)
                self._spans[low * self.p + high].append((max(entered[part], since), last))
            del entered[part]

    def spans(self, bucket: int) -> list[Span]:
        """Spans of steps that can run a bucket, ascending."""
        head, tail = divmod(bucket, self.p)
        return self._spans[bucket if head <= tail else tail * self.p + head]

    def first_steps(self) -> list[int]:
        """(p²,) first step that can run each bucket."""
        return [self.spans(bucket)[0][0] for bucket in range(self.p**2)]

    def last_steps(self) -> list[int]:
        """(p²,) last step that can run each bucket: its deadline."""
        return [self.spans(bucket)[-1][1] for bucket in range(self.p**2)]
