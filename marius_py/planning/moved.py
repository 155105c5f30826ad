"""What an epoch moves to and from the disk and indexes (floor 5): table and schedule in, numbers out."""

from __future__ import annotations

from marius_py.data.step_edges import BLOCK_EDGES
from marius_py.data.train_edges import HELD_EDGES
from marius_py.storage.aligned import PAGE
from marius_py.storage.edge_layout import row_width
from marius_py.storage.edge_writer import edge_dtype
from marius_py.storage.protocols import NodeTable
from marius_py.types import Schedule


def partition_bytes(table: NodeTable) -> list[int]:
    """Bytes (p,) that reading or writing each partition moves: its own rows in whole pages, not its slot."""
    widths = (table.dim, table.state_dim)
    sizes = map(table.partitioning.size, range(table.partitioning.num_partitions))
    return [sum(-(-rows * width * 4 // PAGE) * PAGE for width in widths) for rows in sizes]


def edge_bytes(
    table: NodeTable,
    num_edges: int,
    schedule: Schedule | None,
    reads_known: bool,
    *,
    weighted: bool = False,
) -> int:
    """Bytes of edges that are read in an epoch between others.

    None where they are few; else each edge once; or, where those between the residents are held to be known,
    those that come with a partition: the edges that run are among them.

    Args:
        table: says how wide ids are.
        num_edges: train edges.
        schedule: how partitions come; None: all are there.
        reads_known: whether edges between the residents are held, if they are not too many.
        weighted: whether edges have weights.
    """
    if num_edges <= HELD_EDGES:
        return 0
    p = table.partitioning.num_partitions
    c = p if schedule is None else schedule.c
    read = num_edges
    if reads_known and num_edges * c**2 <= BLOCK_EDGES * p**2:  # else those of a step are known alone
        steps = () if schedule is None else schedule.steps
        buckets = sum(c**2 - (c - len(step.admit)) ** 2 for step in steps)
        read = num_edges * buckets // p**2
    return read * row_width("train", weighted=weighted) * edge_dtype(table.partitioning.num_nodes).itemsize


def indexed_edges(num_edges: int, schedule: Schedule) -> int:
    """Known edges that the steps of an epoch index: those between their residents, or their own.

    None where they are few: these are indexed once.

    Args:
        num_edges: train edges.
        schedule: of partitions of about as many edges each.
    """
    if num_edges <= HELD_EDGES:
        return 0
    between = num_edges * schedule.c**2 // schedule.p**2
    return num_edges if between > BLOCK_EDGES else len(schedule.steps) * between
