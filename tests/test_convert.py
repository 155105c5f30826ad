"""Objects of other libraries become the graphs that they are, and runs can be trained on them directly."""

import warnings
from functools import partial
from types import SimpleNamespace

import networkx as nx
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import marius_py
from marius_py.convert import graph_from
from marius_py.errors import ConfigError, FormatError
from marius_py.prepare import prepare
from marius_py.storage.weighted import weights_of

TRIPLES = [("a", "likes", "b"), ("b", "knows", "c"), ("c", "likes", "a"), ("a", "knows", "d")]


def named_edges(graph, split="train"):
    nodes, relations = graph.node_names(), graph.relation_names()
    with graph.edges() as edges:
        found = edges.read(split)
    return sorted((nodes[h], relations[r], nodes[t]) for h, r, t in found.tolist())


def columns():
    return dict(zip(("head", "relation", "tail"), map(list, zip(*TRIPLES, strict=True)), strict=True))


@pytest.mark.parametrize(
    "data",
    [
        pd.DataFrame(columns()),
        pd.DataFrame({"weight": 1.0, **columns()}),
        pl.DataFrame(columns()),
        pa.table(columns()),
        pa.RecordBatch.from_pydict(columns()),
        TRIPLES,
        [tuple(map(str.encode, edge)) for edge in TRIPLES],
        np.array(TRIPLES),
        np.array(TRIPLES).astype("S"),
        nx.MultiDiGraph([(h, t, {"relation": r}) for h, r, t in TRIPLES]),
    ],
    ids=[
        "pandas", "pandas-more", "polars", "arrow", "batch", "list", "bytes", "array", "array-S", "networkx",
    ],
)  # fmt: skip
def test_the_same_graph_from_everything(tmp_path, data):
    graph = graph_from(data, tmp_path / "g", split=(1, 0, 0))
    assert named_edges(graph) == sorted(TRIPLES)


def test_without_relations(tmp_path):
    pairs = np.array([[10, 7], [7, 10**12], [3, 10]])
    graph = graph_from(pairs, tmp_path / "g", split=(1, 0, 0))
    assert not graph.has_relations
    assert named_edges(graph) == sorted((str(h), "", str(t)) for h, t in pairs.tolist())
    texts = [(f"{h} ", f"{t}") for h, t in pairs.tolist()]
    (tmp_path / "e.tsv").write_text("".join(f"{h}\t{t}\n" for h, t in texts))
    from_file = prepare(tmp_path / "e.tsv", tmp_path / "f", split=(1, 0, 0), header=False)
    assert graph_from(texts, tmp_path / "t", split=(1, 0, 0)).fingerprint == from_file.fingerprint
    network = nx.path_graph(4)
    network.add_node("alone")
    graph = graph_from(network, tmp_path / "n", split=(1, 0, 0))
    assert sorted(graph.node_names()) == ["0", "1", "2", "3", "alone"]
    assert graph.num_edges["train"] == 3


def test_given_splits_and_columns(tmp_path):
    frame = pd.DataFrame({"to": ["b", "c"], "from": ["a", "b"]})
    graph = graph_from(frame, tmp_path / "g", test=pd.DataFrame({"to": ["new"], "from": ["a"]}))
    assert named_edges(graph, "test") == [("a", "", "new")]
    frame = pd.DataFrame({"x": ["a", "b"], "y": ["b", "c"]})
    graph = graph_from(frame, tmp_path / "h", columns=["y", "x"], split=(1, 0, 0))
    assert named_edges(graph) == [("b", "", "a"), ("c", "", "b")]


def test_columns_that_are_chosen_twice(tmp_path):
    frame = pd.DataFrame({"head": ["a"], "tail": ["b"]})
    with pytest.raises(ConfigError, match="'head' is there twice"):
        graph_from(frame, tmp_path / "g", columns=["head", "head"])
    with pytest.raises(ConfigError, match="data is None"):
        graph_from(None, tmp_path / "g", valid=frame)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "columns",
    [
        {"s", "p", "o"},
        frozenset("spo"),
        {"o": "tail", "s": "head", "p": "relation"},
        5,
        np.array("spo"),
        b"spo",
        "spo",
        "s,p,o",
    ],
)
def test_columns_without_an_order_are_refused(tmp_path, columns):
    frame = pd.DataFrame({"s": ["a", "b"], "p": ["r", "r"], "o": ["b", "c"]})
    frame.to_csv(tmp_path / "edges.csv", index=False)
    said = rf"columns is .*, of type {type(columns).__name__}; allowed: a list, in the order head"
    for make in (partial(graph_from, frame), partial(prepare, tmp_path / "edges.csv")):
        with pytest.raises(ConfigError, match=said):
            make(tmp_path / "g", columns=columns, overwrite=True)
        assert make(tmp_path / "g", columns=dict.fromkeys("spo").keys(), overwrite=True).num_relations == 1


def test_a_frame_may_have_columns_that_a_hetero_data_has(tmp_path):
    frame = pd.DataFrame({"s": ["a"], "edge_types": ["r"], "o": ["b"], "node_types": ["x"]})
    graph = graph_from(frame, tmp_path / "g", columns=["s", "edge_types", "o"], split=(1, 0, 0))
    assert graph.relation_names() == ["r"]


@pytest.mark.parametrize("columns", [np.array([2, 0, 1]), [np.int64(2), 0, 1], np.array(["s", "p", "o"])])
def test_columns_may_be_numbers_and_texts_of_numpy(tmp_path, columns):
    frame = pd.DataFrame({"p": ["r", "r"], "o": ["b", "c"], "s": ["a", "b"], "w": [1.0, 2.0]})
    frame.to_csv(tmp_path / "edges.csv", index=False)
    for options in ({}, {"weight": "w"}):
        options |= {"header": True, "overwrite": True}
        graph = prepare(tmp_path / "edges.csv", tmp_path / "g", columns=columns, **options)
        assert named_edges(graph) == [("a", "r", "b"), ("b", "r", "c")]
    if isinstance(columns[0], str):
        graph = graph_from(frame, tmp_path / "f", columns=columns, weight="w", split=(1, 0, 0))
        assert named_edges(graph) == [("a", "r", "b"), ("b", "r", "c")]


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, pa.table])
def test_frame_columns_that_are_no_relation_are_left_out_and_logged(tmp_path, caplog, make):
    frame = make({"weight": [1, 2], "Target": ["b", "c"], "index": [0, 1], "source": ["a", "b"]})
    with caplog.at_level("INFO", logger="marius_py.prepare"):
        graph = graph_from(frame, tmp_path / "g", split=(1, 0, 0))
    assert named_edges(graph) == [("a", "", "b"), ("b", "", "c")]
    line, weight = caplog.messages
    assert "'source'" in line.partition("left out")[0]
    assert "left out: 'weight' and 'index'" in line
    assert "prepare the graph with input.weight=weight (weight='weight' in Python)" in weight


def test_names_that_are_no_text(tmp_path):
    with pytest.raises(FormatError, match=r"the name b'\\xff' is no valid UTF-8"):
        graph_from(np.array([[b"\xff", b"a"]]), tmp_path / "g")
    with pytest.raises(ConfigError, match=r"^train, edge 1 .*: the tail is 'a\\udc80', which UTF-8"):
        graph_from([("é", "b"), ("b", "a\udc80")], tmp_path / "g")
    with pytest.raises(ConfigError, match=r"^train, edge 0 .*: the head is 'a\\x00b', which holds a NUL"):
        graph_from([("a\0b", "c")], tmp_path / "g")
    with pytest.raises(ConfigError, match=r"^test, edge 0 .*: the relation is 'r\\x00', which holds a NUL"):
        graph_from([("a", "r", "b")], tmp_path / "g", test=[("a", "r\0", "b")])
    alone = nx.DiGraph([("a", "b")])
    alone.add_node("c\0")
    with pytest.raises(ConfigError, match=r"^a node's name is 'c\\x00', which holds a NUL"):
        graph_from(alone, tmp_path / "g")
    assert not list(tmp_path.iterdir())


def test_a_third_column_may_hold_weights(tmp_path):
    frame = pd.DataFrame({"head": ["a", "b"], "tail": ["b", "c"], "rating": [1, 5]})
    with pytest.raises(ConfigError, match=r"'tail'\], where weight='rating' lets edges count"):
        graph_from(frame, tmp_path / "g")
    graph = graph_from(
        frame, tmp_path / "g", columns=["head", "tail"], weight="rating", split=(1, 0, 0), partitions=1
    )
    assert graph.mean_weight == 3


@pytest.mark.parametrize(
    "names", [["relation", "tail"], ["a", "Head"], ["a", "b", "type"], ["Edge Type", "b"]]
)
@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, pa.table])
def test_the_order_of_columns_does_not_make_one_another_than_its_name_says(tmp_path, names, make):
    frame = make({name: ["x", "y"] for name in names})
    with pytest.raises(ConfigError, match=r"would be the .*Choose with columns="):
        graph_from(frame, tmp_path / "g")
    graph = graph_from(frame, tmp_path / "g", columns=names, split=(1, 0, 0))
    assert graph.has_relations == (len(names) == 3)


def test_an_index_with_a_name_may_be_a_part_of_the_edges(tmp_path):
    frame = pd.DataFrame(columns())
    for names in (["head"], ["relation"], ["head", "relation"]):
        with pytest.raises(
            ConfigError, match=rf"index has the name '{names[0]}'.*call reset_index\(\) first"
        ):
            graph_from(frame.set_index(names), tmp_path / "g")
    graph = graph_from(frame.set_index("relation"), tmp_path / "g", columns=["head", "tail"], split=(1, 0, 0))
    assert not graph.has_relations
    named = frame.rename_axis("ID")  # plainly no part of an edge
    assert named_edges(graph_from(named, tmp_path / "h", split=(1, 0, 0))) == sorted(TRIPLES)


def test_an_index_in_a_table_is_no_column(tmp_path):
    plain = pd.DataFrame(columns()).set_axis(["x", "y", "z"], axis=1).set_axis([5, 7, 6, 8])  # no range
    named = plain.rename_axis("edge")
    for table in (pa.Table.from_pandas(named[["x", "z"]]), pa.Table.from_pandas(named)):
        with pytest.raises(ConfigError, match=r"'edge' was the index .* of 'x', .*'z', 'edge' with columns="):
            graph_from(table, tmp_path / "g")
    graph = graph_from(pa.Table.from_pandas(plain), tmp_path / "g", split=(1, 0, 0))
    assert named_edges(graph) == sorted(TRIPLES)


@pytest.mark.parametrize(
    "name", [torch.tensor(1), np.array([1]), np.array(1)], ids=["tensor", "array", "array of no dimension"]
)
def test_arrays_and_tensors_are_no_names(tmp_path, name):
    with pytest.raises(ConfigError, match=r"a name is .*; names are texts or numbers: .* \.tolist\(\)"):
        graph_from([(name, 2), (np.int64(2), 3)], tmp_path / "g")
    assert not list(tmp_path.iterdir())


@pytest.mark.filterwarnings("ignore:the matrix subclass")
def test_a_matrix_is_an_array(tmp_path):
    graph = graph_from(np.matrix([[1, 2], [3, 4]]), tmp_path / "g", split=(1, 0, 0))
    assert named_edges(graph) == [("1", "", "2"), ("3", "", "4")]


def test_attributes_of_edges_are_no_names(tmp_path):
    graph = nx.Graph([("a", "b", {"weight": 2}), ("b", "c", {"weight": 1})])
    message = r"a name is \{'weight': 2\}, of type dict; names are texts or numbers: leave out what is no"
    for data in (list(graph.edges(data=True)), pd.DataFrame(graph.edges(data=True))):
        with pytest.raises(ConfigError, match=message):
            graph_from(data, tmp_path / "graph")


def test_of_many_columns_a_message_shows_some(tmp_path):
    wide = pd.DataFrame(np.ones((2, 900)), columns=[f"i{number}" for number in range(900)])
    for frame in (wide, wide.rename_axis("user")):
        with pytest.raises(ConfigError, match=r"'i0', .* 'i11', … \(900 in all\)") as caught:
            graph_from(frame, tmp_path / "graph")
        assert len(str(caught.value)) < 400


def test_an_array_stored_by_rows_is_told_of(tmp_path):
    with pytest.raises(ConfigError, match=r"shape \(2, 9\); edges need \(E, 3\) .* give array\.T$"):
        graph_from(np.zeros((2, 9), dtype=np.int64), tmp_path / "graph")
    with pytest.raises(ConfigError, match=r"shape \(9, 9\); edges need \(E, 3\) or \(E, 2\)$"):
        graph_from(np.zeros((9, 9), dtype=np.int64), tmp_path / "graph")


@pytest.mark.parametrize("empty", [[], np.empty((0, 3), np.int64), pd.DataFrame({"head": [], "tail": []})])
def test_no_edges(tmp_path, empty):
    with pytest.raises(FormatError, match=r"^train has no edges"):
        graph_from(empty, tmp_path / "g")
    with pytest.raises(FormatError, match=r"^valid has no edges"):
        graph_from(TRIPLES, tmp_path / "g", valid=empty)


@pytest.mark.parametrize(
    ("name", "owner", "kinds"),
    [
        ("columns", "a pandas or polars frame", ["array", "list", "networkx", "pyg", "hetero"]),
        ("node_names", "a PyG Data", ["array", "list", "frame", "networkx", "hetero"]),
        ("relation", "a NetworkX graph", ["array", "list", "frame", "pyg", "hetero"]),
    ],
)
def test_arguments_without_effect_are_refused(tmp_path, name, owner, kinds):
    index = torch.tensor([[0], [1]])
    objects = {
        "array": np.array([[10, 20, 30]]),
        "list": [(0, 1)],
        "frame": pd.DataFrame(columns()),
        "networkx": nx.path_graph(3),
        "pyg": SimpleNamespace(edge_index=index),
        "hetero": hetero({"buys": index}),
    }
    for kind in kinds:
        message = f"{name}= has no effect on {type(objects[kind]).__name__}: it belongs to {owner}"
        with pytest.raises(ConfigError, match=message):
            graph_from(objects[kind], tmp_path / "g", **{name: ["x", "y"]})


def test_networkx_relations_of_a_name(tmp_path):
    network = nx.DiGraph([("a", "b", {"kind": "r"}), ("b", "c", {"kind": "s"})])
    graph = graph_from(network, tmp_path / "g", relation="kind", split=(1, 0, 0))
    assert named_edges(graph) == [("a", "r", "b"), ("b", "s", "c")]
    with pytest.raises(ConfigError, match="0 of 2 edges have the attribute 'kinds'; all should"):
        graph_from(network, tmp_path / "h", relation="kinds")
    with pytest.raises(ConfigError, match="relation is of type list; allowed: the name of what holds"):
        graph_from(network, tmp_path / "h", relation=["kind"])


@pytest.mark.parametrize("name", ["type", "Edge Type"])
def test_networkx_relations_of_a_usual_name(tmp_path, caplog, name):
    network = nx.DiGraph([("a", "b", {name: "r", "weight": 2}), ("b", "c", {name: "s"})])
    with caplog.at_level("INFO", logger="marius_py.convert.named"):
        graph = graph_from(network, tmp_path / "g", split=(1, 0, 0))
    assert named_edges(graph) == [("a", "r", "b"), ("b", "s", "c")]
    told = [one.message for one in caplog.records if one.name == "marius_py.convert.named"]
    assert told == [f"the NetworkX graph: relation {name!r}; left out of its edges: 'weight'"]
    for edge in network.edges:
        network.edges[edge]["relation"] = "first"
    graph = graph_from(network, tmp_path / "h", split=(1, 0, 0))
    assert graph.relation_names() == ["first"]


def test_networkx_relations_that_are_unclear(tmp_path):
    edges = [("a", "b", {"type": "r", "label": "x"}), ("b", "c", {"type": "s", "label": "y"})]
    with pytest.raises(ConfigError, match=r"'type', 'label', which could each be .* with relation="):
        graph_from(nx.DiGraph(edges), tmp_path / "g")
    graph = graph_from(nx.DiGraph(edges), tmp_path / "g", relation="label", split=(1, 0, 0))
    assert named_edges(graph) == [("a", "x", "b"), ("b", "y", "c")]
    with pytest.raises(ConfigError, match="1 of 2 edges have the attribute 'kind'; all or none should"):
        graph_from(nx.DiGraph([("a", "b", {"kind": "r"}), ("b", "c")]), tmp_path / "h")
    with pytest.raises(ConfigError, match=r"'r' has a usual name .* floats, such as 0\.5: rename it"):
        graph_from(nx.DiGraph([("a", "b", {"r": 0.5})]), tmp_path / "h")


def test_networkx_keys_are_left_out_and_said_to_be(tmp_path, caplog):
    network = nx.MultiDiGraph([(head, tail, relation) for head, relation, tail in TRIPLES])
    caplog.set_level("WARNING", logger="marius_py")
    assert not graph_from(network, tmp_path / "g", split=(1, 0, 0)).has_relations
    (line,) = caplog.messages
    assert "the keys of edges, such as 'likes', are left out" in line
    names = {"networkx": nx, "graph": network}
    exec(line[line.index("networkx.") :], names)
    caplog.clear()
    graph = graph_from(network, tmp_path / "h", split=(1, 0, 0))
    assert named_edges(graph) == sorted(TRIPLES)
    plain = nx.MultiDiGraph([(1, 2), (1, 2)])
    graph_from(plain, tmp_path / "i", split=(1, 0, 0))
    assert not caplog.messages


def test_pyg(tmp_path):
    data = SimpleNamespace(
        edge_index=torch.tensor([[0, 1, 2], [1, 2, 0]]), edge_type=torch.tensor([0, 1, 0]), num_nodes=5
    )
    graph = graph_from(data, tmp_path / "g", split=(1, 0, 0))
    assert graph.num_nodes == 5
    assert named_edges(graph) == [("0", "0", "1"), ("1", "1", "2"), ("2", "0", "0")]
    with pytest.raises(ConfigError, match="node_names is of type dict; allowed: a list of names"):
        graph_from(data, tmp_path / "m", node_names={"b": 1, "a": 0})
    graph = graph_from(data, tmp_path / "n", split=(1, 0, 0), node_names=list("abcde"))
    assert named_edges(graph) == [("a", "0", "b"), ("b", "1", "c"), ("c", "0", "a")]


@pytest.mark.parametrize("num_nodes", [None, 0, 3])
def test_pyg_without_edges(tmp_path, num_nodes):
    """PyG says num_nodes=0 where nothing tells of nodes."""
    empty = SimpleNamespace(edge_index=torch.zeros(2, 0, dtype=torch.int64), num_nodes=num_nodes)
    with pytest.raises(FormatError, match=r"^train has no edges$"):
        graph_from(empty, tmp_path / "g")
    data = SimpleNamespace(edge_index=torch.tensor([[0], [1]]), num_nodes=2)
    with pytest.raises(FormatError, match=r"^valid has no edges$"):
        graph_from(data, tmp_path / "g", valid=empty)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"edge_index": None}, "edge_index of train is missing; allowed: integers of shape"),
        ({"edge_index": torch.zeros(4, 2, dtype=torch.int64)}, r"edge_index of train has shape \(4, 2\)"),
        ({"edge_index": torch.zeros(2, 3)}, r"shape \(2, 3\) and type float32; allowed: integers"),
        ({"edge_index": torch.tensor([[0, -1], [1, 0]])}, "holds the number -1; allowed: numbers from 0"),
        ({"edge_type": torch.tensor([0.5, 1.5])}, r"edge_type of train has shape \(2,\) and type float32"),
        (
            {"edge_type": torch.tensor([0])},
            r"has shape \(1,\) and type int64; allowed: integers of shape \(2,\)",
        ),
        ({"edge_type": torch.tensor([[0], [1]])}, r"edge_type of train has shape \(2, 1\)"),
        ({"num_nodes": 10}, "num_nodes is 10, but node_names has 3"),
    ],
)
def test_pyg_of_wrong_shape_or_type(tmp_path, attributes, message):
    data = SimpleNamespace(**{"edge_index": torch.tensor([[0, 1], [1, 2]]), **attributes})
    with pytest.raises(ConfigError, match=message):
        graph_from(data, tmp_path / "g", split=(1, 0, 0), node_names=["a", "b", "c"])


def link_split(index, asked, negatives=(), **attributes):
    """A Data such as RandomLinkSplit makes, of edges (head, tail)."""
    label = torch.tensor([1.0] * len(asked) + [0.0] * len(negatives))
    return SimpleNamespace(
        edge_index=torch.tensor(index).T,
        edge_label_index=torch.tensor([*asked, *negatives]).T,
        edge_label=label,
        num_nodes=6,
        **attributes,
    )


def pairs_of(graph, split):
    return [(int(head), int(tail)) for head, _, tail in named_edges(graph, split)]


@pytest.mark.parametrize(
    "asked",
    [[(0, 1), (1, 2), (2, 3)], [(2, 3)], [(2, 3), (4, 4), (0, 1)]],
    ids=["shared", "undirected", "disjoint"],
)
def test_pyg_ranks_the_edges_that_a_link_split_asks_for(tmp_path, caplog, asked):
    message = [(0, 1), (1, 2), (2, 3)]
    train = link_split(message, asked, [(5, 5), (5, 4)])
    valid = link_split(message, [(3, 4)], [(0, 5)])
    test = link_split([*message, (3, 4)], [(4, 5), (5, 0)], [(1, 5), (1, 4)])
    del test.edge_label_index, test.edge_label
    test.pos_edge_label_index = torch.tensor([[4, 5], [5, 0]])  # as with split_labels=True
    with caplog.at_level("INFO", logger="marius_py.convert.pyg"):
        graph = graph_from(train, tmp_path / "g", valid=valid, test=test)
    assert pairs_of(graph, "train") == sorted({*message, *asked})
    assert pairs_of(graph, "valid") == [(3, 4)]
    assert pairs_of(graph, "test") == [(4, 5), (5, 0)]
    assert "valid: left out of edge_label_index: 1 of 2 edges" in caplog.text
    told = "train: 2 of 3 edges of edge_label_index are in edge_index too" in caplog.text
    assert told is ((4, 4) in asked)
    del valid.edge_label
    graph = graph_from(train, tmp_path / "h", valid=valid)
    assert pairs_of(graph, "valid") == [(0, 5), (3, 4)]


def test_pyg_link_splits_that_are_unclear(tmp_path):
    message = [(0, 1), (1, 2)]
    types = torch.tensor([0, 1])
    train = link_split(message, message, edge_type=types)
    graph = graph_from(train, tmp_path / "g", split=(1, 0, 0))
    assert named_edges(graph) == [("0", "0", "1"), ("1", "1", "2")]
    refusal = "{} has edges in edge_label_index, .* edge_type does not say their relations"
    for split, other in (("valid", train), ("test", link_split(message, [(2, 3)], edge_type=types))):
        with pytest.raises(ConfigError, match=refusal.format(split)):
            graph_from(train, tmp_path / "h", **{split: other})
    with pytest.raises(ConfigError, match=refusal.format("train")):
        graph_from(link_split(message, [(2, 3)], edge_type=types), tmp_path / "h")
    train.edge_label = torch.ones(2, 3)
    with pytest.raises(ConfigError, match=r"edge_label of train has shape \(2, 3\) .* of shape \(2,\)"):
        graph_from(train, tmp_path / "h")
    train.edge_label_index = torch.ones(2)
    with pytest.raises(ConfigError, match=r"edge_label_index of train has shape \(2,\)"):
        graph_from(train, tmp_path / "h")


class Hetero(dict):
    node_types = ("user", "item")
    edge_types = (("user", "buys", "item"), ("user", "knows", "user"))


def hetero(indices, num_nodes=None, types=("user", "item")):
    """A HeteroData of relations {"buys": edges, …}, users and items, with node types in this order."""
    data = Hetero({kind: SimpleNamespace(num_nodes=(num_nodes or {}).get(kind)) for kind in types})
    data.node_types = types
    data.edge_types = [("user", name, "user" if name == "knows" else "item") for name in indices]
    for kind in data.edge_types:
        data[kind] = SimpleNamespace(edge_index=torch.as_tensor(indices[kind[1]]))
    return data


@pytest.mark.parametrize(
    "valid",
    [
        hetero({"buys": [[3, 1], [0, 2]]}),
        hetero({"buys": [[3, 1], [0, 2]]}, {"user": 4, "item": 3}, ("item", "user")),
        hetero({"knows": torch.empty((2, 0), dtype=torch.int64), "buys": [[3, 1], [0, 2]]}, {"item": 3}),
    ],
    ids=["inferred", "stated-other-order", "more-relations"],
)
def test_hetero_splits_number_nodes_alike(tmp_path, valid):
    train = hetero({"buys": [[0, 5, 2], [0, 1, 2]]})
    graph = graph_from(train, tmp_path / "g", valid=valid, test=hetero({"buys": [[7], [4]]}))
    assert named_edges(graph) == [(f"user/{u}", "buys", f"item/{i}") for u, i in ((0, 0), (2, 2), (5, 1))]
    assert named_edges(graph, "valid") == [("user/1", "buys", "item/2"), ("user/3", "buys", "item/0")]
    assert named_edges(graph, "test") == [("user/7", "buys", "item/4")]
    assert sorted(graph.node_names()) == sorted(
        [f"user/{i}" for i in range(8)] + [f"item/{i}" for i in range(5)]
    )


def test_hetero_of_wrong_shape_or_without_edges(tmp_path):
    with pytest.raises(
        ConfigError, match=r"edge_index of \('user', 'buys', 'item'\) in train has shape \(3, 2\)"
    ):
        graph_from(hetero({"buys": [[0, 1], [2, 0], [1, 1]]}), tmp_path / "g")
    with pytest.raises(FormatError, match="train has no edges"):
        graph_from(hetero({}), tmp_path / "g")
    with pytest.raises(ConfigError, match="different kinds"):
        graph_from(hetero({"buys": [[0], [0]]}), tmp_path / "g", valid=TRIPLES)


def test_hetero_ranks_the_edges_that_a_link_split_asks_for(tmp_path):
    message = {"buys": [[0, 1], [0, 1]], "knows": [[0], [1]]}
    parts = {name: hetero(message) for name in ("train", "valid", "test")}
    for split, asked, label in (
        ("train", [[0, 1, 2], [0, 1, 0]], [1, 1, 1]),  # one that passes no messages
        ("valid", [[2, 2], [1, 2]], [1, 0]),
        ("test", [[2, 0], [3, 1]], [1, 2]),
    ):
        store = parts[split]["user", "buys", "item"]
        store.edge_label_index, store.edge_label = torch.tensor(asked), torch.tensor(label)
    graph = graph_from(parts["train"], tmp_path / "g", valid=parts["valid"], test=parts["test"])
    buys = [(f"user/{u}", "buys", f"item/{i}") for u, i in ((0, 0), (1, 1), (2, 0))]
    assert named_edges(graph) == sorted([*buys, ("user/0", "knows", "user/1")])
    assert named_edges(graph, "valid") == [("user/2", "buys", "item/1")]
    assert named_edges(graph, "test") == [("user/0", "buys", "item/1"), ("user/2", "buys", "item/3")]


def test_pyg_hetero(tmp_path):
    data = Hetero(user=SimpleNamespace(num_nodes=2), item=SimpleNamespace(num_nodes=3))
    data["user", "buys", "item"] = SimpleNamespace(edge_index=torch.tensor([[0, 1], [2, 0]]))
    data["user", "knows", "user"] = SimpleNamespace(edge_index=torch.tensor([[0], [1]]))
    graph = graph_from(data, tmp_path / "g", split=(1, 0, 0))
    assert named_edges(graph) == [
        ("user/0", "buys", "item/2"),
        ("user/0", "knows", "user/1"),
        ("user/1", "buys", "item/0"),
    ]


def test_pyg_hetero_without_counts(tmp_path):
    data = Hetero(user=SimpleNamespace(num_nodes=None))
    data.node_types = ("user",)  # PyG lists the types that something is stored of
    data["user", "buys", "item"] = SimpleNamespace(edge_index=torch.tensor([[0, 1], [2, 0]]))
    data["user", "knows", "user"] = SimpleNamespace(edge_index=torch.tensor([[0], [3]]))
    graph = graph_from(data, tmp_path / "g", split=(1, 0, 0))
    assert sorted(graph.node_names()) == [f"item/{i}" for i in range(3)] + [f"user/{i}" for i in range(4)]


class Guessing(SimpleNamespace):
    """A Data or a store whose number of nodes PyG would guess by `edge_index`, saying so."""

    @property
    def num_nodes(self):
        warnings.warn("Unable to accurately infer 'num_nodes'", stacklevel=2)
        return int(self.edge_index.max()) + 1


def test_pyg_counts_that_are_guessed_are_none(tmp_path):
    index = torch.tensor([[0, 1], [1, 2]])
    asked = {"edge_label_index": torch.tensor([[2], [3]]), "edge_label": torch.tensor([1.0])}
    graph = graph_from(Guessing(edge_index=index), tmp_path / "g", test=Guessing(edge_index=index, **asked))
    assert graph.num_nodes == 4
    assert pairs_of(graph, "test") == [(2, 3)]
    far = torch.tensor([[0, 1], [1, 10**9]])
    with pytest.raises(ConfigError, match=r"largest node number is 1,000,000,000 in a graph of 2 edges"):
        graph_from(Guessing(edge_index=far), tmp_path / "h", split=(1, 0, 0))
    data = hetero({"knows": far}, types=("user",))
    data["user"] = Guessing(edge_index=far)
    with pytest.raises(ConfigError, match=r"of type 'user' is 1,000,000,000; numbers must be dense: set num"):
        graph_from(data, tmp_path / "h", split=(1, 0, 0))


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{}, {"is_undirected": True}, {"disjoint_train_ratio": 0.5}, {"split_labels": True}],
    ids=["plain", "undirected", "disjoint", "labels"],
)
def test_the_real_link_split(tmp_path, options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # importing it warns about torch
        pyg = pytest.importorskip("torch_geometric", reason="torch_geometric is not installed")
        from torch_geometric import transforms
    torch.manual_seed(0)
    heads, tails = np.triu_indices(12, 1)
    index = np.stack([heads, tails])
    undirected = "is_undirected" in options
    data = pyg.data.Data(
        edge_index=torch.tensor(np.concatenate([index, index[::-1]], 1) if undirected else index),
        num_nodes=40,
    )
    train, valid, test = transforms.RandomLinkSplit(0.1, 0.2, **options)(data)
    graph = graph_from(train, tmp_path / "g", valid=valid, test=test)
    found = {split: pairs_of(graph, split) for split in ("train", "valid", "test")}
    assert [len(found["valid"]), len(found["test"])] == [6, 13]
    assert len(found["train"]) == 47 * (1 + undirected)
    assert sorted({tuple(sorted(pair)) for part in found.values() for pair in part}) == list(
        zip(*index.tolist(), strict=True)
    )


@pytest.mark.slow
def test_the_real_pyg(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # importing it warns about torch
        pyg = pytest.importorskip("torch_geometric.data", reason="torch_geometric is not installed")
    data = pyg.Data(edge_index=torch.tensor([[0, 1, 2], [1, 2, 0]]), edge_type=torch.tensor([0, 1, 0]))
    graph = graph_from(data, tmp_path / "g", split=(1, 0, 0))
    assert named_edges(graph) == [("0", "0", "1"), ("1", "1", "2"), ("2", "0", "0")]
    data.num_nodes = 5
    assert graph_from(data, tmp_path / "n", split=(1, 0, 0)).num_nodes == 5
    hetero = pyg.HeteroData()
    hetero["user"].x = torch.zeros(2, 3)
    hetero["user", "buys", "item"].edge_index = torch.tensor([[0, 1], [2, 0]])
    hetero["user", "knows", "user"].edge_index = torch.tensor([[0], [1]])
    graph = graph_from(hetero, tmp_path / "h", split=(1, 0, 0))
    assert sorted(graph.node_names()) == ["item/0", "item/1", "item/2", "user/0", "user/1"]
    assert named_edges(graph) == [
        ("user/0", "buys", "item/2"),
        ("user/0", "knows", "user/1"),
        ("user/1", "buys", "item/0"),
    ]
    hetero["user", "buys", "item"].edge_attr = torch.tensor([[2.0], [3.0]])
    hetero["user", "knows", "user"].edge_attr = torch.tensor([1])
    graph = graph_from(hetero, tmp_path / "w", split=(1, 0, 0), weight="edge_attr")
    assert list(weights_by_edge(graph).values()).count(1) == 1
    assert graph.mean_weight == 2
    with marius_py.train(hetero, tmp_path / "run", {**SETTINGS, "training.valid_every": 0}) as run:
        assert run.epochs == 2


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (3, "cannot read edges from int"),
        (np.zeros((4, 5), np.int64), "shape \\(4, 5\\)"),
        (np.zeros((4, 2)), "integers or texts"),
        ([("a", "b"), ("a", "b", "c")], "all alike"),
        (pd.DataFrame({"x": [1], "y": [2], "z": [3], "w": [4]}), "say which are head"),
        (None, "data is None; give the edges"),
        (pd.DataFrame([["a", "b"]], columns=["head", "head"]), "'head' is there twice"),
        (pd.DataFrame([["a", "b", "c"]], columns=["x", "y", "x"]), "'x' is there twice"),
        (pa.table([["a"], ["b"]], names=["x", "x"]), "'x' is there twice"),
        (
            pd.DataFrame([["a", "b", "c"]], columns=["head", "head", "tail"]),
            r"could each be the head\. Several columns have the name 'head': rename them[^=]*$",
        ),
        (
            pd.DataFrame({"source": ["a"], "target": ["b"], "foo": ["r"]}),
            r"'foo' is no name.*columns=\['source', 'foo', 'target'\].*columns=\['source', 'target'\]",
        ),
        (pd.DataFrame({"head": ["a", None], "tail": ["b", "c"]}), "column 'head' has empty cells.*entry 1"),
        ([("a", None), ("b", "c")], "column 'tail' has empty cells; .*entry 0 .* is None"),
        ([("a", float("nan"), "b")], "column 'relation' has empty cells; .* is nan"),
        ([("a", ""), ("b", "c")], "column 'tail' has empty cells; .* is ''"),
        (
            pd.DataFrame({"head": [1, 2, None], "tail": [2, 1, 3]}).dropna(),
            r"'head' has floats, such as 1\.0.*Int64",
        ),
        ([(1.0, 2), (2, 1)], r"'head' has floats, such as 1\.0"),
        (np.array([["a", "b"], [pd.NA, "c"]], dtype=object), "column 'head' has empty cells; .*entry 1"),
        (nx.DiGraph([(1, 2, {"relation": None})]), "edge attribute 'relation' has empty cells"),
        (nx.DiGraph([(1, float("nan"))]), "the list of nodes has empty cells"),
        (np.zeros((4, 2), np.bool_), "type bool; edges are integers or texts"),
        (pl.LazyFrame(columns()), r"LazyFrame is lazy.*\.collect\(\)"),
        (nx.DiGraph([(1, 2, {"relation": "r"}), (2, 3)]), "1 of 2 edges"),
        (nx.Graph([(1, "1")]), "same name as text"),
    ],
)
def test_what_is_no_graph(tmp_path, data, message):
    with pytest.raises(ConfigError, match=message):
        graph_from(data, tmp_path / "g")


SETTINGS = {"model.decoder": "distmult", "model.dim": 8, "training.epochs": 2, "negatives.count": 5}


def test_train_from_a_frame(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"head": rng.integers(30, size=200), "relation": "r", "tail": rng.integers(30, size=200)}
    )
    with marius_py.train(frame, tmp_path / "run", SETTINGS) as run:
        assert run.epochs == 2
        assert run.result["test"]["count"] == 20
        assert run.to_torch().shape == (run.num_nodes, 8)
        files = run.to_parquet(tmp_path / "v.parquet")
        assert pq.read_table(files[0]).num_rows == run.num_nodes
        assert len(run.predict(head="3", relation="r", k=4)) == 4
    graph = marius_py.open_graph(tmp_path / "run-graph")
    with marius_py.train(frame, tmp_path / "run", {"training.epochs": 3}, resume=True) as run:
        assert run.epochs == 3
    with marius_py.train(graph, tmp_path / "other", SETTINGS) as run:
        assert run.graph.fingerprint == graph.fingerprint


def test_settings_are_checked_before_anything_is_written(tmp_path):
    with pytest.raises(ConfigError, match=r"model\.dimm"):
        marius_py.train(TRIPLES, tmp_path / "run", {"model.dimm": 3})
    with pytest.raises(ConfigError, match="graph is int"):
        marius_py.train(3, tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_an_argument_that_a_message_names_is_said_to_be_of_graph_from(tmp_path):
    frame = pd.DataFrame({"from": ["a", "b"], "colour": ["r", "s"], "to": ["b", "a"], "note": ["x", "y"]})
    with pytest.raises(ConfigError, match=r"with columns=.*; columns= is an argument of graph_from, whose"):
        marius_py.train(frame, tmp_path / "run")
    assert not list(tmp_path.iterdir())


def weights_by_edge(graph):
    nodes, relations = graph.node_names(), graph.relation_names()
    with graph.edges() as store:
        rows = store.read("train", weights=True)
    named = [(nodes[h], relations[r], nodes[t]) for h, r, t in rows[:, :3].tolist()]
    return dict(zip(named, weights_of(rows).tolist(), strict=True))


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, pa.table])
def test_weights_of_a_frame(tmp_path, make):
    frame = make({"source": ["a", "b"], "amount": [0.5, 3], "target": ["b", "c"]})
    test = make({"source": ["c"], "target": ["a"]})
    graph = graph_from(frame, tmp_path / "g", weight="amount", test=test)
    assert weights_by_edge(graph) == {("a", "", "b"): 0.5, ("b", "", "c"): 3}
    assert graph.num_edges["test"] == 1
    graph = graph_from(frame, tmp_path / "h", weight="amount", test=frame, columns=["source", "target"])
    assert graph.num_edges["test"] == 2
    for options, message in (
        ({"weight": "amounts"}, "weight is 'amounts'; allowed: one of the frame's"),
        ({"weight": pd.Series([1.0])}, "weight is of type Series; allowed: the name of what holds"),
        ({"weight": np.ones(3)}, "weight is of type ndarray; allowed: the name of what holds"),
        ({"weight": pl.Series([1.0])}, "weight is of type Series; allowed: the name of what holds"),
        ({"weight": "source", "columns": ["source", "target"]}, "is no part of the edges"),
        ({"weight": "target", "columns": ["source", "amount"]}, "column 'target' is for weights"),
    ):
        with pytest.raises(ConfigError, match=message):
            graph_from(frame, tmp_path / "i", **options)
    ends = {"source": ["a", "b"], "target": ["b", "c"]}
    for values, kind, message in (
        ([0.5, None], FormatError, r"column 'w', edge 1 \(counted from 0\): the weight is (nan|None);"),
        ([0.5, -1.0], FormatError, r"edge 1 .*: the weight is -1\.0; allowed: numbers from 0 to"),
        (["1", "2_0"], ConfigError, "column 'w' is for weights, and holds what is no number: '2_0'"),
    ):
        with pytest.raises(kind, match=message):
            graph_from(make({**ends, "w": values}), tmp_path / "i", weight="w")
    graph = graph_from(make({**ends, "w": [" 1", "2e1"]}), tmp_path / "i", weight="w", split=(1, 0, 0))
    assert weights_by_edge(graph) == {("a", "", "b"): 1, ("b", "", "c"): 20}


def test_weights_of_networkx(tmp_path):
    network = nx.Graph()
    network.add_weighted_edges_from([("a", "b", 2), ("b", "c", 0.25)])
    graph = graph_from(network, tmp_path / "g", weight="weight", split=(1, 0, 0))
    assert weights_by_edge(graph) == {("a", "", "b"): 2, ("b", "", "c"): 0.25}
    network.add_edge("c", "d")
    with pytest.raises(ConfigError, match="weight is 'weight'; allowed: an attribute that all 3 edges have"):
        graph_from(network, tmp_path / "h", weight="weight")
    network.remove_edge("c", "d")
    with pytest.raises(ConfigError, match="not the relation"):
        graph_from(network, tmp_path / "h", weight="weight", relation="weight")
    close = nx.Graph([("a", "b", {"relation": 2}), ("b", "c", {"relation": 1})])
    graph = graph_from(close, tmp_path / "i", weight="relation", split=(1, 0, 0))
    assert weights_by_edge(graph) == {("a", "", "b"): 2, ("b", "", "c"): 1}
    assert graph_from(network, tmp_path / "h", weight="weight", test=nx.path_graph(2)).num_edges["test"] == 1


def test_weights_of_pyg(tmp_path):
    index = torch.tensor([[0, 1, 2], [1, 2, 0]])
    expected = {("0", "", "1"): 1.5, ("1", "", "2"): 0, ("2", "", "0"): 4}
    tensor = torch.tensor([1.5, 0, 4])
    for weight in (tensor, tensor.view(3, 1), tensor.bfloat16(), tensor.numpy()):
        data = SimpleNamespace(edge_index=index, edge_weight=weight)
        graph = graph_from(data, tmp_path / "g", weight="edge_weight", split=(1, 0, 0), overwrite=True)
        assert weights_by_edge(graph) == expected
    for wrong, message in (
        ({}, "which is missing in train"),
        ({"edge_weight": torch.ones(2)}, r"of shape \(2,\)"),
        (
            {"edge_weight": torch.ones(3), "edge_label_index": torch.tensor([[2], [1]])},
            "of 4 numbers, one for every",
        ),
    ):
        with pytest.raises(ConfigError, match=message):
            graph_from(SimpleNamespace(edge_index=index, **wrong), tmp_path / "h", weight="edge_weight")
    data = SimpleNamespace(edge_index=index, edge_weight=torch.tensor([1.5, 0, -4]))
    with pytest.raises(FormatError, match=r"edge_weight of train, edge 2 \(counted from 0\): .* is -4\.0;"):
        graph_from(data, tmp_path / "h", weight="edge_weight")


def test_weights_of_pyg_hetero(tmp_path):
    data = hetero({"buys": [[0, 2, 1], [1, 0, 1]], "likes": np.empty((2, 0), int), "knows": [[2, 1], [1, 0]]})
    buys, _, knows = data.edge_types
    data[buys].edge_attr, data[knows].edge_attr = torch.tensor([[0.5], [2], [0]]), torch.tensor([3, 4])
    test = hetero({"buys": [[0], [0]]})
    graph = graph_from(data, tmp_path / "g", test=test, weight="edge_attr")
    assert weights_by_edge(graph) == {
        ("user/0", "buys", "item/1"): 0.5, ("user/2", "buys", "item/0"): 2, ("user/1", "buys", "item/1"): 0,
        ("user/2", "knows", "user/1"): 3, ("user/1", "knows", "user/0"): 4,
    }  # fmt: skip
    assert graph.num_edges["test"] == 1
    del data[knows].edge_attr
    with pytest.raises(ConfigError, match=r"'edge_attr', which is missing in .*'knows', 'user'\) in tr"):
        graph_from(data, tmp_path / "h", weight="edge_attr")
    data[knows].edge_attr = torch.tensor([3, torch.nan])
    with pytest.raises(FormatError, match=r"of .*'knows', 'user'\) in train, edge 1 .* weight is nan"):
        graph_from(data, tmp_path / "h", weight="edge_attr")
    with pytest.raises(FormatError, match="train has no edges"):
        graph_from(hetero({}), tmp_path / "h", weight="edge_attr")


@pytest.mark.parametrize("data", [np.array([[1, 2]]), [("a", "b")]], ids=["array", "list"])
def test_a_name_of_weights_that_has_no_effect_is_refused(tmp_path, data):
    with pytest.raises(ConfigError, match=r"weight= has no effect on .* give weights= of"):
        graph_from(data, tmp_path / "g", weight="w")
