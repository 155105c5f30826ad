"""The nearest of the known names (floor 5): a misspelt word in, what may have been meant out."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from marius_py.errors import ConfigError

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


def unknown_key(key: str, known: Iterable[str]) -> ConfigError:
    """The error for a key that no setting has."""
    names = list(known)
    near = [name for name in names if name.split(".")[0] == key.split(".")[0]] if "." in key else []
    if not near:
        near = list(dict.fromkeys(name.split(".")[0] + ".*" if "." in name else name for name in names))
    listed = ", ".join(near)
    return ConfigError(f"unknown key {key}{suggest(key, names)} (allowed here: {listed})")
