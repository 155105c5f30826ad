"""Answers among chosen nodes: those of all nodes with the others taken out, in any number of blocks."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from marius_py import cli, load
from marius_py.errors import ConfigError, FormatError, MissingPathError
from marius_py.predict import Prediction, open_index, predict
from marius_py.predict.query_files import read_names, read_queries
from marius_py.run import Run
from tests.small_runs import write_run

NODES = [f"node {i}" for i in range(40)]
CHOSEN = [NODES[i] for i in (33, 2, 17, 5, 38, 21, 2, 9)]  # one twice, in no order


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "reciprocal"])
def written(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return write_run(tmp_path_factory.mktemp("run"), names=NODES, reciprocal=request.param)


@pytest.fixture
def run(written: Any) -> Any:
    with load(written[0]) as opened:
        yield opened


def _kept(answers: list[Prediction], among: set[str], part: str, k: int) -> list[tuple[Any, ...]]:
    """Of all answers the first k by query that were chosen."""
    found: dict[int, list[tuple[Any, ...]]] = {}
    for one in answers:
        if getattr(one, part) in among:
            found.setdefault(one.query, []).append((one.head, one.relation, one.tail, one.score))
    return [row for rows in found.values() for row in rows[:k]]


@pytest.mark.parametrize("tile", [2, 4096])
@pytest.mark.parametrize("filter_known", [False, True])
@pytest.mark.parametrize("allow_self", [False, True])
@pytest.mark.parametrize("part", ["head", "tail"])
def test_answers_are_those_of_all_nodes_that_were_chosen(
    run: Run, part: str, allow_self: bool, filter_known: bool, tile: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"tail" if part == "head" else "head": NODES, "relation": run.relation_names[1]}
    options: dict[str, Any] = {"filter_known": filter_known, "allow_self": allow_self}
    expected = _kept(predict(run, **given, **options, k=40), set(CHOSEN), part, 3)
    for module in ("completion", "topk"):
        monkeypatch.setattr(f"marius_py.predict.{module}.TILE_CANDIDATES", tile)
    monkeypatch.setattr("marius_py.predict.completion.MIN_MEMORY_BYTES", 0)
    found = predict(run, **given, **options, k=3, among=CHOSEN, memory_bytes=8 * 4 * run.dim * tile)
    assert [(one.head, one.relation, one.tail, one.score) for one in found] == expected
    assert len(expected) > 80


def test_no_more_answers_come_than_nodes_were_chosen(run: Run) -> None:
    found = run.predict(head=NODES[0], relation=run.relation_names[0], k=40, among=iter(CHOSEN))
    assert sorted(one.tail for one in found) == sorted(set(CHOSEN))
    assert [one.rank for one in found] == list(range(1, 8))
    whole = run.predict(head=NODES[0], relation=run.relation_names[0], k=40)
    assert whole == run.predict(head=NODES[0], relation=run.relation_names[0], k=40, among=NODES)


def test_probabilities_are_shares_among_those_that_compete(run: Run) -> None:
    asked = {"head": NODES[:9], "relation": run.relation_names[0], "probabilities": True, "temperature": 0.7}
    found = run.predict(**asked, k=7, among=CHOSEN)
    shares = np.reshape([one.probability for one in found], (9, 7))
    np.testing.assert_allclose(shares.sum(1), 1, rtol=1e-12)
    scores = np.reshape([one.score for one in found], (9, 7)) / 0.7
    np.testing.assert_allclose(shares, np.exp(scores) / np.exp(scores).sum(1, keepdims=True), rtol=1e-9)


@pytest.mark.parametrize("metric", ["cosine", "dot", "l2"])
def test_neighbors_are_those_of_all_nodes_that_were_chosen(run: Run, metric: Any) -> None:
    asked = [NODES[2], NODES[3], NODES[38]]
    whole = run.neighbors(asked, k=39, metric=metric)
    for k in (3, 50):
        found = run.neighbors(asked, k=k, metric=metric, among=CHOSEN)
        for node in asked:
            expected = [(one.neighbor, one.score) for one in whole if one.node == node]
            chosen = [one for one in expected if one[0] in CHOSEN]
            assert [(one.neighbor, one.score) for one in found if one.node == node] == chosen[:k]
            assert len(chosen) == (6 if node in CHOSEN else 7)
    assert run.neighbors(NODES[2], among=[NODES[2]]) == []


def test_what_no_node_may_answer_is_refused(run: Run, tmp_path: Path) -> None:
    relation = run.relation_names[0]
    with pytest.raises(ConfigError, match=r"query 2 asks for no node, and among says"):
        run.predict(head=NODES[:2], relation=[relation, None], tail=[None, NODES[3]], among=CHOSEN)
    with pytest.raises(ConfigError, match=r"query 1 asks for no node"):
        run.predict(head=NODES[0], relation=relation, tail=NODES[1], among=CHOSEN)
    with pytest.raises(ConfigError, match="among holds no names"):
        run.predict(head=NODES[0], relation=relation, among=[])
    with pytest.raises(ConfigError, match=r"among is 'node 1' \(str\); pass a list of names"):
        run.neighbors(NODES[0], among=NODES[1])
    with pytest.raises(ConfigError, match=r"'node 400'.*Did you mean 'node 4"):
        run.predict(head=NODES[0], relation=relation, among=["node 400"])
    pytest.importorskip("faiss")
    index = open_index(run, folder=tmp_path)
    with pytest.raises(ConfigError, match="among is of exact search"):
        run.neighbors(NODES[0], index=index, among=CHOSEN)


def test_an_embedding_that_is_not_finite_is_told_by_its_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with load(write_run(tmp_path, names=NODES, diverged=5)[0]) as run:
        names = run.node_names()
        among = [*names[3:5], *names[10:14]]
        found = run.predict(head=names[20], relation=run.relation_names[0], k=9, among=among)
    assert sorted(one.tail for one in found) == sorted(among[2:])
    said = f"2 of 6 nodes have embeddings that are not finite, the first of them {names[3]!r}"
    assert said in caplog.text


def test_commands_read_the_names_of_a_file(
    written: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, table = tmp_path / "some.txt", tmp_path / "some.parquet"
    text.write_text("\ufeff" + "\r\n".join(CHOSEN) + "\r\n\n", encoding="utf-8")
    pq.write_table(pa.table({"other": [1] * 8, "name": CHOSEN}), table)
    with load(written[0]) as run:
        relation = run.relation_names[1]
    asked = [str(written[0]), "--head", NODES[0], "--relation", relation, "-k", "40", "--format", "tsv"]
    outputs = []
    for file in (text, table):
        assert cli.predict([*asked, "--among", str(file)]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]
    assert sorted(line.split("\t")[3] for line in outputs[0].splitlines()[1:]) == sorted(set(CHOSEN))
    near = [str(written[0]), "--node", NODES[0], "-k", "40", "--format", "tsv", "--among", str(text)]
    assert cli.neighbors(near) == 0
    assert sorted(line.split("\t")[1] for line in capsys.readouterr().out.splitlines()[1:]) == sorted(
        set(CHOSEN)
    )
    assert cli.neighbors([*near, "--index", "faiss"]) == 2
    assert "--among is of exact search" in capsys.readouterr().err
    text.write_text("node 1\nnod 2\n", encoding="utf-8")
    assert cli.predict([*asked, "--among", str(text)]) == 2
    assert "'nod 2'" in capsys.readouterr().err


def test_files_of_names(tmp_path: Path) -> None:
    file, quoted = tmp_path / "names", tmp_path / "names.csv"
    file.write_text(' a b \n"c"\n\nd,e\n', encoding="utf-8")
    assert read_names(file) == [" a b ", '"c"', "d,e"]
    quoted.write_text('a b\n"c ""d"", e"\n', encoding="utf-8")
    assert read_names(quoted) == ["a b", 'c "d", e']
    quoted.write_text("a\nb,c\n", encoding="utf-8")
    with pytest.raises(FormatError, match="line 2: 2 columns; a name a line is expected"):
        read_names(quoted)
    file.write_text("\n\n", encoding="utf-8")
    with pytest.raises(FormatError, match="holds no names"):
        read_names(file)
    file.write_bytes(b"caf\xe9\n")
    with pytest.raises(FormatError, match="is not UTF-8"):
        read_names(file)
    with pytest.raises(MissingPathError, match=r"^names .*none does not exist"):
        read_names(tmp_path / "none")
    table = tmp_path / "names.parquet"
    pq.write_table(pa.table({"node": pa.array([3, None, 1])}), table)
    assert read_names(table) == ["3", "1"]
    assert read_names(table.rename(tmp_path / "names.PQ")) == ["3", "1"]
    pq.write_table(pa.table({"a": [1], "b": [2]}), table)
    with pytest.raises(FormatError, match="has no column name; it has a, b"):
        read_names(table)


def test_names_of_any_kind_of_text(tmp_path: Path) -> None:
    table = tmp_path / "names.parquet"
    names = pa.array(["b", None, "a"])
    for column in (names, names.cast(pa.large_string()), names.dictionary_encode()):
        pq.write_table(pa.table({"name": column}), table)
        assert read_names(table) == ["b", "a"]
    try:
        pq.write_table(pa.table({"name": pa.array(names.to_pylist(), pa.string_view())}), table)
    except pa.ArrowNotImplementedError:
        return  # a version that has no such columns in Parquet reads none
    assert read_names(table) == ["b", "a"]


@pytest.mark.parametrize("read", [read_names, read_queries])
@pytest.mark.parametrize("name", ["a.txt", "a.tsv.gz", "a.csv"])
@pytest.mark.parametrize(
    ("kind", "packed"), [("gzip", gzip.compress(b"a", mtime=0)), ("zstd", pa.compress(b"a", "zstd"))]
)
def test_a_compressed_file_is_called_so(tmp_path: Path, read: Any, name: str, kind: str, packed: Any) -> None:
    (tmp_path / name).write_bytes(bytes(packed))
    with pytest.raises(FormatError, match=f"{name} is compressed by {kind}; unpack it first"):
        read(tmp_path / name)


@pytest.mark.parametrize("read", [read_names, read_queries])
def test_what_may_have_no_end_is_refused_and_a_pipe_read(read: Any) -> None:
    with pytest.raises(MissingPathError, match=r"/dev/zero is no file but a device"):
        read("/dev/zero")
    with pytest.raises(MissingPathError, match=r"/dev is no file but a folder"):
        read("/dev")
    reading, writing = os.pipe()
    os.write(writing, b"a\tr\t?\n")
    os.close(writing)
    found = read(f"/dev/fd/{reading}")
    os.close(reading)
    assert found == ["a\tr\t?"] if read is read_names else found.cells["head"] == ["a"]
