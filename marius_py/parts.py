"""The parts of a run, each made from settings (floor 5): device, ranges, edges, model, schedules, capacity.

In: a checked TrainConfig and a graph. Out: objects of the floors below; `assembly` joins them to a run.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from marius_py.config import (
    AUTO,
    Components,
    ModelConfig,
    OptimizerConfig,
    TrainConfig,
    plain,
)
from marius_py.config.regularization import regularization_of
from marius_py.data.batch_settings import BatchSettings
from marius_py.data.rounds import FEWEST, EpochOrder, EpochWork, product_flop
from marius_py.data.step_edges import BLOCK_EDGES
from marius_py.errors import ConfigError
from marius_py.graph import Graph
from marius_py.machine import available_cores, available_memory, memory_with_swap, resolve_device
from marius_py.memory import with_unit
from marius_py.nn.kernels.host import is_worth_compiling
from marius_py.nn.model import LinkPredictionModel
from marius_py.ordering import build_schedule
from marius_py.partitioning import Partitioning
from marius_py.pipeline.in_flight import batches_in_flight, members_of_each
from marius_py.planning.plan import fitting_capacity
from marius_py.readable import as_given
from marius_py.run_files.names import CONFIG_META
from marius_py.run_files.results import (
    peak_rss_bytes,
)
from marius_py.storage.hdf5_edges import Hdf5EdgeStore
from marius_py.storage.protocols import NodeTable
from marius_py.streams import Purpose, stream_seed
from marius_py.training.settings import TrainerSettings
from marius_py.training.trainer import Ordering
from marius_py.types import Schedule
from marius_py.validation import changed_settings

log = logging.getLogger(__name__)

DEMO_PARTITIONS = 8

MEMORY_SHARE = 0.5
"""Share of the available memory that an automatic capacity may fill with the buffer."""

BATCHES_SHARE = 0.125
"""Share of the memory left beside the buffer that the batches in flight may fill."""

RELATION_COPIES = 3
"""Times that the host holds the relations at a commit: what is trained, or its copy from a device, and for a
commit HDF5's file in memory and the bytes to be written."""


def training_device(config: TrainConfig) -> torch.device:
    """The device of a run, on which its buffer can be if it is to be there.

    Raises:
        ConfigError: CUDA is asked for, to compute, for the buffer or by its kernels, and not available or
        not the device.
    """
    if config.storage.device == "cuda" and not torch.cuda.is_available():
        both = " and device=cpu" if config.device == "cuda" else ""
        raise ConfigError(
            f"storage.device=cuda, but this machine has no usable CUDA device: set storage.device=cpu{both}"
        )
    device = resolve_device(config.device)
    if config.pipeline.kernels == "triton" and device.type != "cuda":
        raise ConfigError(
            f"pipeline.kernels=triton needs a CUDA device, and the run's is {device} (device="
            f"{config.device}): set pipeline.kernels=auto, or device=cuda on a machine that has one"
        )
    return device


def number_of(config: TrainConfig, name: str) -> int | None:
    """`storage.partitions` or `.capacity` of a run that is under way.

    Raises:
        ConfigError: it is still "auto" (`assembly.planned` replaces that when a run starts).
    """
    value: int | str | None = getattr(config.storage, name)
    if isinstance(value, str):
        raise ConfigError(f"storage.{name}={value} is chosen when a run starts; give a number or null here")
    return value


def partitioning_of(graph: Graph, config: TrainConfig) -> Partitioning:
    """The node ranges of the run: the graph's own, or another number of them over the same ids."""
    number = number_of(config, "partitions")
    return graph.partitioning if number is None else Partitioning(graph.num_nodes, number)


def edges_of(graph: Graph, partitioning: Partitioning, folder: Path) -> Hdf5EdgeStore:
    """The graph's edges in the run's buckets; another number of partitions sorts them once more."""
    if partitioning == graph.partitioning:
        return graph.edges()
    return graph.repartition(partitioning.num_partitions, folder / f"edges-{partitioning.num_partitions}")


def make_model(
    config: TrainConfig, components: Components, graph: Graph, device: torch.device
) -> LinkPredictionModel:
    """The model that a configuration describes, its relations as they are before training.

    Raises:
        ConfigError: memory does not hold these.
    """
    _check_relations(config, components, graph.num_relations, device)
    regularization = regularization_of(config)
    return LinkPredictionModel(
        components.decoder,
        components.loss,
        components.optimizer,
        num_relations=graph.num_relations,
        reciprocal=config.model.reciprocal,
        node_dropout=regularization.node_dropout,
        relation_dropout=regularization.relation_dropout,
        regularizers=components.regularizers,
        clip_norm=config.training.clip_norm,
        initializer=components.initializer,
        device=device,
        seed=config.training.seed,
        kernels=config.pipeline.kernels if device.type == "cuda" else "auto",
        precision=config.pipeline.precision,
        compiled=device.type == "cuda"
        or is_worth_compiling(graph.num_edges["train"], config.training.epochs, config.model.dim),
    )


def _check_relations(
    config: TrainConfig, components: Components, num_relations: int, device: torch.device
) -> None:
    rows, width = num_relations * (2 if config.model.reciprocal else 1), components.decoder.relation_dim
    needed = 4 * rows * (width + components.optimizer.state_dim(width))
    free = memory_with_swap(device.type)
    if needed > free:
        raise ConfigError(
            f"{rows} rows of relations with {width} floats each and their optimizer state need "
            f"{with_unit(needed)}, and {with_unit(free)} of memory are free: set a smaller model.dim (it is "
            f"{config.model.dim})"
        )


def buffer_budget(available: int, relation_bytes: int, device: str) -> int:
    """Bytes that an automatic buffer may take: half of the memory that the relations leave.

    Args:
        available: bytes of memory that can be had once the model has been made.
        relation_bytes: of the relations and their optimizer state.
        device: `storage.device`, whose memory it is; commits take theirs from the host.
    """
    relations = 0 if device == "cuda" else RELATION_COPIES * relation_bytes
    return max(0, int((available - relations) * MEMORY_SHARE))


def automatic_capacity(table: NodeTable, relation_bytes: int, device: str = "cpu") -> int:
    """All partitions if the table fits in what a buffer may take, else as many as do, at least 2.

    Args:
        table: shape of the node table.
        relation_bytes: of the relations and their optimizer state.
        device: `storage.device`, whose memory it is.
    """
    p = table.partitioning.num_partitions
    budget = buffer_budget(available_memory(device), relation_bytes, device)
    capacity = fitting_capacity(table, budget)
    if capacity is None:
        capacity = min(p, 2)
        log.warning(
            "storage.capacity: not even %d of %d partitions fit in %s, half of the memory that is free: they "
            "take %s; more storage.partitions or a smaller model.dim need less",
            capacity,
            p,
            with_unit(budget),
            with_unit(table.num_slots(capacity) * table.slot_bytes),
        )
    elif capacity < p:
        log.info("storage.capacity: %d of %d partitions fit in %s", capacity, p, with_unit(budget))
    return capacity


def spare_slots(config: TrainConfig, table: NodeTable, capacity: int) -> int:
    """Slots beyond one a partition: what can be written between two commits, at most p.

    Between two commits at most `checkpoint.every_steps` swaps are written back, the c residents after them,
    and those of the next step with edges: p + min(p, every_steps + 2 c) slots in all.
    """
    p = table.partitioning.num_partitions
    steps = config.checkpoint.every_steps
    return p if steps is None else min(p, steps + 2 * capacity)


def log_memory(table: NodeTable, capacity: int, device: str) -> None:
    """Log what the buffer was to take of the memory of `device`, and the most that the process has had."""
    planned = table.num_slots(capacity) * table.slot_bytes
    on_device = device == "cuda" and torch.cuda.is_available()
    peak = torch.cuda.max_memory_allocated() if on_device else peak_rss_bytes()
    log.info(
        "memory%s: %s planned for the buffer, %s at most in all",
        " of the device" if on_device else "",
        with_unit(planned),
        with_unit(peak),
    )


def make_batch_settings(
    config: TrainConfig, compiled: bool, mean_weight: float | None = None
) -> BatchSettings:
    """How edges become batches; `compiled` as for the model, `mean_weight` the graph's."""
    return BatchSettings(
        config.training.batch_size,
        config.negatives.chunks,
        config.training.seed,
        config.negatives.mask_known,
        spread=config.ordering.policy == "spread",
        weigh=config.negatives.weigh,
        compiled=compiled,
        per_question=config.negatives.per_question,
        mean_weight=mean_weight,
    )


def make_trainer_settings(
    config: TrainConfig, table: NodeTable, capacity: int, num_edges: int
) -> TrainerSettings:
    """How a run with `capacity` partitions in the buffer goes through its batches; no commits or rates."""
    pipeline, work = config.pipeline, epoch_work(config, table, capacity, num_edges)
    threads = pipeline.compute_threads or available_cores()
    workers = pipeline.compute_workers or threads
    room = _room_for_batches(config, table, capacity)
    in_flight = pipeline.max_in_flight or batches_in_flight(work, config.training.epochs, workers, room)
    return TrainerSettings(
        capacity,
        mode=pipeline.mode,
        max_in_flight=in_flight,
        device_buffer=config.storage.device == "cuda",
        threads=threads,
        compute_workers=pipeline.compute_workers,
        members=members_of_each(work, min(workers, in_flight), room),
        precision="bfloat16" if pipeline.precision == "bfloat16" else "float32",
    )


def _room_for_batches(config: TrainConfig, table: NodeTable, capacity: int) -> int:
    """Batches that may be held beside the buffer, each with its rows, their gradients and all scores."""
    edges, negatives = config.training.batch_size, _negatives(config, table, capacity)
    rows = batch_rows(config, table, capacity)
    device = resolve_device(config.device).type
    memory = available_memory(device)
    if device == "cpu":
        memory -= table.num_slots(capacity) * table.slot_bytes
    return int(BATCHES_SHARE * memory / (4 * (2 * table.dim * rows + edges * negatives)))


def batch_ids(config: TrainConfig, table: NodeTable, capacity: int) -> int:
    """Ids of nodes that a batch has, of its edges and of the negatives of all chunks."""
    negatives = config.negatives.chunks * _negatives(config, table, capacity)
    return 2 * config.training.batch_size + negatives


def batch_rows(config: TrainConfig, table: NodeTable, capacity: int) -> int:
    """Rows of nodes that a batch has, at most."""
    return min(_resident(table, capacity), batch_ids(config, table, capacity))


def _resident(table: NodeTable, capacity: int) -> int:
    """Nodes in the buffer, about."""
    return table.partitioning.num_nodes * capacity // table.partitioning.num_partitions


def _negatives(config: TrainConfig, table: NodeTable, capacity: int) -> int:
    """Negatives of an edge, both sides together."""
    settings = config.negatives
    if settings.sampler.target == "all":
        return 2 * _resident(table, capacity)
    return (settings.count_head or settings.count) + (settings.count_tail or settings.count)


def epoch_work(config: TrainConfig, table: NodeTable, capacity: int, num_edges: int) -> EpochWork:
    """What an epoch with `capacity` partitions in the buffer computes and moves."""
    settings = config.negatives
    share = capacity / table.partitioning.num_partitions
    known = int(num_edges * share**2) if settings.mask_known or settings.per_question else 0
    return EpochWork(
        num_edges,
        config.training.batch_size,
        product_flop(table.dim, _negatives(config, table, capacity)),
        table.slot_bytes,
        known if known <= BLOCK_EDGES else 0,  # beyond, no step indexes more than its own edges
        resolve_device(config.device).type,
    )


def order_of(config: TrainConfig, table: NodeTable, capacity: int, num_edges: int) -> EpochOrder:
    """The order of an epoch and its rounds, as given, or chosen so that they should hide behind training.

    One round where buckets run whole or nothing swaps. Where both are left open (`auto`), the order is chosen
    too; given rounds go with the fewest loads.
    """
    p, settings = table.partitioning.num_partitions, config.ordering
    if capacity == p or settings.policy != "spread":
        return EpochOrder(settings.name, 1)
    if settings.rounds != AUTO:
        return EpochOrder(settings.name, int(settings.rounds))
    work = epoch_work(config, table, capacity, num_edges)
    if settings.name == FEWEST:
        return work.order(p, capacity)
    return EpochOrder(settings.name, work.rounds(settings.name, p, capacity))


def make_ordering(
    config: TrainConfig, table: NodeTable, capacity: int, counts: np.ndarray, order: EpochOrder
) -> Ordering:
    """Schedules by epoch: the partitions are relabelled each time, starting from those that are resident.

    Under the policy "spread" buckets are divided among steps later, when edge counts are at hand.
    """
    seed = config.training.seed
    p = table.partitioning.num_partitions

    def ordering(epoch: int, start: tuple[int, ...] | None) -> Schedule:
        return build_schedule(
            p,
            capacity,
            order=order.name,
            seed=stream_seed(seed, Purpose.SCHEDULE, epoch),
            policy="eager" if config.ordering.policy == "spread" else config.ordering.policy,
            costs=counts,
            start=start if start is not None and len(start) == capacity else None,
            rounds=order.rounds,
        )

    return ordering


def identity(config: TrainConfig, graph: Graph, partitioning: Partitioning) -> dict[str, Any]:
    """What a run cannot change when it is resumed; travels with every commit."""
    return {
        "format": 1,
        "graph": {
            "fingerprint": graph.fingerprint,
            "num_nodes": graph.num_nodes,
            "num_relations": graph.num_relations,
        },
        "settings": {
            "model.decoder": config.model.decoder.plain(),
            "model.dim": config.model.dim,
            "model.init": config.model.init.plain(),
            "model.reciprocal": config.model.reciprocal,
            "optimizer.name": config.optimizer.name,
            "storage.partitions": partitioning.num_partitions,
            "training.seed": config.training.seed,
        },
    }


def _named_now(key: str, value: Any) -> Any:
    """A setting of a commit; earlier ones hold built-in parts by path, where configurations have names."""
    if key in ("model.decoder", "model.init"):
        name = key.removeprefix("model.")
        return plain(ModelConfig(**{name: value}))[name]
    return OptimizerConfig(name=value).name if key == "optimizer.name" else value


def check_resumable(committed: Mapping[str, Any], wanted: Mapping[str, Any], folder: Path) -> None:
    """Refuse to go on with a run under settings that its files do not fit.

    Raises:
        ConfigError: names every key with the run's value and the one asked for.
    """
    old, new = committed.get("settings", {}), wanted["settings"]
    changed = [
        f"{key} (the run has {as_given(old[key])}, now {as_given(new[key])})"
        for key in new
        if key in old and _named_now(key, old[key]) != new[key]
    ]
    changed += changed_settings(committed, wanted.get(CONFIG_META, {}))
    if committed.get("graph") != wanted["graph"]:
        before, now = (as_given(one.get(CONFIG_META, {}).get("graph")) for one in (committed, wanted))
        there = f"was {before}, now {now}" if before != now else f"in {now} is another than then"
        changed.append(f"graph (the run's {there})")
    if changed:
        raise ConfigError(
            f"the run in {folder} cannot go on with changed settings: {'; '.join(changed)}; "
            "set them as they were, or start a new run in another output"
        )
