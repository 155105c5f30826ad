"""Scores of edges by name or id (floor 4)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from marius_py.convert.named import from_frame
from marius_py.errors import ConfigError
from marius_py.evaluation.evaluator import DEFAULT_MEMORY_BYTES
from marius_py.predict.completion import score_edges
from marius_py.predict.queries import PARTS, Queries
from marius_py.run_files.given_names import Name, is_name
from marius_py.run_files.reader import RunReader, check_open

_ALLOWED = (
    "a list of triples (head, relation, tail) of names, an array (n, 3) of ids, or a data frame of names"
)


def score(
    run: RunReader,
    triples: Iterable[Sequence[Name | None]] | NDArray[np.integer],
    *,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
) -> NDArray[np.float64]:
    """Scores (n,) float64 of edges, as `run.score` gives them.

    Args:
        run: an open run.
        triples: names (head, relation, tail) in any iterable or data frame, or ids (n, 3); in a graph without
            relations (head, tail), or None for the relation.
        memory_bytes: bound of the working memory, at least 16 MiB.

    Raises:
        ConfigError: an unknown or missing name, another shape, what holds no triples, or a wrong bound.
        StorageError: reading failed.
    """
    check_open(run)
    return score_edges(run, edge_ids(run, triples), memory_bytes=memory_bytes)


def are_names(edges: Any) -> bool:
    """Whether edges come as names rather than ids, which are the numbers of an array or a tensor.

    >>> are_names([(3, 0, 4)]), are_names(np.array([(3, 0, 4)])), are_names(np.array([("3", "0", "4")]))
    (True, False, True)
    """
    if isinstance(edges, np.ndarray):
        return edges.dtype.kind in "OSTU"
    return not isinstance(edges, torch.Tensor)


def edge_ids(
    run: RunReader,
    triples: Iterable[Sequence[Name | None]] | NDArray[np.integer],
    *,
    what: str = "triples",
) -> NDArray[np.int64]:
    """Ids (n, 3) of edges: an id array (n, 3), or names (head, relation, tail), or (head, tail).

    Names come in any iterable of triples, or in a data frame. In a graph without relations the relation may
    be None. Messages call the triples `what`.

    Raises:
        ConfigError: an unknown or missing name, another shape, or what holds no triples.
    """
    if isinstance(triples, np.ndarray) and np.issubdtype(triples.dtype, np.integer):
        edges = triples.astype(np.int64)
        limits = (run.num_nodes, max(run.graph.num_relations, 1), run.num_nodes)
        if edges.ndim != 2 or edges.shape[1] != 3:
            raise ConfigError(f"{what} have shape {edges.shape}; expected (n, 3) ids")
        if len(edges) and ((edges < 0).any() or (edges >= np.array(limits)).any()):
            raise ConfigError(f"ids of {what} must lie below {limits} (nodes, relations, nodes), from 0")
        return edges
    rows = _rows(triples, what)
    widths = {len(row) for row in rows}
    if not rows:
        return np.empty((0, 3), dtype=np.int64)
    if widths == {2} and not run.graph.has_relations:
        rows = [(row[0], "", row[1]) for row in rows]
    elif widths != {3}:
        raise ConfigError(f"{what} have {sorted(widths)} parts; expected (head, relation, tail) each")
    for number, row in enumerate(rows, 1):
        missing = [part for part, name in zip(PARTS, row, strict=True) if name is None]
        if missing and (missing != ["relation"] or run.graph.has_relations):
            raise ConfigError(
                f"triple {number} leaves out {' and '.join(missing)}; give all of {', '.join(PARTS)}"
            )
    head, relation, tail = ([row[part] for row in rows] for part in range(3))
    queries = Queries(run, head, relation, tail, lambda number: f"triple {number + 1}")
    return queries.ids


def _rows(triples: Any, what: str) -> list[tuple[Any, ...]]:
    """The triples of a frame or an iterable, in its order; ConfigError for what holds none."""
    if hasattr(triples, "columns"):
        named = from_frame(triples, None)
        parts = (named.heads, named.relations, named.tails)
        return list(zip(*(map(str, part) for part in parts if part is not None), strict=True))
    if not _is_iterable(triples) or isinstance(triples, (str, bytes, Mapping)):
        raise ConfigError(f"{what} is {triples!r} ({type(triples).__name__}); allowed: {_ALLOWED}")
    given = list(triples)
    if len(given) in (2, 3) and all(map(is_name, given)):
        shown = ", ".join(map(repr, map(str, given)))
        raise ConfigError(f"{what} is the single triple ({shown}); pass a list of triples")
    for number, row in enumerate(given, 1):
        if not _is_iterable(row) or isinstance(row, (str, bytes, Mapping, Set)):  # of a set nothing is first
            raise ConfigError(
                f"triple {number} is {row!r} ({type(row).__name__}); expected (head, relation, tail): "
                f"{what} may be {_ALLOWED}"
            )
    return [tuple(row) for row in given]


def _is_iterable(given: Any) -> bool:
    """Whether something can be gone over; an array without dimensions has the method, and cannot."""
    try:
        iter(given)
    except TypeError:
        return False
    return True
