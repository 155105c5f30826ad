"""How much of a slow disk's time a training run hides, by policy of bucket assignment.

    python benchmarks/overlap.py                     # planted graph, p = 16, c = 4, I/O at 80 % of compute
    python benchmarks/overlap.py --share 1.2 --json FILE

First an epoch without a brake measures the compute of a swap (seconds of the epoch / swaps). Then the store
is slowed so that reading one partition and writing one takes `--share` of it, and an epoch is trained under
each policy, in turn, `--repeats` times. Printed: the share of the epoch in which nothing was computed because
a read was waited for (`wait_disk_s` of metrics.jsonl), and the efficiency max(compute, I/O) / measured.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from marius_py.data.batch_settings import BatchSettings
from marius_py.generate import planted_edges
from marius_py.nn.decoders import ComplEx
from marius_py.nn.losses import SoftmaxLoss
from marius_py.nn.model import LinkPredictionModel
from marius_py.nn.negatives import UniformNegatives
from marius_py.nn.optimizers import Adagrad
from marius_py.ordering import build_schedule
from marius_py.partitioning import Partitioning
from marius_py.storage.memory import MemoryEdgeStore, MemoryPartitionStore
from marius_py.storage.protocols import NodeTable
from marius_py.testing import SlowStore
from marius_py.training.settings import TrainerSettings
from marius_py.training.trainer import Trainer

POLICIES = ("spread", "deadline", "eager")


@dataclass(frozen=True)
class Work:
    """A training job: sizes of the graph, the model and the buffer."""

    p: int = 16
    c: int = 4
    num_nodes: int = 20_000
    num_relations: int = 20
    num_edges: int = 400_000
    dim: int = 64
    negatives: int = 250
    batch_size: int = 1000


def train_epochs(work: Work, policy: str, latency_s: float, epochs: int) -> list[dict[str, Any]]:
    """Train on a store whose every read and write takes `latency_s`; the lines of metrics.jsonl."""
    edges = planted_edges(work.num_nodes, work.num_relations, work.num_edges)
    partitioning = Partitioning(work.num_nodes, work.p)
    store = MemoryEdgeStore(partitioning, edges)
    model = LinkPredictionModel(
        ComplEx(work.dim), SoftmaxLoss(), Adagrad(lr=0.1), num_relations=work.num_relations
    )
    nodes = MemoryPartitionStore(NodeTable(partitioning, work.dim, model.node_state_dim))
    counts = store.bucket_counts()
    trainer = Trainer(
        model,
        SlowStore(nodes, 1e12, latency_s=latency_s) if latency_s else nodes,
        store,
        lambda epoch, start: build_schedule(
            work.p,
            work.c,
            seed=epoch,
            policy="eager" if policy == "spread" else policy,
            costs=counts,
            start=start,
        ),
        UniformNegatives(work.negatives, 1),
        BatchSettings(work.batch_size, 1, 0, spread=policy == "spread"),
        TrainerSettings(work.c, "threaded", max_in_flight=2),
    )
    return trainer.train(epochs)


def compare(work: Work, share: float, repeats: int) -> dict[str, Any]:
    """Compute of a swap, then for each policy the medians over `repeats` epochs, in turn."""
    free = train_epochs(work, "deadline", 0.0, 3)[1]  # it reads for another, as most do
    compute_s = free["seconds"]
    swaps = free["loads"]
    latency_s = share * compute_s / swaps / 2
    found: dict[str, list[dict[str, Any]]] = {policy: [] for policy in POLICIES}
    for _ in range(repeats):
        for policy in POLICIES:
            found[policy].append(train_epochs(work, policy, latency_s, 3)[1])
    limit_s = max(compute_s, 2 * latency_s * swaps)
    return {
        "compute_s": compute_s,
        "swaps": swaps,
        "io_per_swap_s": 2 * latency_s,
        "share": share,
        "policies": {
            policy: {
                "wait_share": statistics.median(line["wait_disk_s"] / line["seconds"] for line in lines),
                "seconds": statistics.median(line["seconds"] for line in lines),
                "efficiency": limit_s / statistics.median(line["seconds"] for line in lines),
            }
            for policy, lines in found.items()
        },
    }


def main() -> int:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--share", type=float, default=0.8, help="I/O of a swap / compute of a swap")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--p", type=int, default=16)
    parser.add_argument("--c", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1, help="threads of the numeric kernels")
    parser.add_argument("--json", type=Path, help="write the figures here")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    result = compare(Work(p=args.p, c=args.c), args.share, args.repeats)
    print(
        f"p = {args.p}, c = {args.c}: {result['swaps']} swaps, {result['compute_s']:.2f} s of compute, "
        f"I/O of a swap {result['io_per_swap_s'] * 1e3:.1f} ms = {args.share:.0%} of its compute"
    )
    for policy, figures in result["policies"].items():
        print(
            f"{policy:9} epoch {figures['seconds']:6.2f} s  waiting on disk {figures['wait_share']:6.1%}  "
            f"overlap efficiency {figures['efficiency']:6.1%}"
        )
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
