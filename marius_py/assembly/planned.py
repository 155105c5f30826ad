"""A plan for a configuration (floor 5): settings in, the machine measured in seconds, a `Plan` out."""

from __future__ import annotations

import logging
import math
import shutil
import statistics
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from marius_py.assembly.checks import check_components, check_validation
from marius_py.config import AUTO, TrainConfig, make_components, saved_settings
from marius_py.errors import ConfigError
from marius_py.graph import Graph, open_graph
from marius_py.machine import available_cores, available_memory
from marius_py.nn.known_edges import KnownEdges
from marius_py.nn.model import LinkPredictionModel
from marius_py.ordering import build_schedule
from marius_py.partitioning import Partitioning
from marius_py.parts import (
    DEMO_PARTITIONS,
    buffer_budget,
    make_batch_settings,
    make_model,
    make_trainer_settings,
    order_of,
    training_device,
)
from marius_py.pipeline.execution import torch_threads
from marius_py.planning.plan import (
    PROBES,
    Machine,
    Plan,
    candidate_partitions,
    choose_plan,
    measure_disk,
)
from marius_py.storage.memory import MemoryEdgeStore, MemoryPartitionStore
from marius_py.storage.protocols import NodeTable
from marius_py.training.trainer import Trainer

log = logging.getLogger(__name__)

_GIB = 1 << 30
_PROBE_ROW_BYTES = 256 << 20
"""Rows of the probe: enough that they do not fit in a processor's cache."""
_PROBE_S = 1.0
_PROBE_EDGES = 500_000
"""Edges that are indexed to see how long that takes: a tenth of a second."""


def plan(config: TrainConfig) -> tuple[Plan, Machine]:
    """Measure this machine and plan a run of this configuration; takes seconds and leaves nothing behind.

    Raises:
        ConfigError: no graph, no such device, settings of which no run can be made, or no plan fits.
        StorageError: the output's file system cannot be written.
    """
    if config.graph is None:
        raise ConfigError("graph is not set; give the prepared graph to plan for: graph=DIR")
    graph = open_graph(config.graph)
    device = training_device(config)
    components = make_components(config)
    check_components(config, components, device)
    check_validation(config, graph.num_edges["valid"])
    own = graph.partitioning.num_partitions
    partitions, capacity = _number(config.storage.partitions), _number(config.storage.capacity)
    candidate_partitions(graph.num_nodes, own, partitions, capacity)  # before seconds of measuring
    model = make_model(config, components, graph, device)
    output = Path(config.output) if config.output is not None else Path("runs")
    place = output.absolute()
    while not place.is_dir():
        place = place.parent
    read_rate, write_rate = measure_disk(place)
    with torch_threads(config.pipeline.compute_threads or available_cores()):
        edge_rate = measure_training(config, graph, device, 4 * (model.dim + model.node_state_dim))
    batches = make_batch_settings(config, model.compiled)
    index_rate = measure_index(graph, model.compiled) if batches.reads_known else math.inf
    machine = Machine(
        memory_bytes=_budget(config, model),
        disk_free_bytes=shutil.disk_usage(place).free,
        cores=available_cores(),
        gpu=torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        read_rate=read_rate,
        write_rate=write_rate,
        edge_rate=edge_rate,
        index_rate=index_rate,
    )
    found = choose_plan(
        graph.num_nodes,
        (model.dim, model.node_state_dim),
        graph.num_edges["train"],
        machine,
        batch_size=config.training.batch_size,
        own_partitions=own,
        partitions=partitions,
        capacity=capacity,
        order=partial(order_of, config, num_edges=graph.num_edges["train"]),
        reads_known=batches.reads_known,
        relation_bytes=model.relation_bytes,
    )
    return found, machine


def resolve_auto(config: TrainConfig, folder: Path) -> TrainConfig:
    """`config` with numbers for "auto" in `storage.partitions` and `storage.capacity`; logged in one line.

    A run that has begun keeps the numbers it has: they are among its settings. Otherwise everything stays in
    memory in the graph's own partitions if that fits, without measuring; if not, `plan` chooses.

    Args:
        config: settings as given.
        folder: the run folder.

    Raises:
        ConfigError: no plan fits in memory. StorageError: the disk cannot be measured.
    """
    storage = config.storage
    if AUTO not in (storage.partitions, storage.capacity):
        return config
    begun = (saved_settings(folder) if config.resume else None) or {}
    chosen = {name: begun.get("storage", {}).get(name) for name in ("partitions", "capacity")}
    given = {name: _number(getattr(storage, name)) for name in chosen}
    if chosen["partitions"] is not None:
        found = {name: chosen[name] if given[name] is None else given[name] for name in chosen}
        why = "as the run began"
    else:
        found, why = _chosen(config, given["partitions"], given["capacity"])
    log.info(
        "plan: storage.partitions=%s storage.capacity=%s, %s", found["partitions"], found["capacity"], why
    )
    return replace(
        config, storage=replace(storage, partitions=found["partitions"], capacity=found["capacity"])
    )


def _chosen(
    config: TrainConfig, partitions: int | None, capacity: int | None
) -> tuple[dict[str, int | None], str]:
    """Numbers for a new run, and why these."""
    if config.graph is None:
        number = partitions or DEMO_PARTITIONS
        return {"partitions": number, "capacity": capacity or number}, "the demo graph fits in any memory"
    graph = open_graph(config.graph)
    number = partitions or graph.partitioning.num_partitions
    model = make_model(config, make_components(config), graph, torch.device("cpu"))
    table = NodeTable(Partitioning(graph.num_nodes, number), model.dim, model.node_state_dim)
    size = number * table.slot_bytes
    budget = _budget(config, model)
    if capacity is None and size <= budget:
        return (
            {"partitions": number, "capacity": number},
            f"everything in memory: {size / _GIB:.2f} GiB of the {budget / _GIB:.2f} that may be taken",
        )
    if config.storage.partitions is None:  # the graph's own
        config = replace(config, storage=replace(config.storage, partitions=number))
    chosen, machine = plan(config)
    return (
        {"partitions": chosen.partitions, "capacity": chosen.capacity},
        f"{chosen.buffer_bytes / _GIB:.2f} GiB of the {machine.memory_bytes / _GIB:.2f} that may be taken, "
        f"{chosen.loads} loads and about {chosen.epoch_s:.0f} s an epoch",
    )


def _budget(config: TrainConfig, model: LinkPredictionModel) -> int:
    device = config.storage.device
    return buffer_budget(available_memory(device), model.relation_bytes, device)


def _number(value: int | str | None) -> int | None:
    """A number that was given; None for auto."""
    return None if isinstance(value, str) else value


def measure_training(config: TrainConfig, graph: Graph, device: torch.device, row_bytes: int) -> float:
    """Edges a second of the run's own pipeline on a sample of its edges, with everything in memory.

    The sample's nodes are folded into as many rows of `row_bytes`, an embedding with its state, as make
    256 MiB, so that access to memory is as random as in the run.
    """
    num_nodes = max(2, min(graph.num_nodes, _PROBE_ROW_BYTES // row_bytes))
    batch = config.training.batch_size
    available = graph.num_edges["train"]
    count = min(available, 16 * batch)
    while True:
        seconds = _epoch_seconds(config, graph, device, num_nodes, count)
        if seconds >= _PROBE_S / 2 or count == available:
            return count / seconds
        count = min(available, max(count, int(count * _PROBE_S / max(seconds, 1e-3))))


def measure_index(graph: Graph, compiled: bool) -> float:
    """Known edges a second that a core indexes, of a sample of the graph's.

    Args:
        compiled: as for `KnownEdges`.
    """
    with graph.edges() as store:
        edges = store.read_unverified("train", 0, min(store.num_edges("train"), _PROBE_EDGES))
    seconds = []
    for _ in range(PROBES):
        started = time.perf_counter()
        KnownEdges(edges, compiled)
        seconds.append(time.perf_counter() - started)
    return len(edges) / statistics.median(seconds)


def _epoch_seconds(
    config: TrainConfig, graph: Graph, device: torch.device, num_nodes: int, count: int
) -> float:
    """Seconds to train on `count` edges of the file, the median of a few times but the first.

    The first fills buffer and caches; one alone would be what else the machine did just then.
    """
    components = make_components(config)
    model = make_model(config, components, graph, device)
    with graph.edges() as store:
        start = (store.num_edges("train") - count) // 2
        edges = store.read_unverified("train", start, start + count).astype(np.int64)
    edges %= num_nodes, graph.num_relations, num_nodes
    degrees = np.ones(num_nodes, dtype=np.int64)
    partitioning = Partitioning(num_nodes, 2)
    nodes = MemoryPartitionStore(NodeTable(partitioning, model.dim, model.node_state_dim))
    lines: list[float] = []
    trainer = Trainer(
        model,
        nodes,
        MemoryEdgeStore(partitioning, edges),
        lambda epoch, begun: build_schedule(2, 2, seed=0, start=begun),
        components.sampler,
        make_batch_settings(config, model.compiled),
        make_trainer_settings(config, 2),
        device=device,
        degrees=(lambda first, last: degrees[first:last]) if components.sampler.needs_degrees else None,
        on_epoch=lambda line: lines.append(float(line["seconds"])),
        quiet=True,
    )
    started = time.perf_counter()
    trainer.train(1 + PROBES)
    return statistics.median(lines[1:]) if lines else time.perf_counter() - started
