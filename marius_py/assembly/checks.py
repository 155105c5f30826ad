"""What a run has no room for, told before it is begun (floor 5): settings and sizes in, errors out."""

from __future__ import annotations

import logging
import mmap
from contextlib import ExitStack

import numpy as np
import torch

from marius_py.assembly.own_parts import check_loss, check_parts
from marius_py.assembly.own_sampler import check_sampler
from marius_py.config import Components, TrainConfig, check_buffer, check_order, make_components
from marius_py.data.batch_settings import check_answers
from marius_py.data.importance import group_shares
from marius_py.errors import ConfigError
from marius_py.evaluation.ranking.scorer import similarity_of
from marius_py.graph import Graph
from marius_py.machine import memory_with_swap, resolve_device
from marius_py.memory import buffer_too_large, with_unit
from marius_py.nn.decoders import Decoder
from marius_py.nn.losses import LogisticLoss
from marius_py.nn.registry import LOSSES
from marius_py.nn.schedules import LEAST_WARMUP
from marius_py.partitioning import Partitioning
from marius_py.parts import batch_ids, batch_rows, number_of
from marius_py.storage.protocols import NodeTable

log = logging.getLogger(__name__)

_ID_BYTES = 4 * 8
"""Of an id of a batch where it is looked up in the buffer: drawn, beside all others, as a row there, and as a
place among distinct ones."""


def check_capacity(config: TrainConfig, partitions: int, capacity: int) -> None:
    """Refuse a buffer for which no schedule of the order that is asked for exists.

    Raises:
        ConfigError: names `storage.capacity` or `ordering.name`, and what is allowed.
    """
    check_buffer(partitions, capacity)
    check_order(config.ordering.name, partitions, capacity)


def check_room(config: TrainConfig, graph: Graph, table: NodeTable, capacity: int) -> None:
    """Refuse a buffer that cannot be had, as far as that is known before the run is begun.

    Args:
        config: settings.
        graph: what is trained on.
        table: shape of the node table.
        capacity: c, partitions in the buffer.

    Raises:
        ConfigError: no schedule exists for it, memory does not hold it and a batch, more known edges than are
        held lie between its partitions, or a loss or sampler of the user's own cannot be used with it.
    """
    check_capacity(config, table.partitioning.num_partitions, capacity)
    check_memory(table, capacity, config.storage.device)
    check_batch(config, table, capacity)
    check_questions(config, graph, table.partitioning, capacity)
    check_weights(config, table.partitioning.num_partitions, capacity)
    check_sampler(config, graph, table.partitioning, capacity)


def check_weights(config: TrainConfig, partitions: int, capacity: int) -> None:
    """Refuse a loss of a user's own without `weighted` where negatives are weighed.

    Raises:
        ConfigError: names `loss`.
    """
    if not (config.negatives.weigh and group_shares(partitions, capacity)):
        return
    loss = make_components(config).loss
    if type(loss) in LOSSES.values():
        return
    try:
        check_loss(config, loss, resolve_device(config.device), weighs=True)
    except ConfigError as error:
        raise ConfigError(
            f"{error}; with {capacity} of {partitions} partitions in the buffer negatives are weighed: "
            "define it, or set negatives.weigh=false"
        ) from error


def check_components(config: TrainConfig, components: Components, device: torch.device) -> None:
    """Refuse classes and settings of which no run can be made, whatever the graph; see the checks."""
    check_parts(config, components, device)
    check_ranking(config, components.decoder)


def check_ranking(config: TrainConfig, decoder: Decoder) -> None:
    """Refuse a precision in which the decoder cannot be ranked: it would show after training.

    Raises:
        ConfigError: names `evaluation.precision`.
    """
    if config.evaluation.precision == "bfloat16" and similarity_of(decoder) != "dot":
        raise ConfigError(
            "evaluation.precision=bfloat16 is for decoders whose scores are dot products (dot, distmult, "
            f"complex, rescal): model.decoder={config.model.decoder.target} needs "
            "evaluation.precision=float32"
        )


def check_validation(config: TrainConfig, num_edges: int) -> None:
    """Refuse settings that go by validation on a graph without any of its `num_edges` validation edges.

    Raises:
        ConfigError: names the setting.
    """
    if config.by_validation and not num_edges:
        raise ConfigError(
            f"{config.by_validation[0]} goes by validation MRR, but the graph has no validation edges: leave "
            "it out, or prepare the graph with input.valid or input.split"
        )


def warn_of_warmup(config: TrainConfig) -> None:
    """Say that the rate never reaches what was set: who counts in batches would not notice."""
    warmup, epochs = config.optimizer.schedule.warmup, config.training.epochs
    if warmup >= epochs:
        reached = max(epochs / warmup, LEAST_WARMUP)
        log.warning(
            "optimizer.schedule.warmup is %g epochs of training.epochs=%d: the learning rate rises to the "
            "end%s",
            warmup,
            epochs,
            "" if reached == 1 else f" and comes to {reached:.2g} of optimizer.lr",
        )


def hint_at_margin(config: TrainConfig, components: Components) -> None:
    """Say what a logistic loss lacks with a decoder whose scores are never above 0."""
    loss = components.loss
    is_bare = isinstance(loss, LogisticLoss) and loss.margin == 0
    if is_bare and similarity_of(components.decoder) in ("l1", "l2", "moduli"):
        log.info(
            "loss=logistic takes scores above 0 for likely edges, and those of model.decoder=%s never are: "
            "a loss.margin of 2 to 4 may rank better",
            config.model.decoder.target,
        )


def check_memory(table: NodeTable, capacity: int, device: str) -> None:
    """Refuse a buffer that memory does not hold, as far as that can be told without filling it.

    Args:
        table: shape of the node table.
        capacity: c, partitions in the buffer.
        device: `storage.device`, whose memory it is.

    Raises:
        ConfigError: the system gives no such memory, or has less; or the device has.
    """
    slots = table.num_slots(capacity)
    sizes = [4 * slots * table.slot_rows * width for width in (table.dim, table.state_dim)]
    free = memory_with_swap(device)
    if sum(sizes) > free:
        where = "the device" if device == "cuda" else "this machine"
        reason: str | None = f"{where} has {with_unit(free)} free"
    else:
        reason = None if device == "cuda" else _refused(sizes)
    if reason is not None:
        raise ConfigError(buffer_too_large(slots, table.slot_bytes, capacity, reason))


def check_least(config: TrainConfig, table: NodeTable) -> None:
    """Refuse rows of which memory does not hold the least buffer, before those of relations are made.

    Long ones take minutes to make. Which capacity a run gets, and whether it can have it, is known later.

    Raises:
        ConfigError: as `check_memory`.
    """
    capacity = number_of(config, "capacity") or 2
    check_memory(table, min(capacity, table.partitioning.num_partitions), config.storage.device)


def check_batch(config: TrainConfig, table: NodeTable, capacity: int) -> None:
    """Refuse batches of which memory does not hold one beside the buffer: such a run would be killed.

    Args:
        config, table, capacity: as for `check_room`.

    Raises:
        ConfigError: names what makes a batch large.
    """
    device = resolve_device(config.device).type
    rows, ids = batch_rows(config, table, capacity), batch_ids(config, table, capacity)
    needed = 2 * 4 * table.dim * rows + (_ID_BYTES if device == config.storage.device else 8) * ids
    free = memory_with_swap(device)
    if device == config.storage.device:
        free -= table.num_slots(capacity) * table.slot_bytes
    if needed > free:
        raise ConfigError(
            f"a batch needs {with_unit(needed)}, {rows} rows of {table.dim} floats with their gradients and "
            f"{ids} ids, and memory has {with_unit(max(0, free))} beside the buffer: set a smaller "
            f"negatives.count (it is {config.negatives.count}), training.batch_size "
            f"({config.training.batch_size}) or model.dim"
        )


def check_questions(config: TrainConfig, graph: Graph, partitioning: Partitioning, capacity: int) -> None:
    """Refuse to count answers among more known edges than are held, where these can be counted already.

    They can in the graph's own partitions, and where all edges lie in the buffer.

    Raises:
        ConfigError: `negatives.per_question` asks for more.
    """
    if not config.negatives.per_question:
        return
    if partitioning == graph.partitioning:
        with graph.edges() as edges:
            check_answers(edges.bucket_counts(), capacity)
    elif capacity == partitioning.num_partitions:
        counts = np.zeros((capacity, capacity), np.int64)
        counts[0, 0] = graph.num_edges["train"]
        check_answers(counts, capacity)


def _refused(sizes: list[int]) -> str | None:
    """What the system says where it gives no memory of these bytes at once; nothing of it is touched."""
    with ExitStack() as stack:
        try:
            for size in filter(None, sizes):
                stack.enter_context(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        except (OSError, OverflowError) as error:
            return str(error)
    return None
