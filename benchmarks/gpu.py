"""Edges a second on a CUDA device, beside the roofline that its own limits, measured in the same run, allow.

    python benchmarks/gpu.py --full --json FILE                # the figures of RESULTS.md, on one GPU
    python benchmarks/gpu.py --tune                             # the contrast kernel by shape of block
    python benchmarks/gpu.py --device cpu --edges 2000 --batch-size 500 --negatives 20   # does it run?

ComplEx of dim 100, 1000 negatives on each side in 10 chunks, by default on uniformly random edges,
everything in the buffer, which is on the device and then in RAM. Three parts: limits (copying, matrix
products, the bus), kernels alone in the shape of a batch, the whole trainer. Settings of marius-train may
follow.

The roofline of an edge is the longer of two times, and with the buffer in RAM of three: its products (2
sides · 4 products · 2 · negatives · dim flop, the scores being made twice) at the rate of a large product
of the same precision; its bytes in the device's memory at the rate of a large copy; its bytes over the bus.
Bytes are the fewest: a distinct row of a batch is read, its gradient written and read, row and optimizer
state read and written (7 · dim floats); an edge's three rows are read and their gradients written (6 · dim
floats). Each distinct row goes over the bus, and its gradient comes back (dim floats each way). Products in
float32 may be three in TensorFloat-32, which come close to it, where those are faster.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import (
    Edges,
    finish,
    graph_edges,
    machine,
    machine_line,
    parser,
    repeats_of,
    settings,
    spread,
    train_epochs,
)

from marius_py.nn.cuda_kernels import TorchKernels, TritonKernels

SMALL_EDGES, FULL_EDGES = 2_000_000, 50_000_000
NODES, RELATIONS = 1_000_000, 237
PRECISIONS = {"float32": torch.float32, "tf32": torch.float32, "bfloat16": torch.bfloat16}


def seconds_of(
    work: Callable[[], Any], device: torch.device, repeats: int = 20, *, replayed: bool = False
) -> float:
    """Median seconds of `work`, by the device's clock where it has one.

    Args:
        work: what is timed. device: where it is done. repeats: how often.
        replayed: from a recording, as the trainer does kernels: launched from Python, these wait for the
            host. Not for copies, which are slower from a recording.
    """
    for _ in range(3):
        work()
    if replayed and device.type == "cuda":
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        work = graph.replay
        work()
    found = []
    for _ in range(repeats):
        if device.type == "cuda":
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            work()
            end.record()
            end.synchronize()
            found.append(start.elapsed_time(end) / 1e3)
        else:
            started = time.perf_counter()
            work()
            found.append(time.perf_counter() - started)
    return statistics.median(found)


def limits_of(device: torch.device, size: int) -> dict[str, float]:
    """Bytes a second of copies, flop a second of products of `size` squared, on random numbers."""
    source = torch.rand(64 * size * size // 4, device=device)
    target = torch.empty_like(source)
    found = {"copy": 2 * source.nbytes / seconds_of(lambda: target.copy_(source), device)}
    for name, dtype in PRECISIONS.items():
        torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
        left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
        out = torch.empty_like(left)
        found[name] = 2 * size**3 / seconds_of(lambda: torch.mm(left, right, out=out), device)  # noqa: B023
    torch.set_float32_matmul_precision("highest")
    if device.type == "cuda":
        host = torch.rand(source.shape).pin_memory()
        inward = seconds_of(lambda: target.copy_(host, non_blocking=True), device)
        outward = seconds_of(lambda: host.copy_(target, non_blocking=True), device)
        found |= {"to device": host.nbytes / inward, "to host": host.nbytes / outward}
    return found


def products_rate(limits: Mapping[str, float], precision: str) -> float:
    """Flop a second that products of a precision can reach."""
    return max(limits["float32"], limits["tf32"] / 3) if precision == "float32" else limits[precision]


def contrast_figures(options: argparse.Namespace, limits: Mapping[str, float]) -> list[dict[str, Any]]:
    """The contrast kernels alone: one side of a batch."""
    device, dim, count = torch.device(options.device), options.dim, options.negatives
    chunks, edges = options.chunks, options.batch_size // options.chunks
    given = (
        torch.randn(chunks, edges, dim, device=device) * 0.1,
        torch.randn(chunks, count, dim, device=device) * 0.1,
        torch.randn(chunks, edges, device=device),
    )
    how = {"dropped": None, "group": None, "weight": None, "softmax": True, "shift": 0.0, "scale": 1e-4}
    product = 2 * chunks * edges * count * dim
    found = []

    def measure(name: str, precision: str, work: Callable[[], Any], products: int = 4) -> None:
        seconds, flop = seconds_of(work, device, replayed=True), products * product
        share = flop / seconds / products_rate(limits, precision)
        found.append({"kernel": name, "precision": precision, "seconds": seconds, "share": share})
        print(f"  {name:34} {precision:9} {seconds * 1e3:8.3f} ms  {flop / seconds / 1e12:7.1f} TFLOP/s, "
              f"{share:.0%} of the products' limit")  # fmt: skip

    measure("PyTorch", "float32", lambda: TorchKernels.contrast(*given, **how), products=3)  # scores once
    if device.type != "cuda":
        return found
    for precision in PRECISIONS:
        kernels = TritonKernels(precision)  # type: ignore[arg-type]
        measure("Triton", precision, lambda: kernels.contrast(*given, **how))  # noqa: B023
    if options.tune:
        _tune(given, how, measure)
    return found


def _tune(given: Any, how: Mapping[str, Any], measure: Callable[..., None]) -> None:
    """Every block shape that fits the device, the same for both kernels."""
    from marius_py.nn.kernels.triton_blocks import Block, Blocks, TooLargeError
    from marius_py.nn.kernels.triton_contrast import contrast

    shapes = [
        Block(own, other, own // 16, stages)
        for own in (64, 128)
        for other in (32, 64, 128)
        for stages in (1, 2, 3)
    ]
    for name, precision in (("tf32", "tf32"), ("bfloat16", "bf16"), ("float32", "tf32x3")):
        for block in shapes:
            title = f"{block.own}·{block.other} {block.warps}w {block.stages}s"
            try:
                measure(
                    title,
                    name,
                    lambda: contrast(*given, **how, precision=precision, blocks=Blocks(block, block)),  # noqa: B023
                )
            except TooLargeError:
                print(f"  {title:34} {name:9} does not fit")


def adagrad_figures(options: argparse.Namespace, limits: Mapping[str, float]) -> list[dict[str, Any]]:
    """Adagrad alone: the distinct rows of a batch."""
    device, dim = torch.device(options.device), options.dim
    count = 2 * options.batch_size + 2 * options.chunks * options.negatives
    rows, state = (torch.rand(10 * count, dim, device=device) for _ in range(2))
    gradients = torch.randn(count, dim, device=device)
    index = torch.randperm(10 * count, device=device)[:count]
    how: dict[str, Any] = {"count": None, "lr": 1e-3, "eps": 1e-10, "rate": 1.0}
    moved = 5 * gradients.nbytes
    found = []
    kernels = [TorchKernels(), TritonKernels()] if device.type == "cuda" else [TorchKernels()]
    for one in kernels:
        step = partial(one.adagrad, rows, state, index, gradients, **how)
        seconds = seconds_of(step, device, replayed=True)
        share = moved / seconds / limits["copy"]
        found.append({"kernel": one.name, "seconds": seconds, "share": share})
        print(f"  Adagrad, {one.name:25} {seconds * 1e3:8.3f} ms  {moved / seconds / 1e9:7.0f} GB/s, "
              f"{share:.0%} of copying")  # fmt: skip
    return found


def roofline(
    options: argparse.Namespace, limits: Mapping[str, float], edges: Edges, *, in_ram: bool
) -> dict[str, float]:
    """Seconds of an edge by each limit, and the edges a second that the longest allows."""
    dim, batch = options.dim, options.batch_size
    drawn = 2 * batch + 2 * options.chunks * options.negatives
    # Of n uniform draws from N nodes, N (1 − (1 − 1/N)ⁿ) are distinct.
    distinct = edges.num_nodes * (1 - (1 - 1 / edges.num_nodes) ** drawn) / batch
    seconds = {
        "products": 16 * options.negatives * dim / products_rate(limits, options.precision),
        "memory": 4 * dim * (7 * distinct + 6) / limits["copy"],
    }
    if in_ram and "to device" in limits:
        seconds["bus"] = 4 * dim * distinct * max(1 / limits["to device"], 1 / limits["to host"])
    return {**seconds, "edges_per_second": 1 / max(seconds.values())}


def train_figures(
    options: argparse.Namespace, limits: Mapping[str, float], edges: Edges, *, in_ram: bool
) -> dict[str, Any]:
    """The whole trainer."""
    on_cuda = options.device == "cuda"
    config = settings(
        options.settings,
        device=options.device if on_cuda else None,
        model__decoder="complex",
        model__dim=options.dim,
        model__node_dropout=options.dropout,
        model__relation_dropout=options.dropout,
        training__regularizer__n3=options.n3,
        negatives__count=options.negatives,
        negatives__chunks=options.chunks,
        negatives__mask_known=str(options.mask).lower(),
        training__batch_size=options.batch_size,
        storage__partitions=options.partitions,
        storage__capacity=options.capacity or options.partitions,
        pipeline__max_in_flight=options.in_flight,
        pipeline__precision=options.precision,
    )
    if on_cuda:
        gc.collect()  # what a trainer before this one held, which its callbacks refer back to
        torch.cuda.reset_peak_memory_stats()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        epochs = train_epochs(
            config, edges, Path(folder) / "nodes", epochs=1 + repeats_of(options), device_buffer=not in_ram
        )[1:]
    allowed = roofline(options, limits, edges, in_ram=in_ram)
    rates = spread([epoch.edges_per_second for epoch in epochs])
    share = rates["median"] / allowed["edges_per_second"]
    where = "RAM" if in_ram else "the device's memory"
    print(f"\nbuffer in {where}: {rates['median']:,.0f} edges/s (from {rates['least']:,.0f} to "
          f"{rates['most']:,.0f}),\n  {share:.0%} of the roofline at "
          f"{allowed['edges_per_second']:,.0f}")  # fmt: skip
    names = sorted({name for epoch in epochs for name in epoch.stages})
    stages = {name: statistics.median(epoch.stages.get(name, 0.0) for epoch in epochs) for name in names}
    total = statistics.median(float(epoch.line["seconds"]) for epoch in epochs)
    for name, seconds in sorted(stages.items(), key=lambda item: -item[1]):
        print(f"  {name:28} {seconds:7.3f} s  {seconds / total:6.1%} of an epoch")
    peak = torch.cuda.max_memory_allocated() if on_cuda else 0
    return {
        "buffer": "ram" if in_ram else "device",
        "edges_per_second": rates,
        "roofline": allowed,
        "share_of_roofline": share,
        "stage_seconds": stages,
        "peak_device_bytes": peak,
    }


def _edges(options: argparse.Namespace) -> Edges:
    """Of --graph, or drawn at random: a planted graph takes longer to make than to train on."""
    if options.graph is not None:
        return graph_edges(options.graph, None if options.full else options.edges)
    count = FULL_EDGES if options.full else options.edges
    rng = np.random.default_rng(0)
    columns = [rng.integers(0, top, count, dtype=np.int32) for top in (NODES, RELATIONS, NODES)]
    return Edges("uniformly random", NODES, RELATIONS, np.stack(columns, axis=1))


def main() -> int:
    """Limits, kernels, trainer."""
    options = _options().parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        print("no CUDA device; --device cpu shows whether the benchmark runs at all", file=sys.stderr)
        return 2
    torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    facts = {"device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu"}
    print(f"{facts['device']}; {machine_line(machine())}")
    limits = limits_of(device, 8192 if device.type == "cuda" else 256)
    for name, rate in limits.items():
        unit = "TFLOP/s" if name in PRECISIONS else "TB/s"
        print(f"  {name:12} {rate / 1e12:8.3f} {unit}")
    print(f"\none side of {options.batch_size:,} edges in {options.chunks} chunks, "
          f"{options.negatives} negatives")  # fmt: skip
    kernels = contrast_figures(options, limits) + adagrad_figures(options, limits)
    edges = _edges(options)
    print(f"\n{edges.name}: {edges.num_nodes:,} nodes, {len(edges.train):,} edges")
    trained = [train_figures(options, limits, edges, in_ram=in_ram) for in_ram in (False, True)]
    finish({**facts, "limits": limits, "kernels": kernels, "graph": edges.name, "training": trained}, options)
    return 0


def _options() -> argparse.ArgumentParser:
    made = parser(__doc__)
    made.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    made.add_argument("--precision", choices=list(PRECISIONS), default="tf32", help="pipeline.precision")
    made.add_argument("--tune", action="store_true", help="time the contrast kernel by block shape")
    made.add_argument("--graph", help="prepared graph; default: random edges")
    made.add_argument("--edges", type=int, default=SMALL_EDGES, help="edges an epoch without --full")
    made.add_argument("--batch-size", type=int, default=50_000, help="edges a batch")
    made.add_argument("--chunks", type=int, default=10, help="chunks of a batch")
    made.add_argument("--negatives", type=int, default=1000, help="negatives a chunk and side")
    made.add_argument("--dim", type=int, default=100, help="floats a node")
    made.add_argument("--dropout", type=float, default=0.0, help="of node and relation rows")
    made.add_argument("--n3", type=float, default=0.0, help="weight of the penalty; default 0, as with peers")
    made.add_argument("--partitions", type=int, default=8, help="p")
    made.add_argument("--capacity", type=int, help="c; default: all partitions")
    made.add_argument("--in-flight", type=int, default=4, help="pipeline.max_in_flight")
    made.add_argument("--mask", action="store_true", help="leave known edges out of the negatives")
    made.add_argument("settings", nargs="*", help="further settings of marius-train, key=value")
    return made


if __name__ == "__main__":
    sys.exit(main())
