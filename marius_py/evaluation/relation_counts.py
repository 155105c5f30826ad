"""How many tails a head has by relation, and the reverse (floor 4): blocks of train edges in, means out."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from marius_py.evaluation.ranking.known import side_keys
from marius_py.storage.protocols import Edges

_KEY_BYTES = 32


def count_multiplicity(
    blocks: Callable[[], Iterable[Edges]], num_nodes: int, num_relations: int, memory_bytes: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean tails per (head, relation) and mean heads per (relation, tail) of train edges, for each relation.

    Distinct pairs are collected in as many passes over the edges as the memory asks for, each pass taking the
    pairs whose node id falls into its residue class.

    Args:
        blocks: gives a fresh iterator over blocks (E, 3) of train edges, no edge twice.
        num_nodes: N.
        num_relations: R.
        memory_bytes: budget for distinct pairs.

    Returns:
        tails_per_head (R,), heads_per_tail (R,) float64; NaN for a relation without edges.
    """
    relations = max(num_relations, 1)
    edges = np.zeros(relations, dtype=np.int64)
    for part in blocks():
        edges += np.bincount(part[:, 1], minlength=relations)
    passes = max(1, -(-int(edges.sum()) * _KEY_BYTES // max(memory_bytes, 1)))
    means = []
    for side, column in (("tail", 0), ("head", 2)):
        pairs = np.zeros(relations, dtype=np.int64)
        for residue in range(passes):
            found: list[NDArray[np.int64]] = []
            for part in blocks():
                chosen = part if passes == 1 else part[part[:, column] % passes == residue]
                found.append(np.unique(side_keys(chosen, side, num_nodes, relations)))  # type: ignore[arg-type]
            distinct = np.unique(np.concatenate(found)) if found else np.empty(0, dtype=np.int64)
            pairs += np.bincount(distinct % relations, minlength=relations)
        with np.errstate(invalid="ignore", divide="ignore"):
            means.append(np.where(pairs > 0, edges / np.maximum(pairs, 1), np.nan))
    return means[0], means[1]
