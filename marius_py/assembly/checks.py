"""What a run has no room for, told before it is begun (floor 5): settings and sizes in, errors out."""

from __future__ import annotations

import logging
import mmap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from marius_py.config import Components, TrainConfig, check_buffer, check_order
from marius_py.data.batch_settings import check_answers
from marius_py.errors import ConfigError, MariusError
from marius_py.evaluation.ranking.scorer import similarity_of
from marius_py.evaluation.ranking.trained import make_decoder
from marius_py.graph import Graph
from marius_py.machine import available_memory
from marius_py.memory import with_unit
from marius_py.nn.decoders import Decoder
from marius_py.nn.initializers import Initializer
from marius_py.nn.losses import LogisticLoss
from marius_py.nn.registry import DECODERS
from marius_py.partitioning import Partitioning
from marius_py.pipeline.execution import torch_threads
from marius_py.storage.protocols import NodeTable
from marius_py.types import SIDES, Side

log = logging.getLogger(__name__)


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
        ConfigError: no schedule exists for it, memory does not hold it, or more known edges than are held lie
        between its partitions.
    """
    check_capacity(config, table.partitioning.num_partitions, capacity)
    check_memory(table, capacity, config.storage.device)
    check_questions(config, graph, table.partitioning, capacity)


def check_components(config: TrainConfig, components: Components, device: torch.device) -> None:
    """Refuse classes and settings of which no run can be made, whatever the graph; see the checks."""
    check_decoder(config, components, device)
    check_state(config, components)
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


def check_decoder(config: TrainConfig, components: Components, device: torch.device) -> None:
    """Refuse a decoder that a run cannot keep, or whose scores are none: it would show after training.

    Args:
        config: settings.
        components: the decoder and the initializer of its rows.
        device: where it will score.

    Raises:
        ConfigError: the decoder has parameters, or tensors that differ each time it is made; its queries or
        scores have another shape or type than they must, or it fails. Names `model.decoder`.
    """
    decoder, name = components.decoder, f"model.decoder={config.model.decoder.target}"
    mine = dict(_tensors(decoder))
    others = dict(_tensors(make_decoder(config.model.decoder.plain(), config.model.dim)))
    for place, tensor in mine.items():
        if isinstance(tensor, Tensor) and tensor.requires_grad:
            raise ConfigError(
                f"{name} has parameters of its own ({place}, shape {tuple(tensor.shape)}), which nothing "
                "trains or stores: only rows of nodes and relations are learnt. Keep such numbers in a "
                "relation's row (relation_dim), or fix them (requires_grad_(False)) to the same values each "
                "time it is made"
            )
    for place in sorted(mine.keys() | others.keys()):
        if _content(mine.get(place)) != _content(others.get(place)):
            raise ConfigError(
                f"{name} is another one each time it is made: {place} differs. It is stored by its arguments "
                "alone, so these must determine it: draw what is random from a generator with a fixed seed"
            )
    if type(decoder) not in DECODERS.values():  # the package's own are held to it by a test
        sides = SIDES[1:] if config.model.reciprocal else SIDES  # heads are the tails of a second relation
        _check_scores(decoder, components.initializer, name, device, sides)


def _tensors(owner: Any) -> Iterator[tuple[str, Any]]:
    """Place and value of each tensor and array among an object's attributes, their items and modules."""
    waiting, seen = [("", owner)], set[int]()
    while waiting:
        place, value = waiting.pop()
        if isinstance(value, (Tensor, np.ndarray)):
            yield place, value
            continue
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, (torch.nn.Module, Decoder)):
            parts: Iterable[tuple[Any, Any]] = vars(value).items()
        elif isinstance(value, Mapping):
            parts = value.items()
        elif isinstance(value, (list, tuple)):
            parts = enumerate(value)
        else:
            continue
        of_module = ("_parameters", "_buffers", "_modules")
        waiting += [
            (place if key in of_module else f"{place}.{key}".removeprefix("."), one) for key, one in parts
        ]


def _content(value: Any) -> Any:
    """What tells two tensors or arrays apart, bit by bit."""
    if isinstance(value, Tensor):
        if value.is_meta:
            return value.shape, value.dtype
        plain = value.detach().cpu().to_dense().resolve_conj().contiguous()
        return value.shape, value.dtype, plain.reshape(-1).view(torch.uint8).numpy().tobytes()
    if isinstance(value, np.ndarray):
        return value.shape, value.dtype, value.tolist() if value.dtype.hasobject else value.tobytes()
    return None


def _check_scores(
    decoder: Decoder, initializer: Initializer, name: str, device: torch.device, sides: Sequence[Side]
) -> None:
    """Ask a decoder for a few scores.

    Raises:
        ConfigError: it fails, or gives tensors of another shape or type.
    """
    chunks, dim, width = 2, decoder.dim, decoder.relation_dim
    if not _is_width(width):
        raise ConfigError(
            f"{name}: relation_dim is {width!r}; it must be a whole number of floats, 0 for none"
        )
    edges, count = [number for number in (3, 5, 7, 11) if number not in (dim, width)][:2]  # told apart
    rng = np.random.default_rng(0)

    def rows(number: int, width: int, fill: Callable[..., None]) -> Tensor:
        table = np.empty((number, width), np.float32)
        with _failing(f"{name}: {fill.__name__} of rows {table.shape}"):
            fill(table, rng, initializer)
        return torch.from_numpy(table).to(device)

    def ask(what: str, shape: tuple[int, ...], call: Callable[[], Any]) -> Tensor:
        with _failing(f"{name}: {what}"):
            found = call()
        if not isinstance(found, Tensor) or found.shape != shape or found.dtype != torch.float32:
            told = repr(found)
            if isinstance(found, Tensor):
                told = f"{found.dtype} of shape {tuple(found.shape)}"
            raise ConfigError(f"{name}: {what} gives {told}; it must be torch.float32 of shape {shape}")
        return found

    with torch_threads(1), torch.no_grad(), torch.autocast(device.type, enabled=False):
        node = rows(chunks * edges, dim, decoder.init_rows)
        relation = rows(chunks * edges, width, decoder.init_relations)
        candidates = rows(chunks * count, dim, decoder.init_rows).view(chunks, count, dim)
        for side in sides:
            what = f"query of nodes {tuple(node.shape)} and relations {tuple(relation.shape)}, side {side!r},"
            query = ask(what, (chunks * edges, dim), partial(decoder.query, node, relation, side))
            query = query.reshape(chunks, edges, dim)
            what = f"compare of queries {tuple(query.shape)} and candidates {tuple(candidates.shape)}"
            ask(what, (chunks, edges, count), partial(decoder.compare, query, candidates))


@contextmanager
def _failing(what: str) -> Iterator[None]:
    """Say with a ConfigError what fails, whatever a user's class raises."""
    try:
        yield
    except MariusError:
        raise
    except Exception as error:
        raise ConfigError(f"{what} fails: {type(error).__name__}: {error}") from error


def _is_width(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and bool(value >= 0)


def check_state(config: TrainConfig, components: Components) -> None:
    """Refuse an optimizer whose state has no width, or cannot be begun.

    Raises:
        ConfigError: `state_dim` gives no whole number from 0, or it or `init_state` fails; names
        `optimizer.name`.
    """
    for dim in (components.decoder.dim, components.decoder.relation_dim):
        with _failing(f"optimizer.name={config.optimizer.name}: state_dim({dim})"):
            width = components.optimizer.state_dim(dim)
        if not _is_width(width):
            raise ConfigError(
                f"optimizer.name={config.optimizer.name}: state_dim({dim}) is {width!r}; it must be a whole "
                "number of floats, 0 for no state"
            )
        with _failing(f"optimizer.name={config.optimizer.name}: init_state of rows (2, {width})"):
            components.optimizer.init_state(np.empty((2, width), np.float32))


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
        log.warning(
            "optimizer.schedule.warmup is %g epochs of training.epochs=%d: the learning rate rises to the "
            "end%s",
            warmup,
            epochs,
            "" if warmup == epochs else f" and comes to {epochs / warmup:.2g} of optimizer.lr",
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
        ConfigError: the system gives no such memory, or the device has less.
    """
    slots = table.num_slots(capacity)
    sizes = [4 * slots * table.slot_rows * width for width in (table.dim, table.state_dim)]
    if device == "cuda":
        free = available_memory(device)
        reason = f"the device has {with_unit(free)} free" if sum(sizes) > free else None
    else:
        reason = _refused(sizes)
    if reason is not None:
        raise ConfigError(
            f"the buffer needs {with_unit(sum(sizes))}, {slots} slots of {with_unit(table.slot_bytes)}, and "
            f"memory is short ({reason}): storage.capacity is {capacity}; set a smaller one, more "
            "storage.partitions, or a smaller model.dim"
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
