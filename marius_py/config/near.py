"""The nearest of the known names (floor 5): a misspelt word in, what may have been meant out."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence

from marius_py.errors import ConfigError

_NEAR, _EQUALLY = 0.65, 0.1
"""Share of letters in common from which words are near, and the difference that decides nothing."""

_BEGINNING, _SHORTEST = 0.85, 3
"""How near the beginning of a word is to it, of so many letters at least."""

_MEANT = {"gpu": "cuda"}
"""Words of others → the package's, nearer in letters to another of its."""


def suggest(word: str, known: Iterable[str]) -> str:
    """'; did you mean …?' for the nearest known word, two if they are about as near, or nothing.

    >>> suggest("trainin.batchsize", ["training.batch_size", "training.epochs"])
    '; did you mean training.batch_size?'
    >>> suggest("out", ["negatives.count", "output"])
    '; did you mean output?'
    >>> suggest("training.colour", ["training.batch_size", "training.epochs"])
    ''
    """
    word = _MEANT.get(word.casefold(), word)
    found = sorted((-_nearness(word, name), name) for name in set(known))
    best = [name for nearness, name in found if nearness < 0 and nearness <= found[0][0] + _EQUALLY]
    best.sort(key=lambda name: name.count(".") != word.count("."))
    return f"; did you mean {' or '.join(best[:2])}?" if best else ""


def _nearness(word: str, name: str) -> float:
    """How alike two keys are, 0 to 1; 0 if a part between dots or slashes is unlike its counterpart."""
    parts, others = (re.split("[./]", one.casefold()) for one in (word, name))
    # A key without its section is compared with the last parts: batch_size with training.batch_size.
    count = min(len(parts), len(others))
    alike = list(map(_likeness, parts[-count:], others[-count:]))
    if min(alike) >= _NEAR:
        return sum(alike) / count - (_EQUALLY / 2 if len(parts) != len(others) else 0)
    return _NEAR / 2 if parts[-1] == others[-1] else 0.0  # the right key in a wrong section


def _likeness(one: str, other: str) -> float:
    """How alike a part of a key as given and one of a known key are, 0 to 1."""
    ratio = difflib.SequenceMatcher(None, one, other).ratio()
    return max(ratio, _BEGINNING) if len(one) >= _SHORTEST and other.startswith(one) else ratio


class UnknownKeyError(ConfigError):
    """There is no setting `key`."""

    def __init__(self, message: str, key: str = "") -> None:
        super().__init__(message)
        self.key = key


def unknown_key(
    key: str, known: Iterable[str], groups: Sequence[str] = (), commands: Sequence[str] = ()
) -> UnknownKeyError:
    """The error for a key that no setting has.

    Args:
        key: as given.
        known: the settings.
        groups: keys that choose a file.
        commands: others, whose settings have that very key.
    """
    names = list(known)
    likely = names if "." in key else [*names, *groups]
    if commands:  # what is as near as a misspelt key is not what was meant, but for the key in its section
        likely = [name for name in names if name.split(".")[-1] == key.split(".")[-1]]
    meant = suggest(key, likely)
    if commands and not meant:
        meant = f"; it is a setting of {' and '.join(commands)}"
    near = [name for name in names if name.split(".")[0] == key.split(".")[0]] if "." in key else []
    if not near:
        sections = dict.fromkeys(name.split(".")[0] + ".*" if "." in name else name for name in names)
        near = [*sections, *(one for one in groups if one not in sections and f"{one}.*" not in sections)]
    return UnknownKeyError(f"unknown key {key}{meant} (allowed here: {', '.join(near)})", key)
