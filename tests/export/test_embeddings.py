"""Exports read back equal, in any block size, and appear whole or not at all."""

import logging
import os
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from marius_py import graph_from, load, train
from marius_py.errors import ConfigError, FormatError, StorageError
from marius_py.export import export
from marius_py.types import EXPORT_FORMATS
from tests.small_runs import NAMES, write_run


@pytest.fixture
def written(tmp_path):
    return write_run(tmp_path, reciprocal=True)


def read(path, format):
    """(names, rows) of an exported file."""
    if format == "npy":
        names = path.with_name(f"{path.stem}.names.txt").read_text(encoding="utf-8").split("\n")[:-1]
        return names, np.load(path, allow_pickle=False)
    if format == "parquet":
        table = pq.read_table(path)
        rows = np.array(table.column("embedding").to_pylist(), dtype=np.float32)
        return table.column("name").to_pylist(), rows
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    separator = "\t"
    if format == "word2vec":
        separator = " "
        count, dim = map(int, lines.pop(0).split())
        assert (len(lines), len(lines[0].split(" ")) - 1) == (count, dim)
    cells = [line.split(separator) for line in lines]
    return [cell[0] for cell in cells], np.array([cell[1:] for cell in cells], dtype=np.float32)


@pytest.mark.parametrize("format", ["npy", "parquet", "tsv", "word2vec"])
@pytest.mark.parametrize("block_bytes", [1, 50, 1 << 20])
def test_reads_back_equal(tmp_path, written, format, block_bytes):
    folder, graph, rows, relations = written
    seen = []
    target = tmp_path / "vectors.out"
    files = export(folder, target, format, block_bytes=block_bytes, progress=lambda *a: seen.append(a))
    names, read_rows = read(target, format)
    expected = graph.node_names()
    blanks = (lambda name: name.replace(" ", "_")) if format == "word2vec" else str
    assert names == [blanks(name) for name in expected]
    np.testing.assert_array_equal(read_rows, rows)
    relation_names, read_relations = read(tmp_path / "vectors.relations.out", format)
    both = graph.relation_names()
    assert relation_names == [blanks(name) for name in both + [name + "^-1" for name in both]]
    np.testing.assert_array_equal(read_relations, relations)
    assert seen[-1] == ("export", 10, 10, "nodes")
    assert sorted(files) == sorted(path for path in tmp_path.iterdir() if path.name.startswith("vectors"))


@pytest.mark.parametrize("format", EXPORT_FORMATS)
def test_rows_that_are_not_finite_are_said_and_written(tmp_path, format, caplog):
    folder, graph, rows, _ = write_run(tmp_path, diverged=2, spoilt=[np.nan, np.inf, -np.inf, 1e-40])
    out = tmp_path / "out"
    caplog.clear()
    export(folder, out, format, block_bytes=20)
    assert caplog.messages == [
        f"2 of 10 embeddings hold a NaN or an infinity, the first that of {graph.node_names(0, 1)[0]!r}; "
        "they are written as they are"
    ]
    if format in ("npy", "parquet", "tsv", "word2vec"):
        np.testing.assert_array_equal(read(out, format)[1], rows)
    caplog.clear()
    with load(folder) as run:
        run.model.relations[1, 2] = np.inf
        export(run, tmp_path / "more", format)
        export(run, tmp_path / "nodes", format, relations=False)
    of_relations = (
        f"1 of 2 relation rows hold a NaN or an infinity, the first that of {graph.relation_names()[1]!r};"
    )
    assert [of_relations in text for text in caplog.messages] == [True, False, False]


def test_refuses_to_overwrite(tmp_path, written):
    target = tmp_path / "v.npy"
    with load(written[0]) as run:
        export(run, target, relations=False)
        before = target.read_bytes()
        with pytest.raises(ConfigError, match="exists"):
            export(run, target, "tsv")
        assert target.read_bytes() == before
        export(run, target, "tsv", overwrite=True, relations=False)
    assert read(target, "tsv")[1].shape == (10, 4)


def test_a_failed_write_leaves_nothing(tmp_path, written, monkeypatch):
    target = tmp_path / "out" / "v.npy"
    target.parent.mkdir()
    target.write_bytes(b"old")
    with load(written[0]) as run:

        def full(start, stop):
            if start:
                raise OSError(28, "No space left on device")
            return np.zeros((stop - start, 4), np.float32)

        monkeypatch.setattr(run, "read_rows", full)
        with pytest.raises(StorageError, match="No space left on device; nothing was replaced"):
            export(run, target, overwrite=True, block_bytes=32)
    assert [path.name for path in target.parent.iterdir()] == ["v.npy"]
    assert target.read_bytes() == b"old"


def test_names_that_no_line_can_hold(tmp_path):
    from marius_py.export.embeddings import _lines

    assert _lines(["a b", 'c"'])
    with pytest.raises(FormatError, match="export it as parquet"):
        _lines(["a\nb"])


@pytest.mark.parametrize("clash", [("a b", "a_b"), ("a b_c", "a_b c")])
def test_names_that_become_one_word_are_refused(tmp_path, clash):
    first, second = sorted(clash)
    names = [first, "x", "y y", "z_z", second, "Zürich"]
    folder, graph, _, _ = write_run(tmp_path, names=names)
    with pytest.raises(FormatError, match="would both be the word 'a_b") as error:
        export(folder, tmp_path / "v.vec", "word2vec")
    assert all(repr(name) in str(error.value) for name in clash)
    assert not list(tmp_path.glob("v*"))
    for format in ("tsv", "npy", "parquet"):
        export(folder, tmp_path / f"v.{format}", format)
        assert read(tmp_path / f"v.{format}", format)[0] == graph.node_names()


def test_relations_that_become_one_word_are_refused(tmp_path, written, monkeypatch):
    with load(written[0]) as run:
        monkeypatch.setattr(run, "relations", lambda: (["a b", "a_b"], np.zeros((2, 4), np.float32)))
        with pytest.raises(FormatError, match=r"the relations 'a b' and 'a_b' .* --no-relations"):
            export(run, tmp_path / "v.vec", "word2vec")
        assert export(run, tmp_path / "v.vec", "word2vec", relations=False) == [tmp_path / "v.vec"]


def test_equal_hashes_of_different_words_are_no_clash(tmp_path, written, monkeypatch):
    monkeypatch.setattr("xxhash.xxh3_64_intdigest", lambda word: 7)
    assert export(written[0], tmp_path / "v.vec", "word2vec")


@pytest.mark.parametrize(
    ("output", "expected"),
    [("e.vec", "e.relations.vec"), ("e", "e.relations.txt"), ("e.tsv", "e.relations.tsv")],
)
def test_relations_take_the_ending_of_the_output(tmp_path, written, output, expected):
    files = export(written[0], tmp_path / output, "word2vec")
    assert [path.name for path in files] == [output, expected]


def test_a_decoder_without_relations(tmp_path):
    folder = write_run(tmp_path, decoder="dot", dr=0)[0]
    assert export(folder, tmp_path / "v.parquet", "parquet") == [tmp_path / "v.parquet"]


def test_bad_arguments(tmp_path, written):
    folder = written[0]
    with pytest.raises(ConfigError, match="format is 'xls'"):
        export(folder, tmp_path / "v", "xls")
    with pytest.raises(ConfigError, match="there is no folder"):
        export(folder, tmp_path / "no" / "v.npy")
    with pytest.raises(ConfigError, match="is a folder"):
        export(folder, tmp_path, "tsv")
    with pytest.raises(ConfigError, match=f"output={tmp_path}/new/ ends in a slash, as a folder does"):
        export(folder, f"{tmp_path}/new/", "tsv")
    for name in ("", "."):
        with pytest.raises(ConfigError, match=f"output={name} is the current folder, or empty"):
            export(folder, name, "tsv")
    with pytest.raises(ConfigError, match="block_bytes"):
        export(folder, tmp_path / "v.npy", block_bytes=0)
    with pytest.raises(ConfigError, match=r"aaa… is too long for the name of a file"):
        export(folder, tmp_path / ("a" * 249 + ".npy"), "npy")  # its names would be in a….names.txt
    assert list(tmp_path.glob("a*")) == []


@pytest.mark.parametrize("name", ["v.tsv", "v.relations.tsv"])
def test_only_regular_files_are_replaced(tmp_path, written, name):
    os.mkfifo(tmp_path / name)
    for overwrite in (False, True):
        with pytest.raises(ConfigError, match=f"output={tmp_path / name} is a folder or a device"):
            export(written[0], tmp_path / "v.tsv", "tsv", overwrite=overwrite)
    assert (tmp_path / name).is_fifo()
    assert [path.name for path in tmp_path.glob("v*")] == [name]


def test_files_of_the_run_and_its_graph_are_not_replaced(tmp_path, written):
    run = written[0]
    own = [run / "checkpoint" / "nodes.h5", run / "config.yaml", tmp_path / "graph" / "nodes.parquet"]
    (tmp_path / "link.parquet").symlink_to(own[2])
    for target in (*own, tmp_path / "link.parquet"):
        before = target.read_bytes()
        with pytest.raises(ConfigError, match=r"is a file of the (run|graph) .*give another name"):
            export(run, target, "parquet", overwrite=True)
        assert target.read_bytes() == before
    for _ in range(2):
        assert export(run, run / "nodes.parquet", "parquet", overwrite=True)


def test_names_survive(tmp_path, written):
    export(written[0], tmp_path / "v.tsv", "tsv")
    assert set(read(tmp_path / "v.tsv", "tsv")[0]) == set(NAMES)


@pytest.mark.parametrize("format", ["npy", "safetensors"])
def test_rows_of_numbered_nodes_are_said_to_be_in_another_order(tmp_path, written, caplog, format):
    small = {"model.decoder": "dot", "model.dim": 4, "training.epochs": 1, "training.valid_every": 0}
    pairs = np.array([[i, (i + 1) % 12] for i in range(12)])
    graph = graph_from(pairs, tmp_path / "numbered", split=(1, 0, 0))
    with train(graph, tmp_path / "trained", small) as run, caplog.at_level(logging.INFO):
        files = export(run, tmp_path / f"v.{format}", format)
        names = Path(files[1]).read_text(encoding="utf-8").split("\n")[:-1]
        assert names != sorted(names, key=int)
        assert f"rows are in the order of {files[1]}: the first is that of node {names[0]}" in caplog.text
        by_number = run.to_numpy()[np.argsort(np.array(names).astype(int))]
        np.testing.assert_array_equal(run.embeddings(range(12)), by_number)
    caplog.clear()
    with caplog.at_level(logging.INFO):
        export(written[0], tmp_path / f"words.{format}", format)
    assert "rows are in the order" not in caplog.text
