from __future__ import annotations

import bz2
import contextlib
import csv
import errno
import gzip
import io
import logging
import lzma
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from marius_py import cli
from marius_py.config import PrepareConfig, compose
from marius_py.errors import ConfigError, FormatError, MariusError, StorageError
from marius_py.prepare import prepare
from marius_py.prepare import text as text_module
from marius_py.prepare.column_names import NO_RELATION, WORDS
from marius_py.prepare.records import shown
from marius_py.prepare.sources import open_source
from tests.prepare.graphs import all_edges, write_rows

Rows = list[tuple[str, ...]]


def read(path: Path, **options: Any) -> Rows:
    """All edges of a file as text, through the block reader."""
    rows: Rows = []
    for block in open_source(path, **options).blocks():
        columns = [block.head, block.relation, block.tail]
        rows += zip(*[column.to_pylist() for column in columns if column is not None], strict=True)
    return rows


def put(folder: Path, content: bytes, name: str = "e.tsv") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


ROWS: Rows = [("a b", 'r"', "c"), ("é", "NA", "日本"), ("x", "null", "\ufeffy")]
PLAIN = "".join("\t".join(row) + "\n" for row in ROWS).encode()
SKIPPED = b"\x50\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"\x10\0\0\0"
"""A frame that readers of zstd skip; pzstd writes one before each of its own."""


@pytest.mark.parametrize("block_bytes", [1, 2, 3, 7, 10, 1 << 20])
@pytest.mark.parametrize(
    "content",
    [
        PLAIN,
        PLAIN.rstrip(b"\n"),
        PLAIN.replace(b"\n", b"\r\n"),
        PLAIN.replace(b"\n", b"\r\n").rstrip(b"\r\n"),
        b"\xef\xbb\xbf" + PLAIN,
        b"\n\n" + PLAIN.replace(b"\n", b"\n\n\r\n"),
        gzip.compress(PLAIN, mtime=0),
        gzip.compress(PLAIN[:9], mtime=0) + gzip.compress(PLAIN[9:]),
        gzip.compress(PLAIN, mtime=0) + bytes(1000),
        gzip.compress(PLAIN[:9], mtime=0) + bytes(5) + gzip.compress(PLAIN[9:]) + bytes(1),
        pa.compress(PLAIN, codec="zstd", asbytes=True),
        SKIPPED + pa.compress(PLAIN, codec="zstd", asbytes=True),
        b"".join(SKIPPED + pa.compress(part, codec="zstd", asbytes=True) for part in (PLAIN[:9], PLAIN[9:])),
    ],
    ids=[
        "plain",
        "no-end",
        "crlf",
        "crlf-no-end",
        "bom",
        "blank-lines",
        "gzip",
        "gzip-members",
        "gzip-padded",
        "gzip-members-padded",
        "zstd",
        "pzstd",
        "pzstd-frames",
    ],
)
def test_the_same_rows_whatever_the_wrapping(tmp_path: Path, content: bytes, block_bytes: int) -> None:
    assert read(put(tmp_path, content), block_bytes=block_bytes) == ROWS


def test_a_mark_is_dropped_only_at_the_start(tmp_path: Path) -> None:
    row = "\ufeffa\tr\tb\n".encode()
    assert (
        read(put(tmp_path, row * 3), block_bytes=len(row)) == [("a", "r", "b")] + [("\ufeffa", "r", "b")] * 2
    )


def test_lines_are_counted_from_a_mark_within_a_file(tmp_path: Path) -> None:
    path = put(tmp_path, "head\ttail\n\ufeffa\tb\nx\n".encode())
    with pytest.raises(FormatError, match="line 3: 1 column instead of 2"):
        read(path)


@pytest.mark.parametrize("block_bytes", [1, 5, 1 << 20])
def test_csv_quoting_follows_rfc_4180(tmp_path: Path, block_bytes: int) -> None:
    rows: Rows = [("a,b", 'say ""', "line\nend"), ("plain", '"', "x\r\ny"), (",", "\n", " s ")]
    text = io.StringIO()
    csv.writer(text, lineterminator="\r\n").writerows(rows)
    path = put(tmp_path, text.getvalue().encode(), "e.csv")
    assert read(path, block_bytes=block_bytes) == rows


@pytest.mark.parametrize(("sign", "setting"), [(";", "'input.delimiter=;'"), ("\t", "input.format=tsv")])
def test_quoted_cells_with_another_delimiter_are_told_of(tmp_path: Path, sign: str, setting: str) -> None:
    rows = [('"User-ID"', '"ISBN"'), ('"276725"', '"034545104X"')]
    with pytest.raises(FormatError, match=rf"closing quote of 'User-ID'; is the delimiter .* Set {setting}"):
        read(write_rows(tmp_path / "e.csv", rows, sign))
    assert read(write_rows(tmp_path / "e.csv", rows, sign), delimiter=sign) == [
        ("User-ID", "ISBN"),
        ("276725", "034545104X"),
    ]


def test_quotes_are_ordinary_characters_where_quoting_is_off(tmp_path: Path) -> None:
    rows: Rows = [('"a', 'b"', '""'), ('"', "c", 'd"d')]
    assert read(write_rows(tmp_path / "e.tsv", rows)) == rows
    assert read(write_rows(tmp_path / "e.csv", rows, ","), quoting=False) == rows
    assert read(write_rows(tmp_path / "q.tsv", [('"a\tb"', "r", "c")]), quoting=True) == [("a\tb", "r", "c")]


@pytest.mark.parametrize(
    ("row", "text"),
    [
        (b'a"b,r,c', "quote inside the unquoted cell"),
        (b'"a"b,r,c', "after the closing quote"),
        (b'"a,r,c', "quote is never closed"),
        (b'a,"r" ,c', "after the closing quote"),
    ],
)
def test_misplaced_quotes_are_errors(tmp_path: Path, row: bytes, text: str) -> None:
    path = put(tmp_path, b"x,r,y\n\nx,r,z\n" + row + b"\n", "e.csv")
    with pytest.raises(FormatError, match=rf"e\.csv, line 4: .*{text}") as error:
        read(path)
    (setting,) = re.findall(r"set (\S+)", str(error.value))
    words = [f"input.train={path}", f"output={tmp_path / 'g'}", "input.split=[1,0,0]", setting]
    assert cli.prepare(words) == 0


@pytest.mark.parametrize("block_bytes", [3, 1 << 20])
@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"a\tr\tb\nc\td\n", r"line 2: 2 columns instead of 3 in 'c\\td'"),
        (b"a\tr\tb\n\nc\td\te\tf\n", r"line 3: 4 columns instead of 3 in 'c\\td\\te\\tf'"),
        (b"a\tr\tb\nc\tr\t\xff\xfe\n", r"line 2: byte 5 is no valid UTF-8 in 'c\\tr\\t\\xff\\xfe'; .*iconv"),
        (b"a\tr\tb\nc\tr\tx\0y\n", r"line 2: a NUL character in 'c\\tr\\tx\\x00y'"),
        (b"a\tr\tb\nc\t\td\n", r"line 2: the relation name is empty in 'c\\t\\td'"),
        (b"a\tr\tb\n\tr\td\n", r"line 2: the head name is empty"),
        (b"a\tr\tb\nc\tr\t\n", r"line 2: the tail name is empty"),
        (b"a\tr\tb\nc\tr\td\re\tr\tf\n", r"line 2: a carriage return inside the line"),
        (b"a\tr\tb\nc\tr\td\r\r\n", r"line 2: a carriage return inside the line"),
        (b"a\n", r"line 1 has 1 column; .*is the delimiter right\?"),
        (b"a,r,b\n", r"line 1 has 1 column; .*is the delimiter a comma\? Set 'input\.delimiter=,'"),
        (b"a b\n", r"line 1 has 1 column; .*is the delimiter a blank\? Set 'input\.delimiter= '"),
        (b"# web graph\n0\t1\n", r"line 1 has 1 column; .*are comments, set input\.comment='#'"),
        (b"// web graph\n0\t1\n", r"line 1 has 1 column; .* begin with // are .*, set input\.comment='/'"),
        (b"/a b\n0\t1\n", r"line 1 has 1 column; .*; is the delimiter a blank"),
        (b"% a\tb\tc\td\n0\t1\n", r"line 1 has 4 columns .*; .*are comments, set input\.comment='%'"),
        (b"\na\tb\tc\td\n", r"line 2 has 4 columns \('a', 'b', 'c', 'd'\); .*input\.columns, by name"),
        ("a\tr\tb\n".encode("utf-16"), r"line 1: a NUL character .*looks like UTF-16"),
        (b"", r"is empty"),
        (b"\n\r\n\n", r"is empty"),
        (b"\xef\xbb\xbf", r"is empty"),
        (gzip.compress(b"", mtime=0), r"is empty"),
        (gzip.compress(PLAIN, mtime=0)[:-9], r"cannot be decompressed|columns instead"),
        (gzip.compress(PLAIN, mtime=0)[:-8] + bytes(8), r"is damaged: it cannot be decompressed"),
        (gzip.compress(PLAIN, mtime=0) + b"\0\0junk", r"is damaged: it cannot be decompressed"),
        (gzip.compress(PLAIN * 99, mtime=0)[:40] + b"\xff" * 40, r"is damaged: it cannot be decompressed"),
        (b"\x28\xb5\x2f\xfd" + b"junk" * 20, r"cannot be decompressed"),
        (b"head\trelation\ttail\n", r"holds no edges, only a header"),
    ],
)
def test_malformed_files_name_line_and_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, text: str, block_bytes: int
) -> None:
    path = put(tmp_path, content)
    monkeypatch.setattr("marius_py.prepare.text.BLOCK_BYTES", block_bytes)
    with pytest.raises(FormatError, match=rf"e\.tsv.*{text}"):
        prepare(path, tmp_path / "g")
    assert [p.name for p in tmp_path.iterdir()] == ["e.tsv"]


@pytest.mark.parametrize(
    ("content", "kind", "ending"),
    [
        (bz2.compress(PLAIN), "bzip2", ".bz2"),
        (bz2.compress(b""), "bzip2", ".bz2"),
        (lzma.compress(PLAIN), "xz", ".xz"),
        (b"\x04\x22\x4d\x18" + b"\x60\x40\x82" + PLAIN, "lz4", ".lz4"),
    ],
    ids=["bzip2", "bzip2-empty", "xz", "lz4"],
)
def test_other_compressions_are_named(tmp_path: Path, content: bytes, kind: str, ending: str) -> None:
    for name in ("e.tsv", f"e.tsv{ending}"):
        with pytest.raises(FormatError, match=rf"is compressed with {kind}; only gzip and zstd are read"):
            read(put(tmp_path, content, name))
        rows: Rows = [("BZh91", "r", "b")]
        assert read(write_rows(tmp_path / name, rows)) == rows


def test_long_lines_are_read_and_absurd_ones_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: Rows = [("x" * 300_000, "r", "y" * 200_000), ("a", "r", "b")]
    path = write_rows(tmp_path / "e.tsv", rows)
    assert read(path, block_bytes=1000) == rows
    monkeypatch.setattr("marius_py.prepare.text.MAX_ROW_BYTES", 100_000)
    with pytest.raises(FormatError, match="is this an edge list"):
        read(path, block_bytes=1000)


@pytest.mark.parametrize("quoting", [False, True])
@pytest.mark.parametrize("block_bytes", [1, 2, 3, 7, 10, 1 << 20])
@pytest.mark.parametrize(
    "content",
    [
        b'# a graph\n# "head\ttail\n0\t1\n#2\t3\n',
        b"\n#\r\n\r\n#x\r\n\n0\t1\r\n#2\t3",
        b"\xef\xbb\xbf# a graph\n0\t1\n#2\t3\n",
        b"0\t1\n#2\t3\n",
        b"\xef\xbb\xbf0\t1\n#2\t3",
        gzip.compress(b"#" * 50 + b"\n0\t1\n#2\t3\n", mtime=0),
    ],
)
def test_comments_at_the_top_are_skipped(
    tmp_path: Path, content: bytes, block_bytes: int, quoting: bool
) -> None:
    path = put(tmp_path, content)
    found = read(path, comment="#", quoting=quoting, block_bytes=block_bytes)
    assert found == [("0", "1"), ("#2", "3")]


@pytest.mark.parametrize("quoting", [False, True])
@pytest.mark.parametrize("block_bytes", [1, 2, 3, 7, 10, 1 << 20])
@pytest.mark.parametrize(
    ("content", "options", "expected"),
    [
        (b'head,tail\n# one\n#"two\n0,1\n#2,3\n', {}, [("0", "1"), ("#2", "3")]),
        (b"#\nhead,tail\r\n\r\n# one\r\n\n#2,3\r\na,b", {}, [("a", "b")]),
        (b"\xef\xbb\xbfx,y\n#2,3\na,b\n", {"header": True}, [("a", "b")]),
        (b"user,movie\n# 3 edges\n1,2\n3,4\n", {}, [("1", "2"), ("3", "4")]),
        (b"a,b\n#2,3\nc,d\n", {}, [("a", "b"), ("#2", "3"), ("c", "d")]),
        (b"head,tail\n#2,3\na,b\n", {"header": False}, [("head", "tail"), ("#2", "3"), ("a", "b")]),
        (b"head,tail\n0,1\n#2,3", {}, [("0", "1"), ("#2", "3")]),
    ],
)
def test_comments_below_a_header_are_skipped(
    tmp_path: Path, content: bytes, options: Any, expected: Rows, block_bytes: int, quoting: bool
) -> None:
    path = put(tmp_path, content, "e.csv")
    assert read(path, comment="#", quoting=quoting, block_bytes=block_bytes, **options) == expected


def test_comments_below_a_header_of_several_lines_are_skipped(tmp_path: Path) -> None:
    path = put(tmp_path, b'"he\n#ad",tail\n# one "\na,b\nc\n', "e.csv")
    for block_bytes in (1, 4, 1 << 20):
        with pytest.raises(FormatError, match=r"line 5: 1 column instead of 2"):
            read(path, comment="#", header=True, block_bytes=block_bytes)


@pytest.mark.parametrize("block_bytes", [2, 1 << 20])
def test_comments_count_as_lines(tmp_path: Path, block_bytes: int) -> None:
    path = put(tmp_path, b"% one\n% two\na b\nc\n")
    with pytest.raises(FormatError, match=r"line 4: 1 column instead of 2"):
        read(path, comment="%", delimiter=" ", block_bytes=block_bytes)
    for content in (b"# only\n# comments\n", b"#", b"# without a line's end"):
        with pytest.raises(FormatError, match="is empty"):
            read(put(tmp_path, content), comment="#", block_bytes=block_bytes)
    path = put(tmp_path, b"# one\nhead tail\n# two\n\na b\nc\n")
    with pytest.raises(FormatError, match=r"line 6: 1 column instead of 2"):
        read(path, comment="#", delimiter=" ", block_bytes=block_bytes)
    for content in (b"head\ttail\n# none", b"head\ttail\n#\n"):
        assert read(put(tmp_path, content), comment="#", block_bytes=block_bytes) == []


@pytest.mark.parametrize("header", [True, False])
def test_comments_are_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, header: bool) -> None:
    longest = [0]
    leave_out = text_module._leave_out

    def watched(lines: re.Pattern[bytes], start: bytes) -> tuple[bytes, int]:
        longest[0] = max(longest[0], len(start))
        return leave_out(lines, start)

    monkeypatch.setattr(text_module, "_leave_out", watched)
    comments = b"# a line of comment\n" * 500
    path = put(tmp_path, comments + b"head\ttail\n" * header + comments * header + b"a\tb\nc\n")
    with pytest.raises(FormatError, match=rf"line {1003 if header else 502}: 1 column instead of 2"):
        read(path, comment="#", header=header, block_bytes=100)
    assert longest[0] < 200


@pytest.mark.parametrize("comment", ["", "//", "\n", '"', "é"])
def test_a_comment_is_told_by_one_character(tmp_path: Path, comment: str) -> None:
    with pytest.raises(ConfigError, match="comment is"):
        read(put(tmp_path, PLAIN), comment=comment)


def test_a_file_of_snap_is_read_by_one_setting(tmp_path: Path) -> None:
    content = b"# Directed graph\n# Nodes: 4 Edges: 3\n# FromNodeId\tToNodeId\n0\t1\n0\t2\n3\t1\n"
    path = put(tmp_path, gzip.compress(content, mtime=0), "web.txt.gz")
    settings = compose(PrepareConfig, [f"input.train={path}", "input.comment=#", f"output={tmp_path / 'g'}"])
    assert settings.input.comment == "#"
    graph = prepare(path, tmp_path / "g", comment=settings.input.comment, split=(1, 0, 0))
    assert all_edges(graph) == Counter([("0", "1"), ("0", "2"), ("3", "1")])


HEADED = b"tail\tkind\tweight\thead\nb\tr\t0.5\ta\nd\ts\t1\tc\n"


@pytest.mark.parametrize(
    ("columns", "header", "expected"),
    [
        (["head", "kind", "tail"], "auto", [("a", "r", "b"), ("c", "s", "d")]),
        (["head", 1, 0], "auto", [("a", "r", "b"), ("c", "s", "d")]),
        ([3, 1, 0], True, [("a", "r", "b"), ("c", "s", "d")]),
        ([-1, 0], "auto", [("a", "b"), ("c", "d")]),
        ([-1, 0], False, [("head", "tail"), ("a", "b"), ("c", "d")]),
    ],
)
def test_chosen_columns(tmp_path: Path, columns: list[Any], header: Any, expected: Rows) -> None:
    assert read(put(tmp_path, HEADED), columns=columns, header=header) == expected


@pytest.mark.parametrize(
    ("columns", "header", "error", "text"),
    [
        (
            ["head", "who", "tail"],
            "auto",
            ConfigError,
            r"input\.columns is .* has no column named 'who'; its columns are 'tail', 'kind'",
        ),
        ([0, 1, 7], "auto", ConfigError, r"input\.columns is \[0, 1, 7\].* there is no column 7"),
        ([0, 1, 0], "auto", ConfigError, "the same column"),
        ([0], "auto", ConfigError, r"columns is \[0\]"),
        ([0, 1, 2, 3], "auto", ConfigError, "give two"),
        ([0, 1.5], "auto", ConfigError, "give two"),
        (["head", "tail"], False, ConfigError, "names need a header"),
        (None, "yes", ConfigError, "header is 'yes'"),
    ],
)
def test_wrong_columns(tmp_path: Path, columns: Any, header: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        read(put(tmp_path, HEADED), columns=columns, header=header)


@pytest.mark.parametrize(
    ("first", "roles"),
    [
        ("head\trelation\ttail", (0, 1, 2)),
        ("Source\tTarget\tType", (0, 2, 1)),
        ("object\tpredicate\tsubject", (2, 1, 0)),
        ("from\tto", (0, 1)),
    ],
)
def test_header_words_are_recognised_and_decide_the_order(
    tmp_path: Path, first: str, roles: tuple[int, ...]
) -> None:
    cells = ["x", "y", "z"][: len(roles)]
    path = put(tmp_path, f"{first}\n{chr(9).join(cells)}\n".encode())
    assert read(path) == [tuple(cells[i] for i in roles)]


def test_what_only_looks_like_a_header_is_asked_about(tmp_path: Path) -> None:
    rows: Rows = [("head", "likes", "tail"), ("a", "r", "b")]
    path = write_rows(tmp_path / "e.tsv", rows)
    with pytest.raises(
        FormatError, match=r"line 1 has the columns .*'likes' is no name .*input\.header=false"
    ):
        read(path)
    assert read(path, header=False) == rows
    assert read(path, columns=["head", "likes", "tail"]) == rows[1:]
    headed = write_rows(tmp_path / "h.tsv", [("head", "relation", "tail"), ("a", "r", "b")])
    assert read(headed, header=False) == [("head", "relation", "tail"), ("a", "r", "b")]
    one_word = write_rows(tmp_path / "o.tsv", [("head", "likes", "b"), ("a", "r", "b")])
    assert read(one_word) == [("head", "likes", "b"), ("a", "r", "b")]


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        ("source,target,weight", ("0", "1")),
        ("weight,Target,Source", ("2", "1")),
        (",source,target", ("1", "2")),
        ("Unnamed: 0,from,Type,to,Timestamp", ("1", "2", "3")),
        ("id,subject,predicate,object,SCORE,count", ("1", "2", "3")),
    ],
)
def test_what_is_plainly_no_relation_is_left_out_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, first: str, expected: tuple[str, ...]
) -> None:
    names = first.split(",")
    path = put(tmp_path, f"{first}\n{','.join(map(str, range(len(names))))}\n".encode(), "e.csv")
    with caplog.at_level(logging.INFO):
        assert read(path) == [expected]
    line, *hints = caplog.messages
    weights = [name for name in names if name.lower() in ("weight", "score")]
    assert [f"with input.weight={name} " in hint for name, hint in zip(weights, hints, strict=True)] == [
        True
    ] * len(hints)
    kept, left_out = line.split("left out:")
    for i, name in enumerate(names):
        assert repr(name) in (kept if str(i) in expected else left_out)


@pytest.mark.parametrize(
    ("first", "ways"),
    [
        ("source,foo,target", ["[source,foo,target]", "[source,target]"]),
        ("source,target,foo,weight", ["[source,foo,target]", "[source,target]"]),
        ("source,type,target,foo", ["[source,type,target]", "[source,target]"]),
        ("head,source,type,target", ["[head,type,target]", "[head,target]"]),
        ("source,target,my words", ["[0,2,1]", "[source,target]"]),
        ("target,2020,source", ["[2,1,0]", "[source,target]"]),
    ],
)
@pytest.mark.parametrize("header", ["auto", True])
def test_unclear_columns_are_refused_with_two_ways_that_work(
    tmp_path: Path, first: str, ways: list[str], header: Any
) -> None:
    names = first.split(",")
    path = put(tmp_path, f"{first}\n{','.join(f'v{name}' for name in names)}\n".encode(), "e.csv")
    with pytest.raises(FormatError) as caught:
        read(path, header=header)
    message = str(caught.value)
    assert all(repr(name) in message for name in names)
    assert re.findall(r"input\.columns=(\[.*?\])", message) == ways
    assert "input.header=false" in message if header == "auto" else "input.header" not in message
    for way in ways:
        keys = [int(key) if key.isdecimal() else key for key in way[1:-1].split(",")]
        chosen = [names[key] if isinstance(key, int) else key for key in keys]
        if (chosen[0], chosen[-1]) == ("source", "target"):
            assert read(path, columns=keys, header=header) == [tuple(f"v{name}" for name in chosen)]


@pytest.mark.parametrize(
    ("first", "ways"),
    [
        ("u,v,weight", ["[u,v,weight]", "[u,v]"]),
        ("u,Score,v", ["[u,Score,v]", "[u,v]"]),
        (",u,v", ["[0,1,2]", "[u,v]"]),
        ("id,parent", ["[id,parent]"]),
    ],
)
def test_the_order_of_names_takes_no_weight_for_a_node(tmp_path: Path, first: str, ways: list[str]) -> None:
    path = put(tmp_path, f"{first}\n{','.join('123'[: first.count(',') + 1])}\n".encode(), "e.csv")
    with pytest.raises(FormatError, match="do not tell head and tail") as caught:
        read(path, header=True)
    assert re.findall(r"input\.columns=(\[.*?\])", str(caught.value)) == ways
    assert len(read(path, header=True, columns=[0, -1])) == 1


@pytest.mark.parametrize(
    ("content", "word", "ways"),
    [
        (b"u,v,weight\n1,2,5\n2,3,5\n", "weight", ["[u,v,weight]", "[u,v]"]),
        (b"u,v,weight\n1,2,.5\n2,3,1e-3\n", "weight", ["[u,v,weight]", "[u,v]"]),
        (b"u,v,Weight\na,b,0.5\nb,c,-0.7\n", "Weight", ["[u,v,Weight]", "[u,v]"]),
        (b"id,u,v\n0,a,b\n1,c,d\n", "id", ["[id,u,v]", "[u,v]"]),
        (b"parent,id\na,0\nb,1\n", "id", ["[parent,id]"]),
    ],
)
def test_a_first_line_above_numbers_takes_no_weight_for_a_node(
    tmp_path: Path, content: bytes, word: str, ways: list[str]
) -> None:
    path = put(tmp_path, content, "e.csv")
    with pytest.raises(FormatError, match=rf"'{word}' is no name .*input\.header=false") as caught:
        read(path)
    assert re.findall(r"input\.columns=(\[.*?\])", str(caught.value)) == ways
    assert len(read(path, columns=[0, -1], header=True)) == 2
    assert len(read(path, header=False)) == 3


@pytest.mark.parametrize(
    "content",
    [
        b"anna,sees,time\n1,r,2\n3,s,bob\n",  # a name below
        b"anna,sees,time\n1,r,2\n",  # one line is no proof
        b"time,sees,time\nspace,sees,count\n",
        b"time,5\nspace,7\n",
        b"anna,time\nbob,2020-01-01\nbob,5\n",
    ],
)
def test_a_name_of_a_weight_may_be_a_node(tmp_path: Path, content: bytes) -> None:
    assert len(read(put(tmp_path, content, "e.csv"))) == content.count(b"\n")


def test_a_first_line_that_is_read_as_an_edge_is_doubted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = put(tmp_path, b"u,v,weight\na,b,.5\n", "e.csv")
    assert read(path)[0] == ("u", "v", "weight")
    (line,) = caplog.messages
    assert "taken for an edge, though 'weight' may be a column's name" in line
    assert "input.header=true" in line
    caplog.clear()
    read(path, header=False)
    read(put(tmp_path, b"a,b\nc,d\n", "e.csv"))
    assert not caplog.messages


@pytest.mark.parametrize(
    ("first", "ways"),
    [
        ("u,v,type", ["[u,type,v]", "[u,v]"]),
        ("type,u,v", ["[u,type,v]", "[u,v]"]),
        ("target,u", ["[u,target]"]),
        ("u,type", ["[u,type]"]),
        ("dst,u,weight", ["[u,weight,dst]", "[u,dst]"]),
    ],
)
def test_the_order_of_names_makes_none_another_than_it_says(
    tmp_path: Path, first: str, ways: list[str]
) -> None:
    rows = f"{','.join('xyz'[: first.count(',') + 1])}\n"
    path = put(tmp_path, f"{first}\n{rows}".encode(), "e.csv")
    with pytest.raises(FormatError, match=r"would be the .* by their order, and is a name of the") as caught:
        read(path, header=True)
    assert re.findall(r"input\.columns=(\[.*?\])", str(caught.value)) == ways
    assert len(read(path, header=True, columns=[0, -1])) == 1


@pytest.mark.parametrize(
    ("content", "columns", "doubted"),
    [
        (b"u,v,type\na,b,r\n", None, "'type'"),
        (b"place,knows,Target\na,r,b\n", None, "'Target'"),
        (b"u,v,type\na,b,r\n", [0, 2, 1], "'type'"),
        (b"u,v,type\na,b,r\n", [0, 1], None),
        (b"source,v,type\na,b,r\n", [0, 2, 1], "'source' and 'type'"),
        (b"h,r,b\nr,s,t\n", None, None),  # nodes may be letters
    ],
)
def test_a_first_line_with_a_word_for_a_part_of_an_edge_is_doubted(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    content: bytes,
    columns: list[int] | None,
    doubted: str | None,
) -> None:
    assert len(read(put(tmp_path, content, "e.csv"), columns=columns)) == 2
    expected = [] if doubted is None else [f"taken for an edge, though {doubted} may be a column's name"]
    assert [line.split(": ", 1)[1].split(";")[0] for line in caplog.messages] == expected


def test_a_header_in_quotes_that_are_letters_is_doubted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = put(tmp_path, b'"head"\t"relation"\t"tail"\n"a"\t"r"\t"b"\n')
    assert len(read(path)) == 2
    (line,) = caplog.messages
    assert """taken for an edge, though '"head"', '"relation"' and '"tail"' may be a column's name""" in line
    assert "set input.quoting=true (a key of marius-prepare, marius-extend and marius-evaluate; quo" in line
    caplog.clear()
    assert read(path, quoting=True) == [("a", "r", "b")]
    read(put(tmp_path, b'"\t"r"\t"b"\n"a"\tr"\tb\n'))
    assert not caplog.messages


@pytest.mark.parametrize(
    ("content", "options", "is_doubted"),
    [
        (b"1,2,.5\n2,3,1\n", {}, True),
        (b"1,2,.5\n2,3,1\n", {"header": False}, True),
        (b"a,b,c\n1,2,.5\n2,3,1e-3\n", {"header": True}, True),
        (b"1,2,.5\n2,3,1\n", {"columns": [0, 1, 2]}, False),
        (b"1,2,5\n2,3,1\n", {}, False),
        (b"1,2,.5\n2,3,b\n", {}, False),
        (b"1,r,.5\n2,s,.7\n", {}, False),
        (b"ann,bob,.5\nbob,eve,2\n", {}, True),
        (b"ann,bob,5\nbob,eve,2\n", {}, False),
        (b"ann,bob,.5\nbob,eve,x\n", {}, False),
    ],
)
def test_tails_that_look_like_weights_are_doubted(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    content: bytes,
    options: dict[str, Any],
    is_doubted: bool,
) -> None:
    assert len(read(put(tmp_path, content, "e.csv"), **options)) == 2
    assert any("such as '.5'; if those are weights" in line for line in caplog.messages) == is_doubted


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("e.csv", b"user,item,rating\n1,31,2\n1,1029,3.5\n2,31,4\n"),
        ("e.tsv", b"userId\titemId\tscores\n1\t31\t2\n1\t1029\t3.5\n2\t31\t4\n"),
        ("e.csv", b'"user","item","rating"\n"1","31","2"\n"1","1029","3.5"\n"2","31","4"\n'),
        ("e.csv.gz", gzip.compress(b"user,item,rating\n1,31,2\n1,1029,3.5\n2,31,4\n")),
    ],
    ids=["csv", "tsv", "quoted", "gzip"],
)
def test_weights_below_a_header_are_doubted(
    tmp_path: Path, name: str, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path = put(tmp_path, content, name)
    assert read(path) == [("1", "31", "2"), ("1", "1029", "3.5"), ("2", "31", "4")]
    header, weights = caplog.messages
    assert "line 1: taken for a header, as 'user" in header
    assert "such as '3.5'; if those are weights, let edges count by them with input.weight=2" in weights
    assert read(path, columns=[0, 1]) == [("1", "31"), ("1", "1029"), ("2", "31")]


def test_columns_of_a_command_line_are_numbers_or_names(tmp_path: Path) -> None:
    def chosen(columns: str) -> Rows:
        words = ["input.train=f", "output=o", f"input.columns={columns}"]
        return read(path, **compose(PrepareConfig, words).input.reading)

    path = put(tmp_path, b"2019,2020,007\na,b,c\n", "e.csv")
    assert chosen("[2020,2019]") == chosen("['2020','2019']") == [("b", "a")]
    assert chosen("[2019,007]") == [("a", "c")]
    assert chosen("[-1,0]") == [("007", "2019"), ("c", "a")]
    with pytest.raises(ConfigError, match="there is no column -4"):
        chosen("[0,-4]")
    with pytest.raises(ConfigError, match="there is no column 2019"):
        read(path, columns=[2019, 2020], header=False)


@pytest.mark.parametrize(
    ("content", "key", "otherwise"),
    [
        (b"a,r,b\n", "delimiter", "write a .tsv file with tabs"),
        (b"# web graph\n0\t1\n", "comment", "take these lines out of the file"),
        (b"a\tb\tc\td\n", "columns", "write a file with those columns only"),
        (b"head\tother\ttail\n", "header", "write a line of names above it"),
    ],
)
def test_a_key_that_would_help_is_said_to_be_of_three_commands(
    tmp_path: Path, content: bytes, key: str, otherwise: str
) -> None:
    with pytest.raises(FormatError) as caught:
        read(put(tmp_path, content))
    where = (
        "(a key of marius-prepare, marius-extend and marius-evaluate; {}= in Python; for another command, {})"
    )
    assert where.format(key, otherwise) in str(caught.value)


def test_names_of_many_digits_are_told_from_numbers_at_once(tmp_path: Path) -> None:
    digits = "1" * 100_000  # by trying each place where a fraction could begin: minutes
    rows = [(f"{digits}x", "r", f"{digits}y"), (f"{digits}z", "r", digits)]
    path = put(tmp_path, "".join("\t".join(row) + "\n" for row in rows).encode())
    assert read(path) == rows


def test_columns_by_position_know_a_header_by_its_ends(tmp_path: Path) -> None:
    path = put(tmp_path, b"source,my words,target\na,r,b\n", "e.csv")
    assert read(path, columns=[0, 1, 2]) == [("a", "r", "b")]


def test_a_header_of_other_names_is_read_in_order_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = put(tmp_path, b"x,y,z\na,r,b\n", "e.csv")
    with caplog.at_level(logging.INFO):
        assert read(path, header=True) == [("a", "r", "b")]
        (line,) = caplog.messages
        assert "head 'x', relation 'y', tail 'z'" in line
        assert read(path, header="auto") == [("x", "y", "z"), ("a", "r", "b")]
    assert caplog.messages == [line]


@pytest.mark.parametrize(
    ("content", "options", "expected"),
    [
        (b"user,movie\n1,2\n-3,4\n", {}, [("1", "2"), ("-3", "4")]),
        (b"user,sees,movie\n1,often,2\n3,never,4\n", {}, [("1", "often", "2"), ("3", "never", "4")]),
        (b"w,user,movie\n.5,1,2\n.1,3,4\n", {"columns": [1, 2]}, [("1", "2"), ("3", "4")]),
        (b"user,movie\n1,2.5\n3,4\n", {}, [("1", "2.5"), ("3", "4")]),
        (b"user,sees,movie\n1,often,.5\n3,never,1e-3\n", {}, [("1", "often", ".5"), ("3", "never", "1e-3")]),
        (b"user,movie\n1.0,2.0\n3.0,4.0\n", {}, [("1.0", "2.0"), ("3.0", "4.0")]),
        # no header: a fraction for an end, or for a head below
        (b"a,.5\n1,.5\n3,4\n", {}, [("a", ".5"), ("1", ".5"), ("3", "4")]),
        (b".5,a\n1,2\n3,4\n", {}, [(".5", "a"), ("1", "2"), ("3", "4")]),
        (b"a,b\n1.5,2\n2,3\n", {}, [("a", "b"), ("1.5", "2"), ("2", "3")]),
        (b"a,r,1.5\nb,r,2.5\n3,r,4\n", {}, [("a", "r", "1.5"), ("b", "r", "2.5"), ("3", "r", "4")]),
        # no header: an end that is a number, one line only below, another name below, another width
        (b"1,movie\n1,2\n3,4\n", {}, [("1", "movie"), ("1", "2"), ("3", "4")]),
        (b"a,b\n1,2\n", {}, [("a", "b"), ("1", "2")]),
        (b"a,b\n1,2\n3,c\n", {}, [("a", "b"), ("1", "2"), ("3", "c")]),
        (b"a,b\n1,2\n3,4\n", {"header": False}, [("a", "b"), ("1", "2"), ("3", "4")]),
        (b"a,r,b\n1,r,2\n3,s,c\n", {}, [("a", "r", "b"), ("1", "r", "2"), ("3", "s", "c")]),
    ],
)
def test_names_above_numbers_are_a_header(
    tmp_path: Path, content: bytes, options: Any, expected: Rows, caplog: pytest.LogCaptureFixture
) -> None:
    assert read(put(tmp_path, content, "e.csv"), **options) == expected
    taken = len(expected) < content.count(b"\n")
    assert ("taken for a header, as 'user' and 'movie' are no numbers" in caplog.text) == taken


@pytest.mark.parametrize(
    ("content", "options", "doubted"),
    [
        (b"x,y\n5,1\n", {}, True),
        (b"x,sees,y\n5,often,1\n", {}, True),
        (b"user,item,rating\n1,31,2.5\n", {}, True),
        (b"w,x,y\n.5,5,1\n", {"columns": [1, 2]}, True),
        (b"u,v,weight\n5,1,2\n", {}, True),
        (b"x,y\n", {}, False),
        (b"x,y\n5,z\n", {}, False),
        (b"x,y\n5,1\n", {"header": False}, False),
    ],
)
def test_names_above_one_line_of_numbers_are_an_edge_that_is_doubted(
    tmp_path: Path, content: bytes, options: Any, doubted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    assert len(read(put(tmp_path, content, "e.csv"), **options)) == content.count(b"\n")
    assert len(caplog.messages) == doubted
    if doubted:
        assert "taken for an edge, though" in caplog.text
        assert "input.header=true" in caplog.text


@pytest.mark.parametrize(
    ("content", "options", "doubted"),
    [
        (b"user,item,day\n1,31,2020-01-01\n2,31,2020-01-02\n", {}, "'user'"),
        (b"user,seen\n1,Alien\n2,Brazil\n", {}, "'user'"),
        (b"name,user\nann,1\nbob,2\n", {}, "'user'"),
        (b"day,user,seen\n-,1,Alien\n-,2,Brazil\n", {"columns": [1, 2]}, "'user'"),
        (b"user,seen\n1,Alien\n", {}, None),
        (b"user,seen\n1,Alien\nu2,Brazil\n", {}, None),
        (b"1,Alien\n2,Brazil\n3,Brazil\n", {}, None),
        (b"user,seen\n1,Alien\n2,Brazil\n", {"header": False}, None),
    ],
)
def test_a_name_above_numbers_at_one_end_is_an_edge_that_is_doubted(
    tmp_path: Path, content: bytes, options: Any, doubted: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    assert len(read(put(tmp_path, content, "e.csv"), **options)) == content.count(b"\n")
    assert len(caplog.messages) == (doubted is not None)
    if doubted:
        assert f"taken for an edge, though {doubted} is no number and what stands below" in caplog.text
        assert "input.header=true" in caplog.text


@pytest.mark.parametrize(
    ("content", "options", "doubted"),
    [
        (b"user,item\nu7,sku-1\nu8,sku-2\n", {}, True),
        (b"gene,disease\nGene::TP53,MESH:flu\nGene::HLA,MESH:gout\n", {}, True),
        (b"drug,gene,action\nd/a,g/b,inhibits\nd/b,g/a,blocks\n", {"columns": [0, 2, 1]}, True),
        (b"gene,disease\nGene::TP53,MESH:flu\n", {}, False),
        (b"gene,disease\nGene::TP53,MESH:flu\nGene::HLA,gout\n", {}, False),
        (b"ann,item 3\nu7,sku-1\nu8,sku-2\n", {}, False),
        (b"user,item\nu7,sku-1\nu8,sku-2\n", {"header": False}, False),
        (b"user,item\nu7,sku-1\nu8\n", {}, None),
    ],
)
def test_names_above_names_with_numbers_or_types_are_an_edge_that_is_doubted(
    tmp_path: Path, content: bytes, options: Any, doubted: bool | None, caplog: pytest.LogCaptureFixture
) -> None:
    path = put(tmp_path, content, "e.csv")
    if doubted is None:  # a line of another length: that is said, and nothing else
        with pytest.raises(FormatError, match="line 3"):
            read(path, **options)
    else:
        assert len(read(path, **options)) == content.count(b"\n")
    assert len(caplog.messages) == bool(doubted)
    if doubted:
        assert "have no digit, colon, slash or #, and all ends below have, such as" in caplog.text
        assert "input.header=true" in caplog.text


@pytest.mark.parametrize("numbered", [True, False])
def test_names_above_one_line_of_numbers_are_a_header_if_all_known_names_are_numbers(
    tmp_path: Path, numbered: bool, caplog: pytest.LogCaptureFixture
) -> None:
    path = put(tmp_path, b"x,y\n5,1\n", "e.csv")
    assert read(path, numbered=lambda: numbered) == [("x", "y"), ("5", "1")][numbered:]
    (line,) = caplog.messages
    assert ("taken for a header, as 'x' and 'y' are no numbers" in line) == numbered


def test_columns_that_a_file_lacks_are_a_wrong_setting(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = put(tmp_path, b"x,y\na,b\n", "e.csv")
    for columns in ("[0,9]", "[x,z]"):
        assert (
            cli.prepare([f"input.train={path}", f"output={tmp_path / 'g'}", f"input.columns={columns}"]) == 2
        )
        assert "input.columns is" in capsys.readouterr().err


def test_the_page_lists_the_names_that_are_known() -> None:
    page = (Path(__file__).parents[2] / "docs" / "own_graph.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| (head|relation|tail|left out) \| (.+) \|$", page, re.MULTILINE))
    listed = {role: names.replace("`", "").casefold().split(", ") for role, names in rows.items()}
    assert listed.pop("left out") == [name or "no name" for name in NO_RELATION]
    assert listed == {role: list(names) for role, names in WORDS.items()}


def test_commands_without_a_choice_of_columns_are_told_what_to_do(tmp_path: Path) -> None:
    path = put(tmp_path, b"a,r,b,c\n", "e.csv")
    with pytest.raises(FormatError, match="for another command, write a file with those columns only"):
        read(path)


def test_formats_and_delimiters(tmp_path: Path) -> None:
    path = put(tmp_path, b"a b;r;c\n", "edges.dat")
    assert read(path, format="csv", delimiter=";") == [("a b", "r", "c")]
    with pytest.raises(
        ConfigError, match=r"does not tell its format; set input\.format to .* give the file a"
    ):
        read(path)
    with pytest.raises(ConfigError, match="format is 'json'; allowed: auto, tsv, csv, parquet, npy, npz"):
        read(path, format="json")
    for wrong in ("", ";;", "\n", '"', "é", 5, [";"]):
        with pytest.raises(ConfigError, match="delimiter is"):
            read(path, format="csv", delimiter=wrong)
        with pytest.raises(ConfigError, match="comment is"):
            read(path, format="csv", comment=wrong)
    assert read(put(tmp_path, b"a,r,c\n", "E.CSV.GZ")) == [("a", "r", "c")]
    with pytest.raises(ConfigError, match="compressed inside"):
        read(put(tmp_path, b"", "e.parquet.gz"))
    with pytest.raises(StorageError, match="is no file but a folder"):
        read(tmp_path)
    os.mkfifo(tmp_path / "pipe.tsv")  # as of the shell's <(zcat edges.tsv.gz)
    with pytest.raises(StorageError, match=r"is no file but a pipe; edges are read twice: write them to a"):
        read(tmp_path / "pipe.tsv")


names = st.text(
    st.one_of(st.sampled_from("\"',;# \ufeff\x1c\x85\u2028NAé"), st.characters(exclude_categories=["Cs"])),
    min_size=1,
).filter(lambda name: not set(name) & set("\t\n\r\0"))
edges = st.lists(st.tuples(names, names, names), min_size=1, max_size=8)
relaxed = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


@relaxed
@given(rows=edges, end=st.sampled_from(["\n", "\r\n"]), last=st.booleans(), block=st.integers(1, 64))
@example(rows=[("\ufeff\ufeff", "r", "b")], end="\n", last=True, block=1)
def test_any_tsv_comes_back_equal(tmp_path: Path, rows: Rows, end: str, last: bool, block: int) -> None:
    text = end.join("\t".join(row) for row in rows) + (end if last else "")
    # one mark at the very start is the file's, so a first name may only begin with another one
    path = put(tmp_path, b"\xef\xbb\xbf" + text.encode())
    assert read(path, header=False, block_bytes=block) == rows


@relaxed
@given(rows=edges, quote_all=st.booleans(), block=st.integers(1, 64))
def test_any_csv_comes_back_equal(tmp_path: Path, rows: Rows, quote_all: bool, block: int) -> None:
    text = io.StringIO()
    csv.writer(text, quoting=csv.QUOTE_ALL if quote_all else csv.QUOTE_MINIMAL).writerows(rows)
    path = put(tmp_path, b"\xef\xbb\xbf" + text.getvalue().encode(), "e.csv")
    assert read(path, header=False, block_bytes=block) == rows


def reference_rows(content: bytes, delimiter: str) -> Rows | None:
    """What the rules say without quoting: rows of one width, cells of UTF-8; None for an error."""
    try:
        text = content.removeprefix(b"\xef\xbb\xbf").decode()
    except UnicodeDecodeError:
        return None
    *ended, last = text.split("\n")
    lines = [*(line.removesuffix("\r") for line in ended), last]
    rows = [tuple(line.split(delimiter)) for line in lines if line]
    bad = not rows or any("\r" in line or "\0" in line for line in lines)
    if bad or len({len(row) for row in rows}) != 1 or len(rows[0]) not in (2, 3):
        return None
    return None if any("" in row for row in rows) else rows


pieces = st.sampled_from(
    [b"a", b"b", b"\t", b"\t", b"\n", b"\r\n", b"\r", b'"', b"\0", b"\xc3", b"\xa9", b"\xef\xbb\xbf", b","]
)
junk = st.one_of(st.binary(max_size=60), st.lists(pieces, max_size=40).map(b"".join))


@relaxed
@given(content=junk, block=st.integers(1, 70))
@example(content=b"a\tb\r", block=1)
@example(content=b"a\tb\n\r", block=1)
def test_random_bytes_give_what_the_rules_say_or_one_clear_error(
    tmp_path: Path, content: bytes, block: int
) -> None:
    expected = None if content[:2] == b"\x1f\x8b" else reference_rows(content, "\t")
    path = put(tmp_path, content)
    if expected is None:
        with pytest.raises(FormatError, match=r"e\.tsv"):
            read(path, header=False, block_bytes=block)
    else:
        assert read(path, header=False, block_bytes=block) == expected


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=junk, quoting=st.booleans(), delimiter=st.sampled_from(["\t", ",", "a"]))
def test_random_bytes_never_leave_a_graph_or_a_traceback(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, quoting: bool, delimiter: str
) -> None:
    folder = tmp_path_factory.mktemp("fuzz")
    path = put(folder, content)
    graph = None
    with contextlib.suppress(MariusError):
        graph = prepare(
            path, folder / "g", quoting=quoting, delimiter=delimiter, header=False, split=(1, 0, 0)
        )
    if graph is None:
        assert [p.name for p in folder.iterdir()] == ["e.tsv"]
    elif not quoting:
        assert all_edges(graph) == Counter(reference_rows(content, delimiter))


@pytest.mark.parametrize("value", [";", ",", "\t", " ", "|", "#", ":", "="])
@pytest.mark.parametrize("quote", ["", "'", '"'])
def test_delimiters_on_a_command_line(value: str, quote: str) -> None:
    words = ["input.train=f", "output=o", f"input.delimiter={quote}{value}{quote}"]
    assert compose(PrepareConfig, words).input.delimiter == value


def test_a_delimiter_of_several_characters_is_refused_with_the_way_to_write_one() -> None:
    with pytest.raises(ConfigError, match=r"'input\.delimiter=;'; for a tab, input\.format=tsv"):
        compose(PrepareConfig, ["input.train=f", "output=o", 'input.delimiter="\\t"'])


@pytest.mark.parametrize("name", ["e.tsv", "e.parquet", "e.npy"])
def test_a_file_that_may_not_be_read_is_told_in_the_words_of_other_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    path = put(tmp_path, PLAIN, name)
    refused = PermissionError(errno.EACCES, "Permission denied", str(path))

    def refuse(*_: object, **__: object) -> None:
        raise refused

    for target in ("pathlib.Path.open", "builtins.open", "pyarrow.parquet.ParquetFile"):
        monkeypatch.setattr(target, refuse)
    with pytest.raises(StorageError) as caught:
        open_source(path)
    monkeypatch.undo()
    assert str(caught.value) == f"cannot read {path}: Permission denied"
    assert caught.value.errno == errno.EACCES


def test_bytes_are_shown_with_one_backslash() -> None:
    assert shown(b"a\xe9 \\xe9 \\\xff") == r"'a\xe9 \\xe9 \\\xff'"
    assert shown("é\udcff".encode(errors="surrogatepass")) == r"'é\xed\xb3\xbf'"
    assert shown(rb"\udcff") == r"'\\udcff'"
