"""Every file of a run and of a graph, damaged in every way: found, named, never trained on, recovered."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

import marius_py
from marius_py import cli
from marius_py.assembly.build import train
from marius_py.config import EvaluateConfig, load_config
from marius_py.errors import MariusError, StorageError
from marius_py.evaluating import evaluate
from marius_py.prepare import prepare
from marius_py.storage.checkpoint_file import read_checkpoint
from marius_py.verify import is_sound, verify
from tests.end_to_end.conftest import SMALL, embeddings, write_edges
from tests.every_second import every_second

RUN_FILES = (
    "config.yaml",
    "metrics.jsonl",
    "result.json",
    "checkpoint/nodes.h5",
    "checkpoint/checkpoint.h5",
    "edges-4/edges.h5",
)
GRAPH_FILES = ("graph.json", "nodes.parquet", "relations.parquet", "edges.h5")
DAMAGES = ("truncate", "zero", "flip", "remove", "replace", "pipe")
VIEWS = RUN_FILES[:3]


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """graph, other-graph, run and other-run; the runs sort the edges for their own number of partitions."""
    place = tmp_path_factory.mktemp("torn")
    for name, seed in (("", 0), ("other-", 1)):
        edges = write_edges(place / f"{name}edges.tsv", seed)
        prepare(edges, place / f"{name}graph", partitions=2, header=False)
        words = [f"graph={place / f'{name}graph'}", f"output={place / f'{name}run'}", f"training.seed={seed}"]
        train(load_config([*words, *SMALL]))
    return place


def damage(path: Path, kind: str, other: Path) -> None:
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    if kind == "remove":
        path.unlink()
    elif kind == "pipe":  # whoever opened it would wait for ever
        path.unlink()
        os.mkfifo(path)
    elif kind == "replace":
        shutil.copy(other, path)
    elif kind == "truncate":
        path.write_bytes(content[:middle])
    elif kind == "zero":
        size = max(8, len(content) // 8)
        path.write_bytes(content[:middle] + bytes(size) + content[middle + size :])
    else:
        content[middle] ^= 0x10
        path.write_bytes(content)


def committed_byte(run: Path) -> int:
    """A byte of nodes.h5 that a committed partition uses, so that damage there is damage."""
    import h5py

    manifest, _ = read_checkpoint(run / "checkpoint" / "checkpoint.h5")
    with h5py.File(run / "checkpoint" / "nodes.h5") as file:
        offset = file["slots"].id.get_offset()
    slot_bytes = manifest.table.slot_rows * manifest.table.dim * 4
    return int(offset + int(manifest.slots[0]) * slot_bytes + 20)


def damage_nodes(run: Path, kind: str, other: Path) -> None:
    path = run / "checkpoint" / "nodes.h5"
    if kind not in ("zero", "flip"):
        damage(path, kind, other)
        return
    at = committed_byte(run)
    with path.open("r+b") as file:
        file.seek(at)
        before = file.read(16)
        file.seek(at)
        file.write(bytes(16) if kind == "zero" else bytes([before[0] ^ 1]))


def refusal(words: list[str]) -> str:
    """Train; the message it is refused with, or nothing."""
    try:
        train(load_config(words))
    except MariusError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("name", "kind"),
    every_second(RUN_FILES, DAMAGES),
)
def test_a_damaged_file_of_a_run(
    name: str, kind: str, originals: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, run = originals / "run", tmp_path / "run"
    shutil.copytree(whole, run)
    if name.endswith("nodes.h5"):
        damage_nodes(run, kind, originals / "other-run" / name)
    else:
        damage(run / name, kind, originals / "other-run" / name)
    if name == "edges-4/edges.h5" and kind == "remove":
        assert not verify(run)  # sorted anew from the graph when it is needed
    else:
        findings = verify(run)
        assert findings
        assert not is_sound(findings)
        assert {finding.file for finding in findings} == {str(run / name)}
        assert all(finding.remedy and str(run / name) in finding.problem for finding in findings)
        assert cli.verify([str(run)]) == 1
        assert name in capsys.readouterr().out
    resume = [f"output={run}", "resume=true", "training.epochs=3"]
    wanted = originals / "continued"
    if not wanted.exists():
        shutil.copytree(whole, wanted)
        train(load_config([f"output={wanted}", *resume[1:]]))
    if name in VIEWS:  # views of the checkpoint: the run goes on from what was committed
        assert cli.verify([str(run), "--repair"]) == 0
        assert (run / name).read_bytes() == (whole / name).read_bytes()
        damage(run / name, kind, originals / "other-run" / name)
        train(load_config(resume))
    else:
        problem = refusal(resume)
        if name.startswith("checkpoint"):  # the only copy of the nodes: nothing to go on from
            assert Path(name).name in problem
            assert str(run / "checkpoint") in problem
            return
        if problem:
            assert str(run / name) in problem
            (run / name).unlink()
            assert not refusal(resume)
    np.testing.assert_array_equal(embeddings(run), embeddings(wanted))
    assert not verify(run)


@pytest.mark.parametrize("kind", DAMAGES)
@pytest.mark.parametrize("name", GRAPH_FILES)
def test_a_damaged_file_of_a_graph(name: str, kind: str, originals: Path, tmp_path: Path) -> None:
    graph = tmp_path / "graph"
    shutil.copytree(originals / "graph", graph)
    assert not verify(graph)
    damage(graph / name, kind, originals / "other-graph" / name)
    findings = verify(graph)
    assert not is_sound(findings)
    if name == "graph.json" and kind == "replace":
        assert {finding.file for finding in findings} == {str(graph / one) for one in GRAPH_FILES[1:]}
    else:
        assert {finding.file for finding in findings} == {str(graph / name)}
    if name not in ("graph.json", "edges.h5"):
        return  # names do not enter training
    with pytest.raises(MariusError) as caught:
        train(load_config([f"graph={graph}", f"output={tmp_path / 'run'}", *SMALL]))
    assert str(graph) in str(caught.value)


def test_a_folder_that_is_neither(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.verify([str(tmp_path)]) == 2
    assert cli.verify([str(tmp_path / "nothing")]) == 2
    assert "neither a run" in capsys.readouterr().err


def test_whole_ones_end_with_code_0(originals: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.verify([str(originals / "run")]) == 0
    assert cli.verify([str(originals / "graph")]) == 0
    assert cli.verify([str(originals / "run" / "checkpoint")]) == 0
    assert capsys.readouterr().out.count("every file is whole") == 3


def test_the_graph_of_a_run_in_a_folder_that_may_not_be_entered(
    originals: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, graph = Path.stat, originals / "graph"

    def stat(path: Path, **named: bool) -> os.stat_result:
        if path.is_relative_to(graph):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return plain(path, **named)

    monkeypatch.setattr(Path, "stat", stat)
    findings = verify(originals / "run")
    assert [finding.file for finding in findings] == [str(graph)]
    assert "Permission denied" in findings[0].problem


@pytest.mark.parametrize("closed", ["", "checkpoint", "edges-4"])
def test_folders_of_a_run_that_may_not_be_entered(
    closed: str, originals: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    shutil.copytree(originals / "run", run)
    plain, folder = Path.stat, run / closed

    def stat(path: Path, **named: bool) -> os.stat_result:
        if folder in path.parents:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return plain(path, **named)

    monkeypatch.setattr(Path, "stat", stat)
    told = f"{folder}.*: Permission denied$"
    with pytest.raises(StorageError, match=told):
        train(load_config([f"output={run}", "resume=true", "training.epochs=3"]))
    if closed != "edges-4":  # which training alone needs
        with pytest.raises(StorageError, match=told):
            marius_py.load(run)
        with pytest.raises(StorageError, match=told):
            evaluate(EvaluateConfig(run=str(run), device="cpu"))


def test_the_graph_of_a_run_that_is_another(originals: Path, tmp_path: Path) -> None:
    place = tmp_path / "graph"
    shutil.copytree(originals / "graph", place)
    run = tmp_path / "run"
    train(load_config([f"graph={place}", f"output={run}", *SMALL, "training.epochs=1"]))
    shutil.rmtree(place)
    assert [finding.file for finding in verify(run)] == [str(place)]
    shutil.copytree(originals / "other-graph", place)
    assert "another graph" in verify(run)[0].problem
    with pytest.raises(MariusError, match=r"graph \(the run's in .*graph is another than then\)"):
        train(load_config([f"output={run}", "resume=true", "training.epochs=2"]))
