"""A graph many times larger than the memory it may take: one epoch, full ranking, beside the in-memory rate.

    python benchmarks/large.py                      # 200,000 nodes, 2,000,000 edges
    python benchmarks/large.py --full --json FILE   # 20,000,000 nodes, 100,000,000 edges: 10 GB with state

Makes an R-MAT graph block by block, then prepares, trains one epoch out of core and ranks 1,000 test edges
against all nodes, each command in a process of its own whose peak of memory is taken. Before and after, a
graph of a tenth of the nodes and edges is trained all in memory with the same batches. Printed: peaks beside
the bound, edges a second by the clock and a second of processor, and their ratio to the in-memory ones. Exit
code 1 if a peak exceeds the bound or neither ratio reaches 80 %. --full needs 25 GB of disk in --folder.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from common import MEBIBYTE, Ended, finish, machine, machine_line, marius, parser, prepare_rmat

SIZES = {False: (200_000, 2_000_000), True: (20_000_000, 100_000_000)}
LEAST_RATIO = 0.8


def train(
    graph: str, output: str, options: argparse.Namespace, capacity: int
) -> tuple[Ended, dict[str, Any]]:
    """Train an epoch; what the command took, and its result.json."""
    ended = marius(
        "train", f"graph={graph}", f"output={output}", "model.decoder=distmult", f"model.dim={options.dim}",
        f"storage.capacity={capacity}", "training.epochs=1", f"training.batch_size={options.batch_size}",
        f"negatives.chunks={options.chunks}", f"negatives.count={options.negatives}",
        "training.valid_every=0", f"pipeline.compute_threads={options.threads}", *options.settings,
    )  # fmt: skip
    return ended, json.loads(Path(output, "result.json").read_text())


def rates(result: dict[str, Any], edges: int) -> dict[str, float]:
    """Edges a second by the clock and a second of processor of a result.json."""
    return {
        "by_clock": result["train"]["edges_per_second"],
        "by_cpu": edges / max(result["train"]["cpu_s"], 1e-9),
    }


def main() -> int:
    """Parse, run, print, compare."""
    options = _options().parse_args()
    nodes, edges = SIZES[options.full]
    nodes, edges = options.nodes or nodes, options.edges or edges
    small_nodes, small_edges = max(nodes // 10, 2), max(edges // 10, 1)
    facts = machine()
    print(machine_line(facts), flush=True)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        sizes = {"relations": options.relations, "partitions": options.partitions}
        prepare_rmat(f"{folder}/small", small_nodes, small_edges, **sizes, test=10)
        in_memory = [
            rates(train(f"{folder}/small", f"{folder}/before", options, options.partitions)[1], small_edges)
        ]
        figures = {"prepare": prepare_rmat(f"{folder}/graph", nodes, edges, **sizes, test=options.test_edges)}
        figures["train"], result = train(f"{folder}/graph", f"{folder}/run", options, options.capacity)
        figures["evaluate"] = marius("evaluate", f"run={folder}/run", f"compute_threads={options.threads}")
        in_memory.append(
            rates(train(f"{folder}/small", f"{folder}/after", options, options.partitions)[1], small_edges)
        )
    on_disk = rates(result, edges)
    ratios = {name: on_disk[name] / statistics.mean(one[name] for one in in_memory) for name in on_disk}
    bound = int(options.bound_gib * 1024 * MEBIBYTE)
    print(f"\n{nodes:,} nodes, {edges:,} edges, dim {options.dim}; p = {options.partitions}, "
          f"c = {options.capacity}; {nodes * options.dim * 8 / 1e9:.1f} GB with state")  # fmt: skip
    for name, ended in figures.items():
        peak = ended.peak_rss_bytes
        print(f"{name:9} peak {peak / MEBIBYTE:6.0f} MiB, {peak / bound:5.1%} of the bound; "
              f"{ended.seconds:7.1f} s, {ended.cpu_s:7.1f} s of processor")  # fmt: skip
    line = result["train"]
    print(f"train     {on_disk['by_clock']:,.0f} edges/s, {on_disk['by_cpu']:,.0f} a second of processor; "
          f"{line['loads_per_epoch']:.0f} loads, {line['wait_disk_s']:.1f} s waiting on disk,\n"
          f"          {line['bytes_read'] / 1e9:.1f} GB read, "
          f"{line['bytes_written'] / 1e9:.1f} GB written")  # fmt: skip
    for when, one in zip(("before", "after"), in_memory, strict=True):
        print(f"in memory {one['by_clock']:,.0f} edges/s, {one['by_cpu']:,.0f} a second of processor "
              f"({small_nodes:,} nodes, {small_edges:,} edges, {when})")  # fmt: skip
    print(f"ratio     {ratios['by_clock']:.1%} by the clock, {ratios['by_cpu']:.1%} by seconds of processor")
    report = {
        "nodes": nodes,
        "edges": edges,
        "bound_bytes": bound,
        "commands": {name: asdict(ended) for name, ended in figures.items()},
        "in_memory": in_memory,
        "on_disk": on_disk,
        "ratios": ratios,
        "result": result,
    }
    finish(report, options)
    fits = all(ended.peak_rss_bytes <= bound for ended in figures.values())
    return 0 if fits and max(ratios.values()) >= LEAST_RATIO else 1


def _options() -> argparse.ArgumentParser:
    made = parser(__doc__)
    made.add_argument("--nodes", type=int, help="N; the in-memory graph has a tenth")
    made.add_argument("--edges", type=int, help="E; the in-memory graph has a tenth")
    made.add_argument("--relations", type=int, default=10)
    made.add_argument("--dim", type=int, default=64, help="floats a node")
    made.add_argument("--partitions", type=int, default=64, help="p")
    made.add_argument("--capacity", type=int, default=12, help="c")
    made.add_argument("--batch-size", type=int, default=10_000, help="edges a batch")
    made.add_argument("--chunks", type=int, default=10, help="chunks of a batch")
    made.add_argument("--negatives", type=int, default=100, help="negatives a chunk and side")
    made.add_argument("--test-edges", type=int, default=1000, help="edges that are ranked")
    made.add_argument("--bound-gib", type=float, default=4.0, help="most resident memory of a command")
    made.add_argument("settings", nargs="*", help="further settings of marius-train, key=value")
    return made


if __name__ == "__main__":
    sys.exit(main())
