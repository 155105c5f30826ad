"""Classes of a user's own, tried before a run is begun (floor 5): components in, nothing or an error out.

Each is asked for a little of what training will ask of it, with few numbers of which all but the shape and
the type are of no account.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import product
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from marius_py.config import Components, TrainConfig, make_components
from marius_py.errors import ConfigError, MariusError
from marius_py.evaluation.ranking.trained import make_decoder
from marius_py.machine import memory_with_swap
from marius_py.memory import with_unit
from marius_py.nn.decoders import Decoder
from marius_py.nn.decoders.base import author_of, fits, misfit, told
from marius_py.nn.initializers import Initializer
from marius_py.nn.losses import Loss
from marius_py.nn.optimizers import SparseOptimizer
from marius_py.nn.registry import DECODERS, INITIALIZERS, LOSSES, OPTIMIZERS
from marius_py.pipeline.execution import torch_threads
from marius_py.readable import readable
from marius_py.types import SIDES, Side
from marius_py.whole import is_whole

_NEGATIVES = 512
"""Of the scores that a loss is tried with, where their number is the buffer's."""
_MOST_NEGATIVES = 1 << 20
"""That a loss is tried with, at most: whether memory holds more is not known yet."""
_WIDE = 1 << 20
"""Floats of a row above which the package's own classes are not tried."""
_FLOAT_BYTES = 16
"""That a float of a row takes while it is made: it may be drawn in float64, and summed on the way."""
_ROUNDING = 0.01
"""By which two scores may differ that are computed in other products, as a share of the largest of all."""


def check_parts(config: TrainConfig, components: Components, device: torch.device) -> None:
    """Refuse classes of which no run can be made; see the checks. The package's own are held to by tests.

    Others are made once more to be tried, lest the run begin with what is no longer as it was made.
    """
    own: list[tuple[Mapping[str, type], object]] = [
        (LOSSES, components.loss),
        (OPTIMIZERS, components.optimizer),
        (DECODERS, components.decoder),
        (INITIALIZERS, components.initializer),
    ]
    if all(type(one) in built_in.values() for built_in, one in own):
        check_rows(config, components)
        return
    tried = make_components(config)
    check_decoder(config, tried, device)
    check_rows(config, tried)
    check_state(config, tried)
    if type(tried.loss) not in LOSSES.values():
        check_loss(config, tried.loss, device)
    if type(tried.optimizer) not in OPTIMIZERS.values():
        check_step(config, tried.optimizer, tried.decoder.dim, device)


def check_rows(config: TrainConfig, components: Components) -> None:
    """Refuse initial rows that are no numbers, are not all written, or cannot be made.

    Raises:
        ConfigError: names `model.init`, or `model.decoder` where only that one's class is no part of the
        package.
    """
    decoder, name = components.decoder, f"model.init={config.model.init.target}"
    is_own = [
        type(components.initializer) not in INITIALIZERS.values(),
        type(decoder) not in DECODERS.values(),
    ]
    if is_own == [False, True]:
        name = f"model.decoder={config.model.decoder.target}"
    for fill, width in ((decoder.init_rows, decoder.dim), (decoder.init_relations, decoder.relation_dim)):
        if not is_whole(width, 0):
            continue  # of which `check_decoder` tells
        needed, free = 3 * width * _FLOAT_BYTES, memory_with_swap()
        if needed > free:
            raise ConfigError(
                f"model.dim={config.model.dim} makes rows of {width} floats: to make three takes "
                f"{with_unit(needed)}, and {with_unit(free)} of memory are free; set a smaller one"
            )
        if width > _WIDE and not any(is_own):
            continue  # as when narrower; seconds pass until a buffer of such rows would be refused
        rows = np.full((3, width), np.nan, np.float32)
        with failing(f"{name}: {fill.__name__} of rows {rows.shape}"):
            fill(rows, np.random.default_rng(0), components.initializer)
        if not np.isfinite(rows).all():
            raise ConfigError(
                f"{name}: {fill.__name__} of rows {rows.shape} leaves some infinite, NaN or not written"
            )


def check_loss(config: TrainConfig, loss: Loss, device: torch.device, *, weighs: bool = False) -> None:
    """Refuse a loss that is none of scores.

    Args:
        config: settings.
        loss: to be tried.
        device: where it will be computed.
        weighs: the run weighs negatives: `weighted` may not be left out.

    Raises:
        ConfigError: it fails, or gives anything but one float that depends on the scores; names `loss`.
    """
    name, edges = f"loss={config.loss.target}", 8
    count = min(config.negatives.count or _NEGATIVES, _MOST_NEGATIVES)
    scores = partial(torch.ones, device=device, dtype=torch.float32, requires_grad=True)
    keep = torch.ones(edges, count, dtype=torch.bool, device=device)
    keep[0, 0] = False
    masks = ((None, ""), (keep, " with a mask")) if config.negatives.mask_known else ((None, ""),)
    ones = torch.ones(edges, count, device=device, dtype=torch.float32)
    weights = ((None, ""), (ones, ", weighted"))[: 1 + (type(loss).weighted is not Loss.weighted)]
    with torch_threads(1):
        for (mask, with_mask), (weight, with_weight) in product(masks, weights):
            what = f"the loss of scores ({edges},) and ({edges}, {count}){with_mask}{with_weight}"
            with failing(f"{name}: {what}"):
                given = scores(edges), scores(edges, count), mask
                try:
                    found: Any = loss(*given) if weight is None else loss.weighted(*given, weight)
                except NotImplementedError:
                    if weight is None or weighs:
                        raise
                    continue  # it is for runs with everything in memory
            is_one = isinstance(found, Tensor) and found.numel() == 1 and found.is_floating_point()
            scored = dict(zip(("positive", "negative"), given[:2], strict=True))
            if not is_one or len(_without_gradient(f"{name}: {what}", found, scored)) == len(scored):
                gives = told(found) + (" without a gradient" if is_one else "")
                raise ConfigError(
                    f"{name}: {what} gives {gives}; it must be one float, the mean over the edges, "
                    "differentiable in the scores"
                )


def check_step(config: TrainConfig, optimizer: SparseOptimizer, dim: int, device: torch.device) -> None:
    """Refuse an optimizer whose steps do not fit its rows.

    Raises:
        ConfigError: `delta` fails, gives no tensors of the shape of rows and state, or changes the state in
        place alone; names `optimizer.name`.
    """
    if author_of(optimizer, "step") not in (SparseOptimizer, *OPTIMIZERS.values()):
        return  # which may do without `delta`
    state = np.zeros((3, optimizer.state_dim(dim)), np.float32)
    optimizer.init_state(state)
    rows, states = torch.ones(3, dim, device=device), torch.from_numpy(state).to(device)
    name = f"optimizer.name={config.optimizer.name}: delta of rows {tuple(rows.shape)}"
    with torch_threads(1), torch.no_grad(), failing(name):
        passed = states.clone()
        found: Any = optimizer.delta(rows.clone(), passed, torch.full_like(rows, 0.5))
        given = [found] if isinstance(found, Tensor) else list(found)
    fits = [
        isinstance(one, Tensor) and one.shape == like.shape and one.dtype == like.dtype
        for one, like in zip(given, (rows, states), strict=False)
    ]
    if len(given) != 2 or not fits[0] or not (fits[1] or states.shape[1] == 0):
        raise ConfigError(
            f"{name} gives {' and '.join(map(told, given))}; it must be two tensors, torch.float32 of shape "
            f"{tuple(rows.shape)} for the rows and {tuple(states.shape)} for the state"
        )
    if states.shape[1] and not passed.equal(states) and not given[1].any():
        raise ConfigError(
            f"{name} changes the state in place, which is a copy that is dropped, and gives zeros for it; it "
            "must give the change of the state"
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
    """Ask a decoder for a few scores, as training does.

    Raises:
        ConfigError: it fails, gives tensors of another shape or type or without a gradient, or gives an edge
        something else alone than among others.
    """
    chunks, dim, width = 2, decoder.dim, decoder.relation_dim
    if not is_whole(width, 0):
        raise ConfigError(
            f"{name}: relation_dim is {width!r}; it must be a whole number of floats, 0 for none"
        )
    edges, count = [number for number in (3, 5, 7, 11) if number not in (dim, width)][:2]  # told apart
    rng = np.random.default_rng(0)

    def rows(number: int, width: int, fill: Callable[..., None]) -> Tensor:
        table = np.empty((number, width), np.float32)
        with failing(f"{name}: {fill.__name__} of rows {table.shape}"):
            fill(table, rng, initializer)
        return torch.from_numpy(table).to(device).requires_grad_()

    def ask(what: str, shape: tuple[int, ...], call: Callable[..., Any], *given: Tensor) -> Tensor:
        with failing(f"{name}: {what}"):
            found = call(*(one.clone() for one in given))  # a leaf of the graph could not be written to
        if not fits(found, shape):
            raise misfit(f"{name}: {what}", found, shape)
        return cast(Tensor, found)

    def query_of(node: Tensor, relation: Tensor, side: Side) -> Tensor:
        what = f"query of nodes {tuple(node.shape)} and relations {tuple(relation.shape)}, side {side!r},"
        query = ask(what, tuple(node.shape), partial(_query, decoder, side), node, relation)
        _check_gradient(f"{name}: {what}", query, {"nodes": node})
        return query

    def scores_of(query: Tensor, candidates: Tensor) -> Tensor:
        what = f"compare of queries {tuple(query.shape)} and candidates {tuple(candidates.shape)}"
        shape = (*query.shape[:2], candidates.shape[1])
        scores = ask(what, shape, decoder.compare, query, candidates)
        _check_gradient(f"{name}: {what}", scores, {"queries": query, "candidates": candidates})
        return scores

    with (
        torch_threads(1),
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.autocast(device.type, enabled=False),
    ):
        node = rows(chunks * edges, dim, decoder.init_rows)
        relation = rows(chunks * edges, width, decoder.init_relations)
        candidates = rows(chunks * count, dim, decoder.init_rows).view(chunks, count, dim)
        for side in sides:
            query = query_of(node, relation, side)
            _check_alone(f"{name}: query", query, query_of(node[:1], relation[:1], side))
            query = query.reshape(chunks, edges, dim)
            scores = scores_of(query, candidates)
            _check_alone(f"{name}: compare", scores, scores_of(query[:1, :1], candidates[:1, :1]))


def _query(decoder: Decoder, side: Side, node: Tensor, relation: Tensor) -> Tensor:
    return decoder.query(node, relation, side)


def _check_gradient(what: str, found: Tensor, given: Mapping[str, Tensor]) -> None:
    """Refuse what no gradient goes through to each of the tensors that it was asked of."""
    lost = " and ".join(_without_gradient(what, found, given))
    if lost:
        raise ConfigError(
            f"{what} gives {told(found)} without a gradient for the {lost}: it must be computed from them by "
            "operations of PyTorch, with no detach() or no_grad()"
        )


def _without_gradient(what: str, found: Tensor, given: Mapping[str, Tensor]) -> list[str]:
    """Those of the given tensors that nothing leads back to from what was found."""
    if not found.requires_grad:
        return list(given)
    with failing(f"{what}: its gradient"):
        gradients = torch.autograd.grad(
            found.sum(), list(given.values()), retain_graph=True, allow_unused=True
        )
    return [name for name, gradient in zip(given, gradients, strict=True) if gradient is None]


def _check_alone(what: str, found: Tensor, alone: Tensor) -> None:
    """Refuse what gives the first edge something else alone than among others, by more than rounding.

    Its scores would depend on the batch; the true answer's, asked for alone, would compare with no other.
    """
    among = found[tuple(map(slice, alone.shape))]
    scale = found.detach().nan_to_num(0, 0, 0).abs().max().item()
    if not torch.allclose(among, alone, rtol=0, atol=_ROUNDING * scale, equal_nan=True):
        raise ConfigError(
            f"{what} gives something else for one edge alone than for the same edge among others: it must "
            "follow from the edge's own rows, neither from others, as by softmax() or mean() over them, nor "
            "from chance (dropout is model.node_dropout)"
        )


@contextmanager
def failing(what: str) -> Iterator[None]:
    """Say with a ConfigError what fails, whatever a user's class raises."""
    try:
        yield
    except MariusError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{what} fails: {type(error).__name__}: {readable(str(error))}") from error


def check_state(config: TrainConfig, components: Components) -> None:
    """Refuse an optimizer whose state has no width, or cannot be begun.

    Raises:
        ConfigError: `state_dim` gives no whole number from 0, it or `init_state` fails, or the latter does
        not write all of its rows; names `optimizer.name`.
    """
    for dim in (components.decoder.dim, components.decoder.relation_dim):
        with failing(f"optimizer.name={config.optimizer.name}: state_dim({dim})"):
            width = components.optimizer.state_dim(dim)
        if not is_whole(width, 0):
            raise ConfigError(
                f"optimizer.name={config.optimizer.name}: state_dim({dim}) is {width!r}; it must be a whole "
                "number of floats, 0 for no state"
            )
        what = f"optimizer.name={config.optimizer.name}: init_state of rows (2, {width})"
        state = np.full((2, width), np.nan, np.float32)
        with failing(what):
            components.optimizer.init_state(state)
        if np.isnan(state).any():
            raise ConfigError(f"{what} leaves some NaN or not written")
