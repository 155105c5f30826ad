from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from marius_py.convert import graph_from
from marius_py.errors import ConfigError, FormatError
from marius_py.prepare import prepare, prepare_arrays
from tests.prepare.graphs import all_edges, named_edges


def some_edges(count: int = 200, nodes: int = 40, relations: int = 3, dtype: Any = np.int64) -> np.ndarray:
    rng = np.random.default_rng(0)
    return np.stack(
        [rng.integers(0, nodes, count), rng.integers(0, relations, count), rng.integers(0, nodes, count)],
        axis=1,
    ).astype(dtype)


def as_named(edges: np.ndarray) -> Counter[tuple[str, ...]]:
    return Counter(tuple(map(str, row)) for row in edges.tolist())


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int32, np.int64, np.uint64])
def test_numbers_are_names(tmp_path: Path, dtype: Any) -> None:
    edges = some_edges(dtype=dtype)
    graph = prepare_arrays(edges[:150], tmp_path / "g", valid=edges[150:180], test=edges[180:], partitions=4)
    named = named_edges(graph)
    assert named["train"] == as_named(edges[:150])
    assert named["valid"] == as_named(edges[150:180])
    assert named["test"] == as_named(edges[180:])
    assert graph.names_are_integers
    assert sorted(map(int, graph.node_names())) == list(range(graph.num_nodes))
    assert graph.node_ids(["7", "07", "x", str(graph.num_nodes)]).tolist()[1:] == [-1, -1, -1]
    assert graph.node_names()[graph.node_ids(["7"])[0]] == "7"


def test_blocks_and_names(tmp_path: Path) -> None:
    edges = some_edges()

    def blocks() -> Iterator[np.ndarray]:
        for start in range(0, len(edges), 30):
            yield edges[start : start + 30]
            yield edges[:0]

    nodes, relations = [f"n {i}" for i in range(50)], ["a", "b", "c"]
    graph = prepare_arrays(blocks(), tmp_path / "g", node_names=nodes, relation_names=relations)
    assert graph.num_nodes == 50
    assert all_edges(graph) == Counter((nodes[h], relations[r], nodes[t]) for h, r, t in edges.tolist())
    whole = prepare_arrays(edges, tmp_path / "h", node_names=nodes, relation_names=relations)
    assert whole.fingerprint == graph.fingerprint


def test_two_columns(tmp_path: Path) -> None:
    edges = some_edges()[:, [0, 2]]
    graph = prepare_arrays(edges, tmp_path / "g", num_nodes=1000)
    assert (graph.num_nodes, graph.num_relations, graph.has_relations) == (1000, 1, False)
    assert all_edges(graph) == as_named(edges)


@pytest.mark.filterwarnings("ignore:the matrix subclass")
@pytest.mark.parametrize("kind", [np.matrix, np.ma.array])
@pytest.mark.parametrize("columns", [[0, 2], [0, 1, 2]])
def test_subclasses_of_arrays(tmp_path: Path, kind: Any, columns: list[int]) -> None:
    edges = some_edges()[:, columns]
    assert all_edges(prepare_arrays(kind(edges), tmp_path / "g")) == as_named(edges)


def test_wide_ids_near_the_limit_of_int32(tmp_path: Path) -> None:
    top = (1 << 31) + 5
    with pytest.raises(ConfigError, match="must be dense"):
        prepare_arrays(np.array([[0, 0, top], [1, 0, 2]]), tmp_path / "g", split=(1, 0, 0))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("edges", "options", "error", "text"),
    [
        (np.zeros((0, 3), int), {}, FormatError, "train has no edges"),
        (np.zeros((5, 4), int), {}, FormatError, r"shape \(5, 4\)"),
        (np.zeros(5, int), {}, FormatError, r"shape \(5,\)"),
        (np.zeros((5, 3)), {}, FormatError, "type float64"),
        ([[1, 2, 3]], {}, FormatError, "train has a block that is a list; .*graph_from takes lists"),
        ([(1, 2, 3), (2, 2, 4)], {}, FormatError, "a block that is a tuple; edges need a NumPy array"),
        (np.array([[0, 0, 1], [0, 0, -1]]), {}, FormatError, "row 1: node number -1; allowed"),
        (
            np.array([[0, 0, 1], [0, 0, 9]]),
            {"num_nodes": 9},
            FormatError,
            "row 1: node number 9; allowed: 0 to 8",
        ),
        (np.array([[0, 4, 1]]), {"num_relations": 4}, FormatError, "relation number 4; allowed: 0 to 3"),
        (
            np.ma.array([[0, 1], [-1, 2]], mask=[[0, 0], [1, 0]]),
            {"num_nodes": 3},
            FormatError,
            "train, row 1: a mask hides a number",
        ),
        (np.array([[0, 0, 1]]), {"num_nodes": 0}, ConfigError, "num_nodes is 0"),
        (np.array([[0, 0, 1]]), {"num_nodes": 1 << 41}, ConfigError, "from 1 to 1099511627776"),
        (np.array([[0, 0, 1]]), {"num_relations": 1 << 32}, ConfigError, "from 1 to 2147483648"),
        (np.array([[0, 0, 1]]), {"node_names": ["a", "a"]}, ConfigError, "'a' more than once"),
        (np.array([[0, 0, 1]]), {"node_names": "ab"}, ConfigError, "node_names is of type str; allowed"),
        (
            np.array([[0, 0, 1]]),
            {"node_names": {"b": 1, "a": 0}},
            ConfigError,
            "type dict; .* order of their",
        ),
        (np.array([[0, 0, 1]]), {"relation_names": {"r"}}, ConfigError, "relation_names is of type set"),
        (np.array([[0, 0, 1]]), {"node_names": ["a", ""]}, ConfigError, "empty name"),
        (np.array([[0, 0, 1]]), {"node_names": ["a"], "num_nodes": 2}, ConfigError, "1 names"),
        (np.array([[0, 0, 1]]), {"node_names": ["a", "b\0c"]}, ConfigError, r"holds 'b\\x00c', .* a NUL"),
        (np.array([[0, 0, 1]]), {"relation_names": ["\0"]}, ConfigError, r"relation_names holds '\\x00'"),
        (np.array([[0, 0, 1]]), {"node_names": ["a", "b\udc80"]}, ConfigError, r"'b\\udc80', which UTF-8"),
    ],
)
def test_bad_arrays(
    tmp_path: Path, edges: Any, options: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        prepare_arrays(edges, tmp_path / "g", split=(1, 0, 0), **options)
    assert list(tmp_path.iterdir()) == []


def test_splits_must_have_the_same_columns(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="all must agree"):
        prepare_arrays(some_edges(), tmp_path / "g", valid=some_edges()[:, :2])


def test_numbers_of_relations_are_dense_too(tmp_path: Path) -> None:
    edges = np.array([[0, 5_000_000, 1], [1, 0, 0]])
    with pytest.raises(ConfigError, match=r"largest relation number is 5,000,000 .* pass num_relations="):
        prepare_arrays(edges, tmp_path / "g")
    assert prepare_arrays(edges[:, ::2], tmp_path / "g", split=(1, 0, 0)).num_relations == 1


def test_shares_beside_given_splits_are_refused(tmp_path: Path) -> None:
    edges = np.array([[0, 0, 1], [1, 0, 0]])
    (tmp_path / "t.tsv").write_text("a\tr\tb\n")
    file = tmp_path / "t.tsv"
    for part in ("valid", "test"):
        for call in (
            lambda part: prepare_arrays(edges, tmp_path / "g", split=(1, 0, 0), **{part: edges}),
            lambda part: prepare(file, tmp_path / "g", split=(1, 0, 0), **{part: file}),
            lambda part: graph_from([("a", "b")], tmp_path / "g", split=(1, 0, 0), **{part: [("b", "a")]}),
        ):
            with pytest.raises(ConfigError, match=r"split is \(1, 0, 0\), but it is for a random split"):
                call(part)
    assert not (tmp_path / "g").exists()
