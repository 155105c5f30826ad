"""resume=true where there is nothing to go on with: no run in the folder, or a snapshot of one."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import marius_py
from marius_py import cli
from marius_py.errors import ConfigError, StorageError
from tests.end_to_end.conftest import SMALL, Train

NO_RUN = "holds no run to go on with, and resume=true asks for it: check the name, or give graph="


def test_a_name_without_a_run_is_refused(
    run_train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "typo"
    with pytest.raises(ConfigError, match=NO_RUN):
        run_train(output="typo", resume=True)
    assert cli.train([f"output={run}", "resume=true"]) == 2
    assert f"output={run} {NO_RUN}" in capsys.readouterr().err
    with pytest.raises(ConfigError, match=NO_RUN):
        marius_py.train(None, run, resume=True)
    assert not run.exists()


def test_no_run_comes_among_other_files(
    graph: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "letter.txt").write_text("hi")
    for folder in (tmp_path, graph):
        before = sorted(folder.iterdir())
        assert cli.train([f"graph={graph}", f"output={folder}", *SMALL]) == 2
        said = capsys.readouterr().err
        assert f"output={folder} is not empty (it holds {before[0].name}) and holds no run" in said
        assert "resume" not in said
        for words in ([], [f"graph={graph}", *SMALL]):
            assert cli.train([f"output={folder}", "resume=true", *words]) == 2
            said = capsys.readouterr().err
            assert f"holds no run to go on with, but other files ({before[0].name}): check the name" in said
        assert sorted(folder.iterdir()) == before


def test_a_run_that_was_killed_while_it_wrote_its_settings_begins_anew(graph: Path, tmp_path: Path) -> None:
    for name, words in (("writer.lock", {}), ("config.yaml.tmp", {"resume": True})):
        run = tmp_path / name.partition(".")[0]
        run.mkdir()
        (run / name).write_text("")
        marius_py.train(graph, run, dict(word.split("=") for word in SMALL), **words).close()
        assert not (run / "config.yaml.tmp").exists()


def test_a_run_that_was_killed_before_its_first_commit_begins_anew_as_it_was(
    graph: Path, tmp_path: Path
) -> None:
    """Its settings are there before anything else, so that it does not become a demo."""
    program = (
        "import os, sys; from marius_py import cli; from marius_py.assembly import store\n"
        "store.create_node_store = lambda *given, **named: os._exit(9)\n"
        "cli.train(sys.argv[1:])"
    )
    run = tmp_path / "run"
    words = [f"graph={graph}", f"output={run}", *SMALL, "model.dim=6"]
    assert subprocess.run([sys.executable, "-c", program, *words], check=False).returncode == 9
    assert "config.yaml" in {path.name for path in run.iterdir()}
    with marius_py.train(None, run, resume=True) as opened:
        assert opened.graph.path == graph
        assert opened.dim == 6


def test_the_demo_graph_comes_into_no_run_on_another(run_train: Train, graph: Path, tmp_path: Path) -> None:
    run_train("training.epochs=1")
    before = sorted((tmp_path / "run").rglob("*"))
    with pytest.raises(ConfigError, match=f"graph=null is the demo graph, and the run in .* on {graph}"):
        run_train("graph=null", resume=True)
    assert sorted((tmp_path / "run").rglob("*")) == before


@pytest.mark.parametrize("left", ["metrics.jsonl", "result.json", "snapshots"])
def test_what_was_learnt_and_is_gone_is_not_learnt_anew(run_train: Train, tmp_path: Path, left: str) -> None:
    run_train("checkpoint.keep=1")
    run = tmp_path / "run"
    shutil.rmtree(run / "checkpoint")
    for name in {"metrics.jsonl", "result.json", "snapshots"} - {left}:
        if (run / name).is_dir():
            shutil.rmtree(run / name)
        else:
            (run / name).unlink()
    before = sorted(run.rglob("*"))
    with pytest.raises(StorageError, match=f"holds no commit, but {run / left} was written after one"):
        run_train(resume=True)
    assert sorted(run.rglob("*")) == before


def test_with_a_graph_a_run_begins_with_a_warning(
    graph: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = tmp_path / "new"
    settings = dict(word.split("=") for word in SMALL)
    with marius_py.train(graph, run, settings, resume=True) as opened:
        assert opened.epochs == 2
    warned = [one.message for one in caplog.records if one.name == "marius_py.resuming.resume"]
    assert warned == [f"resume=true: {run} holds no run to go on with; a new one begins there on {graph}"]
    caplog.clear()
    marius_py.train(graph, run, {"training.epochs": 3}, resume=True).close()
    assert "holds no run" not in caplog.text


def test_a_snapshot_is_for_reading(
    run_train: Train, graph: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_train("checkpoint.keep=2")
    run = tmp_path / "run"
    snapshot = run / "snapshots" / "epoch-0001"
    before = {path: path.read_bytes() for path in snapshot.rglob("*") if path.is_file()}
    for words in (["resume=true"], ["resume=true", "training.epochs=9"], [f"graph={graph}"]):
        assert cli.train([f"output={snapshot}", *words]) == 2
        said = capsys.readouterr().err
        assert f"output={snapshot} is a snapshot" in said
        assert f"output={run} resume=true" in said
        assert "spare slots" not in said
    moved = snapshot.rename(tmp_path / "moved")
    assert cli.train([f"output={moved}", "resume=true"]) == 2
    assert f"output={run} resume=true" in capsys.readouterr().err
    moved.rename(snapshot)
    assert {path: path.read_bytes() for path in snapshot.rglob("*") if path.is_file()} == before
    with marius_py.load(snapshot) as opened:
        assert opened.unfinished is None
    assert cli.evaluate([f"run={snapshot}", "compute_threads=1"]) == 0
    assert "resume=true" not in capsys.readouterr().err
    run_train("training.epochs=3", resume=True)


def test_who_cannot_resume_is_not_told_to(tmp_path: Path, run_train: Train, graph: Path) -> None:
    from marius_py.resuming.resume import check_free

    run_train("training.epochs=1")
    run = tmp_path / "run"
    with pytest.raises(ConfigError, match=r"is not empty .*: name a new or empty one") as caught:
        check_free(run, resume=False)
    assert "resume=" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"is not empty .*: give resume=true to go on with the run in it"):
        run_train("training.epochs=1")
