"""How many tails a head has by relation, and the reverse (floor 4): blocks of train edges in, means out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from marius_py.arrays import distinct
from marius_py.evaluation.ranking.candidates import Ids
from marius_py.evaluation.ranking.known import side_keys
from marius_py.prepare.survey import edge_keys
from marius_py.storage.protocols import Edges

_EDGE_BYTES = 48
"""Bytes of an edge's three keys, and of those of one kind while they are joined and sorted."""


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
    passes = max(1, -(-num_edges * _EDGE_BYTES // max(memory_bytes, 1)))
    kinds: tuple[Callable[[Edges], Ids], ...] = (
        lambda part: _edge_keys(part, relations),
        lambda part: side_keys(part, "tail", num_nodes, relations),
        lambda part: side_keys(part, "head", num_nodes, relations),
    )
    edges, *pairs = _count_distinct(blocks, kinds, relations, passes)
    tails, heads = (np.where(edges > 0, edges / np.maximum(number, 1), np.nan) for number in pairs)
    return tails, heads


def _count_distinct(
    blocks: Callable[[], Iterable[Edges]],
    kinds: Sequence[Callable[[Edges], Ids]],
    relations: int,
    passes: int,
) -> NDArray[np.int64]:
    """Distinct keys (kinds, R) of all edges by kind of key and relation, the rest of a key divided by R.

    The edges are gone through `passes` times, each time for the keys of one residue class, so that these fit
    in memory.
    """
    counts = np.zeros((len(kinds), relations), dtype=np.int64)
    for residue in range(passes):
        found = [[np.empty(0, dtype=np.int64)] for _ in kinds]
        for part in blocks():
            for kept, keys in zip(found, kinds, strict=True):
                mine = keys(part)
                if passes > 1:
                    mine = mine[mine // relations % passes == residue]
                kept.append(distinct(mine))
        for count in counts:
            ids = distinct(np.concatenate(found.pop(0)))
            count += np.bincount(ids % relations, minlength=relations)
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
