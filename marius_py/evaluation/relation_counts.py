"""How many tails a head has by relation, and the reverse (floor 4): blocks of train edges in, means out."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from marius_py.evaluation.ranking.candidates import Ids
from marius_py.evaluation.ranking.known import side_keys
from marius_py.prepare.survey import edge_keys
from marius_py.storage.protocols import Edges

_KEY_BYTES = 32


def count_multiplicity(
    blocks: Callable[[], Iterable[Edges]],
    num_edges: int,
    num_nodes: int,
    num_relations: int,
    memory_bytes: int,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean tails per (head, relation) and mean heads per (relation, tail) of train edges, for each relation.

    Args:
        blocks: gives a fresh iterator over blocks (E, 3) of train edges; an edge that repeats counts once.
        num_edges: in all blocks together.
        num_nodes: N.
        num_relations: R.
        memory_bytes: budget for distinct edges and pairs.

    Returns:
        tails_per_head (R,), heads_per_tail (R,) float64; NaN for a relation without edges.
    """
    relations = max(num_relations, 1)
    passes = max(1, -(-num_edges * _KEY_BYTES // max(memory_bytes, 1)))

    def count(keys: Callable[[Edges], Ids]) -> NDArray[np.int64]:
        return _count_distinct(blocks, keys, relations, passes)

    edges = count(lambda part: _edge_keys(part, relations))
    pairs = (
        count(lambda part: side_keys(part, "tail", num_nodes, relations)),
        count(lambda part: side_keys(part, "head", num_nodes, relations)),
    )
    tails, heads = (np.where(edges > 0, edges / np.maximum(number, 1), np.nan) for number in pairs)
    return tails, heads


def _count_distinct(
    blocks: Callable[[], Iterable[Edges]], keys: Callable[[Edges], Ids], relations: int, passes: int
) -> NDArray[np.int64]:
    """Distinct keys (R,) of all edges by relation, the rest of a key divided by R.

    The edges are gone through `passes` times, each time for the keys of one residue class, so that these fit
    in memory.
    """
    counts = np.zeros(relations, dtype=np.int64)
    for residue in range(passes):
        found = [np.empty(0, dtype=np.int64)]
        for part in blocks():
            mine = keys(part)
            found.append(np.unique(mine[mine // relations % passes == residue]))
        distinct = np.unique(np.concatenate(found))
        counts += np.bincount(distinct % relations, minlength=relations)
    return counts


def _edge_keys(edges: Edges, relations: int) -> Ids:
    """Key (E,) of each edge (E, 3): hash · R + relation.

    Three ids need not fit in 64 bits. Of a billion edges of one relation, the hash makes less than one
    disappear on average.
    """
    keys = (edge_keys(edges) >> np.uint64(2)).astype(np.int64)
    keys -= keys % relations
    keys += edges[:, 1]
    return keys
