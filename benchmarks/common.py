"""What the benchmarks share: the machine's limits, graphs, the trainer on them, JSON beside the output.

A limit is measured in the same run as the figure that is compared with it, before and after, and both by the
clock and by the seconds of processor that were used: on a machine that does other work too, shares of a limit
by processor seconds hold where those by the clock do not.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import ctypes
import itertools
import json
import math
import mmap
import os
import platform
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from marius_py.config import TrainConfig, load_config, make_components
from marius_py.generate import planted_edges
from marius_py.graph import open_graph
from marius_py.machine import available_cores
from marius_py.nn.kernels.host import COMPILED_EDGES
from marius_py.partitioning import Partitioning
from marius_py.parts import (
    make_batch_settings,
    make_model,
    make_ordering,
    make_trainer_settings,
    order_of,
)
from marius_py.run_files.results import peak_rss_bytes, versions
from marius_py.storage.aligned import allocate
from marius_py.storage.hdf5_nodes import create_node_store
from marius_py.storage.memory import MemoryEdgeStore
from marius_py.storage.protocols import NodeTable, PartitionStore
from marius_py.training.trainer import Trainer

FB15K_237 = (14_541, 237, 272_115)
"""Nodes, relations and train edges of FB15k-237."""

MEBIBYTE = 1 << 20


# ---------------------------------------------------------------------- limits


@dataclass(frozen=True, slots=True)
class Rate:
    """Work a second: by the clock, and a second of processor time (of all threads together)."""

    by_clock: float
    by_cpu: float

    @classmethod
    def of(cls, work: Callable[[], float], seconds: float) -> Rate:
        """Repeat `work`, which returns how much it did, for about `seconds`; the best repetition."""
        best = cls(0.0, 0.0)
        deadline = time.perf_counter() + seconds
        while best.by_clock == 0 or time.perf_counter() < deadline:
            started, used = time.perf_counter(), time.process_time()
            done = work()
            elapsed, spent = time.perf_counter() - started, time.process_time() - used
            best = cls(max(best.by_clock, done / elapsed), max(best.by_cpu, done / max(spent, 1e-9)))
        return best


def median_rate(rates: Sequence[Rate]) -> Rate:
    """The median of each."""
    return Rate(
        statistics.median(rate.by_clock for rate in rates), statistics.median(rate.by_cpu for rate in rates)
    )


def sgemm_rate(seconds: float = 0.5, size: int = 1024) -> Rate:
    """float32 flop a second of one square matrix product with torch's present number of threads."""
    left, right = torch.randn(size, size), torch.randn(size, size)
    out = torch.empty(size, size)
    torch.mm(left, right, out=out)

    def work() -> float:
        torch.mm(left, right, out=out)
        return 2.0 * size**3

    return Rate.of(work, seconds)


def products_rate(rows: int, count: int, dim: int, seconds: float = 0.3) -> Rate:
    """flop a second of a step's three products: (rows, dim) queries with (count, dim) candidates."""
    query, candidates = torch.randn(rows, dim), torch.randn(count, dim)
    scores = torch.empty(rows, count)
    d_query, d_candidates = torch.empty_like(query), torch.empty_like(candidates)

    def work() -> float:
        torch.mm(query, candidates.t(), out=scores)
        torch.mm(scores, candidates, out=d_query)
        torch.mm(scores.t(), query, out=d_candidates)
        return 6.0 * rows * count * dim

    work()
    return Rate.of(work, seconds)


def copy_rate(seconds: float = 0.3, size: int = 128 * MEBIBYTE) -> Rate:
    """Bytes a second of copying within memory, read and written bytes both counted."""
    source, target = torch.ones(size // 4), torch.empty(size // 4)

    def work() -> float:
        target.copy_(source)
        return 2.0 * size

    return Rate.of(work, seconds)


@dataclass(frozen=True, slots=True)
class DiskRates:
    """Bytes a second of a plain program that writes a file from beginning to end and reads it back.

    Attributes:
        read: into the same few MiB again and again, which stay in the processor's cache.
        read_kept: each piece into a place of its own of as much memory as is kept; a block at least.
    """

    read: float
    read_kept: float
    write: float


def disk_rates(folder: Path, size: int, kept: int = 0, block: int = 8 * MEBIBYTE) -> DiskRates:
    """Write `size` bytes in order, sync, read them from the disk in order; the faster of two ways.

    They are read twice: into one block, and into blocks of `kept` bytes of memory in turn.

    Through the page cache, as `dd` with conv=fsync does, and past it, where the file system allows. Past it
    costs less processor, so that it is the higher limit on a busy machine.
    """
    ways = [_sequential(folder, size, kept, block, 0)]
    with contextlib.suppress(OSError):
        ways.append(_sequential(folder, size, kept, block, os.O_DIRECT))
    return DiskRates(*(max(getattr(way, name) for way in ways) for name in ("read", "read_kept", "write")))


def _sequential(folder: Path, size: int, kept: int, block: int, flags: int) -> DiskRates:
    path = folder / "sequential.tmp"
    data = allocate((block,), np.dtype(np.uint8))
    data[:] = np.random.default_rng(0).integers(0, 256, block, dtype=np.uint8)
    view = memoryview(data)
    count = max(1, size // block)
    try:
        file = os.open(path, os.O_CREAT | os.O_WRONLY | flags, 0o600)
        try:
            started = time.perf_counter()
            for number in range(count):
                data[:8] = np.frombuffer(number.to_bytes(8, "little"), np.uint8)  # nothing repeats
                os.write(file, view)
            os.fsync(file)
            write_s = time.perf_counter() - started
        finally:
            os.close(file)
        read_s = _read_through(path, flags, [view])
        memory = memoryview(allocate((max(kept, block),), np.dtype(np.uint8)))
        places = [memory[start : start + block] for start in range(0, len(memory), block)]
        kept_s = _read_through(path, flags, places)
    finally:
        path.unlink(missing_ok=True)
    return DiskRates(*(count * block / seconds for seconds in (read_s, kept_s, write_s)))


def _read_through(path: Path, flags: int, places: Sequence[memoryview]) -> float:
    """Seconds to read a file in order from the disk into places of memory in turn."""
    file = os.open(path, os.O_RDONLY | flags)
    try:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        started = time.perf_counter()
        for place in itertools.cycle(places):
            if not os.readv(file, [place]):
                break
        return time.perf_counter() - started
    finally:
        os.close(file)


def cached_bytes(path: Path) -> int:
    """Bytes of a file that the page cache holds."""
    size = path.stat().st_size
    page = mmap.PAGESIZE
    resident = np.zeros(-(-size // page), np.uint8)
    libc = ctypes.CDLL(None, use_errno=True)
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) as view:
        address = np.frombuffer(view, np.uint8)
        place = ctypes.c_void_p(address.ctypes.data)
        code = libc.mincore(place, ctypes.c_size_t(size), resident.ctypes.data_as(ctypes.c_void_p))
        del address
    if code:
        raise OSError(ctypes.get_errno(), f"mincore of {path} failed")
    return int((resident & 1).sum()) * page


# ---------------------------------------------------------------------- graphs and training


@dataclass(frozen=True, slots=True)
class Edges:
    """A graph's train edges in memory."""

    name: str
    num_nodes: int
    num_relations: int
    train: np.ndarray

    @property
    def num_edges(self) -> dict[str, int]:
        """As of a graph large enough for compiled loops: a sample is timed as the whole would be."""
        return {"train": max(len(self.train), COMPILED_EDGES)}


def graph_edges(path: str | None, limit: int | None = None) -> Edges:
    """Train edges of a prepared graph; without one, of a generated graph of FB15k-237's size.

    Args:
        path: folder of the prepared graph.
        limit: take so many edges only.
    """
    if path is None:
        nodes, relations, edges = FB15K_237
        count = min(edges, limit or edges)
        return Edges("generated, FB15k-237's size", nodes, relations, planted_edges(nodes, relations, count))
    graph = open_graph(path)
    with graph.edges() as store:
        count = min(store.num_edges("train"), limit or store.num_edges("train"))
        return Edges(path, graph.num_nodes, graph.num_relations, store.read_range("train", 0, count))


@dataclass(frozen=True, slots=True)
class Epoch:
    """An epoch that was trained.

    Attributes:
        line: of metrics.jsonl. cpu_s: seconds of processor, of all threads.
        stages: seconds in each stage of the pipeline and in each wait.
    """

    line: Mapping[str, Any]
    cpu_s: float
    stages: Mapping[str, float]

    @property
    def edges_per_second(self) -> float:
        """By the clock."""
        return float(self.line["edges_per_second"])

    @property
    def edges_per_cpu_second(self) -> float:
        """By the seconds of processor."""
        return float(self.line["edges"] / max(self.cpu_s, 1e-9))


def train_epochs(
    config: TrainConfig,
    edges: Edges,
    folder: Path,
    *,
    epochs: int,
    between: Callable[[], None] = lambda: None,
    wrap: Callable[[PartitionStore], PartitionStore] = lambda store: store,
    device_buffer: bool = False,
) -> list[Epoch]:
    """Train as `marius-train` does, without validation and test, with the edges in memory.

    Args:
        config: `storage.capacity` = `storage.partitions` keeps everything in memory.
        edges: the graph.
        folder: where the run's node file is made.
        epochs: how many; the first one warms up, and the caller leaves it out as a rule.
        between: called after every epoch.
        wrap: puts another store in front of the one on disk.
        device_buffer: keep the buffer on the device that computes.
    """
    threads = config.pipeline.compute_threads or torch.get_num_threads()
    config = replace(config, pipeline=replace(config.pipeline, compute_threads=threads))
    components = make_components(config)
    p = config.storage.partitions or 8
    capacity = config.storage.capacity or p
    model = make_model(config, components, edges, torch.device(config.device))  # type: ignore[arg-type]
    partitioning = Partitioning(edges.num_nodes, p)
    table = NodeTable(partitioning, model.dim, model.node_state_dim)
    store = MemoryEdgeStore(partitioning, edges.train)
    degrees = np.bincount(edges.train[:, ::2].ravel(), minlength=edges.num_nodes)
    found: list[Epoch] = []
    marks: dict[str, Any] = {}

    def mark() -> None:
        marks.update(cpu=time.process_time(), stages=dict(trainer.stage_seconds))

    def on_epoch(line: dict[str, Any]) -> None:
        before = marks["stages"]
        stages = {name: s - before.get(name, 0.0) for name, s in trainer.stage_seconds.items()}
        found.append(Epoch(line, time.process_time() - marks["cpu"], stages))
        between()
        mark()

    with create_node_store(folder, table, spare_slots=p) as nodes:
        trainer = Trainer(
            model,
            wrap(nodes),
            store,
            make_ordering(
                config,
                table,
                capacity,
                store.bucket_counts(),
                order_of(config, table, capacity, store.num_edges("train")),
            ),
            components.sampler,
            make_batch_settings(config, model.compiled),
            replace(
                make_trainer_settings(config, table, capacity, store.num_edges("train")),
                trace=folder.parent / "trace.json" if config.pipeline.trace else None,
                device_buffer=device_buffer,
            ),
            device=torch.device(config.device),
            degrees=(lambda start, stop: degrees[start:stop]) if components.sampler.needs_degrees else None,
            on_epoch=on_epoch,
        )
        mark()
        trainer.train(epochs)
    return found


def settings(words: Sequence[str], **given: Any) -> TrainConfig:
    """A configuration on the CPU from `marius-train`'s words; `given` has __ for the dots of a key."""
    own = [f"{key.replace('__', '.')}={value}" for key, value in given.items() if value is not None]
    return load_config(["graph=none", "device=cpu", "training.valid_every=0", *own, *words])


@dataclass(frozen=True, slots=True)
class Ended:
    """A command that has run to its end: most resident bytes, seconds by the clock and of processor."""

    peak_rss_bytes: int
    seconds: float
    cpu_s: float


MEASURE = """
import os, subprocess, sys, time
started = time.perf_counter()
process = subprocess.Popen(sys.argv[2:])
_, status, usage = os.wait4(process.pid, 0)
process.returncode = os.waitstatus_to_exitcode(status)
seconds, cpu_s = time.perf_counter() - started, usage.ru_utime + usage.ru_stime
found = process.returncode, usage.ru_maxrss * 1024, seconds, cpu_s
os.write(int(sys.argv[1]), repr(found).encode())
"""
"""Runs a program from a small process: Linux counts the memory of who begins a program as the program's."""


def run_command(words: Sequence[str]) -> Ended:
    """Run a program; its output goes where this one's goes.

    Raises:
        SystemExit: it failed.
    """
    reading, writing = os.pipe()
    with open(reading, encoding="ascii") as told:
        try:
            subprocess.run(
                [sys.executable, "-c", MEASURE, str(writing), *words], pass_fds=[writing], check=True
            )
        finally:
            os.close(writing)
        code, peak, seconds, cpu_s = ast.literal_eval(told.read())
    if code:
        raise SystemExit(f"failed with exit code {code}: {' '.join(words)}")
    return Ended(peak, seconds, cpu_s)


PREPARE_RMAT = """
import sys
from marius_py.generate import rmat_edges
from marius_py.prepare import prepare_arrays
nodes, edges, relations, partitions, test, folder = sys.argv[1:]
prepare_arrays(rmat_edges(int(nodes), int(edges), int(relations), seed=0), folder,
               test=rmat_edges(int(nodes), int(test), int(relations), seed=1),
               num_nodes=int(nodes), num_relations=int(relations), partitions=int(partitions))
"""


def prepare_rmat(
    folder: Path | str, num_nodes: int, num_edges: int, *, relations: int, partitions: int, test: int
) -> Ended:
    """Prepare an R-MAT graph, made block by block, in a process of its own."""
    sizes = [num_nodes, num_edges, relations, partitions, test]
    return run_command([sys.executable, "-c", PREPARE_RMAT, *map(str, sizes), str(folder)])


def marius(command: str, *words: str) -> Ended:
    """Run `marius-COMMAND` in a process of its own."""
    return run_command([sys.executable, "-m", "marius_py", command, *words])


# ---------------------------------------------------------------------- peers


def run_peer(peer: str, job: Mapping[str, Any], edges: Edges, folder: Path) -> dict[str, Any]:
    """What another program makes of the same job; README.md says what the program has to do.

    Args:
        peer: NAME=COMMAND.
        job: settings.
        edges: written into `folder` as edges.npy.

    Raises:
        SystemExit: it failed, or its last line is no JSON object with edges_per_second.
    """
    name, _, command = peer.partition("=")
    np.save(folder / "edges.npy", edges.train)
    facts = {"num_nodes": edges.num_nodes, "num_relations": edges.num_relations, "edges": "edges.npy"}
    (folder / "job.json").write_text(json.dumps({**facts, **job}))
    words = [*shlex.split(command), str(folder / "job.json")]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False)
    lines = done.stdout.strip().splitlines()
    try:
        found = json.loads(lines[-1]) if lines and done.returncode == 0 else {}
    except ValueError:
        found = {}
    if not isinstance(found, dict) or "edges_per_second" not in found:
        raise SystemExit(f"peer {name}: exit code {done.returncode}; its last line must be JSON with "
                         f"edges_per_second")  # fmt: skip
    return {"name": name, **found}


# ---------------------------------------------------------------------- output


def parser(doc: str | None) -> argparse.ArgumentParser:
    """A parser with the options of every benchmark."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawTextHelpFormatter)
    made.add_argument("--full", action="store_true", help="the sizes of RESULTS.md; default: small ones")
    made.add_argument("--repeats", type=int, help="measurements a figure; default 3, with --full 5")
    made.add_argument("--threads", type=int, default=available_cores(), help="threads of the numeric kernels")
    made.add_argument("--folder", type=Path, help="parent of the temporary folder; default: the system's")
    made.add_argument("--json", type=Path, help="write the figures here")
    return made


def repeats_of(options: argparse.Namespace) -> int:
    """--repeats, or its default."""
    return options.repeats or (5 if options.full else 3)


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, least and most of some measurements."""
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def slope(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """Exponent of the power law that fits best: the slope of log cost against log size."""
    x = np.log(np.asarray(sizes, dtype=np.float64))
    y = np.log(np.asarray(costs, dtype=np.float64))
    x -= x.mean()
    return float((x * (y - y.mean())).sum() / (x * x).sum()) if len(x) > 1 else math.nan


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        "processor": _processor(),
        "cores": available_cores(),
        "threads": torch.get_num_threads(),
        "load": os.getloadavg()[0],
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": platform.platform(),
        "commit": _commit(),
        **versions(),
    }


def machine_line(facts: Mapping[str, Any]) -> str:
    """One line of it."""
    return (
        f"{facts['processor']}, {facts['cores']} cores, {facts['threads']} threads, "
        f"load {facts['load']:.1f}; commit {facts['commit']}, torch {facts['torch']}"
    )


def finish(report: Mapping[str, Any], options: argparse.Namespace) -> None:
    """Write the report where --json says, with the machine, the arguments and the peak of memory."""
    if options.json is not None:
        facts = {
            "machine": machine(),
            "arguments": {name: _plain(value) for name, value in vars(options).items()},
            "peak_rss_bytes": peak_rss_bytes(),
        }
        options.json.write_text(json.dumps({**facts, **report}, indent=2) + "\n")


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "?")


def _commit() -> str:
    here = Path(__file__).resolve().parent
    words = ["git", "-C", str(here), "describe", "--always", "--dirty", "--exclude", "*"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.strip()
