"""Paths that are not UTF-8, as older systems left them: what is written and read there, or why not."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from marius_py import cli
from marius_py.errors import StorageError
from marius_py.graph import open_graph
from tests.small_runs import write_run

ODD = os.fsdecode(b"caf\xe9")

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems' file names are UTF-8")


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    folder = tmp_path / ODD
    folder.mkdir()
    return folder


def read(path: Path) -> pa.Table:
    with path.open("rb") as file:
        return pq.read_table(file)


def test_answers_ranks_and_embeddings_are_written(odd: Path, tmp_path: Path) -> None:
    run, graph, rows, _ = write_run(tmp_path)
    for ending in ("csv", "parquet"):
        assert cli.evaluate([f"run={run}", f"ranks={odd / f'ranks.{ending}'}"]) == 0
    assert read(odd / "ranks.parquet").num_rows == 10
    assert len((odd / "ranks.csv").read_text(encoding="utf-8").splitlines()) == 11
    assert cli.export([str(run), "--format", "parquet", "--output", str(odd / "rows.parquet")]) == 0
    found = read(odd / "rows.parquet")
    assert found.column("name").to_pylist() == graph.node_names(0, graph.num_nodes)
    assert found.column("embedding").to_pylist() == rows.tolist()
    words = ["--head", "Oslo", "--relation", "likes", "-k", "3", "--output", str(odd / "answers.parquet")]
    assert cli.predict([str(run), *words]) == 0
    assert read(odd / "answers.parquet").num_rows == 3


def test_edges_are_read(odd: Path, tmp_path: Path) -> None:
    edges = {"head": ["a", "b", "c"] * 20, "relation": ["r"] * 60, "tail": [f"n{i}" for i in range(60)]}
    with open(odd / "edges.parquet", "wb") as file:
        pq.write_table(pa.table(edges), file)
    assert cli.prepare([f"input.train={odd / 'edges.parquet'}", f"output={tmp_path / 'graph'}"]) == 0
    assert open_graph(tmp_path / "graph").num_nodes == 63


def test_a_graph_there_is_refused_by_name(odd: Path, tmp_path: Path) -> None:
    _, graph, _, _ = write_run(tmp_path)
    shutil.copytree(graph.path, odd / "graph")
    with pytest.raises(StorageError, match=r"nodes\.parquet is not UTF-8, .*: move the graph elsewhere"):
        open_graph(odd / "graph").node_names(0, 1)
