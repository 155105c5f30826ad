"""A prepared graph's folder (floor 1): a path in; counts, partition ranges, names and edges out.

h5py and pyarrow are imported only by what reads edges or names.
"""

from marius_py.graph.prepared import Graph, check_graph, open_graph

__all__ = ["Graph", "check_graph", "open_graph"]
