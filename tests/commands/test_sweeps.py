"""Sweeps: a job for each combination, in folders of their own, to the end whichever fail."""

from __future__ import annotations

import json
import os
import re
import shlex
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import marius_py.assembly.build
import marius_py.evaluating
from marius_py import cli
from marius_py.config import TrainConfig, plain
from marius_py.errors import (
    InterruptedRunError,
    StorageError,
)
from tests.commands.stand_ins import METRICS, save_run


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
    words = ["graph=g", "model.decoder.norm=l2", "model.decoder=rotate,transe", "output=a b", "resume=true"]
    assert cli.train(["-m", *words]) == 0
    assert [one.model.decoder.target for one in runs] == ["rotate", "transe"]
    assert [dict(one.model.decoder.arguments) for one in runs] == [{"norm": "l2"}] * 2
    lines = [line.split(" I ")[1] for line in capsys.readouterr().err.splitlines() if " I job " in line]
    assert lines == [
        f"job {number}: graph=g model.decoder.norm=l2 model.decoder={name} 'output=a b' resume=true"
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


def test_jobs_of_a_sweep_do_not_train_in_one_folder(
    runs: list[TrainConfig], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.train(["-m", "graph=g", "model.dim=4,6", "output=o"]) == 2
    told = capsys.readouterr().err
    assert "output=o was written by job 0, and each job needs one of its own: leave it out, or" in told
    assert "resume" not in told
    offered = re.findall("'(output=.*?)'", told)[0]
    assert cli.train(["-m", "graph=g", "model.dim=4,6", offered]) == 0
    assert [config.output for config in runs] == ["o", "job-0", "job-1"]


def test_sweep_that_resumes_takes_the_settings_of_each_run(runs: list[TrainConfig], tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    output = save_run(tmp_path / "r")
    assert cli.train(["-m", output, "resume=true", "training.epochs=3,4"]) == 0
    assert [(one.graph, one.loss.target, one.negatives.count) for one in runs] == [("g", "logistic", 50)] * 2
    assert [one.training.epochs for one in runs] == [3, 4]


def test_groups_of_ones_own(
    runs: list[TrainConfig], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = 'my "own", ${groups}'
    (tmp_path / folder / "model").mkdir(parents=True)
    for name, dim in (("small", 4), ("complex", 6)):
        (tmp_path / folder / "model" / f"{name}.yaml").write_text(f"defaults: [base, _self_]\ndim: {dim}\n")
    words = ["--config-dir", folder, "graph=g", "output=o", "resume=true"]
    assert cli.train([*words, "model=small"]) == 0
    assert cli.train(["-m", *words, "model=small,complex"]) == 0
    assert [one.model.dim for one in runs] == [4, 4, 6]
    lines = [line.split(" I ")[1] for line in capsys.readouterr().err.splitlines() if " I job " in line]
    assert lines == [
        f"job {number}: --config-dir 'my \"own\", ${{groups}}' graph=g output=o resume=true model={name}"
        for number, name in enumerate(("small", "complex"))
    ]
    assert cli.train(shlex.split(lines[1].split(": ")[1])) == 0
    assert plain(runs[3]) == plain(runs[2])
    for more in (["-m", "model.dim=4,6"], ["experiment=mine"], ["-m", "experiment=mine"], ["--cfg", "job"]):
        assert cli.train(["--config-dir", "absent", "graph=g", *more]) == 2
        assert "--config-dir absent is not a folder" in capsys.readouterr().err


@pytest.mark.slow
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
