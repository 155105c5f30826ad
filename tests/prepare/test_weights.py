"""Weights of edges, from files and arrays to the rows of a graph."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from marius_py import cli
from marius_py.errors import ConfigError, FormatError
from marius_py.graph import Graph, open_graph
from marius_py.prepare import WeightedEdges, prepare, prepare_arrays
from marius_py.prepare.extend import extend_graph
from marius_py.storage.weighted import shares_of, weights_of

EDGES = [
    ("a", "likes", "b", 0.5),
    ("b", "knows", "c", 2.0),
    ("c", "likes", "a", 0.0),
    ("a", "knows", "c", 7.25),
]


def weights(graph: Graph) -> dict[tuple[str, str, str], float]:
    """Weight by names of an edge."""
    nodes, relations = graph.node_names(), graph.relation_names()
    with graph.edges() as store:
        rows = store.read("train", weights=True)
    named = [(nodes[h], relations[r], nodes[t]) for h, r, t in rows[:, :3].tolist()]
    return dict(zip(named, weights_of(rows).tolist(), strict=True))


EXPECTED = {edge[:3]: edge[3] for edge in EDGES}


def lines(rows: Any, delimiter: str = "\t") -> bytes:
    return "".join(delimiter.join(map(str, row)) + "\n" for row in rows).encode()


def made(path: Path, **options: Any) -> Graph:
    return prepare(path, path.parent / "g", split=(1, 0, 0), partitions=2, overwrite=True, **options)


@pytest.mark.parametrize(
    ("name", "content", "options"),
    [
        ("e.tsv", lines(EDGES), {"weight": 3}),
        ("e.tsv", lines(EDGES), {"weight": -1}),
        ("e.tsv.gz", gzip.compress(lines(EDGES)), {"weight": 3, "header": False}),
        ("e.tsv", lines((w, h, r, t) for h, r, t, w in EDGES), {"weight": 0}),
        ("e.csv", b"source,type,target,weight\n" + lines(EDGES, ","), {"weight": "weight"}),
        ("e.csv", b"source,type,target,trust\n" + lines(EDGES, ","), {"weight": "trust"}),
        ("e.csv", b"trust,t,source,h\n" + lines(((w, t, r, h) for h, r, t, w in EDGES), ","),
         {"weight": "trust", "columns": ["h", "source", "t"]}),
        ("e.csv", b'x,"y",z,w\n' + lines(((h, r, t, f'" {w} "') for h, r, t, w in EDGES), ","),
         {"weight": "w", "columns": [0, 1, 2]}),
        ("e.tsv", lines((h, r, t, f"+{w:e} ") for h, r, t, w in EDGES), {"weight": 3}),
    ],
    ids=["last", "from the end", "gzip", "first", "named", "of any name", "chosen", "quoted", "signed"],
)  # fmt: skip
def test_text(tmp_path: Path, name: str, content: bytes, options: dict[str, Any]) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    graph = made(path, **options)
    assert weights(graph) == EXPECTED
    assert graph.mean_weight == pytest.approx(9.75 / 4)
    assert open_graph(graph.path).mean_weight == graph.mean_weight


@pytest.mark.parametrize("kind", ["float64", "float32", "int", "text", "decimal"])
def test_parquet_and_numpy(tmp_path: Path, kind: str) -> None:
    edges = [(h, r, t, round(w)) for h, r, t, w in EDGES] if kind == "int" else EDGES
    head, relation, tail, weight = (list(column) for column in zip(*edges, strict=True))
    column: Any = {
        "text": lambda: pa.array(map(str, weight)),
        "int": lambda: pa.array(weight, pa.uint8()),
        "decimal": lambda: pa.array(weight).cast(pa.decimal128(10, 3)),
    }.get(kind, lambda: pa.array(weight, getattr(pa, kind)()))()
    pq.write_table(pa.table({"t": tail, "w": column, "h": head, "r": relation}), tmp_path / "e.parquet")
    expected = {edge[:3]: edge[3] for edge in edges}
    assert weights(made(tmp_path / "e.parquet", weight="w")) == expected
    assert weights(made(tmp_path / "e.parquet", weight=1, columns=["h", "r", "t"])) == expected
    if kind != "decimal":
        arrays = {"head": head, "relation": relation, "tail": tail, "trust": np.array(column.to_pylist())}
        np.savez(tmp_path / "e.npz", **{key: np.array(values) for key, values in arrays.items()})
        assert weights(made(tmp_path / "e.npz", weight="trust")) == expected
    if kind == "text":
        np.save(tmp_path / "e.npy", np.array([list(map(str, edge)) for edge in edges]))
        assert weights(made(tmp_path / "e.npy", weight=3)) == expected


def test_an_array_of_integers(tmp_path: Path) -> None:
    np.save(tmp_path / "e.npy", np.array([[1, 2, 9], [2, 3, 4], [3, 1, 0]]))
    assert weights(made(tmp_path / "e.npy", weight=2)) == {
        ("1", "", "2"): 9,
        ("2", "", "3"): 4,
        ("3", "", "1"): 0,
    }
    with pytest.raises(ConfigError, match="columns of an array have no names"):
        made(tmp_path / "e.npy", weight="w")


@pytest.mark.parametrize("value", ["-1", "nan", "inf", "1e39", "", "x", "1,5", "0x1", "1_0", "²"])
@pytest.mark.parametrize("place", [0, 2])
def test_what_is_no_weight(tmp_path: Path, value: str, place: int) -> None:
    rows = [list(map(str, edge)) for edge in EDGES]
    rows[place][3] = value
    (tmp_path / "e.tsv").write_bytes(lines(rows))
    with pytest.raises(
        FormatError, match=rf"e\.tsv, line {place + 1}: the weight is {value!r} in .* from 0 to 3\.4e38"
    ):
        made(tmp_path / "e.tsv", weight=3)
    assert not (tmp_path / "g").exists()


def test_a_first_line_without_weight_may_be_a_header(tmp_path: Path) -> None:
    (tmp_path / "e.tsv").write_bytes(b"gene\tkind\tdisease\tevidence\n" + lines(EDGES))
    with pytest.raises(
        FormatError, match=r"line 1: .* 'evidence' .*; if this line is a header, set input\.header"
    ):
        made(tmp_path / "e.tsv", weight=3)
    assert weights(made(tmp_path / "e.tsv", weight=3, header=True)) == EXPECTED
    (tmp_path / "e.tsv").write_bytes(b"# evidence of genes\n\n" + (tmp_path / "e.tsv").read_bytes())
    with pytest.raises(FormatError, match=r"line 3: .*; if this line is a header, set input\.header"):
        made(tmp_path / "e.tsv", weight=3, comment="#")
    (tmp_path / "e.tsv").write_bytes(lines([*EDGES, ("a", "likes", "b", "x")]))
    with pytest.raises(FormatError, match=r"line 5: the weight is 'x' .* to 3\.4e38$"):
        made(tmp_path / "e.tsv", weight=3)


def test_what_is_no_weight_in_typed_files(tmp_path: Path) -> None:
    columns = {"head": ["a", "b"], "tail": ["b", "a"]}
    for values, message in (
        ([1.0, None], "row 2: the weight is None"),
        ([float("nan"), 1.0], "row 1: the weight is nan"),
        ([1.0, -0.5], "row 2: the weight is -0.5"),
        (["1", "x"], "row 2: the weight is 'x'; allowed"),
        (["1_0", "1"], "row 1: the weight is '1_0'; allowed"),
        ([b"1", b"x"], "weights of type binary are no numbers"),
        ([[1], [2]], "are no numbers"),
    ):
        pq.write_table(pa.table({**columns, "w": values}), tmp_path / "e.parquet")
        with pytest.raises(FormatError, match=message):
            made(tmp_path / "e.parquet", weight="w")


@pytest.mark.parametrize("data_type", ["c16", "g", [("w", "f4")], "M8[s]"])
def test_weights_of_a_type_that_holds_none(tmp_path: Path, data_type: Any) -> None:
    numbers = {"head": np.array([0, 1]), "tail": np.array([1, 0])}
    np.savez(tmp_path / "e.npz", **numbers, w=np.ones(2, "i8").astype(data_type))
    with pytest.raises(FormatError, match=r"e\.npz: the weights, array 'w', have type .*; allowed: integers"):
        made(tmp_path / "e.npz", weight="w")


@pytest.mark.parametrize("kind", ["parquet", "npy"])
def test_weights_as_texts_are_read_as_in_text_files(tmp_path: Path, kind: str) -> None:
    rows = [(h, r, t, f" +{w:e} ") for h, r, t, w in EDGES]
    if kind == "npy":
        np.save(tmp_path / "e.npy", np.array(rows))
    else:
        columns = [pa.array(values).dictionary_encode() for values in zip(*rows, strict=True)]
        pq.write_table(pa.table(columns, names=["h", "r", "t", "w"]), tmp_path / "e.parquet")
    assert weights(made(tmp_path / f"e.{kind}", weight=3)) == EXPECTED


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weight": "strength"}, "input.weight=strength, but .* no such column; it has 4"),
        ({"weight": 4}, "input.weight=4, but .* no such column"),
        ({"weight": True}, "weight is True"),
        ({"weight": 3, "columns": [0, 1, 3]}, "is a column of input.columns, too"),
        ({"weight": "w", "header": False}, "a name needs a header"),
        ({"weight": 2}, "the weight is 'b'"),
    ],
)
def test_a_wrong_column(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    (tmp_path / "e.tsv").write_bytes(lines(EDGES))
    with pytest.raises((ConfigError, FormatError), match=message):
        made(tmp_path / "e.tsv", **options)


@pytest.mark.parametrize(
    ("content", "options", "offer"),
    [
        ("a,r,b,.5\nb,r,a,1\n", {}, "input.weight=3 (weight=3 in Python)"),
        ("u,v,weight\na,b,1\nb,a,2\n", {}, "input.weight=weight (weight='weight' in Python)"),
        ("a,r,b,x\nb,r,a,y\n", {}, None),
        ("a,r,b,.5,7\nb,r,a,1,7\n", {}, None),
        ("a,r,b,.5,7\nb,r,a,1,7\n", {"weight": 3}, None),
        ("u,v,k,count\na,b,1,3\nb,a,2,4\n", {"weight": "k"}, None),
    ],
)
def test_what_may_be_a_weight_is_offered_as_one(
    tmp_path: Path, content: str, options: dict[str, Any], offer: str | None
) -> None:
    (tmp_path / "e.csv").write_text(content)
    with pytest.raises(FormatError, match=r"input\.columns") as error:
        made(tmp_path / "e.csv", **options)
    if offer is None:
        assert "input.weight" not in str(error.value)
    else:
        assert f"; to let edges count by a weight, prepare the graph with {offer}" in str(error.value)


def test_a_header_above_weights_by_number(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("u,v,weight\na,b,.5\nb,a,x\n")
    with pytest.raises(FormatError, match=r"line 1: the weight is 'weight' in .*; .* set input\.header=true"):
        made(tmp_path / "e.csv", weight=2)
    with pytest.raises(FormatError, match=r"line 3: the weight is 'x' in .* from 0 to 3\.4e38$"):
        made(tmp_path / "e.csv", weight=2, header=True)


def test_columns_to_choose_are_numbered_as_in_the_file(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_bytes(b"from,how sure,kind of,to\na,.5,r,b\nb,.5,r,a\n")
    with pytest.raises(
        FormatError, match=r"input\.columns=\[0,2,3\], or without .* input\.columns=\[from,to\]"
    ):
        made(tmp_path / "e.csv", weight="how sure")
    graph = made(tmp_path / "e.csv", weight="how sure", columns=[0, 2, 3])
    assert weights(graph) == {("a", "r", "b"): 0.5, ("b", "r", "a"): 0.5}


def test_a_fourth_column_of_numbers_may_be_weights(tmp_path: Path) -> None:
    (tmp_path / "e.tsv").write_bytes(lines(EDGES))
    with pytest.raises(
        FormatError, match=r"has 4 columns .*; to let edges count by a weight, .* input\.weight=3"
    ):
        made(tmp_path / "e.tsv")
    (tmp_path / "e.tsv").write_bytes(lines((*edge, 2024) for edge in EDGES))
    with pytest.raises(FormatError, match=r"has 4 columns beside the weight .*(?<!weight=3 in Python\))$"):
        made(tmp_path / "e.tsv", weight=3)


def test_two_columns_of_the_name(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_bytes(b"head,tail,w,w\na,b,1,2\n")
    with pytest.raises(FormatError, match="2 columns named 'w'"):
        made(tmp_path / "e.csv", weight="w")


def test_some_edge_has_to_count(tmp_path: Path) -> None:
    (tmp_path / "e.tsv").write_bytes(b"a\tb\t0\nb\tc\t0\n")
    with pytest.raises(FormatError, match="all weights of the train edges are 0"):
        made(tmp_path / "e.tsv", weight=2)
    assert not (tmp_path / "g").exists()


@pytest.mark.parametrize("weight", [3, -1, "w"])
@pytest.mark.parametrize("width", [3, 4])
def test_valid_and_test_need_no_weights(tmp_path: Path, weight: int | str, width: int) -> None:
    header = b"" if weight != "w" else b"head\trelation\ttail\tw\n"
    (tmp_path / "train.tsv").write_bytes(header + lines(EDGES))
    names = b"" if weight != "w" else b"\t".join([b"head", b"relation", b"tail", b"w"][:width]) + b"\n"
    for split in ("valid", "test"):
        (tmp_path / f"{split}.tsv").write_bytes(names + lines([("b", "likes", "a", "none")[:width]]))
    splits = {split: tmp_path / f"{split}.tsv" for split in ("valid", "test")}
    graph = prepare(tmp_path / "train.tsv", tmp_path / "g", weight=weight, partitions=1, **splits)
    assert weights(graph) == EXPECTED
    assert graph.num_edges == {"train": 4, "valid": 1, "test": 1}
    with graph.edges() as store:
        assert store.read("test", weights=True).shape == (1, 3)


@pytest.mark.parametrize("weight", [0, 1, 2])
@pytest.mark.parametrize("kind", ["tsv", "csv", "npy"])
def test_shorter_rows_of_valid_and_test_have_no_weights_between_their_ends(
    tmp_path: Path, weight: int, kind: str
) -> None:
    def write(name: str, rows: Any, header: Any) -> Path:
        path = tmp_path / f"{name}.{kind}"
        if kind == "npy":
            np.save(path, np.array(rows))
        else:
            path.write_bytes(lines([header, *rows], ",") if kind == "csv" else lines(rows))
        return path

    def weighed(row: Any, cell: str) -> list[str]:
        return [*row[:weight], cell, *row[weight:]]

    names, edge = ["head", "relation", "tail"], ["b", "likes", "a"]
    rows = [weighed(row[:3], str(row[3])) for row in EDGES]
    train = write("train", rows, weighed(names, "weight"))
    splits = {
        "valid": write("valid", [edge], names),
        "test": write("test", [weighed(edge, "9")], weighed(names, "weight")),
    }
    graph = prepare(train, tmp_path / "g", weight=weight, partitions=1, **splits)
    assert weights(graph) == EXPECTED
    with graph.edges() as store:
        np.testing.assert_array_equal(store.read("valid"), store.read("test"))


def test_a_random_split_takes_weights_along(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = {
        (f"n{h}", f"r{h % 3}", f"n{t}"): round(float(rng.exponential()), 4)
        for h, t in rng.integers(0, 90, (500, 2))
    }
    (tmp_path / "e.tsv").write_bytes(lines((*edge, weight) for edge, weight in rows.items()))
    graph = prepare(tmp_path / "e.tsv", tmp_path / "g", weight=3, split=(0.8, 0.1, 0.1))
    found = weights(graph)
    assert len(found) == graph.num_edges["train"] < len(rows)
    assert found == {edge: pytest.approx(rows[edge]) for edge in found}
    assert graph.mean_weight == pytest.approx(np.mean(list(found.values())))
    with graph.repartition(3, tmp_path / "other") as store, graph.edges() as own:
        both = [sorted(map(tuple, one.read("train", weights=True).tolist())) for one in (store, own)]
        assert both[0] == both[1]
        assert store.weighted


def test_the_fingerprint_knows_weights(tmp_path: Path) -> None:
    found = set()
    for number, factor in enumerate((1, 2, 1)):
        (tmp_path / "e.tsv").write_bytes(lines((h, r, t, w * factor) for h, r, t, w in EDGES))
        found.add(made(tmp_path / "e.tsv", weight=3).fingerprint)
        assert len(found) == min(number + 1, 2)
    (tmp_path / "e.tsv").write_bytes(lines(edge[:3] for edge in EDGES))
    plain = made(tmp_path / "e.tsv")
    assert plain.fingerprint not in found
    assert plain.mean_weight is None


def test_copies_are_counted_whatever_their_weights(tmp_path: Path) -> None:
    (tmp_path / "e.tsv").write_bytes(lines([*EDGES, ("a", "likes", "b", 3.0)]))
    assert made(tmp_path / "e.tsv", weight=3).report["duplicate_edges"]["train"] == 1


def test_extending(tmp_path: Path) -> None:
    (tmp_path / "e.tsv").write_bytes(lines(EDGES))
    graph = made(tmp_path / "e.tsv", weight=3)
    (tmp_path / "more.tsv").write_bytes(lines([("d", "likes", "a", 4.5), ("a", "owns", "d", 1.0)]))
    more = extend_graph(graph, tmp_path / "more.tsv", tmp_path / "g2", weight=3)
    assert weights(more) == {**EXPECTED, ("d", "likes", "a"): 4.5, ("a", "owns", "d"): 1.0}
    assert more.mean_weight == pytest.approx(15.25 / 6)
    with pytest.raises(ConfigError, match=r"have weights, and input\.weight .* is None: set it"):
        extend_graph(graph, tmp_path / "more.tsv", tmp_path / "g3")
    (tmp_path / "e.tsv").write_bytes(lines(edge[:3] for edge in EDGES))
    with pytest.raises(ConfigError, match=r"no weights, and input\.weight .* is 3: leave it out"):
        extend_graph(made(tmp_path / "e.tsv"), tmp_path / "more.tsv", tmp_path / "g3", weight=3)


@pytest.mark.parametrize("width", [2, 3])
def test_arrays(tmp_path: Path, width: int) -> None:
    edges = np.array([[0, 1, 2], [2, 0, 1], [1, 1, 0]])[:, [0, 1, 2] if width == 3 else [0, 2]]
    amounts = np.array([3, 0, 1])
    expected = {("0", "1", "2"): 3, ("2", "0", "1"): 0, ("1", "1", "0"): 1}
    if width == 2:
        expected = {(head, "", tail): weight for (head, _, tail), weight in expected.items()}
    options: dict[str, Any] = {"split": (1, 0, 0), "partitions": 1}
    assert weights(prepare_arrays(edges, tmp_path / "a", weights=amounts, **options)) == expected
    assert weights(prepare_arrays(WeightedEdges(edges, amounts), tmp_path / "w", **options)) == expected
    blocks = [WeightedEdges(edges[:2], amounts[:2]), WeightedEdges(edges[2:], amounts[2:])]
    assert weights(prepare_arrays(blocks, tmp_path / "b", weighted=True, **options)) == expected
    for wrong, message in (
        ({"weights": amounts[:2]}, r"block of 3 edges with weights of shape \(2,\)"),
        ({"weights": amounts.astype(str)}, "and type <U21"),
        ({"weights": np.array([1, -2, 1])}, "train, row 1: the weight is -2"),
        ({"weighted": True}, "with no weights; every edge needs a number"),
    ):
        with pytest.raises(FormatError, match=message):
            prepare_arrays(edges, tmp_path / "c", **options, **wrong)
    with pytest.raises(ConfigError, match="pass weighted=True"):
        prepare_arrays(blocks, tmp_path / "c", **options)
    for train in ([edges], WeightedEdges(edges, amounts)):
        with pytest.raises(ConfigError, match="blocks are WeightedEdges"):
            prepare_arrays(train, tmp_path / "c", weights=amounts, **options)


def test_the_command(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "e.csv").write_bytes(b"head,relation,tail,weight\n" + lines(EDGES, ","))
    words = [f"input.train={tmp_path}/e.csv", f"output={tmp_path}/g", "input.split=[1,0,0]"]
    assert cli.prepare([*words, "input.weight=weight"]) == 0
    assert "the train edges have weights, 2.438 on average and 7.25 at most" in capsys.readouterr().err
    assert weights(open_graph(tmp_path / "g")) == EXPECTED
    assert cli.extend([f"graph={tmp_path}/g", words[0], f"output={tmp_path}/g2", "input.weight=3"]) == 0
    assert weights(open_graph(tmp_path / "g2")) == EXPECTED
    assert cli.prepare([*words, "input.weight=2", "input.columns=[0,1,2]", "overwrite=true"]) == 2
    assert "input.weight=2 is one of input.columns=" in capsys.readouterr().err


@pytest.mark.parametrize("unit", [1e-44, 1.0, 1e37])
def test_weights_of_any_size_count_by_their_mean(tmp_path: Path, unit: float) -> None:
    (tmp_path / "e.tsv").write_bytes(lines((f"n{i}", f"n{i + 1}", 3 * unit * (i < 2)) for i in range(200)))
    (tmp_path / "e.tsv").write_bytes((tmp_path / "e.tsv").read_bytes().replace(b"\t0.0\n", b"\t-0.0\n"))
    graph = made(tmp_path / "e.tsv", weight=2)
    assert graph.mean_weight is not None
    with graph.edges() as store:
        rows = store.read("train", weights=True)
    assert rows.min() >= 0
    shares = shares_of(rows, graph.mean_weight)
    assert sorted(shares.tolist())[-3:] == [0, pytest.approx(100), pytest.approx(100)]


def test_a_masked_weight_is_missing(tmp_path: Path) -> None:
    edges, weights = np.array([[0, 1], [1, 2]]), np.ma.array([1, 2], mask=[False, True])
    with pytest.raises(FormatError, match=r"train, row 1: the weight is nan; "):
        prepare_arrays(edges, tmp_path / "g", weights=weights)
    blocks = [WeightedEdges(edges, weights)]
    with pytest.raises(FormatError, match=r"train, row 1: the weight is nan; "):
        prepare_arrays(blocks, tmp_path / "g", weighted=True)
    weights.mask = False
    graph = prepare_arrays(edges, tmp_path / "g", weights=weights, split=(1, 0, 0))
    assert graph.mean_weight == 1.5
