"""What the disk costs: the same work in memory, on disk and on a slowed disk; and how fast the disk is used.

    python benchmarks/pipeline.py                    # 40,000 nodes, 100,000 edges, 3 epochs each
    python benchmarks/pipeline.py --full --json FILE
    python benchmarks/pipeline.py --share 1.2        # a slowed disk whose I/O takes 120 % of the compute

Trains the same edges with all partitions in memory, with c of p on disk, and with c of p on a store slowed
so that reading one partition and writing one takes `--share` of the compute of a swap; in turn, `--repeats`
times, a second epoch each. Overlap efficiency is max(compute, I/O) / measured, where compute is the epoch in
memory and I/O is what the slowed store waits for. Then the node store and a plain sequential program write
and read the same number of bytes on the same file system, in turn; the program reads into one block again and
again, and into as much memory as a partition takes. The page cache is asked for what it holds of the store's
file.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import (
    MEBIBYTE,
    Edges,
    Epoch,
    cached_bytes,
    disk_rates,
    finish,
    machine,
    machine_line,
    parser,
    repeats_of,
    settings,
    spread,
    train_epochs,
)

from marius_py.config import TrainConfig
from marius_py.generate import planted_edges
from marius_py.partitioning import Partitioning
from marius_py.storage.aligned import allocate
from marius_py.storage.hdf5_nodes import create_node_store
from marius_py.storage.protocols import Checkpoint, NodeTable, PartitionStore
from marius_py.testing import SlowStore

SIZES = {False: (40_000, 100_000), True: (400_000, 2_000_000)}
RELATIONS = 20
ENDLESS = 1e15


def one_epoch(config: TrainConfig, edges: Edges, parent: Path | None, latency_s: float = 0.0) -> Epoch:
    """The second of three epochs: it begins with what the first has read ahead, and reads for the third."""

    def wrap(store: PartitionStore) -> PartitionStore:
        return SlowStore(store, ENDLESS, latency_s=latency_s) if latency_s else store

    with tempfile.TemporaryDirectory(dir=parent) as folder:
        return train_epochs(config, edges, Path(folder) / "nodes", epochs=3, wrap=wrap)[1]


def compare(options: argparse.Namespace, edges: Edges) -> dict[str, Any]:
    """Epochs of the three kinds in turn."""

    def config(capacity: int) -> TrainConfig:
        return settings(
            options.settings,
            model__dim=options.dim,
            negatives__count=options.negatives,
            negatives__chunks=10,
            training__batch_size=options.batch_size,
            storage__partitions=options.partitions,
            storage__capacity=capacity,
        )

    whole, part = config(options.partitions), config(options.capacity)
    free = one_epoch(part, edges, options.folder)
    swaps = int(free.line["loads"])
    latency_s = options.share * float(free.line["seconds"]) / max(swaps, 1) / 2
    found: dict[str, list[Epoch]] = {"in memory": [], "on disk": [], "slowed": []}
    for _ in range(repeats_of(options)):
        found["in memory"].append(one_epoch(whole, edges, options.folder))
        found["on disk"].append(one_epoch(part, edges, options.folder))
        found["slowed"].append(one_epoch(part, edges, options.folder, latency_s))
    seconds = {name: [float(epoch.line["seconds"]) for epoch in epochs] for name, epochs in found.items()}
    compute_s = statistics.median(seconds["in memory"])
    # An epoch's end writes the residents: nothing is computed beside it, slowed or not.
    slow_s = 2 * latency_s * swaps
    flush_s = latency_s * options.capacity
    limit_s = max(compute_s, slow_s) + flush_s
    return {
        "swaps": swaps,
        "io_per_swap_s": 2 * latency_s,
        "compute_s": compute_s,
        "seconds": {name: spread(values) for name, values in seconds.items()},
        "cpu_s": {name: spread([epoch.cpu_s for epoch in epochs]) for name, epochs in found.items()},
        "wait_share": {
            name: statistics.median(e.line["wait_disk_s"] / e.line["seconds"] for e in epochs)
            for name, epochs in found.items()
        },
        "on_disk_to_in_memory": statistics.median(
            one / other for one, other in zip(seconds["in memory"], seconds["on disk"], strict=True)
        ),
        "overlap_efficiency": limit_s / statistics.median(seconds["slowed"]),
    }


def disk(options: argparse.Namespace, size: int) -> dict[str, Any]:
    """Rates of the node store beside those of a plain program, in turn, and what stays in the page cache."""
    dim, rows = 64, size // 8 // (4 * 64) // 1024 * 1024
    table = NodeTable(Partitioning(8 * rows, 8), dim, 0)
    block, none = allocate((table.slot_rows, dim)), np.empty((table.slot_rows, 0), np.float32)
    block[:] = np.random.default_rng(0).random(block.shape, dtype=np.float32)
    names = "read", "write", "plain_read", "plain_read_kept", "plain_write"
    rates: dict[str, list[float]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        with create_node_store(Path(folder) / "nodes", table, spare_slots=8) as store:
            for _ in range(1 + repeats_of(options)):
                plain = disk_rates(Path(folder), 8 * table.slot_bytes, kept=table.slot_bytes)
                started = time.perf_counter()
                for part in range(8):
                    store.write(part, block, none)
                store.commit(Checkpoint())
                rates["write"].append(8 * table.slot_bytes / (time.perf_counter() - started))
                started = time.perf_counter()
                for part in range(8):
                    store.read_into(part, block, none)
                rates["read"].append(8 * table.slot_bytes / (time.perf_counter() - started))
                rates["plain_read"].append(plain.read)
                rates["plain_read_kept"].append(plain.read_kept)
                rates["plain_write"].append(plain.write)
        file = max((Path(folder) / "nodes").iterdir(), key=lambda path: path.stat().st_size)
        cached, file_bytes = cached_bytes(file), file.stat().st_size
    kept = {name: values[1:] for name, values in rates.items()}  # the first round also grows the files
    return {
        "bytes": 8 * table.slot_bytes,
        "rates": {name: spread(values) for name, values in kept.items()},
        "read_share": statistics.median(kept["read"]) / statistics.median(kept["plain_read"]),
        "read_kept_share": statistics.median(kept["read"]) / statistics.median(kept["plain_read_kept"]),
        "write_share": statistics.median(kept["write"]) / statistics.median(kept["plain_write"]),
        "cached_share": cached / file_bytes,
    }


def show(result: dict[str, Any], share: float) -> None:
    """Print both comparisons."""
    for name, seconds in result["seconds"].items():
        print(f"{name:10} epoch {seconds['median']:7.2f} s "
              f"({seconds['least']:.2f} to {seconds['most']:.2f}), "
              f"waiting on disk {result['wait_share'][name]:5.1%}, "
              f"processor {result['cpu_s'][name]['median']:.2f} s")  # fmt: skip
    print(f"on disk at {result['on_disk_to_in_memory']:.1%} of the rate in memory; {result['swaps']} swaps")
    print(f"slowed so that I/O takes {share:.0%} of compute ({result['io_per_swap_s'] * 1e3:.1f} ms a swap): "
          f"overlap efficiency {result['overlap_efficiency']:.1%}")  # fmt: skip
    found = result["disk"]
    for what in ("read", "write"):
        own, plain = found["rates"][what]["median"], found["rates"][f"plain_{what}"]["median"]
        print(f"{what:5} {own / 1e6:7.0f} MB/s, a plain sequential program {plain / 1e6:7.0f} MB/s: "
              f"{found[f'{what}_share']:.0%}")  # fmt: skip
    plain = found["rates"]["plain_read_kept"]["median"]
    print(f"      one that keeps what it reads {plain / 1e6:7.0f} MB/s: {found['read_kept_share']:.0%}")
    print(f"page cache holds {found['cached_share']:.1%} of the store's file")


def main() -> int:
    """Parse, measure, print."""
    options = _options().parse_args()
    torch.set_num_threads(options.threads)
    nodes, count = SIZES[options.full]
    nodes, count = options.nodes or nodes, options.edges or count
    edges = Edges("planted", nodes, RELATIONS, planted_edges(nodes, RELATIONS, count))
    print(machine_line(machine()))
    print(f"{nodes:,} nodes, {count:,} edges, dim {options.dim}, p = {options.partitions}, "
          f"c = {options.capacity}")  # fmt: skip
    result = compare(options, edges)
    size = options.disk_mib or (1024 if options.full else 128)
    result["disk"] = disk(options, size * MEBIBYTE)
    show(result, options.share)
    finish(result, options)
    return 0


def _options() -> argparse.ArgumentParser:
    made = parser(__doc__)
    made.add_argument("--nodes", type=int, help="N")
    made.add_argument("--edges", type=int, help="E")
    made.add_argument("--dim", type=int, default=100, help="floats a node")
    made.add_argument("--negatives", type=int, default=500, help="negatives a chunk and side")
    made.add_argument("--batch-size", type=int, default=5000, help="edges a batch")
    made.add_argument("--partitions", type=int, default=8, help="p")
    made.add_argument("--capacity", type=int, default=4, help="c")
    made.add_argument("--share", type=float, default=0.8, help="I/O of a swap / compute of a swap, slowed")
    made.add_argument("--disk-mib", type=int, help="MiB of the disk's measurement; default 128, --full 1024")
    made.add_argument("settings", nargs="*", help="further settings of marius-train, key=value")
    return made


if __name__ == "__main__":
    sys.exit(main())
