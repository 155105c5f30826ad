"""`marius-evaluate`: details, ranks by name, other edges, runs side by side; runs are written untrained."""

import csv
import dataclasses
import json
import logging
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import marius_py
from marius_py import cli
from marius_py.assembly.build import Watcher
from marius_py.config import EvaluateConfig
from marius_py.errors import ConfigError, FormatError, MissingPathError, StorageError
from marius_py.evaluating import evaluate
from marius_py.evaluation.edge_files import read_edges
from marius_py.graph import open_graph
from marius_py.run import load
from marius_py.storage import replacing
from marius_py.storage.hdf5_nodes import open_node_store
from marius_py.storage.protocols import Checkpoint
from tests.small_runs import NAMES, write_run


def settings(run, **more):
    return EvaluateConfig(run=str(run), device="cpu", compute_threads=1, **more)


def test_a_run_is_evaluated_from_python(tmp_path, monkeypatch):
    run, graph, _, _ = write_run(tmp_path)
    monkeypatch.chdir(tmp_path)
    given = {"split": "train", "ks": (1, 5), "device": "cpu", "compute_threads": 1}
    config = settings(run, split="train", ks=(1, 5))
    found = [evaluate(config), marius_py.evaluate(config), marius_py.evaluate("run", given)]
    graph.path.rename(tmp_path / "moved")
    with load(run, graph="moved") as opened:
        found.append(marius_py.evaluate(opened, {**given, "output": "all.json"}))
    assert json.loads((tmp_path / "all.json").read_text()) == found[-1]
    assert all({**one, "seconds": 0} == {**found[0], "seconds": 0} for one in found)
    with pytest.raises(ConfigError, match=r"unknown key splt; did you mean split\?"):
        marius_py.evaluate("run", {"splt": "train"})
    with pytest.raises(ConfigError, match="run is 'run' as the argument, but 'other' in settings"):
        marius_py.evaluate("run", {"run": "other"})
    with pytest.raises(ConfigError, match="no folder"):
        marius_py.evaluate("run", {"graph": "moved", "output": "nowhere/all.json"})
    with pytest.raises(ConfigError, match="says everything"):
        marius_py.evaluate(settings(run), given)


def test_the_watcher_of_an_evaluation_is_told_its_stages(tmp_path):
    run, _, _, _ = write_run(tmp_path)
    told = []

    class Listener(Watcher):
        def on_stage(self, stage, done, total, unit):
            told.append((stage, done, total, unit))

    marius_py.evaluate(settings(run), watcher=Listener())
    stage, done, total, unit = told[-1]
    assert (stage, unit) == ("rank test", "edges")
    assert done == total


def test_memory_that_a_watcher_lacks_is_not_the_rankings(tmp_path, caplog):
    run, *_ = write_run(tmp_path)
    own = MemoryError("the listener's")

    class Listener(Watcher):
        def on_stage(self, stage, done, total, unit):
            raise own

    with pytest.raises(MemoryError) as caught:
        marius_py.evaluate(settings(run), watcher=Listener())
    assert caught.value is own
    assert not [one for one in caplog.messages if "ranking again" in one]


def test_a_live_run_is_ranked_at_one_commit(tmp_path, monkeypatch):
    folder, _, _, relations = write_run(tmp_path)
    before = evaluate(settings(folder))

    def load_and_commit(*arguments, **named):
        """A trainer commits between the opening of the run and its ranking."""
        run = load(*arguments, **named)
        with open_node_store(folder / "checkpoint") as store:
            table = store.table
            if commits.pop():
                block = np.ones((table.slot_rows, table.dim), np.float32)
                store.write(0, block, np.empty((table.slot_rows, 0), np.float32))
            meta = store.checkpoint().meta
            store.commit(Checkpoint(arrays={"relations": -relations}, meta=meta))
        return run

    commits = [True, False]
    monkeypatch.setattr("marius_py.evaluating.load", load_and_commit)
    assert {**evaluate(settings(folder)), "seconds": 0} == {**before, "seconds": 0}
    with pytest.raises(StorageError, match="has been replaced by training since it was opened"):
        evaluate(settings(folder))


def test_details_add_up_to_the_whole(tmp_path):
    run, graph, _, _ = write_run(tmp_path)
    result = evaluate(settings(run, details=True, split="train"))
    assert set(result["relations"]) == {"likes", "knows it"}
    for groups in (result["categories"], result["relations"]):
        parts = [part for part in groups.values() if part["count"]]
        assert sum(part["count"] for part in parts) == result["count"] == 2 * graph.num_edges["train"]
        for side in ("head", "tail"):
            mean = sum(part[side]["mrr"] * part[side]["count"] for part in parts) / result[side]["count"]
            assert mean == pytest.approx(result[side]["mrr"])
    assert sum(part["count"] for part in result["degree_bands"].values()) == result["count"]
    assert {part["category"] for part in result["relations"].values()} <= {"1-1", "1-N", "N-1", "N-N"}
    assert not result["sampled"]


@pytest.mark.parametrize("ending", ["csv", "CSV", "Parquet"])
def test_ranks_have_names_and_give_the_metrics_again(tmp_path, ending, monkeypatch):
    monkeypatch.setattr("marius_py.evaluation.rank_files._BLOCK_EDGES", 3)
    run, graph, _, _ = write_run(tmp_path)
    target = tmp_path / f"ranks.{ending}"
    result = evaluate(settings(run, ranks=str(target)))
    if ending.casefold() == "csv":
        with target.open(newline="", encoding="utf-8") as lines:
            rows = list(csv.DictReader(lines))
    else:
        rows = pq.read_table(target).to_pylist()
    assert len(rows) == result["count"] == 2 * graph.num_edges["test"]
    assert np.mean([1 / float(row["rank"]) for row in rows]) == pytest.approx(result["mrr"])
    best = np.mean([1 / float(row["optimistic_rank"]) for row in rows])
    assert best == pytest.approx(result["optimistic_mrr"])
    written = {(row["head"], row["relation"], row["tail"]) for row in rows}
    expected = {
        tuple(line.split("\t")) for line in (tmp_path / "test.tsv").read_text(encoding="utf-8").splitlines()
    }
    assert written == expected
    assert {row["side"] for row in rows} == {"head", "tail"}
    assert not list(tmp_path.glob(".ranks*"))


def test_another_file_of_edges_gives_what_the_split_gives(tmp_path):
    run, graph, _, _ = write_run(tmp_path)
    whole = evaluate(settings(run))
    same = evaluate(settings(run, edges=str(tmp_path / "test.tsv")))
    assert {name: same[name] for name in ("mrr", "count", "head", "tail")} == {
        name: whole[name] for name in ("mrr", "count", "head", "tail")
    }
    rows = [line.split("\t") for line in (tmp_path / "test.tsv").read_text(encoding="utf-8").splitlines()]
    columns = dict(zip(("tail", "relation", "head"), list(zip(*rows, strict=True))[::-1], strict=True))
    pq.write_table(pa.table({name: list(column) for name, column in columns.items()}), tmp_path / "t.parquet")
    np.testing.assert_array_equal(
        read_edges(tmp_path / "t.parquet", graph), read_edges(tmp_path / "test.tsv", graph)
    )


def test_a_file_of_edges_is_read_as_the_settings_say(tmp_path, capsys):
    run = write_run(tmp_path)[0]
    rows = [line.split("\t") for line in (tmp_path / "test.tsv").read_text(encoding="utf-8").splitlines()]
    other = tmp_path / "other.edges"
    lines = "".join(f"{tail};{i};{relation};{head}\n" for i, (head, relation, tail) in enumerate(rows))
    other.write_text(f"% of some tool\nto;weight;kind;from\n{lines}", encoding="utf-8")
    words = [f"run={run}", "compute_threads=1", "device=cpu", f"edges={other}", f"output={tmp_path}/m.json"]
    how = ["input.format=csv", "input.delimiter=;", "input.comment=%"]
    expected = evaluate(settings(run))
    for columns in ("input.columns=[from,kind,to]", "input.columns=[3,2,0]"):
        assert cli.evaluate([*words, *how, columns]) == 0
        result = json.loads((tmp_path / "m.json").read_text())
        assert {name: result[name] for name in ("head", "tail")} == {
            name: expected[name] for name in ("head", "tail")
        }
    given = {"edges": other, "input": {"format": "csv", "delimiter": ";", "comment": "%"}, "device": "cpu"}
    given["input"]["columns"] = ["from", "kind", "to"]
    assert marius_py.evaluate(run, given)["mrr"] == expected["mrr"]
    given["input"]["columns"] = [3, 0]
    with pytest.raises(ConfigError, match=r"has two columns.*; input\.columns says which columns these are"):
        marius_py.evaluate(run, given)
    capsys.readouterr()
    for wrong, said in (
        ("input.train=other.edges", "unknown key input.train"),
        ("input.delimiter=ab", "input.delimiter='ab' is not one character"),
        ("input.columns=[1]", "input.columns=['1'] has 1 entries"),
    ):
        assert cli.evaluate([*words, wrong]) == 2
        assert said in capsys.readouterr().err


@pytest.mark.parametrize("ending", ["txt", "parquet"])
def test_ranks_among_the_nodes_of_a_file(tmp_path, ending, capsys):
    """All heads are people and all tails are places: only places are ranked."""
    people, places = [f"person {i}" for i in range(30)], [f"place {i}" for i in range(7)]
    edges = [(one, "was in", places[i * j % 7]) for i, one in enumerate(people) for j in range(1, 5)]
    small = {"model.dim": 4, "training.epochs": 1, "device": "cpu"}
    marius_py.train(sorted(set(edges)), tmp_path / "run", small).close()
    file, target, ranks = (tmp_path / name for name in (f"places.{ending}", "m.json", "ranks.csv"))
    if ending == "txt":
        file.write_text("\n".join(places) + "\n", encoding="utf-8")
    else:
        pq.write_table(pa.table({"name": places}), file)
    words = [f"run={tmp_path / 'run'}", "compute_threads=1", "device=cpu"]
    assert cli.evaluate([*words, f"among={file}", f"output={target}", f"ranks={ranks}", "details=true"]) == 0
    out = capsys.readouterr().out
    result = json.loads(target.read_text())
    count = result["tail"]["count"]
    assert "filtered, among 7 of 37 entities, realistic ties" in out
    assert result["count"] == count > 0
    assert result["head"]["mrr"] is None
    assert result["among"] == {"file": str(file), "nodes": 7, "left_out": {"head": count, "tail": 0}}
    assert result["relations"]["was in"]["tail"]["mrr"] == result["mrr"]
    with ranks.open(newline="", encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    assert [row["side"] for row in rows] == ["tail"] * count
    assert all(int(row["candidates"]) <= 7 for row in rows)
    with load(tmp_path / "run") as run:
        assert run.evaluate(among=places).mrr == result["mrr"]
    file.with_suffix(".csv").write_text("place 1\nplaice 2\n", encoding="utf-8")
    assert cli.evaluate([*words, f"among={file.with_suffix('.csv')}"]) == 2
    assert "no node of" in (said := capsys.readouterr().err)
    assert "'plaice 2'. Did you mean 'place 2'" in said


def test_unknown_names_are_one_message(tmp_path):
    _, graph, _, _ = write_run(tmp_path)
    file = tmp_path / "odd.tsv"
    file.write_text(
        "Zürch\tlikes\tOslo\nOslo\tliked\tLima\nLima\tlikes\tRome\nXX\tlikes\tXX\n", encoding="utf-8"
    )
    with pytest.raises(ConfigError) as caught:
        read_edges(file, graph)
    message = str(caught.value)
    for part in ("3 of 4 edges", "2 nodes", "'Zürch'", "1 relation ('liked')", "'Zürich'", "'likes'"):
        assert part in message
    file.write_text("Oslo\tLima\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="has two columns"):
        read_edges(file, graph)
    file.write_text("", encoding="utf-8")
    with pytest.raises(FormatError):
        read_edges(file, graph)


def test_a_sample_of_edges_says_so_everywhere(tmp_path, capsys):
    run, graph, _, _ = write_run(tmp_path)
    words = [
        f"run={run}",
        "split=train",
        "max_edges=7",
        "details=true",
        "compute_threads=1",
        f"output={tmp_path}/m.json",
    ]
    assert cli.evaluate(words) == 0
    out = capsys.readouterr().out
    result = json.loads((tmp_path / "m.json").read_text())
    assert result["count"] == 14
    assert result["sampled"]
    assert result["protocol"].startswith(f"sampled: 7 of {graph.num_edges['train']} train edges (seed 0), ")
    assert out.count("sampled: ") == 4
    labels = [line.rpartition(" ")[0].split("  ")[0] for line in out.splitlines()]
    for bound in result["degree_bands"]:
        assert {bound, f"{bound} head", f"{bound} tail"} <= set(labels)
    both = evaluate(settings(run, split="train", max_edges=7, mode="sampled", candidates=4))
    assert both["protocol"].count("sampled") == 1
    everything = evaluate(settings(run, max_edges=10**6))
    assert not everything["sampled"]
    other = evaluate(settings(run, split="train", max_edges=7, seed=1))
    assert other["mrr"] != result["mrr"]


def test_runs_side_by_side(tmp_path, capsys):
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
    first = write_run(tmp_path / "a")[0]
    second = write_run(tmp_path / "b", decoder="complex")[0]
    other = write_run(tmp_path / "c", names=[*NAMES[:-1], "Paris"])[0]
    same = evaluate(settings(first, compare=(str(second),)))
    assert same["same_graph"]
    assert [one["run"] for one in same["runs"]] == [str(first), str(second)]
    assert same["mrr"] == same["runs"][0]["mrr"] == evaluate(settings(first))["mrr"]
    assert same["runs"][1]["mrr"] == evaluate(settings(second))["mrr"]
    assert cli.evaluate([f"run={first}", f"compare=[{second},{other}]", "compute_threads=1"]) == 0
    out = capsys.readouterr().out
    assert all(str(run) in out for run in (first, second, other))
    assert "different graphs" in out
    assert "do not compare" in out


@pytest.mark.parametrize("sample", [{"max_edges": 10}, {"mode": "sampled", "candidates": 8}])
def test_a_sample_is_the_same_for_a_graph_in_other_partitions(tmp_path, sample):
    runs = []
    for partitions in (2, 5):
        folder = tmp_path / str(partitions)
        folder.mkdir()
        runs.append(str(write_run(folder, partitions=partitions)[0]))
    for first, second in (runs, reversed(runs)):
        found = evaluate(settings(first, compare=(second,), split="train", **sample))
        assert found["same_graph"]
        one, other = ({**line, "run": 0, "seconds": 0} for line in found["runs"])
        assert one == other


def test_an_open_run_beside_one_of_another_graph(tmp_path):
    """The place of a graph that was moved is for those runs whose graph is not where it was."""
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
    first, graph = write_run(tmp_path / "a")[:2]
    second = write_run(tmp_path / "b", decoder="complex")[0]
    other = write_run(tmp_path / "c", names=[*NAMES[:-1], "Paris"])[0]
    expected = [evaluate(settings(one))["mrr"] for one in (first, second, other)]
    for folder in ("a", "b"):
        (tmp_path / folder / "graph").rename(tmp_path / folder / "moved")
    given = {"compare": [second, other], "device": "cpu", "compute_threads": 1}
    with load(first, graph=tmp_path / "a" / "moved") as opened:
        found = marius_py.evaluate(opened, given)
    assert [one["mrr"] for one in found["runs"]] == expected
    assert not found["same_graph"]
    (tmp_path / "c" / "graph").rename(tmp_path / "c" / "moved")
    another = f"the run in {other} was trained on another graph than {graph.path.parent}/moved"
    with pytest.raises(ConfigError, match=another):
        evaluate(settings(first, graph=str(tmp_path / "a" / "moved"), compare=(str(other),)))


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["ranks=ranks.xlsx"], "by the file's ending"),
        (["ranks=nowhere/ranks.csv"], "no folder"),
        (["ranks=ranks.csv", "compare=[b]"], "single run"),
        (["max_edges=0"], "max_edges"),
        (["output=nowhere/m.json"], "output=nowhere/m.json: there is no folder nowhere; create it first"),
        (["output=run"], "output=run is a folder or a device"),
        (["output=m/"], "output=m/ ends in a slash, as a folder does; give the name of a file"),
        (["ranks=m.csv/"], "ranks=m.csv/ ends in a slash, as a folder does; give the name of a file"),
        (["output=run/config.yaml"], "output=run/config.yaml is a file of the run"),
        (["output=graph/graph.json"], "output=graph/graph.json is a file of the graph"),
        (["split=valid"], "no valid edges to rank"),
        (["among=nofile.txt"], "among=nofile.txt does not exist"),
        (["among=names.txt", "mode=sampled"], "among=names.txt beside mode=sampled, whose sample is of all"),
        (["among=test.tsv", "ranks=link.csv"], "no node of"),
        (
            ["among=test.csv", "output=link.csv"],
            "among=test.csv and output=link.csv are one file; give output",
        ),
        (["edges=nofile.tsv"], "edges=nofile.tsv does not exist"),
        (["edges=test.tsv", "output=./test.tsv"], "edges=test.tsv and output=./test.tsv are one file"),
        (["edges=test.csv", "ranks=link.csv"], "edges=test.csv and ranks=link.csv are one file"),
        (
            ["ranks=t.csv", "output=t.csv"],
            "ranks=t.csv and output=t.csv are one file; give output another name",
        ),
    ],
)
def test_what_does_not_fit_is_refused_before_ranking(tmp_path, capsys, words, part, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = write_run(tmp_path)[0]
    (tmp_path / "link.csv").symlink_to("test.csv")
    _no_ranking(monkeypatch)
    assert cli.evaluate([f"run={run}", *words]) == 2
    assert part in capsys.readouterr().err


def test_a_precision_is_checked_for_all_runs_before_the_first_is_ranked(tmp_path, monkeypatch):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    first = write_run(tmp_path / "a")[0]
    second = write_run(tmp_path / "b", decoder="transe")[0]
    _no_ranking(monkeypatch)
    with pytest.raises(ConfigError, match=f"compare={second}: precision=bfloat16 is for decoders whose"):
        evaluate(settings(first, compare=(str(second),), precision="bfloat16"))


def test_details_of_each_run_are_shown(tmp_path, capsys):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    runs = [write_run(tmp_path / "a")[0], write_run(tmp_path / "b", decoder="complex")[0]]
    alone = []
    for run in runs:
        assert cli.evaluate([f"run={run}", "details=true", "compute_threads=1"]) == 0
        alone.append(capsys.readouterr().out.split("\n\n", 1)[1])
    assert cli.evaluate([f"run={runs[0]}", f"compare=[{runs[1]}]", "details=true", "compute_threads=1"]) == 0
    out = capsys.readouterr().out
    for run, details in zip(runs, alone, strict=True):
        assert f"\n{run}\n\n{details}" in out


def test_details_of_a_graph_without_relations_have_no_table_of_them(tmp_path, capsys):
    words = ["details=true", "split=train", "compute_threads=1"]
    for name, decoder, edge in ("pairs", "dot", ("a", "b")), ("triples", "distmult", ("a", "0", "b")):
        small = {"model.decoder": decoder, "model.dim": 4, "training.epochs": 1, "device": "cpu"}
        marius_py.train([edge], tmp_path / name, small).close()
        assert cli.evaluate([f"run={tmp_path / name}", f"output={tmp_path / name}.json", *words]) == 0
        out = capsys.readouterr().out
        written = json.loads((tmp_path / f"{name}.json").read_text())
        assert "by category" in out
        assert ("by relation" in out) == written["has_relations"] == (name == "triples")
        assert list(written["relations"]) == ["0"]


def test_control_characters_in_relations_are_escaped_in_the_table(tmp_path, capsys):
    run = write_run(tmp_path, relations=("likes\x1b[2J", "knows it"))[0]
    assert cli.evaluate([f"run={run}", "details=true", "compute_threads=1"]) == 0
    out = capsys.readouterr().out
    assert "likes\\x1b[2J (" in out
    assert "\x1b" not in out


def test_nothing_to_rank_among_the_named_nodes_is_told_before_a_run_is_ranked(tmp_path, monkeypatch):
    """Also of the second of two runs, whose graphs have other test edges."""
    for name, names in (("a", NAMES), ("b", NAMES[::-1])):
        (tmp_path / name).mkdir()
        write_run(tmp_path / name, names=names)
    first, second = (open_graph(tmp_path / name / "graph") for name in ("a", "b"))
    ends = []
    for graph in (first, second):
        with graph.edges() as edges:
            ids = np.unique(edges.read("test")[:, ::2])
        ends.append({graph.node_names()[place] for place in ids})
    (tmp_path / "names.txt").write_text("\n".join(ends[0] - ends[1]), encoding="utf-8")
    config = settings(
        tmp_path / "a" / "run", compare=(str(tmp_path / "b" / "run"),), among=str(tmp_path / "names.txt")
    )
    _no_ranking(monkeypatch)
    with pytest.raises(ConfigError) as caught:
        evaluate(config)
    assert str(caught.value).startswith(
        f"compare={tmp_path / 'b' / 'run'}: among: no head and no tail of 5 test"
    )
    rows = [f"{name}\tlikes\t{name}" for name in ends[1]]
    (tmp_path / "given.tsv").write_text("\n".join(rows), encoding="utf-8")
    (tmp_path / "names.txt").write_text("\n".join(set(NAMES) - ends[1]), encoding="utf-8")
    with pytest.raises(ConfigError, match=f"^run=.*: among: no head and no tail of {len(rows)} given edges"):
        evaluate(dataclasses.replace(config, edges=str(tmp_path / "given.tsv")))


def test_a_graph_in_the_place_of_a_run_is_told(tmp_path):
    graph = write_run(tmp_path)[1].path
    with pytest.raises(MissingPathError, match=r"^run=.* this is a prepared graph: give the run that was"):
        evaluate(settings(graph))


def _no_ranking(monkeypatch):
    def rank_nothing(*arguments, **named):
        raise AssertionError("ranked before everything was checked")

    monkeypatch.setattr("marius_py.evaluating.rank_split", rank_nothing)


@pytest.mark.parametrize("words", ["output=m.json", "ranks=m.csv"])
def test_a_folder_that_cannot_be_written_is_refused_before_ranking(tmp_path, capsys, words, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = write_run(tmp_path)[0]
    _no_ranking(monkeypatch)

    def refuse(**named):
        raise PermissionError(13, "Permission denied", str(named["dir"]))

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    assert cli.evaluate([f"run={run}", words]) == 1
    err = capsys.readouterr().err
    assert f"{words}: the folder {tmp_path} cannot be written to (Permission denied)" in err


ANOTHER_WRITER = """
import os, signal, sys
from pathlib import Path
from marius_py.errors import StorageError
from marius_py.run_files.results import write_output
target, ends = sys.argv[1:]
def end(path, text, encoding):
    with path.open("w") as half:
        half.write("ha")
    if ends == "it is killed":
        os.kill(os.getpid(), signal.SIGKILL)
    raise OSError(28, "No space left on device")
Path.write_text = end
try:
    write_output(Path(target), {})
except StorageError:
    sys.exit(3)
"""


@pytest.mark.parametrize("ends", ["it is killed", pytest.param("its disk is full", marks=pytest.mark.slow)])
def test_another_writer_of_the_same_metrics_does_no_harm(tmp_path, monkeypatch, ends):
    """It had truncated the file that this one was about to put in its place, or removed it."""
    target, beside = tmp_path / "m.json", tmp_path / "m.json.tmp"
    target.write_text("old")
    beside.write_text("mine")
    sync = replacing.sync_path

    def interfere(path):
        sync(path)
        monkeypatch.setattr(replacing, "sync_path", sync)
        done = subprocess.run([sys.executable, "-c", ANOTHER_WRITER, target, ends], check=False)
        assert done.returncode == {"it is killed": -9, "its disk is full": 3}[ends]

    monkeypatch.setattr(replacing, "sync_path", interfere)
    metrics = marius_py.evaluate(write_run(tmp_path)[0], {"output": str(target)})
    assert json.loads(target.read_text()) == json.loads(json.dumps(metrics))
    assert beside.read_text() == "mine"


def test_metrics_that_cannot_be_written_leave_nothing(tmp_path, monkeypatch):
    run = write_run(tmp_path)[0]
    before = sorted(tmp_path.iterdir())

    def refuse(path, target):
        raise OSError(13, "Permission denied")

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(StorageError, match=r"writing \S+m\.json failed: Permission denied; nothing was"):
        marius_py.evaluate(run, {"output": str(tmp_path / "m.json")})
    assert sorted(tmp_path.iterdir()) == before


def test_runs_are_all_checked_before_the_first_is_ranked(tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.WARNING)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    first = write_run(tmp_path / "a")[0]
    second = write_run(tmp_path / "b", names=[*NAMES[:-1], "Paris"])[0]
    _no_ranking(monkeypatch)
    with pytest.raises(MissingPathError, match=f"compare={tmp_path}/nowhere is no run folder"):
        evaluate(settings(first, compare=(str(second), str(tmp_path / "nowhere"))))
    (tmp_path / "rome.tsv").write_text("Rome\tlikes\tOslo\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=f"compare={second}: .*'Rome'"):
        evaluate(settings(first, compare=(str(second),), edges=str(tmp_path / "rome.tsv")))
    with pytest.raises(MissingPathError):
        evaluate(settings(first, compare=(str(second),), edges=str(tmp_path / "none.tsv")))
    manifest = tmp_path / "b" / "graph"
    monkeypatch.setattr(
        "marius_py.evaluating.load",
        lambda folder, **named: _without(load(folder, **named), "test" if folder == second else None),
    )
    with pytest.raises(
        ConfigError, match=f"compare={second}: its graph {manifest} has no test edges to rank"
    ):
        evaluate(settings(first, compare=(str(second),)))
    assert "has not finished" not in caplog.text


def _without(run, split):
    """A run whose graph has no edges of a split."""
    if split is not None:
        run.graph = dataclasses.replace(run.graph, num_edges={**run.graph.num_edges, split: 0})
    return run


def test_edges_of_a_file_are_read_once_a_graph(tmp_path, monkeypatch):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    first = write_run(tmp_path / "a")[0]
    second = write_run(tmp_path / "b", decoder="complex")[0]
    calls = []
    monkeypatch.setattr(
        "marius_py.evaluating.read_edges",
        lambda *given, **how: calls.append(given) or read_edges(*given, **how),
    )
    result = evaluate(settings(first, compare=(str(second),), edges=str(tmp_path / "a" / "test.tsv")))
    assert len(calls) == 1
    assert [one["mrr"] for one in result["runs"]] == [
        evaluate(settings(one))["mrr"] for one in (first, second)
    ]


def test_a_graph_that_was_moved_is_adopted_as_the_message_says(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [f"{i % 29}\tr\t{(i * 5 + 2) % 31}\n" for i in range(300)]
    (tmp_path / "edges.tsv").write_text("".join(rows))
    assert cli.prepare(["input.train=edges.tsv", "output=g"]) == 0
    small = ["model.dim=4", "training.epochs=1", "training.valid_every=0", "pipeline.compute_threads=1"]
    assert cli.train(["graph=g", "output=r", *small]) == 0
    (tmp_path / "g").rename(tmp_path / "new")
    capsys.readouterr()
    assert cli.evaluate(["run=r", "compute_threads=1"]) == 1
    err = capsys.readouterr().err
    assert f"the graph of the run {tmp_path / 'r'}, {tmp_path / 'g'}, is gone" in err
    assert "--graph DIR" in err
    assert "graph=DIR" in err
    assert cli.evaluate(["run=r", "graph=new", "compute_threads=1"]) == 0
    assert cli.export(["r", "--graph", "new", "--format", "tsv", "--output", "r.tsv"]) == 0
    assert cli.train(["output=r", "resume=true", "graph=new"]) == 0
    assert cli.evaluate(["run=r", "compute_threads=1"]) == 0
    assert cli.prepare(["input.train=edges.tsv", "output=other", "input.split=[0.5,0.2,0.3]"]) == 0
    assert cli.evaluate(["run=r", "graph=other", "compute_threads=1"]) == 2
    assert "was trained on another graph" in capsys.readouterr().err
    (tmp_path / "new").rename(tmp_path / "gone")
    with pytest.raises(StorageError, match="is gone"):
        evaluate(settings(tmp_path / "r"))


@pytest.mark.parametrize("content", [None, "just text", "graph: /nowhere/at/all\n"])
def test_what_was_committed_counts_not_config_yaml(tmp_path, content):
    """A damaged, missing or foreign config.yaml leads no command to another graph, nor stops one."""
    edges = [(str(i % 29), "r", str((i * 5 + 2) % 31)) for i in range(300)]
    small = {"model.dim": 4, "training.epochs": 1, "training.valid_every": 0, "pipeline.compute_threads": 1}
    folder = tmp_path / "run"
    marius_py.train(edges, folder, small).close()
    file = folder / "config.yaml"
    if content is None:
        file.unlink()
    else:
        file.write_text(content)
    assert evaluate(settings(folder))["count"] > 0
    assert cli.export([str(folder), "--format", "npy", "--output", str(tmp_path / "rows.npy")]) == 0


def test_a_graph_without_relations(tmp_path):
    from marius_py.prepare import prepare

    (tmp_path / "e.tsv").write_text("a\tb\nb\tc\nc\ta\na\tc\n", encoding="utf-8")
    prepare(tmp_path / "e.tsv", tmp_path / "g", split=(1.0, 0.0, 0.0))
    graph = open_graph(tmp_path / "g")
    edges = read_edges(tmp_path / "e.tsv", graph)
    assert edges.shape == (4, 3)
    assert not edges[:, 1].any()


def test_a_header_above_one_edge_of_a_numbered_graph_is_known(tmp_path):
    from marius_py.prepare import prepare

    (tmp_path / "e.tsv").write_text("7\t8\n8\t9\n9\t7\n", encoding="utf-8")
    (tmp_path / "one.tsv").write_text("user\titem\n7\t8\n", encoding="utf-8")
    graph = prepare(tmp_path / "e.tsv", tmp_path / "g", split=(1.0, 0.0, 0.0))
    assert read_edges(tmp_path / "one.tsv", graph).tolist() == [
        [*graph.node_ids(["7"]), 0, *graph.node_ids(["8"])]
    ]
