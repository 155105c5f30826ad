"""Blanks around names, `.0` behind numbers: kept, and warned of where they alone part two names."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marius_py import graph_from
from marius_py.prepare import prepare, spellings
from marius_py.prepare.extend import extend_graph
from marius_py.prepare.spellings import PaddedNames
from tests.prepare.graphs import all_edges

PARTED = "with and without blanks"
NONE = {"count": 0, "examples": []}


def written(path: Path, *lines: str) -> Path:
    path.write_text("".join(line + "\n" for line in lines))
    return path


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


def test_a_blank_after_each_comma_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lines = ("head, relation, tail", "Oslo, capital_of, Norway", "Norway, borders, Sweden")
    graph = prepare(written(tmp_path / "e.csv", *lines), tmp_path / "g", split=(1, 0, 0), partitions=1)
    assert set(all_edges(graph)) == {("Oslo", " capital_of", " Norway"), ("Norway", " borders", " Sweden")}
    header, names = warnings_of(caplog)
    assert header == (
        f"{tmp_path / 'e.csv'}, line 1: blanks stand around ' relation' and ' tail', and around fields "
        "below, such as ' capital_of'; those of a field are part of the name, so 'capital_of' would be "
        "another one: remove them from the file if they are not meant"
    )
    assert names == (
        "1 name of nodes occurs with and without blanks around them, or with several (such as ' Norway' and "
        "'Norway'); blanks are part of a name, so each spelling is another one: remove the blanks from the "
        "data if they are not meant, such as those after the commas of a CSV file"
    )
    assert graph.report["spellings_of_nodes"] == {"count": 1, "examples": [[" Norway", "Norway"]]}
    assert graph.report["padded_nodes"]["count"] == 2
    assert graph.report["spellings_of_relations"] == NONE


def test_long_names_are_cut_in_messages(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    train = written(tmp_path / "e.tsv", f"{'a' * 1000}\tr\tb", f"{'a' * 1000} \tr\tc")
    test = written(tmp_path / "t.tsv", f"{'d' * 1000}\tr\tb")
    graph = prepare(train, tmp_path / "g", test=test, partitions=1)
    told = warnings_of(caplog)
    assert any("a…" in text for text in told)
    assert any("d…" in text for text in told)
    assert max(map(len, told)) < 800
    assert graph.report["unknown_nodes"]["test"]["examples"] == ["d" * 1000]


def test_a_trailing_blank_is_warned_of_in_tsv(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    train = written(tmp_path / "e.tsv", "a\tr\tb ", "b\tr \tc")
    graph = prepare(train, tmp_path / "g", split=(1, 0, 0), partitions=1)
    nodes, relations = warnings_of(caplog)
    assert (
        "1 name of nodes occurs with and without blanks around them, or with several (such as 'b ' and"
        in nodes
    )
    assert "1 name of relations occurs with and" in relations
    assert graph.report["spellings_of_relations"] == {"count": 1, "examples": [["r ", "r"]]}


def test_blanks_that_part_no_names_are_told_without_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train = written(tmp_path / "e.csv", "head, tail", "New York,Big Apple", "Oslo,x ")
    with caplog.at_level(logging.INFO):
        graph = prepare(train, tmp_path / "g", split=(1, 0, 0), partitions=1)
    assert [m for m in warnings_of(caplog) if "stand around ' tail'" not in m] == []
    assert "1 name of nodes has blanks around them (such as 'x '); it is kept" in caplog.text
    assert graph.report["padded_nodes"] == {"count": 1, "examples": ["x "]}
    caplog.clear()
    with caplog.at_level(logging.INFO):
        plain = written(tmp_path / "p.csv", "head, tail", "New York,Big Apple")
        prepare(plain, tmp_path / "p", split=(1, 0, 0), partitions=1)
    assert "blanks" not in caplog.text


def test_spellings_in_memory_and_across_an_extension_are_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    graph_from([("a ", "b"), (" a", "b")], tmp_path / "list", split=(1, 0, 0), partitions=1)
    assert PARTED in caplog.text
    caplog.clear()
    old = prepare(
        written(tmp_path / "o.tsv", "a\tb", "b\tc"), tmp_path / "old", split=(1, 0, 0), partitions=1
    )
    assert PARTED not in caplog.text
    new = extend_graph(old, written(tmp_path / "n.tsv", "c \td"), tmp_path / "new")
    assert PARTED in caplog.text
    assert new.report["spellings_of_nodes"] == {"count": 1, "examples": [["c ", "c"]]}


def test_integer_names_have_no_blanks(tmp_path: Path) -> None:
    np.save(tmp_path / "e.npy", np.array([[1, 2], [2, 3]]))
    graph = prepare(tmp_path / "e.npy", tmp_path / "g", split=(1, 0, 0), partitions=1)
    assert graph.report["padded_nodes"] == graph.report["spellings_of_nodes"] == NONE


@given(
    names=st.lists(
        st.text(" \t\u00a0\u3000ab", min_size=1, max_size=4), unique=True, min_size=1, max_size=40
    ),
    size=st.integers(1, 9),
)
def test_spellings_are_those_that_python_finds(names: list[str], size: int) -> None:
    def blocks() -> Iterator[Any]:
        for start in range(0, len(names), size):
            yield pa.array(names[start : start + size], pa.large_string())

    padded = PaddedNames()
    assert [name for block in padded.watch(blocks()) for name in block.to_pylist()] == names
    found = padded.twins(blocks)
    by_bare: dict[str, list[str]] = {}
    for name in names:
        by_bare.setdefault(name.strip(), []).append(name)
    assert padded.count == sum(name != name.strip() for name in names)
    assert padded.facts()["examples"] == [name for name in names if name != name.strip()][:5]
    several = {bare: spellings for bare, spellings in by_bare.items() if len(spellings) > 1}
    assert found["count"] == len(several)
    assert len(found["examples"]) == min(5, len(several))
    for first, second in found["examples"]:
        assert first != second
        assert {first, second} <= set(several[first.strip()])


def test_no_more_padded_names_are_held_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spellings, "LOOKED_UP", 3)
    names = [pa.array([f" {i}", f"{i}"], pa.large_string()) for i in range(5)]
    padded = PaddedNames()
    list(padded.watch(iter(names)))
    assert padded.count == 5
    assert padded.twins(lambda: iter(names))["count"] == 3


def test_numbers_that_pandas_made_floats_are_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old = prepare(written(tmp_path / "e.csv", "u7,12", "u8,13", "u8,13.5"), tmp_path / "g", split=(1, 0, 0))
    assert "spelling" not in caplog.text
    week = written(tmp_path / "week.csv", "u9,12.0", "u7,14.0", "v1.0,13.50")
    new = extend_graph(old, week, tmp_path / "new")
    assert {"12", "12.0", "14.0"} <= set(new.node_names())
    (told,) = [message for message in warnings_of(caplog) if "spelling" in message]
    assert told.startswith("1 number is a name of nodes in two spellings (such as '12' and '12.0')")
    assert "convert that column with .astype('Int64') first" in told
    caplog.clear()
    rated = written(tmp_path / "r.csv", "u1,3.0,i1", "u1,3,i2", "u2,4.0,i1")
    prepare(rated, tmp_path / "rated", split=(1, 0, 0))
    assert "1 number is a name of relations in two spellings (such as '3' and '3.0')" in caplog.text


def test_large_numbers_that_pandas_rounded_are_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ids = pd.Series([1234567890123456789, None, 1234567890123456790], dtype=float)
    frame = pd.DataFrame({"head": ids, "tail": ["a", "b", "c"]}).dropna()
    frame.to_csv(tmp_path / "e.csv", index=False)
    graph = prepare(tmp_path / "e.csv", tmp_path / "g", split=(1, 0, 0))
    assert graph.num_nodes == 3
    (told,) = warnings_of(caplog)
    assert told.startswith("1 name of a node is a float (such as '1.2345678901234568e+18'), which hold")
    caplog.clear()
    prepare(written(tmp_path / "w.csv", "e+1,b", "2e+1,c", "x1.5e+3,d"), tmp_path / "w", split=(1, 0, 0))
    assert warnings_of(caplog) == []
