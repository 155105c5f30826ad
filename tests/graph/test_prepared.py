from __future__ import annotations

import errno
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marius_py.errors import ConfigError, FormatError, MissingPathError, StorageError
from marius_py.graph import Graph, open_graph
from marius_py.graph import names as name_tables
from marius_py.graph.manifest import manifest_bytes, read_manifest
from marius_py.graph.names import ROW_GROUP, find_names, write_names
from marius_py.partitioning import Partitioning
from marius_py.prepare import prepare, prepare_arrays
from marius_py.storage import edge_writer
from marius_py.verify import verify, verify_graph


@given(num_nodes=st.integers(1, 2000), data=st.data())
def test_partitions_are_even_contiguous_ranges(num_nodes: int, data: st.DataObject) -> None:
    p = data.draw(st.integers(1, min(num_nodes, 50)))
    partitioning = Partitioning(num_nodes, p)
    starts, sizes = partitioning.starts(), [partitioning.size(i) for i in range(p)]
    assert starts[0] == 0
    assert starts[-1] == num_nodes
    assert np.diff(starts).tolist() == sizes
    assert max(sizes) - min(sizes) <= 1
    assert max(sizes) == partitioning.max_size
    part, row = partitioning.locate(np.arange(num_nodes))
    assert partitioning.part_of(np.arange(num_nodes, dtype=np.int32)).tolist() == part.tolist()
    assert np.array_equal(part, np.repeat(np.arange(p), sizes))
    assert np.array_equal(starts[part] + row, np.arange(num_nodes))


def test_a_graph_is_shown_in_one_line(tmp_path: Path) -> None:
    edges = np.array([[0, 0, 1], [1, 1, 2], [2, 0, 0], [0, 0, 2]])
    graph = prepare_arrays(edges[:2], tmp_path / "g", valid=edges[2:3], test=edges[3:])
    shown = "3 nodes, 2 relations, 2 train edges, 1 valid edges, 1 test edges"
    assert repr(graph) == f"Graph({str(tmp_path / 'g')!r}: {shown})"
    plain = prepare_arrays(edges[:, [0, 2]], tmp_path / "p", split=(1, 0, 0))
    assert "3 nodes, no relations, 4 train edges, 0 valid edges" in repr(plain)


def test_number_of_partitions_out_of_range() -> None:
    for p in (0, 6):
        with pytest.raises(ConfigError, match=rf"partitions is {p}; allowed: 1 to the number of nodes \(5\)"):
            Partitioning(5, p)


def make(path: Path, seed: int = 0, nodes: int = 100, partitions: int = 4) -> Graph:
    edges = np.random.default_rng(seed).integers(0, nodes, (600, 3)) % [nodes, 5, nodes]
    return prepare_arrays(edges, path, num_nodes=nodes, num_relations=5, partitions=partitions)


def test_open_gives_what_prepare_gave(tmp_path: Path) -> None:
    graph = make(tmp_path / "g")
    assert open_graph(str(tmp_path / "g")) == graph


def test_a_graph_outlives_a_change_of_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "e.tsv").write_text("a\tr\tb\nb\tr\tc\nc\tr\ta\n")
    monkeypatch.chdir(tmp_path)
    prepare("e.tsv", "g", header=False, split=(1, 0, 0), partitions=1)
    graph = open_graph("g")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with graph.edges() as edges:
        assert edges.num_edges("train") == 3
    assert sorted(graph.node_names()) == ["a", "b", "c"]


def test_repartition_sorts_once_and_reuses(tmp_path: Path) -> None:
    graph = make(tmp_path / "g")
    with graph.repartition(4, tmp_path / "run") as same:
        assert same.path == tmp_path / "g" / "edges.h5"
    assert not (tmp_path / "run").exists()
    with graph.repartition(7, tmp_path / "run") as store:
        assert store.partitioning == Partitioning(100, 7)
        assert store.num_edges("train") == 540
        assert store.verify() == []
    made = (tmp_path / "run" / "edges.h5").stat()
    graph.repartition(7, tmp_path / "run").close()
    assert (tmp_path / "run" / "edges.h5").stat() == made or (
        (tmp_path / "run" / "edges.h5").stat().st_mtime_ns == made.st_mtime_ns
    )
    with graph.repartition(2, tmp_path / "run") as store:
        assert store.partitioning.num_partitions == 2
    (tmp_path / "run" / "edges.h5").write_bytes(b"torn")
    with graph.repartition(2, tmp_path / "run") as store:
        assert store.verify() == []
    (tmp_path / "run" / "edges.h5").unlink()
    (tmp_path / "run" / "edges.h5").symlink_to("edges.h5")  # to itself
    with graph.repartition(2, tmp_path / "run") as store:
        assert store.verify() == []
    assert [p.name for p in (tmp_path / "run").iterdir()] == ["edges.h5"]
    with pytest.raises(ConfigError, match="graph's own edges"):
        graph.repartition(3, tmp_path / "g")
    with pytest.raises(ConfigError, match="allowed: 1 to the number of nodes"):
        graph.repartition(101, tmp_path / "run")


def test_two_that_repartition_at_once_write_files_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = make(tmp_path / "g")
    resort, mine = edge_writer.resort, os.getpid()

    def disturbed(source: Any, path: Path, num_partitions: int) -> None:
        """Another process comes and goes once this one has written its file."""
        resort(source, path, num_partitions)
        monkeypatch.setattr(edge_writer, "resort", resort)
        monkeypatch.setattr(os, "getpid", lambda: mine + 1)
        graph.repartition(3, tmp_path / "run").close()
        monkeypatch.setattr(os, "getpid", lambda: mine)

    monkeypatch.setattr(edge_writer, "resort", disturbed)
    with graph.repartition(3, tmp_path / "run") as store:
        assert store.verify() == []
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["edges.h5"]


@pytest.mark.parametrize("call", ["sync_path", "try_flock"])
def test_a_full_disk_is_told_as_such_where_edges_are_sorted_anew(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    graph = make(tmp_path / "g")
    monkeypatch.setattr(f"marius_py.storage.replacing.{call}", full)
    with pytest.raises(StorageError, match=r"^disk full: cannot write \S+run/edges\.h5 .*free space"):
        graph.repartition(3, tmp_path / "run")
    assert not list((tmp_path / "run").glob("edges.h5"))


def test_errors_of_damaged_edges_say_what_helps(tmp_path: Path) -> None:
    graph = make(tmp_path / "g")
    graph.repartition(3, tmp_path / "run").close()
    for path in (tmp_path / "g" / "edges.h5", tmp_path / "run" / "edges.h5"):
        with h5py.File(path, "r+") as file:
            file["train"][0] ^= 1
    with graph.edges() as own, pytest.raises(StorageError, match=r"checksum; prepare the graph again$"):
        own.read("train")
    with (
        graph.repartition(3, tmp_path / "run") as copy,
        pytest.raises(
            StorageError, match=r"checksum; remove it; the next start sorts the graph's edges anew$"
        ),
    ):
        copy.read("train")


def test_edges_of_another_graph_are_not_reused(tmp_path: Path) -> None:
    first, second = make(tmp_path / "a"), make(tmp_path / "b", seed=1)
    first.repartition(3, tmp_path / "run").close()
    with second.repartition(3, tmp_path / "run") as store:
        assert store.fingerprint == second.fingerprint


def test_names_by_range_across_row_groups(tmp_path: Path) -> None:
    count = 2 * ROW_GROUP + 10
    graph = make(tmp_path / "g", nodes=count)
    names = graph.node_names()
    assert len(names) == count
    for start, stop in ((0, 0), (5, 9), (ROW_GROUP - 2, ROW_GROUP + 2), (100, count - 1), (count, count)):
        assert graph.node_names(start, stop) == names[start:stop]
    wanted = [names[-1], "nobody", names[0], names[ROW_GROUP], names[0]]
    assert graph.node_ids(wanted).tolist() == [count - 1, -1, 0, ROW_GROUP, 0]
    assert graph.node_ids([]).shape == (0,)
    illegal = ["\udce9", wanted[0], "n1\udcff"]  # as a terminal gives bytes that are no UTF-8
    assert graph.node_ids(illegal).tolist() == [-1, count - 1, -1]
    assert graph.node_ids(illegal[:1]).tolist() == [-1]
    with pytest.raises(ConfigError, match="allowed: within"):
        graph.node_names(0, count + 1)
    with pytest.raises(ConfigError, match="pass a list"):
        graph.node_ids("abc")
    with pytest.raises(ConfigError, match="no text"):
        graph.node_ids([1])  # type: ignore[list-item]


def test_missing_folder_and_files(tmp_path: Path) -> None:
    way = rf"does not exist; prepare .* \(marius-prepare input\.train=FILE output={tmp_path}/none\)"
    with pytest.raises(StorageError, match=way):
        open_graph(tmp_path / "none")
    with pytest.raises(MissingPathError, match=r"it has no graph\.json; prepare one there first$"):
        open_graph(tmp_path)
    make(tmp_path / "g")
    for wrong in (open_graph(tmp_path / "g"), None, b"g"):
        with pytest.raises(
            ConfigError, match=rf", {type(wrong).__name__}; allowed: a prepared graph's folder$"
        ):
            open_graph(wrong)  # type: ignore[arg-type]
    with pytest.raises(MissingPathError, match=r"graph\.json; give the folder that marius-prepare wrote$"):
        open_graph(tmp_path)
    with pytest.raises(MissingPathError, match=f"a file in the folder of a .* give graph={tmp_path}/g$"):
        open_graph(tmp_path / "g" / "graph.json")
    (tmp_path / "g" / "graph.json").rename(tmp_path / "kept")
    with pytest.raises(MissingPathError, match=f"marius-prepare input.train={tmp_path}/kept"):
        open_graph(tmp_path / "kept")
    (tmp_path / "it's $x").touch()
    with pytest.raises(MissingPathError) as quoted:
        open_graph(tmp_path / "it's $x")
    command = str(quoted.value).partition("with ")[2].partition(" output=")[0]
    assert shlex.split(command) == ["marius-prepare", f"input.train={tmp_path}/it's $x"]
    with pytest.raises(StorageError, match=r"graph\.json is missing; .* in another folder$") as lost:
        open_graph(tmp_path / "g")
    assert not isinstance(lost.value, ConfigError)
    (tmp_path / "kept").rename(tmp_path / "g" / "graph.json")
    for name in ("edges.h5", "nodes.parquet", "relations.parquet"):
        whole = (tmp_path / "g" / name).read_bytes()
        (tmp_path / "g" / name).unlink()
        with pytest.raises(StorageError, match=f"{name} is missing"):
            open_graph(tmp_path / "g")
        (tmp_path / "g" / name).write_bytes(whole[:-1])
        with pytest.raises(
            StorageError, match=f"{name} is damaged: {len(whole) - 1} bytes, should be {len(whole)}"
        ):
            open_graph(tmp_path / "g")
        (tmp_path / "g" / name).write_bytes(whole)
    open_graph(tmp_path / "g")


def test_a_graph_in_a_folder_that_may_not_be_entered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stat(path: Path, **_: bool) -> os.stat_result:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "stat", stat)
    with pytest.raises(StorageError, match=f"cannot open the graph {tmp_path}/g: Permission denied"):
        open_graph(tmp_path / "g")
    with pytest.raises(StorageError, match=f"cannot check {tmp_path}/g: Permission denied"):
        verify(tmp_path / "g")


@pytest.mark.parametrize("name", ["edges.h5", "nodes.parquet", "relations.parquet"])
def test_verify_names_damaged_files(tmp_path: Path, name: str) -> None:
    graph = make(tmp_path / "g")
    path = tmp_path / "g" / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))
    found = verify_graph(graph.path)
    assert len(found) == 1
    assert name in found[0].problem
    path.unlink()
    assert [one.problem for one in verify_graph(graph.path)] == [f"{path} is missing"]


def test_names_of_a_damaged_file_are_refused_or_the_same(tmp_path: Path) -> None:
    edges = [(f"node {i}", f"rel {i % 3}", f"node {i * 7 % 40}") for i in range(40)]
    (tmp_path / "e.tsv").write_text("".join("\t".join(edge) + "\n" for edge in edges))
    graph = prepare(tmp_path / "e.tsv", tmp_path / "g", split=(1, 0, 0))
    for name, read in (("nodes.parquet", graph.node_names), ("relations.parquet", graph.relation_names)):
        whole, path, refused = read(), graph.path / name, 0
        content = path.read_bytes()
        for place in range(len(content)):
            path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
            try:
                assert read() == whole
            except StorageError:
                refused += 1
        assert refused > len(content) // 2


@pytest.mark.parametrize("code", [errno.EMFILE, errno.EACCES, errno.EIO])
@pytest.mark.parametrize("name", ["graph.json", "edges.h5", "nodes.parquet", "relations.parquet"])
def test_a_file_that_may_not_be_read_is_not_called_damaged(
    name: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, plain, refused = make(tmp_path / "g"), open, OSError(code, os.strerror(code))

    def opened(path: Any, *arguments: Any, **named: Any) -> Any:
        if str(path) == str(tmp_path / "g" / name):
            raise refused
        return plain(path, *arguments, **named)

    monkeypatch.setattr("builtins.open", opened)
    monkeypatch.setattr("io.open", opened)
    findings = verify_graph(graph.path)
    assert [(one.label, one.file) for one in findings] == [("UNREAD", str(tmp_path / "g" / name))]
    assert findings[0].problem.endswith(os.strerror(code))
    assert "prepare" not in findings[0].remedy


@pytest.mark.parametrize("where", ["ParquetFile", "read_row_groups"])
def test_names_that_may_not_be_read_are_not_called_damaged(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = make(tmp_path / "g")

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EIO, "Failed to open local file 'x'. Detail: [errno 5] Input/output error")

    monkeypatch.setattr(pq if where == "ParquetFile" else pq.ParquetFile, where, refuse)
    for read in (graph.node_names, graph.relation_names, lambda: graph.node_ids(["n1"])):
        with pytest.raises(StorageError, match=r"cannot read .*\.parquet: Input/output error\Z") as caught:
            read()
        assert caught.value.errno == errno.EIO


def test_every_damage_to_the_manifest_is_found(tmp_path: Path) -> None:
    make(tmp_path / "g")
    path = tmp_path / "g" / "graph.json"
    whole = path.read_bytes()
    for content in (
        b"",
        whole[:50],
        whole[:-30],
        b"[]",
        b"{}",
        b"\xff" + whole,
        whole.replace(b"540", b"541", 1),
        b"[" * 9999,
    ):
        path.write_bytes(content)
        with pytest.raises(FormatError, match=r"graph\.json"):
            open_graph(tmp_path / "g")
    path.write_bytes(whole.replace(b'"version": 1', b'"version": 2'))
    with pytest.raises(FormatError, match="version 2; this program reads version 1: prepare the graph again"):
        open_graph(tmp_path / "g")


def test_a_manifest_cannot_point_outside_its_folder(tmp_path: Path) -> None:
    make(tmp_path / "g")
    facts = read_manifest(tmp_path / "g")
    facts["files"]["../../etc/passwd"] = {"bytes": 1, "xxh3": ""}
    for key in ("format", "version", "checksum"):
        del facts[key]
    (tmp_path / "g" / "graph.json").write_bytes(manifest_bytes(facts))
    with pytest.raises(FormatError, match="wrong or missing entries"):
        open_graph(tmp_path / "g")
    assert json.loads((tmp_path / "g" / "graph.json").read_text())["num_nodes"] == 100


def test_edges_swapped_in_from_another_graph_are_refused(tmp_path: Path) -> None:
    graph = make(tmp_path / "a")
    make(tmp_path / "b", seed=1)
    (tmp_path / "a" / "edges.h5").write_bytes((tmp_path / "b" / "edges.h5").read_bytes())
    with pytest.raises(StorageError, match="belongs to another graph"):
        graph.edges()


def test_opening_and_reading_edges_needs_neither_pyarrow_nor_torch(tmp_path: Path) -> None:
    make(tmp_path / "g")
    code = (
        "import sys; from marius_py.graph import open_graph\n"
        f"g = open_graph({str(tmp_path / 'g')!r}); s = g.edges(); s.read('train'); s.close()\n"
        "sys.exit(' '.join(m for m in ('pyarrow', 'torch') if m in sys.modules) or 0)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_as_many_names_are_read_at_a_time_as_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(name_tables, "ROW_GROUP", 4)
    names = [f"name {i}" for i in range(30)]
    array = pa.array(names, pa.large_string())
    write_names(tmp_path / "n.parquet", array.type, (array.slice(i, 4) for i in range(0, 30, 4)))
    read: list[list[int]] = []
    plain = name_tables._NameTable.read

    def note(table: name_tables._NameTable, groups: list[int]) -> Any:
        read.append(groups)
        return plain(table, groups)

    monkeypatch.setattr(name_tables._NameTable, "read", note)
    for asked, reads in (
        ([29], [[i] for i in range(8)]),
        ([0, 3], [[0]]),
        (range(29, 11, -1), [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ([*range(12), *range(12)], [[0, 1, 2]]),
    ):
        assert find_names(tmp_path / "n.parquet", [names[i] for i in asked]).tolist() == list(asked)
        assert read == reads
        read.clear()
    assert find_names(tmp_path / "n.parquet", ["name 5", "", "name 30", "name 5"]).tolist() == [5, -1, -1, 5]
