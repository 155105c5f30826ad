"""What a plan measures of the training itself (floor 5): settings and a graph's sample in, rates out.

Each measurement runs the pipeline of the run, on edges of its graph, for about a second.
"""

from __future__ import annotations

import statistics
import time
import weakref
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from marius_py.config import TrainConfig, make_components
from marius_py.data.rounds import FEWEST, EpochOrder
from marius_py.errors import InterruptedRunError
from marius_py.graph import Graph
from marius_py.nn.known_edges import KnownEdges
from marius_py.ordering import build_schedule
from marius_py.partitioning import Partitioning
from marius_py.parts import make_batch_settings, make_model, make_ordering, make_trainer_settings
from marius_py.planning.disk import PROBES
from marius_py.planning.plan import Machine, Plan, index_seconds
from marius_py.storage.memory import MemoryEdgeStore, MemoryPartitionStore
from marius_py.storage.protocols import Float32, NodeTable
from marius_py.training.trainer import Trainer
from marius_py.types import SIDES

_ROW_BYTES = 256 << 20
"""Rows of a sample: enough that they do not fit in a processor's cache."""
_ROW_COPIES = 3
"""Times that a sample's rows are held: in the buffer, and in the store as committed and as written anew."""
_PROBE_S = 1.0
_MOST_S = 4.0
"""Seconds of epochs after which no further one is measured, where a single batch takes that long."""
_INDEXED = 500_000
"""Edges that are indexed to see how long that takes: a tenth of a second."""
_NOT_DRAWN = 16
"""Nodes for each that a step is taken to draw, at least."""
_MOST_PARTITIONS = 16
"""Partitions that are swapped at most to see what a swap costs: more of them have hundreds of loads."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Edges of a graph that were trained on with everything in memory, and how long an epoch took.

    Attributes:
        num_nodes: that the edges' ends were folded into.
        num_edges: from the middle of the file.
        seconds: an epoch.
    """

    num_nodes: int
    num_edges: int
    seconds: float

    @property
    def rate(self) -> float:
        """Edges a second."""
        return self.num_edges / self.seconds


class _StillStore(MemoryPartitionStore):
    """A store that, once `is_still`, moves nothing: a partition that is read finds the rows of another.

    Copying within memory would be counted beside the disk's time, which takes its place in a run.
    """

    is_still = False

    def read_into(self, part: int, embeddings: Float32, state: Float32) -> int:
        """Leave the arrays as they are."""
        return 0 if self.is_still else super().read_into(part, embeddings, state)

    def write(self, part: int, embeddings: Float32, state: Float32) -> int:
        """Keep the version there is."""
        return 0 if self.is_still else super().write(part, embeddings, state)


def measure_training(
    config: TrainConfig, graph: Graph, device: torch.device, row_bytes: int, memory_bytes: int
) -> Sample:
    """The run's own pipeline on a sample of its edges, with everything in memory.

    The sample's nodes are folded into as many rows of `row_bytes`, an embedding with its state, as make
    256 MiB, so that access to memory is as random as in the run; or fewer, that all copies of them take
    `memory_bytes` at most.
    """
    num_nodes = max(2, min(graph.num_nodes, min(_ROW_BYTES, memory_bytes // _ROW_COPIES) // row_bytes))
    batch = config.training.batch_size
    available = graph.num_edges["train"]
    count = min(available, batch)
    while True:
        seconds, _ = _epoch(config, graph, device, num_nodes, count, 2, 2, EpochOrder(FEWEST, 1))
        if seconds >= _PROBE_S / 2 or count == available:
            return Sample(num_nodes, count, seconds)
        count = min(available, max(count, int(count * _PROBE_S / max(seconds, 1e-3))))


def measure_swaps(
    config: TrainConfig, graph: Graph, device: torch.device, sample: Sample, plan: Plan, machine: Machine
) -> float:
    """Seconds that a swap adds to an epoch beside what it moves to and from the disk and indexes.

    These are the interpreter's, and those of batches that wait for each other where steps have few. Of many
    partitions fewer are taken, as large a share in the buffer.

    Args:
        sample: what `measure_training` found.
        plan: a first one: its partitions, capacity and order.
        machine: says what indexing costs.
    """
    partitions, capacity, order = plan.partitions, plan.capacity, plan.order
    if partitions > _MOST_PARTITIONS:
        capacity = max(2, capacity * _MOST_PARTITIONS // partitions)
        partitions, order = _MOST_PARTITIONS, EpochOrder(FEWEST, 1)
    if partitions > sample.num_nodes:
        return 0.0
    seconds, loads = _epoch(
        config, graph, device, sample.num_nodes, sample.num_edges, partitions, capacity, order
    )
    schedule = build_schedule(partitions, capacity, order=order.name, seed=0, rounds=order.rounds)
    added = seconds - sample.seconds - index_seconds(machine, sample.num_edges, schedule)
    return max(0.0, added / max(loads, 1))


def measure_index(graph: Graph, compiled: bool, *, drawn_ahead: bool) -> float:
    """Known edges a second that a core indexes, of a sample of the graph's.

    Args:
        compiled: as for `KnownEdges`.
        drawn_ahead: an index is for the nodes that a step draws, for which a part of all stands here.
    """
    drawn = None
    if drawn_ahead:
        every = _NOT_DRAWN * max(1, graph.num_nodes // _INDEXED)  # seldom more than its edges
        drawn = dict.fromkeys(SIDES, np.arange(0, graph.num_nodes, every))
    with graph.edges() as store:
        edges = store.read_unverified("train", 0, min(store.num_edges("train"), _INDEXED))
    seconds = []
    for _ in range(PROBES):
        started = time.perf_counter()
        KnownEdges(edges, compiled, drawn=drawn)
        seconds.append(time.perf_counter() - started)
    return len(edges) / statistics.median(seconds)


def _epoch(
    config: TrainConfig,
    graph: Graph,
    device: torch.device,
    num_nodes: int,
    count: int,
    partitions: int,
    capacity: int,
    order: EpochOrder,
) -> tuple[float, int]:
    """Seconds and loads of an epoch on `count` edges of the file, the median of all but the first if it can.

    The first fills buffer and caches, and may compile loops for tens of seconds; one alone would be what else
    the machine did just then. No partition is moved: a plan adds what the disk takes for that.
    """
    components = make_components(config)
    model = make_model(config, components, graph, device)
    with graph.edges() as store:
        start = (store.num_edges("train") - count) // 2
        edges = store.read_unverified("train", start, start + count).astype(np.int64)
    edges %= num_nodes, graph.num_relations, num_nodes
    edges[:, [0, 2]] = _dealt(edges[:, [0, 2]], num_nodes, partitions)
    degrees = np.ones(num_nodes, dtype=np.int64)
    partitioning = Partitioning(num_nodes, partitions)
    table = NodeTable(partitioning, model.dim, model.node_state_dim)
    held = MemoryEdgeStore(partitioning, edges)
    lines: list[tuple[float, float]] = []
    nodes = _StillStore(table)
    started = time.perf_counter()

    def on_epoch(line: dict[str, Any]) -> None:
        nonlocal started
        lines.append((float(line["seconds"]), float(line["loads"])))
        nodes.is_still = True
        if model.compiled and len(lines) == 1:
            started = time.perf_counter()  # what it took says nothing of a batch
        elif time.perf_counter() - started > _MOST_S and len(lines) <= PROBES:
            begun.interrupt()

    trainer = Trainer(
        model,
        nodes,
        held,
        make_ordering(config, table, capacity, held.bucket_counts(), order),
        components.sampler,
        make_batch_settings(config, model.compiled),
        make_trainer_settings(config, table, capacity, graph.num_edges["train"]),
        device=device,
        degrees=(lambda first, last: degrees[first:last]) if components.sampler.needs_degrees else None,
        on_epoch=on_epoch,
        quiet=True,
    )
    # Not the trainer itself: a circle of it and what it calls would keep its rows until some later time.
    begun = weakref.proxy(trainer)
    with suppress(InterruptedRunError):
        trainer.train(1 + PROBES)
    if not lines:
        return time.perf_counter() - started, 0
    seconds, loads = (statistics.median(values) for values in zip(*(lines[1:] or lines), strict=True))
    return seconds, int(loads)


def _dealt(nodes: NDArray[np.int64], num_nodes: int, partitions: int) -> NDArray[np.int64]:
    """Node ids given new ones, each id once, so that neighbours are in different partitions.

    Edges of a part of the file have their ends in few of the graph's partitions.
    """
    size = num_nodes // partitions
    dealt: NDArray[np.int64] = np.where(
        nodes < size * partitions, nodes % partitions * size + nodes // partitions, nodes
    )
    return dealt
