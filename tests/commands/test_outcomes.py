"""How a command ends: its exit code, and one message on stderr."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

import marius_py.assembly.build
import marius_py.evaluating
from marius_py import cli
from marius_py.config import TrainConfig
from marius_py.errors import (
    ConfigError,
    FormatError,
    InterruptedRunError,
    MissingPathError,
    PipelineError,
    StorageError,
)
from tests.commands.stand_ins import METRICS, SMALL, write_small_graph


def _failing(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def train(config: TrainConfig, watcher: Any = None) -> dict[str, Any]:
        raise error

    monkeypatch.setattr(marius_py.assembly.build, "train", train)


def test_done(runs: list[TrainConfig], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.train(["graph=g", "output=my run", "model.dim=6"]) == 0
    assert (runs[0].graph, runs[0].output, runs[0].model.dim) == ("g", "my run", 6)
    out, err = capsys.readouterr()
    assert "0.2500" in out
    assert "filtered, all entities, realistic ties" in out
    assert "run: my run" in out
    assert err == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (StorageError("disk full at nodes.h5"), 1, "disk full at nodes.h5"),
        (FormatError("line 3 of x.tsv: 'a b'"), 1, "line 3 of x.tsv"),
        (PipelineError("stage compute failed: boom", stage="compute"), 1, "stage compute failed"),
        (InterruptedRunError("interrupted in epoch 2; go on with resume=true"), 130, "resume=true"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (MemoryError(), 1, "out of memory"),
        (RuntimeError("surprise"), 1, "unexpected RuntimeError: surprise"),
        (OSError(errno.ENAMETOOLONG, "File name too long", "long"), 1, "long: File name too long"),
        (OSError(errno.ENOSPC, "No space left on device"), 1, "reading or writing: No space left on device"),
        (OSError("surprise"), 1, "unexpected OSError: surprise"),
        (SystemExit(0), 1, "unexpected SystemExit: 0"),
        (type("PanicException", (BaseException,), {})("index"), 1, "unexpected PanicException: index"),
        (
            type("Mute", (Exception,), {"__str__": lambda _: 1 / 0})(),
            1,
            "unexpected Mute: its text cannot be had",
        ),
    ],
)
def test_failures_end_with_one_line_and_their_code(
    error: BaseException,
    code: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _failing(monkeypatch, error)
    assert cli.train(["graph=g"]) == code
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1
    assert "Traceback" not in err


@pytest.mark.parametrize("how", ["environment", "flag"])
def test_debug_logging_prints_the_traceback(
    how: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _failing(monkeypatch, RuntimeError("surprise"))
    if how == "environment":
        monkeypatch.setenv("MARIUS_DEBUG", "1")
    assert cli.train(["graph=g", *(["--log-level", "debug"] if how == "flag" else [])]) == 1
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert "surprise" in err


@pytest.mark.parametrize(
    ("command", "words", "message"),
    [
        ("train", ["model.dimm=3"], "did you mean model.dim?"),
        ("train", ["--multi", "model.dim=4,6"], "did you mean --multirun?"),
        ("predict", ["r", "--hed", "Oslo", "--relation", "in"], "did you mean --head?"),
        ("train", ["graph=g", "training.batch_size=0"], "training.batch_size=0"),
        ("train", ["--nonsense"], "--nonsense"),
        ("train", ["--graph", "graphs/mine"], "settings are given without dashes, as key=value"),
        ("import_", ["--graph", "g"], "settings are given without dashes, as key=value"),
        ("predict", ["r", "head=a", "relation=b"], "flags are given with dashes, as --flag VALUE"),
        ("prepare", ["edges.tsv"], "settings have the form key=value; --help lists them"),
        ("prepare", [__file__], f"settings have the form key=value, as input.train={__file__}; --help"),
        ("evaluate", ["."], "settings have the form key=value, as run=.; --help lists them"),
        ("plan", ["."], "settings have the form key=value, as graph=.; --help lists them"),
        ("train", ["-m", "graph=g", "model.dim=64,abc"], "model.dim='abc'"),
        ("train", ["-m", "graph=g", "modl.dim=64,128"], "modl.dim"),
        ("train", ["-m", "graph=g", "loss=null"], "loss=null is not allowed"),
        ("train", ["-m", "graph=g", "--cfg", "job"], "--multirun and --cfg cannot go together"),
        ("train", ["graph=g", "--resolve"], "--resolve goes with --cfg"),
        ("train", ["graph=g", "--log-level", "loud"], "loud"),
        ("evaluate", [], "run is missing"),
        ("evaluate", ["run=r", "split=all"], "split=all"),
        ("prepare", ["input.train=f"], "output is missing"),
        ("export", [], "RUN"),
        ("export", ["r", "--format", "xls", "--output", "f"], "xls"),
        (
            "predict",
            ["r", "--head", "a", "--head", "b"],
            "--head is given twice: 'a' and 'b'; several queries go",
        ),
        ("neighbors", ["r", "--node", "a", "-k", "3", "-k", "3"], "-k is given twice: 3 and 3; leave one of"),
        (
            "export",
            ["r", "--format", "tsv", "--output", "a", "--output", "b"],
            "--output is given twice: 'a' and",
        ),
        ("train", ["--config-dir", "a", "graph=g", "-cd", "b"], "-cd is given twice: 'a' and 'b'"),
        (
            "export",
            ["r", "--format", "tsv", "--output", "-"],
            "--output - is no name: the command writes several files",
        ),
        ("report", ["r", "--output", "-"], "--output - is no name"),
        (
            "predict",
            ["r", "--head", "-x"],
            "expected one argument; one that begins with - is given as --head=-…",
        ),
        ("predict", ["r", "-k", "1.5"], "argument -k: '1.5'; allowed: a whole number from 1"),
        ("train", ["optimizer.lr=0.05,0.2"], "optimizer.lr=0.05,0.2 gives several values: with -m each"),
        ("train", ["model.dim=range(1,4)"], "model.dim=range(1,4) gives several values: with -m each"),
        (
            "prepare",
            ["input.train=${nope}/e", "output=g"],
            "input.train: Interpolation key 'nope' not found; for the text ${ itself write \\${",
        ),
        ("report", ["r", "--edges", "0"], "--edges is 0; allowed: a whole number from 1"),
        ("report", ["r", "--nodes", "-5"], "--nodes is -5; allowed: a whole number from 1"),
    ],
)
def test_bad_usage_is_code_2_with_one_line(
    command: str, words: list[str], message: str, runs: list[TrainConfig], capsys: pytest.CaptureFixture[str]
) -> None:
    assert getattr(cli, command)(words) == 2
    err = [line for line in capsys.readouterr().err.splitlines() if " job " not in line or "error: " in line]
    assert len(err) == 1
    assert err[0].startswith("error: ")
    assert message in err[0]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("train", ["graph=nowhere", "output=r"]),
        ("plan", ["graph=nowhere"]),
        ("prepare", ["input.train=nowhere", "output=g"]),
        ("prepare", ["input.train=here.tsv", "input.valid=nowhere", "output=g"]),
        ("evaluate", ["run=nowhere"]),
        ("export", ["nowhere", "--format", "npy", "--output", "f.npy"]),
        ("predict", ["nowhere", "--head", "a", "--relation", "b"]),
        ("neighbors", ["nowhere", "--node", "a"]),
        ("report", ["nowhere"]),
        ("verify", ["nowhere"]),
        ("extend", ["graph=nowhere", "input.train=here.tsv", "output=g"]),
        ("import_", ["from=pbg", "graph=nowhere", "checkpoint=.", "output=r"]),
    ],
)
def test_path_that_leads_nowhere_is_code_2(
    command: str,
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("here.tsv").write_text("a\tb\tc\n")
    assert getattr(cli, command)(words) == 2
    err = capsys.readouterr().err.splitlines()
    assert len(err) == 1
    assert err[0].startswith("error: ")
    assert "nowhere" in err[0]
    assert [one.name for one in tmp_path.iterdir()] == ["here.tsv"]


def test_path_that_leads_nowhere_is_caught_by_either_name() -> None:
    for kind in (StorageError, ConfigError, FileNotFoundError, ValueError):
        with pytest.raises(kind, match="nowhere"):
            raise MissingPathError("graph folder nowhere does not exist")


def test_a_working_directory_that_was_deleted_is_code_2(
    runs: list[TrainConfig], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "gone").mkdir()
    os.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert cli.train([f"graph={tmp_path}/g", f"output={tmp_path}/r"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: the working directory cannot be used (No such file or directory)")
    assert not runs


def test_evaluate_prints_and_writes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(marius_py.evaluating, "evaluate", lambda config, on_stage=None: METRICS)
    assert cli.evaluate(["run=r", "output=metrics.json"]) == 0
    assert "test: filtered" in capsys.readouterr().out
    assert json.loads((tmp_path / "metrics.json").read_text()) == METRICS


def test_prepare_train_evaluate_export(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    write_small_graph()
    assert cli.train([*SMALL, "training.epochs=1"]) == 0
    assert cli.train([*SMALL, "training.epochs=2"]) == 2
    assert "not empty" in capsys.readouterr().err
    assert cli.train(["output=run=1", "resume=true", "model.dim=6"]) == 2
    assert "model.dim" in capsys.readouterr().err
    assert cli.evaluate(["run=run=1", "ks=[1,5]", "output=metrics.json", "compute_threads=1"]) == 0
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    result = json.loads((tmp_path / "run=1" / "result.json").read_text())
    assert metrics["mrr"] == pytest.approx(result["test"]["mrr"], abs=1e-9)
    assert "hits@5" in metrics
    assert cli.export(["run=1", "--format", "tsv", "--output", "nodes.tsv"]) == 0
    assert cli.export(["run=1", "--format", "tsv", "--output", "nodes.tsv"]) == 2
    names = {line.split("\t")[0] for line in (tmp_path / "nodes.tsv").read_text().splitlines()}
    assert {"0", "28", "30"} <= names
