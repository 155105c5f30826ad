"""Commands: exit codes, one message on stderr, help, sweeps, what is printed."""

from __future__ import annotations

import errno
import hashlib
import importlib
import io
import json
import logging
import os
import shlex
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import marius_py.assembly.build
import marius_py.evaluating
from marius_py import __version__, cli
from marius_py.commands import console
from marius_py.commands.progress import Bars
from marius_py.commands.watch import CommandWatcher
from marius_py.config import TrainConfig, load_config, plain, read_yaml, write_yaml
from marius_py.datasets import Dataset, fetch
from marius_py.errors import (
    ConfigError,
    FormatError,
    InterruptedRunError,
    MissingPathError,
    PipelineError,
    StorageError,
)
from marius_py.run_state import RunState
from marius_py.types import Position

METRICS = {
    "mrr": 0.25,
    "hits@1": 0.125,
    "hits@10": 0.5,
    "mean_rank": 12.5,
    "count": 40,
    "head": {"mrr": 0.2, "hits@1": 0.1, "hits@10": 0.4, "mean_rank": 15.0, "count": 20},
    "tail": {"mrr": 0.3, "hits@1": 0.15, "hits@10": 0.6, "mean_rank": 10.0, "count": 20},
    "protocol": "filtered, all entities, realistic ties",
}


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MARIUS_DEBUG", raising=False)
    monkeypatch.delenv("MARIUS_LOG", raising=False)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[TrainConfig]:
    """Training replaced by a recorder that returns metrics."""
    seen: list[TrainConfig] = []

    def train(config: TrainConfig, watcher: Any = None) -> dict[str, Any]:
        seen.append(config)
        return {"test": METRICS, "train": {}, "output": config.output or "runs/x"}

    monkeypatch.setattr(marius_py.assembly.build, "train", train)
    return seen


def _failing(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def train(config: TrainConfig, watcher: Any = None) -> dict[str, Any]:
        raise error

    monkeypatch.setattr(marius_py.assembly.build, "train", train)


def _command(*words: str, **more: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "marius_py", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, **more)


# ------------------------------------------------------------------ exit codes


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


def test_a_closed_output_is_no_traceback(runs: list[TrainConfig]) -> None:
    code = """
import sys
from marius_py.commands import console
sys.exit(console.guarded(lambda: [print("x" * 99) for _ in range(9999)]))
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    err = process.stderr.read()
    process.stderr.close()
    assert process.wait(60) == 1
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "words", [["train", "--version"], ["plan", "--version"], ["verify", "--help"], ["--help"]]
)
def test_output_that_cannot_be_written_is_code_1(words: list[str]) -> None:
    """Also what is so short that it leaves the buffer in the end only."""
    with open("/dev/full", "w") as full:
        done = _buffered(words, stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 1
    assert done.stderr == "error: standard output cannot be written: No space left on device\n"
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as pipe:
        done = _buffered(words, stdout=pipe, stderr=subprocess.PIPE)
    assert done.returncode == 1
    assert done.stderr.startswith("error: the output was closed")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "unbuffered"),
    [
        (["train", "--help"], True),
        (["train", "--cfg", "job"], False),
        (["predict", "--help"], True),
        (["verify", "--version"], False),
        (["--help"], True),
    ],
)
def test_a_full_disk_is_told_of_standard_output_wherever_a_write_fails(
    words: list[str], unbuffered: bool
) -> None:
    """In the middle of a long text, or at once where nothing is held back."""
    with open("/dev/full", "w") as full:
        done = _buffered(words, stdout=full, stderr=subprocess.PIPE, unbuffered=unbuffered)
    assert done.returncode == 1
    assert done.stderr == "error: standard output cannot be written: No space left on device\n"


@pytest.mark.parametrize("words", [["train", "model.dimm=3"], ["nonsense"]])
def test_errors_that_cannot_be_written_keep_their_code(words: list[str]) -> None:
    with open("/dev/full", "w") as full:
        assert _buffered(words, stderr=full).returncode == 2
        assert _buffered(words, stdout=full, stderr=full).returncode == 2


def _buffered(words: list[str], unbuffered: bool = False, **more: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "marius_py", *words]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1" if unbuffered else ""}
    return subprocess.run(command, env=environment, text=True, timeout=120, check=False, **more)


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


# ------------------------------------------------------------------ help


@pytest.mark.parametrize("command", ["train", "extend"])
def test_help_escapes_what_the_encoding_lacks(command: str) -> None:
    done = _command(command, "--help", env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stderr) == (0, "")
    assert "\\u2026" in done.stdout


@pytest.mark.parametrize("command", ["train", "evaluate", "prepare", "export"])
def test_help_and_version(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert getattr(cli, command)(["--help"]) == 0
    assert f"marius-{command}" in capsys.readouterr().out
    assert getattr(cli, command)(["--version"]) == 0
    assert __version__ in capsys.readouterr().out


@pytest.mark.parametrize("command", ["train", "evaluate", "prepare", "plan"])
@pytest.mark.parametrize("words", [[], ["output=o"], ["-m", "output=o"]])
def test_help_of_hydra(command: str, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert getattr(cli, command)(["--hydra-help", *words]) == 0
    assert "Hydra" in capsys.readouterr().out


def test_help_takes_less_than_a_second() -> None:
    seconds = []
    for _ in range(3):
        started = time.perf_counter()
        assert _command("train", "--help").returncode == 0
        seconds.append(time.perf_counter() - started)
    assert min(seconds) < 1.0


def test_module_entry_point(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "--version"]) == 0
    assert cli.main(["--help"]) == 0
    assert cli.main([]) == 2
    assert cli.main(["nonsense"]) == 2
    done = _command("train", "model.dimm=3")
    assert (done.returncode, done.stdout) == (2, "")
    assert "did you mean model.dim?" in done.stderr


@pytest.mark.parametrize("name", ["prepare", "train", "evaluate", "export"])
def test_scripts_are_the_commands(name: str) -> None:
    script = Path(__file__).resolve().parents[1] / "scripts" / f"{name}.py"
    done = subprocess.run(
        [sys.executable, str(script), "--help"], capture_output=True, text=True, timeout=120, check=True
    )
    assert f"marius-{name}" in done.stdout


def test_show_the_composed_configuration(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.train(["--cfg", "job", "graph=g", "model.dim=64"]) == 0
    assert "dim: 64" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------ sweeps


def test_sweep_runs_every_combination_in_its_own_folder(runs: list[TrainConfig], tmp_path: Path) -> None:
    assert cli.train(["-m", "graph=g", "model.dim=4,6", "loss=softmax,margin", "loss.x=1"]) == 0
    assert [(one.model.dim, one.loss.target) for one in runs] == [
        (4, "softmax"),
        (4, "margin"),
        (6, "softmax"),
        (6, "margin"),
    ]
    outputs = {str(one.output) for one in runs}
    assert len(outputs) == 4
    assert all(Path(one).is_relative_to(tmp_path / "runs") for one in outputs)
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
    assert "HYDRA_FULL_ERROR" not in os.environ


def test_a_job_that_is_refused_leaves_no_folder(tmp_path: Path) -> None:
    assert cli.train(["-m", "graph=none", "model.dim=4,6", "hydra.sweep.dir=mine"]) == 2
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["multirun.yaml"]


def test_a_sweep_has_the_folder_that_hydra_is_told(runs: list[TrainConfig], tmp_path: Path) -> None:
    assert cli.train(["-m", "graph=g", "model.dim=4,6", "hydra.sweep.dir=mine"]) == 0
    assert [config.output for config in runs] == [str(tmp_path / "mine" / number) for number in "01"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["hydra.run.dir=X"],
            "hydra.run.dir=X is without effect: hydra makes no folder for a run; the folder ",
        ),
        (["-m", "hydra.run.dir=X", "model.dim=4,6"], "the folder of a sweep is hydra.sweep.dir=X"),
        (["hydra.job.chdir=true"], "hydra.job.chdir=true is without effect on a single run"),
        (["hydra/job_logging=none"], "hydra/job_logging=none is without effect on a single run"),
    ],
)
def test_settings_of_hydra_without_effect_are_warned_of(
    runs: list[TrainConfig], capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert cli.train([*words, "graph=g"]) == 0
    assert runs
    assert said in capsys.readouterr().err


def test_settings_of_hydra_can_be_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.train(["--cfg", "hydra", "graph=g", "hydra.job.chdir=true"]) == 0
    assert "chdir: true" in capsys.readouterr().out


def test_sweep_with_named_outputs(runs: list[TrainConfig]) -> None:
    assert cli.train(["--multirun", "graph=g", "model.dim=4,6", "output=out/${model.dim}"]) == 0
    assert [one.output for one in runs] == ["out/4", "out/6"]


def _failing_at(monkeypatch: pytest.MonkeyPatch, errors: dict[int, BaseException]) -> list[int]:
    """Training replaced by what fails for some model.dim; returns those that were asked for."""
    seen: list[int] = []

    def train(config: TrainConfig, watcher: Any = None) -> dict[str, Any]:
        seen.append(config.model.dim)
        if config.model.dim in errors:
            raise errors[config.model.dim]
        return {"test": METRICS, "train": {}, "output": config.output}

    monkeypatch.setattr(marius_py.assembly.build, "train", train)
    return seen


def test_sweep_goes_on_after_failures_and_ends_with_the_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = _failing_at(monkeypatch, {4: StorageError("disk full"), 8: RuntimeError("surprise")})
    assert cli.train(["-m", "graph=g", "model.dim=2,4,7,8,10"]) == 1
    assert seen == [2, 4, 8, 10]
    err = capsys.readouterr().err.splitlines()
    assert err[-1] == "error: disk full (job 1; 3 of 5 jobs failed, this one first)"
    failed = [line.split(" E ")[1] for line in err if " E " in line]
    assert failed[0] == "job 1 failed: disk full"
    assert failed[1].startswith("job 2 failed: model.dim=7 is odd")
    assert failed[2] == "job 3 failed: unexpected RuntimeError: surprise"


@pytest.mark.parametrize(
    "error", [InterruptedRunError("interrupted; go on with resume=true"), KeyboardInterrupt()]
)
def test_an_interrupt_ends_a_sweep(
    error: BaseException, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = _failing_at(monkeypatch, {4: StorageError("disk full"), 6: error})
    assert cli.train(["-m", "graph=g", "model.dim=4,6,8"]) == 130
    assert seen == [4, 6]
    assert "error: interrupted" in capsys.readouterr().err


def test_sweepers_are_told_figures_and_failures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from hydra._internal.core_plugins.basic_launcher import BasicLauncher

    returned: list[Any] = []
    launch = BasicLauncher.launch

    def recorded(self: Any, *arguments: Any, **more: Any) -> Any:
        jobs = launch(self, *arguments, **more)
        returned.extend(one.return_value for one in jobs)
        return jobs

    monkeypatch.setattr(BasicLauncher, "launch", recorded)
    _failing_at(monkeypatch, {4: StorageError("disk full")})
    assert cli.train(["-m", "graph=g", "model.dim=2,4,6"]) == 1
    assert returned[1] is None
    assert returned[0] is not None
    assert returned[0] == returned[2]


def test_a_sweep_whose_file_cannot_be_read_is_code_2(
    runs: list[TrainConfig], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "mine" / "experiment").mkdir(parents=True)
    (tmp_path / "mine" / "experiment" / "broken.yaml").write_text("a: [1\nb: {")
    assert cli.train(["-m", "--config-dir", "mine", "graph=g", "experiment=broken"]) == 2
    assert "broken.yaml" in capsys.readouterr().err
    assert not runs


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"# @package _global_\n# r\xe9glages\n", "is not UTF-8: line 2 holds the byte 0xe9"),
        (b"# @package _global_\ndefaults: [override /loss: nope]\n", "mine.yaml: loss=nope is unknown"),
        (b"model: {dim: 16}\n", "mine.yaml lacks the line `# @package _global_`"),
    ],
)
def test_a_sweep_names_the_file_that_is_wrong(
    runs: list[TrainConfig], capsys: pytest.CaptureFixture[str], tmp_path: Path, content: bytes, part: str
) -> None:
    (tmp_path / "my" / "experiment").mkdir(parents=True)
    (tmp_path / "my" / "experiment" / "mine.yaml").write_bytes(content)
    assert cli.train(["-m", "--config-dir", "my", "graph=g", "experiment=mine"]) == 2
    assert part in capsys.readouterr().err
    assert not runs


def test_a_class_is_swept_together_with_its_argument(
    runs: list[TrainConfig], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["graph=g", "model.decoder.norm=l2", "model.decoder=rotate,transe", "output=a b"]
    assert cli.train(["-m", *words]) == 0
    assert [one.model.decoder.target for one in runs] == ["rotate", "transe"]
    assert [dict(one.model.decoder.arguments) for one in runs] == [{"norm": "l2"}] * 2
    lines = [line.split(" I ")[1] for line in capsys.readouterr().err.splitlines() if " I job " in line]
    assert lines == [
        f"job {number}: graph=g model.decoder.norm=l2 model.decoder={name} 'output=a b'"
        for number, name in enumerate(("rotate", "transe"))
    ]
    assert cli.train(shlex.split(lines[1].split(": ")[1])) == 0
    assert plain(runs[2]) == plain(runs[1])


def test_sweep_of_a_command_that_writes_a_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    modes: list[str] = []

    def evaluate(config: Any, on_stage: Any = None) -> dict[str, Any]:
        modes.append(config.mode)
        return METRICS

    monkeypatch.setattr(marius_py.evaluating, "evaluate", evaluate)
    assert cli.evaluate(["-m", "run=r", "mode=full,sampled"]) == 0
    assert modes == ["full", "sampled"]
    found = sorted((tmp_path / "runs").glob("sweep-*/*/metrics.json"))
    assert [path.parent.name for path in found] == ["0", "1"]
    assert json.loads(found[0].read_text()) == METRICS
    capsys.readouterr()
    assert cli.evaluate(["--help"]) == 0
    assert "with -m metrics.json in the folder of each job" in " ".join(capsys.readouterr().out.split())


def test_jobs_of_a_sweep_do_not_write_over_each_others_files(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(
        marius_py.evaluating, "evaluate", lambda config, on_stage=None: {"mrr": len(config.mode)}
    )
    words = ["-m", "run=r", "mode=full,sampled"]
    assert cli.evaluate([*words, "output=o.json"]) == 2
    assert "output=o.json was written by job 0, and each job needs" in capsys.readouterr().err
    assert json.loads((tmp_path / "o.json").read_text()) == {"mrr": len("full")}
    assert cli.evaluate([*words, "output=o-${hydra:job.num}.json"]) == 0
    assert json.loads((tmp_path / "o-1.json").read_text()) == {"mrr": len("sampled")}


def _saved_run(folder: Path) -> str:
    words = ["graph=g", f"output={folder}", "loss=logistic", "negatives.count=50", "training.epochs=2"]
    write_yaml(plain(load_config(words)), folder / "config.yaml")
    return f"output={folder}"


def test_sweep_that_resumes_takes_the_settings_of_each_run(runs: list[TrainConfig], tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    output = _saved_run(tmp_path / "r")
    assert cli.train(["-m", output, "resume=true", "training.epochs=3,4"]) == 0
    assert [(one.graph, one.loss.target, one.negatives.count) for one in runs] == [("g", "logistic", 50)] * 2
    assert [one.training.epochs for one in runs] == [3, 4]


def test_show_the_settings_of_a_run_that_goes_on(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    output = _saved_run(tmp_path / "r")
    assert cli.train(["--cfg", "job", output, "resume=true", "training.epochs=3"]) == 0
    (tmp_path / "shown.yaml").write_text(capsys.readouterr().out)
    shown = read_yaml(tmp_path / "shown.yaml")
    assert shown == plain(load_config([output, "resume=true", "training.epochs=3"]))
    assert shown["loss"]["_target_"] == "logistic"


def test_groups_of_ones_own(
    runs: list[TrainConfig], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = 'my "own", ${groups}'
    (tmp_path / folder / "model").mkdir(parents=True)
    for name, dim in (("small", 4), ("complex", 6)):
        (tmp_path / folder / "model" / f"{name}.yaml").write_text(f"defaults: [base, _self_]\ndim: {dim}\n")
    words = ["--config-dir", folder, "graph=g", "output=o"]
    assert cli.train([*words, "model=small"]) == 0
    assert cli.train(["-m", *words, "model=small,complex"]) == 0
    assert [one.model.dim for one in runs] == [4, 4, 6]
    lines = [line.split(" I ")[1] for line in capsys.readouterr().err.splitlines() if " I job " in line]
    assert lines == [
        f"job {number}: --config-dir 'my \"own\", ${{groups}}' graph=g output=o model={name}"
        for number, name in enumerate(("small", "complex"))
    ]
    assert cli.train(shlex.split(lines[1].split(": ")[1])) == 0
    assert plain(runs[3]) == plain(runs[2])
    for more in (["-m", "model.dim=4,6"], ["experiment=mine"], ["-m", "experiment=mine"], ["--cfg", "job"]):
        assert cli.train(["--config-dir", "absent", "graph=g", *more]) == 2
        assert "--config-dir absent is not a folder" in capsys.readouterr().err


def test_sweeps_that_begin_together_have_folders_of_their_own(
    runs: list[TrainConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    microseconds = count()

    class OneSecond(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> OneSecond:
            return cls(2026, 1, 2, 3, 4, 5, next(microseconds))

    monkeypatch.setattr("hydra.core.utils.datetime", OneSecond)
    for _ in range(2):
        assert cli.train(["-m", "graph=g", "model.dim=4,6"]) == 0
    folders = [Path(str(one.output)).parent for one in runs]
    assert folders[0] == folders[1]
    assert folders[2] == folders[3]
    assert folders[0].name < folders[2].name


# ------------------------------------------------------------------ evaluate, data sets


def test_evaluate_prints_and_writes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(marius_py.evaluating, "evaluate", lambda config, on_stage=None: METRICS)
    assert cli.evaluate(["run=r", "output=metrics.json"]) == 0
    assert "test: filtered" in capsys.readouterr().out
    assert json.loads((tmp_path / "metrics.json").read_text()) == METRICS


def _archive(folder: Path, **files: str) -> Dataset:
    source = folder / "source"
    source.mkdir()
    with tarfile.open(folder / "set.tar.gz", "w:gz") as archive:
        for split, text in files.items():
            (source / f"{split}.txt").write_text(text)
            archive.add(source / f"{split}.txt", f"./{split}.txt")
    return Dataset(
        name="Set",
        url=(folder / "set.tar.gz").as_uri(),
        archive="set.tar.gz",
        folder=folder / "data",
        members={split: f"{split}.txt" for split in ("train", "valid", "test")},
        sha256={split: hashlib.sha256(text.encode()).hexdigest() for split, text in files.items()},
    )


def test_data_set_is_fetched_unpacked_and_checked(tmp_path: Path) -> None:
    dataset = _archive(tmp_path, train="a\tr\tb\n", valid="a\tr\tc\n", test="b\tr\tc\n")
    calls: list[tuple[int, int | None]] = []
    paths = fetch(dataset, lambda done, total: calls.append((done, total)))
    assert {split: path.read_text() for split, path in paths.items()}["valid"] == "a\tr\tc\n"
    assert calls[-1][0] == (tmp_path / "set.tar.gz").stat().st_size
    (tmp_path / "set.tar.gz").unlink()
    assert fetch(dataset) == paths
    assert not list((tmp_path / "data").glob("*.part"))
    paths["test"].write_text("b\tr\ta\n")
    with pytest.raises(FormatError, match="not the published test file"):
        fetch(dataset)


def test_data_set_without_a_network_says_where_to_put_the_file(tmp_path: Path) -> None:
    dataset = _archive(tmp_path, train="a\tr\tb\n", valid="a\tr\tc\n", test="b\tr\tc\n")
    archive = tmp_path / "set.tar.gz"
    moved = archive.rename(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match="Without a network") as caught:
        fetch(dataset)
    assert str(tmp_path / "data" / "set.tar.gz") in str(caught.value)
    moved.rename(tmp_path / "data" / "set.tar.gz")
    assert len(fetch(dataset)) == 3


@pytest.mark.parametrize("content", [b"", b"no archive", b"\x1f\x8b\x08\x00cut"])
def test_damaged_archive(content: bytes, tmp_path: Path) -> None:
    dataset = _archive(tmp_path, train="a\tr\tb\n", valid="a\tr\tc\n", test="b\tr\tc\n")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "set.tar.gz").write_bytes(content)
    with pytest.raises(FormatError, match=r"set\.tar\.gz"):
        fetch(dataset)


def test_archive_that_lacks_a_file(tmp_path: Path) -> None:
    dataset = _archive(tmp_path, train="a\tr\tb\n", valid="a\tr\tc\n")
    with pytest.raises(FormatError, match=r"lacks test\.txt"):
        fetch(dataset)


# ------------------------------------------------------------------ progress and signals


class _Trainer:
    def __init__(self) -> None:
        self.interrupted = 0
        self.state = RunState()
        self.epochs_done = 0

    def interrupt(self) -> None:
        self.interrupted += 1


def _send(number: int) -> None:
    os.kill(os.getpid(), number)
    time.sleep(5)


@pytest.fixture
def hangup() -> Iterator[None]:
    """The handler of SIGHUP put back, which stays ignored where a terminal was closed."""
    before = signal.getsignal(signal.SIGHUP)
    yield
    signal.signal(signal.SIGHUP, before)


def test_a_closed_terminal_commits_however_often_it_says_so(hangup: None) -> None:
    trainer: Any = _Trainer()
    with Bars() as bars, CommandWatcher(bars, 3) as watcher:
        watcher.on_start(trainer, 100, 0)
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGHUP)
        assert trainer.interrupted == 1
    os.kill(os.getpid(), signal.SIGHUP)
    assert trainer.interrupted == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_that_is_ignored_stays_so(number: signal.Signals) -> None:
    trainer: Any = _Trainer()
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with Bars() as bars, CommandWatcher(bars, 3) as watcher:
            watcher.on_start(trainer, 100, 0)
            os.kill(os.getpid(), number)
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)
    assert trainer.interrupted == 0


@pytest.mark.filterwarnings("ignore:Exception ignored in. <function tqdm.__del__")  # before tqdm 4.68
def test_a_bar_whose_terminal_is_gone_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    master, slave = os.openpty()
    terminal = open(slave, "w")  # noqa: SIM115
    monkeypatch.setattr(sys, "stderr", terminal)
    with Bars() as bars:
        bars("stage", 1, 10, "edges")
        os.close(master)
        for stage in ("stage", "another"):
            bars(stage, 9, 10, "edges")
    with pytest.raises(OSError, match="Input/output error"):
        terminal.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_first_signal_commits_and_second_stops(number: signal.Signals) -> None:
    trainer: Any = _Trainer()
    before = signal.getsignal(number)
    with Bars() as bars, CommandWatcher(bars, 3) as watcher:
        watcher.on_start(trainer, 100, 0)
        os.kill(os.getpid(), number)
        assert trainer.interrupted == 1
        with pytest.raises(KeyboardInterrupt):
            _send(number)
    assert signal.getsignal(number) == before


def test_a_second_trainer_of_a_run_leaves_the_handlers_of_before() -> None:
    """One ends an epoch under old settings, the next goes on."""
    before = signal.getsignal(signal.SIGINT)
    with Bars() as bars, CommandWatcher(bars, 3) as watcher:
        for _ in range(2):
            watcher.on_start(_Trainer(), 100, 0)  # type: ignore[arg-type]
    assert signal.getsignal(signal.SIGINT) == before


def test_a_signal_during_the_last_commit_ends_the_ranking_after_it() -> None:
    trainer: Any = _Trainer()
    trainer.state = RunState(position=Position(1, 0, 0), history=[{}])
    with Bars() as bars, CommandWatcher(bars, 1) as watcher:
        watcher.on_start(trainer, 100, 0)
        watcher.on_stage("rank valid", 1, 2, "edges")
        os.kill(os.getpid(), signal.SIGTERM)
        assert trainer.interrupted == 1
        with pytest.raises(InterruptedRunError, match="resume=true"):
            watcher.on_stage("rank test", 1, 2, "edges")


def test_other_threads_leave_signals_alone() -> None:
    before = signal.getsignal(signal.SIGTERM)
    codes: list[int] = []

    def work() -> None:
        with Bars() as bars, CommandWatcher(bars, 3) as watcher:
            watcher.on_start(_Trainer(), 100, 0)  # type: ignore[arg-type]
        codes.append(console.guarded(lambda: None))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert codes == [0]
    assert signal.getsignal(signal.SIGTERM) == before


def test_sigterm_before_training_is_code_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def train(config: TrainConfig, watcher: Any = None) -> dict[str, Any]:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)
        return {}

    monkeypatch.setattr(marius_py.assembly.build, "train", train)
    assert cli.train(["graph=g"]) == 130


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_waits_for_the_end_of_an_import(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A library may swallow what interrupts its import, or be left half made."""
    name = f"imported_at_{number.name}"
    (tmp_path / f"{name}.py").write_text(
        f"import os, signal, time\nfor _ in range(2):\n    os.kill(os.getpid(), {int(number)})\n"
        "    time.sleep(0.1)\nwhole = True\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    before = signal.getsignal(number)
    after: list[str] = []

    def run() -> None:
        importlib.import_module(name)
        time.sleep(5)
        after.append("the sleep")

    assert console.guarded(run) == 130
    assert sys.modules.pop(name).whole
    assert not after
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(("words", "code"), [("--version", 0), ("model.dimm=3", 2)])
def test_a_signal_while_the_interpreter_ends_leaves_the_code(
    words: str, code: int, number: signal.Signals
) -> None:
    program = (
        "import atexit, os, sys; from marius_py import cli\n"
        f"sys.argv = ['python -m marius_py', 'train', '{words}']\n"
        f"atexit.register(os.kill, os.getpid(), {int(number)})\n"
        "sys.exit(cli.main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == code, done.stderr


def test_a_signal_waits_for_omegaconf() -> None:
    """Which puts an error of its own in place of what interrupts it."""
    from omegaconf import OmegaConf

    made: list[Any] = []
    sent: list[int] = []

    def once() -> str:
        if not sent:
            sent.append(signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)
        return "value"

    def run() -> None:
        OmegaConf.register_new_resolver("sends_a_signal", once, replace=True)
        try:
            made.append(OmegaConf.create({"key": "${sends_a_signal:}"}).key)
            time.sleep(5)
            made.append("after the sleep")
        finally:
            OmegaConf.clear_resolver("sends_a_signal")

    assert console.guarded(run) == 130
    assert made == ["value"]


def test_a_signal_waits_for_what_hydra_reads() -> None:
    """Which closes a file that an interrupt has kept from being opened."""
    from hydra._internal.core_plugins import importlib_resources_config_source as source

    read, sent = source.ImportlibResourcesConfigSource._read_config, []

    class Opened:
        def open(self, **named: Any) -> Any:
            os.kill(os.getpid(), signal.SIGTERM)
            sent.append("opened")
            return io.StringIO("key: value")

    def run() -> None:
        read(source.ImportlibResourcesConfigSource("hydra", "pkg://marius_py"), Opened())
        time.sleep(5)

    assert console.guarded(run) == 130
    assert sent == ["opened"]


def test_a_signal_while_an_object_goes_is_not_lost() -> None:
    class Sends:
        def __del__(self) -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.001)

    def run() -> None:
        Sends()
        time.sleep(5)

    started = time.perf_counter()
    assert console.guarded(run) == 130
    assert time.perf_counter() - started < 4


def test_one_more_signal_while_an_interrupt_is_told_is_code_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def tell(line: str) -> None:
        _send(signal.SIGTERM)

    monkeypatch.setattr(console, "tell", tell)
    assert console.guarded(lambda: _send(signal.SIGTERM)) == 130


def _drive(bars: Bars) -> None:
    with bars:
        for done in (0, 50, 100):
            bars("read", done, 100, "B")
        Bars.write("a line")
        bars("sort", 1, None, "edges")


def test_bars_are_silent_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    _drive(Bars())
    assert capsys.readouterr() == ("", "a line\n")


def test_bars_on_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    _drive(Bars())
    out, err = capsys.readouterr()
    assert out == ""
    assert "read" in err
    assert "a line" in err


def test_log_lines_reach_stderr(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def train(config: TrainConfig, watcher: Any = None) -> dict[str, Any]:
        logging.getLogger("marius_py.training.trainer").info("epoch 1: loss 0.5")
        logging.getLogger("marius_py.training.trainer").debug("detail")
        return {"test": None, "output": "o"}

    monkeypatch.setattr(marius_py.assembly.build, "train", train)
    assert cli.train(["graph=g"]) == 0
    out, err = capsys.readouterr()
    assert "epoch 1: loss 0.5" in err
    assert "detail" not in err
    assert "no test metrics" in out


@pytest.mark.parametrize("level", ["trace", "10", "Trace me"])
def test_a_level_that_does_not_exist_is_refused(
    level: str, runs: list[TrainConfig], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MARIUS_LOG", level)
    assert cli.train(["graph=g"]) == 2
    said = f"error: MARIUS_LOG={level} is unknown: it takes one of debug, info, warning, error\n"
    assert capsys.readouterr().err == said
    assert not runs


@pytest.mark.parametrize(("level", "number"), [("", logging.INFO), ("Warning", logging.WARNING)])
def test_level_of_the_log(
    level: str, number: int, runs: list[TrainConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MARIUS_LOG", level)
    assert cli.train(["graph=g"]) == 0
    assert logging.getLogger("marius_py").level == number


@pytest.mark.parametrize(
    "closed", ["<&- >&- 2>&-", *[pytest.param(one, marks=pytest.mark.slow) for one in ("<&-", ">&-", "2>&-")]]
)
def test_standard_streams_that_were_closed(closed: str, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    program = (
        "import os, sys; from marius_py import cli\n"
        "code = cli.verify(['run']) + cli.main(['--help'])\n"
        "sys.stdin.read(0), sys.stdout.flush(), sys.stderr.flush()\n"
        "open('free', 'w').write(str(os.open('run', os.O_RDONLY)))\n"
        "sys.exit(code)"
    )
    command = ["bash", "-c", f'"$@" {closed}', "bash", sys.executable, "-c", program]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False)
    assert done.returncode == 2
    assert int((tmp_path / "free").read_text()) > 2


# ------------------------------------------------------------------ the real thing, small

SMALL = [
    "graph=g 1",
    "output=run=1",
    "model.dim=4",
    "training.batch_size=64",
    "training.valid_every=0",
    "negatives.count=8",
    "storage.capacity=2",
    "pipeline.compute_threads=1",
]


def _small_graph() -> None:
    rows = [f"{i % 29}\tr\t{(i * 5 + 2) % 31}\n" for i in range(900)]
    Path("edges.tsv").write_text("".join(rows))
    assert cli.prepare(["input.train=edges.tsv", "output=g 1", "partitions=4"]) == 0


def test_prepare_train_evaluate_export(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    _small_graph()
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


@pytest.mark.parametrize("split", ["valid", "test"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_edges_are_ranked_ends_the_run(
    split: str,
    number: signal.Signals,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """All is committed then; going on ranks what was to be ranked."""
    _small_graph()
    ranked: list[str] = []
    signals: list[int] = []

    def evaluate_split(folder: Path, graph: Any, edges: Any, model: Any, name: str, **how: Any) -> Any:
        ranked.append(name)
        if name == split and not signals:
            signals.append(number)
            _send(number)
        return METRICS

    monkeypatch.setattr("marius_py.assembly.joint.evaluate_split", evaluate_split)
    settings = [*SMALL, "training.valid_every=1", "training.epochs=1"]
    assert cli.train(settings) == 130
    assert capsys.readouterr().err.splitlines()[-1].endswith("go on with resume=true")
    assert ranked[-1] == split
    assert not (tmp_path / "run=1" / "result.json").exists()
    ranked.clear()
    assert cli.train(["output=run=1", "resume=true"]) == 0
    assert ranked == (["valid", "test"] if split == "valid" else ["test"])
    assert (tmp_path / "run=1" / "result.json").exists()


def test_interrupted_run_is_code_130_and_goes_on(tmp_path: Path) -> None:
    _small_graph()
    command = [sys.executable, "-m", "marius_py", "train", *SMALL, "training.epochs=100000"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    assert process.stderr is not None
    with process.stderr:
        for line in process.stderr:
            if "epoch 2" in line:
                process.send_signal(signal.SIGINT)
                break
        rest = process.stderr.read()
    assert process.wait(60) == 130
    assert "Traceback" not in rest
    assert "resume=true" in rest.splitlines()[-1]
    done = len((tmp_path / "run=1" / "metrics.jsonl").read_text().splitlines())
    assert cli.train(["output=run=1", "resume=true", f"training.epochs={done + 1}"]) == 0
    assert len((tmp_path / "run=1" / "metrics.jsonl").read_text().splitlines()) == done + 1


def test_a_line_of_the_log_that_comes_upon_another_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one of a signal's handler does, where standard error is a full pipe."""
    tried = []

    class Busy(io.StringIO):
        def write(self, text: str) -> int:
            tried.append(text)
            raise RuntimeError("reentrant call inside <_io.BufferedWriter name='<stderr>'>")

    monkeypatch.setattr(sys, "stderr", Busy())
    console._StderrHandler().emit(
        logging.LogRecord("marius_py", logging.WARNING, "", 0, "committing", (), None)
    )
    assert tried


def test_errors_and_log_lines_are_one_line_that_steers_no_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A user's class says what it likes."""

    def fail() -> None:
        logging.getLogger("marius_py").warning("%s", "two\nlines\x1b[2J")
        raise ValueError("no\n\x1b[31mquery\x1b[0m today\u2028\n")

    assert console.guarded(fail) == 1
    warning, error, rest = capsys.readouterr().err.split("\n")
    assert warning.endswith(" W two\\nlines\\x1b[2J")
    assert error.startswith(r"error: unexpected ValueError: no\n\x1b[31mquery\x1b[0m today")
    assert error.isprintable()
    assert not rest
