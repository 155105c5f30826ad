"""Names of nodes and relations as callers give them (floor 4): one or several in, texts out.

Tables hold texts. Where nodes have numbers for names, callers give these as numbers, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from marius_py.errors import ConfigError

Name = str | int | np.integer[Any]
"""A name; a whole number stands for its decimal text."""
Names = Name | Iterable[Name | None] | None
"""One name for all queries, or one a query; None: this is what is asked for."""


def is_name(given: Any) -> bool:
    """Whether something is one name.

    >>> is_name("a"), is_name(7), is_name(["a"]), is_name(True)
    (True, True, False, False)
    """
    return isinstance(given, (str, int, np.integer)) and not isinstance(given, bool)


def name_text(given: Any, what: str) -> str:
    """The text of one name.

    Raises:
        ConfigError: it is none; `what` says whose.
    """
    if not is_name(given):
        hint = ": decode it" if isinstance(given, bytes) else ""
        raise ConfigError(
            f"{what} is {given!r} ({type(given).__name__}); a name is a text or a whole number{hint}"
        )
    return str(given)


def name_list(given: Any, what: str) -> list[Any]:
    """What any iterable of names holds; ConfigError if it is none, or a single text."""
    is_single = isinstance(given, (str, bytes)) or (isinstance(given, np.ndarray) and not given.ndim)
    if is_single or not isinstance(given, Iterable):
        raise ConfigError(f"{what} is {given!r} ({type(given).__name__}); pass a list of names")
    return list(given)


def name_texts(given: Any, what: str) -> list[str]:
    """The texts of an iterable of names; ConfigError as `name_list` and `name_text`."""
    return [name_text(name, what) for name in name_list(given, what)]
