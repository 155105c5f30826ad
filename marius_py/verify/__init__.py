"""Checking a run or a graph on disk (floor 5), for `marius-verify`: a folder in, findings out."""

from marius_py.verify.api import is_sound, verify
from marius_py.verify.graphs import verify_graph
from marius_py.verify.runs import verify_run
from marius_py.verify.views import repair

__all__ = ["is_sound", "repair", "verify", "verify_graph", "verify_run"]
