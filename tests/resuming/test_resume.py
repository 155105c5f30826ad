"""Refusals before a run is gone on with."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from marius_py.errors import ConfigError, StorageError
from marius_py.partitioning import Partitioning
from marius_py.resuming.resume import check_epochs, check_free, claimed
from marius_py.storage.hdf5_nodes import create_node_store
from marius_py.storage.protocols import NodeTable
from marius_py.testing import SystemCallFaults


def test_a_run_in_a_folder_that_may_not_be_entered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stat(path: Path, **_: bool) -> os.stat_result:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "stat", stat)
    with (
        pytest.raises(StorageError, match=f"{tmp_path}/run cannot be made: Permission denied"),
        claimed(tmp_path / "run"),
    ):
        pass


@pytest.mark.parametrize(
    ("position", "epochs", "said"),
    [
        ([2, 0, 0], 1, "2 already: .* give more than 2 to go on, or 2 to test"),
        ([2, 4, 0], 1, "2 and part of epoch 3, .*: give training.epochs=3 or more"),
        ([2, 0, 6], 2, "2 and part of epoch 3, .*: give training.epochs=3 or more"),
    ],
)
def test_fewer_epochs_than_there_are(position: list[int], epochs: int, said: str, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=f"training.epochs={epochs} is of all epochs, .* has trained {said}"
    ):
        check_epochs({"position": position}, epochs, tmp_path)
    check_epochs({"position": position}, position[0] + any(position[1:]), tmp_path)


def test_a_run_without_a_commit_has_no_epochs(tmp_path: Path) -> None:
    check_epochs({}, 0, tmp_path)


@pytest.mark.parametrize("below", ["", "y", "y/z"])
def test_an_output_that_is_a_file_or_below_one(below: str, tmp_path: Path) -> None:
    file = tmp_path / "one.tsv"
    file.touch()
    said = f"lies below {file}, which is a file" if below else "is a file"
    with pytest.raises(ConfigError, match=f"^output={file / below} {said}: give the name of a folder"):
        check_free(file / below, resume=False)


def test_the_names_of_new_folders_are_made_durable(tmp_path: Path) -> None:
    """Else a commit could lie in a folder that a power failure leaves without a name."""
    run = tmp_path / "deep" / "run"
    with SystemCallFaults() as faults, claimed(run):
        create_node_store(run / "checkpoint", NodeTable(Partitioning(30, 2), 4, 4), spare_slots=2).close()
    flushed = {call.path for call in faults.calls if call.name == "fsync"}
    assert {str(tmp_path), str(run.parent), str(run)} <= flushed
