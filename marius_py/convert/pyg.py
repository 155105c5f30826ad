"""Edges between numbers (floor 4): PyG `Data` and `HeteroData` in, numbered edges and their names out.

PyG is not imported. It checks little of what its objects hold, so shapes and types are checked here. What
its `RandomLinkSplit` makes holds training edges in the `edge_index` of every split, to pass messages along,
and the edges that the split asks for in `edge_label_index`, beside negatives.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marius_py.convert.cells import check_weights
from marius_py.errors import ConfigError, FormatError
from marius_py.prepare.arrays import listed_names, most_numbers

logger = logging.getLogger(__name__)

Numbered = tuple[dict[str, NDArray[np.integer]], dict[str, Any]]
"""(E, 3) or (E, 2) integers by split, and counts and names as arguments of `prepare_arrays`."""


def number_pyg(
    parts: Mapping[str, Any], node_names: Sequence[str] | None, weight: str | None = None
) -> Numbered:
    """Edges of a `Data` for every split, and the weights of train's if an attribute holds them.

    Raises:
        ConfigError: an attribute of another shape or type, edges that have no type or weight beside others
        that have one, or more nodes than names. FormatError: a split has no edges, or a number is no weight.
    """
    weights: dict[str, Any] = {}
    arrays: dict[str, NDArray[np.integer]] = {}
    for split, data in parts.items():
        index, num_message = _split_edges(data, split, split)
        if not index.size:  # before num_nodes is asked for, which PyG guesses from the edges: 0
            raise FormatError(f"{split} has no edges")
        columns = [index[0], index[1]]
        kinds = getattr(data, "edge_type", None)
        if kinds is not None:
            count = index.shape[1]
            if num_message < count:
                raise ConfigError(
                    f"{split} has edges in edge_label_index, as RandomLinkSplit makes them, and edge_type "
                    "does not say their relations: give objects whose edge_index and edge_type are the "
                    "edges of the split, or a HeteroData; or all edges as data= alone, to be split at random"
                )
            allowed = f"integers of shape ({count},), one for every column of edge_index"
            columns.insert(1, _integers(kinds, f"edge_type of {split}", (count,), allowed))
        arrays[split] = np.stack(columns, axis=1)
        if weight is not None and split == "train":
            weights = {"weights": _weights(data, weight, index.shape[1], split)}
    stated = [count for count in map(_stated_nodes, parts.values()) if count is not None]
    if node_names is None:
        return arrays, {"num_nodes": max(stated, default=None), **weights}
    names = listed_names(node_names, "node_names")
    if max(stated, default=0) > len(names):
        raise ConfigError(
            f"num_nodes is {max(stated)}, but node_names has {len(names)}: every node needs one"
        )
    return arrays, {"node_names": names, **weights}


def _weights(data: Any, attribute: str, count: int, where: str) -> NDArray[Any]:
    """Weights (count,) of all edges of train, or of one of its types."""
    values = getattr(data, attribute, None)
    found = np.empty(0) if values is None else _in_memory(values)
    if found.shape == (count, 1):
        found = found[:, 0]
    if found.shape != (count,) or found.dtype.kind not in "biuf":
        has = "missing" if values is None else f"of shape {found.shape} and type {found.dtype}"
        raise ConfigError(
            f"weight is {attribute!r}, which is {has} in {where}; allowed: an attribute of {count} numbers, "
            "one for every edge (those of edge_label_index too, as RandomLinkSplit makes them)"
        )
    check_weights(found.astype(np.float64), found, f"{attribute} of {where}")
    return found


def number_hetero(parts: Mapping[str, Any], weight: str | None = None) -> Numbered:
    """Edges of a `HeteroData` for every split; a node type has as many nodes as any split says or needs.

    With `weight`, the attribute of that name of all edge types of train that have edges holds their weights.

    Raises:
        ConfigError: an attribute of another shape or type, edges that have no weight beside others that have
        one, or numbers of nodes far above how many there are. FormatError: a number is no weight.
    """
    indices = {split: _hetero_edges(data, split) for split, data in parts.items()}
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
    given: dict[str, Any] = {"node_names": names, "relation_names": relations}
    if weight is not None:
        sizes = {kind: index.shape[1] for kind, index in indices["train"].items() if index.size}
        each = [
            _weights(parts["train"][kind], weight, size, f"{kind} in train") for kind, size in sizes.items()
        ]
        given["weights"] = np.concatenate([np.empty(0), *each])
    return arrays, given


def _hetero_edges(data: Any, split: str) -> dict[Any, NDArray[np.int64]]:
    """(2, E) edges by type; in valid and test of those types alone that have labels, if one of them has."""
    asked = [kind for kind in data.edge_types if _asked(data[kind]) is not None]
    kinds = asked if asked and split != "train" else data.edge_types
    return {kind: _split_edges(data[kind], split, f"{kind} in {split}")[0] for kind in kinds}


def _count_nodes(
    parts: Mapping[str, Any], indices: Mapping[str, Mapping[Any, NDArray[np.int64]]]
) -> dict[str, int]:
    """Nodes of each type: the most that a split states or its edges need."""
    counts: dict[str, int] = {}
    most = most_numbers(sum(index.shape[1] for found in indices.values() for index in found.values()))
    for data in parts.values():
        for kind in data.node_types:
            counts[kind] = max(counts.get(kind, 0), _stated_nodes(data[kind]) or 0)
    for found in indices.values():
        for (head, _, tail), index in found.items():
            for end, numbers in ((head, index[0]), (tail, index[1])):
                needed = int(numbers.max(initial=-1)) + 1
                stated = counts.get(end, 0)
                if needed > max(stated, most):
                    raise ConfigError(
                        f"the largest number of a node of type {end!r} is {needed - 1:,}; numbers must be "
                        f"dense: set num_nodes of {end!r} if that is meant"
                    )
                counts[end] = max(stated, needed)
    return counts


def _stated_nodes(data: Any) -> int | None:
    """The number of nodes that a PyG object or one of its stores states or can tell, not guess."""
    with warnings.catch_warnings(record=True) as guesses:  # PyG warns where it guesses, by edge_index alone
        warnings.simplefilter("always")
        count = getattr(data, "num_nodes", None)
    return None if count is None or guesses else int(count)


def _split_edges(data: Any, split: str, where: str) -> tuple[NDArray[np.int64], int]:
    """(2, E) edges of a split of a PyG object or one of its stores, and how many come from its `edge_index`.

    Train has both kinds: its labelled edges pass messages too, unless `disjoint_train_ratio` took them out.
    Where some do and others do not, which copies of a multigraph's edge are one cannot be told: it is said.
    """
    asked = _asked(data)
    if asked is not None and split != "train":
        return _positives(data, asked, where), 0
    index = _edge_index(getattr(data, "edge_index", None), f"edge_index of {where}")
    count = index.shape[1]
    if asked is None:
        return index, count
    both = np.concatenate([index, _positives(data, asked, where)], axis=1)
    heads, tails = np.unique(both, return_inverse=True)[1].reshape(both.shape)  # whose product fits int64
    pairs = heads * both.size + tails
    known = np.isin(pairs[count:], pairs[:count])
    if known.any() and not known.all():
        logger.warning(
            "%s: %d of %d edges of %s are in edge_index too and are taken for the same ones: where they are "
            "further edges between these nodes, give all edges as edge_index",
            where, np.count_nonzero(known), len(known), asked,
        )  # fmt: skip
    return np.concatenate([index, both[:, count:][:, ~known]], axis=1), count


def _asked(data: Any) -> str | None:
    """Name of the attribute, one of `RandomLinkSplit`, with the edges that an object asks for; None: none."""
    names = ("pos_edge_label_index", "edge_label_index")  # the first with split_labels=True
    return next((name for name in names if getattr(data, name, None) is not None), None)


def _positives(data: Any, name: str, where: str) -> NDArray[np.int64]:
    """(2, E) edges in the attribute `name` that are no negatives."""
    index = _edge_index(getattr(data, name), f"{name} of {where}")
    label = getattr(data, "edge_label", None) if name == "edge_label_index" else None
    if label is None:
        return index
    labels = _in_memory(label)
    if labels.shape != index.shape[1:] or labels.dtype.kind not in "biuf":
        raise ConfigError(
            f"edge_label of {where} has shape {labels.shape} and type {labels.dtype}; allowed: numbers of "
            f"shape {index.shape[1:]}, one for every column of edge_label_index: 0 for a negative"
        )
    positives: NDArray[np.int64] = index[:, labels > 0]
    if positives.shape != index.shape:
        logger.info(
            "%s: left out of edge_label_index: %d of %d edges, which are negatives, of edge_label 0",
            where, index.shape[1] - positives.shape[1], index.shape[1],
        )  # fmt: skip
    return positives


def _edge_index(values: Any, what: str) -> NDArray[np.int64]:
    """(2, E) numbers of heads and tails."""
    return _integers(values, what, (2, None), "integers of shape (2, E), heads and tails")


def _in_memory(values: Any) -> NDArray[Any]:
    """A tensor or array as an array in memory."""
    if not hasattr(values, "detach"):
        return np.asarray(values)
    tensor = values.detach().cpu()
    try:
        return np.asarray(tensor.numpy())
    except TypeError:  # of a type that NumPy has not, as bfloat16
        return np.asarray(tensor.double().numpy())


def _integers(values: Any, what: str, shape: tuple[int | None, ...], allowed: str) -> NDArray[np.int64]:
    """A tensor or array as int64 in memory; ConfigError for another shape (None: any length) or type."""
    if values is None:
        raise ConfigError(f"{what} is missing; allowed: {allowed}")
    array = _in_memory(values)
    fits = array.ndim == len(shape) and all(
        size in (None, found) for size, found in zip(shape, array.shape, strict=True)
    )
    if not fits or array.dtype.kind not in "iu":
        raise ConfigError(f"{what} has shape {array.shape} and type {array.dtype}; allowed: {allowed}")
    if array.min(initial=0) < 0:
        raise ConfigError(f"{what} holds the number {array.min()}; allowed: numbers from 0")
    return array.astype(np.int64)
