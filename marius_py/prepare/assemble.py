"""From numbered rows to a prepared graph's files (floor 4).

In: a spill of rows with provisional numbers, the names in that numbering, and how rows fall into splits. Out:
the files of `write_graph`. Ids are a seeded random permutation of the provisional numbers, so a range of ids
is a random set of nodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from marius_py.graph.names import ROW_GROUP
from marius_py.partitioning import Partitioning
from marius_py.prepare.dictionary import EdgeSpill
from marius_py.prepare.graph_files import GraphContent, write_graph
from marius_py.prepare.progress import ProgressHook
from marius_py.prepare.splitting import GivenSplits, RandomSplits
from marius_py.storage.edge_layout import row_width
from marius_py.storage.edge_writer import BLOCK_ROWS, edge_dtype
from marius_py.storage.protocols import Edges
from marius_py.storage.weighted import WEIGHT
from marius_py.streams import Purpose, stream

UNNAMED_RELATION = pa.array([""], pa.large_string())
"""Names of the relations of a graph without any: one, which is empty."""


@dataclass(frozen=True, slots=True)
class NumberedGraph:
    """A graph whose edges lie in a spill under provisional numbers.

    Attributes:
        spill: (E, 3) rows, or (E, 4) with weights, of which those of train count.
        splits: how rows fall into splits.
        num_nodes: N.
        num_relations: R.
        has_relations: False when the input had two columns.
        node_names: (N,) Arrow array of large_string or int64 by provisional number; None: the numbers
            themselves.
        relation_names: (R,) likewise.
    """

    spill: EdgeSpill
    splits: GivenSplits | RandomSplits
    num_nodes: int
    num_relations: int
    has_relations: bool
    node_names: Any | None
    relation_names: Any | None


def assemble(
    folder: Path,
    graph: NumberedGraph,
    partitioning: Partitioning,
    seed: int,
    progress: ProgressHook,
    block_rows: int = BLOCK_ROWS,
) -> None:
    """Write all files of a graph into `folder`; graph.json last.

    Raises:
        StorageError: a write failed; the folder then holds no graph.
    """
    ids = stream(seed, Purpose.PARTITION)
    new_id = np.arange(graph.num_nodes, dtype=edge_dtype(graph.num_nodes))
    ids.shuffle(new_id)

    def node_names() -> Iterator[Any]:
        old_id = np.empty_like(new_id)
        old_id[new_id] = np.arange(graph.num_nodes, dtype=new_id.dtype)
        return _name_blocks(graph.node_names, old_id)

    def relation_names() -> Iterator[Any]:
        return _name_blocks(graph.relation_names, np.arange(graph.num_relations))

    content = GraphContent(
        partitioning=partitioning,
        num_relations=graph.num_relations,
        has_relations=graph.has_relations,
        seed=seed,
        node_type=_type_of(graph.node_names),
        node_names=node_names,
        relation_type=_type_of(graph.relation_names),
        relation_names=relation_names,
        weighted=graph.spill.weighted,
        mirrored=graph.spill.mirror,
        num_edges=len(graph.spill),
        edges=lambda: _renumbered(graph, new_id, block_rows),
        release=graph.spill.close,
        parts_reverses=isinstance(graph.splits, RandomSplits) and not graph.splits.undirected,
    )
    write_graph(folder, content, progress)


def _renumbered(
    graph: NumberedGraph, new_id: NDArray[np.integer], block_rows: int
) -> Iterator[tuple[str, Edges]]:
    for split, rows in graph.splits.blocks(graph.spill, block_rows):
        edges = np.empty((len(rows), row_width(split, weighted=graph.spill.weighted)), dtype=new_id.dtype)
        edges[:, 0] = new_id[rows[:, 0]]
        edges[:, 1] = rows[:, 1]
        edges[:, 2] = new_id[rows[:, 2]]
        edges[:, WEIGHT:] = rows[:, WEIGHT : edges.shape[1]]
        yield split, edges


def _name_blocks(names: Any | None, order: NDArray[np.integer]) -> Iterator[Any]:
    """Names by provisional number, None for the numbers themselves, in the order (n,) of ids."""
    for start in range(0, len(order), ROW_GROUP):
        indices = pa.array(order[start : start + ROW_GROUP])
        yield indices.cast(pa.int64()) if names is None else names.take(indices)


def _type_of(names: Any | None) -> Any:
    return pa.int64() if names is None else names.type
