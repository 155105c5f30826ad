"""One plain value against its field's type and range (floor 5).

In: a plain value, as YAML or the command line give it, and the field that it is for. Out: the value as the
field has it, or one message: key, value, what is allowed.
"""

from __future__ import annotations

import math
import os
import types
import typing
from collections.abc import Mapping
from dataclasses import Field
from os import PathLike
from typing import Any, Literal, get_args, get_origin

from marius_py.config.fields import Component
from marius_py.config.near import suggest
from marius_py.errors import ConfigError
from marius_py.storage.targets import check_no_nul
from marius_py.whole import MAX_INT64


def coerce(value: Any, hint: Any, key: str, item: Field[Any]) -> Any:
    """Check one plain value against its field's type and range.

    Raises:
        ConfigError: wrong type or out of range; names key, value and what is allowed.
    """
    options, optional = _alternatives(hint)
    value = as_list(value)
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
            raise ConfigError(f"{key}={shown(value)} is empty: it takes {allowed(hint, item)}")
        inner = get_args(kind)[0]
        return tuple(_scalar(as_list(one), inner, key, hint, item, value) for one in values)
    if get_origin(kind) is Mapping:
        if not isinstance(value, Mapping):
            raise ConfigError(f"{key}={shown(value)} has the wrong type: it takes {allowed(hint, item)}")
        return {str(k): v for k, v in value.items()}
    return _scalar(value, kind, key, hint, item, value)


def as_list(value: Any) -> Any:
    """A range, an array or a tensor as the list of its values, a number of NumPy as Python's; else itself."""
    if isinstance(value, range):
        return list(value)
    tolist = None if isinstance(value, type) else getattr(value, "tolist", None)
    return tolist() if callable(tolist) else value


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
    wrong = ConfigError(f"{key}={shown(whole)} has the wrong type: it takes {allowed(hint, item)}")
    if kind is bool:
        if not isinstance(value, bool):
            raise wrong
        return value
    if kind is str:
        # An unquoted name of digits arrives as an integer; its text is the same.
        if isinstance(value, int) and not isinstance(value, bool):
            value = str(value)
        if item.metadata["path"]:
            value = _path(value, key)
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
        raise ConfigError(f"{key}={shown(whole)} is out of range: it takes {allowed(hint, item)}")
    if kind is int and number > MAX_INT64:
        raise ConfigError(f"{key}={shown(whole)} is out of range: it takes {allowed(hint, item)}, below 2^63")
    return number


def _path(value: Any, key: str) -> Any:
    """The text of a path, if `value` is one, in any type; ConfigError if no file can have it."""
    value = os.fsdecode(value) if isinstance(value, PathLike) else value
    if isinstance(value, str):
        check_no_nul(value, f"{key}={value}")
    return value


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


def shown(value: Any) -> str:
    """A value as messages have it: texts in quotation marks."""
    return repr(value) if isinstance(value, str) else str(value)
