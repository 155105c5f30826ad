"""The node store of a run (floor 5): made, or the committed one opened, and the capacity of its buffer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from marius_py.assembly.checks import check_room
from marius_py.config import TrainConfig, write_yaml
from marius_py.graph import Graph
from marius_py.parts import automatic_capacity, check_resumable, number_of, spare_slots
from marius_py.resuming.resume import EPOCH_META, EpochSettings, check_epochs, check_spare_slots, log_changes
from marius_py.run_files.names import CHECKPOINT_FOLDER, CONFIG_FILE, CONFIG_META
from marius_py.storage.files import remove
from marius_py.storage.hdf5_nodes import create_node_store, has_commit, open_node_store
from marius_py.storage.hdf5_store import Hdf5PartitionStore
from marius_py.storage.protocols import NodeTable


def open_store(
    config: TrainConfig,
    folder: Path,
    graph: Graph,
    table: NodeTable,
    relation_bytes: int,
    meta: Mapping[str, Any],
) -> tuple[Hdf5PartitionStore, int]:
    """Create the run's node store, or open the committed one that is resumed.

    Args:
        config: settings.
        folder: the run folder, claimed.
        graph: what is trained on.
        table: shape of the node table.
        relation_bytes: of the relations and their optimizer state.
        meta: `identity` and the settings, as they are committed.

    Returns:
        The store, open, and the buffer's capacity.

    Raises:
        ConfigError: the run was made with settings or a graph that cannot change, or has more epochs already,
        or the buffer cannot be had; nothing is written then.
    """
    nodes = folder / CHECKPOINT_FOLDER
    if not (config.resume and has_commit(nodes)):
        capacity = capacity_of(config, graph, table, relation_bytes, {})
        spare = spare_slots(config, table, capacity)
        write_yaml(meta[CONFIG_META], folder / CONFIG_FILE)  # a run that is killed now begins anew with these
        try:
            return create_node_store(nodes, table, spare_slots=spare), capacity
        except BaseException:
            remove(folder / CONFIG_FILE)
            raise
    store = open_node_store(nodes)
    try:
        committed = committed_meta(store)
        check_resumable(committed, meta, folder)
        check_epochs(committed, config.training.epochs, folder)
        capacity = capacity_of(config, graph, table, relation_bytes, committed)
        check_spare_slots(store, capacity)
        log_changes(committed.get(CONFIG_META, {}), meta[CONFIG_META])
    except BaseException:
        store.close()
        raise
    return store, capacity


def capacity_of(
    config: TrainConfig, graph: Graph, table: NodeTable, relation_bytes: int, committed: Mapping[str, Any]
) -> int:
    """The buffer's capacity: as asked for, else as many as fit, and no more than before in a resumed run.

    Args:
        config: settings.
        graph: what is trained on.
        table: shape of the node table.
        relation_bytes: of the relations and their optimizer state.
        committed: meta of the run's last commit; empty before the first.

    Raises:
        ConfigError: such a buffer cannot be had; see `check_room`.
    """
    capacity = number_of(config, "capacity")
    if capacity is None:
        capacity = automatic_capacity(table, relation_bytes, config.storage.device)
        if EPOCH_META in committed:
            capacity = min(capacity, EpochSettings.from_meta(committed[EPOCH_META]).capacity)
    check_room(config, graph, table, capacity)
    return capacity


def committed_meta(store: Hdf5PartitionStore) -> Mapping[str, Any]:
    """Metadata of the last commit; empty before the first."""
    return store.meta or {}
