from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

from marius_py.config import PrepareConfig, compose
from marius_py.convert import graph_from
from marius_py.errors import ConfigError
from marius_py.graph import Graph
from marius_py.prepare import prepare, prepare_arrays
from marius_py.prepare.extend import extend_graph
from marius_py.storage.weighted import weights_of
from tests.prepare.graphs import named_edges, write_rows

RING = [(f"n{i}", f"n{(i + 1) % 60}") for i in range(60)]


def reversed_pairs(rows: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    return sorted(row[::-1] for row in rows)


def rows_with_weights(graph: Graph) -> set[tuple[str, str, float]]:
    names = graph.node_names()
    with graph.edges() as store:
        (rows,) = store.blocks("train", 1 << 20, weights=True)
    return {
        (names[head], names[tail], float(weight))
        for (head, _, tail, _), weight in zip(rows.tolist(), weights_of(rows), strict=True)
    }


def test_a_random_split_has_each_edge_and_its_reverse_in_one_split(tmp_path: Path) -> None:
    file = write_rows(tmp_path / "ring.tsv", [*RING, ("n0", "n0")])
    graph = prepare(file, tmp_path / "g", mirror=True, split=(0.8, 0.1, 0.1))
    splits = named_edges(graph)
    assert sum(len(rows) for rows in splits.values()) == 2 * len(RING) + 1  # a loop is its own reverse
    assert {graph.num_edges[split] for split in ("valid", "test")} <= {11, 12}  # 11: the loop is among them
    for rows in splits.values():
        assert sorted(rows) == reversed_pairs(rows)
    assert {row for rows in splits.values() for row in rows} >= set(RING)
    assert graph.report["reversed_edges"]["test"]["reversed"] == 0
    assert graph.report["mirrored"] is True


def test_given_splits_are_mirrored_each_and_keep_their_relations(tmp_path: Path) -> None:
    files = [
        write_rows(tmp_path / f"{name}.tsv", rows)
        for name, rows in (
            ("train", [("a", "likes", "b"), ("b", "knows", "c")]),
            ("valid", [("a", "knows", "c")]),
            ("test", [("c", "likes", "a")]),
        )
    ]
    graph = prepare(files[0], tmp_path / "g", valid=files[1], test=files[2], mirror=True, partitions=1)
    found = {split: sorted(rows) for split, rows in named_edges(graph).items()}
    assert found == {
        "train": [("a", "likes", "b"), ("b", "knows", "c"), ("b", "likes", "a"), ("c", "knows", "b")],
        "valid": [("a", "knows", "c"), ("c", "knows", "a")],
        "test": [("a", "likes", "c"), ("c", "likes", "a")],
    }


def test_a_reverse_has_the_weight_of_its_edge(tmp_path: Path) -> None:
    file = write_rows(tmp_path / "w.tsv", [("a", "b", "2"), ("c", "c", "5"), ("b", "c", "0.5")])
    graph = prepare(file, tmp_path / "g", weight=2, mirror=True, split=(1, 0, 0), partitions=1)
    expected = {("a", "b", 2.0), ("b", "a", 2.0), ("c", "c", 5.0), ("b", "c", 0.5), ("c", "b", 0.5)}
    assert rows_with_weights(graph) == expected
    assert graph.mean_weight == pytest.approx(2)
    more = write_rows(tmp_path / "more.tsv", [("d", "a", "3")])
    longer = extend_graph(graph, more, tmp_path / "longer", weight=2)
    assert rows_with_weights(longer) == expected | {("d", "a", 3.0), ("a", "d", 3.0)}


def test_arrays_and_networkx_are_mirrored(tmp_path: Path) -> None:
    networkx = pytest.importorskip("networkx")
    ring = networkx.cycle_graph(50)
    pairs = np.array(list(ring.edges))
    for graph in (
        graph_from(ring, tmp_path / "nx", mirror=True),
        prepare_arrays(pairs, tmp_path / "whole", mirror=True),
        prepare_arrays((pairs[i : i + 7] for i in range(0, 50, 7)), tmp_path / "blocks", mirror=True),
        graph_from([tuple(map(str, pair)) for pair in pairs], tmp_path / "list", mirror=True),
    ):
        rows = [row for split in named_edges(graph).values() for row in split]
        assert sorted(rows) == sorted(
            (str(a), str(b)) for pair in pairs.tolist() for a, b in (pair, pair[::-1])
        )
        assert all(sorted(split) == reversed_pairs(split) for split in named_edges(graph).values())


def test_a_graph_that_is_extended_stays_mirrored(tmp_path: Path) -> None:
    graph = prepare(write_rows(tmp_path / "ring.tsv", RING), tmp_path / "g", mirror=True)
    new = write_rows(tmp_path / "new.tsv", [("x", "n0"), ("y", "y")])
    test = write_rows(tmp_path / "test.tsv", [("x", "n1")])
    once = extend_graph(graph, new, tmp_path / "once", test=test)
    twice = extend_graph(once, write_rows(tmp_path / "z.tsv", [("z", "x")]), tmp_path / "twice")
    before, after = named_edges(graph), named_edges(twice)
    added = {split: set(after[split]) - set(before[split]) for split in after}
    assert added == {
        "train": {("x", "n0"), ("n0", "x"), ("y", "y"), ("z", "x"), ("x", "z")},
        "valid": set(),
        "test": {("x", "n1"), ("n1", "x")},
    }


def test_edges_that_were_listed_both_ways_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = write_rows(tmp_path / "both.tsv", [("a", "b"), ("b", "a"), ("b", "c")])
    with caplog.at_level(logging.INFO):
        prepare(file, tmp_path / "g", mirror=True, split=(1, 0, 0), partitions=1)
    assert "train has 2 edges that repeat another; they are kept (input.mirror=true adds" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.INFO):
        prepare(
            write_rows(tmp_path / "c.tsv", [("a", "b")] * 2), tmp_path / "h", split=(1, 0, 0), partitions=1
        )
    assert "1 edge that repeats another; it is kept" in caplog.text
    assert "mirror" not in caplog.text


def test_both_directions_cannot_be_listed_and_added(tmp_path: Path) -> None:
    file = write_rows(tmp_path / "ring.tsv", RING)
    with pytest.raises(ConfigError, match="undirected is for edges that are listed in both directions, and"):
        prepare(file, tmp_path / "g", undirected=True, mirror=True)
    with pytest.raises(ConfigError, match="leave one of them out"):
        prepare_arrays(np.array([[0, 1]]), tmp_path / "g", undirected=True, mirror=True)
    words = [f"input.train={file}", "output=g", "input.undirected=true", "input.mirror=true"]
    with pytest.raises(ConfigError, match=r"input\.mirror=true adds the other direction to those"):
        compose(PrepareConfig, words)
    with pytest.raises(ConfigError, match=r"input\.mirror=True would not be used: dataset=FB15k-237 brings"):
        compose(PrepareConfig, ["dataset=fb15k_237", "output=g", "input.mirror=true"])
    assert not (tmp_path / "g").exists()
