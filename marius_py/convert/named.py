"""Edges between names (floor 4): frames, arrays, lists and NetworkX graphs in, numbered edges out.

Names are made texts, and numbered in the order of their first appearance, over all splits.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from marius_py.convert.cells import as_weights, is_missing
from marius_py.errors import ConfigError, FormatError
from marius_py.prepare.blocks import name_fault, pandas_index
from marius_py.prepare.column_names import (
    UnclearColumnsError,
    doubt_ids,
    first_of,
    is_word,
    leave_out_index,
    listed_columns,
    log_left_out,
    log_order,
    no_relations,
    recognise_columns,
    tells_ends,
)

logger = logging.getLogger(__name__)

_FIRST = 6
"""Cells of a column that tell whether it holds numbers; as many lines are looked at of a file."""

_LABELS = ("column 'head'", "column 'relation'", "column 'tail'")


@dataclass(frozen=True, slots=True)
class NamedEdges:
    """Columns (E,) of names, and of weights if they count; `nodes` are all nodes if some may have no edge."""

    heads: Sequence[Any]
    relations: Sequence[Any] | None
    tails: Sequence[Any]
    nodes: Sequence[Any] | None = None
    weights: NDArray[np.float64] | None = None


def number(splits: Mapping[str, NamedEdges]) -> tuple[dict[str, NDArray[np.integer]], dict[str, Any]]:
    """Number the names of all splits.

    Returns:
        (E, 3) or (E, 2) integers by split, and the names and weights as arguments of `prepare_arrays`.

    Raises:
        ConfigError: only some splits have relations. FormatError: a split has no edges, or bytes no UTF-8.
    """
    for name, part in splits.items():
        if not len(part.heads):
            raise FormatError(f"{name} has no edges")
    if len({part.relations is None for part in splits.values()}) > 1:
        raise ConfigError("some splits have relations and some have none; all must agree")
    nodes, relations = _Names(), _Names()
    arrays: dict[str, NDArray[np.integer]] = {}
    for name, part in splits.items():
        if part.nodes is not None:
            nodes.numbers(part.nodes)
        kinds = [] if part.relations is None else [relations.numbers(part.relations)]
        columns = [nodes.numbers(part.heads), *kinds, nodes.numbers(part.tails)]
        arrays[name] = np.stack(columns, axis=1)
    node_names, relation_names = nodes.texts(), relations.texts()
    _check_texts(node_names, "node", arrays, {"head": 0, "tail": -1})
    _check_texts(relation_names, "relation", arrays, {"relation": 1})
    weights = splits["train"].weights
    return arrays, {"node_names": node_names, "relation_names": relation_names or None, "weights": weights}


def _check_texts(
    names: Sequence[str], what: str, arrays: Mapping[str, NDArray[np.integer]], columns: Mapping[str, int]
) -> None:
    """Refuse names that no graph can hold with a ConfigError that says in which edge one is.

    Args:
        names: by number.
        what: "node" or "relation".
        arrays: numbered edges by split.
        columns: those of the edges that hold these numbers, by role.
    """
    for index, name in enumerate(names):
        fault = name_fault(name)
        if fault is not None:
            place = _place_of(index, arrays, columns) or f"a {what}'s name"
            raise ConfigError(f"{place} is {name!r}, which {fault}")


def _place_of(
    index: int, arrays: Mapping[str, NDArray[np.integer]], columns: Mapping[str, int]
) -> str | None:
    """The first place of a number in the edges; None: it is in none, as that of an isolated node."""
    for split, edges in arrays.items():
        found = np.flatnonzero((edges[:, list(columns.values())] == index).any(axis=1))
        if len(found):
            row = int(found[0])
            role = next(role for role, column in columns.items() if edges[row, column] == index)
            return f"{split}, edge {row} (counted from 0): the {role}"
    return None


class _Names:
    """Numbers for names by the order of their first appearance."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def numbers(self, names: Iterable[Any]) -> NDArray[np.int64]:
        known = self._numbers
        return np.array([known.setdefault(_text(name), len(known)) for name in names], dtype=np.int64)

    def texts(self) -> list[str]:
        return list(self._numbers)


def _text(name: Any) -> str:
    """A name as text; bytes, such as NumPy's fixed-width strings, are UTF-8 as in files."""
    if isinstance(name, str):
        return str(name)
    if hasattr(name, "ndim") and not isinstance(name, np.generic):  # a tensor may hold one number, too
        raise ConfigError(
            f"a name is {name!r}, of type {type(name).__name__}; names are texts or numbers: give lists of "
            "these, such as .tolist() makes of an array or tensor"
        )
    if isinstance(name, (Mapping, list, set)):
        raise ConfigError(
            f"a name is {name!r}, of type {type(name).__name__}; names are texts or numbers: leave out "
            "what is no part of an edge, such as the attributes that edges(data=True) of NetworkX gives"
        )
    if not isinstance(name, bytes):
        return str(name)
    try:
        return name.decode()
    except UnicodeDecodeError:
        raise FormatError(f"the name {name!r} is no valid UTF-8; decode it to text first") from None


def from_frame(
    frame: Any, columns: Sequence[str] | None, weight: str | None = None, *, weighted: bool = False
) -> NamedEdges:
    """Edges of a pandas or polars frame, an Arrow table or a record batch; ConfigError for other columns.

    `columns` and `weight` name those of the edges, and one that is no part of them: if `weighted`,
    their weights.
    """
    if callable(getattr(frame, "collect", None)):  # a column of that name is not callable
        raise ConfigError(
            f"{type(frame).__name__} is lazy, its rows are not in memory yet: give what .collect() returns, "
            "or write a Parquet file for marius_py.prepare.prepare where memory is short"
        )
    columns = listed_columns(columns)
    present = list(frame.schema.names if _is_arrow(frame) else frame.columns)
    weights = None
    if weight is not None and (weighted or weight in present):
        if present.count(weight) != 1 or weight in (columns or ()):
            raise ConfigError(
                f"weight is {weight!r}; allowed: one of the frame's {first_of(present)}, which is there once "
                "and is no part of the edges"
            )
        present.remove(weight)
        weights = None if not weighted else as_weights(_column(frame, weight), f"column {weight!r}")
    if columns is None:
        present = _without_index(frame, present)
    chosen = _frame_columns(present) if columns is None else columns
    missing = [name for name in chosen if name not in present]
    if missing or len(chosen) not in (2, 3):
        raise ConfigError(
            f"columns are {chosen}; allowed: two or three of the frame's {first_of(present)}, in "
            "the order head, (relation,) tail"
        )
    repeated = [name for name in chosen if chosen.count(name) > 1 or present.count(name) > 1]
    if repeated:
        raise ConfigError(
            f"columns are {chosen}, but {repeated[0]!r} is there twice, in columns= or in the frame (it has "
            f"{first_of(present)}); every column needs a name of its own: rename them, or choose "
            "others with columns="
        )
    parts = [_column(frame, name) for name in chosen]
    if all(str(value).isdecimal() for part in (parts[0], parts[-1]) for value in part[:_FIRST]):
        doubt_ids(str(chosen[0]), str(chosen[-1]), "the frame")
    return replace(_from_columns(parts, [f"column {name!r}" for name in chosen]), weights=weights)


def _is_arrow(frame: Any) -> bool:
    return isinstance(frame, (pa.Table, pa.RecordBatch))


def _without_index(frame: Any, present: list[Any]) -> list[Any]:
    """The columns but a pandas index among them; ConfigError if the frame's may be a part of the edges."""
    if not _is_arrow(frame):
        _check_index(frame)
        return present
    rest, doubtful = leave_out_index(present, pandas_index(frame.schema), "the table")
    if doubtful:
        raise ConfigError(
            f"the table's {', '.join(map(repr, doubtful))} was the index of a pandas frame, and may be a "
            f"part of the edges: choose two or three of {first_of(present)} with columns="
        )
    return rest


def _check_index(frame: Any) -> None:
    """Refuse a pandas frame whose index may be a part of the edges; ConfigError says how to go on."""
    levels = [name for name in getattr(getattr(frame, "index", None), "names", ()) if name is not None]
    plain = no_relations([str(name) for name in levels])
    doubtful = [name for number, name in enumerate(levels) if number not in plain]
    if doubtful:
        raise ConfigError(
            f"the frame's index has the name {', '.join(map(repr, doubtful))}, and may be a part of the "
            "edges, which are read from columns alone: call reset_index() first to make it a column, or "
            f"choose among the columns {first_of(list(frame.columns))} with columns="
        )


def _frame_columns(present: list[Any]) -> list[Any]:
    """Columns by usual names if they tell head and tail, else all of them by position."""
    names = [str(name) for name in present]
    if len(names) in (2, 3) and len(set(names)) < len(names) and not tells_ends(names):
        return present  # refused by the caller
    try:
        found = recognise_columns(names)
    except UnclearColumnsError as error:
        ways = [[present[i] for i in way] for way in (error.with_relation, error.without)]
        repeated = [name for way in ways for name in way if names.count(str(name)) > 1]
        if repeated:
            raise ConfigError(
                f"the frame {error.problem}. Several columns have the name {repeated[0]!r}: rename them, so "
                "that they can be told apart"
            ) from None
        others = [name for name in ways[0] if name not in ways[1]]
        counting = f", where weight={others[0]!r} lets edges count by numbers in it" if others else ""
        raise ConfigError(
            f"the frame {error.problem}. Choose with columns={ways[0]}, or without relations with "
            f"columns={ways[1]}{counting}"
        ) from None
    if found is not None:
        log_left_out(names, found, "the frame")
        return [present[i] for i in found.used]
    if len(present) not in (2, 3):
        raise ConfigError(
            f"the frame has columns {first_of(names)}; say which are head, (relation,) tail with columns="
        )
    log_order(names, "the frame", "columns= chooses others")
    return present


def _column(frame: Any, name: Any) -> list[Any]:
    column = frame.column(name) if _is_arrow(frame) else frame[name]
    values: list[Any] = (
        column.to_pylist() if hasattr(column, "to_pylist") else column.to_list()
        if hasattr(column, "to_list") else list(column)
    )  # fmt: skip
    return values


def from_array(data: Any) -> NamedEdges:
    """Edges of a NumPy array or of a list of tuples; ConfigError for another shape or type."""
    if isinstance(data, np.ndarray):
        if data.ndim != 2 or data.shape[1] not in (2, 3):
            by_rows = data.ndim == 2 and data.shape[0] in (2, 3)
            hint = ". If its rows are the heads, (relations,) and tails, as in edge_index, give array.T"
            raise ConfigError(
                f"the array has shape {data.shape}; edges need (E, 3) or (E, 2){hint * by_rows}"
            )
        if data.dtype.kind not in "iuUSTO":
            raise ConfigError(f"the array has type {data.dtype}; edges are integers or texts")
        rows = data.view(np.ndarray) if isinstance(data, np.matrix) else data  # its columns are matrices
        parts = [rows[:, i].tolist() for i in range(data.shape[1])]
    else:
        widths = {_width(row) for row in data}
        if len(widths) > 1 or not widths <= {2, 3}:
            raise ConfigError(
                "a list of edges needs tuples (head, relation, tail) or (head, tail), all alike"
            )
        parts = [list(part) for part in zip(*data, strict=True)] or [[], []]
    return _from_columns(parts, _LABELS if len(parts) == 3 else _LABELS[::2])


def _width(row: Any) -> int:
    return len(row) if isinstance(row, Sequence) and not isinstance(row, (str, bytes)) else 0


def from_networkx(
    graph: Any, relation: str | None, weight: str | None = None, *, weighted: bool = False
) -> NamedEdges:
    """Edges and nodes of a NetworkX graph; ConfigError if only some edges have the attribute of relations.

    `relation` and `weight` name attributes of the edges: if `weighted`, all have the latter.
    """
    edges = list(graph.edges(data=True))
    present = Counter(name for _, _, attributes in edges for name in attributes)
    weights = None
    having = present.pop(weight, 0)
    if weight is not None and weighted:
        if having < len(edges) or weight == relation:
            raise ConfigError(
                f"weight is {weight!r}; allowed: an attribute that all {len(edges)} edges have, and that is "
                f"not the relation; they have {first_of(list(present))}"
            )
        values = [attributes[weight] for _, _, attributes in edges]
        weights = as_weights(values, f"edge attribute {weight!r}")
    attribute = _relation_attribute(present, edges) if relation is None else relation
    kinds = [
        attributes[attribute] for _, _, attributes in edges if attribute in attributes and attribute != weight
    ]
    if len(kinds) < len(edges) and (kinds or relation is not None):
        raise ConfigError(
            f"{len(kinds)} of {len(edges)} edges have the attribute {attribute!r}; all "
            f"{'or none ' if relation is None else ''}should: relation= names another attribute"
        )
    _log_attributes(graph, present, attribute if kinds else None)
    nodes = list(graph.nodes())
    _check_cells(nodes, "the list of nodes")
    if len({_text(node) for node in nodes}) < len(nodes):
        raise ConfigError("two nodes have the same name as text, such as 1 and '1'; rename one of them")
    _check_cells(kinds, f"edge attribute {attribute!r}")
    heads, tails = ([edge[end] for edge in edges] for end in (0, 1))
    return NamedEdges(heads, kinds or None, tails, nodes, weights)


def _relation_attribute(present: Iterable[Any], edges: Iterable[tuple[Any, Any, Mapping[Any, Any]]]) -> Any:
    """The edge attribute "relation", else the one with another usual name for it; ConfigError if in doubt."""
    found = [name for name in present if is_word(str(name), "relation")]
    if "relation" in found or not found:
        return "relation"
    if len(found) > 1:
        raise ConfigError(
            f"the edges have the attributes {', '.join(map(repr, found))}, which could each be the relation: "
            "choose one with relation="
        )
    values = (attributes.get(found[0]) for _, _, attributes in edges)
    value = next((one for one in values if isinstance(one, (float, np.floating)) and one == one), None)
    if value is not None:
        raise ConfigError(
            f"edge attribute {found[0]!r} has a usual name for the relation, and floats, such as {value!r}: "
            "rename it if it is none, or choose with relation="
        )
    return found[0]


def _log_attributes(graph: Any, present: Iterable[Any], attribute: Any | None) -> None:
    """Log what of the edges is left out; a warning if keys are, and these may be the relations."""
    left_out = [repr(name) for name in present if name != attribute]
    keys = (key for _, _, key in graph.edges(keys=True)) if graph.is_multigraph() else ()
    key = next((key for key in keys if not isinstance(key, (int, np.integer))), None)
    if key is not None and attribute is None:
        logger.warning(
            "the keys of edges, such as %r, are left out; if they are relations, make them an attribute: "
            "networkx.set_edge_attributes(graph, {edge: edge[2] for edge in graph.edges(keys=True)}, "
            "'relation')",
            key,
        )
    elif key is not None:
        left_out.append(f"the keys, such as {key!r}")
    if left_out:
        taken = "no relation" if attribute is None else f"relation {attribute!r}"
        logger.info("the NetworkX graph: %s; left out of its edges: %s", taken, ", ".join(left_out))


def _from_columns(parts: Sequence[list[Any]], labels: Sequence[str]) -> NamedEdges:
    """Edges of columns head, (relation,) tail, all of whose cells hold a name."""
    for values, label in zip(parts, labels, strict=True):
        _check_cells(values, label)
        _check_whole(values, label)
    return NamedEdges(parts[0], parts[1] if len(parts) == 3 else None, parts[-1])


def _check_cells(values: Sequence[Any], label: str) -> None:
    if any(map(is_missing, values)):
        place = next(i for i, value in enumerate(values) if is_missing(value))
        raise ConfigError(
            f"{label} has empty cells; every edge needs a head, relation and tail: entry {place} (counted "
            f"from 0) is {values[place]!r}"
        )


def _check_whole(values: Sequence[Any], label: str) -> None:
    """Refuse floats, which pandas makes of integers beside a gap: 1 and 1.0 would be two nodes."""
    if any(isinstance(value, (float, np.floating)) for value in values):
        value = next(one for one in values if isinstance(one, (float, np.floating)))
        raise ConfigError(
            f"{label} has floats, such as {value!r}; names are texts or integers: turn the column into one "
            "of these first, in pandas with .astype('Int64') or .astype(str)"
        )
