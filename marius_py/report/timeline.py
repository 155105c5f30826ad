"""What each thread did (floor 4): spans of a Chrome trace in, figures and figures' numbers out."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from marius_py.report.figures import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SHOWN = 4000
"""Spans that a timeline shows."""

_MATPLOTLIB = tuple(f"C{number}" for number in range(10) if number != 7)
_COLORS = (*_MATPLOTLIB, "#1e3a5f", "#f2b263", "#7f1d1d", "#86c232", "#0f766e")
"""Matplotlib's but for the eighth, which is gray itself, and some more."""

Spans = Sequence[Mapping[str, Any]]
"""The "X" events of a Chrome trace."""


def timeline_figure(spans: Spans) -> Figure:
    """What each thread did, one span after the other; the first few thousand."""
    shown = sorted(spans, key=lambda one: float(one["ts"]))[:_SHOWN]
    threads = list(dict.fromkeys(str(one.get("tid")) for one in shown))
    names = list(dict.fromkeys(str(one["name"]) for one in shown))
    figure, axes = new_figure(height=1.2 + 0.35 * len(threads) + 0.2 * -(-len(names) // 3))
    colors = _stage_colors(spans)
    for name in sorted(names, key=_is_wait):  # what waits lies within what works, not the other way round
        for place, thread in enumerate(threads):
            bars = [
                (float(one["ts"]) / 1e6, float(one["dur"]) / 1e6)
                for one in shown
                if str(one["name"]) == name and str(one.get("tid")) == thread
            ]
            if bars:
                axes.broken_barh(bars, (place - 0.4, 0.8), facecolors=colors[name])
        axes.plot([], [], color=colors[name], linewidth=5, label=name)
    axes.set_yticks(range(len(threads)), threads)
    cut = f" (the first {len(shown):,} of {len(spans):,} spans)" if len(shown) < len(spans) else ""
    axes.set_xlabel(f"seconds{cut}")
    figure.legend(frameon=False, fontsize=7, ncols=3, loc="outside lower center")
    return figure


def busy_seconds(spans: Spans) -> dict[str, dict[str, float]]:
    """Thread → stage → seconds, threads and stages as they begin; a stage has not what lies within it.

    >>> load = {"name": "load", "tid": "marius-load", "ts": 0, "dur": 3e6}
    >>> busy_seconds([load, load | {"name": "swap", "ts": 1e6, "dur": 2e6}])
    {'marius-load': {'load': 1.0, 'swap': 2.0}}
    """
    found: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    around: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for one in sorted(spans, key=lambda one: (float(one["ts"]), -float(one["dur"]))):
        thread, name = str(one.get("tid")), str(one["name"])
        start, seconds = float(one["ts"]), float(one["dur"]) / 1e6
        outer = around[thread]
        while outer and outer[-1][0] <= start:
            outer.pop()
        if outer:
            found[thread][outer[-1][1]] -= seconds
        found[thread][name] += seconds
        outer.append((start + float(one["dur"]), name))
    return {thread: dict(stages) for thread, stages in found.items()}


def traced_seconds(spans: Spans) -> float:
    """Seconds from the beginning of the first of some spans to the end of the last."""
    first = min(float(one["ts"]) for one in spans)
    return (max(float(one["ts"]) + float(one["dur"]) for one in spans) - first) / 1e6


def utilization_figure(spans: Spans) -> Figure:
    """How each thread divides the time of a trace among stages and waits; what is left white is neither."""
    threads, colors = busy_seconds(spans), _stage_colors(spans)
    figure, axes = new_figure(height=1.2 + 0.35 * len(threads) + 0.2 * -(-len(colors) // 3))
    total = max(traced_seconds(spans), 1e-9)
    done = dict.fromkeys(threads, 0.0)
    for name in sorted(colors, key=_is_wait):
        for place, (thread, stages) in enumerate(threads.items()):
            share = 100 * stages.get(name, 0.0) / total
            axes.barh(place, share, left=done[thread], color=colors[name], height=0.8)
            done[thread] += share
        axes.plot([], [], color=colors[name], linewidth=5, label=name)
    axes.set_yticks(range(len(threads)), list(threads))
    axes.set_xlim(0, 100)
    axes.set_xlabel("% of the time")
    figure.legend(frameon=False, fontsize=7, ncols=3, loc="outside lower center")
    return figure


def stage_rows(spans: Spans) -> list[tuple[str, ...]]:
    """A row for each stage and wait of a trace, those that took longest first; of all threads together."""
    times = Counter(str(span["name"]) for span in spans)
    total, threads = max(traced_seconds(spans), 1e-9), busy_seconds(spans).values()
    seconds = {name: [stages[name] for stages in threads if name in stages] for name in times}
    ordered = sorted(times, key=lambda name: (_is_wait(name), -sum(seconds[name])))
    return [
        (
            name,
            f"{times[name]:,}",
            f"{sum(seconds[name]):,.2f}",
            f"{100 * sum(seconds[name]) / total:.1f}",
            f"{len(seconds[name])}",
        )
        for name in ordered
    ]


def _is_wait(name: str) -> bool:
    return name.startswith("wait")


def _stage_colors(spans: Spans) -> dict[str, str]:
    """Colors for work; shades of gray for waiting, so that what is idle looks idle."""
    names = dict.fromkeys(str(one["name"]) for one in spans)
    waits = [name for name in names if _is_wait(name)]
    work = [name for name in names if name not in waits]
    shades = {name: f"{0.93 - 0.1 * (number % 4):.2f}" for number, name in enumerate(waits)}
    return shades | {name: _COLORS[number % len(_COLORS)] for number, name in enumerate(work)}
