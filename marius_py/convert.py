"""Graphs from other libraries' objects (floor 4): frames, arrays, NetworkX and PyG graphs in, a `Graph` out.

No library is imported for it: objects are known by what they offer. They are in memory already; for edges
that are not, use `prepare` with files or `prepare_arrays` with a generator.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from marius_py.errors import ConfigError
from marius_py.graph import Graph
from marius_py.prepare import prepare_arrays
from marius_py.prepare.columns import UnclearColumnsError, log_left_out, log_order, recognise_columns
from marius_py.prepare.progress import ProgressHook

_ALLOWED = (
    "allowed: a pandas or polars frame, an Arrow table, a NumPy array or list of (head, relation, tail), a "
    "NetworkX graph, a PyG Data or HeteroData"
)


@dataclass(frozen=True, slots=True)
class _Edges:
    """Named edges: columns (E,) of names; `nodes` are all nodes if some may have no edge."""

    heads: Sequence[Any]
    relations: Sequence[Any] | None
    tails: Sequence[Any]
    nodes: Sequence[Any] | None = None


@dataclass(frozen=True, slots=True)
class _Numbered:
    """Numbered edges (E, 3) or (E, 2), with names by number where there are any."""

    edges: NDArray[np.integer]
    num_nodes: int | None = None
    node_names: Sequence[str] | None = None
    relation_names: Sequence[str] | None = None


def graph_from(
    data: Any,
    output: Path | str,
    *,
    valid: Any = None,
    test: Any = None,
    columns: Sequence[str] | None = None,
    relation: str = "relation",
    node_names: Sequence[str] | None = None,
    partitions: int | None = None,
    seed: int = 0,
    split: Sequence[float] | None = None,
    overwrite: bool = False,
    progress: ProgressHook | None = None,
) -> Graph:
    """Prepare a graph from an object in memory.

    Args:
        data: one of

            - a pandas or polars frame or an Arrow table: a row an edge;
            - a NumPy array (E, 3) head, relation, tail or (E, 2) head, tail, of integers or texts, or a list
              of such tuples; integers are names too, they need not be dense;
            - a NetworkX graph: an edge attribute named by `relation` is the relation, if all edges have it; a
              node's name is str(node); an undirected edge is stored once;
            - a PyG `Data`: `edge_index`, and `edge_type` if there is one; nodes are named by their numbers or
              by `node_names`. A PyG `HeteroData`: its edge types are the relations; nodes are named
              "type/number".
        output: folder to create.
        valid: edges of the validation split, of the same kind.
        test: edges of the test split. With neither, the edges are split at random by `split`.
        columns: of a frame, in the order head, (relation,) tail; None: by usual names, as for files (see
            `marius_py.prepare.columns`), else its two or three columns by position.
        relation: name of the edge attribute of a NetworkX graph.
        node_names: of a PyG `Data`, by number.
        partitions, seed, split, overwrite, progress: as for `prepare`.

    Returns:
        The graph, opened.

    Raises:
        ConfigError: an object of another kind, or an argument is wrong. FormatError: no edges.

    >>> import tempfile
    >>> edges = [("Oslo", "capital_of", "Norway"), ("Bern", "capital_of", "Switzerland")]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     graph = graph_from(edges, f"{folder}/graph", split=(1, 0, 0), partitions=1)
    ...     graph.num_nodes, sorted(graph.relation_names())
    (4, ['capital_of'])
    """
    if data is None:
        raise ConfigError(f"data is None; give the edges to train on as data=, {_ALLOWED}")
    splits = [_read(part, columns, relation, node_names) for part in (data, valid, test) if part is not None]
    numbered = [part for part in splits if isinstance(part, _Numbered)]
    if numbered and len(numbered) < len(splits):
        raise ConfigError("the splits are objects of different kinds; give all of them alike")
    if numbered:
        arrays: list[NDArray[np.integer]] = [part.edges for part in numbered]
        first = numbered[0]
        if any(part.relation_names != first.relation_names for part in numbered):
            raise ConfigError("the splits have different edge types; give all of them alike")
        num_nodes = max((part.num_nodes for part in numbered if part.num_nodes is not None), default=None)
        names: dict[str, Any] = {"node_names": first.node_names, "relation_names": first.relation_names}
        if first.node_names is None:
            names["num_nodes"] = num_nodes
    else:
        arrays, names = _number([part for part in splits if isinstance(part, _Edges)])
    given = iter(arrays)
    return prepare_arrays(
        next(given),
        output,
        valid=None if valid is None else next(given),
        test=None if test is None else next(given),
        partitions=partitions,
        seed=seed,
        split=split,
        overwrite=overwrite,
        progress=progress,
        **names,
    )


def is_graph_data(data: Any) -> bool:
    """Whether `graph_from` takes this object, as far as one sees from outside."""
    return (
        isinstance(data, (list, tuple, np.ndarray))
        or any(hasattr(data, name) for name in ("edge_index", "columns"))
        or (
            hasattr(data, "nodes") and hasattr(data, "edges") and callable(getattr(data, "is_directed", None))
        )
        or hasattr(data, "edge_types")
    )


def _read(
    data: Any, columns: Sequence[str] | None, relation: str, node_names: Sequence[str] | None
) -> _Edges | _Numbered:
    if hasattr(data, "edge_types") and hasattr(data, "node_types"):
        return _from_hetero(data)
    if hasattr(data, "edge_index"):
        return _from_pyg(data, node_names)
    if hasattr(data, "nodes") and hasattr(data, "edges") and hasattr(data, "is_directed"):
        return _from_networkx(data, relation)
    if hasattr(data, "columns") or isinstance(data, pa.Table):
        return _from_frame(data, columns)
    if isinstance(data, (np.ndarray, list, tuple)):
        return _from_array(data)
    raise ConfigError(f"cannot read edges from {type(data).__name__}; {_ALLOWED}")


def _from_frame(frame: Any, columns: Sequence[str] | None) -> _Edges:
    """A pandas or polars frame, or an Arrow table."""
    present = list(frame.column_names if isinstance(frame, pa.Table) else frame.columns)
    chosen = _frame_columns(present) if columns is None else list(columns)
    missing = [name for name in chosen if name not in present]
    if missing or len(chosen) not in (2, 3):
        raise ConfigError(
            f"columns are {chosen}; allowed: two or three of the frame's {', '.join(map(str, present))}, in "
            "the order head, (relation,) tail"
        )
    repeated = [name for name in chosen if chosen.count(name) > 1 or present.count(name) > 1]
    if repeated:
        raise ConfigError(
            f"columns are {chosen}, but {repeated[0]!r} is there twice, in columns= or in the frame (it has "
            f"{', '.join(map(str, present))}); every column needs a name of its own: rename them, or choose "
            "others with columns="
        )
    parts = [_column(frame, name) for name in chosen]
    return _Edges(parts[0], parts[1] if len(parts) == 3 else None, parts[-1])


def _frame_columns(present: list[Any]) -> list[Any]:
    """Columns by usual names if they tell head and tail, else all of them by position."""
    names = [str(name) for name in present]
    try:
        found = recognise_columns(names)
    except UnclearColumnsError as error:
        relation, plain = ([present[i] for i in way] for way in (error.with_relation, error.without))
        raise ConfigError(
            f"the frame {error.problem}. Choose with columns={relation}, or without relations with "
            f"columns={plain}"
        ) from None
    if found is not None:
        log_left_out(names, found, "the frame")
        return [present[i] for i in found.used]
    if len(present) not in (2, 3):
        raise ConfigError(
            f"the frame has columns {', '.join(names)}; say which are head, (relation,) tail with columns="
        )
    log_order(names, "the frame", "columns= chooses others")
    return present


def _column(frame: Any, name: Any) -> list[Any]:
    column = frame.column(name) if isinstance(frame, pa.Table) else frame[name]
    values: list[Any] = (
        column.to_pylist() if hasattr(column, "to_pylist") else column.to_list()
        if hasattr(column, "to_list") else list(column)
    )  # fmt: skip
    if any(map(_is_missing, values)):
        raise ConfigError(f"column {name!r} has empty cells; every edge needs a head, relation and tail")
    return values


def _is_missing(value: Any) -> bool:
    """None, NaN, and pandas' NA, whose truth is not defined."""
    try:
        return value is None or bool(value != value)
    except TypeError:
        return True


def _from_array(data: Any) -> _Edges:
    if isinstance(data, np.ndarray):
        if data.ndim != 2 or data.shape[1] not in (2, 3):
            raise ConfigError(f"the array has shape {data.shape}; edges need (E, 3) or (E, 2)")
        if data.dtype.kind == "f":
            raise ConfigError(f"the array has type {data.dtype}; edges are integers or texts")
        parts = [data[:, i].tolist() for i in range(data.shape[1])]
    else:
        widths = {len(row) if isinstance(row, Sequence) and not isinstance(row, str) else 0 for row in data}
        if len(widths) != 1 or not widths <= {2, 3}:
            raise ConfigError(
                "a list of edges needs tuples (head, relation, tail) or (head, tail), all alike"
            )
        parts = [list(part) for part in zip(*data, strict=True)]
    return _Edges(parts[0], parts[1] if len(parts) == 3 else None, parts[-1])


def _from_networkx(graph: Any, relation: str) -> _Edges:
    heads, tails, kinds = [], [], []
    for head, tail, attributes in graph.edges(data=True):
        heads.append(head)
        tails.append(tail)
        if relation in attributes:
            kinds.append(attributes[relation])
    if kinds and len(kinds) < len(heads):
        raise ConfigError(
            f"{len(kinds)} of {len(heads)} edges have the attribute {relation!r}; all or none should: "
            "relation= names another attribute"
        )
    nodes = list(graph.nodes())
    if len({str(node) for node in nodes}) < len(nodes):
        raise ConfigError("two nodes have the same name as text, such as 1 and '1'; rename one of them")
    return _Edges(heads, kinds or None, tails, nodes)


def _from_pyg(data: Any, node_names: Sequence[str] | None) -> _Numbered:
    index = _numpy(data.edge_index)
    kinds = getattr(data, "edge_type", None)
    columns = [index[0], index[1]] if kinds is None else [index[0], _numpy(kinds), index[1]]
    return _Numbered(np.stack(columns, axis=1), _stated_nodes(data), node_names)


def _stated_nodes(data: Any) -> int | None:
    """The number of nodes that a PyG object or one of its stores states or can tell."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyG warns where it guesses; the edges then say as much
        count = getattr(data, "num_nodes", None)
    return None if count is None else int(count)


def _count_nodes(data: Any) -> dict[str, int]:
    """Nodes of each type of a `HeteroData`: as stated, else as many as its edges need."""
    counts: dict[str, int] = {kind: _stated_nodes(data[kind]) or 0 for kind in data.node_types}
    for kind in data.edge_types:
        index = _numpy(data[kind].edge_index)
        for end, numbers in ((kind[0], index[0]), (kind[2], index[1])):
            counts[end] = max(counts.get(end, 0), int(numbers.max(initial=-1)) + 1)
    return counts


def _from_hetero(data: Any) -> _Numbered:
    first: dict[str, int] = {}
    names: list[str] = []
    for kind, count in _count_nodes(data).items():
        first[kind] = len(names)
        names += [f"{kind}/{i}" for i in range(count)]
    middle = [kind[1] for kind in data.edge_types]
    relations = middle if len(set(middle)) == len(middle) else ["/".join(kind) for kind in data.edge_types]
    parts = []
    for number, (head, _, tail) in enumerate(data.edge_types):
        index = _numpy(data[data.edge_types[number]].edge_index)
        kinds = np.full(index.shape[1], number)
        parts.append(np.stack([index[0] + first[head], kinds, index[1] + first[tail]], axis=1))
    if not parts:
        raise ConfigError("the HeteroData has no edge types")
    return _Numbered(np.concatenate(parts), len(names), names, relations)


def _numpy(tensor: Any) -> NDArray[np.int64]:
    """A tensor or array as int64 in memory."""
    if hasattr(tensor, "detach"):
        tensor = tensor.detach().cpu().numpy()
    return np.asarray(tensor).astype(np.int64)


def _number(splits: list[_Edges]) -> tuple[list[NDArray[np.integer]], dict[str, Any]]:
    """Number the names of all splits in the order of their first appearance; names are made texts."""
    if len({part.relations is None for part in splits}) > 1:
        raise ConfigError("some splits have relations and some have none; all must agree")
    nodes, relations = _Names(), _Names()
    arrays: list[NDArray[np.integer]] = []
    for part in splits:
        if part.nodes is not None:
            nodes.numbers(part.nodes)
        kinds = [] if part.relations is None else [relations.numbers(part.relations)]
        columns = [nodes.numbers(part.heads), *kinds, nodes.numbers(part.tails)]
        arrays.append(np.stack(columns, axis=1))
    with_relations = splits[0].relations is not None
    return arrays, {
        "node_names": nodes.texts(),
        "relation_names": relations.texts() if with_relations else None,
    }


class _Names:
    """Numbers for names by the order of their first appearance."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def numbers(self, names: Iterable[Any]) -> NDArray[np.int64]:
        known = self._numbers
        return np.array([known.setdefault(str(name), len(known)) for name in names], dtype=np.int64)

    def texts(self) -> list[str]:
        return list(self._numbers)
