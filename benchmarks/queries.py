"""Asking a trained run: predictions and neighbours, each command a process of its own.

    python benchmarks/queries.py                        # 1,000 queries on a generated graph of 20,000 nodes
    python benchmarks/queries.py --run runs/hackage --json FILE

Answers `--queries` queries, half for heads and half for tails, made of random test edges (train edges without
a test split): all in one command, filtered too, and one alone, which is mostly start-up; then the neighbours
of as many nodes, exact and by a FAISS index if faiss is installed, built and opened again. Prints seconds by
the clock and of processor, and the most resident memory of each process.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from common import MEBIBYTE, Ended, finish, machine, machine_line, marius, parser, prepare_rmat

from marius_py import load

SMALL = (20_000, 200_000)
"""Nodes and edges of the generated graph."""


def main() -> int:
    """Parse, make a run unless one is given, ask it."""
    made = parser(__doc__)
    made.add_argument("--run", type=Path, help="a trained run; default: one epoch on a generated graph")
    made.add_argument("--queries", type=int, default=1000)
    made.add_argument("-k", type=int, default=10, help="answers a query")
    args = made.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(args.threads)  # of the commands
    around = machine()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        run = args.run or generated(Path(folder))
        size, dim = write_queries(run, Path(folder), args.queries)
        figures = ask(run, Path(folder), args.k)
    print(machine_line(around))
    print(f"{size:,} nodes, dim {dim}; {args.queries:,} queries, {args.k} answers each")
    for name, ended in figures.items():
        print(
            f"{name:34} {ended.seconds:7.1f} s  {ended.cpu_s:7.1f} s of processor"
            f"  peak {ended.peak_rss_bytes / MEBIBYTE:6.0f} MiB"
        )
    finish({"nodes": size, "dim": dim, **{name: asdict(ended) for name, ended in figures.items()}}, args)
    return 0


def generated(folder: Path) -> Path:
    """A run of one epoch on a generated graph."""
    nodes, edges = SMALL
    prepare_rmat(folder / "graph", nodes, edges, relations=10, partitions=8, test=2000)
    marius(
        "train", f"graph={folder / 'graph'}", f"output={folder / 'run'}", "model.decoder=distmult",
        "model.dim=32", "training.epochs=1", "training.valid_every=0", "negatives.count=50",
        "evaluation.mode=sampled"
    )  # fmt: skip
    return folder / "run"


def write_queries(run: Path, folder: Path, count: int) -> tuple[int, int]:
    """Write many.parquet, one.parquet and nodes.txt; the run's nodes and dim."""
    rng = np.random.default_rng(0)
    with load(run) as opened:
        graph = opened.graph
        split = "test" if graph.num_edges.get("test") else "train"
        with graph.edges() as store:
            edges = store.read_range(split, 0, min(graph.num_edges[split], 1 << 20))
        edges = edges[rng.integers(len(edges), size=count)]
        nodes, relations = np.array(graph.node_names(), object), graph.relation_names()
        heads, tails = (nodes[edges[:, column]].tolist() for column in (0, 2))
        middle = [relations[relation] for relation in edges[:, 1].tolist()]
        size, dim = opened.num_nodes, opened.dim
    columns = {
        "head": [None if i % 2 else name for i, name in enumerate(heads)],
        "relation": middle,
        "tail": [name if i % 2 else None for i, name in enumerate(tails)],
    }
    if not graph.has_relations:
        del columns["relation"]
    table = pa.table({key: pa.array(values, pa.string()) for key, values in columns.items()})
    pq.write_table(table, folder / "many.parquet")
    pq.write_table(table.slice(0, 1), folder / "one.parquet")
    (folder / "nodes.txt").write_text("\n".join(heads), encoding="utf-8")
    return size, dim


def ask(run: Path, folder: Path, k: int) -> dict[str, Ended]:
    """Run the commands."""

    def predict(queries: str, *words: str) -> Ended:
        target = folder / "answers.parquet"
        target.unlink(missing_ok=True)
        common = ("--queries", str(folder / queries), "-k", str(k), "--output", str(target))
        return marius("predict", str(run), *common, *words)

    def neighbors(*words: str) -> Ended:
        target = folder / "neighbors.parquet"
        target.unlink(missing_ok=True)
        names = (folder / "nodes.txt").read_text(encoding="utf-8").split("\n")
        flags = [word for name in names for word in ("--node", name)]
        return marius("neighbors", str(run), *flags, "-k", str(k), "--output", str(target), *words)

    figures = {
        "predict": predict("many.parquet"),
        "predict, known edges left out": predict("many.parquet", "--filter-known"),
        "predict, one query": predict("one.parquet"),
        "neighbors, exact": neighbors(),
    }
    if importlib.util.find_spec("faiss") is not None:
        index = ("--index", "faiss", "--index-folder", str(folder / "index"))
        figures["neighbors, index built and saved"] = neighbors(*index)
        figures["neighbors, index opened"] = neighbors(*index)
    return figures


if __name__ == "__main__":
    sys.exit(main())
