from __future__ import annotations

import gzip
import logging
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from marius_py.errors import ConfigError, FormatError, StorageError
from marius_py.graph import open_graph
from marius_py.partitioning import Partitioning
from marius_py.prepare import prepare, prepare_arrays
from marius_py.types import Bucket
from marius_py.verify import verify_graph
from tests.prepare.graphs import all_edges, named_edges, write_rows

ODD_NAMES = [
    "NA",
    "null",
    "nan",
    "None",
    "-",
    '"',
    '""',
    "a b",
    " ",
    " x ",
    "'",
    "é",
    "日本",
    "#",
    "\\N",
    "\ufeffx",
    "1",
]


def random_rows(count: int, seed: int = 0, nodes: int = 60, relations: int = 4) -> list[tuple[str, str, str]]:
    rng = np.random.default_rng(seed)
    rows = zip(
        rng.integers(0, nodes, count).tolist(),
        rng.integers(0, relations, count).tolist(),
        rng.integers(0, nodes, count).tolist(),
        strict=True,
    )
    return [(f"node {h}", f"rel {r}", f"node {t}") for h, r, t in rows]


def test_the_same_input_makes_the_same_bytes(tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "edges.tsv", random_rows(200))
    first = prepare(rows, tmp_path / "first", partitions=4)
    time.sleep(1.1)  # HDF5 notes whole seconds
    second = prepare(rows, tmp_path / "second", partitions=4)
    names = sorted(path.name for path in first.path.iterdir())
    assert names == sorted(path.name for path in second.path.iterdir()) != []
    for name in names:
        assert (first.path / name).read_bytes() == (second.path / name).read_bytes(), name


def test_given_splits_keep_every_edge_and_name(tmp_path: Path) -> None:
    rows = {"train": random_rows(500), "valid": random_rows(40, 1), "test": random_rows(30, 2)}
    paths = {split: write_rows(tmp_path / f"{split}.tsv", edges) for split, edges in rows.items()}
    graph = prepare(paths["train"], tmp_path / "g", valid=paths["valid"], test=paths["test"], partitions=4)
    assert named_edges(graph) == {split: Counter(edges) for split, edges in rows.items()}
    assert graph.num_edges == {"train": 500, "valid": 40, "test": 30}
    assert graph.has_relations
    assert verify_graph(graph.path) == []
    names = graph.node_names()
    assert len(set(names)) == graph.num_nodes
    assert graph.node_ids([*names, "nobody"]).tolist() == [*range(graph.num_nodes), -1]
    assert graph.relation_ids(["rel 3", "rel 9", "rel 3"])[1] == -1
    assert [graph.relation_names()[i] for i in graph.relation_ids(["rel 3", "rel 0"])] == ["rel 3", "rel 0"]


@pytest.mark.parametrize("p", [1, 3, 8])
def test_train_edges_lie_in_their_buckets_in_any_partitioning(tmp_path: Path, p: int) -> None:
    train = write_rows(tmp_path / "t.tsv", random_rows(800))
    graph = prepare(train, tmp_path / "g", valid=train, test=train, partitions=p)
    assert graph.partitioning == Partitioning(graph.num_nodes, p)
    with graph.edges() as store:
        counts = store.bucket_counts()
        assert counts.shape == (p, p)
        assert counts.sum() == store.num_edges("train") == 800
        for i in range(p):
            for j in range(p):
                edges = store.read("train", Bucket(i, j))
                assert edges.dtype == np.int32
                assert len(edges) == counts[i, j]
                assert (graph.partitioning.locate(edges[:, 0])[0] == i).all()
                assert (graph.partitioning.locate(edges[:, 2])[0] == j).all()


def test_partitions_change_neither_ids_nor_fingerprint(tmp_path: Path) -> None:
    train = write_rows(tmp_path / "t.tsv", random_rows(300))
    first = prepare(train, tmp_path / "a", partitions=2, seed=5)
    second = prepare(train, tmp_path / "b", partitions=7, seed=5)
    other = prepare(train, tmp_path / "c", partitions=2, seed=6)
    assert first.node_names() == second.node_names() != other.node_names()
    assert first.fingerprint == second.fingerprint != other.fingerprint
    assert named_edges(first) == named_edges(second)


def test_ids_are_random_and_repeatable(tmp_path: Path) -> None:
    train = write_rows(tmp_path / "t.tsv", [(f"{i:04}", "r", f"{i + 1:04}") for i in range(400)])
    graph = prepare(train, tmp_path / "a")
    again = prepare(train, tmp_path / "b")
    names = np.array(graph.node_names(), dtype=int)
    assert graph.node_names() == again.node_names()
    assert abs(np.corrcoef(names, np.arange(len(names)))[0, 1]) < 0.2
    assert (tmp_path / "a" / "edges.h5").read_bytes()[-1000:] == (tmp_path / "b" / "edges.h5").read_bytes()[
        -1000:
    ]


def test_random_split_has_exact_shares_and_loses_nothing(tmp_path: Path) -> None:
    rows = random_rows(1000)
    train = write_rows(tmp_path / "t.tsv", rows)
    graph = prepare(train, tmp_path / "g")
    assert graph.num_edges == {"train": 900, "valid": 50, "test": 50}
    assert all_edges(graph) == Counter(rows)
    other = prepare(train, tmp_path / "h", seed=1, split=(0.5, 0.5, 0))
    assert other.num_edges == {"train": 500, "valid": 500, "test": 0}


def test_odd_spellings_are_names(tmp_path: Path) -> None:
    rows = [(a, f"r{a}", b) for a in ODD_NAMES for b in ODD_NAMES]
    train = write_rows(tmp_path / "t.tsv", rows)
    graph = prepare(train, tmp_path / "g", valid=train)
    assert named_edges(graph)["train"] == Counter(rows)
    assert sorted(graph.node_names()) == sorted(ODD_NAMES)


def test_two_columns_are_a_graph_without_relations(tmp_path: Path) -> None:
    rows = [("a", "b"), ("b", "c"), ("c", "c")]
    graph = prepare(write_rows(tmp_path / "t.csv", rows, ","), tmp_path / "g", split=(1, 0, 0), partitions=2)
    assert not graph.has_relations
    assert graph.num_relations == 1
    assert graph.relation_names() == [""]
    assert named_edges(graph)["train"] == Counter(rows)
    assert graph.relation_ids(["", "x"]).tolist() == [0, -1]
    with pytest.raises(ConfigError, match="names is the single text 'likes'; pass a list of names"):
        graph.relation_ids("likes")


def test_degrees_count_train_edges_only(tmp_path: Path) -> None:
    train = write_rows(tmp_path / "t.tsv", [("a", "r", "b"), ("a", "r", "a"), ("b", "r", "c")])
    test = write_rows(tmp_path / "v.tsv", [("d", "r", "a")])
    graph = prepare(train, tmp_path / "g", test=test, partitions=1)
    degrees = dict(zip(graph.node_names(), graph.degrees(0, 4).tolist(), strict=True))
    assert degrees == {"a": 3, "b": 2, "c": 1, "d": 0}
    assert graph.degrees(1, 3).tolist() == graph.degrees(0, 4).tolist()[1:3]


def test_unknown_names_duplicates_and_loops_are_kept_and_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train = write_rows(tmp_path / "t.tsv", [("a", "r", "b")] * 3 + [("b", "r", "b")])
    valid = write_rows(tmp_path / "v.tsv", [("a", "r", "new"), ("a", "s", "b")])
    with caplog.at_level(logging.INFO):
        graph = prepare(train, tmp_path / "g", valid=valid, partitions=2)
    assert graph.report["duplicate_edges"] == {"train": 2, "valid": 0, "test": 0}
    assert graph.report["self_loops"]["train"] == 1
    assert graph.report["unknown_nodes"]["valid"] == {"count": 1, "examples": ["new"]}
    assert graph.report["unknown_relations"]["valid"] == {"count": 1, "examples": ["s"]}
    assert named_edges(graph)["valid"] == Counter([("a", "r", "new"), ("a", "s", "b")])
    assert "1 node of valid occurs in no train edge (new); it is kept" in caplog.text
    assert "train has 2 edges that repeat another" in caplog.text


def test_nodes_and_relations_of_no_edge_are_kept_and_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Those of valid or test alone are counted as unknown to train instead."""
    train, test = np.array([[0, 0, 1]]), np.array([[0, 1, 2]])
    names = {"node_names": list("abcdefghi"), "relation_names": list("rstu")}
    with caplog.at_level(logging.INFO):
        graph = prepare_arrays(train, tmp_path / "g", test=test, partitions=1, **names)
        full = prepare_arrays(train, tmp_path / "h", split=(1, 0, 0), partitions=1)
    assert (graph.num_nodes, graph.num_relations) == (9, 4)
    unused = graph.report["unused_nodes"]
    assert (unused["count"], len(unused["examples"]), set(unused["examples"]) - set("defghi")) == (
        6,
        5,
        set(),
    )
    assert graph.report["unused_relations"] == {"count": 2, "examples": ["t", "u"]}
    assert graph.report["unknown_nodes"]["test"] == {"count": 1, "examples": ["c"]}
    assert graph.report["unknown_relations"]["test"] == {"count": 1, "examples": ["s"]}
    (nodes,) = [line for line in caplog.messages if "nodes occur in no edge" in line]
    assert nodes == f"6 nodes occur in no edge ({', '.join(unused['examples'])}, …); they are kept"
    assert "2 relations occur in no edge (t, u); they are kept" in caplog.messages
    assert full.report["unused_nodes"] == full.report["unused_relations"] == {"count": 0, "examples": []}


def test_existing_graph_is_refused_or_replaced(tmp_path: Path) -> None:
    old = write_rows(tmp_path / "old.tsv", random_rows(50))
    new = write_rows(tmp_path / "new.tsv", random_rows(70, 1))
    output = tmp_path / "g"
    first = prepare(old, output)
    with pytest.raises(ConfigError, match="overwrite=true"):
        prepare(new, output)
    assert open_graph(output).fingerprint == first.fingerprint
    second = prepare(new, output, overwrite=True)
    assert open_graph(output).fingerprint == second.fingerprint != first.fingerprint
    assert sorted(p.name for p in tmp_path.iterdir()) == ["g", "new.tsv", "old.tsv"]
    assert sorted(p.name for p in output.iterdir()) == [
        "edges.h5",
        "graph.json",
        "nodes.parquet",
        "relations.parquet",
    ]


def test_folders_that_are_no_graph_are_never_replaced(tmp_path: Path) -> None:
    train = write_rows(tmp_path / "t.tsv", random_rows(20))
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.txt").write_text("years of work")
    with pytest.raises(ConfigError, match="not empty"):
        prepare(train, tmp_path / "home", overwrite=True)
    with pytest.raises(ConfigError, match="is a file"):
        prepare(train, train, overwrite=True)
    (tmp_path / "empty").mkdir()
    assert prepare(train, tmp_path / "empty").num_edges["train"] == 18


def test_bad_arguments_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    train = write_rows(tmp_path / "t.tsv", random_rows(20, nodes=5))
    for wrong in (
        {"partitions": 0},
        {"partitions": 2.0},
        {"partitions": 99},
        {"seed": -1},
        {"split": (1, 1, 1)},
    ):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            prepare(train, tmp_path / "g", **wrong)
    with pytest.raises(ConfigError, match=r"seed is 9223372036854775808; allowed: .* to 2\^63 - 1"):
        prepare(train, tmp_path / "g", seed=2**63)
    with pytest.raises(ConfigError, match="format is 'xml'"):
        prepare(train, tmp_path / "g", format="xml")
    with pytest.raises(StorageError, match=r"input\.train=.* does not exist"):
        prepare(tmp_path / "none.tsv", tmp_path / "g")
    with pytest.raises(ConfigError, match=r"input\.train is of type NoneType; allowed: the path of a file"):
        prepare(None, tmp_path / "g", valid=train)  # type: ignore[arg-type]
    for name in ("[a.csv,b.csv]", "*.csv"):
        with pytest.raises(StorageError, match="does not exist; if several files are meant"):
            prepare(name, tmp_path / "g")
    assert [p.name for p in tmp_path.iterdir()] == ["t.tsv"]


def test_splits_must_agree_on_relations(tmp_path: Path) -> None:
    train = write_rows(tmp_path / "t.tsv", random_rows(20))
    valid = write_rows(tmp_path / "v.tsv", [("a", "b")])
    with pytest.raises(FormatError, match="all splits must agree"):
        prepare(train, tmp_path / "g", valid=valid)


def test_so_many_relations_that_they_may_be_tails_are_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rated = [(f"user {i % 150}", f"item {7 * i % 120}", f"{i % 5}") for i in range(600)]
    rows = write_rows(tmp_path / "ratings.tsv", rated)
    graph = prepare(rows, tmp_path / "rated")
    assert (graph.num_nodes, graph.num_relations) == (155, 120)
    assert "120 relations are many for 155 nodes: if the second column holds tails" in caplog.text
    caplog.clear()
    prepare(rows, tmp_path / "pairs", columns=[0, 1])
    prepare_arrays(np.array([(i, i % 99, i + 1) for i in range(200)]), tmp_path / "few")
    prepare_arrays(np.array([(i, i % 100, i + 1) for i in range(800)]), tmp_path / "of_many_nodes")
    assert "are many" not in caplog.text


def test_progress_is_told_by_stage(tmp_path: Path) -> None:
    calls: list[tuple[str, int, int | None, str]] = []
    train = write_rows(tmp_path / "t.tsv", random_rows(30))
    prepare(train, tmp_path / "g", progress=lambda *call: calls.append(call))
    stages = [call[0] for call in calls]
    # of each split one block; whether edges must be chosen one by one depends on the draw
    assert [stage for stage in stages if stage != "split exactly"] == [
        "read t.tsv",
        "split",
        *["count"] * 3,
        *["sort"] * 3,
    ]
    assert calls[0][1] == calls[0][2] == train.stat().st_size
    assert calls[0][3] == "B"
    assert calls[-1][1:] == (30, 30, "edges")


def test_progress_of_typed_files_is_in_edges(tmp_path: Path) -> None:
    np.save(tmp_path / "t.npy", np.array([["a", "b"], ["b", "c"], ["c", "a"]]))
    pq.write_table(pa.table({"head": ["a", "b"], "tail": ["b", "a"]}), tmp_path / "t.parquet")
    for name, count in (("t.npy", 3), ("t.parquet", 2)):
        calls: list[tuple[str, int, int | None, str]] = []
        prepare(
            tmp_path / name,
            tmp_path / name[2:],
            split=(1, 0, 0),
            progress=lambda *call, calls=calls: calls.append(call),
        )
        assert calls[0] == (f"read {name}", count, count, "edges")


def test_real_graph(tmp_path: Path, data_dir: Path) -> None:
    folder = data_dir / "umls"
    graph = prepare(
        folder / "train.tsv.gz", tmp_path / "g", valid=folder / "valid.tsv.gz", test=folder / "test.tsv.gz"
    )
    assert (graph.num_nodes, graph.num_relations) == (135, 46)
    for split, named in named_edges(graph).items():
        lines = gzip.decompress((folder / f"{split}.tsv.gz").read_bytes()).decode().splitlines()
        assert named == Counter(tuple(line.split("\t")) for line in lines)
