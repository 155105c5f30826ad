"""Standard streams that are closed, full or gone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from marius_py.config import TrainConfig


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


@pytest.mark.parametrize("unbuffered", [False, True])
@pytest.mark.parametrize("words", ["marius_py train --help", "marius_py.ordering 32 4"])
def test_a_text_that_fits_in_part_is_told_of(words: str, unbuffered: bool, tmp_path: Path) -> None:
    command = ["bash", "-c", 'ulimit -f 1; "$@" > file', "bash", sys.executable, "-m", *words.split()]
    done = subprocess.run(
        command,
        # Byte code that is written under the limit would be cut off, and kept.
        env={
            **os.environ,
            "PYTHONUNBUFFERED": "1" if unbuffered else "",
            "PYTHONDONTWRITEBYTECODE": "1",
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stderr == "error: standard output cannot be written: File too large\n"
    assert done.returncode == 1
    assert (tmp_path / "file").stat().st_size == 1024


@pytest.mark.parametrize("words", [["train", "model.dimm=3"], ["nonsense"]])
def test_errors_that_cannot_be_written_keep_their_code(words: list[str]) -> None:
    with open("/dev/full", "w") as full:
        assert _buffered(words, stderr=full).returncode == 2
        assert _buffered(words, stdout=full, stderr=full).returncode == 2


def _buffered(words: list[str], unbuffered: bool = False, **more: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "marius_py", *words]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1" if unbuffered else ""}
    return subprocess.run(command, env=environment, text=True, timeout=120, check=False, **more)


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
