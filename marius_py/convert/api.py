"""Which reader an object needs, and which arguments belong to it (floor 4): objects in, a `Graph` out."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from marius_py.convert.named import NamedEdges, from_array, from_frame, from_networkx, number
from marius_py.convert.pyg import number_hetero, number_pyg
from marius_py.errors import ConfigError
from marius_py.graph import Graph
from marius_py.prepare import ProgressHook, prepare_arrays
from marius_py.types import SPLITS

Kind = Literal["frame", "array", "networkx", "pyg", "hetero"]

_ALLOWED = (
    "allowed: a pandas or polars frame, an Arrow table, a NumPy array or list of (head, relation, tail), a "
    "NetworkX graph, a PyG Data or HeteroData"
)

_BELONGS: dict[str, tuple[Kind, str]] = {
    "columns": ("frame", "a pandas or polars frame or an Arrow table"),
    "relation": ("networkx", "a NetworkX graph"),
    "node_names": ("pyg", "a PyG Data"),
}
"""Argument that only one kind of object has a use for → that kind."""

_WEIGHTED: tuple[Kind, ...] = ("frame", "networkx", "pyg", "hetero")
"""Kinds of objects in which a name tells what holds the weights of edges."""


def graph_from(
    data: Any,
    output: Path | str,
    *,
    valid: Any = None,
    test: Any = None,
    columns: Sequence[str] | None = None,
    relation: str | None = None,
    weight: str | None = None,
    node_names: Sequence[str] | None = None,
    partitions: int | None = None,
    seed: int = 0,
    split: Sequence[float] | None = None,
    undirected: bool = False,
    mirror: bool = False,
    overwrite: bool = False,
    progress: ProgressHook | None = None,
) -> Graph:
    """Prepare a graph from an object in memory.

    Args:
        data: one of

            - a pandas or polars frame, an Arrow table or record batch: a row an edge;
            - a NumPy array (E, 3) head, relation, tail or (E, 2) head, tail, of integers or texts, or a list
              of such tuples; integers are names too, they need not be dense;
            - a NetworkX graph: the edge attribute named by `relation` is the relation; keys of a MultiGraph
              are left out; a node's name is str(node); an undirected edge is stored once, and with
              `mirror` in both directions;
            - a PyG `Data`: `edge_index`, and `edge_type` if there is one; nodes are named by their numbers or
              by `node_names`. A PyG `HeteroData`: its edge types are the relations; nodes are named
              "type/number", and a number means the same node in all splits. Where an object
              has `edge_label_index`, as `RandomLinkSplit` makes it, the edges of valid and test are the
              positive ones there, and those of train are these and `edge_index`.

            Names of bytes are read as UTF-8.
        output: folder to create.
        valid: edges of the validation split, of the same kind.
        test: edges of the test split. With neither, the edges are split at random by `split`.
        columns: of a frame, in the order head, (relation,) tail; None: by usual names, as for files (see
            `marius_py.prepare.column_names`), else its two or three columns by position, unless one has a
            usual name of another part. A named index of a pandas frame is refused then: it may be a part.
        relation: name of the edge attribute of a NetworkX graph, which all edges then need; None: "relation"
            if they have it, else the one with a usual name for it, as for `columns`.
        weight: name of what holds the weights of the edges in `data`, which say what each counts in training
            beside the others (see `prepare`): a column of a frame, an attribute of the edges of a NetworkX
            graph, `edge_weight` or another attribute (E,) of a PyG `Data` or of each edge type of a
            `HeteroData` that has edges; None: edges count alike. It is left out of `valid` and `test`.
        node_names: of a PyG `Data`, by number.
        partitions, seed, split, undirected, mirror, overwrite, progress: as for `prepare`.

    Returns:
        The graph, opened.

    Raises:
        ConfigError: an object of another kind, a name that is missing, or an argument that is wrong or has no
        effect. FormatError: no edges, or bytes that are no UTF-8.

    >>> import tempfile
    >>> edges = [("Oslo", "capital_of", "Norway"), ("Bern", "capital_of", "Switzerland")]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     graph = graph_from(edges, f"{folder}/graph", split=(1, 0, 0), partitions=1)
    ...     graph.num_nodes, sorted(graph.relation_names())
    (4, ['capital_of'])
    """
    if data is None:
        raise ConfigError(f"data is None; give the edges to train on as data=, {_ALLOWED}")
    parts = {name: part for name, part in zip(SPLITS, (data, valid, test), strict=True) if part is not None}
    kinds = {_known_kind(part) for part in parts.values()}
    for name, value in (("columns", columns), ("relation", relation), ("node_names", node_names)):
        kind, what = _BELONGS[name]
        if value is not None and kind not in kinds:
            raise ConfigError(
                f"{name}= has no effect on {type(data).__name__}: it belongs to {what}; leave it out"
            )
    if weight is not None and not kinds <= set(_WEIGHTED):
        raise ConfigError(
            f"weight= has no effect on {type(data).__name__}: it belongs to a frame, a NetworkX graph, a PyG "
            "Data or HeteroData; for arrays, give weights= of marius_py.prepare.prepare_arrays, or leave it "
            "out"
        )
    for key, given in (("relation", relation), ("weight", weight)):
        if not isinstance(given, Hashable):
            raise ConfigError(
                f"{key} is of type {type(given).__name__}; allowed: the name of what holds the {key}s in "
                f"{type(data).__name__}"
            )
    if kinds == {"hetero"}:
        arrays, names = number_hetero(parts, weight)
    elif kinds == {"pyg"}:
        arrays, names = number_pyg(parts, node_names, weight)
    elif kinds & {"hetero", "pyg"}:
        raise ConfigError("the splits are objects of different kinds; give all of them alike")
    else:
        named = {
            name: _named(part, columns, relation, weight, weighted=weight is not None and name == "train")
            for name, part in parts.items()
        }
        arrays, names = number(named)
    return prepare_arrays(
        arrays["train"],
        output,
        valid=arrays.get("valid"),
        test=arrays.get("test"),
        partitions=partitions,
        seed=seed,
        split=split,
        undirected=undirected,
        mirror=mirror,
        overwrite=overwrite,
        progress=progress,
        **names,
    )


def is_graph_data(data: Any) -> bool:
    """Whether `graph_from` takes this object, as far as one sees from outside."""
    return _kind(data) is not None


def _kind(data: Any) -> Kind | None:
    if hasattr(data, "edge_types") and hasattr(data, "node_types") and not hasattr(data, "columns"):
        return "hetero"  # and no pandas frame with columns of these names
    if hasattr(data, "collect") or hasattr(data, "columns"):  # in this order: polars warns of lazy columns
        return "frame"
    if hasattr(data, "edge_index"):
        return "pyg"
    if hasattr(data, "nodes") and hasattr(data, "edges") and callable(getattr(data, "is_directed", None)):
        return "networkx"
    return "array" if isinstance(data, (np.ndarray, list, tuple)) else None


def _known_kind(data: Any) -> Kind:
    kind = _kind(data)
    if kind is None:
        raise ConfigError(f"cannot read edges from {type(data).__name__}; {_ALLOWED}")
    return kind


def _named(
    data: Any, columns: Sequence[str] | None, relation: str | None, weight: str | None, *, weighted: bool
) -> NamedEdges:
    kind = _kind(data)
    if kind == "frame":
        return from_frame(data, columns, weight, weighted=weighted)
    if kind == "networkx":
        return from_networkx(data, relation, weight, weighted=weighted)
    return from_array(data)
