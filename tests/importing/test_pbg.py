"""PyTorch-BigGraph's files become graphs with the same edges and runs with the same scores."""

import itertools
import json
import pickle

import h5py
import numpy as np
import pytest
import torch

import marius_py
from marius_py import cli
from marius_py.errors import ConfigError, FormatError, StorageError
from marius_py.export import export
from marius_py.graph import open_graph
from marius_py.importing import pbg_graph, pbg_run
from marius_py.importing.pbg import pbg_model
from marius_py.storage.reader import open_node_reader
from marius_py.storage.weighted import weights_of
from marius_py.verify import is_sound, verify
from tests.importing.peers import ENTITIES, Pbg
from tests.small_runs import write_run

TYPED = [
    ("buys", "user", "item", "diagonal"),
    ("knows", "user", "user", "none"),
    ("has tag", "item", "tag", "diagonal"),
]
OPERATORS = ("none", "diagonal", "translation", "complex_diagonal", "linear", "affine")
COMPARATORS = ("dot", "cos", "l2", "squared_l2")


def triples(graph, split):
    nodes, relations = graph.node_names(), graph.relation_names()
    with graph.edges() as store:
        return sorted((nodes[h], relations[r], nodes[t]) for h, r, t in store.read(split).tolist())


def make(folder, operator="diagonal", comparator="dot", *, dynamic=0, **options):
    relations = [("a", "all", "all", operator), ("b", "all", "all", operator)]
    return Pbg(
        folder, relations=relations[: 1 if dynamic else 2], dynamic=dynamic, comparator=comparator, **options
    )


def convert(peer, output, **options):
    """The run of a peer's checkpoint on a graph of its own data, opened."""
    peer.write_edges()
    graph = pbg_graph(
        peer.folder / "entities",
        peer.folder / "edges",
        output / "graph",
        config=peer.model / "config.json",
        split=(1, 0, 0),
        partitions=3,
    )
    return marius_py.load(pbg_run(peer.model, graph, output / "run", **options))


def check_scores(peer, run):
    """All scores of a few nodes, both ends ranked, against the definition in float64."""
    nodes = [
        (entity, part, place) for (entity, part), rows in peer.rows.items() for place in range(len(rows))
    ]
    ids = run.node_ids([peer.full_name(*node) for node in nodes])
    rows = torch.from_numpy(run.embeddings(ids))
    for number, (_, lhs, rhs, _) in enumerate(peer.relations):
        for relation in range(peer.dynamic) if peer.dynamic else (number,):
            name = peer.relation_name(relation) if run.graph.has_relations else ""
            index = torch.from_numpy(run.relation_ids([name]))
            heads = [i for i, node in enumerate(nodes) if node[0] == lhs][:4]
            tails = [i for i, node in enumerate(nodes) if node[0] == rhs][:4]
            for side, (head, tail) in itertools.product(("tail", "head"), itertools.product(heads, tails)):
                known, other = (head, tail) if side == "tail" else (tail, head)
                query = run.model.queries(rows[[known]], index, side)
                ours = run.model.compare(query[None].double(), rows[[other]][None].double()).item()
                wanted = peer.score(nodes[head], relation, nodes[tail], side)
                assert ours == pytest.approx(wanted, rel=1e-5, abs=1e-5)


def test_edges_of_several_types(tmp_path):
    peer = Pbg(tmp_path / "p", entities=ENTITIES, relations=TYPED)
    edges = {split: peer.write_edges(split) for split in ("train", "valid", "test")}
    graph = pbg_graph(
        None,
        tmp_path / "p" / "train",
        tmp_path / "g",
        valid=tmp_path / "p" / "valid",
        test=[tmp_path / "p" / "test"],
        config=peer.model / "config.json",
    )
    assert graph.num_nodes == 16
    assert graph.relation_names() == ["buys", "knows", "has tag"]
    for split, found in edges.items():
        assert triples(graph, split) == sorted(found)
    assert {"user/u0 0", "tag/t0 3"} <= set(graph.node_names())


def test_dynamic_relations_need_no_configuration(tmp_path):
    peer = make(tmp_path / "p", dynamic=3)
    edges = peer.write_edges()
    graph = pbg_graph(tmp_path / "p" / "entities", tmp_path / "p" / "edges", tmp_path / "g", split=(1, 0, 0))
    assert triples(graph, "train") == sorted(edges)
    assert graph.num_relations == 3
    (tmp_path / "p" / "entities" / "dynamic_rel_names.json").unlink()
    for part in range(2):
        (tmp_path / "p" / "entities" / f"entity_names_all_{part}.json").unlink()
    graph = pbg_graph(tmp_path / "p" / "entities", tmp_path / "p" / "edges", tmp_path / "h", split=(1, 0, 0))
    assert graph.relation_names() == ["0", "1", "2"]
    assert {"0/0", "1/2"} <= set(graph.node_names())
    (tmp_path / "p" / "entities" / "dynamic_rel_count.txt").write_text("0")
    with pytest.raises(FormatError, match=r"dynamic_rel_count.txt holds 0; it should hold the number of rel"):
        pbg_graph(tmp_path / "p" / "entities", tmp_path / "p" / "edges", tmp_path / "i")


@pytest.mark.parametrize("again", ["x", 1])  # one and "1" are the same as text
def test_names_of_entities_are_distinct(tmp_path, again):
    peer = make(tmp_path / "p")
    peer.write_edges()
    first, second = ((peer.folder / "entities" / f"entity_names_all_{part}.json") for part in range(2))
    for path, name in ((first, str(again)), (second, again)):
        path.write_text(json.dumps([name, *json.loads(path.read_text())[1:]]))
    for read in (
        lambda: pbg_graph(None, peer.folder / "edges", tmp_path / "g", config=peer.model / "config.json"),
        lambda: pbg_model(peer.model),
    ):
        with pytest.raises(FormatError, match=r"entity_names_all_\*\.json hold a name twice"):
            read()


def test_names_of_some_partitions_only(tmp_path):
    peer = make(tmp_path / "p")
    peer.write_edges()
    names = peer.folder / "entities" / "entity_names_all_1.json"
    names.unlink()
    config = peer.model / "config.json"
    with pytest.raises(StorageError, match=r"_1\.json is missing, while entity_names_all_0\.json is there"):
        pbg_graph(None, peer.folder / "edges", tmp_path / "g", config=config)
    (peer.folder / "entities" / "entity_count_all_1.txt").write_text("0")
    for bucket in ("0_1", "1_0", "1_1"):
        (peer.folder / "edges" / f"edges_{bucket}.h5").unlink()
    graph = pbg_graph(None, peer.folder / "edges", tmp_path / "g", config=config)
    assert graph.num_nodes == 4  # a partition without nodes needs no names


def test_absent_buckets_are_named(tmp_path, caplog):
    relations = [("buys", "user", "item", "none"), ("has", "user", "tag", "none")]
    peer = Pbg(tmp_path / "p", entities=ENTITIES | {"user": (1,) * 4}, relations=relations)
    edges = peer.write_edges()
    config = peer.model / "config.json"
    pbg_graph(None, peer.folder / "edges", tmp_path / "g", config=config)
    assert "buckets" not in caplog.text
    (peer.folder / "edges" / "edges_0_1.h5").unlink()
    graph = pbg_graph(None, peer.folder / "edges", tmp_path / "h", config=config, split=(1, 0, 0))
    assert graph.num_edges["train"] == len(edges) * 7 // 8
    assert f"input.train={peer.folder / 'edges'}: 7 of 8 buckets have a file; none for 0_1: " in caplog.text
    for bucket in ("0_0", "1_0", "1_1", "2_0"):
        (peer.folder / "edges" / f"edges_{bucket}.h5").unlink()
    pbg_graph(None, peer.folder / "edges", tmp_path / "i", config=config)
    assert "3 of 8 buckets have a file; none for 0_0, 0_1, 1_0, 1_1, …: " in caplog.text


def weights_by_edge(graph):
    nodes, relations = graph.node_names(), graph.relation_names()
    with graph.edges() as store:
        rows = store.read("train", weights=True)
    named = [(nodes[h], relations[r], nodes[t]) for h, r, t in rows[:, :3].tolist()]
    return dict(zip(named, weights_of(rows).tolist(), strict=True))


def test_edge_weights(tmp_path):
    peer = make(tmp_path / "p")
    edges = peer.write_edges()
    folder, config = peer.folder / "edges", peer.model / "config.json"
    rng = np.random.default_rng(0)
    total = 0.0
    for path in sorted(folder.glob("edges_*.h5")):
        with h5py.File(path, "a") as file:
            file["weight"] = rng.uniform(0, 9, len(file["rel"])).astype(np.float32)
            total += file["weight"][...].sum(dtype=np.float64)
    graph = pbg_graph(None, folder, tmp_path / "g", valid=folder, config=config)
    assert triples(graph, "train") == triples(graph, "valid") == sorted(edges)
    with graph.edges() as store:
        assert weights_of(store.read("train", weights=True)).sum() == pytest.approx(total, rel=1e-5)
    assert graph.mean_weight == pytest.approx(total / len(edges), rel=1e-6)
    settings = json.loads(config.read_text())
    settings["relations"][1]["weight"] = 0.25
    factors = tmp_path / "config.json"
    factors.write_text(json.dumps(settings))
    both = pbg_graph(None, folder, tmp_path / "f", valid=folder, config=factors)
    assert weights_by_edge(both) == {
        edge: pytest.approx(weight * (0.25 if edge[1] == "b" else 1))
        for edge, weight in weights_by_edge(graph).items()
    }
    with h5py.File(folder / "edges_1_1.h5", "a") as file:
        file["weight"][0] = -1
    with pytest.raises(FormatError, match=r"edges_1_1\.h5, edge 0: the weight is -1"):
        pbg_graph(None, folder, tmp_path / "h", config=config)
    with h5py.File(folder / "edges_1_1.h5", "a") as file:
        del file["weight"]
    with pytest.raises(FormatError, match=r"input\.train: .* have weights, and those of .*1_1\.h5"):
        pbg_graph(None, folder, tmp_path / "h", config=config)
    for path in folder.glob("edges_*.h5"):
        with h5py.File(path, "a") as file:
            file.pop("weight", None)
    found = weights_by_edge(pbg_graph(None, folder, tmp_path / "h", config=factors))
    assert all(weight == (0.25 if edge[1] == "b" else 1) for edge, weight in found.items())
    factors.write_text(factors.read_text().replace("0.25", "-1"))
    with pytest.raises(FormatError, match=r"relations\[1\]\.weight"):
        pbg_graph(None, folder, tmp_path / "i", config=factors)


@pytest.mark.parametrize("longest", [1e-300, 1e300])
def test_extreme_norms(tmp_path, longest):
    peer = make(tmp_path / "p", max_norm=longest)
    with convert(peer, tmp_path) as run:
        scale = 0 if longest < 1 else 1
        np.testing.assert_array_equal(run.embedding("a1 2"), peer.rows["all", 1][2] * scale)


def test_a_plain_graph(tmp_path):
    peer = Pbg(tmp_path / "p", relations=[("follows", "all", "all", "none")])
    with convert(peer, tmp_path) as run:
        assert not run.graph.has_relations
        check_scores(peer, run)
        assert len(run.predict(head="a0 1", k=3)) == 3


@pytest.mark.parametrize(
    ("decoder", "reciprocal"), [("dot", False), ("distmult", False), ("complex", True), ("transe", False)]
)
def test_what_was_exported_of_a_graph_without_relations(tmp_path, decoder, reciprocal):
    edges = np.array([[i, (5 * i + 1) % 12] for i in range(12)])
    graph = marius_py.graph_from(edges, tmp_path / "g", split=(1, 0, 0))
    settings = {
        "model.decoder": decoder,
        "model.dim": 4,
        "model.reciprocal": reciprocal,
        "training.epochs": 1,
        "training.valid_every": 0,
    }
    pbg = tmp_path / "pbg"
    with marius_py.train(graph.path, tmp_path / "r", settings) as run:
        export(run, pbg, "pbg")
        dynamic = json.loads((pbg / "config.json").read_text())["dynamic_relations"]
        assert dynamic == (decoder != "dot")
        assert len([*pbg.glob("dynamic_rel_*")]) == 2 * dynamic
        with marius_py.load(pbg_run(pbg, graph, tmp_path / "back")) as back:
            for asked in ({"head": "5"}, {"tail": "5"}):
                assert back.predict(**asked, k=12) == run.predict(**asked, k=12)


@pytest.mark.parametrize("comparator", COMPARATORS)
@pytest.mark.parametrize("operator", OPERATORS)
def test_scores_of_dynamic_relations(tmp_path, operator, comparator):
    peer = make(tmp_path / "p", operator, comparator, dynamic=2)
    with convert(peer, tmp_path) as run:
        assert run.model.reciprocal == (operator != "none")
        check_scores(peer, run)


@pytest.mark.parametrize(
    ("operator", "comparator", "decoder"),
    [
        ("none", "dot", "dot"),
        ("diagonal", "dot", "distmult"),
        ("complex_diagonal", "dot", "complex"),
        ("linear", "dot", "rescal"),
        ("translation", "l2", "transe"),
        ("none", "l2", "transe"),
        ("translation", "squared_l2", "OperatorDecoder"),
        ("none", "squared_l2", "OperatorDecoder"),
        ("none", "cos", "OperatorDecoder"),
    ],
)
def test_scores_of_static_relations(tmp_path, operator, comparator, decoder):
    peer = make(tmp_path / "p", operator, comparator)
    with convert(peer, tmp_path) as run:
        assert run.settings["model.decoder"]["_target_"].endswith(decoder)
        assert not run.model.reciprocal
        check_scores(peer, run)


@pytest.mark.parametrize(
    ("operator", "comparator"),
    [("diagonal", "cos"), ("translation", "dot"), ("affine", "l2"), ("complex_diagonal", "squared_l2")],
)
def test_what_has_no_equal(tmp_path, operator, comparator):
    peer = make(tmp_path / "p", operator, comparator)
    with pytest.raises(ConfigError, match=f"{operator} with the comparator {comparator} has no equal"):
        convert(peer, tmp_path)
    assert not (tmp_path / "run").exists()


def test_mixed_operators(tmp_path):
    peer = Pbg(tmp_path / "p", entities=ENTITIES, relations=TYPED, dim=6)
    with convert(peer, tmp_path) as run:
        check_scores(peer, run)
    mixed = [("a", "all", "all", "diagonal"), ("b", "all", "all", "translation")]
    peer = Pbg(tmp_path / "q", relations=mixed)
    with pytest.raises(ConfigError, match="diagonal, translation; a run has one decoder"):
        convert(peer, tmp_path / "q")


@pytest.mark.parametrize("operator", ["complex_diagonal", "linear", "translation"])
def test_unpartitioned_and_identity(tmp_path, operator):
    comparator = "l2" if operator == "translation" else "dot"
    relations = [("a", "user", "tag", operator), ("b", "tag", "item", "none")]
    peer = Pbg(tmp_path / "p", entities=ENTITIES, relations=relations, comparator=comparator)
    with convert(peer, tmp_path) as run:
        check_scores(peer, run)


@pytest.mark.parametrize(
    ("operator", "comparator", "dynamic", "options"),
    [
        ("none", "dot", 0, {"bias": True}),
        ("complex_diagonal", "dot", 2, {"bias": True}),
        ("translation", "cos", 2, {"bias": True}),
        ("none", "l2", 2, {"bias": True}),
        ("diagonal", "dot", 0, {"global_emb": True}),
        ("translation", "l2", 0, {"global_emb": True, "max_norm": 1.0}),
        ("diagonal", "cos", 2, {"max_norm": 0.5}),
    ],
)
def test_bias_global_embeddings_and_norms(tmp_path, operator, comparator, dynamic, options):
    peer = make(tmp_path / "p", operator, comparator, dynamic=dynamic, **options)
    with convert(peer, tmp_path) as run:
        check_scores(peer, run)


def test_a_bias_with_a_static_operator(tmp_path):
    peer = make(tmp_path / "p", "diagonal", bias=True)
    with pytest.raises(ConfigError, match="and a bias has no equal"):
        convert(peer, tmp_path)


@pytest.mark.parametrize("what", ["no equal", "no file of embeddings"])
def test_a_model_is_refused_before_a_graph_is_made(tmp_path, capsys, what):
    peer = make(tmp_path / "p", "diagonal", bias=what == "no equal", entities={"all": (40,)})
    peer.write_edges(count=60)
    if what != "no equal":
        next(peer.model.glob("embeddings_*")).unlink()
    words = ["from=pbg", f"checkpoint={peer.model}", f"input.train={peer.folder / 'edges'}"]
    assert cli.import_([*words, f"graph={tmp_path / 'g'}", f"output={tmp_path / 'run'}"]) != 0
    assert ("has no equal here" if what == "no equal" else "is missing") in capsys.readouterr().err
    assert not (tmp_path / "g").exists()


def test_a_run_that_can_be_used_and_trained_on(tmp_path, capsys):
    peer = make(tmp_path / "p", "translation", "cos", dynamic=3, entities={"all": (40, 39)})
    peer.write_edges(count=60)
    words = ["from=pbg", f"checkpoint={peer.model}", f"input.train={peer.folder / 'edges'}"]
    words += [
        f"graph={tmp_path / 'g'}",
        f"output={tmp_path / 'run'}",
        "input.split=[0.8,0.1,0.1]",
        "partitions=4",
    ]
    assert cli.import_(words) == 0
    assert capsys.readouterr().out.splitlines() == [f"graph: {tmp_path / 'g'}", f"run: {tmp_path / 'run'}"]
    assert is_sound(verify(tmp_path / "run"))
    assert cli.evaluate([f"run={tmp_path / 'run'}"]) == 0
    assert cli.predict([str(tmp_path / "run"), "--head", "a0 1", "--relation", "rel 1"]) == 0
    captured = capsys.readouterr()
    assert "mrr" in captured.out
    assert "not finished" not in captured.err
    with marius_py.load(tmp_path / "run") as run:
        assert run.result["imported"]["from"] == "PyTorch-BigGraph"
        before = run.embedding("a0 1")
    more = ["training.epochs=1", "negatives.count=5", "training.valid_every=0", "storage.capacity=2"]
    assert cli.train([f"output={tmp_path / 'run'}", "resume=true", *more]) == 0
    with marius_py.load(tmp_path / "run") as run:
        assert run.epochs == 1
        moved = np.abs(run.embedding("a0 1") - before).max()
        assert 0 < moved < 0.5  # trained on, not begun anew
        assert "imported" not in run.result


def test_memory_is_bounded_and_passes_agree(tmp_path):
    peer = make(tmp_path / "p", entities={"all": (40, 39)})
    with convert(peer, tmp_path) as run:
        graph = run.graph
        whole = run.to_numpy()
    seen = []
    folder = pbg_run(
        peer.model, graph, tmp_path / "small", memory_bytes=1, progress=lambda *call: seen.append(call)
    )
    with open_node_reader(folder / "checkpoint") as reader:
        np.testing.assert_array_equal(reader.read_rows(0, 79), whole)
    assert [call[1] for call in seen] == [40, 79, 119, 158, 198, 237]
    assert {call[2] for call in seen} == {237}


@pytest.mark.parametrize("decoder", ["dot", "distmult", "complex", "transe"])
def test_exported_and_imported_again(tmp_path, decoder):
    folder, graph, rows, relations = write_run(tmp_path, decoder=decoder, reciprocal=decoder != "dot")
    export(folder, tmp_path / "pbg", "pbg", relations=decoder != "dot")
    with marius_py.load(pbg_run(tmp_path / "pbg", graph, tmp_path / "again")) as run:
        np.testing.assert_array_equal(run.to_numpy(), rows)
        if decoder != "dot":
            np.testing.assert_array_equal(run.relations()[1], relations)


def test_another_graph(tmp_path, caplog):
    peer = make(tmp_path / "p")
    graph = marius_py.graph_from(
        [("a0 0", "b", "a1 2"), ("a0 1", "b", "a0 0")], tmp_path / "g", split=(1, 0, 0)
    )
    with marius_py.load(pbg_run(peer.model, graph, tmp_path / "run")) as run:
        np.testing.assert_array_equal(run.embedding("a1 2"), peer.rows["all", 1][2])
    assert "4 of 7 embeddings are of no node" in caplog.text
    graph = marius_py.graph_from([("a0 0", "b", "Oslo")], tmp_path / "h", split=(1, 0, 0))
    with pytest.raises(FormatError, match=r"1 of the 2 nodes .* have no embedding there, such as 'Oslo'"):
        pbg_run(peer.model, graph, tmp_path / "no")
    graph = marius_py.graph_from([("a0 0", "c", "a0 1")], tmp_path / "i", split=(1, 0, 0))
    with pytest.raises(FormatError, match=r"1 of the 1 relations .* such as 'c'"):
        pbg_run(peer.model, graph, tmp_path / "no")
    assert not (tmp_path / "no").exists()


# ---------------------------------------------------------------------- damaged and half-written input


def truncate(path):
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def rewrite(path, **data):
    with h5py.File(path, "w") as file:
        file.attrs["format_version"] = 1
        for name, values in data.items():
            file[name.replace("__", "/")] = values


def change_config(peer, **changes):
    values = json.loads((peer.model / "config.json").read_text()) | changes
    (peer.model / "config.json").write_text(json.dumps(values))


DAMAGE = {
    "half a configuration": (lambda p: truncate(p.model / "config.json"), "half-written"),
    "a list": (lambda p: (p.model / "config.json").write_text("[]"), "not a JSON object"),
    "no version": (
        lambda p: (p.model / "checkpoint_version.txt").unlink(),
        "checkpoint_version.txt is missing",
    ),
    "no version yet": (
        lambda p: (p.model / "checkpoint_version.txt").write_text(""),
        "no checkpoint was compl",
    ),
    "half a table": (
        lambda p: truncate(p.model / "embeddings_all_1.v3.h5"),
        "half-written: it cannot be read as HDF5",
    ),
    "no table": (lambda p: (p.model / "embeddings_all_1.v3.h5").unlink(), r"_1\.v3\.h5 is missing"),
    "rows lack": (
        lambda p: rewrite(p.model / "embeddings_all_1.v3.h5", embeddings=np.zeros((2, 4), np.float32)),
        r"embeddings has shape \(2, 4\).*expected 3×4",
    ),
    "another width": (lambda p: change_config(p, dimension=6), "expected 4×6"),
    "no parameters": (lambda p: rewrite(p.model / "model.v3.h5"), "no data set model/relations/0/operator"),
    "half a model": (lambda p: truncate(p.model / "model.v3.h5"), "half-written"),
    "another count": (
        lambda p: (p.folder / "entities" / "entity_count_all_0.txt").write_text("5"),
        "4 names, but there are 5|expected 5×4",
    ),
    "no count": (lambda p: (p.folder / "entities" / "entity_count_all_1.txt").unlink(), "_1.txt is missing"),
    "no number": (
        lambda p: (p.folder / "entities" / "entity_count_all_1.txt").write_text("x"),
        "holds b'x'; it should hold",
    ),
    "a long number": (
        lambda p: (p.folder / "entities" / "entity_count_all_1.txt").write_text("9" * 5000),
        "up to 15 digits",
    ),
    "a long version": (
        lambda p: (p.model / "checkpoint_version.txt").write_text("9" * 5000),
        "names no version",
    ),
    "no values": (
        lambda p: rewrite(p.model / "embeddings_all_1.v3.h5", embeddings=h5py.Empty("f4")),
        "embeddings has shape None",
    ),
    "half a character": (
        lambda p: (p.folder / "entities" / "entity_names_all_1.json").write_text('["a", "\\ud800", "c"]'),
        r"name 1 of all entities is '\\ud800'; allowed: a text in UTF-8",
    ),
    "a long max_norm": (lambda p: change_config(p, max_norm=10**400), "max_norm is 10*…; allowed: a finite"),
    "no end of max_norm": (
        lambda p: change_config(p, max_norm=float("inf")),
        "max_norm is inf; allowed: a finite number above 0, or null",
    ),
    "a great dimension": (
        lambda p: change_config(p, dimension=10**15, comparator="l2"),
        "expected 4×1000000000000000",
    ),
    "a flag in text": (lambda p: change_config(p, bias="false"), "bias is 'false'; allowed: true, false"),
    "a nameless relation": (
        lambda p: change_config(p, relations=[p.config["relations"][0] | {"name": None}]),
        r"relations\[0\].name is None; allowed: a text",
    ),
    "half the names": (lambda p: truncate(p.folder / "entities" / "entity_names_all_0.json"), "half-written"),
    "python": (lambda p: change_config(p, comparator="mine"), "comparator is 'mine'; allowed: dot, cos"),
    "features": (
        lambda p: change_config(p, entities={"all": {"num_partitions": 2, "featurized": True}}),
        "features have no equal",
    ),
    "a path": (
        lambda p: change_config(p, entities={"../x": {"num_partitions": 2}}),
        "cannot be part of a file's name",
    ),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_damaged_checkpoints(tmp_path, capsys, what):
    peer = make(tmp_path / "p")
    edges = [("a0 0", "b", "a1 2")]
    graph = marius_py.graph_from(edges, tmp_path / "g", split=(1, 0, 0))
    damage, message = DAMAGE[what]
    damage(peer)
    with pytest.raises((StorageError, FormatError), match=message):
        pbg_run(peer.model, graph, tmp_path / "run")
    words = ["from=pbg", f"checkpoint={peer.model}", f"graph={tmp_path / 'g'}", f"output={tmp_path / 'run'}"]
    assert cli.import_(words) == 1
    error = capsys.readouterr().err
    assert error.count("error: ") == 1
    assert "Traceback" not in error
    assert not (tmp_path / "run").exists()


def test_a_version_without_files_is_a_wrong_setting(tmp_path, capsys):
    peer = make(tmp_path / "p")
    graph = marius_py.graph_from([("a0 0", "b", "a1 2")], tmp_path / "g", split=(1, 0, 0))
    message = r"version=9: .* holds no file of that version; there are 3"
    with pytest.raises(ConfigError, match=message):
        pbg_run(peer.model, graph, tmp_path / "run", version=9)
    words = ["from=pbg", f"checkpoint={peer.model}", f"graph={tmp_path / 'g'}", f"output={tmp_path / 'run'}"]
    assert cli.import_([*words, "version=9"]) == 2
    assert "version=9" in capsys.readouterr().err
    (peer.model / "model.v3.h5").unlink()
    with pytest.raises(StorageError, match=r"model\.v3\.h5 is missing"):
        pbg_run(peer.model, graph, tmp_path / "run", version=3)


def of_unknown_type(path):
    rewrite(path)
    with h5py.File(path, "a") as file:
        for name in (b"lhs", b"rhs", b"rel"):
            h5py.h5d.create(file.id, name, h5py.h5t.UNIX_D32LE, h5py.h5s.create_simple((1,)))


def test_damaged_edges(tmp_path):
    peer = make(tmp_path / "p")
    peer.write_edges()
    good = (peer.folder / "edges" / "edges_1_0.h5").read_bytes()
    one = np.array([0])
    cases = [
        (lambda path: truncate(path), "half-written"),
        (lambda path: rewrite(path, lhs=one, rhs=one), "no data set rel"),
        (lambda path: rewrite(path, lhs=np.array([0, 1]), rhs=one, rel=one), r"lhs has shape \(2,\)"),
        (
            lambda path: rewrite(path, lhs=np.array([3]), rhs=one, rel=one),
            "edge 0: lhs is 3; the partition has 3",
        ),
        (lambda path: rewrite(path, lhs=one, rhs=one, rel=np.array([2])), "relation 2; allowed: 0 to 1"),
        (lambda path: rewrite(path, lhs=np.array([0.5]), rhs=one, rel=one), "float64"),
        (lambda path: rewrite(path, lhs=one, rhs=one, rel=h5py.Empty("i8")), "rel has shape None"),
        (of_unknown_type, "half-written: it cannot be read as HDF5"),
        (lambda path: path.rename(path.with_name("edges_2_0.h5")), "partition 2 on side lhs; all has 2"),
        (lambda path: path.write_bytes(pickle.dumps([1])), "half-written"),
    ]
    for damage, message in cases:
        path = peer.folder / "edges" / "edges_1_0.h5"
        damage(path)
        with pytest.raises(FormatError, match=message):
            pbg_graph(None, peer.folder / "edges", tmp_path / "g", config=peer.model / "config.json")
        (peer.folder / "edges" / "edges_2_0.h5").unlink(missing_ok=True)
        path.write_bytes(good)
    assert not (tmp_path / "g").exists()
    graph = pbg_graph(None, peer.folder / "edges", tmp_path / "g", config=peer.model / "config.json")
    assert graph.num_nodes == 7


@pytest.mark.parametrize("names", [["rel 0", "rel 0"], ["", "b"], [True, "b"], ["a\0", "b"]])
def test_damaged_names_of_relations(tmp_path, names):
    peer = make(tmp_path / "p", dynamic=2)
    (peer.folder / "entities" / "dynamic_rel_names.json").write_text(json.dumps(names))
    graph = marius_py.graph_from([("a0 0", "rel 0", "a1 2")], tmp_path / "g", split=(1, 0, 0))
    with pytest.raises(FormatError, match=r"a name twice|allowed: a text in UTF-8"):
        pbg_run(peer.model, graph, tmp_path / "run")


def test_links_out_of_a_file_are_not_followed(tmp_path):
    peer = make(tmp_path / "p")
    graph = marius_py.graph_from([("a0 0", "b", "a1 2")], tmp_path / "g", split=(1, 0, 0))
    secret = tmp_path / "secret.h5"
    rewrite(secret, embeddings=np.zeros((3, 4), np.float32))
    path = peer.model / "embeddings_all_1.v3.h5"
    rewrite(path)
    with h5py.File(path, "a") as file:
        file["embeddings"] = h5py.ExternalLink(str(secret), "embeddings")
    with pytest.raises(FormatError, match="a link out of the file"):
        pbg_run(peer.model, graph, tmp_path / "run")
    rewrite(path)
    with h5py.File(path, "a") as file:
        layout = h5py.VirtualLayout((3, 4), np.float32)
        layout[:] = h5py.VirtualSource(str(secret), "embeddings", (3, 4))
        file.create_virtual_dataset("embeddings", layout)
    with pytest.raises(FormatError, match="no data set that lies in this file"):
        pbg_run(peer.model, graph, tmp_path / "run")


def test_configurations_in_python_are_not_run(tmp_path):
    (tmp_path / "config.py").write_text("raise SystemExit")
    with pytest.raises(ConfigError, match="Python code, which is not run"):
        pbg_graph(None, tmp_path, tmp_path / "g", config=tmp_path / "config.py")
    with pytest.raises(ConfigError, match="entities=DIR"):
        pbg_graph(None, tmp_path, tmp_path / "g")
    peer = make(tmp_path / "p")
    peer.write_edges()
    with pytest.raises(ConfigError, match=r"no dynamic_rel_count\.txt"):
        pbg_graph(peer.folder / "entities", peer.folder / "edges", tmp_path / "g")


def test_the_graph_stays_when_the_run_fails(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise StorageError("the disk is full")

    monkeypatch.setattr("marius_py.importing.pbg.write_run", fail)
    peer = make(tmp_path / "p")
    peer.write_edges()
    words = ["from=pbg", f"checkpoint={peer.model}", f"input.train={peer.folder / 'edges'}"]
    assert cli.import_([*words, f"graph={tmp_path / 'g'}", f"output={tmp_path / 'run'}"]) == 1
    assert open_graph(tmp_path / "g").num_nodes == 7
    assert not (tmp_path / "run").exists()
