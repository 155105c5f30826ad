"""Graphs from other libraries' objects (floor 4): frames, arrays, NetworkX and PyG graphs in, a `Graph` out.

No library is imported for it: objects are known by what they offer. They are in memory already; for edges
that are not, use `prepare` with files or `prepare_arrays` with a generator.
"""

from marius_py.convert.api import graph_from, is_graph_data

__all__ = ["graph_from", "is_graph_data"]
