"""What is written from a run replaces no file that training or preparing wrote, and any other."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from marius_py.errors import ConfigError
from marius_py.run_files.outputs import check_output

OWN = [
    "config.yaml",
    "metrics.jsonl",
    "result.json",
    "metrics.csv",
    "trace.json",
    "checkpoint/nodes.h5",
    "edges-8/edges.h5",
    "snapshots/epoch-2/config.yaml",
    "snapshots/epoch-2/checkpoint/nodes.h5",
    "graph/graph.json",
    "graph/edges.h5",
]
OTHERS = [
    "report.html",
    "mine.json",
    "edges-mine/answers.tsv",
    "snapshots/epoch-2/report.html",
    "snapshots/mine.tsv",
    "graph/mine.tsv",
    "exports/result.json",
]


@pytest.fixture
def run(tmp_path: Path) -> SimpleNamespace:
    folder = tmp_path / "run"
    for name in (*OWN, *OTHERS):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("kept")
    graph = SimpleNamespace(path=folder / "graph", files={"edges.h5": {}, "nodes.parquet": {}})
    return SimpleNamespace(path=folder, graph=graph)


@pytest.mark.parametrize("inside", ["", "snapshots/epoch-2"])
@pytest.mark.parametrize("name", OWN)
def test_files_of_the_run_or_its_graph(run, tmp_path, monkeypatch, name, inside):
    target = run.path / name
    run.path = run.path / inside
    (tmp_path / "link").symlink_to(target)
    monkeypatch.chdir(tmp_path)
    for way in (target, Path("run") / name, Path("link")):
        for overwrite in (False, True):
            with pytest.raises(
                ConfigError, match=f"^output={way} is a file of the (run|graph) .*another name"
            ):
                check_output(run, way, f"output={way}", overwrite=overwrite)


@pytest.mark.parametrize("name", OTHERS)
def test_other_files(run, name):
    check_output(run, run.path / name, "output")
    with pytest.raises(ConfigError, match=r"^output exists; choose another name, .*overwrite=True"):
        check_output(run, run.path / name, "output", overwrite=False)


@pytest.mark.parametrize("name", ["new.tsv", "checkpoint/new.tsv", "graph/nodes.parquet"])
def test_new_files(run, name):
    check_output(run, run.path / name, "output", overwrite=False)
