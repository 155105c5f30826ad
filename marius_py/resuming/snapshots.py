"""Copies of a run at the end of an epoch (floor 5): the last few, and the best on the validation edges.

In: a run folder whose last commit is the end of an epoch. Out: snapshots/epoch-0005, snapshots/best-0005, …,
each a whole run folder of its own, with p slots and no spare ones, that every command reads. A copy appears
under its name only when it is whole.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from marius_py.config import write_yaml
from marius_py.errors import MariusError
from marius_py.run_files.names import (
    CHECKPOINT_FOLDER,
    CONFIG_FILE,
    CONFIG_META,
    DEMO_GRAPH,
    METRICS_FILE,
    RESULT_BEFORE_META,
    RESULT_META,
    SNAPSHOT_FOLDER,
)
from marius_py.run_files.results import write_lines
from marius_py.run_state import best_of, validations_of
from marius_py.storage.aligned import allocate
from marius_py.storage.file_io import os_errors_as_storage
from marius_py.storage.files import TEMPORARY_SUFFIX, sync_folder
from marius_py.storage.hdf5_nodes import create_node_store
from marius_py.storage.protocols import Checkpoint
from marius_py.storage.reader import open_node_reader

log = logging.getLogger(__name__)


def best_epoch(history: Sequence[Mapping[str, Any]]) -> int | None:
    """Number of epochs done when the validation MRR was highest, the first of equals; None without any.

    >>> lines = [{"valid": {"mrr": 0.2}}, {"valid": None}, {"valid": {"mrr": 0.3}}]
    >>> best_epoch([{"epoch": epoch, **line} for epoch, line in enumerate(lines)])
    3
    """
    best = best_of(validations_of(history))
    return None if best is None else best[0]


def update_snapshots(run: Path, *, keep: int, best: bool, touch: Callable[[], None] = lambda: None) -> None:
    """Copy the run's last commit if it is due a copy, and remove copies that are not kept any more.

    Does nothing within an epoch. May be repeated: what is there already is not copied again.

    Args:
        run: a run folder.
        keep: how many of the last epochs to keep.
        best: keep the epoch with the highest validation MRR.
        touch: called after every partition.

    Raises:
        StorageError: the disk is full or fails; no snapshot is harmed.
    """
    folder = run / SNAPSHOT_FOLDER
    if not (keep or best or folder.exists()):
        return
    for stray in folder.glob(f"*{TEMPORARY_SUFFIX}"):
        shutil.rmtree(stray, ignore_errors=True)
    with open_node_reader(run / CHECKPOINT_FOLDER) as reader:
        meta = reader.meta
    epoch, step, batch = meta["position"]
    if epoch == 0 or (step, batch) != (0, 0):
        return
    if keep:
        _save(run, folder / f"epoch-{epoch:04}", touch)
    for old in _numbered(folder, "epoch")[: -keep or None]:
        _remove(old)
    if best:
        winner = best_epoch(meta["history"])
        if winner == epoch:
            _save(run, folder / f"best-{epoch:04}", touch)
        for old in _numbered(folder, "best"):
            if _number_of(old) != winner:
                _remove(old)


def best_snapshot(run: Path, history: Sequence[Mapping[str, Any]]) -> Path | None:
    """Folder of the snapshot of the epoch that is best on the validation edges; None if it was not kept."""
    winner = best_epoch(history)
    found = _numbered(run / SNAPSHOT_FOLDER, "best")
    return next((path for path in found if _number_of(path) == winner), None)


def _numbered(folder: Path, kind: str) -> list[Path]:
    found = [path for path in folder.glob(f"{kind}-*") if path.name.removeprefix(f"{kind}-").isdecimal()]
    return sorted(found, key=_number_of)


def _number_of(snapshot: Path) -> int:
    return int(snapshot.name.rpartition("-")[2])


def _remove(snapshot: Path) -> None:
    """Take a snapshot's name away before its files, so that nothing is half of one."""
    doomed = snapshot.with_name(snapshot.name + TEMPORARY_SUFFIX)
    with os_errors_as_storage("remove", snapshot):
        os.rename(snapshot, doomed)
        shutil.rmtree(doomed)
    log.info("snapshot %s removed", snapshot)


def _save(run: Path, target: Path, touch: Callable[[], None]) -> None:
    """Copy the last commit of `run` to the run folder `target`, unless it is there."""
    temporary = target.with_name(target.name + TEMPORARY_SUFFIX)
    try:
        with open_node_reader(run / CHECKPOINT_FOLDER) as reader:
            if _holds(target, reader.fingerprint):
                return
            table, checkpoint = reader.table, reader.checkpoint()
            settings = dict(checkpoint.meta[CONFIG_META])
            settings["graph"] = settings["graph"] or str(run / DEMO_GRAPH)
            meta = {**checkpoint.meta, CONFIG_META: settings}
            for name in (RESULT_META, RESULT_BEFORE_META):
                meta.pop(name, None)  # of the run that goes on, made again after it had finished
            rows = allocate((table.slot_rows, table.dim))
            state = allocate((table.slot_rows, table.state_dim))
            with create_node_store(temporary / CHECKPOINT_FOLDER, table, spare_slots=0) as store:
                for part in range(table.partitioning.num_partitions):
                    reader.read_into(part, rows, state)
                    store.write(part, rows, state)
                    touch()
                store.commit(Checkpoint(arrays=checkpoint.arrays, meta=meta))
        write_lines(temporary / METRICS_FILE, checkpoint.meta["history"])
        write_yaml(settings, temporary / CONFIG_FILE)
        with os_errors_as_storage("create", target):
            if target.exists():
                shutil.rmtree(target)
            os.rename(temporary, target)
            sync_folder(target.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    log.info("snapshot %s", target)


def _holds(snapshot: Path, fingerprint: str) -> bool:
    """Whether a snapshot can be opened and has these embeddings, not those of another run before this one."""
    try:
        with open_node_reader(snapshot / CHECKPOINT_FOLDER) as reader:
            return reader.fingerprint == fingerprint
    except MariusError:
        return False
