"""Check and repair the views of a run's checkpoint (floor 5): its folder in; findings or written files out.

checkpoint.h5 holds the truth of a run; config.yaml, metrics.jsonl and result.json are views of it and
compared with it, so that a changed digit or another run's file is found, and `repair` can write them again.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from marius_py.config import read_yaml, write_yaml
from marius_py.errors import FormatError, MariusError, StorageError
from marius_py.resuming.resume import BEFORE_META, VIEWS, claimed, plain_json
from marius_py.run_files.names import (
    CHECKPOINT_FOLDER,
    CONFIG_FILE,
    CONFIG_META,
    METRICS_FILE,
    RESULT_BEFORE_META,
    RESULT_FILE,
    RESULT_META,
    TRACE_FILE,
)
from marius_py.run_files.results import write_json, write_lines
from marius_py.storage.checkpoint_file import CHECKPOINT_NAME, read_checkpoint
from marius_py.storage.files import read_whole
from marius_py.storage.node_file import NODES_NAME, read_facts
from marius_py.storage.verify import Finding, finding_of
from marius_py.verify.strays import REMOVE

log = logging.getLogger(__name__)

VALIDATED = ("valid", "best_epoch")
"""Keys of an epoch's line that a second commit fills in, after its validation."""

COMMITTED_VIEWS = (CONFIG_FILE, METRICS_FILE, RESULT_FILE)
VIEW_LIMIT = 1 << 32
"""Bytes of a view that are read at most."""

_LOOKS = 5
"""How often a view of a run that trains is read before it is called damaged."""


def committed(nodes: Path) -> dict[str, Any] | None:
    """The meta of the last commit; None without a readable one."""
    try:
        manifest, checkpoint = read_checkpoint(nodes / CHECKPOINT_NAME)
    except MariusError:
        return None
    return dict(checkpoint.meta) if manifest.generation else None


def is_anothers(folder: Path, meta: Mapping[str, Any] | None) -> bool:
    """Whether a run's checkpoint.h5, whole in itself and with that meta, was put there from another run."""
    nodes = folder / CHECKPOINT_FOLDER
    if meta is None or not (nodes / NODES_NAME).exists():
        return False
    try:
        manifest, _ = read_checkpoint(nodes / CHECKPOINT_NAME)
        fits = read_facts(nodes / NODES_NAME).store_id == manifest.store_id
        return not fits and read_view(folder / CONFIG_FILE) != meta.get(CONFIG_META)
    except MariusError:
        return False


def anothers(folder: Path) -> str:
    """What is said of such a checkpoint.h5."""
    path = folder / CHECKPOINT_FOLDER / CHECKPOINT_NAME
    return f"{path} is another run's: neither {NODES_NAME} nor {CONFIG_FILE} fit it"


def check_views(folder: Path, nodes: Path, meta: Mapping[str, Any] | None, *, live: bool) -> list[Finding]:
    """Compare the views with the last commit; a run that trains is about to write those behind it."""
    if not live:
        found = [_view(folder / name, lambda: meta, live=False) for name in VIEWS]
        return [finding for finding in found if finding is not None]
    findings = []
    for name in VIEWS:
        for _ in range(_LOOKS):
            finding = _view(folder / name, lambda: committed(nodes), live=True)
            if finding is None or finding.harmless:
                break
        if finding is not None and not finding.harmless:
            findings.append(finding)
    return findings


def _view(path: Path, commit: Callable[[], Mapping[str, Any] | None], *, live: bool) -> Finding | None:
    """Compare a view with the meta of the last commit, which is asked for when the view has been read."""
    name, found, problem = path.name, None, None
    try:
        found = read_view(path)
    except MariusError as error:
        problem = error
    meta = commit()
    wanted = expected_views(meta).get(name)
    if problem is not None:
        late = name == METRICS_FILE and (live or RESULT_META not in (meta or {}))
        if path.exists() or wanted is not None:
            finding = finding_of(path, problem, _remedy(name, wanted))
            return replace(finding, harmless=late and not path.exists())
        return None
    known = wanted is not None or name != CONFIG_FILE
    if meta is not None and known and name in COMMITTED_VIEWS and found != wanted:
        return _changed(path, wanted, harmless=_is_behind(name, found, meta, live=live))
    return None


def _is_behind(name: str, found: Any, meta: Mapping[str, Any], *, live: bool) -> bool:
    """Whether a view is what it was before the last commit: the run ended between the two, or is about to."""
    if name == RESULT_FILE:
        return RESULT_META not in meta or (found is not None and found == meta.get(RESULT_BEFORE_META))
    if name == CONFIG_FILE:
        return found is not None and found == meta.get(BEFORE_META)
    history = meta.get("history", [])
    least = len(history) if RESULT_META in meta and not live else 0  # its validation may have come later
    if not least <= len(found) <= len(history):
        return False
    pairs = list(zip(found, history, strict=False))
    return all(line == wanted for line, wanted in pairs[:-1]) and all(
        line == wanted or _is_unvalidated(line, wanted) for line, wanted in pairs[-1:]
    )


def _is_unvalidated(line: Any, wanted: Mapping[str, Any]) -> bool:
    """Whether an epoch's line is what it was before its validation."""
    blank = dict.fromkeys(VALIDATED)
    return isinstance(line, dict) and {**blank, **line} == {**wanted, **blank}


def expected_views(meta: Mapping[str, Any] | None) -> dict[str, Any]:
    """What each view should hold by the last commit; a view that the run has not come to is left out."""
    if meta is None:
        return {}
    views = {CONFIG_FILE: meta.get(CONFIG_META), RESULT_FILE: meta.get(RESULT_META)}
    if meta.get("history"):
        views[METRICS_FILE] = meta["history"]
    return {name: value for name, value in views.items() if value is not None}


def read_view(path: Path) -> Any:
    """Parse a view; StorageError if it is missing or may not be read, FormatError if it cannot be parsed."""
    data = read_whole(path, VIEW_LIMIT)
    if path.name == CONFIG_FILE:
        return plain_json(read_yaml(path))
    try:
        if path.name == METRICS_FILE:
            return [json.loads(line) for line in data.decode().splitlines()]
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path} is damaged: {error}") from error


def _changed(path: Path, wanted: Any, *, harmless: bool) -> Finding:
    if harmless:
        problem = f"{path} is not what the last commit says: the run ended before it was written"
    else:
        problem = f"{path} is damaged, changed by hand, or another run's: it is not what the last commit says"
    return Finding(str(path), problem, _remedy(path.name, wanted), harmless=harmless)


def _remedy(name: str, wanted: Any) -> str:
    if wanted is not None:
        return "--repair writes it from the checkpoint"
    if name == RESULT_FILE:
        return "resume=true computes it anew"
    if name == TRACE_FILE:
        return REMOVE
    return "the checkpoint does not hold it; restore it from a copy"


def repair(folder: Path) -> list[Path]:
    """Write the views of a run that are missing or not what the last commit says; returns their paths.

    Raises:
        StorageError: the run is in use, its checkpoint is damaged or another run's, or writing failed.
    """
    written = []
    with claimed(folder):  # before the commit is read: a run that ends in between would make a newer one
        meta = dict(read_checkpoint(folder / CHECKPOINT_FOLDER / CHECKPOINT_NAME)[1].meta)
        if is_anothers(folder, meta):
            raise StorageError(anothers(folder))
        for name, wanted in expected_views(meta).items():
            path = folder / name
            try:
                if read_view(path) == wanted:
                    continue
            except MariusError as error:
                log.info("%s", error)
            if name == METRICS_FILE:
                write_lines(path, wanted)
            elif name == CONFIG_FILE:
                write_yaml(wanted, path)
            else:
                write_json(path, wanted)
            written.append(path)
    return written
