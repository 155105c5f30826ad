"""From plain values to checked settings (floor 5): types, ranges, unknown keys, one message an error.

In: nested mappings of plain values, as YAML or the command line give them. Out: frozen dataclasses. Each
field declares its default, unit and range once, with `setting`; everything else (checks, `--help`, the
table of the documentation) is derived from that declaration.
"""

from __future__ import annotations

import difflib
import math
import re
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, replace
from typing import Any, ClassVar, Literal, TypeVar, get_args, get_origin

from marius_py.config.built_in import short_name
from marius_py.errors import ConfigError

T = TypeVar("T")

MEBIBYTE = 2**20
_NO_INT64 = 2**63
"""Integers from here on are none that arrays of ids, counts and bytes hold."""

NAME_KEYS = ("_target_", "name")
"""The keys under which a component's mapping may hold its name."""


@dataclass(frozen=True, slots=True)
class Component:
    """A class to be used, by its registered name or dotted path, with its own arguments.

    Attributes:
        target: registered name ("complex") or dotted path ("mypkg.MyDecoder").
        arguments: keyword arguments that the class takes besides those the package passes.
    """

    target: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, value: Any, key: str) -> Component:
        """Read a name, or a mapping with `_target_` (or `name`) and arguments; ConfigError names `key`."""
        if isinstance(value, Component):
            return value
        if isinstance(value, str) and value:
            return cls(value)
        if isinstance(value, Mapping):
            given = [name for name in NAME_KEYS if name in value]
            if len(given) == 1 and isinstance(value[given[0]], str) and value[given[0]]:
                return cls(value[given[0]], {str(k): v for k, v in value.items() if k != given[0]})
        raise ConfigError(
            f"{key}={value!r} names no class: allowed are a registered name, a dotted path, or a mapping "
            "with _target_ and arguments, such as {_target_: mypkg.MyClass, alpha: 0.5}"
        )

    def plain(self) -> dict[str, Any]:
        """The component as a mapping that `parse` reads back."""
        return {"_target_": self.target, **self.arguments}


def setting(
    default: Any,
    text: str,
    *,
    unit: str = "",
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    below: float | None = None,
    float32: bool = False,
    choices: tuple[str, ...] = (),
    path: bool = False,
    registry: str = "",
) -> Any:
    """Declare a field of a configuration dataclass.

    Args:
        default: the value without any override.
        text: what the setting does, one sentence.
        unit: unit of a number.
        low, high: inclusive ends of the range; `above`, `below`: exclusive ones.
        float32: rows are computed with the number, so float32 has to hold it.
        choices: the allowed names of a string whose type is not a Literal of them.
        path: the string is a file or folder name, so any character is taken as it stands.
        registry: of a class, the dictionary of `marius_py.nn.registry` that names the built-in ones.
    """
    metadata = {
        "text": text,
        "unit": unit,
        "low": low,
        "high": high,
        "above": above,
        "below": below,
        "float32": float32,
        "choices": choices,
        "path": path,
        "registry": registry,
    }
    if isinstance(default, (dict, list)):
        raise TypeError("a mutable default is shared between instances; give a tuple or a Component")
    if isinstance(default, Component):
        return field(default_factory=lambda: default, metadata=metadata)
    return field(default=default, metadata=metadata)


def section(kind: type[T]) -> T:
    """Declare a field that holds another configuration dataclass with its defaults."""
    return field(default_factory=kind)


def default_of(item: Field[Any]) -> Any:
    """The default value of a dataclass field, whichever way it is declared."""
    if item.default is not MISSING:
        return item.default
    if item.default_factory is not MISSING:
        return item.default_factory()
    return MISSING


def type_of(owner: type[Any], name: str) -> Any:
    """The resolved type of a field."""
    if owner not in _HINTS:
        _HINTS[owner] = typing.get_type_hints(owner)
    return _HINTS[owner][name]


_HINTS: dict[type[Any], dict[str, Any]] = {}
"""Resolved types by class: resolving them is a quarter of the time of composing."""


def join(prefix: str, name: str) -> str:
    """The dotted key of a field."""
    return f"{prefix}.{name}" if prefix else name


_NEAR, _EQUALLY = 0.65, 0.1
"""Share of letters in common from which words are near, and the difference that decides nothing."""


def suggest(word: str, known: Iterable[str]) -> str:
    """'; did you mean …?' for the nearest known word, two if they are about as near, or nothing.

    >>> suggest("trainin.batchsize", ["training.batch_size", "training.epochs"])
    '; did you mean training.batch_size?'
    >>> suggest("training.colour", ["training.batch_size", "training.epochs"])
    ''
    """
    found = sorted((-_nearness(word, name), name) for name in set(known))
    best = [name for nearness, name in found if nearness < 0 and nearness <= found[0][0] + _EQUALLY]
    return f"; did you mean {' or '.join(best[:2])}?" if best else ""


def _nearness(word: str, name: str) -> float:
    """How alike two keys are, 0 to 1; 0 if a part between dots or slashes is unlike its counterpart."""
    parts, others = (re.split("[./]", one.casefold()) for one in (word, name))
    # A key without its section is compared with the last parts: batch_size with training.batch_size.
    count = min(len(parts), len(others))
    alike = [
        difflib.SequenceMatcher(None, one, other).ratio()
        for one, other in zip(parts[-count:], others[-count:], strict=True)
    ]
    if min(alike) >= _NEAR:
        return sum(alike) / count - (_EQUALLY / 2 if len(parts) != len(others) else 0)
    return _NEAR / 2 if parts[-1] == others[-1] else 0.0  # the right key in a wrong section


def keys_of(kind: type[Any], prefix: str = "") -> Iterator[tuple[str, type[Any], Field[Any]]]:
    """All leaf keys of a configuration class in order: (dotted key, owner class, field).

    The field of a class's further arguments is none: they are keys beside the others.
    """
    for item in fields(kind):
        hint = type_of(kind, item.name)
        if is_dataclass(hint) and isinstance(hint, type) and hint is not Component:
            yield from keys_of(hint, join(prefix, item.name))
        elif item.metadata and item.name != getattr(kind, "SPREAD", None):
            yield join(prefix, item.name), kind, item


def allowed(hint: Any, item: Field[Any]) -> str:
    """What a field takes, in words: type, range, unit."""
    data = item.metadata
    options, optional = _alternatives(hint)
    named = _words(options)
    options = options[:1]
    choices = _choices(hint, item)
    if choices:
        words = "one of " + ", ".join(choices)
    elif options == (bool,):
        words = "true or false"
    elif options in ((int,), (float,)):
        words = ("an integer" if options == (int,) else "a number") + _range_words(data)
    elif options == (str,):
        words = "a path" if data["path"] else "a string"
    elif options == (Component,):
        words = "a name, a dotted path or a mapping with _target_"
    elif get_origin(options[0]) is tuple:
        inner = get_args(options[0])[0]
        words = f"a list of {'integers' if inner is int else 'numbers' if inner is float else 'strings'}"
        words += _range_words(data)
    else:
        words = "a mapping"
    if data["unit"]:
        words += f" ({data['unit']})"
    words += "".join(f", or {name}" for name in named)
    return words + (", or null" if optional else "")


def coerce(value: Any, hint: Any, key: str, item: Field[Any]) -> Any:
    """Check one plain value against its field's type and range.

    Raises:
        ConfigError: wrong type or out of range; names key, value and what is allowed.
    """
    options, optional = _alternatives(hint)
    if value is None:
        if optional:
            return None
        raise ConfigError(f"{key}=null is not allowed: it takes {allowed(hint, item)}")
    if isinstance(value, str) and value in _words(options):
        return value
    kind = options[0]
    if kind is Component:
        return Component.parse(value, key)
    if get_origin(kind) is tuple:
        values = value if isinstance(value, (list, tuple)) else (value,)
        if not values and item.default != ():
            raise ConfigError(f"{key}={_show(value)} is empty: it takes {allowed(hint, item)}")
        inner = get_args(kind)[0]
        return tuple(_scalar(one, inner, key, hint, item, value) for one in values)
    if get_origin(kind) is Mapping:
        if not isinstance(value, Mapping):
            raise ConfigError(f"{key}={_show(value)} has the wrong type: it takes {allowed(hint, item)}")
        return {str(k): v for k, v in value.items()}
    return _scalar(value, kind, key, hint, item, value)


def build(
    kind: type[T], values: Mapping[str, Any], prefix: str = "", known: Iterable[str] | None = None
) -> T:
    """Make a configuration dataclass from nested plain values.

    Args:
        kind: the dataclass.
        values: plain values by field name, sections as mappings; what is left out takes its default.
        prefix: dotted key of this section.
        known: all keys of the whole configuration, for suggestions.

    Raises:
        ConfigError: an unknown key, a wrong type or a value out of range.
    """
    if not isinstance(values, Mapping):
        raise ConfigError(
            f"{prefix}={_show(values)} has the wrong type: it is a section with keys of its own"
        )
    names = {item.name: item for item in fields(typing.cast(Any, kind))}
    spread = getattr(kind, "SPREAD", None)
    everything = list(known) if known is not None else [key for key, _, _ in keys_of(kind, prefix)]
    made: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    for name, value in values.items():
        name = str(name)
        if name in names and name != spread:
            hint = type_of(kind, name)
            key = join(prefix, name)
            if is_dataclass(hint) and isinstance(hint, type) and hint is not Component:
                made[name] = build(hint, {} if value is None else value, key, everything)
            elif is_note(names[name]):
                made[name] = value
            else:
                made[name] = coerce(value, hint, key, names[name])
        elif spread is not None:
            extra[name] = value
        else:
            raise unknown_key(join(prefix, name), everything)
    if spread is not None and extra:
        made[spread] = extra
    return kind(**made)


def unknown_key(key: str, known: Iterable[str]) -> ConfigError:
    """The error for a key that no setting has."""
    names = list(known)
    near = [name for name in names if name.split(".")[0] == key.split(".")[0]] if "." in key else []
    if not near:
        near = list(dict.fromkeys(name.split(".")[0] + ".*" if "." in name else name for name in names))
    listed = ", ".join(near)
    return ConfigError(f"unknown key {key}{suggest(key, names)} (allowed here: {listed})")


def check_fields(config: Any, prefix: str) -> None:
    """Check every leaf of a dataclass that was made directly in Python; ConfigError as `build` raises it.

    Called by `__post_init__`, so that a value out of range cannot enter by any door. Lists become tuples, and
    paths of built-in classes their names.
    """
    for item in fields(config):
        if not item.metadata:
            continue
        value = getattr(config, item.name)
        checked = coerce(value, type_of(type(config), item.name), join(prefix, item.name), item)
        checked = _by_short_name(checked, item.metadata["registry"])
        if checked is not value:
            object.__setattr__(config, item.name, checked)


def _by_short_name(value: Any, registry: str) -> Any:
    if not registry:
        return value
    if isinstance(value, Component):
        return replace(value, target=short_name(value.target, registry))
    return short_name(value, registry)


class Checked:
    """Checks the leaves on construction; `PREFIX` is the dotted key that messages name."""

    __slots__ = ()
    PREFIX: ClassVar[str] = ""

    def __post_init__(self) -> None:
        check_fields(self, self.PREFIX)
        self.check()

    def check(self) -> None:
        """Check what concerns several fields at once; ConfigError when they do not fit together."""


def is_note(item: Field[Any]) -> bool:
    """Whether a field is no setting and no section, but what the program notes beside settings."""
    return not item.metadata and item.default is not MISSING


def plain(config: Any) -> dict[str, Any]:
    """A configuration as nested plain values that `build` reads back (for YAML and JSON).

    What the program notes beside settings is left out where there is nothing to note.
    """
    values: dict[str, Any] = {}
    spread = getattr(config, "SPREAD", None)
    for item in fields(config):
        value = getattr(config, item.name)
        if is_note(item) and value == item.default:
            continue
        if isinstance(value, Component):
            values[item.name] = value.plain()
        elif is_dataclass(value):
            values[item.name] = plain(value)
        elif item.name == spread:
            values.update(value)
        elif isinstance(value, tuple):
            values[item.name] = list(value)
        else:
            values[item.name] = value
    return values


def _alternatives(hint: Any) -> tuple[tuple[Any, ...], bool]:
    """The non-null alternatives of a type, and whether null is one."""
    if get_origin(hint) in (typing.Union, types.UnionType):
        rest = tuple(one for one in get_args(hint) if one is not type(None))
        return rest, len(rest) < len(get_args(hint))
    if get_origin(hint) is Literal:
        return (str,), False
    return (hint,), False


def _words(options: tuple[Any, ...]) -> tuple[str, ...]:
    """The words that a field takes besides what its first type allows: those of `int | Literal["auto"]`."""
    return tuple(word for one in options[1:] if get_origin(one) is Literal for word in get_args(one))


def _choices(hint: Any, item: Field[Any]) -> tuple[str, ...]:
    """The names that a string may be, () if any."""
    return get_args(hint) if get_origin(hint) is Literal else item.metadata["choices"]


def _scalar(value: Any, kind: Any, key: str, hint: Any, item: Field[Any], whole: Any) -> Any:
    wrong = ConfigError(f"{key}={_show(whole)} has the wrong type: it takes {allowed(hint, item)}")
    if kind is bool:
        if not isinstance(value, bool):
            raise wrong
        return value
    if kind is str:
        # An unquoted name of digits arrives as an integer; its text is the same.
        if isinstance(value, int) and not isinstance(value, bool):
            value = str(value)
        if not isinstance(value, str):
            raise wrong
        choices = _choices(hint, item)
        if choices and value not in choices:
            raise ConfigError(
                f"{key}={value} is unknown: it takes {allowed(hint, item)}{suggest(value, choices)}"
            )
        if not value:
            raise ConfigError(f"{key} is an empty string: it takes {allowed(hint, item)}")
        return value
    if isinstance(value, bool) or not isinstance(value, int if kind is int else (int, float)):
        raise wrong
    number = int(value) if kind is int else _as_float(value)
    if not _in_range(number, item.metadata):
        raise ConfigError(f"{key}={_show(whole)} is out of range: it takes {allowed(hint, item)}")
    if kind is int and number >= _NO_INT64:
        raise ConfigError(f"{key}={_show(whole)} is out of range: it takes {allowed(hint, item)}, below 2^63")
    return number


def _as_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # an integer of hundreds of digits
        return math.inf


def _in_range(value: float, data: Mapping[str, Any]) -> bool:
    if isinstance(value, float) and not math.isfinite(value):
        return False
    if data["float32"]:
        from marius_py.arrays import is_float32  # help does without NumPy

        if not is_float32(value):
            return False
    return (
        (data["low"] is None or value >= data["low"])
        and (data["high"] is None or value <= data["high"])
        and (data["above"] is None or value > data["above"])
        and (data["below"] is None or value < data["below"])
    )


def _range_words(data: Mapping[str, Any]) -> str:
    words = []
    if data["low"] is not None:
        words.append(
            f"at least {_number(data['low'])}" if data["high"] is None else f"from {_number(data['low'])}"
        )
    if data["above"] is not None:
        words.append(f"above {_number(data['above'])}")
    if data["high"] is not None:
        words.append(
            f"to {_number(data['high'])}" if data["low"] is not None else f"up to {_number(data['high'])}"
        )
    if data["below"] is not None:
        words.append(f"below {_number(data['below'])}")
    if data["float32"]:
        words.append("that float32 holds")
    return (" " + " ".join(words)) if words else ""


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"


def _show(value: Any) -> str:
    return repr(value) if isinstance(value, str) else str(value)
