from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from marius_py.errors import ConfigError
from marius_py.generate import planted_edges, planted_graph, rmat_edges
from marius_py.prepare import prepare_arrays


def test_planted_edges_are_distinct_exact_and_repeatable() -> None:
    edges = planted_edges(1000, 6, 8000, seed=3)
    assert edges.shape == (8000, 3)
    assert edges.dtype == np.int32
    assert len(np.unique(edges, axis=0)) == 8000
    assert edges.min() == 0
    assert edges.max(axis=0).tolist() == [999, 5, 999]
    assert np.array_equal(edges, planted_edges(1000, 6, 8000, seed=3))
    assert not np.array_equal(edges, planted_edges(1000, 6, 8000, seed=4))


def test_sizes_of_numpy_do_not_overflow() -> None:
    sizes = 100_000, 6_000, 10
    assert np.array_equal(planted_edges(*map(np.int32, sizes)), planted_edges(*sizes))


def test_planted_structure_predicts_tails() -> None:
    edges = planted_edges(2000, 8, 30_000, noise=0.1)
    groups = 200
    shift = (edges[:, 2] - edges[:, 0]) % groups
    found = set()
    for relation in range(8):
        counts = np.bincount(shift[edges[:, 1] == relation], minlength=groups)
        found.add(int(counts.argmax()))
        assert counts.max() / counts.sum() > 0.8
    assert {0, groups // 2} <= found
    degrees = np.sort(np.bincount(edges[:, [0, 2]].ravel(), minlength=2000))
    assert degrees[-200:].sum() > 2 * degrees[:1000].sum() / 5


def test_planted_graph(tmp_path: Path) -> None:
    graph = planted_graph(tmp_path / "g", num_nodes=300, num_relations=4, num_edges=2000, partitions=4)
    assert graph.num_edges == {"train": 1800, "valid": 100, "test": 100}
    assert (graph.num_nodes, graph.num_relations) == (300, 4)
    assert sorted(graph.node_names())[0] == "node_0"
    assert graph.relation_names() == [f"relation_{i}" for i in range(4)]
    assert graph.report["duplicate_edges"] == {"train": 0, "valid": 0, "test": 0}


@pytest.mark.parametrize("num_nodes", [2, 1000, 1024])
def test_rmat_stays_in_range_and_is_skewed(num_nodes: int) -> None:
    blocks = list(rmat_edges(num_nodes, 20_000, 5, seed=1, block_rows=6000))
    assert [len(block) for block in blocks] == [6000, 6000, 6000, 2000]
    edges = np.concatenate(blocks)
    assert edges.dtype == np.int32
    assert edges.min() >= 0
    assert (edges.max(axis=0) < [num_nodes, 5, num_nodes]).all()
    degrees = np.sort(np.bincount(edges[:, 0], minlength=num_nodes))
    assert degrees[-num_nodes // 10 or None :].sum() > 0.3 * len(edges)
    relations = np.bincount(edges[:, 1])
    assert (np.diff(relations) < 0).all()


def test_rmat_quadrants_have_their_shares() -> None:
    edges = next(rmat_edges(1 << 16, 100_000))
    quadrant = (edges[:, 0] >> 15) * 2 + (edges[:, 2] >> 15)
    assert np.bincount(quadrant) / len(edges) == pytest.approx([0.57, 0.19, 0.19, 0.05], abs=0.01)


def test_rmat_above_two_to_the_31_uses_wide_ids() -> None:
    edges = next(rmat_edges((1 << 31) + 10, 1000))
    assert edges.dtype == np.int64
    assert edges.max() > 1 << 29


@pytest.mark.parametrize("num_nodes", [(1 << 31) + 10, 6_000_000_000, (1 << 40) - 1])
def test_rmat_folds_exactly_where_a_product_has_more_than_63_bits(num_nodes: int) -> None:
    levels = num_nodes.bit_length()
    cells = next(rmat_edges(1 << levels, 1000))
    edges = next(rmat_edges(num_nodes, 1000))
    for column in (0, 2):
        expected = [cell * num_nodes >> levels for cell in cells[:, column].tolist()]
        assert edges[:, column].tolist() == expected


def test_rmat_prepares_without_names(tmp_path: Path) -> None:
    edges = np.concatenate(list(rmat_edges(5000, 20_000, 2)))
    graph = prepare_arrays(rmat_edges(5000, 20_000, 2), tmp_path / "g", num_nodes=5000, partitions=4)
    names = np.array(graph.node_names()).astype(int)
    assert np.array_equal(np.sort(names), np.arange(5000))
    with graph.edges() as store:
        stored = np.concatenate([store.read(split) for split in ("train", "valid", "test")])
    stored[:, [0, 2]] = names[stored[:, [0, 2]]]
    assert np.array_equal(stored[np.lexsort(stored.T)], edges[np.lexsort(edges.T)])


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: planted_edges(1, 1, 1), "num_nodes is 1"),
        (lambda: planted_edges(20, 1, 1000), "room for"),
        (lambda: planted_edges(noise=2.0), "noise is 2.0"),
        (lambda: next(rmat_edges(10, 0)), "num_edges is 0"),
        (lambda: next(rmat_edges(10, 10, shares=(1, 1, 0, 0))), "four chances"),
        (lambda: next(rmat_edges(10, 10, shares=5)), "four chances"),  # type: ignore[arg-type]
        (lambda: next(rmat_edges(10, 10, shares=("a",) * 4)), "four chances"),  # type: ignore[arg-type]
        (lambda: next(rmat_edges(10, 10, block_rows=-1)), "block_rows is -1; allowed: a whole number"),
        (lambda: next(rmat_edges(10, 10, seed=1.5)), "seed is 1.5; allowed"),  # type: ignore[arg-type]
        (lambda: planted_edges(seed="5"), "seed is '5'; allowed: a whole number"),  # type: ignore[arg-type]
        (lambda: planted_edges(noise="5"), "noise is '5'; allowed: a number"),  # type: ignore[arg-type]
    ],
)
def test_bad_sizes(call: object, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        call()  # type: ignore[operator]
