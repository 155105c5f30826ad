"""marius-import: settings are checked before anything is read, and all are listed."""

import re

import pytest

from marius_py import cli
from marius_py.commands import importing
from marius_py.errors import ConfigError
from marius_py.generate import planted_graph

PBG = ["from=pbg", "graph=g", "input.train=e"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["from=pbg", "graf=g"], "'graf=g' is no setting; did you mean graph?"),
        (["fromat=pbg", "graph=g"], "'fromat=pbg' is no setting; did you mean format or from?"),
        (["from=pbg", "colour=g"], "'colour=g' is no setting (--help"),
        (["from=pbg", "input.colour=g"], "'input.colour=g' is no setting (--help"),
        (["from=pbg", "graph"], "'graph' is no setting"),
        (["graph=g"], "from= is needed; allowed: pbg, dglke"),
        (["from=marius", "graph=g"], "from='marius' is unknown; allowed: pbg, dglke"),
        (["from=pgb", "graph=g"], "from='pgb' is unknown; allowed: pbg, dglke; did you mean pbg?"),
        (["from=pbg"], "graph is missing"),
        (["from=pbg", "graph=g"], "nothing to do"),
        ([*PBG, "output=r"], "belong together"),
        ([*PBG, "checkpoint=c"], "belong together"),
        ([*PBG, "format=udd_hrt"], "format is of from=dglke"),
        (["from=dglke", "graph=g", "input.train=e", "version=2"], "version is of from=pbg"),
        (["from=dglke", "graph=g", "input.train=a", "input.train=b"], "given 2 times"),
        (["from=pbg", "graph=g", "checkpoint=c", "output=r", "input.test=t"], "without input.train"),
        ([*PBG, "graph=h"], "given twice"),
        ([*PBG, "seed=-1"], "seed=-1; allowed: a whole number from 0"),
        ([*PBG, "partitions=2000"], "from 1 to 1024"),
        ([*PBG, "version=" + "9" * 5000], "allowed: a whole number from 1"),
        ([*PBG, f"seed={2**63}"], f"seed={2**63}; allowed: a whole number from 0 to {2**63 - 1}"),
        ([*PBG, "memory=much"], "memory=much"),
        ([*PBG, "memory=1"], "memory is 1 bytes; allowed: 16777216 (16 MiB) or more"),
        ([*PBG, "overwrite=yes"], "allowed: true, false"),
        ([*PBG, "input.split=half"], "three shares"),
        (
            ["from=pbg", "graph=g", "input.train="],
            "input.train= has no value; give one, or leave input.train",
        ),
        ([*PBG, "entities="], "entities= has no value"),
        ([*PBG, "checkpoint=", "output=r"], "checkpoint= has no value"),
        (["from=dglke", "graph=g", "input.train=e", "delimiter="], "delimiter= has no value"),
    ],
)
def test_wrong_settings(capsys, words, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        importing.parse(words)
    assert cli.import_(words) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_parsing():
    values = importing.parse(
        [*PBG, "input.train=f=2", "input.split=[0.8,0.1,0.1]", "memory=64M", "version=null"]
    )
    assert values["input.train"] == ["e", "f=2"]
    assert values["input.split"] == [0.8, 0.1, 0.1]
    assert values["memory"] == 64 << 20
    assert values["version"] is None
    assert importing.parse(["from=dglke", "graph=g", "input.train=a"])["input.train"] == "a"


def test_help_lists_every_key(capsys):
    assert cli.import_(["--help"]) == 0
    text = capsys.readouterr().out
    for key, default in importing._KEYS.items():
        assert f"  {key}={'' if default is None else default}" in text
    assert "Exit codes" in text


def test_a_missing_place(tmp_path, capsys):
    words = ["from=pbg", f"graph={tmp_path / 'g'}", f"checkpoint={tmp_path}", f"output={tmp_path / 'r'}"]
    assert cli.import_(words) == 2
    assert "does not exist" in capsys.readouterr().err
    words = ["from=dglke", f"graph={tmp_path / 'g'}", f"input.train={tmp_path / 'train.txt'}"]
    assert cli.import_(words) == 2
    assert "train.txt is no file" in capsys.readouterr().err
    (tmp_path / "train.txt").write_text("a\tb\tc\n")
    assert cli.import_(words) == 2
    assert "entities.dict" in capsys.readouterr().err
    assert cli.import_([*words, f"entities={tmp_path / 'none'}"]) == 2
    assert "entities=" in capsys.readouterr().err
    words = ["from=pbg", f"graph={tmp_path / 'g'}", f"input.train={tmp_path / 'edges'}"]
    for setting, message in (("entities", "no folder"), ("config", "no file"), ("checkpoint", "no folder")):
        more = [f"{setting}={tmp_path / 'none'}", *([f"output={tmp_path / 'r'}"] * (setting == "checkpoint"))]
        assert cli.import_([*words, *more]) == 2
        assert f"{setting}={tmp_path / 'none'} is {message}" in capsys.readouterr().err


@pytest.mark.parametrize("system", ["pbg", "dglke"])
def test_a_folder_that_is_no_checkpoint(system, tmp_path, capsys):
    graph = planted_graph(tmp_path / "g", num_nodes=20, num_relations=1, num_edges=50).path
    (tmp_path / "folder").mkdir()
    words = [f"from={system}", f"checkpoint={tmp_path}/folder", f"graph={graph}", f"output={tmp_path}/r"]
    assert cli.import_(words) == 2
    assert re.search(r"checkpoint=.*/folder is not a checkpoint of .*: it holds no", capsys.readouterr().err)


def test_missing_edges_are_named_by_their_setting(tmp_path, capsys):
    (tmp_path / "entity_count_all_0.txt").write_text("2")
    (tmp_path / "dynamic_rel_count.txt").write_text("1")
    words = ["from=pbg", f"graph={tmp_path / 'g'}", f"entities={tmp_path}"]
    for place, message in ((tmp_path / "none", "is no folder"), (tmp_path, "holds no edges_I_J.h5")):
        assert cli.import_([*words, f"input.train={place}"]) == 2
        assert f"error: input.train={place} {message}" in capsys.readouterr().err


def test_a_graph_that_is_there_is_told_by_its_key(tmp_path, capsys):
    (tmp_path / "g").mkdir()
    (tmp_path / "g" / "graph.json").write_text("{}")
    words = ["from=dglke", "input.train=e", f"graph={tmp_path / 'g'}"]
    assert cli.import_(words) == 2
    assert capsys.readouterr().err.endswith(
        "/g holds a prepared graph already: set overwrite=true to replace it\n"
    )
    assert cli.import_([*words, f"checkpoint={tmp_path}", f"output={tmp_path / 'r'}"]) == 2
    assert "replace it, or leave out input.* to import the run for it\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("graph", "output", "message"),
    [("run/g", "run", "output=run would hold graph=run/g"), ("../g", ".", "is the current folder")],
)
def test_where_a_run_cannot_be_is_told_before_a_graph_is_made(
    tmp_path, monkeypatch, capsys, graph, output, message
):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(importing, "_graph", None)
    words = ["from=dglke", "input.train=e", f"graph={graph}", f"checkpoint={tmp_path}", f"output={output}"]
    assert cli.import_(words) == 2
    assert message in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["here"]
