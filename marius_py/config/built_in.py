"""Built-in parts that are named by their path (floor 5): `marius_py.nn.ComplEx` in, "complex" out.

Defaults go by registered names, such as the penalties that suit "complex" with "softmax"; so do exports. A
part has one name in every configuration, however it was given. torch is imported for such a path only.
"""

from __future__ import annotations

import pkgutil


def short_name(path: str, registry: str) -> str:
    """The registered name of a built-in class; names, and paths of other classes, stay as they are.

    Args:
        path: as given; nothing is imported unless it begins with "marius_py.".
        registry: dictionary of `marius_py.nn.registry`, such as "DECODERS".

    >>> [short_name(path, "LOSSES") for path in ("marius_py.nn.MarginLoss", "mypkg.MyLoss")]
    ['margin', 'mypkg.MyLoss']
    """
    if not path.startswith("marius_py."):
        return path
    from marius_py.nn import registry as names

    try:
        found = pkgutil.resolve_name(path)
    except (ImportError, AttributeError, ValueError):
        return path  # what is wrong with it is said where the parts are made
    return next((name for name, kind in getattr(names, registry).items() if kind is found), path)
