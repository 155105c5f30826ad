"""Goes on with a run on an extended graph (floor 5): a run and the larger graph in, a folder to resume out.

The node table is rewritten once, sequentially: old embeddings and optimizer state move to their new places
unchanged, new ones are initialised. Then `marius-train output=… resume=true` trains on.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from marius_py.config import (
    TrainConfig,
    config_from,
    make_components,
    saved_settings,
    write_yaml,
)
from marius_py.errors import ConfigError, StorageError
from marius_py.evaluation.metrics import check_whole
from marius_py.given import as_path
from marius_py.graph import Graph, open_graph
from marius_py.nn.model import LinkPredictionModel
from marius_py.partitioning import Partitioning
from marius_py.parts import identity, make_model
from marius_py.prepare.extend import IdShift, shift_of
from marius_py.prepare.folder import building
from marius_py.resuming.new_rows import Init, NewRows, queries_of
from marius_py.resuming.resume import BEFORE_META, EPOCH_META, check_free
from marius_py.run import Run, load
from marius_py.run_files.names import (
    CHECKPOINT_FOLDER,
    CONFIG_FILE,
    CONFIG_META,
    METRICS_FILE,
    RESULT_BEFORE_META,
    RESULT_META,
)
from marius_py.run_files.reader import OtherGraphError
from marius_py.run_files.results import write_lines
from marius_py.run_state import EpochMetrics, RunState
from marius_py.storage.aligned import allocate
from marius_py.storage.hdf5_nodes import create_node_store
from marius_py.storage.protocols import Checkpoint, NodeTable
from marius_py.storage.reader import NodeReader, open_node_reader
from marius_py.streams import Purpose, stream
from marius_py.types import SIDES, Position
from marius_py.validation import VALIDATION_META

logger = logging.getLogger(__name__)


def extend_run(
    run: Path | str,
    graph: Graph,
    output: Path | str,
    *,
    init: Init = "neighbors",
    memory_bytes: int = 256 << 20,
    run_graph: Path | str | None = None,
) -> Path:
    """Make a run folder for an extended graph from the last commit of a run on the old one.

    Old embeddings, their optimizer state and old relations are kept bit for bit. New relations get the
    initial rows of the model. An epoch that was under way begins anew.

    Args:
        run: the run's folder.
        graph: what `extend_graph` made of the run's graph.
        output: the new run folder.
        init: of new nodes. "neighbors": the mean of what their known neighbours ask for, that is of the
            queries of their edges by a relation that the run knows (by any, if the decoder learns nothing of
            relations), at the mean length of the neighbours, or shorter where scores are products, so that
            its edges score on average as trained ones do; "random": the model's initializer, which nodes
            without such an edge get in any case.
        memory_bytes: bound for the sums of new nodes and for their edges with old ones: more nodes take more
            passes over the edges, more edges more passes over the run's embeddings.
        run_graph: the graph that the run was trained on, if it has moved since.

    Returns:
        The new run folder.

    Raises:
        ConfigError: the graph was not made from the run's graph, or `output` is not empty. StorageError:
        reading or writing failed; nothing is left at `output` unless it says so.
    """
    if init not in ("neighbors", "random"):
        raise ConfigError(f"init is {init!r}; allowed: neighbors, random")
    check_whole("memory_bytes", memory_bytes, 1)
    made_from, shift, _ = shift_of(graph)
    folder = as_path(output, "output", "the new run folder").absolute()
    check_free(folder, resume=False)
    with load(run, graph=run_graph) as old:
        if old.graph.fingerprint != made_from:
            raise ConfigError(
                f"the graph {graph.path} was not made by extending {old.graph.path}, the run's graph"
            )
        saved = _saved(old)
        settings = {**saved, "graph": str(graph.path.absolute()), "output": str(folder), "resume": False}
        config = config_from(TrainConfig, settings)
        components = make_components(replace(config, resume=True))  # what the run was accepted with
        model = make_model(config, components, graph, torch.device("cpu"))
        fresh = NewRows(old, model, graph, shift, config.training.seed, init, memory_bytes)
        with building(folder, overwrite=False) as temporary:
            meta = _rewrite(old, temporary, graph, shift, fresh, model, config, settings)
            if meta["history"]:
                write_lines(temporary / METRICS_FILE, meta["history"])
            write_yaml(settings, temporary / CONFIG_FILE)
    logger.info("%s: %d nodes, %d of them new", folder, graph.num_nodes, len(shift.new))
    return folder


def check_run(run: Path | str, graph: Path | str, *, init: Init = "neighbors") -> None:
    """Refuse a run that `extend_run` could not take over to an extension of `graph`; nothing is written.

    Args:
        run: the run's folder.
        graph: folder of the prepared graph that is to be extended.
        init: of new nodes; "neighbors" has the run's decoder try a query of each side.

    Raises:
        ConfigError: the run was trained on another graph, or cannot be used, or its decoder fails.
        StorageError, FormatError: run or graph is missing or damaged.
    """
    open_graph(graph)
    try:
        with load(run, graph=graph) as old:  # which may have moved since
            _saved(old)
            for side in SIDES if init == "neighbors" else ():
                queries_of(old, old.read_rows(0, 1), np.zeros(1, np.int64), side)
    except OtherGraphError as error:
        raise ConfigError(
            f"run={run} was not trained on graph={graph}: give its graph, or a run on this one ({error})"
        ) from error


def _saved(run: Run) -> dict[str, Any]:
    """The settings that a run was made with."""
    saved = saved_settings(run.path)
    if saved is None:
        raise StorageError(f"{run.path / CONFIG_FILE} is missing; it says how the run was made")
    return saved


def _rewrite(
    old: Run,
    folder: Path,
    graph: Graph,
    shift: IdShift,
    fresh: NewRows,
    model: LinkPredictionModel,
    config: TrainConfig,
    settings: dict[str, Any],
) -> Mapping[str, Any]:
    """Write the new node store, partition by partition, and commit it; returns the commit's meta."""
    with open_node_reader(old.path / CHECKPOINT_FOLDER) as reader:
        p = reader.table.partitioning.num_partitions
        table = replace(reader.table, partitioning=Partitioning(graph.num_nodes, p))
        with create_node_store(folder / CHECKPOINT_FOLDER, table, spare_slots=p) as store:
            source = _OldRows(reader)
            for part in range(p):
                store.write(part, *_partition(table, part, source, shift, fresh, model))
            checkpoint = _checkpoint(reader.checkpoint(), model, graph, config, settings, table)
            store.commit(checkpoint)
    return checkpoint.meta


def _partition(
    table: NodeTable, part: int, source: _OldRows, shift: IdShift, fresh: NewRows, model: LinkPredictionModel
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Embeddings and state of a new partition, slot-shaped."""
    start, size = table.partitioning.start(part), table.partitioning.size(part)
    rows, state = allocate((table.slot_rows, table.dim)), allocate((table.slot_rows, table.state_dim))
    rows[size:], state[size:] = 0, 0
    new = shift.is_new(np.arange(start, start + size))
    low, high = shift.old_range(start, start + size)
    rows[:size][~new], state[:size][~new] = source.read(low, high)
    if new.any():
        rows[:size][new] = fresh.rows(start, start + size)
        initial = np.empty((int(new.sum()), table.state_dim), np.float32)
        model.init_node_state(initial)
        state[:size][new] = initial
    return rows, state


class _OldRows:
    """Old rows with their state by id range, in ascending order; holds one old partition."""

    def __init__(self, reader: NodeReader) -> None:
        self._reader = reader
        self._table = reader.table
        self._rows = allocate((self._table.slot_rows, self._table.dim))
        self._state = allocate((self._table.slot_rows, self._table.state_dim))
        self._part = -1

    def read(self, start: int, stop: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Embeddings (stop − start, D) and state (stop − start, S)."""
        rows = np.empty((stop - start, self._table.dim), np.float32)
        state = np.empty((stop - start, self._table.state_dim), np.float32)
        partitioning = self._table.partitioning
        for part in range(partitioning.num_partitions):
            first = partitioning.start(part)
            low, high = max(start, first), min(stop, partitioning.start(part + 1))
            if low >= high:
                continue
            if part != self._part:
                self._reader.read_into(part, self._rows, self._state)
                self._part = part
            rows[low - start : high - start] = self._rows[low - first : high - first]
            state[low - start : high - start] = self._state[low - first : high - first]
        return rows, state


def _checkpoint(
    committed: Checkpoint,
    model: LinkPredictionModel,
    graph: Graph,
    config: TrainConfig,
    settings: dict[str, Any],
    table: NodeTable,
) -> Checkpoint:
    """Relations with rows for the new ones, a position at the start of an epoch, and no validation so far.

    What was found on the validation edges of the old graph compares with nothing to come.
    """
    _, _, num_known = shift_of(graph)
    arrays = model.state_arrays()
    rng = stream(config.training.seed, Purpose.INIT_RELATIONS, num_known)
    model.decoder.init_relations(arrays["relations"], rng, model.initializer)  # not the old ones' draws
    for name in arrays:
        halves = 2 if config.model.reciprocal else 1
        for half in range(halves):
            old, new = half * num_known, half * graph.num_relations
            arrays[name][new : new + num_known] = committed.arrays[name][old : old + num_known]
    before = RunState.from_meta(committed.meta)
    state = RunState(
        position=Position(before.position.epoch, 0, 0),
        current=EpochMetrics(before.position.epoch),
        history=[{**line, "valid": None, "best_epoch": None} for line in before.history],
    )
    dropped = (RESULT_META, RESULT_BEFORE_META, BEFORE_META, EPOCH_META, VALIDATION_META)
    meta = {
        **{name: value for name, value in committed.meta.items() if name not in dropped},
        **identity(config, graph, table.partitioning),
        **state.to_meta(),
        CONFIG_META: settings,
    }
    return Checkpoint(arrays=arrays, meta=meta)
