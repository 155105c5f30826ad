"""Draws the figures of docs/concepts.md: `python docs/images/concept_figures.py`, needs matplotlib.

buckets.svg is the state of a real schedule, timeline.svg the trace of a short run that the script trains.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import marius_py
from marius_py.generate import planted_graph
from marius_py.ordering import build_schedule
from marius_py.report.figures import save_figure
from marius_py.report.timeline import timeline_figure

FOLDER = Path(__file__).parent
P, C, STEP, CELL = 8, 4, 3, 34
NOW, DONE, LIGHT, LINE = "#d1495b", "#8d99ae", "#edf2f4", "#94a3b8"
RESIDENT, ON_DISK = "#2563eb", "#cbd5e1"


def buckets_svg() -> str:
    """Partitions on top and at the left, the p × p buckets between them, in one state of a schedule."""
    schedule = build_schedule(P, C, seed=None, policy="eager")
    before = {bucket for step in schedule.steps[:STEP] for bucket in step.buckets}
    state = schedule.steps[STEP]
    left, top = 150, 62
    right, bottom = left + P * CELL, top + P * CELL
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {right + 260} {bottom + 24}" '
        'font-family="system-ui, sans-serif" font-size="13">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{left + P * CELL / 2}" y="18" text-anchor="middle">partition of the tail</text>',
        f'<text x="16" y="{top + P * CELL / 2}" transform="rotate(-90 16 {top + P * CELL / 2})" '
        'text-anchor="middle">partition of the head</text>',
    ]
    for part in range(P):
        colour = RESIDENT if part in state.resident else ON_DISK
        ink = "white" if part in state.resident else "#334155"
        for x, y in ((left + part * CELL, top - CELL), (left - CELL - 4, top + part * CELL)):
            side, middle = CELL - 4, CELL // 2
            parts.append(
                f'<rect x="{x + 2}" y="{y + 2}" width="{side}" height="{side}" rx="4" fill="{colour}"/>'
                f'<text x="{x + middle}" y="{y + middle + 5}" text-anchor="middle" fill="{ink}">{part}</text>'
            )
    for head in range(P):
        for tail in range(P):
            held = head in state.resident and tail in state.resident
            bucket = (head, tail)
            fill = (
                NOW if bucket in state.buckets else DONE if bucket in before else LIGHT if held else "white"
            )
            parts.append(
                f'<rect x="{left + tail * CELL}" y="{top + head * CELL}" width="{CELL}" height="{CELL}" '
                f'fill="{fill}" stroke="{LINE}" stroke-width="0.7"/>'
            )
    legend = (
        (RESIDENT, "partition in memory"),
        (ON_DISK, "partition on disk"),
        (NOW, "bucket that runs in this step"),
        (DONE, "bucket that has run"),
        ("white", "bucket that waits"),
    )
    for place, (colour, text) in enumerate(legend):
        x, y = left + P * CELL + 24, top + 14 + place * 28
        parts.append(
            f'<rect x="{x}" y="{y}" width="18" height="18" fill="{colour}" stroke="{LINE}"/>'
            f'<text x="{x + 27}" y="{y + 14}">{text}</text>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


def draw_timeline() -> None:
    """What each thread does in a second of training, partitions on disk."""
    settings = {
        "model.dim": 64,
        "negatives.count": 200,
        "storage.capacity": 4,
        "training.epochs": 1,
        "training.valid_every": 0,
        "pipeline.trace": True,
        "pipeline.compute_threads": 2,
    }
    with tempfile.TemporaryDirectory() as folder:
        graph = planted_graph(Path(folder) / "graph", num_nodes=40_000, num_edges=400_000, partitions=8)
        marius_py.train(graph, Path(folder) / "run", settings).close()
        trace = json.loads((Path(folder) / "run" / "trace.json").read_text())
    events = trace["traceEvents"] if isinstance(trace, dict) else trace
    spans = [event for event in events if event.get("ph") == "X"]
    middle = sorted(float(event["ts"]) for event in spans)[len(spans) // 2]
    window = [event for event in spans if 0 <= float(event["ts"]) - middle <= 4e5]
    (FOLDER / "timeline.svg").write_bytes(save_figure(timeline_figure(window), "svg"))


if __name__ == "__main__":
    (FOLDER / "buckets.svg").write_text(buckets_svg(), encoding="utf-8")
    draw_timeline()
