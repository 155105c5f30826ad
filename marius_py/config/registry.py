"""Classes named in a configuration (floor 5): found, checked for their base, arguments bound, made.

In: components, by registered name or dotted path. Out: objects of the model floor, and trackers. All of it
happens before any data is opened, so that a misspelt argument costs seconds, not an epoch. torch is imported
on first use.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_type_hints

from marius_py.config.fields import Component, default_of, keys_of
from marius_py.config.near import suggest
from marius_py.config.regularization import regularization_of
from marius_py.config.schema import TrainConfig
from marius_py.errors import ConfigError, MariusError

if TYPE_CHECKING:
    from marius_py.nn.decoders import Decoder
    from marius_py.nn.initializers import Initializer
    from marius_py.nn.losses import Loss
    from marius_py.nn.negatives import NegativeSampler
    from marius_py.nn.optimizers import SparseOptimizer
    from marius_py.nn.regularizers import Regularizer
    from marius_py.nn.schedules import RateSchedule

B = TypeVar("B")

_MOVED = {
    "marius_py.trackers": "it is marius_py.tracking now, and the package's own trackers have names (csv, …); "
    "trackers=[csv] beside resume=true replaces those of a saved run"
}
"""Modules of earlier versions that saved runs and users' modules may name, and the way out."""


@dataclass(frozen=True, slots=True)
class Components:
    """The parts of a model that a configuration names.

    Attributes:
        decoder, loss, optimizer, sampler, initializer: one object each.
        regularizers: those with a weight above 0.
        rate: schedule of the learning rate.
    """

    decoder: Decoder
    loss: Loss
    optimizer: SparseOptimizer
    sampler: NegativeSampler
    initializer: Initializer
    regularizers: tuple[Regularizer, ...]
    rate: RateSchedule

    @property
    def row_floats(self) -> tuple[int, int]:
        """D and S, floats of the embedding and of the optimizer state of a node."""
        return self.decoder.dim, self.optimizer.state_dim(self.decoder.dim)


def make_components(config: TrainConfig) -> Components:
    """Make all parts of the model.

    Raises:
        ConfigError: a class cannot be found or imported, has the wrong base, leaves methods abstract,
            refuses its arguments, or leaves out its base's constructor.
    """
    from marius_py.nn import registry as names
    from marius_py.nn.decoders import Decoder
    from marius_py.nn.initializers import Initializer
    from marius_py.nn.losses import Loss
    from marius_py.nn.negatives import NegativeSampler
    from marius_py.nn.optimizers import SparseOptimizer

    negatives = config.negatives
    _check_sampling(config)
    sampling = {
        "count": negatives.count,
        "chunks": negatives.chunks,
        "degree_fraction": negatives.degree_fraction,
        "count_head": negatives.count_head,
        "count_tail": negatives.count_tail,
    }
    decoder: Decoder = make(
        config.model.decoder, Decoder, names.DECODERS, "model.decoder", {"dim": config.model.dim}
    )
    _check_relations(config, decoder)
    return Components(
        decoder=decoder,
        loss=make(config.loss, Loss, names.LOSSES, "loss", {}),
        optimizer=make(
            Component(config.optimizer.name, config.optimizer.arguments),
            SparseOptimizer,
            names.OPTIMIZERS,
            "optimizer.name",
            {"lr": config.optimizer.lr},
            arguments_key="optimizer",
        ),
        sampler=make(
            negatives.sampler,
            NegativeSampler,
            names.SAMPLERS,
            "negatives.sampler",
            sampling,
            only_accepted=True,
        ),
        initializer=make(config.model.init, Initializer, names.INITIALIZERS, "model.init", {}),
        regularizers=make_regularizers(config),
        rate=_rate(config),
    )


def _check_sampling(config: TrainConfig) -> None:
    """Refuse settings of negatives that the sampler's class does not take: they would do nothing."""
    from marius_py.nn.negatives import NegativeSampler
    from marius_py.nn.registry import SAMPLERS

    negatives = config.negatives
    target = negatives.sampler.target
    parameters = inspect.signature(find(target, NegativeSampler, SAMPLERS, "negatives.sampler")).parameters
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values()):
        return
    for name, nothing in (("degree_fraction", 0.0), ("count_head", None), ("count_tail", None)):
        value = getattr(negatives, name)
        if value != nothing and name not in parameters:
            raise ConfigError(
                f"negatives.{name}={value} means nothing to negatives.sampler={target}: leave it out, or set "
                "negatives.sampler=degree"
            )
    # The number that a class of yours draws is estimated by negatives.count, and batches are cut by
    # negatives.chunks for it; of all nodes there is one number and one chunk. A resumed run may end an epoch
    # in the chunks of another sampler.
    for name in ("count",) if config.resume else ("count", "chunks"):
        value, usual = getattr(negatives, name), default_of(negatives.__dataclass_fields__[name])
        if target == "all" and value != usual:
            raise ConfigError(
                f"negatives.{name}={value} means nothing to negatives.sampler={target}: leave it out (its "
                f"default is {usual}), or set negatives.sampler=degree"
            )


def _check_relations(config: TrainConfig, decoder: Decoder) -> None:
    """Refuse settings of relation rows for a decoder that has none: they would do nothing."""
    try:
        width = decoder.relation_dim
    except MariusError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"model.decoder={config.model.decoder.target}: relation_dim fails: "
            f"{type(error).__name__}: {error}"
        ) from error
    if width:
        return
    penalties = config.training.regularizer
    for key, value in (
        ("model.relation_dropout", config.model.relation_dropout),
        ("training.regularizer.n3_relation", penalties.n3_relation),
        ("training.regularizer.l2_relation", penalties.l2_relation),
    ):
        if value:
            raise ConfigError(
                f"{key}={value} means nothing to model.decoder={config.model.decoder.target}, whose "
                "relations have no embedding: leave it out"
            )


def _rate(config: TrainConfig) -> RateSchedule:
    from marius_py.nn.registry import SCHEDULES
    from marius_py.nn.schedules import PlateauRate

    settings, epochs = config.optimizer.schedule, config.training.epochs
    if settings.name == "plateau":
        return PlateauRate(epochs, settings.warmup, settings.floor, settings.reduction, settings.patience)
    return SCHEDULES[settings.name](epochs, settings.warmup, settings.floor)


def make_regularizers(config: TrainConfig) -> tuple[Regularizer, ...]:
    """The penalties whose weights are above 0."""
    from marius_py.nn.regularizers import L2, N3

    found, weighted = regularization_of(config), config.training.regularizer.weighted
    weights = ((N3, found.n3), (L2, found.l2))
    return tuple(kind(*pair, weighted) for kind, pair in weights if any(weight > 0 for weight in pair))


def make(
    component: Component,
    base: type[Any],
    names: Mapping[str, type[B]],
    key: str,
    given: Mapping[str, Any],
    *,
    arguments_key: str | None = None,
    only_accepted: bool = False,
) -> B:
    """Make one object: find the class, check it, bind its arguments, call it.

    Args:
        component: name or path, and arguments.
        base: class it must derive from.
        names: registered name → class.
        key: configuration key for messages.
        given: arguments that the package passes.
        arguments_key: key whose members are the arguments; `key` if None.
        only_accepted: pass of `given` only what the constructor takes.

    Raises:
        ConfigError: as `make_components`.
    """
    kind = find(component.target, base, names, key)
    where = arguments_key or key
    parameters = inspect.signature(kind).parameters
    taken = [name for name, one in parameters.items() if one.kind in _BY_NAME]
    takes_any = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())
    if only_accepted and not takes_any:
        given = {name: value for name, value in given.items() if name in taken}
    own = [name for name in taken if name not in given]
    for name in component.arguments:
        if name in given:
            instead = f"set {where.rpartition('.')[0]}.{name}" if "." in where else "leave it out there"
            raise ConfigError(f"{where}.{name} is passed to {component.target} by the package: {instead}")
        if name not in taken and not takes_any:
            raise _no_argument(name, component.target, names, where, own)
    try:
        bound = inspect.signature(kind).bind(**given, **component.arguments)
    except TypeError as error:
        raise ConfigError(f"{key}={component.target} cannot be made: {error}") from error
    if kind in names.values():  # others may take more than they declare
        _check_types(kind, component, where)
    try:
        made = kind(*bound.args, **bound.kwargs)
    except MariusError:
        raise
    except (Exception, SystemExit) as error:
        _check_types(kind, component, where)
        given_words = "".join(f" {where}.{name}={_shown(one)}" for name, one in component.arguments.items())
        raise ConfigError(
            f"{key}={component.target}{given_words} cannot be made: {type(error).__name__}: {error}"
        ) from error
    # What a base's constructor takes, it keeps under the same name.
    arguments = list(inspect.signature(base).parameters)
    missing = [name for name in arguments if not hasattr(made, name)]
    if missing:
        raise ConfigError(
            f"{key}={component.target} has no attribute {missing[0]} once it is made: its __init__ must call "
            f"super().__init__({', '.join(arguments)})"
        )
    return made


def _no_argument(
    name: str, target: str, names: Mapping[str, type[Any]], where: str, own: Sequence[str]
) -> ConfigError:
    """The error for what a class does not take: another may, or it is a misspelt setting beside it."""
    beside = [key for key, _, _ in keys_of(TrainConfig) if key.startswith(f"{where}.")]
    allowed = [*(f"{where}.{one}" for one in own), *beside]
    sections = (".".join(key.split(".")[:2]) for key in beside)
    others = [one for one, kind in names.items() if name in inspect.signature(kind).parameters]
    elsewhere = f", but of {' and '.join(others)}" if others else ""
    return ConfigError(
        f"{where}.{name} is no argument of {target}{elsewhere}"
        f"{suggest(f'{where}.{name}', [*allowed, *sections])} (allowed: {', '.join(allowed) or 'none'})"
    )


_TYPES = {float: "a number", int: "an integer", bool: "true or false", str: "a text"}
"""Annotations of a constructor's arguments that values are checked by, and what they allow."""


def _check_types(kind: type[Any], component: Component, where: str) -> None:
    """Raise ConfigError for the first argument that is not of the type that its constructor declares."""
    try:
        hints = get_type_hints(kind.__init__)
    except Exception:  # a name in them that only a type checker knows
        return
    for name, value in component.arguments.items():
        hint = hints.get(name)
        options = get_args(hint) if isinstance(hint, UnionType) else (hint,)
        if any(one not in (*_TYPES, NoneType) for one in options):
            continue
        fitting = (int, float) if float in options else tuple(options)
        if isinstance(value, fitting) and not (isinstance(value, bool) and bool not in options):
            continue
        allowed = " or ".join(_TYPES.get(one, "null") for one in options)
        raise ConfigError(f"{where}.{name}={_shown(value)} has the wrong type: it takes {allowed}")


def _shown(value: Any) -> str:
    return "null" if value is None else repr(value)


_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def find(target: str, base: type[Any], names: Mapping[str, type[B]], key: str) -> type[B]:
    """The class that `target` names, checked for its base.

    Raises:
        ConfigError: unknown name, failed import, wrong base, abstract methods left.
    """
    found: Any = names.get(target)
    if found is None:
        if "." not in target and ":" not in target:
            raise ConfigError(
                f"{key}={target} is unknown: it takes one of {', '.join(names)}, or the dotted path of "
                f"a class derived from {base.__module__}.{base.__qualname__}{suggest(target, names)}"
            )
        found = _import(target, key)
    if not (inspect.isclass(found) and issubclass(found, base)):
        raise ConfigError(f"{key}={target} is no class derived from {base.__module__}.{base.__qualname__}")
    missing = sorted(getattr(found, "__abstractmethods__", ()))
    if missing:
        raise ConfigError(
            f"{key}={target} leaves methods of {base.__qualname__} undefined: {', '.join(missing)}"
        )
    kind: type[Any] = found
    return kind


def _import(target: str, key: str) -> Any:
    module_name, _, name = target.rpartition(":" if ":" in target else ".")
    here = os.getcwd()
    # A console command does not search the current folder, where a user's own module most often lies. Last
    # in the path, it cannot hide an installed module.
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        way_out = _MOVED.get(str(error.name), "install it, or run the command in its folder")
        raise ConfigError(f"{key}={target}: no module named {error.name}; {way_out}") from error
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"{key}={target}: importing {module_name} failed: {type(error).__name__}: {error}"
        ) from error
    try:
        return getattr(module, name)
    except AttributeError:
        if module_name == "__main__":
            raise ConfigError(
                f"{key}={target}: the program that runs has no {name}; a class that another one defined has "
                f"to be put into a module and be named by that, {key}=MODULE.{name}"
            ) from None
        known = [one for one in vars(module) if inspect.isclass(getattr(module, one))]
        raise ConfigError(f"{key}={target}: {module_name} has no {name}{suggest(name, known)}") from None
