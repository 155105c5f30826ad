"""Names are numbered by first appearance, by one pass over all of them as by the table that stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from marius_py.errors import FormatError
from marius_py.prepare import prepare
from marius_py.prepare.extend import extend_graph
from marius_py.prepare.name_table import NameTable

KINDS = {"integer": pa.int64(), "text": pa.large_string()}


def _texts(rng: np.random.Generator, count: int) -> list[str]:
    letters = np.array(list("aé\u0000字🙂 "))
    return ["".join(rng.choice(letters, rng.integers(0, 21))) for _ in range(count)]


def _columns(kind: str) -> list[Any]:
    """Columns of names with some in common and some repeated; slices, empty and chunked ones among them."""
    rng = np.random.default_rng(3)
    found = []
    for size in (1, 700, 5000, 40, 9000, 3):
        if kind == "integer":
            values: Any = rng.integers(-4000, 4000, size) * 2**40
            values[: size // 9] = np.iinfo(np.int64).min + np.arange(size // 9)
        else:
            values = [*_texts(rng, size), *(f"http://example.org/{i}" for i in rng.integers(0, 4000, size))]
        array = pa.array(values, KINDS[kind])
        found.append(array.slice(len(array) // 7, len(array) // 2) if size % 1000 == 0 else array)
    empty = found[0].slice(0, 0)
    return [empty, *found, pa.chunked_array([empty, found[1], empty, found[2].slice(3)]), empty]


@pytest.mark.parametrize("together", [1, 4, 9])
@pytest.mark.parametrize("large", [0, 800, 1 << 20])
@pytest.mark.parametrize("kind", ["text", "integer", "string"])
def test_names_are_numbered_by_first_appearance(
    kind: str, large: int, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("marius_py.prepare.name_table.LARGE_NAMES", large)
    monkeypatch.setattr("marius_py.prepare.name_table._SLICE", 1000)
    columns, known = _columns("text" if kind == "string" else kind), dict[Any, int]()
    expected = [[known.setdefault(name, len(known)) for name in one.to_pylist()] for one in columns]
    if kind == "string":  # of two files, one with the offsets of the other kind
        columns = [*(one.cast(pa.string()) for one in columns[:5]), *columns[5:]]
    table = NameTable("integer" if kind == "integer" else "text", "node")
    numbers = [
        found.tolist()
        for start in range(0, len(columns), together)
        for found in table.number(columns[start : start + together])
    ]
    assert numbers == expected
    assert len(table) == len(known)
    table.names.validate(full=True)
    assert table.names.to_pylist() == list(known)


def test_integers_of_one_file_are_texts_beside_texts_of_another() -> None:
    table = NameTable("text", "node")
    numbers = table.number([pa.array([7, 8, 7]), pa.array(["8", "x"])])
    assert [found.tolist() for found in numbers] == [[0, 1, 0], [1, 2]]
    assert table.names.to_pylist() == ["7", "8", "x"]


@pytest.mark.parametrize("kind", KINDS)
def test_names_whose_halves_of_a_hash_are_alike_are_told_apart(kind: str) -> None:
    """Among so many some twenty pairs have the same half: 300,000² / 2³³."""
    values = np.random.default_rng(0).permutation(400_000)[:300_000] * 7
    array = pa.array(
        values if kind == "integer" else [f"{value:x}" for value in values.tolist()], KINDS[kind]
    )
    table = NameTable(kind, "node")  # type: ignore[arg-type]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("marius_py.prepare.name_table.LARGE_NAMES", 0)
        found = table.number([array.slice(0, 1), array.slice(0, 200_000), array])
    for numbers in found:
        np.testing.assert_array_equal(numbers, np.arange(len(numbers)))
    assert table.names.equals(array)


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_takes_more_after_it_was_asked_for_its_names(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("marius_py.prepare.name_table.LARGE_NAMES", 0)
    first, second = (pa.array(part).cast(KINDS[kind]) for part in (range(5), range(3, 9)))
    table = NameTable(kind, "node")  # type: ignore[arg-type]
    table.number([first])
    names = table.names
    assert [numbers.tolist() for numbers in table.number([second])] == [[3, 4, 5, 6, 7, 8]]
    assert names.equals(first)
    assert [int(name) for name in table.names.to_pylist()] == list(range(9))


@pytest.mark.parametrize("large", [0, 1 << 20])
def test_more_names_than_can_be_numbered_are_refused(large: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marius_py.prepare.name_table.LARGE_NAMES", large)
    monkeypatch.setattr("marius_py.prepare.name_table._LIMIT", 5)
    table = NameTable("integer", "relation")
    table.number([pa.array([1, 2, 3, 4, 5, 1, 2])])
    with pytest.raises(FormatError, match="more than 5 different relation names"):
        table.number([pa.array([5, 6])])


@pytest.mark.parametrize("numbers", [False, True])
def test_graphs_are_the_same_to_the_byte(
    numbers: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(1)
    for name, count in (("first", 4000), ("more", 900)):
        edges = rng.integers(0, 1500, (count, 3)) % (1500, 7, 1500)
        if numbers:
            np.save(tmp_path / f"{name}.npy", edges * 11)
        else:
            lines = (f"node {h}\trelation {r}\tnode {t}\n" for h, r, t in edges.tolist())
            (tmp_path / f"{name}.tsv").write_text("".join(lines))
    ending = "npy" if numbers else "tsv"
    for large in (0, 1 << 20):
        monkeypatch.setattr("marius_py.prepare.name_table.LARGE_NAMES", large)
        monkeypatch.setattr("marius_py.prepare.dictionary.PASS_BYTES", 1 << 12)
        prepare(tmp_path / f"first.{ending}", tmp_path / f"graph {large}", partitions=3)
        extend_graph(tmp_path / f"graph {large}", tmp_path / f"more.{ending}", tmp_path / f"extended {large}")
    for graph in ("graph", "extended"):
        one, other = (sorted((tmp_path / f"{graph} {large}").iterdir()) for large in (0, 1 << 20))
        assert [file.name for file in one] == [file.name for file in other]
        for pair in zip(one, other, strict=True):
            assert pair[0].read_bytes() == pair[1].read_bytes(), pair[0].name
