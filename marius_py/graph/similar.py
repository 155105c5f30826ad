"""Names that a user may have meant (floor 1): a name that nothing has in, those most like it out."""

from __future__ import annotations

import difflib
import heapq
from collections.abc import Sequence

from marius_py.graph.prepared import Graph

_NAME_BLOCK = 1 << 16
_SEARCHED_NAMES = 1 << 20
_COMPARED = 200
"""Names that difflib compares: a tenth of a millisecond each where they are long and alike, as URIs are."""


def similar_in(graph: Graph, kind: str, name: str) -> list[str]:
    """Up to three names of a graph most like `name`; of its nodes the first million are looked at.

    Args:
        graph: whose names.
        kind: "node" or "relation".
        name: what they should be like.
    """
    if kind == "relation":
        return similar_names(name, graph.relation_names())
    best: list[str] = []
    limit = min(graph.num_nodes, _SEARCHED_NAMES)
    for start in range(0, limit, _NAME_BLOCK):
        block = graph.node_names(start, min(start + _NAME_BLOCK, limit))
        best = similar_names(name, best + similar_names(name, block))
    return best


def similar_names(name: str, names: Sequence[str], count: int = 3) -> list[str]:
    """Up to `count` of `names` most like `name`, best first; before all, those that are `name` behind a type.

    >>> similar_names("germny", ["France", "Germany", "Norway"])
    ['Germany']
    >>> similar_names("Olso", ["Bern", "Oslo"])
    ['Oslo']
    >>> similar_names("http://a.org/Oslo", ["<http://a.org/Bern>", "<http://a.org/Oslo>"])
    ['<http://a.org/Oslo>']
    >>> similar_names("tp53", ["gene/TP53", "drug/TP53", "gene/ATP53", "TP63"])
    ['gene/TP53', 'drug/TP53', 'TP63']
    """
    wanted = name.casefold()
    length = len(wanted)
    margin = max(2, length // 3)
    ends, letters = wanted[:1] + wanted[-1:], sorted(wanted)
    near: dict[str, str] = {}
    typed: list[str] = []
    for known in names:
        folded = known.casefold()
        if len(typed) < count and folded.endswith(wanted) and _parts(folded[: len(folded) - length]):
            typed.append(known)
            continue
        # Cheap tests first: difflib takes ten microseconds a name and more.
        if abs(len(known) - length) <= margin:
            shares = folded[:2] == wanted[:2] or folded[-3:] == wanted[-3:] or folded[1:4] == wanted[1:4]
            if shares or wanted in folded or (folded[:1] + folded[-1:] == ends and sorted(folded) == letters):
                near.setdefault(folded, known)
    compared: Sequence[str] = list(near)
    if len(near) > _COMPARED:
        compared = heapq.nlargest(_COMPARED, near, key=lambda folded: _shared_ends(wanted, folded))
    alike = [near[folded] for folded in difflib.get_close_matches(wanted, compared, count, 0.7)]
    return (typed + alike)[:count]


def _parts(prefix: str) -> bool:
    """Whether a name goes on as a new word behind this."""
    return prefix != "" and not prefix[-1].isalnum()


def _shared_ends(wanted: str, known: str) -> int:
    """How many letters at the start and at the end are alike: nearly all, where one place is mistyped."""
    if wanted in known:
        return len(wanted)
    return _shared_start(wanted, known) + _shared_start(wanted[::-1], known[::-1])


def _shared_start(one: str, other: str) -> int:
    """How many letters at the start are alike, found by halving: slices are compared at once."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[:middle] == other[:middle]:
            low = middle
        else:
            high = middle - 1
    return low
