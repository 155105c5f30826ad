"""Extended graphs hold the old and the new edges; extended runs keep old rows bit for bit and train on."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import marius_py
from marius_py import cli
from marius_py.assembly.build import Watcher
from marius_py.config import load_config, make_components
from marius_py.errors import ConfigError, FormatError, InterruptedRunError, StorageError
from marius_py.nn.decoders import DistMult
from marius_py.parts import make_model
from marius_py.prepare import prepare
from marius_py.prepare.extend import IdShift, extend_graph, shift_of
from marius_py.resuming import extending
from marius_py.resuming.extending import extend_run
from marius_py.resuming.new_rows import _PRIOR_EDGES, NewRows
from marius_py.run_files.reader import RunReader
from marius_py.storage.reader import open_node_reader
from marius_py.verify import verify, verify_graph

SETTINGS = {
    "model.decoder": "complex",
    "model.dim": 8,
    "training.epochs": 2,
    "negatives.count": 10,
    "training.batch_size": 64,
    "training.valid_every": 0,
    "storage.partitions": 4,
    "storage.capacity": 2,
}


@given(num_old=st.integers(1, 40), num_new=st.integers(0, 40), seed=st.integers(0, 99))
def test_shift(num_old, num_new, seed):
    shift = IdShift.draw(num_old, num_new, seed)
    moved = shift.moved(np.arange(num_old))
    assert sorted([*moved.tolist(), *shift.new.tolist()]) == list(range(num_old + num_new))
    assert (np.diff(moved) > 0).all()
    ids = np.arange(num_old + num_new)
    np.testing.assert_array_equal(np.flatnonzero(shift.is_new(ids)), shift.new)
    for start, stop in ((0, num_old + num_new), (num_old // 2, num_old)):
        low, high = shift.old_range(start, stop)
        assert moved[low:high].tolist() == [i for i in moved.tolist() if start <= i < stop]


def triples(graph, split):
    nodes, relations = graph.node_names(), graph.relation_names()
    with graph.edges() as store:
        return sorted((nodes[h], relations[r], nodes[t]) for h, r, t in store.read(split).tolist())


def write(path, rows):
    path.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")
    return path


def make_rows(rng, names, relations, count):
    def pick(choices):
        return choices[rng.integers(len(choices))]

    return sorted({(pick(names), pick(relations), pick(names)) for _ in range(count)})


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("extend")
    rng = np.random.default_rng(1)
    old_names = [f"old {i}" for i in range(50)]
    rows = make_rows(rng, old_names, ["likes", "knows"], 400)
    old = prepare(
        write(folder / "train.tsv", rows[:-20]),
        folder / "old",
        valid=write(folder / "valid.tsv", rows[-20:-10]),
        test=write(folder / "test.tsv", rows[-10:]),
        partitions=4,
        header=False,
    )
    new = make_rows(rng, [*old_names[:20], *(f"new {i}" for i in range(15))], ["likes", "hates"], 120)
    write(folder / "new.tsv", new)
    more = write(folder / "more.tsv", [("new 0", "likes", "only in test")])
    graph = extend_graph(old, folder / "new.tsv", folder / "both", test=more, header=False, seed=3)
    return folder, old, graph, rows, new


def test_graph(files):
    folder, old, graph, rows, new = files
    assert triples(graph, "train") == sorted([*rows[:-20], *new])
    assert triples(graph, "valid") == triples(old, "valid")
    assert triples(graph, "test") == sorted([*rows[-10:], ("new 0", "likes", "only in test")])
    assert graph.relation_names() == [*old.relation_names(), "hates"]
    assert verify_graph(graph.path) == []
    assert marius_py.open_graph(folder / "both").fingerprint == graph.fingerprint != old.fingerprint
    made_from, shift, num_relations = shift_of(graph)
    assert (made_from, num_relations) == (old.fingerprint, 2)
    names = graph.node_names()
    assert [names[i] for i in shift.moved(np.arange(50))] == old.node_names()
    assert len(shift.new) == graph.num_nodes - 50
    degrees = graph.degrees(0, graph.num_nodes)
    assert degrees[names.index("new 0")] == sum((h == "new 0") + (t == "new 0") for h, _, t in new)


def test_partitions_are_random_sets_of_the_new_nodes(tmp_path):
    """However the new file is sorted; the places taken are those of the two counts and the seed alone."""
    (tmp_path / "old.tsv").write_text("a\tr\tb\nb\tr\tc\n")
    names = [f"new {i}" for i in range(400)]
    rows = [(names[i], "r", names[i + 1]) for i in range(0, 400, 2)]
    write(tmp_path / "new.tsv", rows)
    old = prepare(tmp_path / "old.tsv", tmp_path / "g", split=(1, 0, 0), partitions=2)
    graph = extend_graph(old, tmp_path / "new.tsv", tmp_path / "h", seed=5)
    assert triples(graph, "train") == sorted([("a", "r", "b"), ("b", "r", "c"), *rows])
    ids = graph.node_ids(names)
    np.testing.assert_array_equal(np.sort(ids), IdShift.draw(3, 400, 5).new)
    first = ids < graph.partitioning.start(1)
    assert 70 < first[:200].sum() < 130  # of about 100; in the order of the file, all
    assert 60 < (first[::2] == first[1::2]).sum() < 140  # edges inside a partition, of about 100
    again = extend_graph(old, tmp_path / "new.tsv", tmp_path / "i", seed=5)
    assert again.fingerprint == graph.fingerprint


@pytest.mark.parametrize("decoder", ["complex", "rotate"])
def test_new_rows_are_no_others_initial_rows(files, tmp_path, decoder):
    _, old_graph, graph, *_ = files
    with marius_py.train(old_graph, tmp_path / "run", {**SETTINGS, "model.decoder": decoder}):
        config = load_config([f"output={tmp_path}/run", "resume=true"])
    fresh = make_model(config, make_components(config), old_graph, torch.device("cpu"))
    first = np.empty((graph.num_nodes, fresh.dim), np.float32)
    fresh.init_nodes(first, 0, config.training.seed)
    relations = fresh.state_arrays()["relations"]
    with marius_py.load(extend_run(tmp_path / "run", graph, tmp_path / "longer", init="random")) as run:
        rows, found = run.to_numpy(), run.model.relations.numpy()
    _, shift, known = shift_of(graph)
    np.testing.assert_array_equal(rows[shift.new], first[old_graph.num_nodes :])
    new = found.reshape(2, known + 1, -1)[:, known]
    assert not any((row == other).all() for row in new for other in relations)


@pytest.mark.parametrize("init", ["neighbors", "random"])
def test_run(files, tmp_path, init):
    _, old_graph, graph, _, new = files
    with marius_py.train(old_graph, tmp_path / "run", SETTINGS) as old:
        before, names = old.to_numpy(), old.node_names()
        relation_names, relations = old.relations()
    folder = extend_run(tmp_path / "run", graph, tmp_path / "longer", init=init)
    assert verify(folder) == []
    with marius_py.load(folder) as run:
        assert (run.epochs, run.result) == (2, None)
        np.testing.assert_array_equal(run.embeddings(names), before)
        found_names, found = run.relations()
        for name, row in zip(relation_names, relations, strict=True):
            np.testing.assert_array_equal(found[found_names.index(name)], row)
        assert "hates^-1" in found_names
        fresh = run.embeddings(sorted({n for h, _, t in new for n in (h, t) if n.startswith("new")}))
        assert np.isfinite(fresh).all()
        assert (np.linalg.norm(fresh, axis=1) > 0).all()
    _, shift, _ = shift_of(graph)
    with (
        open_node_reader(folder / "checkpoint") as reader,
        open_node_reader(tmp_path / "run/checkpoint") as was,
    ):
        for part in range(4):
            reader.verify(part)
        assert reader.table.state_dim == was.table.state_dim > 0
        np.testing.assert_array_equal(state_of(reader)[shift.moved(np.arange(50))], state_of(was))
    with marius_py.train(graph, folder, {"training.epochs": 4}, resume=True) as run:
        assert run.epochs == 4
        assert [line["epoch"] for line in run.history] == [0, 1, 2, 3]
        assert (run.embeddings(names) != before).any()
        assert run.result["test"]["count"] == 22


def state_of(reader):
    table = reader.table
    rows, state = (np.empty((table.slot_rows, w), np.float32) for w in (table.dim, table.state_dim))
    parts = []
    for part in range(table.partitioning.num_partitions):
        reader.read_into(part, rows, state)
        parts.append(state[: table.partitioning.size(part)].copy())
    return np.concatenate(parts)


def test_neighbours_help(tmp_path):
    """New nodes that repeat the edges of old ones come out near them, before any training."""
    graph = marius_py.graph_from(
        [(f"a{i}", "in", f"group {i % 4}") for i in range(80)] * 2, tmp_path / "g", split=(1, 0, 0)
    )
    settings = {**SETTINGS, "model.decoder": "distmult", "training.epochs": 30, "storage.capacity": 4}
    marius_py.train(graph, tmp_path / "run", settings).close()
    write(tmp_path / "new.tsv", [(f"new {i}", "in", f"group {i % 4}") for i in range(8)])
    longer = extend_graph(graph, tmp_path / "new.tsv", tmp_path / "g2", header=False)
    with marius_py.load(extend_run(tmp_path / "run", longer, tmp_path / "r2")) as run:
        answers = run.predict(head=[f"new {i}" for i in range(8)], relation="in", k=1)
        assert sum(one.tail == f"group {one.query % 4}" for one in answers) >= 7


def means_of_answers(run, graph, shift):
    """(ids, rows) of new nodes with a known neighbour, as the definition has it: edge by edge."""
    old = np.flatnonzero(~shift.is_new(np.arange(graph.num_nodes)))
    answers, lengths = {}, {}
    with graph.edges() as store:
        edges = store.read("train").astype(np.int64)
    for head, relation, tail in edges.tolist():
        for side, node, anchor in (("head", head, tail), ("tail", tail, head)):
            if shift.is_new(np.array([node]))[0] and anchor in old and relation < run.graph.num_relations:
                row = run.embeddings(np.searchsorted(old, [anchor]))
                asked = run.model.queries(torch.from_numpy(row), torch.tensor([relation]), side)
                answers.setdefault(node, []).append(asked.numpy()[0].astype(np.float64))
                lengths.setdefault(node, []).append(np.linalg.norm(row))
    ids = np.array(sorted(answers))
    means = np.array([np.mean(answers[node], axis=0) for node in ids])
    wanted = np.array([np.mean(lengths[node]) for node in ids])
    return ids, means * (wanted / np.linalg.norm(means, axis=1))[:, None]


@pytest.mark.parametrize("decoder", ["complex", "transe"])
def test_new_rows_are_as_long_as_lets_their_edges_score_as_trained_ones_do(tmp_path, monkeypatch, decoder):
    rng = np.random.default_rng(5)
    names = [f"old {i}" for i in range(30)]
    write(tmp_path / "old.tsv", make_rows(rng, names, ["likes", "knows"], 400))
    graph = prepare(tmp_path / "old.tsv", tmp_path / "g", header=False, split=(1, 0, 0), partitions=4)
    settings = {**SETTINGS, "model.decoder": decoder, "training.epochs": 20}
    marius_py.train(graph, tmp_path / "run", settings).close()
    new = make_rows(rng, [*names, *(f"new {i}" for i in range(6))], ["likes", "knows"], 300)
    both = extend_graph(graph, write(tmp_path / "new.tsv", new), tmp_path / "both", header=False)
    with graph.edges() as store:
        edges = store.read("train").astype(np.int64)
    monkeypatch.setattr(NewRows, "_sample", lambda rows: edges)
    folder = extend_run(tmp_path / "run", both, tmp_path / "longer")
    _, shift, _ = shift_of(both)
    with marius_py.load(tmp_path / "run") as old, marius_py.load(folder) as run:
        ids, longest = means_of_answers(old, both, shift)
        found = run.embeddings(ids)
        if decoder == "transe":
            np.testing.assert_allclose(found, longest, rtol=1e-5, atol=1e-7)
            return
        trained = trained_scores(old, edges)
        shares = np.linalg.norm(found, axis=1) / np.linalg.norm(longest, axis=1)
        np.testing.assert_allclose(found, longest * shares[:, None], rtol=1e-4, atol=1e-6)
        own, wanted = own_scores(old, both, shift, ids, found, trained)
        assert (shares < 1).any()
        np.testing.assert_allclose(own[shares < 0.9999], wanted[shares < 0.9999], rtol=1e-4)
        assert (own <= wanted * 1.0001).all()


def trained_scores(run, edges):
    """(R, 2) mean scores by relation and side of the answer, with some edges of the mean of all."""
    scores = np.zeros((2, len(edges)))
    for place, side in enumerate(("head", "tail")):
        anchor, answer = (edges[:, 2], edges[:, 0]) if side == "head" else (edges[:, 0], edges[:, 2])
        rows = torch.from_numpy(run.embeddings(anchor))
        asked = run.model.queries(rows, torch.from_numpy(edges[:, 1]), side).numpy()
        scores[place] = (asked.astype(np.float64) * run.embeddings(answer)).sum(axis=1)
    found = [
        [
            (one[edges[:, 1] == relation].sum() + _PRIOR_EDGES * one.mean())
            / ((edges[:, 1] == relation).sum() + _PRIOR_EDGES)
            for one in scores
        ]
        for relation in range(run.graph.num_relations)
    ]
    return np.array(found)


def own_scores(run, graph, shift, ids, rows, trained):
    """Of new nodes the mean score of their edges with old ones, and the mean of what trained ones have."""
    old = np.flatnonzero(~shift.is_new(np.arange(graph.num_nodes)))
    own, wanted = {node: [] for node in ids.tolist()}, {node: [] for node in ids.tolist()}
    with graph.edges() as store:
        edges = store.read("train").astype(np.int64)
    for head, relation, tail in edges.tolist():
        for place, (side, node, anchor) in enumerate((("head", head, tail), ("tail", tail, head))):
            if node in own and anchor in old:
                row = torch.from_numpy(run.embeddings(np.searchsorted(old, [anchor])))
                asked = run.model.queries(row, torch.tensor([relation]), side).numpy()[0].astype(np.float64)
                own[node].append(asked @ rows[ids.tolist().index(node)])
                wanted[node].append(trained[relation, place])
    return [np.array([np.mean(found[node]) for node in ids.tolist()]) for found in (own, wanted)]


@pytest.mark.parametrize(
    ("memory_bytes", "passes"),
    [(256 << 20, 1), (8000, 2), (800, 40)],
    ids=["held at once", "edges in two parts", "nodes in three parts"],
)
def test_the_table_is_read_once_for_all_new_edges_held(files, tmp_path, monkeypatch, memory_bytes, passes):
    """In whatever order edges are added, rows are the means of the definition, up to rounding of sums."""
    old_graph = files[1]
    marius_py.train(old_graph, tmp_path / "run", SETTINGS).close()
    names = [*(f"old {i}" for i in range(50)), *(f"new {i}" for i in range(15))]
    new = make_rows(np.random.default_rng(2), names, ["likes", "hates", "knows"], 1500)
    graph = extend_graph(old_graph, write(tmp_path / "new.tsv", new), tmp_path / "both", header=False)
    num_asked = sum(one[:3] != two[:3] and rel != "hates" for one, rel, two in new)
    read = []

    def read_rows(run, start, stop):
        read.append(stop - start)
        return read_from(run, start, stop)

    read_from = RunReader.read_rows
    monkeypatch.setattr(RunReader, "read_rows", read_rows)
    monkeypatch.setattr("marius_py.run_files.reader._BLOCK_BYTES", 10 * 4 * 8)
    monkeypatch.setattr("marius_py.resuming.new_rows._BLOCK_EDGES", 7)
    monkeypatch.setattr(NewRows, "_scores", np.zeros((2, 2)))  # nothing is known of them
    folder = extend_run(tmp_path / "run", graph, tmp_path / "longer", memory_bytes=memory_bytes)
    assert sum(read) <= passes * old_graph.num_nodes + num_asked // 10 + passes
    _, shift, _ = shift_of(graph)
    with marius_py.load(tmp_path / "run") as old, marius_py.load(folder) as run:
        ids, means = means_of_answers(old, graph, shift)
        assert len(ids) > 10
        np.testing.assert_allclose(run.embeddings(ids), means, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("decoder", "asked"), [("dot", True), ("distmult", False)])
def test_new_relations_are_asked_for_where_they_need_no_row(tmp_path, monkeypatch, decoder, asked):
    monkeypatch.setattr(NewRows, "_scores", np.zeros((2, 2)))
    rows = make_rows(np.random.default_rng(4), [f"old {i}" for i in range(20)], ["likes", "knows"], 100)
    write(tmp_path / "old.tsv", rows)
    graph = prepare(tmp_path / "old.tsv", tmp_path / "g", header=False, split=(1, 0, 0), partitions=4)
    settings = {**SETTINGS, "model.decoder": decoder}
    marius_py.train(graph, tmp_path / "run", settings).close()
    new = [("new 0", "hates", "old 1"), ("old 2", "hates", "new 0"), ("new 1", "likes", "old 3")]
    both = extend_graph(graph, write(tmp_path / "new.tsv", new), tmp_path / "both", header=False)
    inits = ("neighbors", "random")
    folders = [extend_run(tmp_path / "run", both, tmp_path / init, init=init) for init in inits]
    with marius_py.load(folders[0]) as run, marius_py.load(folders[1]) as drawn:
        found, random = (one.embeddings(["new 0", "new 1"]) for one in (run, drawn))
        known = run.embeddings(["old 1", "old 2"])
    assert (found[1] != random[1]).any()
    if not asked:
        np.testing.assert_array_equal(found[0], random[0])
        return
    mean = known.mean(axis=0)
    wanted = np.linalg.norm(known, axis=1).mean() / np.linalg.norm(mean)
    np.testing.assert_allclose(found[0], mean * wanted, rtol=1e-5)


def test_command(files, tmp_path, capsys):
    folder, old, _, _, _ = files
    marius_py.train(old, tmp_path / "run", SETTINGS).close()
    words = [f"graph={old.path}", f"input.train={folder / 'new.tsv'}", f"output={tmp_path / 'both'}"]
    runs = [f"run={tmp_path / 'run'}", f"run_output={tmp_path / 'longer'}"]
    assert cli.main(["extend", *words, *runs, "seed=1"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"graph: {tmp_path / 'both'}",
        f"run: {tmp_path / 'longer'}",
    ]
    assert cli.train([f"output={tmp_path / 'longer'}", "resume=true", "training.epochs=3"]) == 0
    for bad, message in (
        (words, "holds a prepared graph already"),
        (words[:2], "output not set"),
        ([*words, "inti=random"], "did you mean init"),
        ([*words, "run=x"], "belong together"),
        ([*words, "seed=one"], "seed=one"),
        ([*words, "init=random"], "init=random is for the embeddings of a run: give run=RUN"),
        ([*words, "init=neighbors"], "init=neighbors is for the embeddings of a run"),
    ):
        assert cli.extend(bad) == 2
        assert message in capsys.readouterr().err


def test_a_run_whose_graph_has_moved(tmp_path, capsys):
    graph, moved, run = tmp_path / "graph", tmp_path / "moved", tmp_path / "run"
    rows = make_rows(np.random.default_rng(0), [f"n{i}" for i in range(30)], ["r"], 200)
    prepare(write(tmp_path / "edges.tsv", rows), graph, partitions=4, header=False)
    marius_py.train(graph, run, SETTINGS).close()
    graph.rename(moved)
    assert cli.train([f"output={run}", "resume=true"]) == 2
    assert f"{graph}, is gone; if it was moved, give graph=DIR" in capsys.readouterr().err
    assert cli.train([f"output={run}", "resume=true", "graph=nowhere"]) == 2
    assert "is gone" not in capsys.readouterr().err
    added = write(tmp_path / "new.tsv", [("n0", "r", "somebody")])
    words = [
        f"run={run}",
        f"run_output={tmp_path / 'longer'}",
        f"output={tmp_path / 'both'}",
        "input.header=false",
    ]
    assert cli.extend([f"graph={moved}", f"input.train={added}", *words]) == 0
    with marius_py.load(tmp_path / "longer") as longer:
        assert "somebody" in longer.graph.node_names()


def test_files_are_read_as_marius_prepare_reads_them(tmp_path, capsys):
    (tmp_path / "t.txt").write_text("% old\nb;x;a\nc;x;b\n")
    reading = ["input.columns=[2,0]", "input.delimiter=;", "input.comment=%", "input.header=false"]
    words = ["input.split=[1,0,0]", "partitions=1", f"output={tmp_path / 'g'}"]
    assert cli.prepare([f"input.train={tmp_path / 't.txt'}", *reading, *words]) == 0
    (tmp_path / "more.txt").write_text("% new\nd;x;c\n'e;x;'d\n")
    words = [f"graph={tmp_path / 'g'}", f"input.train={tmp_path / 'more.txt'}", f"output={tmp_path / 'h'}"]
    assert cli.extend([*words, *reading, "input.quoting=null"]) == 0
    graph = marius_py.open_graph(tmp_path / "h")
    with graph.edges() as edges:
        rows = edges.read_range("train", 0, edges.num_edges("train"))
    names = graph.node_names()
    pairs = [("a", "b"), ("b", "c"), ("c", "d"), ("'d", "'e")]
    assert sorted((names[head], names[tail]) for head, _, tail in rows) == sorted(pairs)
    capsys.readouterr()
    for bad, message in (
        ("input.columns=[0]", "has 1 entries: it takes three columns"),
        (
            "input.header=perhaps",
            "input.header='perhaps' has the wrong type: it takes true or false, or null",
        ),
        ("input.delimiter=,,", "input.delimiter=',,' is not one character"),
        ("input.format=xls", "input.format=xls is unknown: it takes one of auto, tsv"),
    ):
        assert cli.extend([*words, "overwrite=true", bad]) == 2
        assert message in capsys.readouterr().err


def test_where_the_run_fails_it_is_said_that_the_graph_is_made(files, tmp_path, capsys, monkeypatch):
    old = files[1]
    more = write(tmp_path / "more.tsv", [("old 0", "likes", "somebody")])
    run, output = tmp_path / "run", tmp_path / "both"
    marius_py.train(old, run, SETTINGS).close()
    words = [f"graph={old.path}", f"input.train={more}", "input.header=false", f"output={output}"]
    words += [f"run={run}", f"run_output={tmp_path / 'longer'}"]

    def fail(*_, **__):
        raise StorageError("disk full")

    with monkeypatch.context() as full:
        full.setattr(extending, "create_node_store", fail)
        assert cli.extend(words) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert said == (
        f"error: disk full (output={output} holds the new graph, without its run; overwrite=true makes both)"
    )
    assert cli.extend([*words, "overwrite=true"]) == 0


@pytest.mark.parametrize(("names", "added"), [("1\t2\n3\t4\n5\t1\n", 1), ("a\t2\n3\t4\n5\t1\n", 2)])
def test_one_line_of_numbers_tells_a_header_if_all_nodes_are_numbers(tmp_path, names, added):
    (tmp_path / "t.tsv").write_text(names)
    (tmp_path / "more.csv").write_text("x,y\n5,1\n")
    old = prepare(tmp_path / "t.tsv", tmp_path / "g", header=False, split=(1, 0, 0), partitions=1)
    graph = extend_graph(old, tmp_path / "more.csv", tmp_path / "h")
    with graph.edges() as edges:
        assert edges.num_edges("train") == 3 + added
    assert (graph.node_ids(["x", "y"]) < 0).all() == (added == 1)


def test_settings_of_the_command(tmp_path, capsys):
    (tmp_path / "t.tsv").write_text("a\tb\nb\tc\n")
    (tmp_path / "more.csv").write_text('"nach, ort",von\nx,a\n')
    graph, more, output = (f"{tmp_path / name}" for name in ("g", "more.csv", "h"))
    words = ["input.split=[1,0,0]", "partitions=1", f"output={graph}"]
    assert cli.prepare([f"input.train={tmp_path / 't.tsv'}", *words]) == 0
    words = [f"graph={graph}", f"input.train={more}", f"output={output}"]
    assert cli.extend([*words, 'input.columns=[von,"nach, ort"]', f"seed={2**63 - 1}"]) == 0
    assert marius_py.open_graph(output).node_ids(["x"])[0] >= 0
    assert cli.extend([*words, "input.columns=[-1,0]", "input.header=true", "overwrite=true"]) == 0
    for bad, message in (
        (f"input.train={more}2", f"input.train is given twice: {more!r} and '{more}2'"),
        (f"seed={2**63}", f"seed={2**63}; allowed: a whole number from 0 to {2**63 - 1}"),
        ("seed=٣", "seed=٣; allowed"),
    ):
        assert cli.extend([*words, "overwrite=true", bad]) == 2
        assert message in capsys.readouterr().err


def test_a_run_that_was_cut_off_can_be_extended_again(files, tmp_path):
    """A process that was killed while it wrote leaves nothing under the name asked for."""
    _, old, graph, _, _ = files
    marius_py.train(old, tmp_path / "run", SETTINGS).close()
    program = (
        "import os, sys; from marius_py import graph; from marius_py.resuming import extending\n"
        "extending.write_yaml = lambda *given: os._exit(9)\n"
        "extending.extend_run(sys.argv[1], graph.open_graph(sys.argv[2]), sys.argv[3])"
    )
    words = [str(tmp_path / "run"), str(graph.path), str(tmp_path / "longer")]
    assert subprocess.run([sys.executable, "-c", program, *words], check=False).returncode == 9
    assert not (tmp_path / "longer").exists()
    assert extend_run(tmp_path / "run", graph, tmp_path / "longer") == tmp_path / "longer"
    assert [path.name for path in tmp_path.iterdir() if "longer" in path.name] == ["longer"]


def test_refusals(files, tmp_path):
    folder, old, graph, _, _ = files
    pairs = write(tmp_path / "pairs.tsv", [("a", "b")])
    with pytest.raises(FormatError, match="has no relations, and the graph"):
        extend_graph(old, pairs, tmp_path / "x", header=False)
    (tmp_path / "link").symlink_to(old.path)
    for same, overwrite in ((old.path, True), (old.path, False), (tmp_path / "link", False)):
        with pytest.raises(ConfigError, match=f"output={same} is the graph that .* choose another folder"):
            extend_graph(old, folder / "new.tsv", same, header=False, overwrite=overwrite)
    with pytest.raises(ConfigError, match="was not made by extending one"):
        shift_of(old)
    marius_py.train(graph, tmp_path / "other", SETTINGS).close()
    with pytest.raises(ConfigError, match="the run's graph"):
        extend_run(tmp_path / "other", graph, tmp_path / "y")
    with pytest.raises(ConfigError, match="init is 'mean'; allowed: neighbors, random"):
        extend_run(tmp_path / "other", graph, tmp_path / "y", init="mean")


def test_validations_of_the_old_graph_do_not_count(files, tmp_path):
    _, old, graph, _, _ = files
    settings = {**SETTINGS, "training.valid_every": 1, "training.patience": 1, "checkpoint.best": True}
    with marius_py.train(old, tmp_path / "run", {**settings, "training.epochs": 9, "optimizer.lr": 1}) as run:
        done = run.epochs
        assert all(line["valid"] for line in run.history)
    folder = extend_run(tmp_path / "run", graph, tmp_path / "longer")
    with marius_py.load(folder) as run:
        assert [(line["valid"], line["best_epoch"]) for line in run.history] == [(None, None)] * done
    with marius_py.train(graph, folder, {"training.epochs": done + 1}, resume=True) as run:
        assert run.epochs == done + 1
        assert run.history[-1]["valid"]["count"] == 20
        assert run.result["best"]["epoch"] in (done, done + 1)


def test_a_run_of_another_graph_is_refused_before_the_graph_is_written(files, tmp_path, capsys):
    folder, old, graph, _, _ = files
    marius_py.train(graph, tmp_path / "run", SETTINGS).close()
    words = [f"graph={old.path}", f"input.train={folder / 'new.tsv'}", f"output={tmp_path / 'both'}"]
    assert cli.extend([*words, f"run={tmp_path / 'run'}", f"run_output={tmp_path / 'longer'}"]) == 2
    assert "was not trained on graph=" in capsys.readouterr().err
    assert not (tmp_path / "both").exists()


class Failing(DistMult):
    """A decoder of a user's own that fails as `fails` says."""

    fails = "never"

    def query(self, node, relation, side):
        if self.fails == "always" or (self.fails == "later" and len(node) > 1):
            raise ValueError("no query today")
        return super().query(node, relation, side)


@pytest.mark.parametrize("fails", ["always", "later"])
def test_a_decoder_that_fails_is_named_and_the_graph_told_of(files, tmp_path, capsys, monkeypatch, fails):
    folder, old, *_ = files
    marius_py.train(old, tmp_path / "run", {**SETTINGS, "model.decoder": Failing}).close()
    monkeypatch.setattr(Failing, "fails", fails)
    output, run_output = tmp_path / "longer", tmp_path / "longer_run"
    words = [f"graph={old.path}", f"input.train={folder / 'new.tsv'}", f"output={output}"]
    assert cli.extend([*words, f"run={tmp_path / 'run'}", f"run_output={run_output}"]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert f"model.decoder={__name__}.Failing: query of nodes (" in error
    assert "fails: ValueError: no query today; init=random asks for none" in error
    assert output.exists() == (f"output={output} holds the new graph, without its run" in error)
    assert output.exists() == (fails == "later")
    assert not run_output.exists()


@pytest.mark.parametrize("output", ["both", "both/graph"])
def test_a_run_around_its_graph_is_refused_before_the_graph_is_written(files, tmp_path, capsys, output):
    folder, old, _, _, _ = files
    marius_py.train(old, tmp_path / "run", SETTINGS).close()
    words = [f"graph={old.path}", f"input.train={folder / 'new.tsv'}", f"output={tmp_path / output}"]
    assert cli.extend([*words, f"run={tmp_path / 'run'}", f"run_output={tmp_path / 'both'}"]) == 2
    assert f"run_output={tmp_path / 'both'} would hold output={tmp_path / output}" in capsys.readouterr().err
    assert not (tmp_path / "both").exists()


def test_a_run_without_an_epoch_is_extended_without_lines_of_one(files, tmp_path):
    _, old, graph, _, _ = files

    class Interrupting(Watcher):
        def on_start(self, trainer, num_edges, epochs_done):
            trainer.interrupt()

    with pytest.raises(InterruptedRunError):
        marius_py.train(old, tmp_path / "run", SETTINGS, watcher=Interrupting())
    folder = extend_run(tmp_path / "run", graph, tmp_path / "longer")
    assert verify(folder) == []


def test_what_cannot_be_added_to_a_graph_is_refused(tmp_path):
    (tmp_path / "t.tsv").write_text("a\tr\tb\nb\tr\ta\n")
    (tmp_path / "empty.tsv").write_text("head\trelation\ttail\n")
    graph = prepare(tmp_path / "t.tsv", tmp_path / "g", split=(1, 0, 0), partitions=1)
    with pytest.raises(ConfigError, match="seed is -1; allowed"):
        extend_graph(graph, tmp_path / "t.tsv", tmp_path / "more", seed=-1)
    with pytest.raises(ConfigError, match=r"input\.train is of type dict; allowed: the path .* write a file"):
        extend_graph(graph, {"head": ["a"]}, tmp_path / "more")
    for files in (
        {"train": tmp_path / "empty.tsv"},
        {"train": tmp_path / "t.tsv", "test": tmp_path / "empty.tsv"},
    ):
        with pytest.raises(FormatError, match=r"empty\.tsv holds no edges, only a header"):
            extend_graph(graph, output=tmp_path / "more", **files)
    assert not (tmp_path / "more").exists()
