"""Full filtered ranking, beside what the processor's matrix products allow.

    python benchmarks/evaluate.py                    # 2,000 test edges of a graph of FB15k-237's size
    python benchmarks/evaluate.py --full             # 20,466: 40,932 queries against 14,541 nodes
    python benchmarks/evaluate.py --full --graph graphs/fb15k_237 --json FILE

Ranks test edges on both sides against all nodes with random ComplEx embeddings of dim 256, filtered by all
three splits, `--repeats` times, with the rate of a square SGEMM measured in between. A query costs
2 · nodes · dim flop.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from typing import Any

import numpy as np
import torch
from common import (
    FB15K_237,
    finish,
    machine,
    machine_line,
    parser,
    repeats_of,
    sgemm_rate,
    spread,
)

from marius_py.evaluation.evaluator import Evaluator
from marius_py.generate import planted_edges
from marius_py.graph import open_graph
from marius_py.nn.decoders import ComplEx
from marius_py.nn.losses import SoftmaxLoss
from marius_py.nn.model import LinkPredictionModel
from marius_py.nn.optimizers import Adagrad
from marius_py.partitioning import Partitioning
from marius_py.storage.memory import MemoryEdgeStore
from marius_py.storage.protocols import EdgeStore

SMALL_TEST = 2000
FULL_TEST = 20_466


class Rows:
    """Node rows in memory."""

    def __init__(self, table: np.ndarray) -> None:
        self._table = table

    def read_rows(self, start: int, stop: int) -> np.ndarray:
        """Rows of the ids start:stop."""
        return self._table[start:stop]


def splits(options: argparse.Namespace) -> tuple[EdgeStore, int, int]:
    """Edges of a prepared graph, or generated ones with a test split; nodes and relations."""
    if options.graph is not None:
        graph = open_graph(options.graph)
        return graph.edges(), graph.num_nodes, graph.num_relations
    nodes, relations, train = FB15K_237
    nodes, train = options.nodes or nodes, options.edges or train
    test = FULL_TEST if options.full else SMALL_TEST
    drawn = planted_edges(nodes, relations, train + test)
    store = MemoryEdgeStore(Partitioning(nodes, 1), drawn[test:], test=drawn[:test])
    return store, nodes, relations


def main() -> int:
    """Parse, rank, print."""
    options = _options().parse_args()
    torch.set_num_threads(options.threads)
    edges, nodes, relations = splits(options)
    count = min(edges.num_edges("test"), options.test or edges.num_edges("test"))
    if options.graph is not None and not options.full:
        count = min(count, SMALL_TEST)
    model = LinkPredictionModel(
        ComplEx(options.dim), SoftmaxLoss(), Adagrad(lr=0.1), num_relations=relations, reciprocal=True
    )
    table = np.random.default_rng(0).normal(size=(nodes, options.dim)).astype(np.float32)
    evaluator = Evaluator(model, Rows(table), edges, nodes, relations, dim=options.dim)
    print(machine_line(machine()))
    queries = 2 * count
    flop = 2.0 * queries * nodes * options.dim
    print(f"{queries:,} queries against {nodes:,} nodes, ComplEx of dim {options.dim}")
    seconds, cpu, shares, cpu_shares = [], [], [], []
    before = sgemm_rate(options.limit_seconds)
    for turn in range(1 + repeats_of(options)):
        started, used = time.perf_counter(), time.process_time()
        metrics = evaluator.evaluate("test", max_edges=count)
        elapsed, spent = time.perf_counter() - started, time.process_time() - used
        after = sgemm_rate(options.limit_seconds)
        if turn:  # the first one warms up
            seconds.append(elapsed)
            cpu.append(spent)
            shares.append(flop / elapsed / statistics.mean((before.by_clock, after.by_clock)))
            cpu_shares.append(flop / spent / statistics.mean((before.by_cpu, after.by_cpu)))
        before = after
    report: dict[str, Any] = {
        "queries": queries,
        "nodes": nodes,
        "dim": options.dim,
        "seconds": spread(seconds),
        "cpu_s": spread(cpu),
        "queries_per_second": queries / statistics.median(seconds),
        "sgemm_flop_per_second": before.by_clock,
        "share_of_sgemm": spread(shares),
        "share_of_sgemm_by_cpu": spread(cpu_shares),
        "mrr": metrics.to_json()["mrr"],
    }
    print(f"{report['seconds']['median']:.2f} s ({report['seconds']['least']:.2f} to "
          f"{report['seconds']['most']:.2f}), {report['queries_per_second']:,.0f} queries/s, processor "
          f"{report['cpu_s']['median']:.2f} s")  # fmt: skip
    print(f"{report['share_of_sgemm']['median']:.1%} of SGEMM at {before.by_clock / 1e9:.0f} GFLOP/s; by "
          f"seconds of processor {report['share_of_sgemm_by_cpu']['median']:.1%}")  # fmt: skip
    edges.close()
    finish(report, options)
    return 0


def _options() -> argparse.ArgumentParser:
    made = parser(__doc__)
    made.add_argument("--graph", help="prepared graph; default: a generated one of FB15k-237's size")
    made.add_argument("--nodes", type=int, help="N of the generated graph")
    made.add_argument("--edges", type=int, help="train edges of the generated graph")
    made.add_argument("--test", type=int, help="test edges that are ranked")
    made.add_argument("--dim", type=int, default=256, help="floats a node")
    made.add_argument("--limit-seconds", type=float, default=0.5, help="of each measurement of SGEMM")
    return made


if __name__ == "__main__":
    sys.exit(main())
