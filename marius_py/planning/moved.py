"""Bytes that an epoch moves to and from the disk (floor 5): table and schedule in, what metrics count out."""

from __future__ import annotations

from marius_py.data.step_edges import BLOCK_EDGES
from marius_py.storage.aligned import PAGE
from marius_py.storage.edge_writer import edge_dtype
from marius_py.storage.protocols import NodeTable
from marius_py.types import Schedule


def partition_bytes(table: NodeTable) -> list[int]:
    """Bytes (p,) that reading or writing each partition moves: its own rows in whole pages, not its slot."""
    widths = (table.dim, table.state_dim)
    sizes = map(table.partitioning.size, range(table.partitioning.num_partitions))
    return [sum(-(-rows * width * 4 // PAGE) * PAGE for width in widths) for rows in sizes]


def edge_bytes(table: NodeTable, num_edges: int, schedule: Schedule | None) -> int:
    """Bytes of edges that are read in an epoch: each edge once, and the known ones where partitions swap.

    Args:
        table: says how wide ids are.
        num_edges: train edges.
        schedule: whose residents' edges are read to be known; None: they are not, or are there already.
    """
    read = num_edges
    if schedule is not None and num_edges * schedule.c**2 <= BLOCK_EDGES * schedule.p**2:
        buckets = sum(schedule.c**2 - (schedule.c - len(step.admit)) ** 2 for step in schedule.steps)
        read += num_edges * buckets // schedule.p**2
    return read * 3 * edge_dtype(table.partitioning.num_nodes).itemsize
