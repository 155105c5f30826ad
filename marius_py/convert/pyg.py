"""Edges between numbers (floor 4): PyG `Data` and `HeteroData` in, numbered edges and their names out.

PyG is not imported. It checks little of what its objects hold, so shapes and types are checked here.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marius_py.errors import ConfigError

Numbered = tuple[dict[str, NDArray[np.integer]], dict[str, Any]]
"""(E, 3) or (E, 2) integers by split, and counts and names as arguments of `prepare_arrays`."""


def number_pyg(parts: Mapping[str, Any], node_names: Sequence[str] | None) -> Numbered:
    """Edges of a `Data` for every split.

    Raises:
        ConfigError: an attribute of another shape or type, or more nodes than names.
    """
    arrays: dict[str, NDArray[np.integer]] = {}
    for split, data in parts.items():
        head, tail = index = _edge_index(data, f"edge_index of {split}")
        columns = [head, tail]
        kinds = getattr(data, "edge_type", None)
        if kinds is not None:
            count = index.shape[1]
            allowed = f"integers of shape ({count},), one for every column of edge_index"
            columns.insert(1, _integers(kinds, f"edge_type of {split}", (count,), allowed))
        arrays[split] = np.stack(columns, axis=1)
    stated = [count for count in map(_stated_nodes, parts.values()) if count is not None]
    if node_names is None:
        return arrays, {"num_nodes": max(stated, default=None)}
    names = list(node_names)
    if max(stated, default=0) > len(names):
        raise ConfigError(
            f"num_nodes is {max(stated)}, but node_names has {len(names)}: every node needs one"
        )
    return arrays, {"node_names": names}


def number_hetero(parts: Mapping[str, Any]) -> Numbered:
    """Edges of a `HeteroData` for every split; a node type has as many nodes as any split says or needs.

    Raises:
        ConfigError: an attribute of another shape or type.
    """
    indices = {
        split: {kind: _edge_index(data[kind], f"edge_index of {kind} in {split}") for kind in data.edge_types}
        for split, data in parts.items()
    }
    first: dict[str, int] = {}
    names: list[str] = []
    for kind, count in _count_nodes(parts, indices).items():
        first[kind] = len(names)
        names += [f"{kind}/{i}" for i in range(count)]
    kinds = list(dict.fromkeys(kind for found in indices.values() for kind in found))
    arrays: dict[str, NDArray[np.integer]] = {}
    for split, found in indices.items():
        rows = [np.empty((0, 3), dtype=np.int64)]
        for (head, relation, tail), index in found.items():
            number = np.full(index.shape[1], kinds.index((head, relation, tail)))
            rows.append(np.stack([index[0] + first[head], number, index[1] + first[tail]], axis=1))
        arrays[split] = np.concatenate(rows)
    middle = [kind[1] for kind in kinds]
    relations = middle if len(set(middle)) == len(middle) else ["/".join(kind) for kind in kinds]
    return arrays, {"node_names": names, "relation_names": relations}


def _count_nodes(
    parts: Mapping[str, Any], indices: Mapping[str, Mapping[Any, NDArray[np.int64]]]
) -> dict[str, int]:
    """Nodes of each type: the most that a split states or its edges need."""
    counts: dict[str, int] = {}
    for split, data in parts.items():
        for kind in data.node_types:
            counts[kind] = max(counts.get(kind, 0), _stated_nodes(data[kind]) or 0)
        for (head, _, tail), index in indices[split].items():
            for end, numbers in ((head, index[0]), (tail, index[1])):
                counts[end] = max(counts.get(end, 0), int(numbers.max(initial=-1)) + 1)
    return counts


def _stated_nodes(data: Any) -> int | None:
    """The number of nodes that a PyG object or one of its stores states or can tell."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyG warns where it guesses; the edges then say as much
        count = getattr(data, "num_nodes", None)
    return None if count is None else int(count)


def _edge_index(data: Any, what: str) -> NDArray[np.int64]:
    """(2, E) numbers of heads and tails of a PyG object or one of its stores."""
    allowed = "integers of shape (2, E), heads and tails"
    return _integers(getattr(data, "edge_index", None), what, (2, None), allowed)


def _integers(values: Any, what: str, shape: tuple[int | None, ...], allowed: str) -> NDArray[np.int64]:
    """A tensor or array as int64 in memory; ConfigError for another shape (None: any length) or type."""
    if values is None:
        raise ConfigError(f"{what} is missing; allowed: {allowed}")
    if hasattr(values, "detach"):
        values = values.detach().cpu().numpy()
    array = np.asarray(values)
    fits = array.ndim == len(shape) and all(
        size in (None, found) for size, found in zip(shape, array.shape, strict=True)
    )
    if not fits or array.dtype.kind not in "iu":
        raise ConfigError(f"{what} has shape {array.shape} and type {array.dtype}; allowed: {allowed}")
    if array.min(initial=0) < 0:
        raise ConfigError(f"{what} holds the number {array.min()}; allowed: numbers from 0")
    return array.astype(np.int64)
