"""Snapshots of the last epochs and of the best one: whole runs of their own, bounded, safe from kills."""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import marius_py
from marius_py import cli
from marius_py.assembly.joint import Joint
from marius_py.errors import PipelineError, StorageError
from marius_py.resuming.resume import claimed
from marius_py.resuming.snapshots import best_epoch, best_snapshot, update_snapshots
from marius_py.storage.files import TEMPORARY_SUFFIX
from marius_py.storage.hdf5_nodes import open_node_store
from marius_py.storage.hdf5_store import Hdf5PartitionStore
from marius_py.testing.system_calls import SystemCallFaults
from marius_py.verify import is_sound, verify
from marius_py.verify import runs as verifying
from tests.end_to_end.conftest import Train, embeddings


def names(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "snapshots").iterdir())


def test_the_last_epochs_are_kept(run_train: Train, tmp_path: Path) -> None:
    for epochs in (2, 3):
        run_train(f"training.epochs={epochs}", output=f"short-{epochs}")
    run_train("training.epochs=4", "checkpoint.keep=2")
    run = tmp_path / "run"
    assert names(run) == ["epoch-0003", "epoch-0004"]
    np.testing.assert_array_equal(
        embeddings(run / "snapshots" / "epoch-0003"), embeddings(tmp_path / "short-3")
    )
    with open_node_store(run / "snapshots" / "epoch-0003" / "checkpoint") as store:
        assert store.num_slots == 4
    assert not verify(run)


def test_a_snapshot_gets_its_name_once_all_of_it_is_on_the_disk(
    run_train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every file of it, the folders that name them, and then the folder that names the snapshot."""
    run_train("training.epochs=1")
    named, rename = [], os.rename

    def checked(source: Path, target: Path) -> None:
        if Path(target).parent.name == "snapshots":
            flushed = {call.path for call in system.calls if call.name in ("fsync", "fdatasync")}
            for path in (source, *Path(source).rglob("*")):
                other = path.with_name(f"{path.name}{TEMPORARY_SUFFIX}")  # took the file's place once flushed
                assert {str(path), str(other)} & flushed, path
            named.append(len(system.calls))
        rename(source, target)

    monkeypatch.setattr("marius_py.resuming.snapshots.os.rename", checked)
    with SystemCallFaults() as system:
        update_snapshots(tmp_path / "run", keep=1, best=False)
    after = [call.path for call in system.calls[named[0] :] if call.name == "fsync"]
    assert names(tmp_path / "run") == ["epoch-0001"]
    assert after == [str(tmp_path / "run" / "snapshots")]


@pytest.mark.parametrize("after", ["is_locked", "verify_node_store", "committed"])
def test_a_snapshot_that_training_removes_while_it_is_checked(
    after: str, run_train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_train("checkpoint.keep=2")
    run = tmp_path / "run"
    plain = getattr(verifying, after)

    def checked(folder: Path) -> object:
        found = plain(folder)
        if "epoch-0001" in folder.parts:
            shutil.rmtree(run / "snapshots" / "epoch-0001")
        return found

    monkeypatch.setattr(verifying, after, checked)
    with claimed(run):
        assert verify(run) == []
    assert names(run) == ["epoch-0002"]


def test_a_snapshot_loses_its_name_before_its_files(
    run_train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_train("checkpoint.keep=2")
    run = tmp_path / "run"
    monkeypatch.setattr(shutil, "rmtree", lambda path, **_: None)
    update_snapshots(run, keep=1, best=False)
    assert names(run) == ["epoch-0001.tmp", "epoch-0002"]
    assert is_sound(verify(run))


def test_copies_that_a_resumed_run_does_not_keep_go_at_its_start_and_are_logged(
    run_train: Train, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_train("checkpoint.keep=2", "checkpoint.best=true")
    monkeypatch.setattr(logging.getLogger("marius_py"), "propagate", True)
    before = names(tmp_path / "run")
    caplog.clear()
    with caplog.at_level(logging.INFO, "marius_py"):
        run_train("checkpoint.keep=0", "checkpoint.best=false", resume=True)
    after = names(tmp_path / "run")
    assert after == [name for name in before if name.startswith("best")] != []
    told = [line for line in caplog.messages if line.startswith("snapshot ")]
    assert told == [f"snapshot {tmp_path}/run/snapshots/epoch-000{epoch} removed" for epoch in (1, 2)]


def test_a_snapshot_is_a_run(run_train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_train("checkpoint.keep=1")
    snapshot = tmp_path / "run" / "snapshots" / "epoch-0002"
    with marius_py.load(snapshot) as run:
        assert run.epochs == 2
    assert cli.verify([str(snapshot)]) == 0
    assert cli.evaluate([f"run={snapshot}", "compute_threads=1"]) == 0
    words = [str(snapshot), "--format", "npy", "--output", str(tmp_path / "nodes.npy")]
    assert cli.export(words) == 0
    capsys.readouterr()


def test_a_snapshot_finds_the_graph_that_its_run_found(
    run_train: Train, graph: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(graph, tmp_path / "mine")
    run_train(f"graph={tmp_path / 'mine'}", "checkpoint.keep=1")
    run, snapshot = tmp_path / "run", tmp_path / "run" / "snapshots" / "epoch-0002"
    (tmp_path / "mine").rename(tmp_path / "moved")
    assert cli.verify([str(run)]) == 1
    run_train(f"graph={tmp_path / 'moved'}", resume=True)
    assert cli.verify([str(run)]) == 0
    with marius_py.load(snapshot) as opened:
        assert opened.graph.path == tmp_path / "moved"
    capsys.readouterr()


@pytest.mark.slow
def test_a_demo_that_was_moved_takes_its_snapshots_along(tmp_path: Path) -> None:
    small = {"model.dim": 4, "training.epochs": 1, "training.valid_every": 0, "checkpoint.keep": 1}
    marius_py.train(None, tmp_path / "demo", {**small, "negatives.count": 2}).close()
    (tmp_path / "demo").rename(tmp_path / "elsewhere")
    assert not verify(tmp_path / "elsewhere")
    with marius_py.load(tmp_path / "elsewhere" / "snapshots" / "epoch-0001") as opened:
        assert opened.predict(head=opened.node_names()[0], relation=opened.relation_names[0], k=1)


@pytest.mark.parametrize("content", ["", "{", None])
def test_nothing_depends_on_the_file_of_results(
    run_train: Train, tmp_path: Path, content: str | None
) -> None:
    wanted = run_train()
    file = tmp_path / "run" / "result.json"
    file.unlink()
    if content is not None:
        file.write_text(content)
    with marius_py.load(tmp_path / "run") as run:
        assert run.result is not None
        assert run.result["test"]["mrr"] == wanted["test"]["mrr"]
        assert run.unfinished is None
    assert cli.evaluate([f"run={tmp_path / 'run'}", "compute_threads=1"]) == 0


def test_the_best_epoch_is_kept_and_tested(run_train: Train, tmp_path: Path) -> None:
    result = run_train("training.epochs=5", "optimizer.lr=1.5", "checkpoint.best=true")
    history = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    wanted = max(range(5), key=lambda i: (history[i]["valid"]["mrr"], -i)) + 1
    assert best_epoch(history) == wanted
    assert names(tmp_path / "run") == [f"best-{wanted:04}"]
    assert result["best"]["epoch"] == wanted
    again = run_train(f"training.epochs={wanted}", "optimizer.lr=1.5", output="again")
    assert result["best"]["test"]["mrr"] == again["test"]["mrr"]
    assert not verify(tmp_path / "run")


def test_the_best_epoch_is_told_where_there_are_no_test_edges(run_train: Train, tmp_path: Path) -> None:
    edges = [(f"node {i % 30}", f"node {(i * i + 1) % 30}") for i in range(120)]
    marius_py.graph_from(edges, tmp_path / "graph", split=(0.8, 0.2, 0), partitions=4)
    learns = [f"graph={tmp_path / 'graph'}", "checkpoint.best=true", "training.epochs=4", "optimizer.lr=5"]
    result = run_train(*learns)
    history = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    wanted = history[-1]["best_epoch"]
    assert result["test"] is None
    assert result["best"] == {"epoch": wanted, "valid": history[wanted - 1]["valid"], "test": None}
    assert names(tmp_path / "run") == [f"best-{wanted:04}"]


def test_a_best_epoch_that_is_the_last_is_tested_once(
    run_train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank, splits = Joint.evaluate, []

    def counting(self: Joint, split: str, *words: Any, **more: Any) -> dict[str, Any]:
        splits.append(split)
        return rank(self, split, *words, **more)

    monkeypatch.setattr(Joint, "evaluate", counting)
    result = run_train("training.epochs=1", "checkpoint.best=true")
    assert result["best"]["epoch"] == 1
    assert result["best"]["test"] == result["test"]
    assert splits.count("test") == 1


def test_a_snapshot_that_a_failure_cut_off_is_made_up_for(
    run_train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, calls = Hdf5PartitionStore.write, []

    def failing(self: Hdf5PartitionStore, *words: object) -> int:
        if "snapshots" in self.folder.parts:
            calls.append(words[0])
            if len(calls) == 3:
                raise RuntimeError("killed here")
        return write(self, *words)  # type: ignore[arg-type]

    monkeypatch.setattr(Hdf5PartitionStore, "write", failing)
    with pytest.raises(PipelineError, match="stage 'snapshot' failed"):
        run_train("checkpoint.keep=9", "checkpoint.best=true")
    run_train(resume=True)
    assert names(tmp_path / "run")[-2:] == ["epoch-0001", "epoch-0002"]
    history = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert best_snapshot(tmp_path / "run", history) is not None
    assert not verify(tmp_path / "run")


@pytest.mark.slow
def test_a_best_epoch_that_was_not_kept_is_not_another_one(
    run_train: Train, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Kept after the first epoch, not asked for while others were better, asked for again."""
    run_train("training.epochs=1", "checkpoint.best=true")
    assert names(tmp_path / "run") == ["best-0001"]
    run_train("training.epochs=20", "checkpoint.best=false", resume=True)
    run_train("training.epochs=21", "optimizer.lr=5", resume=True)
    result = run_train("training.epochs=22", "checkpoint.best=true", resume=True)
    history = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert best_epoch(history) not in (1, 21, 22, None)
    assert best_snapshot(tmp_path / "run", history) is None
    assert names(tmp_path / "run") == []
    assert "best" not in result
    assert f"epoch {best_epoch(history)} was best on the validation edges" in caplog.text


def _without_rows(snapshot: Path) -> None:
    (snapshot / "checkpoint" / "nodes.h5").unlink()


def _empty(snapshot: Path) -> None:
    shutil.rmtree(snapshot)
    snapshot.mkdir()


def _of_another_seed(snapshot: Path) -> None:
    _empty(snapshot)
    [other] = (snapshot.parents[2] / "other" / "snapshots").glob("best-*")
    shutil.copytree(other, snapshot, dirs_exist_ok=True)


def _of_a_longer_run(snapshot: Path) -> None:
    _empty(snapshot)
    last = snapshot.parents[2] / "long" / "snapshots" / "epoch-0005"
    shutil.copytree(last, snapshot, dirs_exist_ok=True)


@pytest.mark.parametrize(
    "harm",
    [
        pytest.param(_without_rows, marks=pytest.mark.slow),
        pytest.param(_empty, marks=pytest.mark.slow),
        pytest.param(_of_another_seed, marks=pytest.mark.slow),
        _of_a_longer_run,
    ],
)
def test_a_damaged_or_foreign_snapshot_is_made_again_or_left_out(
    run_train: Train, tmp_path: Path, harm: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    learns = ("model.dim=16", "optimizer.lr=0.3", "training.regularizer.n3=0")  # most in epoch 2
    run_train(*learns, "checkpoint.best=true", "training.seed=9", output="other")
    run_train(*learns, "checkpoint.keep=1", "training.epochs=5", "training.valid_every=0", output="long")
    wanted = run_train(*learns, "checkpoint.best=true")["best"]["test"]["mrr"]
    run = tmp_path / "run"
    best = run / "snapshots" / "best-0002"
    before = best.stat().st_ino
    assert run_train(resume=True)["best"]["test"]["mrr"] == wanted
    assert best.stat().st_ino == before  # what is whole is not copied again
    harm(best)
    assert run_train(resume=True)["best"]["test"]["mrr"] == wanted
    assert not verify(run)
    # It changes next to nothing, so that it is no better: the best one cannot come again.
    run_train("optimizer.lr=1e-9", "training.epochs=3", resume=True)
    harm(best)
    result = run_train(resume=True)
    assert result["test"] is not None
    assert "best" not in result
    assert "the results leave out the best epoch" in caplog.text


def test_that_no_epoch_is_validated_is_said(run_train: Train, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "marius_py")
    run_train("training.valid_every=3", "checkpoint.best=true", "training.patience=1")
    (said,) = (one for one in caplog.records if "no epoch is validated" in one.message)
    idle = "leaves training.patience=1 and checkpoint.best=true without effect: training.valid_every=3"
    assert (said.levelname, idle in said.message) == ("WARNING", True)
    assert "validation: all" not in caplog.text


def test_a_full_disk_harms_no_snapshot(run_train: Train, tmp_path: Path) -> None:
    run_train("training.epochs=1", "checkpoint.keep=2")
    with SystemCallFaults() as seen:
        run_train("training.epochs=2", resume=True)
    inside = [i for i, call in enumerate(seen.calls, 1) if "epoch-0002" in call.path]
    run_train("training.epochs=1", "checkpoint.keep=2", output="other")
    with (
        SystemCallFaults(inside[len(inside) // 2], errno.ENOSPC),
        pytest.raises(StorageError, match="disk full"),
    ):
        run_train("training.epochs=2", output="other", resume=True)
    assert names(tmp_path / "other") == ["epoch-0001"]
    run_train("training.epochs=2", output="other", resume=True)
    assert names(tmp_path / "other") == ["epoch-0001", "epoch-0002"]
    assert not verify(tmp_path / "other")
