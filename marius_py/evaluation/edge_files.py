"""Edges to rank, by name (floor 4): a file and a prepared graph in, (E, 3) ids out."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from marius_py.errors import ConfigError, FormatError
from marius_py.graph import Graph
from marius_py.graph.similar import similar_in
from marius_py.prepare.blocks import EdgeBlock
from marius_py.prepare.extend import is_numbered
from marius_py.prepare.sources import open_source
from marius_py.storage.protocols import Edges

_SHOWN = 3


def read_edges(path: Path | str, graph: Graph, **reading: Any) -> Edges:
    """Read edges of a graph from an edge list with the columns of `marius-prepare`.

    Args:
        path: TSV, CSV or Parquet (or NumPy) file with names; text may be compressed.
        graph: whose nodes and relations they are.
        reading: how the file is read: format, columns, header, quoting, comment and delimiter of
            `marius_py.prepare.prepare`.

    Returns:
        (E, 3) int64 head, relation and tail ids, in the file's order.

    Raises:
        ConfigError: names that the graph lacks (how many, and similar ones), other columns than the graph's,
        or a way to read that is none of the file's format. FormatError: the file's content is wrong or empty.
        MissingPathError: no such file.
    """
    source = open_source(path, key="edges", numbered=partial(is_numbered, graph), **reading)
    if source.has_relations != graph.has_relations:
        has, lacks = ("three", "two") if source.has_relations else ("two", "three")
        raise ConfigError(
            f"edges={path} has {has} columns, but {graph.path} was prepared from edges of {lacks}: "
            "give head, relation and tail, or head and tail only, as the graph has them; input.columns says "
            "which columns these are"
        )
    blocks = [_as_text(block) for block in source.blocks()]
    if not sum(len(block[0]) for block in blocks):
        raise FormatError(f"{path} holds no edges")
    heads, relations, tails = (
        pa.chunked_array(parts, pa.large_string()) for parts in zip(*blocks, strict=True)
    )
    nodes, node_lookup = _lookup(graph, "node", [heads, tails])
    kinds, kind_lookup = _lookup(graph, "relation", [relations])
    edges = np.stack(
        (_ids(heads, *node_lookup), _ids(relations, *kind_lookup), _ids(tails, *node_lookup)), axis=1
    )
    missing = [(kind, names) for kind, names in (("node", nodes), ("relation", kinds)) if names]
    if missing:
        raise _unknown(path, graph, missing, int((edges < 0).any(axis=1).sum()), len(edges))
    return edges


def _as_text(block: EdgeBlock) -> tuple[Any, Any, Any]:
    """Head, relation ("" without relations) and tail names as text."""
    relation = pa.array([""] * block.num_edges) if block.relation is None else block.relation
    head, relation, tail = (column.cast(pa.large_string()) for column in (block.head, relation, block.tail))
    return head, relation, tail


def _lookup(
    graph: Graph, kind: str, columns: Sequence[Any]
) -> tuple[list[str], tuple[Any, NDArray[np.int64]]]:
    """Names that the graph lacks; all distinct names with their ids (−1 for those)."""
    chunks = [chunk for column in columns for chunk in column.chunks]
    distinct = pc.unique(pa.chunked_array(chunks, pa.large_string()))
    names: list[str] = distinct.to_pylist()
    ids = graph.node_ids(names) if kind == "node" else graph.relation_ids(names)
    return [name for name, number in zip(names, ids.tolist(), strict=True) if number < 0], (distinct, ids)


def _ids(column: Any, distinct: Any, ids: NDArray[np.int64]) -> NDArray[np.int64]:
    place = pc.index_in(column, value_set=distinct).combine_chunks()
    found: NDArray[np.int64] = ids[place.to_numpy(zero_copy_only=False)]
    return found


def _unknown(
    path: Path | str, graph: Graph, missing: Sequence[tuple[str, list[str]]], affected: int, total: int
) -> ConfigError:
    lacks = []
    hints = []
    for kind, names in missing:
        shown = ", ".join(repr(name) for name in names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
        lacks.append(f"{len(names):,} {kind}{'s' if len(names) > 1 else ''} ({shown})")
        hints += similar_in(graph, kind, names[0])[:2]
    hint = f" Did you mean {' or '.join(repr(name) for name in hints)}?" if hints else ""
    return ConfigError(
        f"edges={path}: {affected:,} of {total:,} edges name what {graph.path} lacks: {' and '.join(lacks)}."
        f"{hint} Leaving them out would flatter the figures: correct the file, take them out of it, or add "
        "them to the graph and the run with marius-extend"
    )
