"""Arguments of public functions (floor 0): what a caller gave in; a path or a truth value, or one message
out that names it.

Where an argument is of a wrong type, Python's own error comes from somewhere below, and does not say which
argument it was.
"""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from marius_py.errors import ConfigError
from marius_py.readable import readable

_SHOWN = 80


def as_path(given: Any, name: str, allowed: str) -> Path:
    """The path that an argument is.

    Args:
        given: the argument.
        name: of it.
        allowed: what it should name, such as "the file to write".

    Raises:
        ConfigError: it is none; says what is allowed.

    >>> as_path("runs/mine", "run", "a run folder").name
    'mine'
    """
    if not isinstance(given, (str, PathLike)):
        raise ConfigError(f"{name} is {shown(given)}; allowed: {allowed}")
    return Path(given)


def check_flags(**given: object) -> None:
    """Refuse with a ConfigError, by their names, arguments that are neither True nor False.

    By its truth value a text such as "no" would count as True.

    >>> check_flags(overwrite=False, mirror=np.True_)
    """
    for name, value in given.items():
        if not isinstance(value, (bool, np.bool_)):
            raise ConfigError(f"{name} is {shown(value)}; allowed: True or False")


def shown(given: Any) -> str:
    """A value of a wrong type and that type, in one line and cut.

    >>> shown(7), shown("a" * 99)[-8:]
    ('7, int', 'aa…, str')
    """
    text = readable(repr(given))
    text = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
    return f"{text}, {type(given).__name__}"
