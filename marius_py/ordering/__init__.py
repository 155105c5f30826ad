"""Buffer-aware orderings (floor 0): in which order partitions pass through a buffer, and what runs when.

In: p partitions, a buffer of c, the cost of each bucket. Out: a `Schedule`, checked, simulated, drawn or
stored as JSON. Pure Python; neither torch nor h5py nor NumPy is imported. The mathematics: docs/ordering.md.

Example:
    >>> from marius_py.ordering import build_schedule, lower_bound
    >>> for p, c in (8, 4), (16, 8), (32, 8), (128, 16):
    ...     schedule = build_schedule(p, c, order="auto", seed=0)
    ...     print(f"p={p} c={c} loads={schedule.loads} bound={lower_bound(p, c)} steps={len(schedule.steps)}")
    p=8 c=4 loads=12 bound=12 steps=9
    p=16 c=8 loads=24 bound=24 steps=17
    p=32 c=8 loads=79 bound=75 steps=72
    p=128 c=16 loads=562 bound=550 steps=547
"""

from __future__ import annotations

from marius_py.errors import ScheduleError
from marius_py.ordering.assignment import POLICIES, Policy, assign_buckets
from marius_py.ordering.bounds import beta_swaps, lower_bound
from marius_py.ordering.build import ORDER_NAMES, build_schedule
from marius_py.ordering.drawing import plot
from marius_py.ordering.named import (
    auto,
    beta,
    comet,
    cyclic,
    hilbert,
    hilbert_symmetric,
    optimal,
    random,
    sequential,
)
from marius_py.ordering.serialization import from_json, to_json
from marius_py.ordering.simulation import Simulation, StepTiming, hidden_io_cost, simulate
from marius_py.ordering.table import format_summary, format_table
from marius_py.ordering.transforms import join, relabel, reverse
from marius_py.ordering.validation import validate
from marius_py.types import Bucket, Schedule, Step

__all__ = [
    "ORDER_NAMES",
    "POLICIES",
    "Bucket",
    "Policy",
    "Schedule",
    "ScheduleError",
    "Simulation",
    "Step",
    "StepTiming",
    "assign_buckets",
    "auto",
    "beta",
    "beta_swaps",
    "build_schedule",
    "comet",
    "cyclic",
    "format_summary",
    "format_table",
    "from_json",
    "hidden_io_cost",
    "hilbert",
    "hilbert_symmetric",
    "join",
    "lower_bound",
    "optimal",
    "plot",
    "random",
    "relabel",
    "reverse",
    "sequential",
    "simulate",
    "to_json",
    "validate",
]
