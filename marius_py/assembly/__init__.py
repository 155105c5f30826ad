"""A run, put together (floor 5): checked settings in; its parts, joined and trained, and its folder out."""

from marius_py.assembly.joint import Watcher

__all__ = ["Watcher"]
