"""How the cost of an epoch grows with edges, nodes, dim and partitions: slopes of log cost against log size.

    python benchmarks/scale.py                       # 50,000 to 400,000 edges
    python benchmarks/scale.py --full --json FILE    # 1,000,000 to 100,000,000 edges
    python benchmarks/scale.py --axis dim nodes

Trains an epoch of DistMult on R-MAT graphs with c of p partitions in memory, one size changed at a time, and
fits a power law to seconds of processor and by the clock. Edges: with ten edges a node, slope 1 means that an
edge costs the same in a large graph. Nodes: edges fixed; only I/O grows. Dim: 1 once products are the most of
it. Partitions: c = p / 4; near 0, since more partitions mean more but smaller swaps.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import (
    Edges,
    finish,
    machine,
    machine_line,
    parser,
    settings,
    sgemm_rate,
    slope,
    train_epochs,
)

from marius_py.generate import rmat_edges

RELATIONS = 10
EDGES_A_NODE = 10


@dataclass(frozen=True, slots=True)
class Size:
    """One graph and buffer."""

    nodes: int
    edges: int
    dim: int
    partitions: int


def sizes_of(axis: str, base: Size, factors: list[float]) -> list[Size]:
    """The base with one size multiplied by each factor."""
    if axis == "edges":
        return [
            replace(base, edges=int(base.edges * f), nodes=int(base.edges * f) // EDGES_A_NODE)
            for f in factors
        ]
    if axis == "partitions":
        return [replace(base, partitions=p) for p in (8, 16, 32, 64)]
    return [replace(base, **{axis: int(getattr(base, axis) * f)}) for f in factors]


def cost(size: Size, options: argparse.Namespace) -> dict[str, Any]:
    """Train two epochs, take the second; its seconds, by the clock and of processor."""
    drawn = np.concatenate(list(rmat_edges(size.nodes, size.edges, RELATIONS)))
    edges = Edges("R-MAT", size.nodes, RELATIONS, drawn)
    config = settings(
        options.settings,
        model__decoder="distmult",
        model__dim=size.dim,
        negatives__count=options.negatives,
        negatives__chunks=10,
        training__batch_size=options.batch_size,
        storage__partitions=size.partitions,
        storage__capacity=max(2, size.partitions // 4),
    )
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        epochs = train_epochs(config, edges, Path(folder) / "nodes", epochs=1 + (options.repeats or 1))[1:]
    return {
        "nodes": size.nodes,
        "edges": size.edges,
        "dim": size.dim,
        "partitions": size.partitions,
        "seconds": statistics.median(float(epoch.line["seconds"]) for epoch in epochs),
        "cpu_s": statistics.median(epoch.cpu_s for epoch in epochs),
        "loads": epochs[-1].line["loads"],
    }


def main() -> int:
    """Parse, measure along each axis, print."""
    options = _options().parse_args()
    torch.set_num_threads(options.threads)
    print(machine_line(machine()))
    edges = options.edges or (1_000_000 if options.full else 50_000)
    base = Size(edges // EDGES_A_NODE, edges, options.dim, options.partitions)
    factors = [1, 3, 10, 30, 100] if options.full else [1, 2, 4, 8]
    report: dict[str, Any] = {"axes": {}}
    for axis in options.axis:
        limit = sgemm_rate(0.2)
        used = factors if axis == "edges" else factors[:3]
        found = [cost(size, options) for size in sizes_of(axis, base, used)]
        xs = [one[axis] for one in found]
        slopes = {kind: slope(xs, [one[kind] for one in found]) for kind in ("seconds", "cpu_s")}
        report["axes"][axis] = {
            "sizes": found,
            "slopes": slopes,
            "sgemm_flop_per_second": [limit.by_clock, sgemm_rate(0.2).by_clock],
        }
        print(
            f"\n{axis}: slope {slopes['cpu_s']:.2f} in seconds of processor, "
            f"{slopes['seconds']:.2f} by the clock"
        )
        for one in found:
            print(f"  {one['nodes']:>10,} nodes {one['edges']:>11,} edges  dim {one['dim']:>4}  "
                  f"p {one['partitions']:>3}  {one['seconds']:8.2f} s  processor {one['cpu_s']:8.2f} s  "
                  f"{1e6 * one['cpu_s'] / one['edges']:6.2f} µs an edge  {one['loads']} loads")  # fmt: skip
    finish(report, options)
    return 0


def _options() -> argparse.ArgumentParser:
    made = parser(__doc__)
    made.add_argument(
        "--axis", nargs="+", choices=["edges", "nodes", "dim", "partitions"],
        default=["edges", "nodes", "dim", "partitions"],
    )  # fmt: skip
    made.add_argument("--edges", type=int, help="edges of the smallest graph")
    made.add_argument("--dim", type=int, default=32, help="floats a node of the smallest model")
    made.add_argument("--partitions", type=int, default=16, help="p")
    made.add_argument("--negatives", type=int, default=100, help="negatives a chunk and side")
    made.add_argument("--batch-size", type=int, default=10_000, help="edges a batch")
    made.add_argument("settings", nargs="*", help="further settings of marius-train, key=value")
    return made


if __name__ == "__main__":
    sys.exit(main())
