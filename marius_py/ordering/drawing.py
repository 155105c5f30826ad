"""Pictures of a schedule (floor 0): needs matplotlib, which `pip install 'marius_py[plot]'` brings.

In: a Schedule. Out: a figure of three parts: the buffer over time, the buckets of each state (one small
matrix a state where there are few, as in the Marius paper; else one matrix coloured by the step), and the
work of each step.
"""

from __future__ import annotations

from os import PathLike
from typing import TYPE_CHECKING, Any

from marius_py.errors import ScheduleError
from marius_py.ordering.arguments import Costs, check_costs, check_schedule
from marius_py.ordering.bounds import lower_bound
from marius_py.types import Schedule

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_MATRICES = 32
MOST_LABELS = 100
MOST_COLUMNS = 2048
"""Steps of which a picture shows who is resident; of a longer schedule every second one, every third, …"""

NOW, BEFORE, HELD = "#d1495b", "#8d99ae", "#edf2f4"


def plot(
    schedule: Schedule,
    path: str | PathLike[str] | None = None,
    *,
    costs: Costs | None = None,
    title: str | None = None,
) -> Figure:
    """Draws the buffer over time with the buckets of each state.

    Args:
        schedule: a valid schedule.
        path: where to save it; the ending chooses the format (png, svg, pdf), and without one matplotlib adds
            its own, .png as a rule. None saves nothing.
        costs: (p, p) work of each bucket; None means 1 each.
        title: None writes p, c and the loads.

    Returns:
        The matplotlib figure, not registered with pyplot: nothing to close.

    Raises:
        ScheduleError: no steps, costs of the wrong shape, or matplotlib is not installed.
        ValueError: the ending of `path` is no format that it writes. OSError: the file cannot be written.
    """
    check_schedule(schedule)
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ScheduleError(
            "plot needs matplotlib, which is missing; run: pip install 'marius_py[plot]'"
        ) from error
    small = len(schedule.steps) <= MOST_MATRICES
    columns = min(len(schedule.steps), 8)
    rows = -(-len(schedule.steps) // columns)
    heights = [0.6 + 0.2 * min(schedule.c, 24), 1.4 * rows if small else 5.0, 1.6]
    figure = Figure(figsize=(12, sum(heights) + 1), layout="constrained")
    text = title or f"p = {schedule.p}, c = {schedule.c}: {schedule.loads} loads"
    figure.suptitle(f"{text} (bound {lower_bound(schedule.p, schedule.c)})")
    top, middle, bottom = figure.subfigures(3, 1, height_ratios=heights, squeeze=False)[:, 0]
    _draw_buffer(top.subplots(), schedule)
    if small:
        _draw_states(middle.subplots(rows, columns, squeeze=False), schedule)
    else:
        _draw_matrix(middle, schedule)
    _draw_work(bottom.subplots(), schedule, costs)
    if path is not None:
        figure.savefig(path, dpi=130)
    return figure


def _slots(schedule: Schedule) -> list[list[int]]:
    """(c, T) the partition in each slot at each step; a newcomer takes the slot of what it replaces."""
    slots = list(schedule.initial)
    columns: list[list[int]] = []
    for step in schedule.steps:
        for evicted, admitted in zip(step.evict, step.admit, strict=True):
            slots[slots.index(evicted)] = admitted
        columns.append(list(slots))
    return [list(row) for row in zip(*columns, strict=True)]


def _draw_buffer(axes: Any, schedule: Schedule) -> None:
    """Slots by steps, coloured and numbered by partition; a newcomer's number is bold."""
    slots = _slots(schedule)
    axes.imshow(slots, aspect="auto", cmap="turbo", vmin=0, vmax=max(schedule.p - 1, 1), alpha=0.55)
    if len(schedule.steps) <= MOST_LABELS and schedule.c <= 24:
        size = 9 if len(schedule.steps) <= 40 else 5.5
        for slot, row in enumerate(slots):
            for time, part in enumerate(row):
                weight = "bold" if part in schedule.steps[time].admit else "normal"
                axes.text(time, slot, str(part), ha="center", va="center", fontsize=size, fontweight=weight)
    axes.set(ylabel="slot", xlabel="step", title="partition in each slot")
    axes.set_yticks([0, schedule.c - 1])


def _draw_states(grid: Any, schedule: Schedule) -> None:
    """One p × p matrix a state: resident pairs light, buckets run earlier grey, buckets of this state red."""
    from matplotlib.colors import ListedColormap

    colours = ListedColormap(["white", HELD, BEFORE, NOW])
    cells = [[0] * schedule.p for _ in range(schedule.p)]
    for time, axes in enumerate(grid.flat):
        axes.set_axis_off()
        if time >= len(schedule.steps):
            continue
        step = schedule.steps[time]
        held = {(head, tail) for head in step.resident for tail in step.resident}
        shown = [
            [max(cell, 1 if (head, tail) in held else 0) for tail, cell in enumerate(row)]
            for head, row in enumerate(cells)
        ]
        for head, tail in step.buckets:
            cells[head][tail], shown[head][tail] = 2, 3
        axes.pcolormesh(shown, cmap=colours, vmin=0, vmax=3, edgecolors="#cccccc", linewidth=0.4)
        axes.invert_yaxis()
        axes.set_aspect("equal")
        axes.set_title(f"step {time}: {len(step.buckets)}", fontsize=8)


def _draw_matrix(figure: Any, schedule: Schedule) -> None:
    """When each partition is resident, and one p × p matrix coloured by the step that runs each bucket."""
    import numpy as np
    from matplotlib.colors import ListedColormap

    when = np.zeros((schedule.p, schedule.p), dtype=np.int64)
    for time, step in enumerate(schedule.steps):
        for head, tail in step.buckets:
            when[head, tail] = time
    stays, matrix = figure.subplots(1, 2, width_ratios=[1.6, 1])
    image = matrix.imshow(when, cmap="viridis")
    matrix.set(xlabel="tail partition", ylabel="head partition", title="step in which each bucket runs")
    figure.colorbar(image, ax=matrix, label="step")
    stride = -(-len(schedule.steps) // MOST_COLUMNS)
    shown = schedule.steps[::stride]
    held = np.zeros((len(shown), schedule.p), dtype=np.uint8)
    for row, step in zip(held, shown, strict=True):
        row[list(step.resident)] = 1
        row[list(step.admit)] = 2
    extent = (-0.5, len(shown) * stride - 0.5, schedule.p - 0.5, -0.5)
    stays.imshow(
        held.T,
        aspect="auto",
        interpolation="nearest",
        interpolation_stage="data",  # "rgba" makes four float64 of each cell
        cmap=ListedColormap(["white", BEFORE, NOW]),
        vmin=0,
        vmax=2,
        extent=extent,
    )
    stays.set_xlim(-0.5, len(schedule.steps) - 0.5)
    stays.set(xlabel="step", ylabel="partition", title="resident (grey), admitted (red)")


def _draw_work(axes: Any, schedule: Schedule, costs: Costs | None) -> None:
    """Work of each step, with the mean as a line."""
    table = check_costs(costs, schedule.p)
    work = [sum(table[head][tail] for head, tail in step.buckets) for step in schedule.steps]
    if len(work) <= MOST_LABELS:
        axes.bar(range(len(work)), work, width=0.9, color=NOW)
    else:  # one shape, as a bar a step takes seconds and no gap between them would be seen
        axes.stairs(work, [time - 0.5 for time in range(len(work) + 1)], fill=True, color=NOW, linewidth=0.6)
    axes.axhline(sum(work) / len(work), color="black", linewidth=0.8, linestyle="--")
    axes.set(xlabel="step", ylabel="buckets" if costs is None else "work", title="work of each step")
    axes.set_xlim(-0.5, len(work) - 0.5)
