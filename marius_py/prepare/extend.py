"""Adds nodes, relations and edges to a prepared graph (floor 4): graph and edge lists in, a larger graph out.

A partition is a range of ids, and it must stay a random set of nodes. New nodes therefore take random places
among all ids, and old ones move up past them and keep their order: old id i becomes i plus the number of new
nodes before it. So everything that lies in the order of ids (names, embeddings) is copied in one sequential
pass, and what moved where follows from N, the number of new nodes and a seed (`IdShift`).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from marius_py.errors import ConfigError, FormatError
from marius_py.given import as_path
from marius_py.graph import Graph, check_graph, open_graph
from marius_py.graph.names import ROW_GROUP
from marius_py.partitioning import Partitioning
from marius_py.prepare.api import checked_arguments, read_edges
from marius_py.prepare.blocks import NameKind
from marius_py.prepare.dictionary import EdgeSpill, Ingest
from marius_py.prepare.first_line import is_whole_number
from marius_py.prepare.folder import building, check_output
from marius_py.prepare.graph_files import MIRRORED, GraphContent, write_graph
from marius_py.prepare.progress import ProgressHook, silent
from marius_py.prepare.sources import open_splits
from marius_py.storage.edge_layout import row_width
from marius_py.storage.edge_writer import BLOCK_ROWS, edge_dtype
from marius_py.storage.hdf5_edges import Hdf5EdgeStore
from marius_py.storage.protocols import Edges
from marius_py.storage.weighted import WEIGHT
from marius_py.streams import Purpose, stream
from marius_py.types import SPLITS

logger = logging.getLogger(__name__)

EXTENDED = "extended"
"""Entry of the report that says from what a graph was made."""


@dataclass(frozen=True, slots=True)
class IdShift:
    """Where the ids of a graph went when nodes were added.

    Attributes:
        num_old: N before.
        new: (M,) int64 ascending ids of the new nodes, below num_old + M.
    """

    num_old: int
    new: NDArray[np.int64]

    @classmethod
    def draw(cls, num_old: int, num_new: int, seed: int) -> IdShift:
        """The shift that a seed gives."""
        rng = stream(seed, Purpose.PARTITION, num_old, num_new)
        if num_new:
            # Distinct places without a permutation of all ids: gaps between old nodes, drawn with repetition.
            gaps = np.sort(rng.integers(0, num_old + 1, size=num_new))
            return cls(num_old, gaps + np.arange(num_new))
        return cls(num_old, np.empty(0, dtype=np.int64))

    @property
    def num_nodes(self) -> int:
        """N after."""
        return self.num_old + len(self.new)

    def moved(self, old: NDArray[np.integer]) -> NDArray[np.int64]:
        """New ids of old ids, of any shape."""
        before = self.new - np.arange(len(self.new))
        ids = old.astype(np.int64)
        shifted: NDArray[np.int64] = ids + np.searchsorted(before, ids, side="right")
        return shifted

    def is_new(self, ids: NDArray[np.integer]) -> NDArray[np.bool_]:
        """Which of these ids, after the shift, are of new nodes."""
        place = np.searchsorted(self.new, ids)
        found: NDArray[np.bool_] = np.append(self.new, -1)[place] == ids
        return found

    def old_range(self, start: int, stop: int) -> tuple[int, int]:
        """Range of old ids that lie in new ids start..stop."""
        low, high = np.searchsorted(self.new, (start, stop)).tolist()
        return start - low, stop - high


def shift_of(graph: Graph) -> tuple[str, IdShift, int]:
    """Of an extended graph: the fingerprint it was made from, the shift of ids, and R before.

    Raises:
        ConfigError: the graph was not made by extending one.
    """
    check_graph(graph)
    facts = graph.report.get(EXTENDED)
    if facts is None:
        raise ConfigError(f"the graph {graph.path} was not made by extending one")
    shift = IdShift.draw(facts["num_nodes"], graph.num_nodes - facts["num_nodes"], facts["seed"])
    return facts["fingerprint"], shift, facts["num_relations"]


def extend_graph(
    graph: Graph | Path | str,
    train: Path | str,
    output: Path | str,
    *,
    valid: Path | str | None = None,
    test: Path | str | None = None,
    seed: int = 0,
    overwrite: bool = False,
    progress: ProgressHook | None = None,
    **reading: Any,
) -> Graph:
    """Make a new graph folder with more edges, and the nodes and relations that they bring.

    Old edges keep their split. Where the graph was prepared with `mirror`, the reverses of new edges are
    added, too. Memory is bounded by the names in the new files and two blocks of edges; names and edges of
    the old graph stream through.

    Args:
        graph: the prepared graph.
        train: edge list to add to the train split.
        output: folder of the new graph.
        valid: edge list to add to the validation split.
        test: edge list to add to the test split.
        seed: of the places of new nodes.
        overwrite: replace a prepared graph at `output`.
        progress: called as progress(stage, done, total, unit).
        reading: format, delimiter, quoting, comment, header, columns, weight; as for `prepare`, but where
            the graph's nodes all have whole numbers for names, one line of numbers is enough to tell a header
            above it.

    Raises:
        ConfigError, FormatError, StorageError: as for `prepare`; or the new edges have relations or weights
        and the graph has none, or the other way round.
    """
    report = progress or silent
    _, seed = checked_arguments(None, seed)
    old = graph if isinstance(graph, Graph) else open_graph(graph)
    weighted = old.mean_weight is not None
    if weighted != (reading.get("weight") is not None):
        needs = "set it to their column" if weighted else "leave it out"
        raise ConfigError(
            f"the edges of the graph {old.path} have {'' if weighted else 'no '}weights, and input.weight "
            f"(weight= in Python) is {reading.get('weight')}: {needs}, or prepare the graph anew"
        )
    output = as_path(output, "output", "the folder of the new graph")
    if os.path.realpath(output) == os.path.realpath(old.path):
        raise ConfigError(f"output={output} is the graph that is extended; choose another folder")
    check_output(output, overwrite)
    output = output.absolute()  # the current folder may be another one at the end
    reading["numbered"] = partial(is_numbered, old)
    sources = open_splits(train, valid, test, **reading)
    for source in sources:
        if source is not None and source.has_relations != old.has_relations:
            has, needs = ("relations", "none") if source.has_relations else ("no relations", "relations")
            raise FormatError(
                f"{source.path} has {has}, and the graph {old.path} has {needs}; they must agree"
            )
    with building(output, overwrite) as folder:
        spill = EdgeSpill(
            folder / "rows.tmp", np.dtype(np.int32), weighted=weighted, mirror=bool(old.report.get(MIRRORED))
        )
        try:
            kinds: dict[str, NameKind] = {"node": _kind(old, sources), "relation": "text"}
            ingest = Ingest(spill, kinds["node"], kinds["relation"] if old.has_relations else None)
            counts = tuple(
                read_edges(source, ingest, report) if source is not None else 0 for source in sources
            )
            _Extension(old, ingest, spill, counts, seed, report).write(folder)
        finally:
            spill.close()
    return open_graph(output)


def is_numbered(graph: Graph) -> bool:
    """Whether all node names are whole numbers; reads them up to the first that is none."""
    return graph.names_are_integers or all(
        is_whole_number(name)
        for start in range(0, graph.num_nodes, ROW_GROUP)
        for name in graph.node_names(start, min(start + ROW_GROUP, graph.num_nodes))
    )


def _kind(old: Graph, sources: list[Any]) -> NameKind:
    integers = old.names_are_integers and all(s is None or s.node_kind == "integer" for s in sources)
    return "integer" if integers else "text"


class _Extension:
    """New rows with numbers of their own, joined to an old graph."""

    def __init__(
        self,
        old: Graph,
        ingest: Ingest,
        spill: EdgeSpill,
        counts: tuple[int, ...],
        seed: int,
        progress: ProgressHook,
    ) -> None:
        self._old = old
        self._spill = spill
        self._counts = counts
        self._progress = progress
        self._type = ingest.nodes.type
        names = ingest.nodes.names
        known = old.node_ids([str(name) for name in names.to_pylist()])
        fresh = np.flatnonzero(known < 0)
        # Places ascend and files are often sorted, so which name takes which place must be random, too.
        stream(seed, Purpose.PARTITION, old.num_nodes, len(fresh), 1).shuffle(fresh)
        self._new_names = names.take(pa.array(fresh))
        self._shift = IdShift.draw(old.num_nodes, len(fresh), seed)
        self._seed = seed
        # (n',) final id of each name of the new files
        self._ids = np.empty(len(names), dtype=np.int64)
        self._ids[known >= 0] = self._shift.moved(known[known >= 0])
        self._ids[fresh] = self._shift.new
        self._relation_names = old.relation_names()
        self._relations = np.zeros(1, dtype=np.int64)
        if ingest.relations is not None:
            number = {name: place for place, name in enumerate(self._relation_names)}
            found = [str(name) for name in ingest.relations.names.to_pylist()]
            ids = [number.setdefault(name, len(number)) for name in found]
            self._relations = np.array(ids, dtype=np.int64)
            self._relation_names = list(number)

    def write(self, folder: Path) -> None:
        """Write all files of the new graph, graph.json last."""
        old, shift = self._old, self._shift
        num_relations = max(len(self._relation_names), 1)
        with old.edges() as store:
            content = GraphContent(
                partitioning=Partitioning(shift.num_nodes, old.partitioning.num_partitions),
                num_relations=num_relations,
                has_relations=old.has_relations,
                seed=old.seed,
                node_type=self._type,
                node_names=self._name_blocks,
                relation_type=pa.large_string(),
                relation_names=self._relation_blocks,
                weighted=store.weighted,
                num_edges=sum(store.num_edges(split) for split in SPLITS) + len(self._spill),
                edges=lambda: self._edges(store),
                release=self._spill.close,
                mirrored=self._spill.mirror,
                report={
                    EXTENDED: {
                        "fingerprint": old.fingerprint,
                        "num_nodes": old.num_nodes,
                        "num_relations": old.num_relations,
                        "seed": self._seed,
                    }
                },
            )
            write_graph(folder, content, self._progress)
        logger.info(
            "added: nodes %d, relations %d, edges %d",
            len(shift.new), num_relations - max(old.num_relations, 1), sum(self._counts),
        )  # fmt: skip

    def _edges(self, store: Hdf5EdgeStore) -> Iterator[tuple[str, Edges]]:
        """Old and new edges by split, under their new ids."""
        dtype = edge_dtype(self._shift.num_nodes)
        start = 0
        for split, count in zip(SPLITS, self._counts, strict=True):
            width = row_width(split, weighted=store.weighted)
            for rows in store.blocks(split, BLOCK_ROWS, weights=True):
                edges = rows.astype(dtype)
                edges[:, :WEIGHT:2] = self._shift.moved(rows[:, :WEIGHT:2])
                yield split, edges
            for first in range(start, start + count, BLOCK_ROWS):
                rows = self._spill.read(first, min(first + BLOCK_ROWS, start + count))[:, :width]
                edges = rows.astype(dtype)
                edges[:, :WEIGHT:2] = self._ids[rows[:, :WEIGHT:2]]
                edges[:, 1] = self._relations[rows[:, 1]]
                yield split, edges
            start += count

    def _name_blocks(self) -> Iterator[Any]:
        """All names in the order of new ids, a row group at a time."""
        shift = self._shift
        for start in range(0, shift.num_nodes, ROW_GROUP):
            stop = min(start + ROW_GROUP, shift.num_nodes)
            first, last = np.searchsorted(shift.new, (start, stop)).tolist()
            low, high = shift.old_range(start, stop)
            old_names: list[Any] = list(self._old.node_names(low, high))
            if pa.types.is_integer(self._type):
                old_names = [int(name) for name in old_names]
            both = pa.concat_arrays(
                [pa.array(old_names, self._type), self._new_names.slice(first, last - first)]
            )
            order = np.empty(stop - start, dtype=np.int64)
            fresh = shift.new[first:last] - start
            old_places = np.ones(stop - start, dtype=np.bool_)
            old_places[fresh] = False
            order[old_places] = np.arange(high - low)
            order[fresh] = np.arange(high - low, stop - start)
            yield both.take(pa.array(order))

    def _relation_blocks(self) -> Iterator[Any]:
        names = pa.array(self._relation_names, pa.large_string())
        for start in range(0, len(names), ROW_GROUP):
            yield names.slice(start, ROW_GROUP)
