from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_py.convert import graph_from
from marius_py.errors import ConfigError
from marius_py.prepare import prepare, prepare_arrays
from marius_py.prepare.extend import extend_graph
from marius_py.prepare.overlap import TrainOverlap
from tests.prepare.graphs import named_edges, write_rows

Rows = list[tuple[int, int, int]]

edges = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 2), st.integers(0, 6)), max_size=40)


def as_array(rows: Rows) -> np.ndarray:
    return np.array(rows, dtype=np.int32).reshape(-1, 3)


def blocks(rows: Rows, size: int) -> Iterator[np.ndarray]:
    for start in range(0, len(rows), size):
        yield as_array(rows[start : start + size])


def both_ways(num_nodes: int, num_edges: int, seed: int) -> np.ndarray:
    """Edges (2n, 2) between distinct nodes, each with its reverse."""
    pairs = np.random.default_rng(seed).integers(0, num_nodes, (num_edges, 2))
    pairs = np.unique(np.sort(pairs[pairs[:, 0] != pairs[:, 1]], axis=1), axis=0)
    return np.concatenate((pairs, pairs[:, ::-1]))


@settings(max_examples=60)
@given(train=edges, valid=edges, test=edges, size=st.integers(1, 17))
def test_counts_are_those_of_a_plain_search(train: Rows, valid: Rows, test: Rows, size: int) -> None:
    counter = TrainOverlap()
    for split, rows in (("valid", valid), ("test", test)):
        for block in blocks(rows, size):
            counter.sample(split, block)
    for block in blocks(train, size):
        counter.look(block)
    reverses = {(tail, head) for head, _, tail in train}
    for split, rows in (("valid", valid), ("test", test)):
        same = {"sampled": len(rows), "in_train": sum(row in set(train) for row in rows)}
        assert counter.in_train()[split] == same
    for split, rows in (("valid", valid), ("test", test)):
        asked = [(head, tail) for head, _, tail in rows if head != tail]
        expected = {"sampled": len(asked), "reversed": sum(pair in reverses for pair in asked)}
        assert counter.reversed_in_train()[split] == expected


def test_a_sample_tells_the_share_of_many_edges() -> None:
    rng = np.random.default_rng(0)
    test = as_array([(int(i), 0, int(i) + 50_000) for i in range(50_000)])
    train = test[:, ::-1][rng.random(50_000) < 0.3]
    counter = TrainOverlap(sample=5_000)
    for start in range(0, len(test), 7_000):
        counter.sample("test", test[start : start + 7_000])
    counter.look(train)
    found = counter.reversed_in_train()["test"]
    assert found["sampled"] == 5_000
    assert found["reversed"] / 5_000 == pytest.approx(0.3, abs=0.03)
    counter.look(test[: len(test) // 5])
    assert counter.in_train()["test"]["in_train"] / 5_000 == pytest.approx(0.2, abs=0.03)


def test_a_random_split_of_both_directions_warns_and_undirected_mends_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pairs = both_ways(200, 800, 0)
    parted = prepare_arrays(pairs, tmp_path / "parted")
    found = parted.report["reversed_edges"]["test"]
    assert found["reversed"] > 0.8 * found["sampled"] > 0
    assert "of the test edges stand in train the other way round" in caplog.text
    assert "input.undirected=true (in Python undirected=True of graph_from or prepare, whose" in caplog.text
    caplog.clear()
    whole = prepare_arrays(pairs, tmp_path / "whole", undirected=True)
    counts = whole.num_edges
    assert whole.report["reversed_edges"] == {
        split: {"sampled": counts[split], "reversed": 0} for split in ("valid", "test")
    }
    assert counts["test"] in (round(0.05 * len(pairs)), round(0.05 * len(pairs)) - 1)
    assert sum(counts.values()) == len(pairs)
    assert "other way round" not in caplog.text
    for rows in named_edges(whole).values():
        assert {(tail, head) for head, tail in rows} == set(rows)


def test_edges_to_be_ranked_that_stand_in_train_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def told() -> tuple[int, str]:
        (record,) = (record for record in caplog.records if "as they are" in record.getMessage())
        caplog.clear()
        return record.levelno, record.getMessage()

    rows = [(f"n{i}", "r", f"n{i + 1}") for i in range(300)]
    train = write_rows(tmp_path / "t.tsv", rows)
    graph = prepare(train, tmp_path / "g", test=train, partitions=1)
    assert graph.report["edges_in_train"]["test"] == {"sampled": 300, "in_train": 300}
    assert told() == (
        logging.WARNING,
        "of 300 test edges that were looked up, 300 stand in train as they are: they measure what the model "
        "was trained on, and make it look better than it is",
    )
    other = write_rows(tmp_path / "v.tsv", [(head, "s", tail) for head, _, tail in rows])
    clean = prepare(train, tmp_path / "clean", test=other, partitions=1)
    assert clean.report["edges_in_train"]["test"] == {"sampled": 300, "in_train": 0}
    assert "as they are" not in caplog.text
    for count, level in ((2, logging.INFO), (4, logging.WARNING)):
        some = write_rows(tmp_path / "some.tsv", [(head, "s", tail) for head, _, tail in rows[:count]])
        with caplog.at_level(logging.INFO):
            extend_graph(clean, some, tmp_path / f"extended{count}")
        assert told()[0] == level


def test_few_reverses_are_told_without_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    train = write_rows(tmp_path / "t.tsv", [("a", "r", "b"), ("b", "r", "c"), ("c", "r", "a")])
    test = write_rows(
        tmp_path / "v.tsv", [("b", "s", "a"), ("a", "r", "b"), ("a", "r", "a"), ("b", "r", "c")]
    )
    with caplog.at_level(logging.INFO):
        graph = prepare(train, tmp_path / "g", test=test, partitions=1)
    assert graph.report["reversed_edges"]["test"] == {"sampled": 3, "reversed": 1}
    record = next(record for record in caplog.records if "other way round" in record.getMessage())
    assert record.levelno == logging.INFO
    assert "33 % of the test edges" in record.getMessage()


def test_undirected_is_named_only_where_it_can_help(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    train = write_rows(tmp_path / "t.tsv", [("a", "r", "b"), ("b", "r", "c")])
    test = write_rows(tmp_path / "v.tsv", [("b", "r", "a"), ("c", "r", "b")])
    graph = prepare(train, tmp_path / "g", test=test, partitions=1)
    extend_graph(graph, train, tmp_path / "more")
    both = np.array([row for i in range(200) for row in ((i, 0, i + 1), (i + 1, 1, i))])
    prepare_arrays(both, tmp_path / "other", split=(0.9, 0, 0.1), undirected=True)
    told = [r.getMessage() for r in caplog.records if "other way round" in r.getMessage()]
    assert len(told) == 3
    assert "their ranks will look better" in told[0]
    assert not any("undirected" in message for message in told)


def test_fewer_reverses_than_half_a_per_cent_are_not_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train = np.array([[i, i + 1] for i in range(450)])
    test = np.array([[i, i + 2] for i in range(449)])
    with caplog.at_level(logging.INFO):
        for count, name in ((2, "few"), (3, "more")):
            test[:count] = train[:count, ::-1]
            graph = prepare_arrays(train, tmp_path / name, test=test)
            assert graph.report["reversed_edges"]["test"] == {"sampled": 449, "reversed": count}
    told = [r.getMessage() for r in caplog.records if "other way round" in r.getMessage()]
    assert told == ["1 % of the test edges stand in train the other way round"]


def test_other_relations_are_no_copies_of_each_other(tmp_path: Path) -> None:
    rows = [(f"n{i}", relation, f"n{i + 1}") for i in range(50) for relation in ("r", "s")]
    graph = graph_from(rows, tmp_path / "g", undirected=True, split=(0.8, 0.1, 0.1))
    assert graph.num_edges == {"train": 80, "valid": 10, "test": 10}


def test_undirected_needs_a_random_split(tmp_path: Path) -> None:
    train = write_rows(tmp_path / "t.tsv", [("a", "r", "b")])
    for given_splits in ({"valid": train}, {"test": train}):
        with pytest.raises(ConfigError, match="undirected is for a random split"):
            prepare(train, tmp_path / "g", undirected=True, **given_splits)
    with pytest.raises(ConfigError, match="undirected is for a random split"):
        prepare_arrays(np.array([[0, 1]]), tmp_path / "g", test=np.array([[0, 1]]), undirected=True)
    assert not (tmp_path / "g").exists()
