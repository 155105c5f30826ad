from __future__ import annotations

import logging
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from marius_py.config import PrepareConfig, compose
from marius_py.errors import ConfigError, FormatError
from marius_py.prepare import prepare, typed
from marius_py.prepare.typed import NumpySource, ParquetSource
from tests.prepare.graphs import all_edges

BIG = (1 << 31) - 1
NUMBERS = np.array([[5, 0, BIG], [BIG, 1, BIG + 1], [1 << 40, 0, 5], [-3, 1, 7]])
EXPECTED = sorted(tuple(map(str, row)) for row in NUMBERS.tolist())


def rows_of(graph: Any) -> list[tuple[str, ...]]:
    return sorted(all_edges(graph).elements())


def prepared(path: Path, **options: Any) -> Any:
    return prepare(path, path.parent / "g", split=(1, 0, 0), partitions=2, **options)


def save(path: Path, **columns: Any) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


@pytest.mark.parametrize("order", ["C", "F"])
def test_npy_takes_numbers_as_names(tmp_path: Path, order: Any) -> None:
    np.save(tmp_path / "e.npy", np.asarray(NUMBERS, order=order))
    graph = prepared(tmp_path / "e.npy")
    assert rows_of(graph) == EXPECTED
    assert graph.names_are_integers
    assert graph.node_ids([str(BIG)])[0] >= 0


@pytest.mark.parametrize("dtype", ["<U4", ">U4", "S4"])
def test_npy_of_text(tmp_path: Path, dtype: str) -> None:
    array = np.array([["a", "NA", "b b"], ["x", "r", "null"]]).astype(dtype)
    np.save(tmp_path / "e.npy", array)
    assert rows_of(prepared(tmp_path / "e.npy")) == [("a", "NA", "b b"), ("x", "r", "null")]


@pytest.mark.parametrize("dtype", [">i4", "<u2", "u1"])
def test_npy_of_other_integer_types(tmp_path: Path, dtype: str) -> None:
    np.save(tmp_path / "e.npy", np.array([[0, 1], [1, 200]]).astype(dtype))
    graph = prepared(tmp_path / "e.npy")
    assert rows_of(graph) == [("0", "1"), ("1", "200")]
    assert not graph.has_relations


def test_npy_of_integers_beyond_int64(tmp_path: Path) -> None:
    array = np.array([[(1 << 63) - 1, 0], [1, 1 << 63]], np.uint64)
    np.save(tmp_path / "e.npy", array)
    with pytest.raises(FormatError, match=r"row 2: the tail is 9223372036854775808; .*astype\(str\)"):
        prepared(tmp_path / "e.npy")
    np.save(tmp_path / "e.npy", array.astype(str))
    assert rows_of(prepared(tmp_path / "e.npy")) == [("1", str(1 << 63)), (str((1 << 63) - 1), "0")]
    np.save(tmp_path / "e.npy", array[:, :1].repeat(2, 1))
    assert prepared(tmp_path / "e.npy", overwrite=True).names_are_integers


def test_npy_columns(tmp_path: Path) -> None:
    np.save(tmp_path / "e.npy", np.array([[9, 2, 8, 1]]))
    assert rows_of(prepared(tmp_path / "e.npy", columns=[3, 1, 0])) == [("1", "2", "9")]
    with pytest.raises(ConfigError, match="give positions"):
        NumpySource(tmp_path / "e.npy", columns=["head", "tail"])
    with pytest.raises(FormatError, match="4 columns"):
        NumpySource(tmp_path / "e.npy")


def test_wide_rows_are_read_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = np.array([["a", "b"], ["b", "c"], ["c", "a"]], dtype="<U1000")
    np.save(tmp_path / "e.npy", names)
    np.savez_compressed(tmp_path / "e.npz", head=names[:, 0], tail=names[:, 1])
    monkeypatch.setattr(typed, "BLOCK_BYTES", 2 * names[0].nbytes)
    for name in ("e.npy", "e.npz"):
        assert [block.num_edges for block in NumpySource(tmp_path / name).blocks()] == [2, 1]
    monkeypatch.setattr(typed, "BLOCK_BYTES", 1)
    assert [block.num_edges for block in NumpySource(tmp_path / "e.npy").blocks()] == [1, 1, 1]


@pytest.mark.parametrize(
    "names", [np.array([[b"a", b"b"], [b"c", b"\xff"]]), np.array([["a", "b"], ["c", "\ud800"]])]
)
def test_text_that_is_no_utf_8_is_named_by_its_row(tmp_path: Path, names: Any) -> None:
    np.save(tmp_path / "e.npy", names)
    with pytest.raises(FormatError, match=r"row 2: the tail name .*(xff|ud800)' is no UTF-8"):
        prepared(tmp_path / "e.npy")


@pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
def test_npz(tmp_path: Path, write: Any) -> None:
    write(tmp_path / "one.npz", edges=NUMBERS)
    write(tmp_path / "three.npz", tail=NUMBERS[:, 2], head=NUMBERS[:, 0], relation=NUMBERS[:, 1])
    write(tmp_path / "named.npz", x=NUMBERS[:, 2], y=NUMBERS[:, 0], z=NUMBERS[:, 1], extra=np.zeros(9))
    assert rows_of(prepared(tmp_path / "one.npz")) == EXPECTED
    assert rows_of(prepared(tmp_path / "three.npz", overwrite=True)) == EXPECTED
    assert rows_of(prepared(tmp_path / "named.npz", overwrite=True, columns=["y", "z", "x"])) == EXPECTED
    source = NumpySource(tmp_path / "three.npz", block_rows=3)
    assert [block.head.to_pylist() for block in source.blocks()] == [[5, BIG, 1 << 40], [-3]]
    with pytest.raises(FormatError, match="columns="):
        NumpySource(tmp_path / "named.npz")


@pytest.mark.parametrize("count", [np.array([9]), np.array(9), np.zeros((2, 2))])
def test_npz_with_arrays_that_are_not_used(tmp_path: Path, count: Any) -> None:
    np.savez(tmp_path / "e.npz", count=count, head=NUMBERS[:, 0], relation=NUMBERS[:, 1], tail=NUMBERS[:, 2])
    assert rows_of(prepared(tmp_path / "e.npz")) == EXPECTED


def test_npz_of_arrays_that_differ_in_length(tmp_path: Path) -> None:
    np.savez(tmp_path / "e.npz", head=NUMBERS[:, 0], tail=NUMBERS[:3, 2])
    with pytest.raises(FormatError, match=r"have shapes head \(4,\), tail \(3,\); they must be \(E,\)"):
        prepared(tmp_path / "e.npz")


@pytest.mark.parametrize(
    ("columns", "kinds"),
    [
        ({"head": ["a", "b"], "relation": ["r", "NA"], "tail": ["c", "a"]}, ("text", "text")),
        ({"tail": ["c", "a"], "head": ["a", "b"], "relation": ["r", "NA"]}, ("text", "text")),
        ({"x": ["a", "b"], "y": ["r", "NA"], "z": ["c", "a"]}, ("text", "text")),
        (
            {"x": pa.array(["a", "b"]).dictionary_encode(), "y": ["r", "NA"], "z": ["c", "a"]},
            ("text", "text"),
        ),
        ({"x": pa.array(["a", "b"], pa.large_string()), "y": ["r", "NA"], "z": ["c", "a"]}, ("text", "text")),
    ],
)
def test_parquet_of_text(tmp_path: Path, columns: dict[str, Any], kinds: tuple[str, str]) -> None:
    path = save(tmp_path / "e.parquet", **columns)
    source = ParquetSource(path, block_rows=1)
    assert (source.node_kind, source.relation_kind) == kinds
    assert rows_of(prepared(path)) == [("a", "r", "c"), ("b", "NA", "a")]


def test_parquet_of_numbers_and_mixed(tmp_path: Path) -> None:
    path = save(tmp_path / "n.parquet", head=NUMBERS[:, 0], relation=NUMBERS[:, 1], tail=NUMBERS[:, 2])
    graph = prepared(path)
    assert rows_of(graph) == EXPECTED
    assert graph.names_are_integers
    mixed = save(tmp_path / "m.parquet", weight=[0.5, 1.0], h=[1, 2], r=["a", "b"], t=["1", "007"])
    graph = prepared(mixed, columns=["h", "r", "t"], overwrite=True)
    assert rows_of(graph) == [("1", "a", "1"), ("2", "b", "007")]
    assert graph.num_nodes == 3


def test_numbers_and_text_files_of_one_graph_agree(tmp_path: Path) -> None:
    np.save(tmp_path / "t.npy", np.array([[1, 0, 2], [2, 0, 3]]))
    (tmp_path / "v.tsv").write_text("1\t0\tx\n")
    graph = prepare(tmp_path / "t.npy", tmp_path / "g", valid=tmp_path / "v.tsv", partitions=1)
    assert rows_of(graph) == [("1", "0", "2"), ("1", "0", "x"), ("2", "0", "3")]
    assert graph.num_nodes == 4
    assert not graph.names_are_integers


def test_parquet_columns_that_are_no_relation_are_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    weighted = save(tmp_path / "w.parquet", source=["a", "b"], target=["c", "a"], weight=[3, 4])
    with caplog.at_level(logging.INFO, logger="marius_py.prepare"):
        graph = prepared(weighted)
    assert not graph.has_relations
    assert rows_of(graph) == [("a", "c"), ("b", "a")]
    line, weight = caplog.messages
    assert "head 'source', no relation, tail 'target'" in line
    assert "left out: 'weight'" in line
    assert "input.weight=weight" in weight


def test_the_index_that_pandas_stores_is_no_relation(tmp_path: Path) -> None:
    frame = pd.DataFrame({"source": ["a", "b", "x"], "target": ["c", "a", "y"]})
    frame[frame.source != "x"].to_parquet(tmp_path / "e.parquet", index=True)
    names = save(tmp_path / "n.parquet", source=["a", "b"], target=["c", "a"], __index_level_0__=[0, 5])
    for path in (tmp_path / "e.parquet", names):
        assert rows_of(prepared(path, overwrite=True)) == [("a", "c"), ("b", "a")]


def test_an_index_of_pandas_that_is_no_part_of_edges_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    frame = pd.DataFrame({"u": ["a", "b"], "v": ["c", "a"]})
    levels = pd.MultiIndex.from_arrays([[5, 6], [7, 8]])
    for index in (pd.Index([5, 6]), pd.Index([5, 6], name="id"), levels):
        frame.set_axis(index).to_parquet(tmp_path / "e.parquet")
        caplog.clear()
        with caplog.at_level(logging.INFO, logger="marius_py.prepare"):
            assert rows_of(prepared(tmp_path / "e.parquet", overwrite=True)) == [("a", "c"), ("b", "a")]
        assert "left out, as the index of a pandas frame: " in caplog.messages[0]


def test_an_index_of_pandas_with_a_name_may_be_a_part_of_the_edges(tmp_path: Path) -> None:
    path = tmp_path / "e.parquet"
    frame = pd.DataFrame({"u": ["a", "b"], "since": ["r", "s"], "v": ["c", "a"]})
    for index, columns in (("since", ["u", "v"]), ("u", ["since", "v"]), (["u", "since", "v"], [])):
        frame.set_index(index).to_parquet(path)
        listed = ", ".join(map(repr, [*columns, *([index] if isinstance(index, str) else index)]))
        with pytest.raises(
            FormatError, match=f"was the index of a pandas frame, .* two or three of {listed} "
        ):
            prepared(path, overwrite=True)
        assert rows_of(prepared(path, columns=["u", "v"], overwrite=True)) == [("a", "c"), ("b", "a")]
    told = frame.rename(columns={"u": "head", "since": "relation", "v": "tail"}).set_index("head")
    told.to_parquet(path)
    assert rows_of(prepared(path, overwrite=True)) == [("a", "r", "c"), ("b", "s", "a")]


@pytest.mark.parametrize("note", ["", "{}", "[]", "3", '{"index_columns": 3}', "\udcff"])
def test_notes_that_pandas_did_not_write_name_no_index(tmp_path: Path, note: str) -> None:
    table = pa.table({"u": ["a"], "v": ["b"]}).replace_schema_metadata(
        {"pandas": note.encode(errors="surrogateescape")}
    )
    pq.write_table(table, tmp_path / "e.parquet")
    assert rows_of(prepared(tmp_path / "e.parquet")) == [("a", "b")]


def test_unclear_parquet_and_npz_columns_are_refused(tmp_path: Path) -> None:
    columns: dict[str, Any] = {"source": ["a"], "foo": ["r"], "target": ["b"]}
    parquet = save(tmp_path / "e.parquet", **columns)
    np.savez(tmp_path / "e.npz", **columns)
    for path in (parquet, tmp_path / "e.npz"):
        with pytest.raises(
            FormatError, match=r"columns=\[source,foo,target\].*columns=\[source,target\]"
        ) as why:
            prepared(path, overwrite=True)
        assert "header" not in str(why.value)
        assert rows_of(prepared(path, columns=["source", "foo", "target"], overwrite=True)) == [
            ("a", "r", "b")
        ]


@pytest.mark.parametrize("name", ["größe", "null", "True", "nan", "colour", "two words"])
@pytest.mark.parametrize("names", [("source", "", "target"), ("a", "", "b")])
def test_columns_that_a_message_offers_are_taken_as_they_stand(
    tmp_path: Path, names: tuple[str, ...], name: str
) -> None:
    columns: dict[str, Any] = dict(zip([one or name for one in names], (["x"], ["r"], ["y"]), strict=True))
    np.savez(tmp_path / "e.npz", **columns)
    with pytest.raises(FormatError) as why:
        prepared(tmp_path / "e.npz")
    offered = re.findall(r"(input\.columns=\[.*?\])", str(why.value))[0]
    chosen = compose(PrepareConfig, ["input.train=f", "output=o", offered]).input.reading["columns"]
    assert rows_of(prepared(tmp_path / "e.npz", columns=chosen)) == [("x", "r", "y")]


def test_a_column_that_is_no_relation_is_not_read_by_order(tmp_path: Path) -> None:
    path = save(tmp_path / "e.parquet", u=["a", "b"], v=["c", "a"], weight=[3, 4])
    with pytest.raises(FormatError, match=r"'weight' is no name .*columns=\[u,v,weight\].*columns=\[u,v\]"):
        prepared(path)
    assert rows_of(prepared(path, columns=["u", "v"])) == [("a", "c"), ("b", "a")]


def test_parquet_of_other_names_is_read_in_order_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = save(tmp_path / "e.parquet", x=["a"], y=["r"], z=["b"])
    with caplog.at_level(logging.INFO, logger="marius_py.prepare"):
        assert rows_of(prepared(path)) == [("a", "r", "b")]
    (line,) = caplog.messages
    assert "head 'x', relation 'y', tail 'z'" in line


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"head": ["a", None], "tail": ["b", "c"]}, "row 2: the head is null"),
        ({"head": ["a", "b"], "tail": ["b", ""]}, "row 2: the tail name '' is empty"),
        ({"head": ["a", "b\0"], "tail": ["b", "c"]}, "row 2: the head name 'b\\\\x00' holds a NUL"),
        ({"head": [0.5, 1.5], "tail": ["b", "c"]}, r"column 'head' has type double; .*\.astype\('Int64'\)"),
        (
            {"head": pa.array([1, (1 << 63) + 1], pa.uint64()), "tail": [1, 2]},
            "row 2: the head is 9223372036854775809; integer names go up to 2\\^63 - 1: save all nodes",
        ),
        ({"head": pa.array([], pa.string()), "tail": pa.array([], pa.string())}, "has no rows"),
        ({"a": ["a"], "b": ["b"], "c": ["c"], "d": ["d"]}, r"4 columns \('a', .*input\.columns, by name"),
        ({"head": ["a"]}, "1 column"),
    ],
)
def test_bad_parquet(tmp_path: Path, columns: dict[str, Any], text: str) -> None:
    path = save(tmp_path / "e.parquet", **columns)
    with pytest.raises(FormatError, match=text):
        prepared(path)
    assert [p.name for p in tmp_path.iterdir()] == ["e.parquet"]


def test_invalid_utf8_in_parquet(tmp_path: Path) -> None:
    bad = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(np.array([0, 1], np.int32)), pa.py_buffer(b"\xff")]
    )
    path = save(tmp_path / "e.parquet", head=bad, tail=["x"])
    with pytest.raises(FormatError, match="no valid UTF-8"):
        prepared(path)


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (np.zeros((2, 3)), "type float64"),
        (np.zeros((2, 5), int), r"5 columns.*\(E, 2\) or \(E, 3\).*stored by rows: save array\.T"),
        (np.zeros((3, 9), "U1"), r"save array\.T"),
        (np.zeros((4, 5), int), r"5 columns.*choose with input\.columns"),
        (np.array([["a", "b"], ["c", "a\0b"]]), r"row 2: the tail name 'a\\x00b' holds a NUL"),
        (np.array([[b"a\0b", b"b"]]), "row 1: the head name .* holds a NUL"),
        (np.zeros(4, int), r"shape \(4,\)"),
        (np.zeros((0, 3), int), "no rows"),
        (np.array([["a", ""]]), "the tail name '' is empty"),
    ],
)
def test_bad_npy(tmp_path: Path, array: Any, text: str) -> None:
    np.save(tmp_path / "e.npy", array)
    with pytest.raises(FormatError, match=text):
        prepared(tmp_path / "e.npy")


@pytest.mark.parametrize("columns", [None, ["head", "who"]])
@pytest.mark.parametrize("name", ["e.parquet", "e.tsv", "e.npz"])
def test_messages_have_room_for_some_columns_only(
    tmp_path: Path, name: str, columns: list[str] | None
) -> None:
    first = "head" if name != "e.npz" or columns else "any"
    cells = {first: ["a"], "tail": ["b"], **{f"column {i}": ["c"] for i in range(500)}}
    path = tmp_path / name
    if name == "e.parquet":
        save(path, **cells)
    elif name == "e.tsv":
        lines = [*cells], [cell for (cell,) in cells.values()]
        path.write_text("".join("\t".join(line) + "\n" for line in lines))
    else:
        np.savez(path, **{key: np.array(value) for key, value in cells.items()})
    with pytest.raises((ConfigError, FormatError), match=r"'column 9', … \(502 in all\)") as caught:
        prepared(path, columns=columns)
    assert len(str(caught.value)) < 1000


def test_pickles_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "e.npy", np.array([["a", "b"]], dtype=object), allow_pickle=True)
    np.savez(tmp_path / "e.npz", np.array([["a", "b"]], dtype=object))
    np.savez(tmp_path / "ends.npz", head=np.array(["a"]), tail=np.array(["b"], dtype=object))
    for name, array in (("e.npy", "the array"), ("e.npz", "array 'arr_0'"), ("ends.npz", "array 'tail'")):
        with pytest.raises(FormatError, match=f"{array} is one of objects"):
            prepared(tmp_path / name)


def test_arrays_beside_those_chosen_may_be_of_any_kind(tmp_path: Path) -> None:
    ends = {"head": np.array([0, 1]), "tail": np.array([1, 2])}
    others = {"names": np.array([{0: "a"}], dtype=object), "features": np.asfortranarray(np.ones((3, 4)))}
    np.savez(tmp_path / "e.npz", **ends, **others)
    assert prepared(tmp_path / "e.npz", columns=["head", "tail"]).num_nodes == 3


@pytest.mark.parametrize("name", ["e.npy", "e.npz", "e.parquet"])
def test_damaged_files_are_refused_whatever_is_wrong(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name == "e.npy":
        np.save(path, NUMBERS)
    elif name == "e.npz":
        np.savez_compressed(path, edges=np.tile(NUMBERS, (50, 1)))
    else:
        save(path, head=["a"] * 50, tail=["b"] * 50)
    whole = path.read_bytes()
    for size in (0, 1, 10, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(FormatError, match=name):
            prepared(path)
    path.write_bytes(b"no such thing" * 20)
    with pytest.raises(FormatError, match=name):
        prepared(path)
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_npz_member_with_wrong_checksum(tmp_path: Path) -> None:
    path = tmp_path / "e.npz"
    np.savez(path, edges=np.tile(NUMBERS, (50, 1)))
    content = bytearray(path.read_bytes())
    content[700] ^= 1
    path.write_bytes(bytes(content))
    assert zipfile.is_zipfile(path)
    with pytest.raises(FormatError, match="damaged"):
        prepared(path)


def test_options_for_text_are_refused_elsewhere(tmp_path: Path) -> None:
    np.save(tmp_path / "e.npy", NUMBERS)
    with pytest.raises(ConfigError, match="delimiter is ','"):
        prepared(tmp_path / "e.npy", delimiter=",")
