"""Preparing a graph (floor 4): edge lists or arrays in, a graph folder out."""

from marius_py.prepare.api import prepare
from marius_py.prepare.arrays import EdgeBlocks, WeightedEdges, prepare_arrays
from marius_py.prepare.progress import ProgressHook

__all__ = ["EdgeBlocks", "ProgressHook", "WeightedEdges", "prepare", "prepare_arrays"]
