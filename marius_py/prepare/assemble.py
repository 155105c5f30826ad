"""From numbered rows to a prepared graph's files (floor 4).

In: a spill of rows with provisional numbers, the names in that numbering, and how rows fall into splits. Out:
nodes.parquet, relations.parquet, edges.h5 and, last, graph.json in a folder. Ids are a seeded random
permutation of the provisional numbers, so a range of ids is a random set of nodes. The spill is read twice,
block by block: once to count, once to sort into buckets.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash
from numpy.typing import NDArray

from marius_py.graph.manifest import EDGES_FILE, GRAPH_FILE, NODES_FILE, RELATIONS_FILE, manifest_bytes
from marius_py.graph.names import ROW_GROUP
from marius_py.partitioning import Partitioning
from marius_py.prepare.dictionary import EdgeSpill
from marius_py.prepare.duplicates import count_duplicates
from marius_py.prepare.progress import ProgressHook
from marius_py.prepare.splitting import GivenSplits, RandomSplits
from marius_py.prepare.survey import Survey
from marius_py.storage.edge_writer import BLOCK_ROWS, EdgeWriter, edge_dtype
from marius_py.storage.file_io import file_checksum, os_errors_as_storage, replace_file, sync_path
from marius_py.storage.hdf5_edges import Hdf5EdgeStore
from marius_py.storage.protocols import Edges
from marius_py.streams import Purpose, stream

logger = logging.getLogger(__name__)

_EXAMPLES = 5


@dataclass(frozen=True, slots=True)
class NumberedGraph:
    """A graph whose edges lie in a spill under provisional numbers.

    Attributes:
        spill: (E, 3) rows.
        splits: how rows fall into splits.
        num_nodes: N.
        num_relations: R.
        has_relations: False when the input had two columns.
        node_names: (N,) Arrow array of large_string or int64 by provisional number; None: the numbers
            themselves.
        relation_names: (R,) likewise.
    """

    spill: EdgeSpill
    splits: GivenSplits | RandomSplits
    num_nodes: int
    num_relations: int
    has_relations: bool
    node_names: Any | None
    relation_names: Any | None


def assemble(
    folder: Path,
    graph: NumberedGraph,
    partitioning: Partitioning,
    seed: int,
    progress: ProgressHook,
    block_rows: int = BLOCK_ROWS,
) -> None:
    """Write all files of a graph into `folder`; graph.json last.

    Raises:
        StorageError: a write failed; the folder then holds no graph.
    """
    ids = stream(seed, Purpose.PARTITION)
    new_id = np.arange(graph.num_nodes, dtype=edge_dtype(graph.num_nodes))
    ids.shuffle(new_id)
    survey = Survey(partitioning, graph.num_relations)
    done, total = 0, len(graph.spill)
    for split, edges in _renumbered(graph, new_id, block_rows):
        survey.add(split, edges)
        done += len(edges)
        progress("count", done, total, "edges")
    old_id = np.empty_like(new_id)
    old_id[new_id] = np.arange(graph.num_nodes, dtype=new_id.dtype)
    node_hash = write_names(folder / NODES_FILE, graph.node_names, old_id)
    identity = np.arange(graph.num_relations)
    relation_hash = write_names(folder / RELATIONS_FILE, graph.relation_names, identity)
    fingerprint = _fingerprint(graph, survey, node_hash, relation_hash)
    report = _report(survey, graph, old_id)
    del old_id
    with EdgeWriter(
        folder / EDGES_FILE,
        partitioning,
        survey.bucket_counts,
        num_valid=survey.counts["valid"],
        num_test=survey.counts["test"],
        degrees=survey.degrees,
        fingerprint=fingerprint,
    ) as writer:
        done = 0
        for split, edges in _renumbered(graph, new_id, block_rows):
            writer.append(split, edges)
            done += len(edges)
            progress("sort", done, total, "edges")
        graph.spill.close()
        writer.finish()
    with Hdf5EdgeStore(folder / EDGES_FILE) as store:
        report["duplicate_edges"] = count_duplicates(store)
    _log_report(report)
    facts = {
        "num_nodes": graph.num_nodes,
        "num_relations": graph.num_relations,
        "has_relations": graph.has_relations,
        "num_partitions": partitioning.num_partitions,
        "num_edges": survey.counts,
        "fingerprint": fingerprint,
        "seed": seed,
        "names_are_integers": graph.node_names is None or pa.types.is_integer(graph.node_names.type),
        "report": report,
        "files": {name: _file_facts(folder / name) for name in (NODES_FILE, RELATIONS_FILE, EDGES_FILE)},
    }
    replace_file(folder / GRAPH_FILE, manifest_bytes(facts))


def _renumbered(
    graph: NumberedGraph, new_id: NDArray[np.integer], block_rows: int
) -> Iterator[tuple[str, Edges]]:
    for split, rows in graph.splits.blocks(graph.spill, block_rows):
        edges = np.empty(rows.shape, dtype=new_id.dtype)
        edges[:, 0] = new_id[rows[:, 0]]
        edges[:, 1] = rows[:, 1]
        edges[:, 2] = new_id[rows[:, 2]]
        yield split, edges


def write_names(path: Path, names: Any | None, order: NDArray[np.integer]) -> str:
    """Write a name table in id order, block by block.

    Args:
        path: Parquet file to create.
        names: Arrow array by provisional number; None: the numbers themselves.
        order: (n,) provisional number of each id.

    Returns:
        Hex hash of all names in id order.
    """
    data_type = pa.int64() if names is None else names.type
    digest = xxhash.xxh3_128(str(data_type).encode())
    schema = pa.schema([pa.field("name", data_type, nullable=False)])
    with os_errors_as_storage("write", path):
        with pq.ParquetWriter(
            path,
            schema,
            compression="zstd",
            compression_level=1,
            use_dictionary=False,
            write_statistics=False,
        ) as writer:
            for start in range(0, len(order), ROW_GROUP):
                indices = pa.array(order[start : start + ROW_GROUP])
                block = indices.cast(pa.int64()) if names is None else names.take(indices)
                _update(digest, block)
                writer.write_table(pa.table([block], schema=schema), row_group_size=ROW_GROUP)
        sync_path(path)
    return digest.hexdigest()


def _update(digest: Any, block: Any) -> None:
    if pa.types.is_integer(block.type):
        digest.update(np.ascontiguousarray(block.to_numpy()))
        return
    offsets = np.frombuffer(block.buffers()[1], dtype=np.int64)[block.offset : block.offset + len(block) + 1]
    digest.update(np.diff(offsets))
    digest.update(memoryview(block.buffers()[2])[int(offsets[0]) : int(offsets[-1])])


def _fingerprint(graph: NumberedGraph, survey: Survey, node_hash: str, relation_hash: str) -> str:
    content = [
        graph.num_nodes,
        graph.num_relations,
        graph.has_relations,
        node_hash,
        relation_hash,
        survey.content(),
    ]
    return xxhash.xxh3_128_hexdigest(json.dumps(content, sort_keys=True).encode())


def _report(survey: Survey, graph: NumberedGraph, old_id: NDArray[np.integer]) -> dict[str, Any]:
    """What a user should know about the data; the edges themselves are never changed."""
    report: dict[str, Any] = {"self_loops": dict(survey.self_loops)}
    for key, names, order, unknown in (
        ("unknown_nodes", graph.node_names, old_id, survey.unknown_nodes),
        ("unknown_relations", graph.relation_names, None, survey.unknown_relations),
    ):
        report[key] = {}
        for split in ("valid", "test"):
            ids = unknown(split)
            shown = ids[:_EXAMPLES] if order is None else order[ids[:_EXAMPLES]]
            examples = [str(i if names is None else names[int(i)].as_py()) for i in shown.tolist()]
            report[key][split] = {"count": len(ids), "examples": examples}
    return report


def _log_report(report: dict[str, Any]) -> None:
    for key, what in (("unknown_nodes", "nodes"), ("unknown_relations", "relations")):
        for split, found in report[key].items():
            if found["count"]:
                logger.warning(
                    "%d %s of %s occur in no train edge (%s%s); they are kept and will be ranked untrained",
                    found["count"],
                    what,
                    split,
                    ", ".join(found["examples"]),
                    ", …" if found["count"] > len(found["examples"]) else "",
                )
    for key, what in (("duplicate_edges", "edges that repeat another"), ("self_loops", "self-loops")):
        for split, count in report[key].items():
            if count:
                logger.info("%s has %d %s; they are kept", split, count, what)


def _file_facts(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "xxh3": file_checksum(path)}
