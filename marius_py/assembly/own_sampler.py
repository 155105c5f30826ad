"""A sampler of a user's own, tried before anything of a run is written (floor 5): a graph in, errors out."""

from __future__ import annotations

import numpy as np

from marius_py.assembly.own_parts import failing
from marius_py.config import TrainConfig, make_components
from marius_py.data.drawing import checked
from marius_py.data.drawn_ahead import is_foreign
from marius_py.graph import Graph
from marius_py.nn.negatives import ResidentNodes
from marius_py.partitioning import Partitioning
from marius_py.storage.protocols import Edges
from marius_py.types import SIDES

_BLOCK_EDGES = 1 << 20
"""Edges that are looked at at once for such as lie between the first partitions."""


def check_sampler(config: TrainConfig, graph: Graph, partitioning: Partitioning, capacity: int) -> None:
    """Refuse a sampler of a user's own that cannot draw for a batch of the graph's train edges.

    Asked once memory is known to hold the buffer and a batch. The nodes in memory are those of the first
    `capacity` partitions.

    Raises:
        ConfigError: it fails, or gives anything but (C, K) ids of these nodes; names `negatives.sampler`.
    """
    sampler = make_components(config).sampler  # anew, lest the run begins with one that has been used
    if not is_foreign(sampler):
        return
    edges = _some_edges(config, graph, partitioning, capacity)
    if not len(edges):
        return
    sizes = [partitioning.size(part) for part in range(capacity)]
    starts = partitioning.starts()[:capacity]
    sums = None
    if sampler.needs_degrees:
        sums = [
            np.cumsum(graph.degrees(start, start + size)) for start, size in zip(starts, sizes, strict=True)
        ]
    resident = ResidentNodes(starts, np.array(sizes, np.int64), sums)
    rng = np.random.default_rng(0)
    for side in SIDES:
        what = f"sample of edges {edges.shape}, side {side!r},"
        with failing(f"negatives.sampler={config.negatives.sampler.target}: {what}"):
            drawn = sampler.sample(edges, resident, side, rng)
        checked(drawn, len(edges), resident)


def _some_edges(config: TrainConfig, graph: Graph, partitioning: Partitioning, capacity: int) -> Edges:
    """A batch (B, 3) of train edges between the first `capacity` partitions, which cannot be written to.

    It divides into `negatives.chunks`, as all batches of a run but the last ones of a step do; of too few
    edges some recur.
    """
    size, chunks = config.training.batch_size, config.negatives.chunks
    with graph.edges() as store:
        for block in store.blocks("train", _BLOCK_EDGES):
            inside = (partitioning.part_of(block[:, ::2]) < capacity).all(axis=1)
            found = block[inside][:size]
            if len(found):
                edges: Edges = np.resize(found, (max(len(found) // chunks, 1) * chunks, 3)).astype(np.int64)
                edges.flags.writeable = False
                return edges
    return np.empty((0, 3), np.int64)
