"""A run from another system's model (floor 5): rows and relations in their order in, a run folder out.

Rows stream by once for each group of partitions that fits the memory bound, so neither table is ever whole in
memory. The run stands before its first epoch: it can be used at once, or trained on with resume=true.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from marius_py.buffer.numbers import NotFinite
from marius_py.config import TrainConfig, config_from, make_components, plain, write_yaml
from marius_py.errors import FormatError
from marius_py.evaluation.metrics import check_whole
from marius_py.given import as_path
from marius_py.graph import Graph, check_graph
from marius_py.nn.model import LinkPredictionModel
from marius_py.parts import identity, make_model
from marius_py.prepare.folder import building, check_output
from marius_py.prepare.progress import ProgressHook
from marius_py.resuming.resume import check_free, plain_json
from marius_py.run_files.names import CHECKPOINT_FOLDER, CONFIG_FILE, CONFIG_META, RESULT_FILE, RESULT_META
from marius_py.run_files.results import memory_peaks, summarize, versions, write_json
from marius_py.run_state import RunState
from marius_py.storage.aligned import allocate
from marius_py.storage.hdf5_nodes import create_node_store
from marius_py.storage.hdf5_store import Hdf5PartitionStore
from marius_py.storage.protocols import Checkpoint, NodeTable

logger = logging.getLogger(__name__)

Float32 = NDArray[np.float32]


DEFAULT_MEMORY_BYTES = 1 << 30
_NAME_BLOCK = 1 << 16
_NOT_FINITE = (
    "%d of %d %s hold a NaN or an infinity, the first that of %r; they are taken over as they are: no such "
    "node or relation is given as an answer, and training on ends where it meets one"
)


@dataclass(frozen=True, slots=True)
class PeerModel:
    """A trained model in the order of the system that trained it.

    Attributes:
        decoder: {"_target_": …} that scores alike.
        dim: D.
        reciprocal: `relations` holds a second half for ranking heads.
        node_names: N names, in the order of `blocks`.
        relation_names: R names; None: the graph has no relations.
        relations: (R, Dr), or (2R, Dr) if reciprocal.
        blocks: makes an iterator over all rows: (first row, rows (n, D)).
        facts: where it came from, for result.json.
    """

    decoder: Mapping[str, Any]
    dim: int
    reciprocal: bool
    node_names: list[str]
    relation_names: list[str] | None
    relations: Float32
    blocks: Callable[[], Iterator[tuple[int, Float32]]]
    facts: Mapping[str, Any] = field(default_factory=dict)


def write_run(
    model: PeerModel,
    graph: Graph,
    output: Path | str,
    *,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    progress: ProgressHook | None = None,
) -> Path:
    """Write the run folder of a model on a prepared graph that has the same names.

    Args:
        model: what another system learned.
        graph: every node and relation of it needs a row of the model; rows of others are left out.
        output: run folder, new or empty.
        memory_bytes: bound of the rows in memory; fewer bytes take more passes over the model's rows.
        progress: called with ("import", rows done, rows in all passes, "nodes").

    Returns:
        The run folder.

    Raises:
        ConfigError: `output` is not empty, the current folder or a mount point. FormatError: a node or
        relation has no row, or a shape is wrong.
        StorageError: reading or writing failed, or another process makes a run there. Nothing is then left
        of this one, and what another made at `output` stays.
    """
    check_graph(graph)
    check_whole("memory_bytes", memory_bytes, 1)
    folder = as_path(output, "output", "the run folder to write").absolute()
    check_free(folder, resume=False)
    check_output(folder, overwrite=False)
    place = _places(model, graph)
    config = config_from(
        TrainConfig,
        {
            "graph": str(graph.path.absolute()),
            "output": str(folder),
            "model": {"decoder": dict(model.decoder), "dim": model.dim, "reciprocal": model.reciprocal},
        },
    )
    settings = plain_json(plain(config))
    empty = make_model(config, make_components(config), graph, torch.device("cpu"))
    arrays = empty.state_arrays()
    arrays["relations"] = _relations(model, graph, arrays["relations"].shape)
    odd = np.flatnonzero(~np.isfinite(arrays["relations"]).all(axis=1))
    if odd.size:
        first = graph.relation_names()[int(odd[0]) % graph.num_relations]
        logger.warning(_NOT_FINITE, odd.size, len(arrays["relations"]), "relation rows", first)
    table = NodeTable(graph.partitioning, model.dim, empty.node_state_dim)
    result = {
        "test": None,
        "train": summarize([], memory_peaks()),
        "versions": versions(),
        "imported": dict(model.facts),
    }
    meta = {
        **identity(config, graph, table.partitioning),
        **RunState().to_meta(),
        CONFIG_META: settings,
        RESULT_META: plain_json(result),
    }
    with building(folder, overwrite=False) as temporary:
        spare = table.partitioning.num_partitions
        with create_node_store(temporary / CHECKPOINT_FOLDER, table, spare_slots=spare) as store:
            _fill(store, model, graph, place, empty, memory_bytes, progress)
            store.commit(Checkpoint(arrays=arrays, meta=meta))
        write_yaml(settings, temporary / CONFIG_FILE)
        write_json(temporary / RESULT_FILE, result)
    logger.info("%s: %d nodes, %d relations", folder, graph.num_nodes, graph.num_relations)
    return folder


def _places(model: PeerModel, graph: Graph) -> NDArray[np.int64]:
    """Graph id (N,) of every row of the model; −1 for nodes that the graph lacks."""
    theirs = pa.array(model.node_names, pa.large_string())
    count = len(theirs)
    ours = [
        pa.array(graph.node_names(start, min(start + _NAME_BLOCK, graph.num_nodes)), pa.large_string())
        for start in range(0, graph.num_nodes, _NAME_BLOCK)
    ]
    # One hash pass over both tables of names: the codes of the model's, which are distinct, are their rows.
    encoded = pa.chunked_array([theirs, *ours]).dictionary_encode().chunks
    if not np.array_equal(np.asarray(encoded[0].indices), np.arange(count)):
        raise FormatError(f"{count} embeddings have fewer distinct names; a name may stand for one node only")
    rows = np.concatenate([np.asarray(chunk.indices) for chunk in encoded[1:]]).astype(np.int64)
    missing = np.flatnonzero(rows >= count)
    if missing.size:
        name = graph.node_names(int(missing[0]), int(missing[0]) + 1)[0]
        raise FormatError(
            f"{missing.size} of the {graph.num_nodes} nodes of {graph.path} have no embedding there, such as "
            f"{name!r}; prepare the graph of the same data (input.train=…)"
        )
    place = np.full(count, -1, dtype=np.int64)
    place[rows] = np.arange(graph.num_nodes)
    left = count - graph.num_nodes
    if left:
        logger.warning("%d of %d embeddings are of no node of the graph; they are left out", left, count)
    return place


def _relations(model: PeerModel, graph: Graph, shape: tuple[int, ...]) -> Float32:
    """The model's relation rows in the order of the graph's relations."""
    names = model.relation_names
    if names is None or not graph.has_relations:
        if (names is not None and len(names) > 1) or graph.num_relations > 1:
            have = "no relations" if names is None else f"{len(names)} relations"
            raise FormatError(f"the model has {have}, the graph {graph.path} has {graph.num_relations}")
        order = [0]
    else:
        row_of = {name: row for row, name in enumerate(names)}
        missing = [name for name in graph.relation_names() if name not in row_of]
        if missing:
            raise FormatError(
                f"{len(missing)} of the {graph.num_relations} relations of {graph.path} have no row in the "
                f"model, such as {missing[0]!r}; prepare the graph of the same data (input.train=…)"
            )
        order = [row_of[name] for name in graph.relation_names()]
    count = len(model.relations) // (2 if model.reciprocal else 1)
    rows = np.concatenate([model.relations[half * count :][order] for half in range(1 + model.reciprocal)])
    if rows.shape != shape:
        raise FormatError(f"the model's relation rows have shape {rows.shape}; its decoder needs {shape}")
    return np.ascontiguousarray(rows, dtype=np.float32)


def _fill(
    store: Hdf5PartitionStore,
    model: PeerModel,
    graph: Graph,
    place: NDArray[np.int64],
    empty: LinkPredictionModel,
    memory_bytes: int,
    progress: ProgressHook | None,
) -> None:
    """Write all partitions, as many at a time as fit in memory."""
    table, parts = store.table, store.table.partitioning
    group = max(1, memory_bytes // (4 * parts.max_size * table.dim))
    passes = -(-parts.num_partitions // group)
    slot, state = allocate((table.slot_rows, table.dim)), allocate((table.slot_rows, table.state_dim))
    odd = NotFinite()
    for number in range(passes):
        first, last = number * group, min((number + 1) * group, parts.num_partitions)
        low, high = parts.start(first), parts.start(last)
        table_rows = np.zeros((high - low, table.dim), np.float32)
        for start, rows in model.blocks():
            ids = place[start : start + len(rows)]
            chosen = (ids >= low) & (ids < high)
            table_rows[ids[chosen] - low] = rows[chosen]
            if progress is not None:
                progress("import", number * len(place) + start + len(rows), passes * len(place), "nodes")
        odd.see(table_rows, low)
        for part in range(first, last):
            size = parts.size(part)
            slot[:size] = table_rows[parts.start(part) - low :][:size]
            slot[size:], state[:] = 0, 0
            empty.init_node_state(state[:size])
            store.write(part, slot, state)
    if odd.count:
        name = graph.node_names(odd.first, odd.first + 1)[0]
        logger.warning(_NOT_FINITE, odd.count, graph.num_nodes, "embeddings", name)
