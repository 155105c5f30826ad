"""What an interrupted write has left (floor 5): a folder and a pattern in, paths and findings out."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path

from marius_py.storage.verify import Finding

REMOVE = "nothing depends on it; remove it"
NEXT_START = "the next start removes it"


def entries(folder: Path, pattern: str) -> list[Path]:
    """Paths in a folder whose names match, in order; none if it is missing.

    Raises:
        OSError: the folder may not be read, where `Path.glob` finds nothing.
    """
    try:
        with os.scandir(folder) as entries:
            return sorted(folder / entry.name for entry in entries if fnmatch(entry.name, pattern))
    except FileNotFoundError:
        return []


def folders(folder: Path, name: re.Pattern[str]) -> list[Path]:
    """Folders in a folder of which the whole name matches, in order; what else lies there is the user's."""
    return [path for path in entries(folder, "*") if name.fullmatch(path.name) and path.is_dir()]


def strays(paths: Iterable[Path], remedy: str) -> list[Finding]:
    """A harmless finding of each path."""
    return [
        Finding(str(path), f"{path} is left from an interrupted write", remedy, harmless=True)
        for path in sorted(paths)
    ]
