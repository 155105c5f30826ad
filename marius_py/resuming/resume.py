"""Going on with a run (floor 5): who may write to its folder, what it was made with, what has changed.

In: a run folder and the settings of now. Out: a claimed folder, cleaned of what a killed run left; the
settings of the last commit; and for an epoch that began under other settings, those it must end with.
checkpoint.h5 holds the truth; config.yaml, metrics.jsonl and result.json are views of it for people.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any, cast

from marius_py.config import NOTES, TrainConfig, saved_settings
from marius_py.data.rounds import EpochOrder
from marius_py.errors import ConfigError, StorageError
from marius_py.readable import as_given
from marius_py.run_files.folder import is_snapshot, run_around
from marius_py.run_files.names import (
    CHECKPOINT_FOLDER,
    CONFIG_FILE,
    CONFIG_META,
    DEMO_GRAPH,
    METRICS_FILE,
    RESULT_FILE,
    SNAPSHOT_FOLDER,
    SORTED_EDGES_NAME,
    TRACE_FILE,
)
from marius_py.storage.files import TEMPORARY_SUFFIX, made_folders, remove, sync_names
from marius_py.storage.hdf5_nodes import has_commit
from marius_py.storage.hdf5_store import Hdf5PartitionStore
from marius_py.storage.lock import (
    LOCK_NAME,
    FolderLock,
    describe_owner,
    if_it_is_gone,
    is_locked,
    lock_owner,
)
from marius_py.storage.protocols import Checkpoint
from marius_py.storage.targets import check_length, check_no_nul

log = logging.getLogger(__name__)

VIEWS = (CONFIG_FILE, METRICS_FILE, RESULT_FILE, TRACE_FILE)
"""Files of a run folder that are replaced as wholes beside the checkpoint."""

BEFORE_META = "config_before"
"""Settings that config.yaml may still hold where a run ended between their commit and the file."""
EPOCH_META = "epoch_settings"

_BEFORE_SETTINGS = (LOCK_NAME, CONFIG_FILE + TEMPORARY_SUFFIX)
"""What a run's folder may hold before its settings: nothing of it is anybody's work."""


# ---------------------------------------------------------------------- the folder


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Be the only run that writes to `folder`, made if it is missing, and clean up what a killed one left.

    Raises:
        StorageError: another run writes to it (its process is named), or it cannot be made.
    """
    with ExitStack() as held:
        try:
            made = held.enter_context(made_folders(folder))
        except OSError as error:
            raise StorageError(f"the run folder {folder} cannot be made: {error.strerror}") from error
        lock = FolderLock(folder)
        held.callback(lock.release)  # an interrupt may come once it is taken
        lock.acquire()
        sync_names(made)
        for name in VIEWS:
            remove(folder / (name + TEMPORARY_SUFFIX))
        for path in folder.glob(f"edges-*/*{TEMPORARY_SUFFIX}"):
            if SORTED_EDGES_NAME.fullmatch(path.parent.name):
                remove(path)
        yield


def check_free(folder: Path, *, resume: bool, trains: bool = False) -> None:
    """Refuse a run folder that another run writes to, or that has content unless the run is resumed.

    Args:
        folder: the run folder.
        resume: go on with the run in it.
        trains: the caller trains, so that it could resume; others only make new run folders.

    Raises:
        ConfigError, StorageError: as `check_content`, and if it is in use or its name too long.
    """
    check_no_nul(folder, f"output={folder}")
    check_length(folder, folder.name, f"output={folder}")
    if os.path.isdir(folder) and is_locked(folder):  # of what may not be entered `check_content` tells
        raise StorageError(
            f"output={folder} is in use: {describe_owner(lock_owner(folder))} trains there; wait for it or "
            f"stop it, or give another output{if_it_is_gone(folder / LOCK_NAME)}"
        )
    check_content(folder, resume=resume, trains=trains)


def check_content(folder: Path, *, resume: bool, trains: bool = False) -> None:
    """Refuse a run folder that has content unless the run is resumed; arguments as for `check_free`.

    Raises:
        ConfigError: it is not empty, is a file or below one, a link that leads nowhere, or to be trained in
        and a snapshot.
        StorageError: it cannot be read.
    """
    try:
        others = _content(folder)
    except FileNotFoundError:
        if folder.is_symlink():
            raise ConfigError(
                f"output={folder} is a link to {folder.readlink()}, which is not there: make that folder, or "
                "give another output"
            ) from None
        return
    except NotADirectoryError:
        file = next(one for one in (folder, *folder.parents) if one.exists())
        where = "is a file" if file == folder else f"lies below {file}, which is a file"
        raise ConfigError(f"output={folder} {where}: give the name of a folder, new or empty") from None
    except OSError as error:
        raise StorageError(f"the run folder {folder} cannot be read: {error.strerror}") from error
    if others and trains and is_snapshot(folder):
        raise ConfigError(
            f"output={folder} is a snapshot: it is for reading and has no room to train in; go on with the "
            f"run that it is of, output={_run_of(folder)} resume=true, or give another output"
        )
    if others and not resume:
        held = f"is not empty (it holds {others[0]})"
        if not trains:
            raise ConfigError(f"the run folder {folder} {held}: name a new or empty one")
        if _shows_run(others):
            way = ": give resume=true to go on with the run in it, or another output"
        else:
            way = " and holds no run: give another output, a new or empty folder"
        raise ConfigError(f"output={folder} {held}{way}")


def check_begun(folder: Path, graph: str | None) -> None:
    """Refuse to resume where there is nothing to go on with and nothing to begin with; warn if there is.

    A folder that shows that epochs were committed, but holds them no longer, is never begun anew. Nor does
    a run come among other files, or the demo graph into the folder of a run on another one.

    Args:
        folder: the run folder.
        graph: the setting `graph`.

    Raises:
        ConfigError: neither a run in `folder` nor a graph, other files without a run, or no graph for a run
        that has one. StorageError: what a run had committed is gone.
    """
    nodes = folder / CHECKPOINT_FOLDER
    if has_commit(nodes):
        trained_on = None if graph is not None else (saved_settings(folder) or {}).get("graph")
        if trained_on is not None:
            raise ConfigError(
                f"graph=null is the demo graph, and the run in {folder} was trained on {trained_on}: leave "
                "out graph, or give that one"
            )
        return
    later = shows_commits(folder)
    if later is not None:
        raise StorageError(
            f"{nodes} holds no commit, but {later} was written after one: what the run had "
            f"learnt is gone from there. Put {nodes} back from a copy and resume, or begin anew in another "
            "output"
        )
    others = _content(folder) if folder.is_dir() else []
    is_demo = graph is None and _is_begun_demo(others)
    if (folder / CONFIG_FILE).is_file():
        log.warning("resume=true: nothing was committed in %s yet, so the run starts anew", folder)
    elif others and not _shows_run(others) and not is_demo:
        raise ConfigError(
            f"output={folder} holds no run to go on with, but other files ({others[0]}): check the name, or "
            "give another output, a new or empty folder"
        )
    elif graph is None and not is_demo:
        raise ConfigError(
            f"output={folder} holds no run to go on with, and resume=true asks for it: check the name, or "
            "give graph= to begin a run there"
        )
    else:
        on = "the demo graph" if graph is None else graph  # a demo that was killed before its first commit
        log.warning("resume=true: %s holds no run to go on with; a new one begins there on %s", folder, on)


def shows_commits(folder: Path) -> Path | None:
    """A file or folder of a run folder that is only written after a commit; None: there is none."""
    later = (folder / name for name in (METRICS_FILE, RESULT_FILE, SNAPSHOT_FOLDER))
    return next((path for path in later if path.exists()), None)


def check_epochs(committed: Mapping[str, Any], epochs: int, folder: Path) -> None:
    """Refuse to train a run to fewer epochs in all than it has already, or has begun.

    Args:
        committed: the meta of its last commit.
        epochs: the setting `training.epochs`.
        folder: the run folder.

    Raises:
        ConfigError: names both numbers.
    """
    done, *within = committed.get("position", (0, 0, 0))
    if any(within) and done >= epochs:
        raise ConfigError(
            f"training.epochs={epochs} is of all epochs, and the run in {folder} has trained {done} and part "
            f"of epoch {done + 1}, so its embeddings are those of no whole epoch: give "
            f"training.epochs={done + 1} or more"
        )
    if done > epochs:
        raise ConfigError(
            f"training.epochs={epochs} is of all epochs, and the run in {folder} has trained {done} already: "
            f"nothing is left to train; give more than {done} to go on, or {done} to test it once more"
        )


def _content(folder: Path) -> list[str]:
    """Names in a run folder, sorted, but for what may be there before the settings of a run."""
    return sorted(entry.name for entry in folder.iterdir() if entry.name not in _BEFORE_SETTINGS)


def _shows_run(names: list[str]) -> bool:
    """Whether a folder of this content is a run's."""
    return CHECKPOINT_FOLDER in names or CONFIG_FILE in names


def _is_begun_demo(names: list[str]) -> bool:
    """Whether a folder's content is what the demo makes before it has settings: its graph, or part of it."""
    return bool(names) and all(name == DEMO_GRAPH or name.startswith(f".{DEMO_GRAPH}.") for name in names)


def _run_of(snapshot: Path) -> str:
    """The run folder that a snapshot is of: two above it, or as noted if it was moved elsewhere."""
    return str(run_around(snapshot) or (saved_settings(snapshot) or {}).get("output"))


# ---------------------------------------------------------------------- settings


def plain_json(value: Any) -> Any:
    """`value` as JSON gives it back: tuples are lists."""
    return json.loads(json.dumps(value))


def record(store: Hdf5PartitionStore, facts: Mapping[str, Any]) -> None:
    """Commit `facts` beside the nodes, unless the last commit says so already.

    Nothing happens before the first commit: that one will carry them.
    """
    committed = store.meta
    if committed is None:
        return
    meta = committed | dict(facts)
    checkpoint = store.checkpoint() if plain_json(meta) != committed else None
    if checkpoint is not None:
        store.commit(Checkpoint(arrays=checkpoint.arrays, meta=meta))


def record_settings(store: Hdf5PartitionStore, settings: Mapping[str, Any]) -> None:
    """Commit the settings of a resumed run, and those before, until config.yaml holds the new ones too."""
    before = (store.meta or {}).get(CONFIG_META)
    if before != settings:
        record(store, {CONFIG_META: settings, BEFORE_META: before})


def log_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Log each setting that a resumed run takes over with another value; returns the lines."""
    before, after = _flat(old), _flat(new)
    lines = [
        f"{key}: {as_given(before.get(key))} until now, {as_given(after.get(key))} from here on"
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key) and key not in ("resume", "output", *NOTES)
    ]
    for line in lines:
        log.info("changed setting %s", line)
    return lines


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found.update(_flat(value, f"{prefix}{name}."))
        else:
            found[prefix + name] = value
    return found


# ---------------------------------------------------------------------- an epoch that began otherwise


_EPOCH_KEYS = (
    "storage.capacity",
    "ordering.name",
    "ordering.policy",
    "ordering.rounds",
    "training.batch_size",
    "negatives.chunks",
)
"""Keys of `EpochSettings`, in the order of its fields."""


@dataclass(frozen=True, slots=True)
class EpochSettings:
    """What gives a position inside an epoch its meaning: change one, and step 5 holds other edges.

    Attributes:
        capacity: c. ordering, policy, rounds: how the schedule was built. batch_size, chunks: how its steps
            were cut.
    """

    capacity: int
    ordering: str
    policy: str
    rounds: int
    batch_size: int
    chunks: int

    @classmethod
    def of(cls, config: TrainConfig, capacity: int, order: EpochOrder) -> EpochSettings:
        """Those of a configuration with `capacity` partitions in the buffer and that order."""
        return cls(
            capacity,
            order.name,
            config.ordering.policy,
            order.rounds,
            config.training.batch_size,
            config.negatives.chunks,
        )

    def to_meta(self) -> dict[str, Any]:
        """By setting, for the checkpoint."""
        return dict(zip(_EPOCH_KEYS, astuple(self), strict=True))

    @classmethod
    def from_meta(cls, meta: Mapping[str, Any]) -> EpochSettings:
        """Inverse of `to_meta`."""
        given = {"ordering.rounds": 1} | dict(meta)  # of versions that knew one round
        return cls(*(given[key] for key in _EPOCH_KEYS))

    def applied(self, config: TrainConfig) -> TrainConfig:
        """`config` with these settings."""
        return replace(
            config,
            storage=replace(config.storage, capacity=self.capacity),
            ordering=replace(
                config.ordering, name=self.ordering, policy=cast(Any, self.policy), rounds=self.rounds
            ),
            training=replace(config.training, batch_size=self.batch_size),
            negatives=replace(config.negatives, chunks=self.chunks),
        )


def unfinished(
    committed: Mapping[str, Any] | None, wanted: EpochSettings
) -> tuple[int, EpochSettings] | None:
    """(epoch, settings) of an epoch that has begun and must end under other settings than `wanted`.

    Args:
        committed: meta of the last commit; None before the first.
        wanted: the settings of now.
    """
    if committed is None or EPOCH_META not in committed:
        return None
    epoch, step, batch = committed["position"]
    began = EpochSettings.from_meta(committed[EPOCH_META])
    if began == wanted or (step, batch) == (0, 0):
        return None
    old, new = began.to_meta(), wanted.to_meta()
    changes = [f"{key}={old[key]} (then {new[key]})" for key in old if old[key] != new[key]]
    log.info("epoch %d ends as it began, with %s", epoch + 1, ", ".join(changes))
    return epoch, began


def check_spare_slots(store: Hdf5PartitionStore, capacity: int) -> None:
    """Refuse a buffer so large that the run's node file has no room for its write-backs between two commits.

    Raises:
        ConfigError: names the largest capacity that fits.
    """
    p = store.table.partitioning.num_partitions
    spare = store.num_slots - p
    if spare >= min(p, 2 * capacity):
        return
    raise ConfigError(
        f"storage.capacity={capacity} is more than the run in {store.folder.parent} was made for: its node "
        f"file has {spare} spare slots, enough for storage.capacity={max(2, spare // 2)} at most"
    )
