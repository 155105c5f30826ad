"""A schedule as text for the terminal (floor 0). In: a Schedule. Out: lines of at most 110 characters."""

from __future__ import annotations

from marius_py.ordering.arguments import Costs, check_costs, check_schedule
from marius_py.ordering.bounds import beta_swaps, lower_bound
from marius_py.ordering.simulation import hidden_io_cost
from marius_py.types import Schedule

BAR = 24
RESIDENT = 44


def format_summary(schedule: Schedule, *, costs: Costs | None = None) -> str:
    """Loads against the bound and BETA's, and how evenly work is spread, in three lines.

    Raises:
        ScheduleError: no steps, or costs of the wrong shape.
    """
    work = _work(schedule, costs)
    p, c = schedule.p, schedule.c
    mean = sum(work) / len(work)
    lines = [
        f"p = {p} partitions, c = {c} in the buffer, {p * p} buckets",
        f"loads {schedule.loads} = {c} + {schedule.swaps} swaps   lower bound {lower_bound(p, c)}   "
        f"BETA {c + beta_swaps(p, c)}",
    ]
    if schedule.swaps:
        hidden = hidden_io_cost(schedule, costs=costs)
        share = f" ({hidden / mean:.0%} of the mean)" if mean else ""
        lines.append(
            f"work a step: least {min(work[:-1]):g}, mean {mean:.4g}, most {max(work):g}   "
            f"hides I/O up to {hidden:.4g} a swap{share}"
        )
    return "\n".join(lines)


def format_table(schedule: Schedule, *, costs: Costs | None = None) -> str:
    """One line a step: what leaves, what comes, what is resident, buckets, and a bar of the work.

    Args:
        schedule: a valid schedule.
        costs: (p, p) work of each bucket; None means 1 each.

    Raises:
        ScheduleError: no steps, or costs of the wrong shape.

    Example:
        >>> from marius_py.ordering import assign_buckets, beta
        >>> print(format_table(assign_buckets(beta(4, 3))))
        step  out   in  resident  buckets  work
           0            0-2             7     7  ████████████████████████
           1    2    3  0-1 3           7     7  ████████████████████████
           2    0    2  1-3             2     2  ███████
    """
    work = _work(schedule, costs)
    most = max(work) or 1.0
    sets = [_ranges(step.resident) for step in schedule.steps]
    width = max(8, *(len(text) for text in sets))
    lines = [f"step  out   in  {'resident':<{width}}  buckets  work"]
    for index, (step, text, cost) in enumerate(zip(schedule.steps, sets, work, strict=True)):
        swap = "".join(f"{step_parts[0] if step_parts else '':>5}" for step_parts in (step.evict, step.admit))
        bar = "█" * round(BAR * cost / most)
        lines.append(f"{index:>4}{swap}  {text:<{width}}  {len(step.buckets):>7}  {cost:>4g}  {bar}".rstrip())
    return "\n".join(lines)


def _work(schedule: Schedule, costs: Costs | None) -> list[float]:
    """(T,) cost of each step's buckets; refuses what is no schedule, and one without steps."""
    check_schedule(schedule)
    rows = check_costs(costs, schedule.p)
    return [sum(rows[head][tail] for head, tail in step.buckets) for step in schedule.steps]


def _ranges(parts: tuple[int, ...]) -> str:
    """Ascending partitions with runs written first-last, cut to fit the line."""
    runs: list[list[int]] = []
    for part in parts:
        if runs and part == runs[-1][1] + 1:
            runs[-1][1] = part
        else:
            runs.append([part, part])
    text = " ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
    return text if len(text) <= RESIDENT else text[: RESIDENT - 1] + "…"
