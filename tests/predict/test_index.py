"""An index finds nearly what the exact search finds, is built once a commit, and says what is wrong."""

import errno
import io
import json
import logging
import os
import re
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import marius_py
from marius_py import cli, load
from marius_py.errors import ConfigError, StorageError
from marius_py.predict import find_neighbors, open_index
from marius_py.predict import index as index_module
from marius_py.storage.hdf5_nodes import open_node_store
from marius_py.storage.replacing import Replacing
from tests.small_runs import write_run

faiss = pytest.importorskip("faiss", reason="faiss is not installed")

METRICS = ("cosine", "dot", "l2")
COUNT = 3000


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    names = [f"node {i}" for i in range(COUNT)]
    return write_run(tmp_path_factory.mktemp("run"), names=names, dim=8, partitions=5)


@pytest.fixture
def run(written):
    with load(written[0]) as opened:
        yield opened


@pytest.mark.parametrize(("given", "expected"), [(1, 1), (4, 3)])
def test_the_quota_of_a_container_bounds_the_threads(monkeypatch, given, expected):
    monkeypatch.setattr(index_module, "available_cores", lambda: 3)
    before = faiss.omp_get_max_threads()
    try:
        faiss.omp_set_num_threads(given)
        assert index_module.import_faiss().omp_get_max_threads() == expected
    finally:
        faiss.omp_set_num_threads(before)


@pytest.mark.parametrize("metric", METRICS)
def test_all_vectors_give_the_exact_answer(run, tmp_path, metric):
    ids = np.arange(0, COUNT, 50)
    index = open_index(run, metric, folder=tmp_path)
    assert index.factory == "Flat"
    found, exact = index.neighbors(run, ids, 10), find_neighbors(run, ids, 10, metric)
    np.testing.assert_allclose(found.scores, exact.scores, rtol=1e-4, atol=1e-4)
    assert (found.ids == exact.ids).mean() > 0.99
    assert not (found.ids == ids[:, None]).any()


@pytest.mark.parametrize(
    ("factory", "wanted"),
    [("IVF512,Flat", 1 << 15), ("PCA4,IVF512,Flat", 1 << 15), ("OPQ2,IVF512,PQ2", 1 << 15), ("SQ8", 1 << 14)],
)
def test_lists_are_trained_on_enough_rows_whatever_comes_before_them(factory, wanted):
    class Many:
        num_nodes = 100_000

        def embeddings(self, ids):
            return ids

    lists = index_module._lists_of(faiss, faiss.index_factory(8, factory))
    assert len(index_module._sample(Many(), lists)) == wanted


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("factory", ["IVF64,Flat", "HNSW32"])
def test_recall(run, tmp_path, metric, factory):
    ids = np.arange(0, COUNT, 10)
    exact = find_neighbors(run, ids, 10, metric).ids
    index = open_index(run, metric, folder=tmp_path, factory=factory, memory_bytes=16 << 20)
    found = index.neighbors(run, ids, 10).ids
    recall = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(found.tolist(), exact.tolist(), strict=True)])
    assert recall > 0.8
    if factory.startswith("IVF"):
        every = open_index(run, metric, folder=tmp_path, factory=factory, probes=64)
        np.testing.assert_array_equal(np.sort(every.neighbors(run, ids, 10).ids), np.sort(exact))


@pytest.mark.parametrize(
    ("metric", "factory"), [("cosine", "PCA4,Flat"), ("dot", "PQ2x4"), ("l2", "LSH"), ("l2", "Flat")]
)
def test_scores_are_of_the_rows_themselves(run, tmp_path, metric, factory):
    ids = np.arange(0, COUNT, 300)
    found = open_index(run, metric, folder=tmp_path, factory=factory).neighbors(run, ids, 5)
    every = find_neighbors(run, ids, COUNT - 1, metric)
    for row in range(ids.size):
        places = [every.ids[row].tolist().index(one) for one in found.ids[row].tolist()]
        assert places == sorted(places)
        np.testing.assert_array_equal(found.scores[row], every.scores[row, places])


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("factory", ["Flat", "IVF8,Flat", "HNSW32"])
def test_rows_that_are_not_finite_are_left_out(tmp_path, metric, factory):
    names = [f"node {i}" for i in range(400)]
    ids = np.array([0, 20, 50, 399])
    with load(write_run(tmp_path, names=names, dim=8, diverged=40)[0]) as run:
        exact = find_neighbors(run, ids, 5, metric)
        for _ in range(2):  # built, then read from its file
            found = open_index(run, metric, factory=factory).neighbors(run, ids, 5)
            np.testing.assert_array_equal(found.ids, exact.ids)
            np.testing.assert_array_equal(found.scores, exact.scores)
    assert (found.ids[:2] == -1).all()
    assert (found.ids[2:] >= 40).all()


def test_an_index_of_no_finite_row_finds_nothing(tmp_path):
    with load(write_run(tmp_path, diverged=10)[0]) as run:
        for factory in ("Flat", "IVF8,Flat"):
            assert (open_index(run, factory=factory).neighbors(run, np.arange(3), 2).ids == -1).all()
            assert (open_index(run, factory=factory).neighbors(run, np.arange(3), 2).ids == -1).all()


def commit_other_rows(folder):
    """Let a run have another commit."""
    with open_node_store(folder / "checkpoint") as store:
        table = store.table
        rows = np.ones((table.slot_rows, table.dim), np.float32)
        store.write(1, rows, np.empty((table.slot_rows, 0), np.float32))
        store.commit(store.checkpoint())


def test_built_once_and_again_when_the_run_moves_on(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    folder = write_run(tmp_path)[0]
    with load(folder) as run:
        path = open_index(run, "dot").path
        assert path == folder / "index" / "dot-Flat.faiss"
        made = path.stat().st_mtime_ns
        assert open_index(run, "dot").path.stat().st_mtime_ns == made
        found = run.neighbors("Oslo", k=3, metric="dot", index=open_index(run, "dot"))
        exact = run.neighbors("Oslo", k=3, metric="dot")
        assert [one.neighbor for one in found] == [one.neighbor for one in exact]
        assert [one.score for one in found] == pytest.approx([one.score for one in exact])
    commit_other_rows(folder)
    with load(folder) as run:
        caplog.clear()
        assert open_index(run, "dot").path.stat().st_mtime_ns > made
        assert "of another commit of the run" in caplog.text


def test_an_index_of_other_rows_is_refused(run, tmp_path):
    folder = write_run(tmp_path)[0]
    with load(folder) as old:
        index = open_index(old, "dot")
        assert old.neighbors("Oslo", k=3, metric="dot", index=index)
        with load(folder) as again:  # the same commit, opened anew
            assert again.neighbors("Oslo", metric="dot", index=index)
        with pytest.raises(ConfigError, match="is of another run than"):  # of other names and width
            run.neighbors("node 1", metric="dot", index=index)
    commit_other_rows(folder)
    with load(folder) as new:
        for ask in (
            lambda: new.neighbors("Oslo", metric="dot", index=index),
            lambda: index.neighbors(new, np.arange(2), 3),
        ):
            with pytest.raises(ConfigError, match=r"another commit of it .*open_index\(run, 'dot'\)"):
                ask()
        assert new.neighbors("Oslo", metric="dot", index=open_index(new, "dot"))


def test_an_index_that_another_thread_saves_is_used(run, tmp_path):
    ids, other = np.arange(5), Replacing([tmp_path / "dot-Flat.faiss"])
    other.__enter__()
    index = open_index(run, "dot", folder=tmp_path)
    other.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    np.testing.assert_array_equal(index.neighbors(run, ids, 3).ids, find_neighbors(run, ids, 3, "dot").ids)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("damage", ["half", "facts", "no facts"])
def test_a_damaged_file_is_built_again(tmp_path, caplog, damage):
    with load(write_run(tmp_path)[0]) as run:
        path = open_index(run, "l2").path
        facts = path.with_name(path.name + ".json")
        if damage == "half":
            path.write_bytes(path.read_bytes()[:50])
        elif damage == "facts":
            facts.write_text("{")
        else:
            facts.unlink()
        index = open_index(run, "l2")
        exact = find_neighbors(run, np.arange(10), 3, "l2")
        np.testing.assert_array_equal(index.neighbors(run, np.arange(10), 3).ids, exact.ids)
        assert json.loads(facts.read_text())["metric"] == "l2"
    assert ("built again" in caplog.text) == (damage != "no facts")


def test_more_than_there_are(run, tmp_path):
    index = open_index(run, "l2", folder=tmp_path, factory="IVF64,Flat", probes=1)
    best = index.neighbors(run, np.array([0, 1]), COUNT - 1)
    assert best.ids.shape == (2, COUNT - 1)
    assert (best.ids[:, -1] == -1).all()
    assert np.isneginf(best.scores[:, -1]).all()


def test_what_is_wrong(run, tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="metric is 'l1'"):
        open_index(run, "l1", folder=tmp_path)
    with pytest.raises(
        ConfigError,
        match=r"cannot build the index 'Nonsense' of this run: could not .*; --index-type \(in Python",
    ):
        open_index(run, "l2", folder=tmp_path, factory="Nonsense")
    with pytest.raises(ConfigError, match="probes is for an index of lists"):
        open_index(run, "l2", folder=tmp_path, probes=3)
    with pytest.raises(ConfigError, match="probes is 65; allowed: 1 to 64"):
        open_index(run, "l2", folder=tmp_path, factory="IVF64,Flat", probes=65)
    for probes in (1.5, True, "2"):
        with pytest.raises(ConfigError, match=f"probes is {probes!r}; allowed: a whole number from 1"):
            open_index(run, "l2", folder=tmp_path, factory="IVF64,Flat", probes=probes)
    with pytest.raises(ConfigError, match="factory is 5; allowed: 'auto', or a description"):
        open_index(run, "l2", folder=tmp_path, factory=5)
    with pytest.raises(ConfigError, match=r"metric is 'dot', but the index .* is for 'l2'"):
        run.neighbors("node 1", metric="dot", index=open_index(run, "l2", folder=tmp_path))
    with pytest.raises(ConfigError, match=r"index is 'x\.faiss' \(str\); allowed: what open_index returns"):
        run.neighbors("node 1", metric="dot", index="x.faiss")
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(ConfigError, match=r"pip install 'marius_py\[faiss\]'"):
        open_index(run, "l2", folder=tmp_path)


def test_an_index_whose_file_cannot_be_closed_is_not_kept(run, tmp_path, monkeypatch):
    """Of a file that it opens itself faiss prints such an error, and goes on."""

    class Full(io.FileIO):
        def close(self):
            if not self.closed:
                super().close()
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    real = Path.open

    def opened(path, mode="r", *how, **more):
        return Full(path, mode) if mode == "wb" else real(path, mode, *how, **more)

    monkeypatch.setattr(Path, "open", opened)
    with pytest.raises(StorageError, match=r"writing \S+l2-Flat\.faiss.* failed: No space left on device"):
        open_index(run, "l2", folder=tmp_path)
    assert not list(tmp_path.iterdir())


def test_an_index_that_cannot_be_written_leaves_what_was_there(tmp_path, monkeypatch):
    folder = write_run(tmp_path)[0]
    with load(folder) as run:
        path = open_index(run, "dot").path
    before = {one: one.read_bytes() for one in path.parent.iterdir()}
    commit_other_rows(folder)

    def full(path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(index_module, "file_checksum", full)
    with load(folder) as run:
        for place in (None, tmp_path / "new" / "place"):
            with pytest.raises(StorageError, match=r"No space left on device; nothing was replaced"):
                open_index(run, "dot", folder=place)
    assert {one: one.read_bytes() for one in path.parent.iterdir()} == before
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(("factory", "probes"), [("HNSW32", 3), ("IVF64,Flat", 0)])
def test_probes_are_refused_before_the_table_is_read(run, tmp_path, monkeypatch, factory, probes):
    monkeypatch.setattr(run, "to_numpy", lambda: pytest.fail("read"))
    monkeypatch.setattr(run, "read_rows", lambda start, stop: pytest.fail("read"))
    with pytest.raises(ConfigError, match="probes is"):
        open_index(run, "l2", folder=tmp_path, factory=factory, probes=probes)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["file", "file/below", "link", "link/below", "read-only"])
def test_a_folder_that_takes_no_index_is_refused_before_the_table_is_read(run, tmp_path, monkeypatch, name):
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nowhere")
    monkeypatch.setattr(run, "to_numpy", lambda: pytest.fail("read"))
    monkeypatch.setattr(run, "read_rows", lambda start, stop: pytest.fail("read"))
    if name == "read-only":
        monkeypatch.setattr(index_module.tempfile, "TemporaryFile", _refused)
    with pytest.raises(
        (ConfigError, StorageError), match=rf"the folder \S+{name} of the index .* give another"
    ):
        open_index(run, "l2", folder=tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link"]


def test_who_opens_an_index_at_the_same_time_does_not_take_its_folder_away(run, tmp_path, monkeypatch):
    new, temporary_file = tmp_path / "new", index_module.tempfile.TemporaryFile

    def after_the_other(dir):
        with suppress(FileNotFoundError):
            new.rmdir()  # as who has made it to look whether one can
        return temporary_file(dir=dir)

    monkeypatch.setattr(index_module.tempfile, "TemporaryFile", after_the_other)
    assert open_index(run, "l2", folder=new).path.parent == new


def _refused(dir):
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))


def test_the_command(written, tmp_path, capsys):
    words = [str(written[0]), "--node", "node 7", "--format", "tsv", "-k", "4"]
    assert cli.neighbors(words) == 0
    written_out = capsys.readouterr()
    assert re.search(r" 1 node in [\d.]+ s, [\d.]+ .iB of memory at most", written_out.err)
    exact = [line.split("\t")[:3] for line in written_out.out.splitlines()]
    assert cli.neighbors([*words, "--index", "faiss", "--index-folder", str(tmp_path)]) == 0
    found = [line.split("\t")[:3] for line in capsys.readouterr().out.splitlines()]
    assert found == exact
    assert [path.name for path in sorted(tmp_path.iterdir())] == [
        "cosine-Flat.faiss",
        "cosine-Flat.faiss.json",
    ]
    assert cli.neighbors([*words, "--probes", "3"]) == 2
    assert "--probes is of --index faiss" in capsys.readouterr().err
    assert cli.neighbors([*words, "--index-type", "HNSW32"]) == 2
    with marius_py.load(written[0]) as run:
        assert run.fingerprint
