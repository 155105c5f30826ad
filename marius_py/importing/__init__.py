"""Data and checkpoints of other systems (floor 5): their files in; a prepared graph and a run folder out.

Files are read as data only: nothing pickled is opened, HDF5 data sets must lie in the file itself.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from marius_py.importing.dglke import dglke_graph, dglke_run
    from marius_py.importing.pbg import pbg_graph, pbg_run

__all__ = ["dglke_graph", "dglke_run", "pbg_graph", "pbg_run"]


if not TYPE_CHECKING:  # where a name that is none is to be found by those who check types

    def __getattr__(name: str) -> Any:
        """Import on first use: a run that names the decoder below this package needs nothing else of it."""
        if name in __all__:
            return getattr(importlib.import_module(f"{__name__}.{name.split('_')[0]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
