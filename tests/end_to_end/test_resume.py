"""Going on with a run under other settings, beside another run, after an interrupt anywhere."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import marius_py
import marius_py.training.batch_path
from marius_py import cli
from marius_py.assembly import build
from marius_py.assembly.build import Watcher
from marius_py.config import read_yaml
from marius_py.errors import ConfigError, DivergedError, InterruptedRunError, StorageError
from marius_py.resuming.resume import log_changes
from marius_py.storage.hdf5_nodes import open_node_store
from marius_py.storage.lock import LOCK_NAME, FolderLock
from marius_py.testing.crash_harness import committed_position
from marius_py.verify import is_sound, repair, verify
from tests.end_to_end.conftest import Train, embeddings
from tests.every_second import every_second


class InterruptAfter(Watcher):
    """Interrupts the run after so many batches."""

    def __init__(self, batches: int) -> None:
        self.left = batches
        self.trainer: Any = None

    def on_start(self, trainer: Any, num_edges: int, epochs_done: int) -> None:
        self.trainer = trainer

    def on_progress(self, edges: int) -> None:
        self.left -= 1
        if self.left == 0:
            self.trainer.interrupt()


def interrupted(run_train: Train, batches: int, *overrides: str, output: str = "run") -> None:
    with pytest.raises(InterruptedRunError):
        run_train(*overrides, output=output, watcher=InterruptAfter(batches))


@pytest.mark.parametrize("batches", [1, 13])
def test_a_resumed_run_equals_the_uninterrupted_one(batches: int, run_train: Train, tmp_path: Path) -> None:
    whole = run_train(output="whole")
    interrupted(run_train, batches)
    assert committed_position(tmp_path / "run")[1:] != (0, 0)
    resumed = run_train(resume=True)
    np.testing.assert_array_equal(embeddings(tmp_path / "run"), embeddings(tmp_path / "whole"))
    for name in ("mrr", "hits@1", "mean_rank", "count"):
        assert resumed["test"][name] == whole["test"][name]
    assert not verify(tmp_path / "run")


CHANGES = (
    "storage.capacity=3",
    "ordering.name=beta",
    "ordering.policy=random",
    "ordering.rounds=3",
    "training.batch_size=64",
    "negatives.chunks=4",
)


@pytest.mark.parametrize(
    "change", [CHANGES[0], *[pytest.param(one, marks=pytest.mark.slow) for one in CHANGES[1:]]]
)
def test_an_epoch_that_has_begun_ends_under_its_own_settings(
    change: str,
    run_train: Train,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run_train(output="whole")
    one_epoch = run_train("training.epochs=1", output="one")
    assert one_epoch["train"]["epochs"] == 1
    interrupted(run_train, 5)
    monkeypatch.setattr(logging.getLogger("marius_py"), "propagate", True)
    with caplog.at_level(logging.INFO, "marius_py"):
        run_train(change, "training.epochs=1", resume=True)
    key, value = change.split("=")
    assert any("epoch 1 ends as it began" in line and key in line for line in caplog.messages)
    assert any(line.startswith(f"changed setting {key}") and value in line for line in caplog.messages)
    np.testing.assert_array_equal(embeddings(tmp_path / "run"), embeddings(tmp_path / "one"))
    caplog.clear()
    run_train("training.epochs=3", resume=True)
    history = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["edges"] for line in history] == [history[0]["edges"]] * 3
    assert not verify(tmp_path / "run")


def test_other_settings_are_taken_and_logged(
    run_train: Train, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_train()
    monkeypatch.setattr(logging.getLogger("marius_py"), "propagate", True)
    with caplog.at_level(logging.INFO, "marius_py"):
        result = run_train(
            "training.epochs=3",
            "optimizer.lr=0.05",
            "pipeline.mode=threaded",
            "storage.capacity=4",
            resume=True,
        )
    assert result["train"]["epochs"] == 3
    changed = sorted(line.split(":")[0] for line in caplog.messages if line.startswith("changed setting"))
    assert changed == [
        f"changed setting {key}"
        for key in ("optimizer.lr", "pipeline.mode", "storage.capacity", "training.epochs")
    ]
    saved = read_yaml(tmp_path / "run" / "config.yaml")
    assert (saved["optimizer"]["lr"], saved["training"]["epochs"]) == (0.05, 3)
    assert not verify(tmp_path / "run")


def test_what_the_program_notes_is_no_changed_setting() -> None:
    def settings(**penalties: float | bool) -> dict[str, object]:
        return {"training": {"regularizer": penalties}}

    noted = settings(n3=0.1, n3_automatic=True, n3_relation=0.05, n3_relation_automatic=True)
    assert log_changes(noted, settings(n3=0.2, n3_relation=0.05)) == [
        "training.regularizer.n3: 0.1 until now, 0.2 from here on"
    ]


def test_changed_settings_are_shown_as_they_are_given() -> None:
    old = {"trackers": [], "model": {"decoder": {"_target_": "complex"}}, "pipeline": {"trace": False}}
    new = {"trackers": ["csv"], "model": {"decoder": {"_target_": "rotate"}}, "pipeline": {"trace": None}}
    assert log_changes(old, new) == [
        "model.decoder._target_: complex until now, rotate from here on",
        "pipeline.trace: false until now, null from here on",
        'trackers: [] until now, ["csv"] from here on',
    ]


def test_fewer_epochs_than_there_are_train_nothing(
    run_train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_train("training.epochs=2")
    run = tmp_path / "run"
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert cli.train([f"output={run}", "resume=true", "training.epochs=1"]) == 2
    said = capsys.readouterr().err
    assert f"training.epochs=1 is of all epochs, and the run in {run} has trained 2" in said
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    assert run_train("training.epochs=2", resume=True)["train"]["epochs"] == 2


def test_part_of_an_epoch_is_not_tested_as_whole_ones(run_train: Train, tmp_path: Path) -> None:
    interrupted(run_train, 25)
    run = tmp_path / "run"
    assert committed_position(run)[0] == 1
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match=r"training.epochs=1 .* 1 and part of epoch 2.* training.epochs=2 "):
        run_train("training.epochs=1", resume=True)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    assert run_train("training.epochs=2", resume=True)["train"]["epochs"] == 2


def test_what_interrupted_writes_left_is_told_from_what_the_next_start_removes(
    run_train: Train, tmp_path: Path
) -> None:
    run_train("training.epochs=1")
    run = tmp_path / "run"
    (run / "edges-64").mkdir()
    removed = [run / "edges-64" / "edges.h5.tmp", run / "metrics.jsonl.tmp"]
    others = {
        run / ".report.html.99.tmp": "nothing depends on it; remove it",
        run / "snapshots" / "best-0001.tmp": "the next epoch to end removes it",
    }
    for path in (*removed, *others):
        path.parent.mkdir(exist_ok=True)
        path.write_text("half")
    remedies = others | dict.fromkeys(removed, "the next start removes it")
    found = verify(run)
    assert {Path(one.file): one.remedy for one in found} == remedies
    assert len(found) == len(remedies)
    assert is_sound(found)
    lock = FolderLock(run)
    lock.acquire()
    assert verify(run) == []  # a run that trains may be writing all of them
    lock.release()
    (run / "snapshots" / "best-0001.tmp").unlink()
    run_train(resume=True)
    assert [Path(one.file) for one in verify(run)] == [run / ".report.html.99.tmp"]


@pytest.mark.parametrize(
    "change",
    [
        "model.dim=8",
        "model.decoder=distmult",
        "model.init=uniform",
        "model.reciprocal=false",
        "optimizer.name=adam",
        "storage.partitions=8",
        "training.seed=3",
    ],
)
def test_settings_that_cannot_change_are_refused_by_name(
    change: str, run_train: Train, tmp_path: Path
) -> None:
    run_train("training.epochs=1")
    before = embeddings(tmp_path / "run")
    with pytest.raises(ConfigError, match=change.split("=")[0]):
        run_train(change, "training.epochs=2", resume=True)
    np.testing.assert_array_equal(embeddings(tmp_path / "run"), before)
    assert not verify(tmp_path / "run")


def test_a_buffer_too_large_for_the_spare_slots_is_refused(run_train: Train) -> None:
    words = ("storage.partitions=16", "storage.capacity=2", "checkpoint.every_steps=1")
    run_train(*words, "training.epochs=1")
    with pytest.raises(ConfigError, match=r"storage.capacity=8 is more .* 5 spare slots, .*=2 at most"):
        run_train("storage.capacity=8", "training.epochs=2", resume=True)


@pytest.mark.parametrize(
    ("every", "capacity"),
    [(1, 2), (100, 3), *(pytest.param(*one, marks=pytest.mark.slow) for one in ((3, 2), (1, 4)))],
)
def test_disk_overhead_is_bounded_and_suffices(
    every: int, capacity: int, run_train: Train, tmp_path: Path
) -> None:
    words = ("storage.partitions=12", f"storage.capacity={capacity}", f"checkpoint.every_steps={every}")
    run_train(*words, "training.epochs=1")
    with open_node_store(tmp_path / "run" / "checkpoint") as store:
        assert store.num_slots == 12 + min(12, every + 2 * capacity)
    # Without a setting that asks for commits, they come when the slots ask for them.
    run_train("checkpoint.every_steps=null", "training.epochs=2", resume=True)


@pytest.mark.slow
def test_spare_slots_suffice_where_steps_have_no_edges(tmp_path: Path) -> None:
    """Nothing asks for a commit between two steps without edges, but all residents are swapped meanwhile."""
    tails = np.random.default_rng(0).integers(0, 64, 60)
    edges = [(f"n{head}", "r", f"n{tail}") for head, tail in zip(range(64), tails, strict=False)]
    settings = {"model.dim": 8, "training.epochs": 1, "training.valid_every": 0, "storage.partitions": 16}
    settings |= {"storage.capacity": 2, "checkpoint.every_steps": 1, "checkpoint.every_seconds": None}
    settings |= {"ordering.policy": "eager", "ordering.name": "random"}
    marius_py.train(edges, tmp_path / "run", settings).close()
    later = {"training.epochs": 3, "checkpoint.every_steps": None}
    marius_py.train(edges, tmp_path / "run", later, resume=True).close()
    assert not verify(tmp_path / "run")


@pytest.mark.parametrize(
    ("in_flight", "batches"), [(1, 9), pytest.param(6, 3, marks=pytest.mark.slow), (6, 16)]
)
def test_threaded_no_batch_is_trained_twice_or_left_out(
    in_flight: int, batches: int, run_train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed without warning, threaded: what the commit holds and what follows are the epoch, exactly."""
    done: list[tuple[tuple[int, int, int], int]] = []
    stages = marius_py.training.batch_path.host_stages

    def recording(buffer: Any, model: Any, on_done: Any, *rest: Any) -> Any:
        def note(one: Any) -> None:
            done.append((tuple(one.position), one.num_edges))
            on_done(one)

        return stages(buffer, model, note, *rest)

    monkeypatch.setattr(marius_py.training.batch_path, "host_stages", recording)
    words = ("pipeline.mode=threaded", f"pipeline.max_in_flight={in_flight}", "checkpoint.every_steps=1")
    run_train(*words, output="whole")
    whole, done[:] = list(done), []

    class Kill(Watcher):
        def on_progress(self, edges: int) -> None:
            if len(done) == batches:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_train(*words, watcher=Kill())
    position = committed_position(tmp_path / "run")
    assert position is not None
    kept = [one for one in done if one[0] <= position]
    done.clear()
    run_train(resume=True)
    assert kept + done == whole


# ---------------------------------------------------------------------- the lock


def test_a_second_run_on_the_folder_is_refused_with_its_process(run_train: Train, tmp_path: Path) -> None:
    class Second(Watcher):
        refused = ""

        def on_epoch(self, line: Any) -> None:
            with pytest.raises(StorageError) as caught:
                run_train(resume=True)
            Second.refused = str(caught.value)

    run_train("training.epochs=1", watcher=Second())
    assert "is in use" in Second.refused
    assert f"this process ({os.getpid()})" in Second.refused
    assert not (tmp_path / "run" / LOCK_NAME).exists()


def test_a_run_does_not_write_into_what_has_taken_its_folders_place(run_train: Train, tmp_path: Path) -> None:
    """The folder is moved in the first epoch, and another run is made and ends where it was."""
    folder, moved = tmp_path / "run", tmp_path / "moved"
    files: dict[str, bytes] = {}

    class Moving(Watcher):
        def on_progress(self, edges: int) -> None:
            if not moved.exists():
                folder.rename(moved)
                run_train("training.epochs=1", "model.dim=4")
                files.update({str(one): one.read_bytes() for one in folder.rglob("*") if one.is_file()})

    with pytest.raises(
        StorageError, match=f"{folder}/checkpoint is not the folder any more that this process"
    ):
        run_train(watcher=Moving())
    assert files
    assert files == {str(one): one.read_bytes() for one in folder.rglob("*") if one.is_file()}
    assert is_sound(verify(folder))
    assert is_sound(verify(moved))


def test_the_lock_itself_refuses_when_both_have_looked(
    tmp_path: Path, run_train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    held = FolderLock(folder)
    held.acquire()
    (folder / LOCK_NAME).write_text("")  # its owner has not signed yet
    with pytest.raises(StorageError, match=r"output=.* is in use: another process"):
        run_train()
    monkeypatch.setattr("marius_py.resuming.resume.is_locked", lambda folder: False)
    with pytest.raises(StorageError, match="in use"):
        run_train()
    held.release()
    run_train("training.epochs=1")


def test_a_dead_process_leaves_no_lock(
    tmp_path: Path, run_train: Train, caplog: Any, monkeypatch: Any
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    code = (
        "import os, pathlib, sys; from marius_py.storage.lock import FolderLock; "
        "FolderLock(pathlib.Path(sys.argv[1])).acquire(); os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(folder)], check=False).returncode == 9
    assert (folder / LOCK_NAME).exists()
    monkeypatch.setattr(logging.getLogger("marius_py"), "propagate", True)
    run_train("training.epochs=1")  # a stale lock is no content: no resume=true is needed
    assert any("which is gone" in line for line in caplog.messages)
    assert not (folder / LOCK_NAME).exists()


def test_a_run_that_was_killed_on_another_host_goes_on_here(run_train: Train, tmp_path: Path) -> None:
    """As in another container, whose host name differs: the kernel's lock is free."""
    run_train("training.epochs=1")
    for folder in (tmp_path / "run", tmp_path / "run" / "checkpoint"):
        (folder / LOCK_NAME).write_text(json.dumps({"pid": 7, "started": 1, "host": "3f2a1bc0ffee"}))
    found = verify(tmp_path / "run")
    assert [(Path(one.file).parent.name, one.harmless) for one in found] == [
        ("checkpoint", True),
        ("run", True),
    ]
    run_train("training.epochs=2", resume=True)
    assert verify(tmp_path / "run") == []


def test_a_refused_run_leaves_no_folder(graph: Path, tmp_path: Path, capsys: Any) -> None:
    output = tmp_path / "kept" / "made" / "never"
    (tmp_path / "kept").mkdir()
    assert (
        cli.train([f"graph={graph}", f"output={output}", "storage.partitions=4", "storage.capacity=9"]) == 2
    )
    assert cli.train([f"graph={graph}", f"output={output}", "storage.partitions=100000"]) == 2
    assert cli.train([f"graph={graph}", f"output={output}", "storage.capacity=9"]) == 2  # once it is made
    assert list(tmp_path.rglob("*")) == [tmp_path / "kept"]
    capsys.readouterr()


class Late(Watcher):
    """Interrupts the first trainer that it is told of: when it is over, or in its first validation."""

    def __init__(self, when: str) -> None:
        self.when, self.stopped = when, False
        self.trainers: list[Any] = []

    def on_start(self, trainer: Any, num_edges: int, epochs_done: int) -> None:
        self.trainers.append(trainer)
        if self.when == "over" and len(self.trainers) == 2:
            self.trainers[0].interrupt()

    def on_stage(self, stage: str, done: int, total: int | None, unit: str) -> None:
        if self.when == "validation" and not self.stopped:
            self.stopped = True
            self.trainers[-1].interrupt()


@pytest.mark.parametrize("when", ["validation", "over"])
def test_an_interrupt_at_the_end_of_such_an_epoch_is_heeded(when: str, run_train: Train) -> None:
    interrupted(run_train, 5)
    watcher = Late(when)
    with pytest.raises(InterruptedRunError, match=r"interrupted .*resume=true"):
        run_train("training.batch_size=64", resume=True, watcher=watcher)
    assert len(watcher.trainers) == (1 if when == "validation" else 2)
    assert run_train("training.batch_size=64", resume=True)["train"]["epochs"] == 2


def test_an_interrupt_in_the_last_validation_leaves_the_ranking_to_be_done(
    run_train: Train, tmp_path: Path
) -> None:
    with pytest.raises(InterruptedRunError, match=r"interrupted after epoch 1; .*resume=true"):
        run_train("training.epochs=1", watcher=Late("validation"))
    assert not (tmp_path / "run" / "result.json").exists()
    assert run_train(resume=True)["train"]["epochs"] == 1
    assert (tmp_path / "run" / "result.json").exists()


class AtOnce(Watcher):
    """Interrupts the run before its first batch."""

    def on_start(self, trainer: Any, num_edges: int, epochs_done: int) -> None:
        trainer.interrupt()


@pytest.mark.parametrize(("ends", "validated"), every_second(["diverged", "interrupted"], [True, False]))
def test_results_stay_until_other_embeddings_are_committed(
    ends: str, validated: bool, run_train: Train, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    run_train("training.epochs=1", *(() if validated else ["training.valid_every=0"]))
    rows, file = embeddings(run), (run / "result.json").read_bytes()
    further = ["training.epochs=2", "training.valid_every=1"]
    if ends == "diverged":
        with pytest.raises(DivergedError):
            run_train(*further, "optimizer.lr=1e30", resume=True)
    else:
        with pytest.raises(InterruptedRunError):
            run_train(*further, resume=True, watcher=AtOnce())
    np.testing.assert_array_equal(embeddings(run), rows)
    assert (run / "result.json").read_bytes() == file
    with marius_py.load(run) as opened:
        assert opened.result == json.loads(file)
        assert opened.history[-1]["valid"]
        assert opened.unfinished is None
    assert not verify(run)
    assert run_train("optimizer.lr=0.1", resume=True)["train"]["epochs"] == 2
    assert not verify(run)


def test_results_go_with_the_first_commit_of_further_training(run_train: Train, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run_train("training.epochs=1")
    file = (run / "result.json").read_bytes()
    with pytest.raises(InterruptedRunError):
        run_train("training.epochs=2", resume=True, watcher=InterruptAfter(1))
    assert not (run / "result.json").exists()
    with marius_py.load(run) as opened:
        assert opened.result is None
        assert "has not finished" in str(opened.unfinished)
    (run / "result.json").write_bytes(file)  # as if it had been killed before the file was removed
    assert is_sound(verify(run))
    with pytest.raises(InterruptedRunError):
        run_train(resume=True, watcher=AtOnce())
    assert not (run / "result.json").exists()


def test_a_validation_that_is_made_up_for_leaves_results_and_a_view_that_is_behind(
    run_train: Train, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    run_train("training.epochs=1", "training.valid_every=0")
    before = (run / "metrics.jsonl").read_bytes()
    with pytest.raises(InterruptedRunError):
        run_train("training.epochs=2", "training.valid_every=1", resume=True, watcher=AtOnce())
    (run / "metrics.jsonl").write_bytes(before)  # as if it had been killed before the file was written
    found = verify(run)
    assert [(Path(one.file).name, one.harmless) for one in found] == [("metrics.jsonl", True)]


@pytest.mark.parametrize("failing", ["record", "write_json"])
def test_a_run_that_ends_while_new_results_are_written_is_sound(
    failing: str, run_train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    run_train("training.epochs=1")

    def end(*given: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(build, failing, end)
        with pytest.raises(KeyboardInterrupt):
            run_train("evaluation.ks=[1,5]", resume=True)
    assert is_sound(verify(run))
    repair(run)
    assert not verify(run)
    with marius_py.load(run) as opened:
        assert opened.result == json.loads((run / "result.json").read_text())
    run_train(resume=True)
    assert not verify(run)
