"""An opened run: rows by name, relations, metrics, and clear errors."""

import copy
import multiprocessing
import pickle

import numpy as np
import pandas as pd
import pytest
import torch
import yaml

from marius_py import load
from marius_py.errors import ConfigError, FormatError, MissingPathError, StorageError
from marius_py.machine import resolve_device
from tests.evaluation.ranking.helpers import brute_force
from tests.small_runs import NAMES, write_run


@pytest.fixture
def written(tmp_path):
    return write_run(tmp_path)


def test_rows_by_name(written):
    folder, graph, rows, relations = written
    with load(folder) as run:
        assert (run.num_nodes, run.dim, run.epochs) == (10, 4, 3)
        assert "10 nodes" in repr(run)
        ids = graph.node_ids(NAMES)
        np.testing.assert_array_equal(run.embedding("東京"), rows[graph.node_ids(["東京"])[0]])
        np.testing.assert_array_equal(run.embeddings([*NAMES, "NA"]), rows[[*ids, graph.node_ids(["NA"])[0]]])
        np.testing.assert_array_equal(run.embeddings(np.array([3, 3, 0])), rows[[3, 3, 0]])
        np.testing.assert_array_equal(run.to_numpy(), rows)
        np.testing.assert_array_equal(
            run.relation("knows it"), relations[graph.relation_ids(["knows it"])[0]]
        )
        assert run.relations()[0] == graph.relation_names()
        assert run.result is None
        assert [line["epoch"] for line in run.history] == [1, 2, 3]


def test_rows_near_each_other_are_read_together(written, monkeypatch):
    folder, _, rows, _ = written
    read = []
    monkeypatch.setattr("marius_py.evaluation.ranking.candidates._GAP_BYTES", 2 * 16)
    monkeypatch.setattr("marius_py.run_files.reader._BLOCK_BYTES", 5 * 16)
    with load(folder) as run:
        plain = run.read_rows
        monkeypatch.setattr(run, "read_rows", lambda low, high: read.append((low, high)) or plain(low, high))
        for ids, ranges in (
            ([], []),
            ([7], [(7, 8)]),
            ([9, 1, 4, 4], [(1, 2), (4, 5), (9, 10)]),
            ([2, 0, 3, 6, 8, 9], [(0, 4), (6, 10)]),
            (range(10), [(0, 5), (5, 10)]),
        ):
            wanted = np.array(ids, dtype=np.int64)
            np.testing.assert_array_equal(run.embeddings(wanted), rows[wanted])
            assert read == ranges
            read.clear()


def test_relations_are_looked_up_in_names_read_once(written, monkeypatch):
    folder, graph, _, relations = written
    with load(folder) as run:
        run.relation("likes")
        monkeypatch.setattr(type(graph), "relation_names", None)
        monkeypatch.setattr(type(graph), "relation_ids", None)
        for number, name in enumerate(run.relation_names):
            np.testing.assert_array_equal(run.relation(name), relations[number])
        assert run.inverse_suffix == "^-1"


def test_many_rows_are_streamed(written, monkeypatch):
    folder, _, rows, _ = written
    monkeypatch.setattr("marius_py.run_files.reader._BLOCK_BYTES", 3 * 16)
    with load(folder) as run:
        np.testing.assert_array_equal(run.embeddings(np.array([9, 1, 4, 4])), rows[[9, 1, 4, 4]])
        np.testing.assert_array_equal(run.to_numpy(), rows)


def test_inverse_relations(tmp_path, written):
    (tmp_path / "other").mkdir()
    folder, graph, _, relations = write_run(tmp_path / "other", reciprocal=True)
    with load(folder) as run:
        index = graph.relation_ids(["likes"])[0]
        np.testing.assert_array_equal(run.relation("likes", inverse=True), relations[2 + index])
        assert run.relations()[0][2:] == [name + "^-1" for name in graph.relation_names()]
        np.testing.assert_array_equal(run.relation("likes^-1"), relations[2 + index])
    with load(written[0]) as run, pytest.raises(ConfigError, match="reciprocal=false"):
        run.relation("likes", inverse=True)


def test_no_inverse_is_named_as_a_relation_of_the_graph(tmp_path):
    folder, graph, _, relations = write_run(tmp_path, reciprocal=True, relations=("likes", "likes^-1"))
    index = graph.relation_ids(["likes", "likes^-1"]).tolist()
    with load(folder) as run:
        names = run.relations()[0]
        assert sorted(names) == ["likes", "likes^-1", "likes^-1^-1", "likes^-1^-1^-1"]
        np.testing.assert_array_equal(run.relation("likes^-1"), relations[index[1]])
        np.testing.assert_array_equal(run.relation("likes", inverse=True), relations[2 + index[0]])
        for name in names:
            np.testing.assert_array_equal(run.relation(name), relations[names.index(name)])


def splits_and_scores(graph, rows, relations, reciprocal):
    """The edges of each split, and what gives DistMult's scores of all nodes for an edge's side."""
    with graph.edges() as store:
        splits = [store.read(split) for split in ("train", "valid", "test")]

    def scores(h, r, t, side):
        relation = relations[r + (graph.num_relations if reciprocal and side == "head" else 0)]
        query = (rows[h if side == "tail" else t] * relation).astype(np.float64)
        return rows.astype(np.float64) @ query

    return splits, scores


@pytest.mark.parametrize("reciprocal", [False, True])
def test_metrics_equal_brute_force(tmp_path, reciprocal):
    folder, graph, rows, relations = write_run(tmp_path, reciprocal=reciprocal)
    splits, scores = splits_and_scores(graph, rows, relations, reciprocal)
    with load(folder) as run:
        metrics = run.evaluate("test", details=True)
        sampled = run.evaluate("test", "sampled", candidates=4)
        assert run.evaluate("test", "sampled", candidates=10**12).both == metrics.both
    expected = brute_force(scores, splits, metrics.edges)
    np.testing.assert_array_equal(metrics.counts.better, expected[0])
    np.testing.assert_array_equal(metrics.counts.candidates, expected[2])
    assert sum(part.count for part in metrics.bands.values()) == metrics.both.count == 10
    assert sampled.protocol.startswith("sampled")


@pytest.mark.parametrize("reciprocal", [False, True])
def test_ranks_among_named_nodes_equal_brute_force(tmp_path, reciprocal):
    folder, graph, rows, relations = write_run(tmp_path, reciprocal=reciprocal)
    splits, scores = splits_and_scores(graph, rows, relations, reciprocal)
    among = ["Rome", "NA", "Oslo", "東京", "Rome", "Bern"]
    with load(folder) as run:
        metrics = run.evaluate("train", among=iter(among))
        whole, same = run.evaluate(), run.evaluate(among=NAMES)
        with pytest.raises(ConfigError, match=r"no node .* has the name 'Roma'.* Did you mean 'Rome'"):
            run.evaluate(among=["Oslo", "Roma"])
        with pytest.raises(ConfigError, match="among holds no names"):
            run.evaluate(among=[])
        with pytest.raises(ConfigError, match=r"among is 'Rome' \(str\); pass a list of names"):
            run.evaluate(among="Rome")
        with pytest.raises(ConfigError, match="mode is 'sampled' beside among"):
            run.evaluate(mode="sampled", among=among)
    expected = brute_force(scores, splits, metrics.edges, set(graph.node_ids(among).tolist()))
    for found, brute in zip(("better", "equal", "candidates"), expected, strict=True):
        np.testing.assert_array_equal(getattr(metrics.counts, found), brute)
    assert metrics.protocol == "filtered, among 5 of 10 entities, realistic ties"
    assert metrics.both.count == (expected[2] > 0).sum() > 20
    assert same.both == whole.both


def test_unknown_names_get_a_suggestion(written):
    with load(written[0]) as run:
        with pytest.raises(ConfigError, match=r"no node .* 'New york'.* Did you mean 'New York'"):
            run.embedding("New york")
        with pytest.raises(ConfigError, match="'Paris', 'Oslo1', 'x', …"):
            run.embeddings(["Paris", "Oslo1", "Oslo", "x", "y"])
        with pytest.raises(ConfigError, match=r"no relation .* Did you mean 'likes'"):
            run.relation("like")
        with pytest.raises(ConfigError, match="pass a list of names"):
            run.embeddings("Oslo")
        with pytest.raises(ConfigError, match="allowed: 0 to 9"):
            run.embeddings(np.array([10]))
        for ids in (np.array(3), np.array([[3, 4, 5]])):
            with pytest.raises(ConfigError, match=r"node ids have shape \(.*\); expected \(n,\)"):
                run.embeddings(ids)


def test_edges_of_a_frame_to_rank_are_names(written):
    with load(written[0]) as run, run.graph.edges() as edges:
        ids = edges.read("test")[:3]
        nodes, relations = run.node_names(), run.relation_names
        names = [(nodes[head], relations[relation], nodes[tail]) for head, relation, tail in ids.tolist()]
        frame = pd.DataFrame(names, columns=["head", "relation", "tail"])
        assert run.evaluate(edges=frame[["tail", "head", "relation"]]).both == run.evaluate(edges=ids).both
        with pytest.raises(ConfigError, match=r"no node of .* has the name '1'"):
            run.evaluate(edges=pd.DataFrame({"head": [1], "relation": ["likes"], "tail": ["Oslo"]}))
        with pytest.raises(ConfigError, match="split is of type DataFrame; allowed: train, valid, test"):
            run.evaluate(frame)


def test_triples_to_rank_are_names_where_those_to_score_are(tmp_path):
    names = [str((number + 3) % 10) for number in range(10)]  # of another node than has the number for its id
    folder = write_run(tmp_path, names=names, relations=("1", "0"))[0]
    with load(folder) as run:
        triples = [(3, 1, 8), (4, 0, 4)]
        ids = np.stack([run.node_ids([3, 4]), run.relation_ids([1, 0]), run.node_ids([8, 4])], axis=1)
        expected = run.evaluate(edges=ids).both
        for given in (triples, iter(triples), pd.Series(triples), np.array(triples).astype(str)):
            assert run.evaluate(edges=given).both == expected
        assert run.evaluate(edges=torch.from_numpy(ids)).both == expected
        assert run.evaluate(edges=np.array(triples)).both != expected
        with pytest.raises(ConfigError, match=r"no node of .* has the name '70'"):
            run.evaluate(edges=[(70, 0, 8)])
        with pytest.raises(ConfigError, match=r"edges is the single triple \('3', '1', '8'\)"):
            run.evaluate(edges=triples[0])


def test_what_is_asked_of_nothing_or_of_one_triple_is_refused(written):
    with load(written[0]) as run:
        with pytest.raises(ConfigError, match=r"edges is empty: give the edges .* \(E, 3\)"):
            run.evaluate(edges=np.empty((0, 3), np.int64))
        triple = ("Oslo", "likes", "Rome")
        for given in (triple, np.array(triple)):
            with pytest.raises(ConfigError, match=r"single triple \('Oslo', .*pass a list of triples"):
                run.score(given)
        assert run.score([triple]).shape == (1,)
        assert run.score([]).shape == (0,)


@pytest.mark.parametrize("graph", [None, "graph"])
def test_a_run_outlives_a_change_of_the_current_folder(tmp_path, written, graph, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    with load("run", graph=graph) as run:
        monkeypatch.chdir(tmp_path / "elsewhere")
        assert run.path == written[0]
        assert run.embedding("Oslo").shape == (4,)
        assert len(run.predict(head="Oslo", relation="likes", k=3)) == 3
        assert run.evaluate().both.count == 10


def test_a_working_directory_that_is_gone_is_said_to_be(tmp_path, written, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    for path, graph in (("run", None), (written[0], "graph")):
        with pytest.raises(MissingPathError, match="the working directory cannot be used"):
            load(path, graph=graph)
    with load(written[0]) as run:
        assert run.embedding("Oslo").shape == (4,)


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda run: pickle.loads(pickle.dumps(run))])
def test_a_copy_is_opened_anew(tmp_path, written, duplicate):
    folder, _, rows, _ = written
    moved = tmp_path / "moved"
    (tmp_path / "graph").rename(moved)
    with load(folder, graph=moved) as run:
        with duplicate(run) as other:
            assert (type(other), other.path, other.graph.path) == (type(run), folder, moved)
            np.testing.assert_array_equal(other.to_numpy(), rows)
        with load(folder, graph=moved):  # takes the numbers of descriptors that were closed
            np.testing.assert_array_equal(run.to_numpy(), rows)


def test_a_run_goes_to_another_process(written):
    folder, _, rows, _ = written
    with load(folder) as run, multiprocessing.get_context("spawn").Pool(1) as pool:
        np.testing.assert_array_equal(pool.apply(_rows_of, (run,)), rows)


def _rows_of(run):
    with run:
        return run.to_numpy()


def test_what_training_noted_is_not_changed_through_the_run(written):
    folder, *_ = written
    with load(folder) as run:
        run._checkpoint.meta["result"] = {"test": {"mrr": 0.5}}
        run.result["test"].pop("mrr")
        run.settings["model.decoder"].clear()
        assert run.result == {"test": {"mrr": 0.5}}
        assert run.settings["model.decoder"] == {"_target_": "distmult"}


def test_missing_and_wrong_files(tmp_path, written):
    folder, graph, _, _ = written
    with pytest.raises(StorageError, match=r"no run folder: .* marius-train graph=GRAPH output=FOLDER"):
        load(tmp_path / "nowhere")
    with pytest.raises(StorageError, match=r"no run folder: .* a prepared graph: give the run that was"):
        load(graph.path)
    with pytest.raises(StorageError, match="RUN is given as it is, without run="):
        load("run=runs/mine")
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "config.yaml").write_text("graph: null")
    with pytest.raises(StorageError, match="nothing was committed") as uncommitted:
        load(tmp_path / "new")
    assert not isinstance(uncommitted.value, ConfigError)
    config = folder / "config.yaml"
    content = config.read_text()
    config.write_text(yaml.safe_dump({"graph": str(tmp_path / "gone")}))
    with pytest.raises(StorageError, match="is gone"):
        load(folder)
    with load(folder, graph=graph.path) as run:
        assert run.num_nodes == 10
    config.write_text("just text")
    with pytest.raises(FormatError, match="holds no settings"):
        load(folder)
    config.unlink()
    with pytest.raises(StorageError, match=r"config\.yaml is missing"):
        load(folder)
    config.write_text(content)
    (tmp_path / "b").mkdir()
    other = write_run(tmp_path / "b", names=[*NAMES[:-1], "Paris"])[1]
    with pytest.raises(ConfigError, match="another graph"):
        load(folder, graph=other.path)


def test_a_device_is_one_that_is_there(written, monkeypatch):
    folder = written[0]
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with load(folder, device="auto") as run:
        assert run.model.device.type == "cpu"
    with pytest.raises(ConfigError, match=r"device=gpu is unknown: it takes one of auto, cpu, cuda"):
        load(folder, device="gpu")
    with pytest.raises(
        ConfigError, match=r"device=cuda, but .* no usable CUDA device: set device=cpu or auto"
    ):
        load(folder, device="cuda")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("torch.cuda.current_device", lambda: 1)
    assert resolve_device("auto") == resolve_device("cuda") == torch.device("cuda", 1)
    assert resolve_device("cuda:1").index == 1
    with pytest.raises(
        ConfigError, match=r"device=cuda:2, but this machine has 2 CUDA devices: the last is cuda:1"
    ):
        resolve_device("cuda:2")


@pytest.mark.parametrize(
    ("decoder", "message"),
    [
        ("nowhere.Mine", "cannot be imported"),
        ("json.JSONDecoder", "no class derived"),
        ("odd", "cannot be imported"),
    ],
)
def test_a_decoder_that_cannot_be_made(tmp_path, decoder, message):
    folder = write_run(tmp_path, decoder=decoder)[0]
    with pytest.raises(ConfigError, match=message):
        load(folder)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = nope", "cannot be imported.*NameError: name 'nope'"),
        ("def f(:", "cannot be imported.*SyntaxError"),
        (
            "import os\nfrom marius_py.nn import DistMult\n\n\nclass Mine(DistMult):\n"
            "    def __init__(self, dim):\n        os.environ['NO_SUCH']",
            "refuses its arguments.*KeyError: 'NO_SUCH'",
        ),
        ("raise SystemExit(0)", "cannot be imported.*SystemExit: 0"),
        (
            "import sys\nfrom marius_py.nn import DistMult\n\n\nclass Mine(DistMult):\n"
            "    def __init__(self, dim):\n        sys.exit(0)",
            "refuses its arguments.*SystemExit: 0",
        ),
    ],
)
def test_a_users_own_decoder_that_fails(tmp_path, monkeypatch, text, message):
    name = f"failing_{len(text)}"
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    folder = write_run(tmp_path, decoder=f"{name}.Mine")[0]
    with pytest.raises(ConfigError, match=message):
        load(folder)


def test_a_users_own_decoder(tmp_path):
    folder = write_run(tmp_path, decoder="marius_py.nn.decoders.DistMult")[0]
    with load(folder) as run:
        assert run.evaluate().both.count == 10


def test_names_that_are_whole_numbers_may_be_given_as_such(tmp_path):
    names = [str(3 * number) for number in range(10)]
    folder = write_run(tmp_path, names=names, relations=("0", "1"))[0]
    with load(folder) as run:
        for seven in (21, np.int64(21)):
            np.testing.assert_array_equal(run.embedding(seven), run.embedding("21"))
            assert run.predict(head=seven, relation=1) == run.predict(head="21", relation="1")
            assert run.neighbors(seven) == run.neighbors([seven]) == run.neighbors("21")
        np.testing.assert_array_equal(run.relation(1), run.relation("1"))
        assert run.node_ids([9, "9"]).tolist() == run.node_ids(["9", "9"]).tolist()
        assert run.predict(head=iter([9, 3]), relation="1") == run.predict(head=["9", "3"], relation="1")
        assert run.score([(9, 1, 3)]) == run.score([("9", "1", "3")])
        with pytest.raises(ConfigError, match=r"no node .* '7'"):
            run.predict(head=7, relation=1)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda run: run.predict(head=b"Oslo", relation="likes"), r"head is b'Oslo' \(bytes\)"),
        (lambda run: run.predict(head=[b"Oslo"], relation="likes"), r"head is b'Oslo' \(bytes\).* decode it"),
        (
            lambda run: run.predict(head=1.5, relation="likes"),
            r"head is 1\.5 \(float\); pass a list of names",
        ),
        (lambda run: run.predict(head=["Oslo"], relation=True), r"relation is True \(bool\)"),
        (lambda run: run.neighbors(b"Oslo"), r"nodes is b'Oslo' \(bytes\)"),
        (
            lambda run: run.predict(np.array("Oslo"), "likes"),
            r"head is array\('Oslo'.*; pass a list",
        ),
        (lambda run: run.neighbors([None]), r"nodes is None \(NoneType\); a name is"),
        (lambda run: run.relation(-1.0), r"the relation is -1\.0 \(float\)"),
        (lambda run: run.embedding(b"Oslo"), r"node_names is b'Oslo' \(bytes\)"),
        (lambda run: run.score([("Oslo", "likes", 2.0)]), r"tail is 2\.0 \(float\)"),
    ],
)
def test_what_is_no_name_is_refused(written, ask, message):
    with load(written[0]) as run, pytest.raises(ConfigError, match=message):
        ask(run)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"max_edges": 1.5}, r"max_edges is 1\.5; allowed: a whole number from 1"),
        ({"max_edges": True}, "max_edges is True; allowed: a whole number from 1"),
        ({"max_edges": 0}, "max_edges is 0; allowed: a whole number from 1"),
        ({"mode": "sampled", "candidates": 2.5}, r"candidates is 2\.5; allowed: a whole number"),
        ({"mode": "sampled", "candidates": 0}, "candidates is 0; allowed: a whole number from 1"),
        ({"memory_bytes": "1G"}, "memory_bytes is '1G'; allowed: a whole number"),
        ({"memory_bytes": 10**5000}, r"memory_bytes is 2\^63 or more; allowed: .* from 1048576 to"),
        ({"memory_bytes": 5}, "^memory_bytes is 5; allowed: a whole number from 1048576"),
        ({"seed": -1}, "seed is -1; allowed: a whole number from 0"),
        ({"seed": None}, "seed is None; allowed: a whole number from 0"),
        ({"ks": 5}, r"ks is 5; allowed: whole numbers .*such as \[1, 3, 10\]"),
        ({"ks": None}, "ks is None; allowed: whole numbers"),
        ({"ks": [0]}, r"^ks is \[0\]; allowed: whole numbers"),
        ({"ks": []}, r"^ks is \[\]; allowed: whole numbers"),
        ({"ks": [[1]]}, r"^ks is \[\[1\]\]; allowed: whole numbers"),
        ({"edges": iter([])}, r"edges is empty: give the edges .* names or as ids \(E, 3\)"),
        ({"edges": 5}, r"edges is 5 \(int\); allowed: a list of triples .*an array \(n, 3\) of ids"),
        ({"edges": "valid"}, r"edges is 'valid' \(str\); allowed: a list of triples"),
        ({"edges": np.array(5)}, r"edges have shape \(\) and type int64; expected \(E, 3\) integers"),
    ],
)
def test_numbers_of_an_evaluation_that_are_none_are_refused(tmp_path, wrong, said):
    with load(write_run(tmp_path)[0]) as run, pytest.raises(ConfigError, match=said):
        run.evaluate("test", **wrong)
