"""A plan for a configuration (floor 5): settings in, the machine measured in seconds, a `Plan` out."""

from __future__ import annotations

import logging
import math
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from marius_py.assembly.checks import check_batch, check_components, check_questions, check_validation
from marius_py.assembly.probes import measure_index, measure_swaps, measure_training
from marius_py.config import AUTO, TrainConfig, make_components, saved_settings
from marius_py.data.drawn_ahead import draws_few
from marius_py.errors import ConfigError
from marius_py.graph import open_graph
from marius_py.machine import available_cores, available_memory
from marius_py.partitioning import Partitioning
from marius_py.parts import (
    DEMO_PARTITIONS,
    buffer_budget,
    make_batch_settings,
    make_model,
    order_of,
    training_device,
)
from marius_py.pipeline.execution import torch_threads
from marius_py.planning.disk import measure_disk
from marius_py.planning.plan import (
    Machine,
    Plan,
    candidate_partitions,
    check_fitting,
    choose_plan,
)
from marius_py.planning.ranking import asked_for, ranking_scores, training_scores
from marius_py.resuming.resume import check_content
from marius_py.storage.protocols import NodeTable
from marius_py.training.batch_path import finds_known_on_device

log = logging.getLogger(__name__)

_GIB = 1 << 30


def plan(config: TrainConfig) -> tuple[Plan, Machine]:
    """Measure this machine and plan a run of this configuration; takes seconds and leaves nothing behind.

    Raises:
        ConfigError: no graph, no such device, settings of which no run can be made, an output that is a file
        or below one, no plan fits, or training would refuse the one that does.
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
    candidates = candidate_partitions(graph.num_nodes, own, partitions, capacity)
    row_floats = components.row_floats
    # Before rows of relations are made, which takes minutes where they are long; then with these, before
    # seconds of measuring, which takes a few partitions of memory and a batch itself.
    check_fitting(graph.num_nodes, row_floats, candidates, capacity, _budget(config, 0))
    model = make_model(config, components, graph, device)
    check_fitting(graph.num_nodes, row_floats, candidates, capacity, _budget(config, model.relation_bytes))
    smallest = Partitioning(graph.num_nodes, candidates[-1])
    check_batch(config, NodeTable(smallest, *row_floats), min(2, smallest.num_partitions))
    output = Path(config.output) if config.output is not None else Path("runs")
    place = output.absolute()
    check_content(place, resume=True)
    while not place.is_dir():
        place = place.parent
    disk = shutil.disk_usage(place)
    read_rate, write_rate, commit_s = measure_disk(place, row_floats)
    threads = config.pipeline.compute_threads or available_cores()
    with torch_threads(threads):
        half = available_memory() // 2
        sample = measure_training(config, graph, device, 4 * sum(row_floats), half)
    batches = make_batch_settings(config, model.compiled, graph.mean_weight)
    # A device sorts edges in no time that would count.
    is_there = finds_known_on_device(
        model, batches, graph.num_nodes, device_buffer=config.storage.device == "cuda"
    )
    indexes = batches.reads_known and not is_there
    index_rate = math.inf
    if indexes:
        ahead = not batches.per_question and draws_few(components.sampler)
        index_rate = measure_index(graph, model.compiled, drawn_ahead=ahead)
    machine = Machine(
        memory_bytes=_budget(config, model.relation_bytes),
        disk_free_bytes=disk.free if disk.total else None,
        cores=available_cores(),
        gpu=torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        read_rate=read_rate,
        write_rate=write_rate,
        edge_rate=sample.rate,
        index_rate=index_rate,
        commit_s=commit_s,
    )
    choose = partial(
        choose_plan,
        graph.num_nodes,
        row_floats,
        graph.num_edges["train"],
        batch_size=config.training.batch_size,
        own_partitions=own,
        partitions=partitions,
        capacity=capacity,
        order=partial(order_of, config, num_edges=graph.num_edges["train"]),
        reads_known=batches.reads_known,
        weighted=graph.mean_weight is not None,
        relation_bytes=model.relation_bytes,
    )
    found = choose(machine=machine)
    if found.capacity != found.partitions:
        with torch_threads(threads):
            swap_s = measure_swaps(config, graph, device, sample, found, machine)
        machine = replace(machine, swap_s=swap_s)
        found = choose(machine=machine)
    check_questions(config, graph, Partitioning(graph.num_nodes, found.partitions), found.capacity)
    tested = asked_for(config, graph.num_edges["test"])
    an_edge = training_scores(config, graph, 1) / max(graph.num_edges["train"], 1)
    test_s = ranking_scores(config, graph, tested) / max(an_edge * sample.rate, 1.0)
    return replace(found, tested=tested, test_s=test_s), machine


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
    begun = saved_settings(folder) if config.resume else None
    given = {name: _number(getattr(storage, name)) for name in ("partitions", "capacity")}
    if begun is not None:  # null: the graph's partitions, and as many as fit of those the run was made for
        kept = begun.get("storage", {})
        found = {name: kept.get(name) if value is None else value for name, value in given.items()}
        why = "as the run began"
    else:
        found, why = _chosen(config, given["partitions"], given["capacity"])
    shown = ["null" if value is None else value for value in (found["partitions"], found["capacity"])]
    log.info("plan: storage.partitions=%s storage.capacity=%s, %s", *shown, why)
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
    components = make_components(config)
    size = number * NodeTable(Partitioning(graph.num_nodes, number), *components.row_floats).slot_bytes
    if capacity is None and size <= _budget(config, 0):
        model = make_model(config, components, graph, torch.device("cpu"))
        budget = _budget(config, model.relation_bytes)
        if size <= budget:
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


def _budget(config: TrainConfig, relation_bytes: int) -> int:
    device = config.storage.device
    return buffer_budget(available_memory(device), relation_bytes, device)


def _number(value: int | str | None) -> int | None:
    """A number that was given; None for auto."""
    return None if isinstance(value, str) else value
