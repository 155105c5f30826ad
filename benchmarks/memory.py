"""Peak memory of a whole run, command by command, against its bound.

    python benchmarks/memory.py                        # 2,000,000 nodes, dim 100, p = 16, c = 4
    python benchmarks/memory.py --nodes 20000000 --edges 100000000 --dim 64 --partitions 32

Makes an R-MAT graph block by block, then runs prepare, train and evaluate as processes of their own and
prints the most resident memory that each had (getrusage of the child), beside the bound
(c + 1) partitions with optimizer state + 700 MiB. Exit code 1 if a command exceeds it.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from common import MEBIBYTE, marius, prepare_rmat

from marius_py.partitioning import Partitioning
from marius_py.storage.protocols import NodeTable

ALLOWANCE = 700 * MEBIBYTE


def main() -> int:
    """Parse, run the three commands, print, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--nodes", type=int, default=2_000_000)
    parser.add_argument("--edges", type=int, default=10_000_000)
    parser.add_argument("--relations", type=int, default=10)
    parser.add_argument("--dim", type=int, default=100)
    parser.add_argument("--partitions", type=int, default=16)
    parser.add_argument("--capacity", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--test-edges", type=int, default=1000)
    parser.add_argument("--folder", type=Path, help="parent of the temporary folder for graph and run")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("settings", nargs="*", help="further settings of marius-train")
    args = parser.parse_args()
    table = NodeTable(Partitioning(args.nodes, args.partitions), args.dim, args.dim)
    partition_bytes = table.slot_bytes
    bound = (args.capacity + 1) * partition_bytes + ALLOWANCE
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        graph, output = f"{folder}/graph", f"{folder}/run"
        figures = {
            "prepare": prepare_rmat(
                graph,
                args.nodes,
                args.edges,
                relations=args.relations,
                partitions=args.partitions,
                test=args.test_edges,
            )
        }
        figures["train"] = marius(
            "train", f"graph={graph}", f"output={output}",
            "model.decoder=distmult", f"model.dim={args.dim}", f"storage.capacity={args.capacity}",
            f"training.epochs={args.epochs}", "training.batch_size=10000", "negatives.chunks=10",
            "negatives.count=100", "training.valid_every=0", *args.settings
        )  # fmt: skip
        figures["evaluate"] = marius("evaluate", f"run={output}")
        result = json.loads(Path(output, "result.json").read_text())
    print(f"\n{args.nodes:,} nodes, {args.edges:,} edges, dim {args.dim}")
    print(f"p = {args.partitions}, c = {args.capacity}")
    print(f"bound: {args.capacity + 1} partitions of {partition_bytes / MEBIBYTE:.0f} MiB with state "
          f"+ {ALLOWANCE // MEBIBYTE} MiB = {bound / MEBIBYTE:.0f} MiB")  # fmt: skip
    for name, ended in figures.items():
        peak = ended.peak_rss_bytes
        print(
            f"{name:9} peak {peak / MEBIBYTE:6.0f} MiB  {peak / bound:6.1%} of the bound"
            f"  {ended.seconds:7.1f} s"
        )
    print(f"train     {result['train']['edges_per_second']:,.0f} edges/s")
    if args.json:
        peaks = {name: asdict(ended) for name, ended in figures.items()}
        report = {"arguments": {k: str(v) for k, v in vars(args).items()}, "bound_bytes": bound, **peaks}
        args.json.write_text(json.dumps({**report, "result": result}, indent=2) + "\n")
    return int(any(ended.peak_rss_bytes > bound for ended in figures.values()))


if __name__ == "__main__":
    sys.exit(main())
