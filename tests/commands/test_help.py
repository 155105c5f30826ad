"""Help, versions and the composed configuration, by whichever way a command is called."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from marius_py import __version__, cli
from marius_py.config import load_config, plain, read_yaml
from tests.commands.stand_ins import run_command, save_run


@pytest.mark.parametrize("command", ["train", "extend"])
def test_help_escapes_what_the_encoding_lacks(command: str) -> None:
    done = run_command(command, "--help", env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stderr) == (0, "")
    assert "\\u2026" in done.stdout


@pytest.mark.parametrize("command", ["train", "evaluate", "prepare", "export"])
def test_help_and_version(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert getattr(cli, command)(["--help"]) == 0
    assert f"marius-{command}" in capsys.readouterr().out
    assert getattr(cli, command)(["--version"]) == 0
    assert __version__ in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("train", []),
        pytest.param("train", ["output=o"], marks=pytest.mark.slow),
        pytest.param("train", ["-m", "output=o"], marks=pytest.mark.slow),
        pytest.param("evaluate", ["output=o"], marks=pytest.mark.slow),
        ("prepare", ["-m", "output=o"]),
        ("plan", []),
    ],
)
def test_help_of_hydra(command: str, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert getattr(cli, command)(["--hydra-help", *words]) == 0
    assert "Hydra" in capsys.readouterr().out


def test_help_takes_less_than_a_second() -> None:
    seconds = []
    for _ in range(3):
        started = time.perf_counter()
        assert run_command("train", "--help").returncode == 0
        seconds.append(time.perf_counter() - started)
    assert min(seconds) < 1.0


def test_module_entry_point(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "--version"]) == 0
    assert cli.main(["--help"]) == 0
    assert cli.main([]) == 2
    assert cli.main(["nonsense"]) == 2
    done = run_command("train", "model.dimm=3")
    assert (done.returncode, done.stdout) == (2, "")
    assert "did you mean model.dim?" in done.stderr


@pytest.mark.parametrize("name", ["prepare", "train", "evaluate", "export"])
def test_scripts_are_the_commands(name: str) -> None:
    script = Path(__file__).resolve().parents[2] / "scripts" / f"{name}.py"
    done = subprocess.run(
        [sys.executable, str(script), "--help"], capture_output=True, text=True, timeout=120, check=True
    )
    assert f"marius-{name}" in done.stdout


def test_show_the_composed_configuration(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.train(["--cfg", "job", "graph=g", "model.dim=64"]) == 0
    assert "dim: 64" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_settings_of_hydra_can_be_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.train(["--cfg", "hydra", "graph=g", "hydra.job.chdir=true"]) == 0
    assert "chdir: true" in capsys.readouterr().out


def test_show_the_settings_of_a_run_that_goes_on(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    output = save_run(tmp_path / "r")
    assert cli.train(["--cfg", "job", output, "resume=true", "training.epochs=3"]) == 0
    (tmp_path / "shown.yaml").write_text(capsys.readouterr().out)
    shown = read_yaml(tmp_path / "shown.yaml")
    assert shown == plain(load_config([output, "resume=true", "training.epochs=3"]))
    assert shown["loss"]["_target_"] == "logistic"
