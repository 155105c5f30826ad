"""Checking a run: beside one that trains, before its first commit, where the system refuses to read."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from marius_py import cli, verify
from marius_py.config import write_yaml
from marius_py.errors import StorageError
from marius_py.resuming import resume
from marius_py.storage import files
from marius_py.storage.hdf5_nodes import create_node_store, open_node_store
from marius_py.storage.lock import FolderLock
from marius_py.storage.protocols import Checkpoint
from marius_py.storage.reader import open_node_reader
from marius_py.verify import views
from tests.small_runs import write_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A whole run of three epochs."""
    folder = write_run(tmp_path)[0]
    _end_epoch(folder)
    assert verify.verify(folder) == []
    return folder


@pytest.fixture
def live(run: Path) -> Iterator[Path]:
    """One that trains."""
    lock = FolderLock(run)
    lock.acquire()
    yield run
    lock.release()


def _end_epoch(run: Path, *, views: bool = True) -> None:
    """Commit one more line of history and another setting, then write the views of it."""
    with open_node_store(run / "checkpoint") as store:
        checkpoint = store.checkpoint()
        assert checkpoint is not None
        meta = dict(checkpoint.meta)
        meta["history"] = [*meta["history"], {"epoch": len(meta["history"]), "valid": None}]
        graph = str(run.parent / "graph")
        meta["config"] = {"graph": graph, "training": {"epochs": 9 + len(meta["history"])}}
        store.commit(Checkpoint(arrays=checkpoint.arrays, meta=meta))
    if views:
        (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in meta["history"]))
        write_yaml(meta["config"], run / "config.yaml")


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_run_that_ends_an_epoch_meanwhile_is_whole(
    when: str, live: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_view, left = views.read_view, iter(range(3))

    def read(path: Path) -> Any:
        if when == "before" and next(left, None) is not None:
            _end_epoch(live)
        found = read_view(path)
        if when == "after" and next(left, None) is not None:
            _end_epoch(live)
        return found

    monkeypatch.setattr(views, "read_view", read)
    assert verify.verify(live) == []


def test_files_of_a_users_own_beside_a_runs_are_left_alone(run: Path) -> None:
    """Names that begin like those of the run's folders."""
    for name in (
        "edges-new.tsv",
        "edges-8",
        "snapshots/notes-1.txt",
        "snapshots/epoch-0001",
        "edges-old/a.tmp",
    ):
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).write_text("mine")
    assert verify.verify(run) == []
    with resume.claimed(run):
        pass
    assert (run / "edges-old" / "a.tmp").read_text() == "mine"


def test_views_that_a_run_is_about_to_write_are_no_news(live: Path) -> None:
    (live / "metrics.jsonl").unlink()
    assert verify.verify(live) == []
    (live / "metrics.jsonl").write_text('{"epoch": 1}\n')
    assert verify.verify(live) == []
    (live / "metrics.jsonl").write_text('{"epoch": 7}\n')
    assert [finding.label for finding in verify.verify(live)] == ["DAMAGED"]


@pytest.mark.parametrize("change", [{"valid": {"mrr": 0.9}}, {"best_epoch": 2}, 1, None])
def test_a_last_line_that_no_commit_wrote_is_damage(change: Any, run: Path) -> None:
    """Only one without its validation is what an interrupted run leaves."""
    *before, last = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())

    def labels(line: Any) -> list[str]:
        (run / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in (*before, line)))
        return [finding.label for finding in verify.verify(run)]

    assert labels({**last, "best_epoch": None}) == ["note"]
    assert labels({**last, **change} if isinstance(change, dict) else change) == ["DAMAGED"]


@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("stage", ["settings", "nodes", "store"])
def test_a_run_without_a_commit_has_lost_nothing(
    stage: str, trains: bool, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_node_reader(run / "checkpoint") as reader:
        table = reader.table
    for path in ((run / "metrics.jsonl"), *(run / "checkpoint").iterdir()):
        path.unlink()
    (run / "checkpoint").rmdir()
    if stage == "nodes":
        (run / "checkpoint").mkdir()
        (run / "checkpoint" / "nodes.h5.tmp").write_text("")
    elif stage == "store":
        create_node_store(run / "checkpoint", table, spare_slots=0).close()
    lock = FolderLock(run)
    if trains:
        lock.acquire()
    assert cli.verify([str(run)]) == 0
    said = capsys.readouterr().out
    assert "nothing was committed yet" in said
    assert ("resume=true begins the run anew" in said) != trains
    lock.release()
    (run / "snapshots").mkdir()
    assert cli.verify([str(run)]) == 1


@pytest.mark.parametrize("name", ["snapshots", "edges-4"])
def test_a_folder_that_may_not_be_read_is_named(
    name: str, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed, scandir = run / name, os.scandir
    closed.mkdir()

    def refuse(path: Path) -> Any:
        if Path(path) == closed:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(StorageError, match=f"cannot check {closed}: Permission denied"):
        verify.verify(run)


def test_settings_that_may_not_be_read_are_not_called_damaged(run: Path) -> None:
    def refuse(call: str, path: str, size: int) -> int:
        if call == "open" and path.endswith("config.yaml"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return size

    before = files.set_call_hook(refuse)
    try:
        findings = verify.verify(run)
    finally:
        files.set_call_hook(before)
    assert [one.problem for one in findings] == [f"cannot open {run / 'config.yaml'}: Permission denied"]
    assert findings[0].label == "UNREAD"
    assert "--repair" not in findings[0].remedy


@pytest.mark.parametrize("name", ["config.yaml", "metrics.jsonl"])
def test_a_view_that_cannot_be_replaced_leaves_nothing_beside_it(name: str, run: Path) -> None:
    (run / name).unlink()
    (run / name).mkdir()
    before = sorted(run.iterdir())
    with pytest.raises(StorageError, match=rf"cannot replace \S+{name}"):
        verify.repair(run)
    assert sorted(run.iterdir()) == before


def test_a_repair_that_is_refused_still_says_what_is_damaged(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "writer.lock").mkdir()  # as in a folder that may not be written to
    assert cli.verify([str(run), "--repair"]) == 0  # nothing is to be done
    (run / "metrics.jsonl").write_text("torn")
    capsys.readouterr()
    assert cli.verify([str(run), "--repair"]) == 1
    said = capsys.readouterr()
    assert f"DAMAGED: {run / 'metrics.jsonl'} is damaged" in said.out
    assert said.err == (
        f"error: {run}: --repair failed: {run} cannot be written to: opening its writer.lock failed "
        "(it is no file but a folder)\n"
    )


def test_a_damaged_graph_is_named_once_however_many_snapshots_were_trained_on_it(run: Path) -> None:
    for epoch in (2, 3):
        shutil.copytree(run, run / "snapshots" / f"epoch-{epoch:04d}", ignore=lambda *_: {"snapshots"})
    graph = run.parent / "graph" / "graph.json"
    graph.write_text("torn")
    assert [str(graph) in finding.problem for finding in verify.verify(run)] == [True]


def test_of_a_graph_that_is_gone_is_said_how_a_run_is_told_where_it_went(run: Path) -> None:
    shutil.copytree(run, run / "snapshots" / "epoch-0003", ignore=lambda *_: {"snapshots"})
    graph, moved = run.parent / "graph", run.parent / "moved"
    graph.rename(moved)
    (found,) = verify.verify(run)
    assert found.problem == f"the graph of the run {run}, {graph}, is gone"
    assert found.remedy.startswith(f"if it was moved, marius-train output={run} resume=true graph=DIR notes")
    graph.write_text("a file")
    assert "is gone" not in verify.verify(run)[0].remedy


def test_views_are_not_written_from_the_checkpoint_of_another_run(run: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = write_run(tmp_path / "other")[0]
    _end_epoch(other)
    shutil.copy(other / "checkpoint" / "checkpoint.h5", run / "checkpoint")
    before = [(run / name).read_bytes() for name in ("config.yaml", "metrics.jsonl")]
    assert cli.verify([str(run), "--repair"]) == 1
    assert [(run / name).read_bytes() for name in ("config.yaml", "metrics.jsonl")] == before
