"""marius_py: embeddings of graphs larger than GPU memory or RAM, on one machine.

Importing the package imports nothing heavy: `marius_py.ordering` works with neither torch nor h5py installed,
and what the names below stand for is imported when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from marius_py.version import __version__

_LAZY = {
    "TrainConfig": "marius_py.config",
    "evaluate": "marius_py.api",
    "graph_from": "marius_py.convert",
    "load": "marius_py.run",
    "load_config": "marius_py.config",
    "open_graph": "marius_py.graph",
    "train": "marius_py.api",
}
"""Name → module that holds it."""

_MODULES = (
    "assembly",
    "errors",
    "export",
    "generate",
    "graph",
    "importing",
    "nn",
    "ordering",
    "predict",
    "prepare",
    "report",
    "testing",
    "tracking",
    "types",
    "verify",
)
"""Modules that are found, like names, without an import of their own: those that users need."""

__all__ = [
    "TrainConfig",
    "__version__",
    "evaluate",
    "graph_from",
    "load",
    "load_config",
    "open_graph",
    "train",
]

if TYPE_CHECKING:
    from marius_py import assembly as assembly
    from marius_py import errors as errors
    from marius_py import export as export
    from marius_py import generate as generate
    from marius_py import graph as graph
    from marius_py import importing as importing
    from marius_py import nn as nn
    from marius_py import ordering as ordering
    from marius_py import predict as predict
    from marius_py import prepare as prepare
    from marius_py import report as report
    from marius_py import testing as testing
    from marius_py import tracking as tracking
    from marius_py import types as types
    from marius_py import verify as verify
    from marius_py.api import evaluate, train
    from marius_py.config import TrainConfig, load_config
    from marius_py.convert import graph_from
    from marius_py.graph import open_graph
    from marius_py.run import load


if not TYPE_CHECKING:  # where a name that is none is to be found by those who check types

    def __getattr__(name: str) -> Any:
        """Import a name of `__all__` or a module of `_MODULES` on first use."""
        if name in _MODULES:
            return importlib.import_module(f"{__name__}.{name}")
        if name in _LAZY:
            value = getattr(importlib.import_module(_LAZY[name]), name)
            globals()[name] = value
            return value
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Names without importing what they stand for."""
    return sorted({*globals(), *__all__, *_MODULES})
