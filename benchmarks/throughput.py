"""Edges a second of the whole trainer, beside what the processor's matrix products allow.

    python benchmarks/throughput.py                             # 50,000 edges, 3 epochs a setting
    python benchmarks/throughput.py --full --graph graphs/fb15k_237 --json FILE
    python benchmarks/throughput.py --batch-size 10000 --node-dropout 0.3 --threads 1 pipeline.mode=inline

ComplEx of dim 100, 1000 negatives on each side in 10 chunks, batches of 10,000 and of 1,000 edges, everything
in memory. For each batch size one epoch to warm up, then `--repeats` epochs; between epochs the rate of a
square SGEMM is measured, with as many threads unless told otherwise. An edge costs 2 sides · 3 products ·
2 · negatives · dim flop (decoders that score by a dot product); the share of the limit is that times edges a
second over the SGEMM rate measured before and after the epoch. Settings of marius-train may follow.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from common import (
    Edges,
    Epoch,
    Rate,
    copy_rate,
    finish,
    graph_edges,
    machine,
    machine_line,
    median_rate,
    parser,
    products_rate,
    repeats_of,
    run_peer,
    settings,
    sgemm_rate,
    spread,
    train_epochs,
)

from marius_py.config import TrainConfig

SMALL_EDGES = 50_000


def measure(config: TrainConfig, edges: Edges, options: argparse.Namespace) -> dict[str, Any]:
    """Train epochs of one setting with the limit measured in between."""
    threads = options.limit_threads or options.threads

    def limit() -> None:
        torch.set_num_threads(threads)
        limits.append(sgemm_rate(options.limit_seconds))
        torch.set_num_threads(options.threads)

    limits: list[Rate] = []
    limit()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        found = train_epochs(
            config,
            edges,
            Path(folder) / "nodes",
            epochs=1 + repeats_of(options),
            between=limit,
        )
    return summary(config, found[1:], limits[1:])


def summary(config: TrainConfig, epochs: list[Epoch], limits: list[Rate]) -> dict[str, Any]:
    """Medians over epochs; limits[i] and limits[i + 1] were measured around epochs[i]."""
    sides, products = 2, 3
    flop = sides * products * 2 * config.negatives.count * config.model.dim
    by_clock, by_cpu = [], []
    for number, epoch in enumerate(epochs):
        around = limits[number : number + 2]
        by_clock.append(flop * epoch.edges_per_second / statistics.mean(rate.by_clock for rate in around))
        by_cpu.append(flop * epoch.edges_per_cpu_second / statistics.mean(rate.by_cpu for rate in around))
    names = sorted({name for epoch in epochs for name in epoch.stages})
    return {
        "batch_size": config.training.batch_size,
        "chunks": config.negatives.chunks,
        "edges_per_second": spread([epoch.edges_per_second for epoch in epochs]),
        "edges_per_cpu_second": spread([epoch.edges_per_cpu_second for epoch in epochs]),
        "flop_per_edge": flop,
        "share_of_sgemm": spread(by_clock),
        "share_of_sgemm_by_cpu": spread(by_cpu),
        "sgemm_flop_per_second": median_rate(limits).by_clock,
        "sgemm_flop_per_cpu_second": median_rate(limits).by_cpu,
        "stage_seconds": {
            name: statistics.median(epoch.stages.get(name, 0.0) for epoch in epochs) for name in names
        },
        "epoch_seconds": spread([float(epoch.line["seconds"]) for epoch in epochs]),
        "epoch_cpu_seconds": spread([epoch.cpu_s for epoch in epochs]),
    }


def show(result: dict[str, Any], limits: dict[str, float]) -> None:
    """Print one setting's figures."""
    rate, share, cpu = (result[k] for k in ("edges_per_second", "share_of_sgemm", "share_of_sgemm_by_cpu"))
    print(f"\nbatch {result['batch_size']:,} in {result['chunks']} chunks")
    print(f"  {rate['median']:,.0f} edges/s (from {rate['least']:,.0f} to {rate['most']:,.0f}), "
          f"{result['edges_per_cpu_second']['median']:,.0f} a second of processor")  # fmt: skip
    print(f"  {share['median']:.1%} of SGEMM at {result['sgemm_flop_per_second'] / 1e9:.0f} GFLOP/s "
          f"({share['least']:.1%} to {share['most']:.1%}); by seconds of processor "
          f"{cpu['median']:.1%}")  # fmt: skip
    print(f"  the products alone, in their shape: {limits['products_flop_per_second'] / 1e9:.0f} GFLOP/s")
    total = result["epoch_seconds"]["median"]
    for name, seconds in sorted(result["stage_seconds"].items(), key=lambda item: -item[1]):
        print(f"  {name:28} {seconds:7.3f} s  {seconds / total:6.1%} of an epoch")


def main() -> int:
    """Parse, measure each batch size, print."""
    options = _options().parse_args()
    torch.set_num_threads(options.threads)
    edges = graph_edges(options.graph, None if options.full else options.edges)
    facts = machine()
    print(machine_line(facts))
    print(f"{edges.name}: {edges.num_nodes:,} nodes, {len(edges.train):,} edges; {options.decoder} of "
          f"dim {options.dim}, {options.negatives} negatives a side")  # fmt: skip
    memory = copy_rate()
    print(f"copying within memory: {memory.by_clock / 1e9:.1f} GB/s")
    results = []
    for batch_size in options.batch_size:
        config = settings(
            options.settings,
            model__decoder=options.decoder,
            model__dim=options.dim,
            model__node_dropout=options.node_dropout,
            model__relation_dropout=options.relation_dropout,
            training__regularizer__n3=options.n3,
            negatives__count=options.negatives,
            negatives__chunks=options.chunks,
            negatives__mask_known=str(options.mask).lower(),
            training__batch_size=batch_size,
            storage__partitions=options.partitions,
            storage__capacity=options.capacity or options.partitions,
            pipeline__max_in_flight=options.in_flight,
        )
        shape = batch_size // options.chunks, options.negatives, options.dim
        limits = {"products_flop_per_second": products_rate(*shape).by_clock}
        result = measure(config, edges, options) | limits
        show(result, limits)
        result["peers"] = [_peer(peer, config, edges, options) for peer in options.peer]
        results.append(result)
    report = {
        "graph": edges.name,
        "edges": len(edges.train),
        "copy_bytes_per_second": memory.by_clock,
        "settings": results,
    }
    finish(report, options)
    return 0


def _peer(peer: str, config: TrainConfig, edges: Edges, options: argparse.Namespace) -> dict[str, Any]:
    """Run and show another program on the same job."""
    job = {
        "decoder": options.decoder,
        "dim": config.model.dim,
        "negatives": config.negatives.count,
        "chunks": config.negatives.chunks,
        "batch_size": config.training.batch_size,
        "epochs": 1 + repeats_of(options),
        "threads": options.threads,
    }
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        found = run_peer(peer, job, edges, Path(folder))
    print(f"  {found['name']}: {found['edges_per_second']:,.0f} edges/s")
    return found


def _options() -> argparse.ArgumentParser:
    made = parser(__doc__)
    made.add_argument("--graph", help="prepared graph; default: a generated one of FB15k-237's size")
    made.add_argument("--edges", type=int, default=SMALL_EDGES, help="edges an epoch without --full")
    made.add_argument("--batch-size", type=int, nargs="+", default=[10_000, 1000], help="edges a batch")
    made.add_argument("--chunks", type=int, default=10, help="chunks of a batch")
    made.add_argument("--negatives", type=int, default=1000, help="negatives a chunk and side")
    made.add_argument("--decoder", default="complex")
    made.add_argument("--dim", type=int, default=100, help="floats a node")
    made.add_argument("--node-dropout", type=float, default=0.0)
    made.add_argument("--relation-dropout", type=float, default=0.0)
    made.add_argument("--n3", type=float, default=0.0, help="weight of the penalty; default 0, as with peers")
    made.add_argument("--partitions", type=int, default=8, help="p")
    made.add_argument("--capacity", type=int, help="c; default: all partitions")
    made.add_argument("--in-flight", type=int, help="pipeline.max_in_flight; default: chosen")
    made.add_argument("--no-mask", dest="mask", action="store_false", help="count known edges as negatives")
    made.add_argument(
        "--limit-threads", type=int, help="threads of the SGEMM compared with; default --threads"
    )
    made.add_argument("--limit-seconds", type=float, default=0.5, help="of each measurement of SGEMM")
    made.add_argument(
        "--peer", action="append", default=[], metavar="NAME=COMMAND", help="another program, see README.md"
    )
    made.add_argument("settings", nargs="*", help="further settings of marius-train, key=value")
    return made


if __name__ == "__main__":
    sys.exit(main())
