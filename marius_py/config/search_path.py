"""Where hydra looks for files (floor 5): the folder of the user's groups in, a path that begins with it out.

Hydra's own --config-dir and hydra.searchpath only add to the end of the path. This module imports hydra, so
it is imported inside functions.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin

_FOLDER: ContextVar[Path | None] = ContextVar("_FOLDER", default=None)


class OwnGroups(SearchPathPlugin):
    """What hydra asks when it makes a search path; launchers pickle it, so it has a name to be found by."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Put the user's folder, if there is one, before the main folder."""
        folder = _FOLDER.get()
        if folder is not None:
            search_path.prepend("--config-dir", f"file://{folder}", "main")


@contextmanager
def searched(folder: Path | None) -> Iterator[None]:
    """Each hydra that is initialised inside looks for files in `folder`, if any, before its main folder."""
    Plugins.instance().register(OwnGroups)
    token = _FOLDER.set(folder)
    try:
        yield
    finally:
        _FOLDER.reset(token)
