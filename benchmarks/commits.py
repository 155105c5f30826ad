"""What commits cost: throughput with and without them, pairwise in one process.

    python benchmarks/commits.py                          # planted graph, p = 8, c = 4, 5 pairs of 3 epochs
    python benchmarks/commits.py --every-seconds 1 --folder /mnt/disk --json FILE

Trains on a node store on disk, in turn: without any commit after the first (nothing is flushed at an epoch's
end either), with the default ones, and with one every `--every-seconds`. Printed: edges/s from the end of the
first epoch to the end of the last, and the median over the pairs of the ratio to the run without. Exit code 1
if the default is below 97 %.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from marius_py.config import CheckpointConfig
from marius_py.data.batch_settings import BatchSettings
from marius_py.generate import planted_edges
from marius_py.machine import available_cores
from marius_py.nn.decoders import ComplEx
from marius_py.nn.losses import SoftmaxLoss
from marius_py.nn.model import LinkPredictionModel
from marius_py.nn.negatives import UniformNegatives
from marius_py.nn.optimizers import Adagrad
from marius_py.ordering import build_schedule
from marius_py.partitioning import Partitioning
from marius_py.storage.hdf5_nodes import create_node_store
from marius_py.storage.memory import MemoryEdgeStore
from marius_py.storage.protocols import EdgeStore, NodeTable
from marius_py.training.commits import CommitRhythm
from marius_py.training.settings import TrainerSettings
from marius_py.training.trainer import Trainer

RELATIONS = 20
LEAST = 0.97


class WithoutCommits(Trainer):
    """Commits once, the initial rows; never afterwards, and flushes nothing at an epoch's end."""

    def __init__(self, *parts: Any, **options: Any) -> None:
        super().__init__(*parts, **options)
        self._buffer.flush = lambda: None  # type: ignore[method-assign]
        commit = self._commits.commit
        self._commits.commit = lambda state: None if self._store.meta else commit(state)  # type: ignore[method-assign]


def train(options: argparse.Namespace, edges: EdgeStore, kind: str, folder: Path) -> tuple[float, int, float]:
    """Train a new store; of the epochs after the first: edges/s, commits, share of the time spent in them."""
    default = CheckpointConfig().every_seconds
    seconds = {"none": None, "default": default, "often": options.every_seconds}[kind]
    model = LinkPredictionModel(
        ComplEx(options.dim), SoftmaxLoss(), Adagrad(0.1), num_relations=RELATIONS, reciprocal=True
    )
    table = NodeTable(edges.partitioning, options.dim, model.node_state_dim)
    p, c = edges.partitioning.num_partitions, options.capacity
    ends: list[tuple[float, int, float]] = []
    with create_node_store(folder, table, spare_slots=p) as store:
        trainer = (WithoutCommits if kind == "none" else Trainer)(
            model,
            store,
            edges,
            lambda epoch, start: build_schedule(p, c, order="auto", seed=epoch, start=start),
            UniformNegatives(options.negatives, 1),
            BatchSettings(options.batch_size, 1, 0),
            TrainerSettings(c, max_in_flight=4, commits=CommitRhythm(seconds=seconds)),
            on_epoch=lambda line: ends.append(
                (
                    time.perf_counter(),
                    store.generation,
                    sum(trainer._trace.seconds[name] for name in ("flush", "commit")),
                )
            ),
        )
        trainer.train(1 + options.epochs)
    elapsed, commits, inside = (last - first for first, last in zip(ends[0], ends[-1], strict=True))
    if kind == "none" and commits:
        raise SystemExit(f"the run without commits made {int(commits)}")
    return options.epochs * edges.num_edges("train") / elapsed, int(commits), inside / elapsed


def main() -> int:
    """Parse, train in turn, print, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--nodes", type=int, default=200_000)
    parser.add_argument("--edges", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--capacity", type=int, default=4)
    parser.add_argument("--negatives", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=4096)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--every-seconds", type=float, default=2.0)
    parser.add_argument("--folder", type=Path, help="where the stores are made; None: the temporary folder")
    parser.add_argument("--json", type=Path, help="file for the figures")
    options = parser.parse_args()
    torch.set_num_threads(available_cores())
    drawn = planted_edges(options.nodes, RELATIONS, options.edges)
    edges = MemoryEdgeStore(Partitioning(options.nodes, options.partitions), drawn)
    speeds: dict[str, list[float]] = {"none": [], "default": [], "often": []}
    shares: dict[str, list[float]] = {kind: [] for kind in speeds}
    for pair in range(options.pairs):
        for kind, found in speeds.items():
            with tempfile.TemporaryDirectory(dir=options.folder) as folder:
                speed, commits, share = train(options, edges, kind, Path(folder) / "nodes")
            found.append(speed)
            shares[kind].append(share)
            print(
                f"pair {pair + 1}, {kind}: {speed:,.0f} edges/s, {commits} commits, {share:.2%} of the time"
            )
    report: dict[str, Any] = {"edges_per_second": speeds, "share_in_commits": shares}
    for kind in ("default", "often"):
        ratios = [one / none for one, none in zip(speeds[kind], speeds["none"], strict=True)]
        report[f"ratio_{kind}"] = statistics.median(ratios)
        print(
            f"{kind}: {statistics.median(ratios):.3f} of none (from {min(ratios):.3f} to {max(ratios):.3f})"
        )
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    return 0 if report["ratio_default"] >= LEAST else 1


if __name__ == "__main__":
    sys.exit(main())
