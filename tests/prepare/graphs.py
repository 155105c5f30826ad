"""Helpers of the prepare tests: write edge lists, and read a prepared graph back as named edges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from marius_py.graph import Graph
from marius_py.types import SPLITS

Named = tuple[str, ...]


def write_rows(path: Path, rows: Iterable[Sequence[str]], delimiter: str = "\t", end: str = "\n") -> Path:
    path.write_bytes("".join(delimiter.join(row) + end for row in rows).encode())
    return path


def named_edges(graph: Graph) -> dict[str, Counter[Named]]:
    """Multisets of (head, relation, tail) names by split; (head, tail) for a graph without relations."""
    nodes, relations = graph.node_names(), graph.relation_names()
    named: dict[str, Counter[Named]] = {}
    with graph.edges() as store:
        for split in SPLITS:
            rows = store.read(split).tolist()
            if graph.has_relations:
                named[split] = Counter((nodes[h], relations[r], nodes[t]) for h, r, t in rows)
            else:
                named[split] = Counter((nodes[h], nodes[t]) for h, _, t in rows)
    return named


def all_edges(graph: Graph) -> Counter[Named]:
    return sum(named_edges(graph).values(), Counter())
