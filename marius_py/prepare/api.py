"""Preparing a graph (floor 4): from edge lists, or arrays, to a graph folder.

In: paths or (E, 3) arrays. Out: an opened `Graph`. The folder appears under its name only when it is whole.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from marius_py.errors import ConfigError, FormatError
from marius_py.given import as_path, check_flags
from marius_py.graph import Graph, open_graph
from marius_py.partitioning import Partitioning
from marius_py.prepare.assemble import UNNAMED_RELATION, NumberedGraph, assemble
from marius_py.prepare.blocks import EdgeSource, NameKind
from marius_py.prepare.columns import ColumnKey, Header
from marius_py.prepare.dictionary import EdgeSpill, Ingest
from marius_py.prepare.folder import building, check_output
from marius_py.prepare.progress import ProgressHook, silent
from marius_py.prepare.sources import open_splits
from marius_py.prepare.splitting import GivenSplits, RandomSplits, check_shares, random_counts
from marius_py.types import MAX_PARTITIONS, MAX_SEED, SPLITS
from marius_py.whole import is_whole
from marius_py.workers import made_ahead

logger = logging.getLogger(__name__)

DEFAULT_PARTITIONS = 8
DEFAULT_SPLIT = (0.9, 0.05, 0.05)


def prepare(
    train: Path | str,
    output: Path | str,
    *,
    valid: Path | str | None = None,
    test: Path | str | None = None,
    partitions: int | None = None,
    seed: int = 0,
    columns: Sequence[ColumnKey] | None = None,
    weight: ColumnKey | None = None,
    header: Header = "auto",
    format: str = "auto",
    delimiter: str | None = None,
    quoting: bool | None = None,
    comment: str | None = None,
    split: Sequence[float] | None = None,
    undirected: bool = False,
    mirror: bool = False,
    overwrite: bool = False,
    progress: ProgressHook | None = None,
) -> Graph:
    """Turn edge lists into a prepared graph, out of core.

    Memory is bounded by the dictionary of names and two blocks of edges; the output's file system needs room
    for about twice the numbered edges (12 bytes each) while it runs.

    Args:
        train: edge list with two columns (head, tail) or three (head, relation, tail).
        output: folder to create.
        valid: edge list of the validation split.
        test: edge list of the test split. With neither, `train` is split at random by `split`; copies of an
            edge (same head, relation and tail) share a split.
        partitions: p; None: 8, or the number of nodes if that is smaller. Another p can be had later.
        seed: of the random ids and the random split, from 0 to 2^63 - 1.
        columns: positions from 0 or header names in the order head, (relation,) tail; None: by names such as
            head, relation, tail or source, type, target, else the two or three columns in that order.
        weight: position or header name of the column of weights, which say what each train edge counts in
            training beside the others: numbers from 0, of which only the shares matter. In valid and test the
            column is left out. None: edges count alike.
        header: whether text files begin with a header; "auto": when the first line names a head and a tail
            by such words, or has no whole number for head or tail above two lines or more that have (above
            a single one it is taken for an edge, with a warning).
        format: "tsv", "csv", "parquet", "npy", "npz", or "auto" by the file's name.
        delimiter: for text; None: tab for TSV, comma for CSV.
        quoting: for text, RFC 4180 quotes; None: for CSV only.
        comment: for text, the character with which lines at the top begin that are no edges, such as "#" in
            files of SNAP; None: there are none.
        split: shares of train, valid and test of the random split; None: 0.9, 0.05, 0.05. Exact to the edge
            unless copies prevent it.
        undirected: the random split takes an edge and its reverse (same relation) for copies, for graphs
            whose edges are listed in both directions. Both are kept.
        mirror: add the reverse of each edge (same relation, same weight), for graphs whose undirected edges
            are listed once; a random split then keeps both together. Edges of valid and test are ranked in
            both directions, too.
        overwrite: replace a prepared graph at `output` (atomically, at the end).
        progress: called as progress(stage, done, total, unit).

    Returns:
        The graph, opened.

    Raises:
        ConfigError: an argument is wrong or `output` is in use. FormatError: a file's content is wrong; names
        file, line and content. StorageError: reading or writing failed. Nothing is then left at `output`.
    """
    report = progress or silent
    partitions, seed = checked_arguments(partitions, seed)
    shares = DEFAULT_SPLIT if split is None else split
    output = as_path(output, "output", "the folder to create")
    check_output(output, overwrite)
    output = output.absolute()  # the current folder may be another one at the end
    check_directions(undirected, mirror)
    check_given_splits(split, undirected, valid, test)
    options: dict[str, Any] = {
        "format": format,
        "delimiter": delimiter,
        "quoting": quoting,
        "comment": comment,
        "header": header,
        "columns": columns,
    }
    sources = open_splits(train, valid, test, weight=weight, **options)
    present = [source for source in sources if source is not None]
    has_relations = _agree_on_relations(present)
    if len(present) == 1:
        check_shares(shares)
    node_kind: NameKind = "integer" if all(s.node_kind == "integer" for s in present) else "text"
    relation_kind: NameKind = "integer" if all(s.relation_kind == "integer" for s in present) else "text"
    with building(output, overwrite) as folder:
        spill = EdgeSpill(folder / "rows.tmp", np.dtype(np.int32), weighted=weight is not None, mirror=mirror)
        try:
            ingest = Ingest(spill, node_kind, relation_kind if has_relations else None)
            counts = tuple(
                read_edges(source, ingest, report) if source is not None else 0 for source in sources
            )
            graph = NumberedGraph(
                spill=spill,
                splits=choose_splits(
                    spill,
                    counts,
                    shares if len(present) == 1 else None,
                    seed,
                    train,
                    report,
                    undirected=undirected or mirror,
                ),
                num_nodes=len(ingest.nodes),
                num_relations=len(ingest.relations) if ingest.relations is not None else 1,
                has_relations=has_relations,
                node_names=ingest.nodes.names,
                relation_names=ingest.relations.names if ingest.relations is not None else UNNAMED_RELATION,
            )
            del ingest
            assemble(folder, graph, partitioning_for(graph.num_nodes, partitions), seed, report)
        finally:
            spill.close()
    return open_graph(output)


def checked_arguments(partitions: int | None, seed: int) -> tuple[int | None, int]:
    """The number of partitions and the seed as Python's integers; ConfigError if one is out of range."""
    if partitions is not None and not is_whole(partitions, 1, MAX_PARTITIONS):
        raise ConfigError(f"partitions is {partitions!r}; allowed: a whole number from 1 to {MAX_PARTITIONS}")
    if not is_whole(seed, 0, MAX_SEED):
        raise ConfigError(f"seed is {seed!r}; allowed: a whole number from 0 to 2^63 - 1")
    return None if partitions is None else int(partitions), int(seed)


def check_given_splits(split: object, undirected: bool, valid: object, test: object) -> None:
    """Refuse with a ConfigError what is for a random split, `split` and `undirected`, beside given splits."""
    if valid is None and test is None:
        return
    if split is not None:
        raise ConfigError(
            f"split is {split!r}, but it is for a random split: leave it out, or valid and test"
        )
    if undirected:
        raise ConfigError(
            "undirected is for a random split, which it keeps from parting an edge and its reverse: leave it "
            "out, or valid and test"
        )


def check_directions(undirected: bool, mirror: bool) -> None:
    """Refuse with a ConfigError edges that are both listed in both directions and to be mirrored."""
    check_flags(undirected=undirected, mirror=mirror)
    if undirected and mirror:
        raise ConfigError(
            "undirected is for edges that are listed in both directions, and mirror adds the other direction "
            "to those that are listed once: leave one of them out"
        )


def partitioning_for(num_nodes: int, partitions: int | None) -> Partitioning:
    """The ranges for p as asked for, else 8 or fewer. Raises ConfigError for more than there are nodes."""
    return Partitioning(num_nodes, min(DEFAULT_PARTITIONS, num_nodes) if partitions is None else partitions)


def _agree_on_relations(sources: Sequence[EdgeSource]) -> bool:
    first = sources[0]
    for source in sources[1:]:
        if source.has_relations != first.has_relations:
            with_relations, without = (source, first) if source.has_relations else (first, source)
            raise FormatError(
                f"{with_relations.path} has relations (three columns) and {without.path} has none "
                "(two columns); all splits must agree"
            )
    return first.has_relations


def read_edges(source: EdgeSource, ingest: Ingest, progress: ProgressHook) -> int:
    """Read a file of edges to the last one; returns how many rows it has brought to the spill."""
    count, before = 0, ingest.num_rows
    for block in made_ahead(source.blocks(), "marius-read"):
        ingest.add(block)
        count += block.num_edges
        progress(f"read {source.path.name}", source.position, source.size, source.unit)
    if count == 0:
        raise FormatError(f"{source.path} holds no edges, only a header; it should hold one edge a line")
    ingest.flush()
    return ingest.num_rows - before


def choose_splits(
    spill: EdgeSpill,
    counts: tuple[int, ...],
    shares: Sequence[float] | None,
    seed: int,
    path: object,
    progress: ProgressHook,
    *,
    undirected: bool,
) -> GivenSplits | RandomSplits:
    """How the final rows of a spill fall into splits: at random by `shares`, edges beside their reverses if
    `undirected`; or (None) as given, `counts` of train, valid, test."""
    if shares is not None:
        wanted = random_counts(counts[0], shares, path)
        _warn_of_empty(wanted, shares, path)
        return RandomSplits.draw(spill, wanted, seed, progress, undirected=undirected)
    return GivenSplits((counts[0], counts[1], counts[2]))


def _warn_of_empty(wanted: Sequence[int], shares: Sequence[float], path: object) -> None:
    """Warn of the splits that get no edge, as their share of a small graph is half an edge or less."""
    empty = [i for i, share in enumerate(shares) if share > 0 and not wanted[i]]
    if empty:
        logger.warning(
            "%s has %d edges: the random split gives none to %s, whose share is half an edge or less (%s); "
            "give larger shares with input.split (split= in Python), or files of your own",
            path,
            sum(wanted),
            " and ".join(SPLITS[i] for i in empty),
            ", ".join(f"{shares[i]:g}" for i in empty),
        )
